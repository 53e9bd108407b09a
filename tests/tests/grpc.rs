//! gRPC through a retry and a breaker: scripted servers in memory, and hyper's HTTP/2 on loopback.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use buttress::{
    Backoff, BoxError, Breaker, BreakerLayer, Budget, BudgetSettings, Bulkhead, BulkheadLayer,
    BulkheadSettings, Cause, Elapsed, GrpcService, Limit, RetryLayer, RetrySettings, Standard,
    State, TimeoutLayer,
    breaker::Admission,
    find,
    http::{
        AtEnd, Body, Code, GrpcClass, GrpcCloneReplay, GrpcHead, GrpcHeadLayer, GrpcReplay, Hyper,
        PeekedBody, Refusal, RejectedAsResponseLayer, ReplayBody, ReportBody, hyper,
    },
};
use bytes::Bytes;
use futures_util::{FutureExt, Stream, StreamExt, stream};
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
};
use tokio::net::TcpListener;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};

const GET: &str = "/shop.Orders/Get";
const MESSAGE: &[u8] = b"\0\0\0\0\x02ok";

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// What a server answers.
#[derive(Clone, Copy, Debug)]
struct Shape {
    http: u16,
    head: Option<&'static str>,
    messages: usize,
    trailers: Option<&'static str>,
    /// Whether there is more to come, which does not.
    hangs: bool,
}

const EMPTY: Shape = Shape { http: 200, head: None, messages: 0, trailers: None, hangs: false };
const WELL: Shape = Shape { messages: 1, trailers: Some("0"), ..EMPTY };
const TRAILERS_ONLY: Shape = Shape { head: Some("14"), ..EMPTY };
const HEAD_THEN_TRAILERS: Shape = Shape { trailers: Some("14"), ..EMPTY };
const MESSAGE_THEN_TRAILERS: Shape = Shape { messages: 1, trailers: Some("14"), ..EMPTY };

type Frames = std::pin::Pin<Box<dyn Stream<Item = Result<Frame<Bytes>, BoxError>> + Send>>;
type Answer = Response<StreamBody<Frames>>;

impl Shape {
    fn response(self) -> Answer {
        let mut frames = Vec::new();
        frames.extend((0..self.messages).map(|_| Ok(Frame::data(Bytes::from_static(MESSAGE)))));
        frames.extend(self.trailers.map(|status| {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", status.parse().unwrap());
            Ok(Frame::trailers(trailers))
        }));
        let rest = if self.hangs { stream::pending().boxed() } else { stream::empty().boxed() };
        let mut response = Response::new(StreamBody::new(stream::iter(frames).chain(rest).boxed()));
        *response.status_mut() = self.http.try_into().unwrap();
        let headers = response.headers_mut();
        headers.insert("content-type", "application/grpc".parse().unwrap());
        if let Some(status) = self.head {
            headers.insert("grpc-status", status.parse().unwrap());
        }
        response
    }
}

/// Answers in these shapes, one after the other, and in the last one from then on.
#[derive(Clone)]
struct Server {
    shapes: Arc<[Shape]>,
    calls: Arc<AtomicUsize>,
}

impl Server {
    fn new(shapes: &[Shape]) -> Self {
        Self { shapes: shapes.into(), calls: Arc::default() }
    }

    fn answer(&self) -> Answer {
        let call = self.calls.fetch_add(1, SeqCst);
        self.shapes[call.min(self.shapes.len() - 1)].response()
    }

    fn calls(&self) -> usize {
        self.calls.load(SeqCst)
    }
}

fn request(uri: impl AsRef<str>) -> Request<Full<Bytes>> {
    Request::post(uri.as_ref()).body(Full::from(MESSAGE)).unwrap()
}

fn retry() -> RetryLayer<GrpcClass, GrpcCloneReplay> {
    let budget = Budget::new(BudgetSettings::default().reserve(1000)).unwrap();
    let retry = RetryLayer::new(Backoff::exponential(ms(1), ms(2)), budget);
    retry.classify(GrpcClass).replay(GrpcReplay::methods([GET]).clone_bodies())
}

