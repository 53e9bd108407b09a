//! Deadlines that go from hop to hop: with exact numbers in memory, under a paused clock, and over real
//! sockets, where nothing asserts how long anything takes.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use buttress::{
    Backoff, BoxError, Budget, BudgetSettings, CarryLayer, Deadline, DeadlineLayer, Elapsed,
    FixedLimit, Limit, Reason, Rejected, ResumeLayer, RetryLayer, Shed, ShedLayer, ShedSettings,
    TimeoutLayer, edge,
    http::{
        HttpClass, HttpReplay, ReceiveDeadlineLayer, RejectedAsResponseLayer, SendDeadlineLayer,
        grpc_timeout, hyper,
    },
    shed::Priority,
};
use bytes::Bytes;
use futures_util::{FutureExt, stream};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use tokio::{net::TcpListener, task::yield_now, time::sleep};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, buffer::Buffer, service_fn};

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// What the headers say is left.
fn told(headers: &HeaderMap) -> Option<Duration> {
    grpc_timeout::decode(headers.get("grpc-timeout")?)
}

fn request(left: &str) -> Request<()> {
    Request::builder().header("grpc-timeout", left).body(()).unwrap()
}

/// Keeps what each call was told, in the order of the calls.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<Option<Duration>>>>);

impl Told {
    /// Notes what a call was told. The number of the call, from 1 on.
    fn note(&self, headers: &HeaderMap) -> usize {
        let mut all = self.0.lock().unwrap();
        all.push(told(headers));
        all.len()
    }

    fn all(&self) -> Vec<Option<Duration>> {
        self.0.lock().unwrap().clone()
    }

    /// A callee that takes its time, answers the first with `first`, and all others with 200.
    fn callee(
        &self,
        first: u16,
        takes: Duration,
    ) -> impl Service<
        Request<()>,
        Response = Response<Full<Bytes>>,
        Error = Infallible,
        Future: Future<Output = Result<Response<Full<Bytes>>, Infallible>> + Send,
    > + Clone
    + use<> {
        let told = self.clone();
        service_fn(move |request: Request<()>| {
            let status = if told.note(request.headers()) == 1 { first } else { 200 };
            async move {
                sleep(takes).await;
                Ok(Response::builder().status(status).body(Full::default()).unwrap())
            }
        })
    }
}

fn retry(backoff: Backoff) -> RetryLayer<HttpClass, HttpReplay> {
    let budget = Budget::new(BudgetSettings::default().reserve(10)).unwrap();
    RetryLayer::new(backoff, budget).classify(HttpClass).replay(HttpReplay)
}

/// Seeds the dice so that the next throw is a fifth, or a little more.
fn seed_a_fifth() {
    let seed = (0..).find(|seed| {
        edge::seed(*seed);
        (0.2..0.21).contains(&edge::unit())
    });
    edge::seed(seed.unwrap());
}

// === In memory ===

// GRP-04
#[tokio::test(start_paused = true)]
async fn a_second_attempt_is_told_what_the_first_and_the_wait_have_left() {
    seed_a_fifth();
    let told = Told::default();
    let client = ServiceBuilder::new()
        .layer(DeadlineLayer::new(secs(1)))
        .layer(retry(Backoff::exponential(secs(1), secs(1))))
        .layer(TimeoutLayer::new(secs(10)))
        .layer(SendDeadlineLayer::grpc())
        .service(told.callee(503, ms(300)));
    let response = client.oneshot(Request::new(())).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let [Some(first), Some(second)] = told.all()[..] else { panic!("{:?}", told.all()) };
    assert_eq!(first, secs(1));
    assert!(second <= ms(500) && second > ms(450), "{second:?}");
}

#[tokio::test(start_paused = true)]
async fn each_attempt_is_told_of_its_own_limit_and_not_of_the_requests() {
    let told = Told::default();
    let client = ServiceBuilder::new()
        .layer(DeadlineLayer::new(ms(2500)))
        .layer(retry(Backoff::none()))
        .layer(TimeoutLayer::new(secs(1)))
        .layer(SendDeadlineLayer::grpc())
        .service(told.callee(200, secs(60)));
    let error = client.oneshot(Request::new(())).await.unwrap_err();
    let elapsed: &Elapsed = error.downcast_ref().unwrap();
    assert_eq!((elapsed.which(), elapsed.limit()), (Limit::Total, ms(2500)));
    assert_eq!(told.all(), [Some(secs(1)), Some(secs(1)), Some(ms(500))]);
}

// GRP-04
#[tokio::test(start_paused = true)]
async fn a_callee_that_ignores_the_header_does_not_hold_the_client() {
    let start = edge::now();
    let told = Told::default();
    let client = ServiceBuilder::new()
        .layer(DeadlineLayer::new(secs(1)))
        .layer(SendDeadlineLayer::grpc())
        .service(told.callee(200, secs(60)));
    let error = client.oneshot(request("100m")).await.unwrap_err();
    assert!(error.is::<Elapsed>());
    assert_eq!(edge::now() - start, secs(1));
    assert_eq!(told.all(), [Some(ms(100))], "what the user wrote was less");
}

