//! Servers that refuse: axum, and hyper's own, over HTTP/1 and HTTP/2, on loopback.
//!
//! Nothing here asserts how long anything takes. What must come to pass is waited for.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::State,
    handler::Handler as _,
    response::{IntoResponse, Sse, sse::Event},
    routing::{any, get, post},
    serve::ListenerExt,
};
use buttress::{
    BoxError, Bulkhead, BulkheadLayer, BulkheadSettings, Deadline, DeadlineLayer, FixedLimit,
    Priority, Reason, Rejected, ServerService, ServerStandard, Shed, ShedLayer, ShedSettings, edge,
    http::{AtEnd, ByCode, ReceiveDeadlineLayer, RejectedAsResponseLayer, WholeBody, refusal},
};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream};
use http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
    task::{JoinSet, yield_now},
};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn, util::option_layer};

/// How much time a caller says it has, in milliseconds.
const LEFT: HeaderName = HeaderName::from_static("x-time-left-ms");

fn bulkhead(limit: usize) -> Bulkhead {
    Bulkhead::new(BulkheadSettings::new(limit)).unwrap()
}

fn shed(limit: u32) -> Shed {
    Shed::new(FixedLimit::new(limit as _).unwrap(), ShedSettings::default().max_queue(0)).unwrap()
}

/// Waits for what must come to pass.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..3_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it never came to pass that {what}");
}

/// Serves with axum on loopback, and counts the connections.
async fn serve(app: Router) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = accepted.clone();
    let listener = listener.tap_io(move |_| _ = count.fetch_add(1, SeqCst));
    tokio::spawn(axum::serve(listener, app).into_future());
    (addr, accepted)
}

/// One connection of a client, which is never replaced.
enum Connection {
    One(http1::SendRequest<Full<Bytes>>),
    Two(http2::SendRequest<Full<Bytes>>),
}

#[derive(Debug)]
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    text: Bytes,
}

impl Connection {
    async fn open(addr: SocketAddr, is_http2: bool) -> Self {
        let io = TokioIo::new(TcpStream::connect(addr).await.unwrap());
        if is_http2 {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
            tokio::spawn(connection);
            Self::Two(sender)
        } else {
            let (sender, connection) = http1::handshake(io).await.unwrap();
            tokio::spawn(connection.with_upgrades());
            Self::One(sender)
        }
    }