/// One call through a retry and a breaker, read to its end. What the client sees of the status, and where.
async fn call(server: &Server, breaker: &Breaker, path: &str) -> (Option<Code>, Option<Code>) {
    let inner = server.clone();
    let client = ServiceBuilder::new()
        .layer(retry())
        .layer(BreakerLayer::new(breaker.clone()).classify(AtEnd(GrpcClass)))
        .layer(GrpcHeadLayer::new())
        .service_fn(move |_: Request<Full<Bytes>>| {
            std::future::ready(Ok::<_, BoxError>(inner.answer()))
        });
    seen(client.oneshot(request(path)).await.unwrap()).await
}

/// The status in the head, and the one in the trailers.
async fn seen<B>(response: Response<B>) -> (Option<Code>, Option<Code>)
where
    B: http_body::Body,
    B::Error: std::fmt::Debug,
{
    let head = Code::from_headers(response.headers());
    let body = response.into_body().collect().await.unwrap();
    (head, body.trailers().and_then(Code::from_headers))
}

// GRP-01
#[tokio::test(start_paused = true)]
async fn a_status_that_comes_before_the_first_message_is_repeated_and_one_after_it_is_not() {
    for (shape, repeated) in
        [(TRAILERS_ONLY, true), (HEAD_THEN_TRAILERS, true), (MESSAGE_THEN_TRAILERS, false)]
    {
        let (server, breaker) = (Server::new(&[shape, WELL]), Breaker::default());
        let (_, status) = call(&server, &breaker, GET).await;
        assert_eq!(server.calls(), 1 + usize::from(repeated), "{shape:?}");
        let expected = if repeated { Code::Ok } else { Code::Unavailable };
        assert_eq!(status, Some(expected), "{shape:?}");
        let stats = breaker.stats();
        assert_eq!((stats.failure, stats.success), (1, repeated.into()), "{shape:?}");
        assert_eq!(stats.in_flight(), 0);
    }
}

// GRP-01
#[tokio::test(start_paused = true)]
async fn the_last_answer_has_its_status_where_the_server_put_it() {
    let unavailable = Some(Code::Unavailable);
    for (shape, expected) in
        [(TRAILERS_ONLY, (unavailable, None)), (HEAD_THEN_TRAILERS, (None, unavailable))]
    {
        let (server, breaker) = (Server::new(&[shape]), Breaker::default());
        assert_eq!(call(&server, &breaker, GET).await, expected, "{shape:?}");
        assert_eq!((server.calls(), breaker.stats().failure), (3, 3), "{shape:?}");
    }
}

// GRP-02
#[tokio::test(start_paused = true)]
async fn a_status_is_found_in_each_of_its_three_places_and_missed_where_it_is_missing() {
    let table = [
        ("14 in the head", TRAILERS_ONLY, false),
        ("14 in the trailers", HEAD_THEN_TRAILERS, false),
        ("0 in the head", Shape { head: Some("0"), ..EMPTY }, true),
        ("0 in the trailers", WELL, true),
        ("none, HTTP 200", EMPTY, false),
        ("none, HTTP 200, after a message", Shape { messages: 1, ..EMPTY }, false),
        ("none, HTTP 503", Shape { http: 503, ..EMPTY }, false),
        ("x in the head", Shape { head: Some("x"), ..EMPTY }, false),
        ("x in the trailers", Shape { trailers: Some("x"), ..EMPTY }, false),
    ];
    for (what, shape, well) in table {
        let (server, breaker) = (Server::new(&[shape]), Breaker::default());
        call(&server, &breaker, "/shop.Orders/Place").await;
        let stats = breaker.stats();
        assert_eq!((stats.success, stats.failure), (well.into(), (!well).into()), "{what}");
        assert_eq!(server.calls(), 1, "{what}: nobody said that it may be carried out twice");
    }
}

// CBK-06
#[tokio::test(start_paused = true)]
async fn a_hundred_requests_that_are_wrong_leave_the_breaker_closed() {
    for shape in [
        Shape { head: Some("3"), ..EMPTY },
        Shape { trailers: Some("3"), ..EMPTY },
        Shape { messages: 1, trailers: Some("3"), ..EMPTY },
    ] {
        let (server, breaker) = (Server::new(&[shape]), Breaker::default());
        for _ in 0..100 {
            call(&server, &breaker, GET).await;
        }
        assert_eq!((server.calls(), breaker.state()), (100, State::Closed), "{shape:?}");
        assert_eq!(breaker.stats().failure, 0, "{shape:?}");
    }
}