// GRP-12
#[tokio::test(start_paused = true)]
async fn a_handlers_client_has_what_its_caller_has_left_and_says_whose_limit_it_was() {
    let told = Told::default();
    let client = ServiceBuilder::new()
        .layer(DeadlineLayer::new(secs(3)))
        .layer(SendDeadlineLayer::grpc())
        .service(told.callee(200, secs(60)));
    let handler = service_fn(move |_: Request<()>| {
        let client = client.clone();
        async move {
            sleep(ms(1400)).await;
            let error = client.oneshot(Request::new(())).await.unwrap_err();
            Ok::<_, Infallible>(*error.downcast_ref::<Elapsed>().unwrap())
        }
    });
    let server = ReceiveDeadlineLayer::grpc().layer(handler);
    let elapsed = server.oneshot(request("1500m")).await.unwrap();
    assert_eq!(told.all(), [Some(ms(100))]);
    assert_eq!((elapsed.which(), elapsed.limit()), (Limit::Total, ms(100)), "and not its own 3 s");
}

#[tokio::test(start_paused = true)]
async fn three_hops_share_one_budget_less_a_margin_at_each() {
    let told = Told::default();
    let last = ReceiveDeadlineLayer::grpc().margin(ms(10)).unwrap();
    let last = last.layer(told.callee(200, ms(1)));
    let hop = |next| {
        let client = SendDeadlineLayer::grpc().layer(next);
        let handler = service_fn(move |_: Request<()>| {
            let client = client.clone();
            async move {
                sleep(ms(100)).await;
                client.oneshot(Request::new(())).await
            }
        });
        ReceiveDeadlineLayer::grpc().margin(ms(10)).unwrap().layer(handler)
    };
    // Boxed, so that one hop has the type of the other.
    let last = tower::util::BoxCloneService::new(last);
    let middle = tower::util::BoxCloneService::new(hop(last));
    let first = hop(middle);
    first.clone().oneshot(request("500m")).await.unwrap();
    assert_eq!(told.all(), [Some(ms(500 - 110 - 110))]);

    // 220 ms are gone when the last hop would start.
    for (left, starts) in [("230m", false), ("231m", true)] {
        let before = told.all().len();
        let answer = first.clone().oneshot(request(left)).await;
        assert_eq!(answer.is_ok(), starts, "{left}");
        assert_eq!(told.all().len() - before, usize::from(starts), "{left}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_has_the_time_of_the_request_and_not_of_the_attempt() {
    for (total, whole) in [(30, true), (3, false)] {
        let told = Told::default();
        let inner = told.clone();
        let streams = service_fn(move |request: Request<()>| {
            inner.note(request.headers());
            let frames = stream::unfold(0_u32, |second| async move {
                sleep(secs(1)).await;
                (second < 5)
                    .then(|| (Ok::<_, Infallible>(Frame::data(Bytes::from("x"))), second + 1))
            });
            async { Ok::<_, Infallible>(Response::new(StreamBody::new(Box::pin(frames)))) }
        });
        let client = ServiceBuilder::new()
            .layer(DeadlineLayer::new(secs(total)))
            .layer(TimeoutLayer::new(secs(1)))
            .layer(SendDeadlineLayer::grpc())
            .service(hyper(streams));
        let response = client.oneshot(Request::new(())).await.unwrap();
        let body = response.into_body().collect().await;
        assert_eq!(told.all(), [Some(secs(1))]);
        match body {
            Ok(body) => assert!(whole && body.to_bytes().len() == 5),
            Err(error) => {
                let expected = Elapsed::new(Limit::Total, secs(3));
                assert!(!whole && error.downcast_ref() == Some(&expected), "{error}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn through_a_buffer_the_callee_is_told_if_the_context_is_carried() {
    let limits = || {
        ServiceBuilder::new().layer(DeadlineLayer::new(secs(5))).layer(TimeoutLayer::new(secs(2)))
    };
    let told = Told::default();
    let sends = || SendDeadlineLayer::grpc().layer(told.callee(200, ms(1)));

    let bare = limits().service(Buffer::new(sends(), 4));
    bare.oneshot(Request::new(())).await.unwrap();
    let carried = CarryLayer.layer(Buffer::new(ResumeLayer.layer(sends()), 4));
    limits().service(carried).oneshot(Request::new(())).await.unwrap();
    assert_eq!(told.all(), [None, Some(secs(2))]);
}

#[tokio::test(start_paused = true)]
async fn a_servers_queue_does_not_keep_what_its_caller_gave_up() {
    let start = edge::now();
    let shed = Shed::new(FixedLimit::new(1).unwrap(), ShedSettings::default()).unwrap();
    let told = Told::default();
    let server = ServiceBuilder::new()
        .layer(ReceiveDeadlineLayer::grpc())
        .layer(ShedLayer::new(shed.clone()))
        .service(told.callee(200, ms(1)));
    let _taken = shed.try_admit(Priority::Critical).unwrap();
    let error = server.oneshot(request("5m")).await.unwrap_err();
    let rejected: &Rejected = error.downcast_ref().unwrap();
    assert_eq!((rejected.reason(), rejected.layer()), (Reason::DeadlineExceeded, "shed"));
    assert_eq!((edge::now() - start, told.all().len()), (ms(5), 0));
}

// === Over sockets ===

type Answer = Result<Response<Full<Bytes>>, BoxError>;

/// A server that works for a while, and asks the next one, if there is one.
#[derive(Clone)]
struct Hop {
    next: Option<SocketAddr>,
    told: Told,
    /// Whether it works until its time is up, instead of a millisecond.
    is_slow: bool,
}

impl Hop {
    async fn handle(self, request: Request<hyper::body::Incoming>) -> Answer {
        self.told.note(request.headers());
        let deadline = Deadline::current().expect("it was told");
        let start = edge::now();
        assert!(deadline.left(start) <= told(request.headers()).unwrap(), "never more");
        let worked =
            |now| if self.is_slow { deadline.has_passed(now) } else { now - start > ms(1) };
        while !worked(edge::now()) {
            yield_now().await;
        }
        let Some(next) = self.next else { return Ok(Response::default()) };
        // No limit of its own, so that it is the next one that refuses.
        let client = Client::builder(TokioExecutor::new()).build_http();
        let client = SendDeadlineLayer::grpc().layer(client);
        ask(client, next, None).await.map(|status| {
            let mut response = Response::<Full<Bytes>>::default();
            *response.status_mut() = status;
            response
        })
    }

    /// Serves on loopback. It enforces nothing but what the layer that receives the deadline does.
    async fn serve(self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let service = ServiceBuilder::new()
            .layer(RejectedAsResponseLayer::new())
            .layer(ReceiveDeadlineLayer::grpc().margin(ms(1)).unwrap())
            .service(service_fn(move |request| self.clone().handle(request)));
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let service = TowerToHyperService::new(service.clone());
                let server = hyper::server::conn::http1::Builder::new();
                tokio::spawn(server.serve_connection(TokioIo::new(socket), service).map(drop));
            }
        });
        addr
    }
}

/// The status that `addr` answers with.
async fn ask<S, B>(client: S, addr: SocketAddr, left: Option<&str>) -> Result<StatusCode, BoxError>
where
    S: Service<Request<Empty<Bytes>>, Response = Response<B>>,
    S::Error: Into<BoxError>,
{
    let mut request = Request::get(format!("http://{addr}/")).body(Empty::new())?;
    if let Some(left) = left {
        request.headers_mut().insert("grpc-timeout", left.parse()?);
    }
    Ok(client.oneshot(request).await.map_err(Into::into)?.status())
}

/// Three servers in a row. The first, and what each was told.
async fn three_in_a_row(second_is_slow: bool) -> (SocketAddr, [Told; 3]) {
    let told = [(); 3].map(|()| Told::default());
    let mut next = None;
    for (n, told) in told.iter().enumerate().rev() {
        let hop = Hop { next, told: told.clone(), is_slow: n == 1 && second_is_slow };
        next = Some(hop.serve().await);
    }
    (next.unwrap(), told)
}

fn client() -> Client<HttpConnector, Empty<Bytes>> {
    Client::builder(TokioExecutor::new()).build_http()
}

#[tokio::test]
async fn over_three_servers_each_is_told_less_than_the_one_before() {
    let (first, told) = three_in_a_row(false).await;
    let client = ServiceBuilder::new()
        .layer(DeadlineLayer::new(secs(60)))
        .layer(TimeoutLayer::new(secs(30)))
        .layer(SendDeadlineLayer::grpc())
        .service(hyper(client()));
    assert_eq!(ask(client, first, None).await.unwrap(), StatusCode::OK);
    let [a, b, c] = told.map(|told| match told.all()[..] {
        [Some(left)] => left,
        ref all => panic!("called once, and told: {all:?}"),
    });
    // Each takes a millisecond off for the way back, and works for one more.
    assert!(secs(30) >= a && a > b + ms(1) && b > c + ms(1), "{a:?}, {b:?}, {c:?}");
}

// TMO-05
#[tokio::test]
async fn over_three_servers_the_last_does_not_start_when_the_time_is_gone() {
    let (first, told) = three_in_a_row(true).await;
    // No limit in this client: the answer is that of the server that refuses.
    let status = ask(client(), first, Some("500m")).await.unwrap();
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
    assert!(told[2].all().is_empty());
}