    /// Fails if the connection was closed.
    async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, hyper::Error> {
        match self {
            Self::One(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
            Self::Two(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }

    async fn ask(&mut self, request: Request<Full<Bytes>>) -> Result<Answer, hyper::Error> {
        let (head, body) = self.send(request).await?.into_parts();
        let text = body.collect().await?.to_bytes();
        Ok(Answer { status: head.status, headers: head.headers, text })
    }

    async fn get(&mut self, path: &str) -> Answer {
        self.ask(request(Method::GET, path, "")).await.unwrap()
    }
}

fn request(method: Method, path: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    let uri = format!("http://server{path}");
    Request::builder().method(method).uri(uri).body(Full::new(body.into())).unwrap()
}

/// Waits for a bell before it answers, and tells how many wait, and how many did at most.
#[derive(Clone, Default)]
struct Handler {
    bell: Arc<Notify>,
    inside: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

struct Inside(Arc<AtomicUsize>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Handler {
    async fn handle(self) -> &'static str {
        let inside = self.inside.fetch_add(1, SeqCst) + 1;
        let _inside = Inside(self.inside.clone());
        self.most.fetch_max(inside, SeqCst);
        self.bell.notified().await;
        "done"
    }

    fn inside(&self) -> usize {
        self.inside.load(SeqCst)
    }
}

// === In axum's router ===

async fn status(app: &Router, path: &str) -> u16 {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let Ok(response) = app.clone().oneshot(request).await;
    response.status().as_u16()
}

/// A path, and its status while there is room and while there is none.
type Path = (&'static str, u16, u16);

// HTP-06
#[tokio::test]
async fn wherever_axum_takes_a_layer_ours_refuse_what_is_beneath_and_nothing_else() {
    let (bulkhead, shed) = (bulkhead(1), shed(1));
    let layers = ServiceBuilder::new()
        .layer(RejectedAsResponseLayer::new())
        .layer(ReceiveDeadlineLayer::millis(LEFT))
        .layer(ShedLayer::new(shed.clone()))
        .layer(BulkheadLayer::new(bulkhead.clone()))
        .layer(DeadlineLayer::new(Duration::from_secs(30)));
    let name = async |State(name): State<&'static str>| name;
    let routes = || Router::new().route("/a", get(name));
    let apps: [(&str, Router<&'static str>, &[Path]); 7] = [
        ("Router::layer", routes().layer(layers.clone()), &[("/a", 200, 503), ("/x", 404, 503)]),
        (
            "Router::route_layer",
            routes().route_layer(layers.clone()),
            &[("/a", 200, 503), ("/x", 404, 404)],
        ),
        (
            "MethodRouter::layer",
            routes().route("/b", get(name).layer(layers.clone())),
            &[("/a", 200, 200), ("/b", 200, 503)],
        ),
        (
            "Handler::layer",
            routes().route("/b", get(name.layer(layers.clone()))),
            &[("/a", 200, 200), ("/b", 200, 503)],
        ),
        (
            "Router::nest",
            routes().nest("/sub", routes().layer(layers.clone())),
            &[("/a", 200, 200), ("/sub/a", 200, 503)],
        ),
        (
            "Router::fallback",
            routes().fallback(name.layer(layers.clone())),
            &[("/a", 200, 200), ("/x", 200, 503)],
        ),
        (
            "Router::route_service",
            routes().route_service("/b", layers.service(any(name).with_state("it"))),
            &[("/a", 200, 200), ("/b", 200, 503)],
        ),
    ];
    for (what, app, paths) in apps {
        let app = app.with_state("it");
        for (path, open, _) in paths {
            assert_eq!(status(&app, path).await, *open, "{what}, {path}");
        }
        let slot = bulkhead.try_acquire().unwrap();
        for (path, _, full) in paths {
            assert_eq!(status(&app, path).await, *full, "{what}, {path}, when full");
        }
        drop(slot);
        let place = shed.try_admit(Priority::Critical).unwrap();
        for (path, _, full) in paths {
            assert_eq!(status(&app, path).await, *full, "{what}, {path}, when overloaded");
        }
        drop(place);
    }
}

/// What axum asks of a layer around a route, and that it cannot fail.
fn fits_axum<L>(layer: L) -> L
where
    L: Layer<axum::routing::Route> + Clone + Send + Sync + 'static,
    L::Service: Service<Request<Body>, Error = Infallible, Response: IntoResponse>
        + Clone
        + Send
        + Sync
        + 'static,
    <L::Service as Service<Request<Body>>>::Future: Send,
{
    layer
}

// HTP-06
#[tokio::test]
async fn a_part_that_is_on_or_off_changes_neither_the_type_nor_what_it_can_fail_with() {
    for is_on in [true, false] {
        let (shed, bulkhead) = (shed(1), bulkhead(1));
        // Options stand above a layer whose error is the same as theirs: each of ours.
        let layers = fits_axum(
            ServiceBuilder::new()
                .layer(RejectedAsResponseLayer::new())
                .option_layer(is_on.then(|| ReceiveDeadlineLayer::millis(LEFT)))
                .option_layer(is_on.then(|| ShedLayer::new(shed.clone())))
                .option_layer(is_on.then(|| BulkheadLayer::new(bulkhead.clone())))
                .layer(DeadlineLayer::new(Duration::from_secs(30))),
        );
        // Or each of them cannot fail.
        let whole = ServiceBuilder::new()
            .layer(RejectedAsResponseLayer::new())
            .layer(BulkheadLayer::new(bulkhead.clone()));
        let infallible = fits_axum(option_layer(is_on.then_some(whole)));
        let routes = || Router::new().route("/", get(async || "it"));
        let _slot = bulkhead.try_acquire().unwrap();
        for app in [routes().layer(layers), routes().layer(infallible)] {
            assert_eq!(status(&app, "/").await, if is_on { 503 } else { 200 });
        }
    }
}

// HTP-06
#[tokio::test]
async fn axums_own_handling_of_errors_can_stand_in_for_ours() {
    let bulkhead = bulkhead(1);
    let answer = async |error: BoxError| match refusal(&*error) {
        Some(refusal) => refusal.into_response::<Body>(),
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    };
    let layers = ServiceBuilder::new()
        .layer(axum::error_handling::HandleErrorLayer::new(answer))
        .layer(BulkheadLayer::new(bulkhead.clone()));
    let app = Router::new().route("/", get(async || "it")).layer(layers);
    assert_eq!(status(&app, "/").await, 200);
    let _slot = bulkhead.try_acquire().unwrap();
    assert_eq!(status(&app, "/").await, 503);
}

// HTP-06
#[tokio::test]
async fn the_standard_server_is_what_is_spelled_out_and_cannot_fail() {
    fn same<T>(_: &T, _: &T) {}
    let server = fits_axum(
        ServerStandard::http(1).queue(ShedSettings::default().max_queue(0)).build().unwrap(),
    );
    let spelled_out = fits_axum(
        ServiceBuilder::new()
            .layer(RejectedAsResponseLayer::new())
            .layer(ReceiveDeadlineLayer::grpc())
            .layer(ShedLayer::new(server.shed().clone()))
            .layer(DeadlineLayer::new(Duration::from_secs(30))),
    );
    let inner = service_fn(async |_: Request<Body>| {
        let left = Deadline::current().unwrap().left(edge::now());
        assert!(left <= Duration::from_secs(30), "{left:?}");
        Ok::<_, Infallible>(Response::new(Body::from("it")))
    });
    same(&server.layer(inner), &spelled_out.clone().service(inner));

    let routes = || Router::new().route_service("/", any(async || "it"));
    for app in [routes().layer(server.clone()), routes().layer(spelled_out)] {
        assert_eq!(status(&app, "/").await, 200);
        let late = Request::get("/").header("grpc-timeout", "0n").body(Body::empty()).unwrap();
        let Ok(response) = app.clone().oneshot(late).await;
        assert_eq!(response.status(), 504);
        let _place = server.shed().try_admit(Priority::Critical).unwrap();
        assert_eq!(status(&app, "/").await, 503);
    }
}

/// A server of tonic's can be kept under its name.
#[expect(dead_code, reason = "it compiles, and that is the test")]
struct Kept {
    orders: ServerService<tonic::service::Routes, ByCode>,
}

// BKO-10
#[test]
fn settings_of_a_server_that_cannot_work_are_refused_and_named() {
    let ms = Duration::from_millis;
    let queue = ShedSettings::default();
    let server = || ServerStandard::http(1);
    for (builder, setting) in [
        (ServerStandard::http(0), Some("limit")),
        (server().total(Duration::ZERO), Some("total")),
        (server().total(ms(100)), Some("queue.interval")),
        (server().total(ms(101)), None),
        (server().total(Duration::ZERO).queue(queue.clone().max_queue(0)), Some("total")),
        (server().total(ms(1)).queue(queue.clone().max_queue(0)), None),
        (server().queue(queue.clone().interval(Duration::MAX)), None),
        (server().queue(queue.target(Duration::ZERO)), Some("queue.target")),
        (server().margin(Duration::MAX), Some("margin")),
    ] {
        let refused = builder.build().err();
        assert_eq!(refused.as_ref().map(|error| error.setting()), setting, "{refused:?}");
    }
}

// BLK-01
#[tokio::test]
async fn routes_and_connections_of_an_axum_server_share_one_bulkhead_and_one_shed() {
    for is_shed in [false, true] {
        let (handler, bulkhead, shed) = (Handler::default(), bulkhead(5), shed(5));
        let held = |at: Shed, of: &Bulkhead| if is_shed { at.in_flight() } else { of.in_flight() };
        let layers = ServiceBuilder::new()
            .layer(RejectedAsResponseLayer::new())
            .option_layer(is_shed.then(|| ShedLayer::new(shed.clone())))
            .option_layer((!is_shed).then(|| BulkheadLayer::new(bulkhead.clone())))
            .map_err(BoxError::from);
        let route = |handler: Handler| get(move || handler.handle());
        let app = Router::new()
            .route("/a", route(handler.clone()).layer(layers.clone()))
            .merge(Router::new().route("/b", route(handler.clone())).layer(layers));
        let (addr, accepted) = serve(app).await;
        let mut calls = JoinSet::new();
        for n in 0..50 {
            calls.spawn(async move {
                let mut connection = Connection::open(addr, false).await;
                connection.get(["/a", "/b"][n % 2]).await.status
            });
        }
        for _ in 0..45 {
            assert_eq!(calls.join_next().await.unwrap().unwrap(), StatusCode::SERVICE_UNAVAILABLE);
        }
        assert_eq!((handler.most.load(SeqCst), held(shed.clone(), &bulkhead)), (5, 5));
        assert_eq!(accepted.load(SeqCst), 50);
        until("all are answered", || {
            handler.bell.notify_waiters();
            held(shed.clone(), &bulkhead) == 0
        })
        .await;
        while let Some(status) = calls.join_next().await {
            assert_eq!(status.unwrap(), StatusCode::OK);
        }
    }
}

// === On a connection ===

/// A server of which each path is refused in a way of its own.
fn refusing(full: &Bulkhead, shed: &Shed) -> Router {
    let server = ServiceBuilder::new().layer(RejectedAsResponseLayer::new());
    let late = server.clone().layer(DeadlineLayer::new(Duration::from_millis(5)));
    let elsewhere = server.clone().service(service_fn(|_: Request<Body>| async {
        let rejected = Rejected::new(Reason::NotLeader, "leadership");
        Err::<Response<Body>, _>(BoxError::from(rejected))
    }));
    Router::new()
        .route("/", any(async || "well"))
        .route("/echo", post(async |body: Bytes| body))
        .route_service("/elsewhere", elsewhere)
        .route("/late", any(std::future::pending::<()>).layer(late))
        .route(
            "/full",
            any(async || "").layer(server.clone().layer(BulkheadLayer::new(full.clone()))),
        )
        .route("/shed", any(async || "").layer(server.clone().layer(ShedLayer::new(shed.clone()))))
        .layer(server.layer(ReceiveDeadlineLayer::millis(LEFT)))
}

// BLK-12, TMO-08, HTP-06
#[tokio::test]
async fn one_connection_sees_every_refusal_in_a_row_and_serves_on() {
    let (full, shed) = (bulkhead(1), shed(1));
    let (_slot, _place) =
        (full.try_acquire().unwrap(), shed.try_admit(Priority::Critical).unwrap());
    let (addr, accepted) = serve(refusing(&full, &shed)).await;
    for is_http2 in [false, true] {
        let mut connection = Connection::open(addr, is_http2).await;
        for method in [Method::GET, Method::POST, Method::HEAD] {
            for (path, status, text) in [
                ("/full", 503, "bulkhead full"),
                ("/shed", 503, "overloaded"),
                ("/late", 504, "timed out"),
                ("/elsewhere", 421, "not leader"),
            ] {
                // A body that nobody reads, and that comes together with its head.
                let sent = if method == Method::POST { "hello" } else { "" };
                let answer = connection.ask(request(method.clone(), path, sent)).await.unwrap();
                assert_eq!(answer.status, status, "{method} {path}");
                let is_head = method == Method::HEAD;
                assert_eq!(answer.text, if is_head { "" } else { text }, "{method} {path}");
                let retry_after = answer.headers.get("retry-after").map(|wait| wait.as_bytes());
                assert_eq!(retry_after, (path == "/shed").then_some(&b"1"[..]), "{path}");
                let overloaded = answer.headers.contains_key("x-buttress-overloaded");
                assert_eq!(overloaded, status == 503, "{path}");
            }
            let mut late = request(method.clone(), "/", "");
            late.headers_mut().insert(LEFT, 0.into());
            assert_eq!(connection.ask(late).await.unwrap().status, 504);
            assert_eq!(connection.get("/").await.text, "well", "{method}");
        }
    }
    assert_eq!(accepted.load(SeqCst), 2);
}

// BLK-12, HTP-06
#[tokio::test]
async fn on_http2_an_upload_that_is_refused_gets_its_whole_answer_and_costs_nobody_else() {
    let (full, shed) = (bulkhead(1), shed(1));
    let _place = shed.try_admit(Priority::Critical).unwrap();
    let (addr, accepted) = serve(refusing(&full, &shed)).await;
    let mut connection = Connection::open(addr, true).await;
    // More than all windows hold: it is not sent to its end before the answer is there.
    let large = Bytes::from(vec![7; 4 << 20]);
    for _ in 0..20 {
        let refused = connection.ask(request(Method::POST, "/shed", large.clone())).await.unwrap();
        assert_eq!((refused.status.as_u16(), &refused.text[..]), (503, &b"overloaded"[..]));
    }
    let echoed = connection.ask(request(Method::POST, "/echo", "hello")).await.unwrap();
    assert_eq!((&echoed.text[..], accepted.load(SeqCst)), (&b"hello"[..], 1));
}

/// Sends the head of an upload, and not its body, and reads the answer's head.
async fn upload_of_which_only_the_head_is_sent(
    socket: &mut TcpStream,
    path: &str,
    more: &str,
) -> String {
    let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n{more}\r\n");
    socket.write_all(head.as_bytes()).await.unwrap();
    read_head(socket).await
}

async fn read_head(socket: &mut TcpStream) -> String {
    let mut read = Vec::new();
    while !read.ends_with(b"\r\n\r\n") {
        let byte = socket.read_u8().await.expect("the answer has a head");
        read.push(byte);
    }
    String::from_utf8(read).unwrap().to_ascii_lowercase()
}

// TMO-05, HTP-06
#[tokio::test]
async fn what_is_refused_is_refused_before_its_body_is_asked_for() {
    let (full, shed) = (bulkhead(1), shed(1));
    let (_slot, _place) =
        (full.try_acquire().unwrap(), shed.try_admit(Priority::Critical).unwrap());
    let (addr, _) = serve(refusing(&full, &shed)).await;
    let waits = "expect: 100-continue\r\n";
    for (path, more, status) in [
        ("/shed", waits, "503"),
        ("/full", waits, "503"),
        ("/echo", "expect: 100-continue\r\nx-time-left-ms: 0\r\n", "504"),
        ("/echo", "x-time-left-ms: 0\r\n", "504"),
    ] {
        let mut socket = TcpStream::connect(addr).await.unwrap();
        let head = upload_of_which_only_the_head_is_sent(&mut socket, path, more).await;
        assert!(head.starts_with(&format!("http/1.1 {status}")), "{path}: {head}");
    }
    // And one that is served is.
    let mut socket = TcpStream::connect(addr).await.unwrap();
    let head = upload_of_which_only_the_head_is_sent(&mut socket, "/echo", waits).await;
    assert!(head.starts_with("http/1.1 100"), "{head}");
    socket.write_all(b"hello").await.unwrap();
    assert!(read_head(&mut socket).await.starts_with("http/1.1 200"));
}

// BLK-12
#[tokio::test]
async fn on_http1_an_upload_that_goes_on_is_answered_and_its_connection_closed() {
    let (full, shed) = (bulkhead(1), shed(1));
    let _place = shed.try_admit(Priority::Critical).unwrap();
    let (addr, _) = serve(refusing(&full, &shed)).await;
    let mut socket = TcpStream::connect(addr).await.unwrap();
    let head = upload_of_which_only_the_head_is_sent(&mut socket, "/shed", "").await;
    assert!(head.starts_with("http/1.1 503"), "{head}");
    let mut rest = Vec::new();
    socket.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"overloaded");
}

// === Callers who leave ===

/// All that a server has: each of them could lose a place.
fn whole(
    shed: &Shed,
    bulkhead: &Bulkhead,
) -> impl Layer<
    axum::routing::Route,
    Service: Service<Request<Body>, Response: IntoResponse, Error = Infallible, Future: Send>
                 + Clone
                 + Send
                 + Sync
                 + 'static,
> + Clone
+ Send
+ Sync
+ 'static {
    ServiceBuilder::new()
        .layer(RejectedAsResponseLayer::new())
        .layer(ReceiveDeadlineLayer::millis(LEFT))
        .layer(ShedLayer::new(shed.clone()))
        .layer(BulkheadLayer::new(bulkhead.clone()))
        .layer(DeadlineLayer::new(Duration::from_secs(60)))
}

/// That everything that was started has ended, and how.
#[track_caller]
fn assert_all_accounted_for(shed: &Shed, bulkhead: &Bulkhead, calls: u64) {
    let stats = shed.stats();
    assert_eq!(stats.arrived, calls, "{stats:?}");
    assert_eq!((stats.waiting, stats.in_flight), (0, 0), "{stats:?}");
    let refused = stats.overloaded + stats.expired + stats.abandoned;
    assert_eq!(stats.arrived, stats.admitted + refused, "{stats:?}");
    assert_eq!(stats.admitted, stats.finished + stats.dropped, "{stats:?}");
    let stats = bulkhead.stats();
    let refused = stats.rejected + stats.timed_out + stats.expired + stats.abandoned;
    assert_eq!((stats.waiting, stats.in_flight), (0, 0), "{stats:?}");
    assert_eq!(stats.started, stats.granted + refused, "{stats:?}");
    assert_eq!(stats.granted, stats.finished, "{stats:?}");
}

// OPS-02
#[tokio::test(start_paused = true)]
async fn ten_thousand_calls_that_are_dropped_anywhere_are_all_accounted_for() {
    edge::seed(11);
    let dice = |sides: f64| (edge::unit() * sides) as u32;
    let shed = Shed::new(FixedLimit::new(20).unwrap(), ShedSettings::default()).unwrap();
    let bulkhead = Bulkhead::new(BulkheadSettings::new(15).max_waiting(5)).unwrap();
    let page = async || {
        for _ in 0..8 {
            yield_now().await;
        }
        "it"
    };
    let app = Router::new().route("/", get(page)).layer(whole(&shed, &bulkhead));
    let (mut dropped, mut answered) = (0, 0);
    for _ in 0..200 {
        let mut calls = JoinSet::new();
        for _ in 0..50 {
            let request = Request::get("/").header(LEFT, dice(20.0)).body(Body::empty()).unwrap();
            let (call, polls) = (app.clone().oneshot(request), dice(16.0));
            calls.spawn(async move {
                let mut call = std::pin::pin!(call);
                for _ in 0..polls {
                    if (&mut call).now_or_never().is_some() {
                        return true;
                    }
                    yield_now().await;
                }
                false
            });
        }
        while let Some(is_answered) = calls.join_next().await {
            *(if is_answered.unwrap() { &mut answered } else { &mut dropped }) += 1;
        }
        tokio::time::advance(Duration::from_millis(dice(5.0).into())).await;
    }
    assert!(dropped > 1000 && answered > 1000, "{dropped} dropped, {answered} answered");
    // One that was never polled never arrived.
    let arrived = shed.stats().arrived;
    assert!(arrived <= 10_000 && arrived > 5_000, "{arrived}");
    let (queued, in_vain) = (shed.stats().abandoned, bulkhead.stats().abandoned);
    assert!(
        queued > 0 && in_vain > 0 && shed.stats().dropped > 0,
        "{:?} {:?}",
        shed.stats(),
        bulkhead.stats()
    );
    assert_all_accounted_for(&shed, &bulkhead, arrived);
}

// OPS-02
#[tokio::test]
async fn a_caller_who_hangs_up_gives_the_place_back_and_takes_the_handler_along() {
    for is_http2 in [false, true] {
        let (handler, shed, bulkhead) = (Handler::default(), shed(100), bulkhead(100));
        let inner = handler.clone();
        let app = Router::new().route("/", get(move || inner.clone().handle()));
        let (addr, _) = serve(app.layer(whole(&shed, &bulkhead))).await;
        let mut calls = JoinSet::new();
        for _ in 0..100 {
            calls.spawn(async move {
                let mut connection = Connection::open(addr, is_http2).await;
                connection.send(request(Method::GET, "/", "")).await.map(drop)
            });
        }
        until("all are handled", || handler.inside() == 100).await;
        assert_eq!((shed.in_flight(), bulkhead.in_flight()), (100, 100));
        calls.shutdown().await;
        until("nothing is handled any more", || handler.inside() == 0).await;
        until("all places are back", || shed.in_flight() + bulkhead.in_flight() == 0).await;
        assert_eq!(shed.stats().dropped, 100);
        assert_all_accounted_for(&shed, &bulkhead, 100);
    }
}

// OPS-02
#[tokio::test]
async fn a_handler_that_panics_gives_its_places_back() {
    let (shed, bulkhead) = (shed(1), bulkhead(1));
    let app = Router::new()
        .route("/panics", get(async || -> &'static str { panic!("planted") }))
        .route("/", get(async || "well"))
        .layer(whole(&shed, &bulkhead));
    let (addr, _) = serve(app).await;
    for is_http2 in [false, true] {
        for _ in 0..10 {
            let mut connection = Connection::open(addr, is_http2).await;
            connection.ask(request(Method::GET, "/panics", "")).await.expect_err("it panics");
            assert_eq!((shed.in_flight(), bulkhead.in_flight()), (0, 0));
        }
        assert_eq!(Connection::open(addr, is_http2).await.get("/").await.text, "well");
    }
    assert_all_accounted_for(&shed, &bulkhead, 22);
}

// GRP-12
#[tokio::test]
async fn what_a_caller_has_left_is_known_to_extractors_handlers_and_what_they_call() {
    let own = DeadlineLayer::new(Duration::from_secs(3600)).layer(service_fn(|()| async {
        Ok::<_, Infallible>(Deadline::current().unwrap().left(edge::now()))
    }));
    let handler = async move |body: Bytes| {
        yield_now().await;
        let here = Deadline::current().unwrap().left(edge::now());
        let beneath = own.oneshot(()).await.unwrap();
        assert!(beneath <= here && here <= Duration::from_secs(30), "{here:?}, {beneath:?}");
        body
    };
    let app = Router::new().route("/", post(handler)).layer(whole(&shed(1), &bulkhead(1)));
    let (addr, _) = serve(app).await;
    for is_http2 in [false, true] {
        let mut request = request(Method::POST, "/", "hello");
        request.headers_mut().insert(LEFT, 30_000.into());
        let answer = Connection::open(addr, is_http2).await.ask(request).await.unwrap();
        assert_eq!((answer.status, &answer.text[..]), (StatusCode::OK, &b"hello"[..]));
    }
}

// === hyper's own servers ===

#[derive(Clone, Copy, Debug)]
enum Kind {
    One,
    Two,
    Auto,
}

// BLK-12, HTP-06
#[tokio::test]
async fn a_plain_hyper_server_of_any_kind_refuses_and_keeps_its_connection() {
    for (kind, is_http2) in
        [(Kind::One, false), (Kind::Two, true), (Kind::Auto, false), (Kind::Auto, true)]
    {
        let (bulkhead, shed) = (bulkhead(1), shed(10));
        let service = ServiceBuilder::new()
            .layer(RejectedAsResponseLayer::new())
            .layer(ReceiveDeadlineLayer::millis(LEFT))
            .layer(ShedLayer::new(shed.clone()))
            .layer(BulkheadLayer::new(bulkhead.clone()))
            .service(service_fn(async |_: Request<Incoming>| {
                Ok::<_, BoxError>(Response::new(Full::<Bytes>::from("well")))
            }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let io = TokioIo::new(socket);
                let service = TowerToHyperService::new(service.clone());
                // No async block: in one, the compiler forgets that boxed errors live for ever.
                match kind {
                    Kind::One => {
                        let server = hyper::server::conn::http1::Builder::new();
                        tokio::spawn(server.serve_connection(io, service).map(drop));
                    }
                    Kind::Two => {
                        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                        tokio::spawn(server.serve_connection(io, service).map(drop));
                    }
                    Kind::Auto => {
                        let server = auto::Builder::new(TokioExecutor::new());
                        let connection = server.serve_connection_with_upgrades(io, service);
                        tokio::spawn(connection.into_owned().map(drop));
                    }
                }
            }
        });
        let mut connection = Connection::open(addr, is_http2).await;
        let slot = bulkhead.try_acquire().unwrap();
        for _ in 0..100 {
            assert_eq!(connection.get("/").await.status, 503, "{kind:?}");
        }
        let mut late = request(Method::GET, "/", "");
        late.headers_mut().insert(LEFT, 0.into());
        assert_eq!(connection.ask(late).await.unwrap().status, 504, "{kind:?}");
        drop(slot);
        assert_eq!(connection.get("/").await.text, "well", "{kind:?}");
    }
}

// === The end of a server, and answers that do not end ===

// HTP-06
#[tokio::test]
async fn who_waits_in_a_queue_when_the_server_shuts_down_is_answered() {
    for is_shed in [false, true] {
        let handler = Handler::default();
        let patient =
            ShedSettings::default().target(Duration::MAX).interval(Duration::MAX).max_queue(9);
        let shed = Shed::new(FixedLimit::new(if is_shed { 1 } else { 9 }).unwrap(), patient);
        let settings = BulkheadSettings::new(if is_shed { 9 } else { 1 }).max_waiting(9);
        let bulkhead = Bulkhead::new(settings.max_wait(Duration::MAX)).unwrap();
        let shed = shed.unwrap();
        let inner = handler.clone();
        let app = Router::new().route("/", get(move || inner.clone().handle()));
        let app = app.layer(whole(&shed, &bulkhead));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let stop = Arc::new(Notify::new());
        let stopped = stop.clone();
        let server = axum::serve(listener, app)
            .with_graceful_shutdown(async move { stopped.notified().await });
        let server = tokio::spawn(server.into_future());

        let mut calls = JoinSet::new();
        for n in 0..6 {
            calls.spawn(
                async move { Connection::open(addr, n % 2 == 0).await.get("/").await.status },
            );
        }
        until("one is handled and five wait", || {
            handler.inside() == 1 && shed.waiting() + bulkhead.waiting() == 5
        })
        .await;
        stop.notify_one();
        until("it accepts nobody any more", || std::net::TcpStream::connect(addr).is_err()).await;
        until("all are answered", || {
            handler.bell.notify_waiters();
            while let Some(status) = calls.try_join_next() {
                assert_eq!(status.unwrap(), StatusCode::OK);
            }
            calls.is_empty()
        })
        .await;
        server.await.unwrap().unwrap();
        assert_all_accounted_for(&shed, &bulkhead, 6);
    }
}

/// Takes over a connection and sends back what comes.
async fn upgrade(
    mut request: Request<Body>,
    slot: Option<buttress::bulkhead::Slot>,
) -> Response<Body> {
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let mut io = TokioIo::new(upgraded.await.unwrap());
        let mut read = [0; 5];
        while io.read_exact(&mut read).await.is_ok() {
            io.write_all(&read).await.unwrap();
        }
        drop(slot);
    });
    let response = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
    response.header("upgrade", "echo").header("connection", "upgrade").body(Body::empty()).unwrap()
}

#[tokio::test]
async fn an_upgraded_connection_holds_no_place_unless_it_takes_one_along() {
    let (shed, bulkhead, upgraded) = (shed(1), bulkhead(1), bulkhead(1));
    let layers = ServiceBuilder::new()
        .layer(RejectedAsResponseLayer::new())
        .layer(ShedLayer::new(shed.clone()).until(AtEnd(WholeBody)))
        .layer(BulkheadLayer::new(bulkhead.clone()).until(AtEnd(WholeBody)));
    let own = upgraded.clone();
    let app = Router::new()
        .route("/", any(async |request| upgrade(request, None).await))
        .route(
            "/along",
            any(async move |request| match own.try_acquire() {
                Ok(slot) => upgrade(request, Some(slot)).await,
                Err(full) => refusal(&full).unwrap().into_response(),
            }),
        )
        .layer(layers);
    let (addr, _) = serve(app).await;
    let ask = "GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
    for (path, held) in [("/ ", 0), ("/along ", 1)] {
        let mut socket = TcpStream::connect(addr).await.unwrap();
        socket.write_all(ask.replacen("/ ", path, 1).as_bytes()).await.unwrap();
        assert!(read_head(&mut socket).await.starts_with("http/1.1 101"));
        let mut echo = [0; 5];
        socket.write_all(b"hello").await.unwrap();
        socket.read_exact(&mut echo).await.unwrap();
        assert_eq!(&echo, b"hello");
        until("the places are back", || shed.in_flight() + bulkhead.in_flight() == 0).await;
        assert_eq!(upgraded.in_flight(), held);
        let place = shed.try_admit(Priority::Critical).unwrap();
        let mut refused = TcpStream::connect(addr).await.unwrap();
        refused.write_all(ask.as_bytes()).await.unwrap();
        assert!(read_head(&mut refused).await.starts_with("http/1.1 503"));
        drop((place, socket));
        until("what was taken along is back", || upgraded.in_flight() == 0).await;
    }
}

#[tokio::test]
async fn a_stream_of_events_holds_its_place_only_where_that_is_asked_for_and_outlives_the_deadline()
{
    for is_held in [false, true] {
        let bulkhead = bulkhead(1);
        let events = async || {
            let events = stream::unfold(0, |n| async move {
                tokio::time::sleep(Duration::from_millis(5)).await;
                Some((Ok::<_, Infallible>(Event::default().data(n.to_string())), n + 1))
            });
            Sse::new(events.boxed())
        };
        let layers = ServiceBuilder::new().layer(RejectedAsResponseLayer::new());
        let route = get(events);
        // A deadline of 20 ms: it ends with the head.
        let deadline = DeadlineLayer::new(Duration::from_millis(20));
        let route = if is_held {
            let held = BulkheadLayer::new(bulkhead.clone()).until(AtEnd(WholeBody));
            route.layer(layers.layer(held).layer(deadline))
        } else {
            let held = BulkheadLayer::new(bulkhead.clone());
            route.layer(layers.layer(held).layer(deadline))
        };
        let (addr, _) = serve(Router::new().route("/", route)).await;
        for is_http2 in [false, true] {
            let mut connection = Connection::open(addr, is_http2).await;
            let mut events = connection.send(request(Method::GET, "/", "")).await.unwrap();
            for _ in 0..10 {
                events.frame().await.unwrap().unwrap();
            }
            assert_eq!(bulkhead.in_flight(), usize::from(is_held));
            let mut other = Connection::open(addr, is_http2).await;
            let status = other.send(request(Method::GET, "/", "")).await.unwrap().status();
            assert_eq!(status, if is_held { 503 } else { 200 });
            // It is asked for its head alone: what is held to the end of the body is back.
            drop((other, connection, events));
            until("the place is back", || bulkhead.in_flight() == 0).await;
            let mut head = Connection::open(addr, is_http2).await;
            assert_eq!(head.ask(request(Method::HEAD, "/", "")).await.unwrap().status, 200);
            until("the place is back", || bulkhead.in_flight() == 0).await;
        }
    }
}