// GRP-09
#[tokio::test(start_paused = true)]
async fn a_call_that_the_server_says_was_cancelled_is_not_repeated() {
    for shape in [Shape { head: Some("1"), ..EMPTY }, Shape { trailers: Some("1"), ..EMPTY }] {
        let (server, breaker) = (Server::new(&[shape]), Breaker::default());
        call(&server, &breaker, GET).await;
        assert_eq!((server.calls(), breaker.stats().failure), (1, 0));
    }
}

// GRP-01
#[tokio::test(start_paused = true)]
async fn a_server_that_sends_a_head_and_no_more_is_ended_by_the_attempts_limit() {
    let server = Server::new(&[Shape { hangs: true, ..EMPTY }]);
    let (inner, breaker) = (server.clone(), Breaker::default());
    let client = ServiceBuilder::new()
        .layer(retry())
        .layer(BreakerLayer::new(breaker.clone()).classify(AtEnd(GrpcClass)))
        .layer(TimeoutLayer::new(ms(100)))
        .layer(GrpcHeadLayer::new())
        .service(service_fn(move |_: Request<Full<Bytes>>| {
            std::future::ready(Ok::<_, BoxError>(inner.answer()))
        }));
    let error = client.oneshot(request(GET)).await.map(drop).unwrap_err();
    assert_eq!(find(&*error), Some(&Elapsed::new(Limit::Attempt, ms(100))));
    assert_eq!((server.calls(), breaker.stats().failure), (3, 3));
}

type H2 = Client<HttpConnector, Full<Bytes>>;
type Orders = GrpcService<GrpcHead<Hyper<H2>>, GrpcCloneReplay>;

/// A client such as an application has one: it can be kept, cloned and sent.
#[derive(Clone)]
struct Held {
    _orders: Orders,
}

static_assertions::assert_impl_all!(Held: Clone, Send, Sync);

fn stack() -> buttress::GrpcStandard<GrpcCloneReplay> {
    Standard::grpc("orders")
        .replay(GrpcReplay::methods([GET]).clone_bodies())
        .total(ms(60_000))
        .attempt(ms(10_000))
        .retry(RetrySettings::default().base(ms(1)).cap(ms(2)))
        .budget(BudgetSettings::default().reserve(1000))
        .build()
        .unwrap()
}

fn orders() -> GrpcHead<Hyper<H2>> {
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    GrpcHeadLayer::new().layer(hyper(client))
}

/// Serves HTTP/2 on loopback.
async fn serve<S, B>(service: S) -> SocketAddr
where
    S: Service<Request<hyper::body::Incoming>, Response = Response<B>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let service = hyper_util::service::TowerToHyperService::new(service.clone());
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            // No async block: in one, the compiler forgets that boxed errors live for ever.
            tokio::spawn(server.serve_connection(TokioIo::new(socket), service).map(drop));
        }
    });
    addr
}

// GRP-01
#[tokio::test]
async fn on_the_wire_a_status_is_seen_wherever_a_server_puts_it() {
    for (shape, repeated) in
        [(TRAILERS_ONLY, true), (HEAD_THEN_TRAILERS, true), (MESSAGE_THEN_TRAILERS, false)]
    {
        let server = Server::new(&[shape, WELL]);
        let inner = server.clone();
        let addr = serve(service_fn(move |_| std::future::ready(Ok(inner.answer())))).await;
        let stack = stack();
        let response =
            stack.layer(orders()).oneshot(request(format!("http://{addr}{GET}"))).await.unwrap();
        let (_, status) = seen(response).await;
        assert_eq!(server.calls(), 1 + usize::from(repeated), "{shape:?}");
        let expected = if repeated { Code::Ok } else { Code::Unavailable };
        assert_eq!(status, Some(expected), "{shape:?}");
        let stats = stack.breakers().stats();
        assert_eq!((stats.failure, stats.success), (1, repeated.into()), "{shape:?}");
    }
}

// GRP-01
#[tokio::test]
async fn on_the_wire_a_method_that_is_not_named_is_sent_once_unless_nobody_got_it() {
    let server = Server::new(&[HEAD_THEN_TRAILERS]);
    let inner = server.clone();
    let addr = serve(service_fn(move |_| std::future::ready(Ok(inner.answer())))).await;
    let place = |addr| request(format!("http://{addr}/shop.Orders/Place"));
    let response = stack().layer(orders()).oneshot(place(addr)).await.unwrap();
    assert_eq!(seen(response).await, (None, Some(Code::Unavailable)));
    assert_eq!(server.calls(), 1);

    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let stack = stack();
    stack.layer(orders()).oneshot(place(nobody)).await.map(drop).unwrap_err();
    assert_eq!(stack.breakers().stats().failure, 3, "no connection, so nothing was sent");
}

// GRP-07
#[tokio::test]
async fn on_the_wire_a_server_that_is_full_says_so_and_no_breaker_counts_it() {
    let bulkhead = Bulkhead::new(BulkheadSettings::new(1)).unwrap();
    let full = BulkheadLayer::new(bulkhead.clone());
    let mut holds = full.layer(service_fn(|()| std::future::pending::<Result<(), BoxError>>()));
    let _held = holds.ready().await.unwrap().call(());
    let server = ServiceBuilder::new().layer(RejectedAsResponseLayer::grpc()).layer(full).service(
        service_fn(|_| async { Ok::<_, BoxError>(Response::new(Full::<Bytes>::from("never"))) }),
    );
    let addr = serve(server).await;
    let stack = stack();
    let uri = format!("http://{addr}{GET}");
    let response = stack.layer(orders()).oneshot(request(uri)).await.unwrap();
    assert_eq!(response.headers()["content-type"], "application/grpc");
    assert_eq!(response.headers()["grpc-message"], "bulkhead full");
    assert_eq!(seen(response).await, (Some(Code::ResourceExhausted), None));
    let stats = stack.breakers().stats();
    assert_eq!((stats.failure, stats.neutral), (0, 1), "it was asked once");
}

// GRP-07
#[tokio::test]
async fn a_fallback_can_answer_as_grpc_does() {
    type Answered<B> = Response<ReportBody<PeekedBody<Body<B>>, Admission, GrpcClass>>;
    let busy = |_: &Cause<Answered<hyper::body::Incoming>>| -> Answered<hyper::body::Incoming> {
        Refusal::grpc(Code::Unavailable, "busy").into_response()
    };
    let replay = GrpcReplay::none().clone_bodies();
    let stack = Standard::grpc("orders").replay(replay).fallback(busy).build().unwrap();
    stack.breakers().force_open();
    let response = stack.layer(orders()).oneshot(request("http://nobody/x.Y/Z")).await.unwrap();
    assert_eq!(response.headers()["grpc-message"], "busy");
    assert_eq!(seen(response).await, (Some(Code::Unavailable), None));
}

// GRP-01
#[tokio::test(start_paused = true)]
async fn a_status_that_is_known_before_the_body_is_counted_though_a_fallback_drops_it() {
    type Answered =
        Response<ReportBody<PeekedBody<Body<StreamBody<Frames>>>, Admission, GrpcClass>>;
    let busy = |_: &Cause<Answered>| -> Answered {
        Refusal::grpc(Code::Unavailable, "busy").into_response()
    };
    for shape in [TRAILERS_ONLY, HEAD_THEN_TRAILERS] {
        let server = Server::new(&[shape]);
        let stack = Standard::grpc("orders").fallback(busy).build().unwrap();
        let answers = server.clone();
        let callee = service_fn(move |_: Request<ReplayBody<Full<Bytes>>>| {
            std::future::ready(Ok::<_, BoxError>(answers.answer()))
        });
        let client = stack.layer(GrpcHeadLayer::new().layer(hyper(callee)));
        for _ in 0..40 {
            drop(client.clone().oneshot(request(GET)).await.unwrap());
        }
        let stats = stack.breakers().stats();
        assert_eq!((stack.breakers().state(), stats.failure), (State::Open, 20), "{shape:?}");
    }
}

#[test]
fn the_breaker_has_the_name_of_the_stack_unless_it_has_one_of_its_own() {
    use buttress::BreakerSettings;
    let name = |settings: BreakerSettings| {
        let stack = Standard::grpc("orders").breaker(settings).build().unwrap();
        format!("{:?}", stack.breakers())
    };
    assert!(name(BreakerSettings::default()).contains("\"orders\""));
    assert!(name(BreakerSettings::default().name("own")).contains("\"own\""));
}
