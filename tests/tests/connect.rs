//! A limit around the connectors of clients: hyper-util's, reqwest's, tonic's.
//!
//! Where no socket is needed the clock is paused, and instants are exact. Nothing else asserts how long
//! anything takes.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Once,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use ::tonic::transport::Endpoint;
use buttress::{
    BoxError, BudgetSettings, ConnectTimeoutLayer, Elapsed, GrpcStandard, HttpStandard, Limit,
    RetrySettings, Standard, edge, find,
    http::{hyper, reqwest, tonic},
};
use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use http::{Request, Response, Uri};
use http_body_util::Full;
use hyper_util::{
    client::legacy::{
        Client,
        connect::{Connected, Connection, HttpConnector},
    },
    rt::{TokioExecutor, TokioIo},
};
use tokio::{
    io::DuplexStream,
    net::{TcpListener, TcpSocket, TcpStream},
    time::sleep,
};
use tower::{Layer, Service, ServiceExt, layer::layer_fn, service_fn};

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const NOT_WITHIN_A_SECOND: Elapsed = Elapsed::new(Limit::Connect, Duration::from_secs(1));

/// Counts calls, and those of them that are not over.
#[derive(Clone, Default)]
struct Count {
    calls: Arc<AtomicUsize>,
    running: Arc<AtomicUsize>,
}

struct Running(Arc<AtomicUsize>);

impl Count {
    fn one(&self) -> Running {
        self.calls.fetch_add(1, SeqCst);
        self.running.fetch_add(1, SeqCst);
        Running(self.running.clone())
    }

    fn calls(&self) -> usize {
        self.calls.load(SeqCst)
    }

    fn running(&self) -> usize {
        self.running.load(SeqCst)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// A connector that is counted; it may hang, and then never even asks.
#[derive(Clone)]
struct Counted<S> {
    inner: S,
    count: Count,
    hangs: bool,
}

impl<S, Dst> Service<Dst> for Counted<S>
where
    S: Service<Dst>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, dst: Dst) -> Self::Future {
        let running = self.count.one();
        let connecting = (!self.hangs).then(|| self.inner.call(dst));
        Box::pin(async move {
            let _running = running;
            match connecting {
                Some(connecting) => connecting.await,
                None => std::future::pending().await,
            }
        })
    }
}

/// Counts what a connector is asked for.
fn counted<S>(inner: S, count: &Count) -> Counted<S> {
    Counted { inner, count: count.clone(), hangs: false }
}

/// A connector that gets no answer.
fn hangs<S>(inner: S, count: &Count) -> Counted<S> {
    Counted { hangs: true, ..counted(inner, count) }
}

/// A connection in memory.
struct Pipe(TokioIo<DuplexStream>);

impl Connection for Pipe {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl ::hyper::rt::Read for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ::hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl ::hyper::rt::Write for Pipe {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Makes connections in memory: the n-th takes as long as it says. At the other end is a server that takes as
/// many milliseconds for an answer as the path says.
fn in_memory<F: Fn(usize) -> Duration + Clone>(
    count: &Count,
    takes: F,
) -> impl Service<
    Uri,
    Response = Pipe,
    Error = Infallible,
    Future = BoxFuture<'static, Result<Pipe, Infallible>>,
> + Clone
+ use<F> {
    let count = count.clone();
    service_fn(move |_: Uri| {
        let running = count.one();
        let connecting = sleep(takes(count.calls()));
        async move {
            connecting.await;
            drop(running);
            let (client, server) = tokio::io::duplex(1 << 16);
            tokio::spawn(async move {
                let handler = ::hyper::service::service_fn(|request: Request<_>| async move {
                    let _: &::hyper::body::Incoming = request.body();
                    let takes = request.uri().path().trim_start_matches('/').parse();
                    sleep(ms(takes.unwrap_or(0))).await;
                    Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("ok")))
                });
                let _ = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(server), handler)
                    .await;
            });
            Ok(Pipe(TokioIo::new(client)))
        }
        .boxed()
    })
}

fn stack() -> HttpStandard {
    let retry = RetrySettings::default().base(ms(1)).cap(ms(2));
    Standard::http().total(ms(30_000)).attempt(ms(10_000)).retry(retry).build().unwrap()
}

/// A stack for a request that has little time.
fn hurried(total: Duration) -> HttpStandard {
    Standard::http().total(total).attempt(total).attempts(1).build().unwrap()
}

fn grpc() -> GrpcStandard {
    let retry = RetrySettings::default().base(ms(1)).cap(ms(2));
    Standard::grpc("shop").retry(retry).build().unwrap()
}

/// reqwest's client, its connector beneath these layers.
fn reqwest_client(count: &Count, hanging: bool, limit: Duration) -> ::reqwest::Client {
    static TLS: Once = Once::new();
    TLS.call_once(|| rustls::crypto::ring::default_provider().install_default().unwrap());
    let count = count.clone();
    let counts = layer_fn(move |inner| Counted { hangs: hanging, ..counted(inner, &count) });
    let builder = ::reqwest::Client::builder().no_proxy().connector_layer(counts);
    builder.connector_layer(ConnectTimeoutLayer::new(limit)).build().unwrap()
}

fn post(uri: &str) -> Request<Full<Bytes>> {
    Request::post(uri).body(Full::from("hello")).unwrap()
}

/// How long a future takes by a paused clock, in milliseconds.
async fn timed<F: Future>(future: F) -> (F::Output, u128) {
    let start = edge::now();
    let output = future.await;
    (output, (edge::now() - start).as_millis())
}

fn elapsed<T>(answer: Result<T, BoxError>) -> Elapsed {
    let error = answer.map(drop).expect_err("an answer");
    *find(&*error).unwrap_or_else(|| panic!("{error:?}"))
}

// RET-11
#[tokio::test(start_paused = true)]
async fn what_got_no_connection_is_sent_again_whatever_the_method_and_the_client() {
    let second = ms(1_000);
    let check = |client, (answer, took): (Elapsed, u128), count: &Count| {
        assert_eq!((answer, count.calls()), (NOT_WITHIN_A_SECOND, 3), "{client}");
        assert!((3_000..3_010).contains(&took), "{client}: {took} ms");
        assert_eq!(count.running(), 0, "{client}");
    };
    for http2 in [false, true] {
        let count = Count::default();
        let connector = ConnectTimeoutLayer::new(second).layer(hangs(HttpConnector::new(), &count));
        let inner = Client::builder(TokioExecutor::new()).http2_only(http2).build(connector);
        let call = stack().layer(hyper(inner)).oneshot(post("http://nobody.test/"));
        let (answer, took) = timed(call).await;
        check("hyper-util", (elapsed(answer), took), &count);
    }

    let count = Count::default();
    let inner = reqwest_client(&count, true, second);
    let call = stack().layer(reqwest(inner)).oneshot(post("http://nobody.test/"));
    let (answer, took) = timed(call).await;
    check("reqwest", (elapsed(answer), took), &count);

    let count = Count::default();
    let connector = ConnectTimeoutLayer::new(second).layer(hangs(HttpConnector::new(), &count));
    let channel = Endpoint::from_static("http://nobody.test");
    let channel = channel.connect_with_connector_lazy(connector);
    let call = grpc().layer(tonic(channel)).oneshot(post("http://nobody.test/shop.Orders/Pay"));
    let (answer, took) = timed(call).await;
    check("tonic", (elapsed(answer), took), &count);
}

// RET-11
#[tokio::test(start_paused = true)]
async fn without_a_limit_of_its_own_a_connection_takes_the_attempts_and_who_knows_what_was_sent() {
    let count = Count::default();
    let inner = Client::builder(TokioExecutor::new()).build(hangs(HttpConnector::new(), &count));
    let call = stack().layer(hyper(inner)).oneshot(post("http://nobody.test/"));
    let (answer, took) = timed(call).await;
    let error = elapsed(answer);
    assert_eq!((error.which(), error.sent(), count.calls()), (Limit::Attempt, true, 1));
    assert_eq!(took, 10_000);
}

#[tokio::test(start_paused = true)]
async fn where_the_budget_is_spent_no_other_connection_is_tried_for() {
    let count = Count::default();
    let connector = ConnectTimeoutLayer::default().layer(hangs(HttpConnector::new(), &count));
    let inner = Client::builder(TokioExecutor::new()).build(connector);
    let budget = BudgetSettings::default().reserve(1).refill(0.0);
    let stack = Standard::http().budget(budget).build().unwrap();
    let client = stack.layer(hyper(inner));
    for calls in [2, 3, 4] {
        let answer = client.clone().oneshot(post("http://nobody.test/")).await;
        assert_eq!((elapsed(answer), count.calls()), (NOT_WITHIN_A_SECOND, calls));
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_shared_connection_is_not_failed_by_the_one_that_began_it() {
    let count = Count::default();
    let connector = in_memory(&count, |_| ms(200));
    let connector = ConnectTimeoutLayer::default().layer(connector);
    let inner: Client<_, Full<Bytes>> =
        Client::builder(TokioExecutor::new()).http2_only(true).build(connector);
    let hurried = hurried(ms(50)).layer(hyper(inner.clone()));
    let hurried = hurried.oneshot(post("http://shared.test/0"));
    let waits = stack().layer(hyper(inner)).oneshot(post("http://shared.test/0"));
    let ((hurried, gave_up), (answer, took)) = tokio::join!(timed(hurried), timed(waits));
    assert_eq!((elapsed(hurried).which(), gave_up), (Limit::Total, 50));
    // hyper-util drops what nobody waits for any more but those who did not begin it: they begin anew.
    assert!(answer.unwrap().status().is_success());
    assert!((250..=252).contains(&took), "{took} ms");
    assert_eq!((count.calls(), count.running()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_goes_on_in_the_background_outlives_the_request_that_began_it() {
    let count = Count::default();
    // The first is there at once, those that follow take half a second.
    let connector = in_memory(&count, |n| if n == 1 { ms(0) } else { ms(500) });
    let connector = ConnectTimeoutLayer::default().layer(connector);
    let inner: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build(connector);
    let client = stack().layer(hyper(inner.clone()));
    let hurried = hurried(ms(150)).layer(hyper(inner));

    let first = client.clone().oneshot(post("http://shared.test/100"));
    let second = hurried.oneshot(post("http://shared.test/0"));
    let (first, second) = tokio::join!(first, second);
    // The second one began a connection, and then was given that of the first.
    assert!(first.unwrap().status().is_success() && second.unwrap().status().is_success());
    assert_eq!((count.calls(), count.running()), (2, 1));

    sleep(ms(1_000)).await;
    assert_eq!(count.running(), 0);
    // Now there are two, and two at once need no third.
    let both = [0, 1].map(|_| client.clone().oneshot(post("http://shared.test/100")));
    let answers = futures_util::future::join_all(both).await;
    assert!(answers.into_iter().all(|answer| answer.unwrap().status().is_success()));
    assert_eq!(count.calls(), 2);
}

// TMO-07
#[tokio::test(start_paused = true)]
async fn a_request_that_gives_up_first_leaves_no_connector_at_work() {
    for http2 in [false, true] {
        let count = Count::default();
        let connector = ConnectTimeoutLayer::default().layer(hangs(HttpConnector::new(), &count));
        let inner = Client::builder(TokioExecutor::new()).http2_only(http2).build(connector);
        let call = hurried(ms(50)).layer(hyper(inner.clone())).oneshot(post("http://a.test/"));
        let (answer, took) = timed(call).await;
        assert_eq!((elapsed(answer).which(), took), (Limit::Total, 50));
        assert_eq!((count.calls(), count.running()), (1, 0), "in the poll that found the time up");
    }
    let count = Count::default();
    let inner = reqwest_client(&count, true, ms(1_000));
    let call = hurried(ms(50)).layer(reqwest(inner.clone())).oneshot(post("http://a.test/"));
    assert_eq!(elapsed(call.await).which(), Limit::Total);
    assert_eq!((count.calls(), count.running()), (1, 0));
}

// TMO-07
#[tokio::test(start_paused = true)]
async fn a_channel_keeps_what_it_began_for_the_next_request() {
    // A channel connects in a task of its own, and for nobody in particular.
    let count = Count::default();
    let connector = in_memory(&count, |_| ms(200));
    let connector = ConnectTimeoutLayer::default().layer(connector);
    let channel = Endpoint::from_static("http://shop.test");
    let channel = channel.connect_with_connector_lazy(connector);
    let ask = |limit| {
        let stack = Standard::grpc("shop").total(limit).attempt(limit).attempts(1).build().unwrap();
        timed(stack.layer(tonic(channel.clone())).oneshot(post("http://shop.test/0")))
    };
    let (gave_up, took) = ask(ms(50)).await;
    assert_eq!((elapsed(gave_up).which(), took), (Limit::Total, 50));
    let (answer, took) = ask(ms(1_000)).await;
    assert_eq!((answer.unwrap().status().as_u16(), took), (200, 150));
    assert_eq!((count.calls(), count.running()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn what_a_channel_began_in_vain_long_ago_costs_the_next_request_an_attempt_and_no_time() {
    let count = Count::default();
    let connector = in_memory(&count, |n| if n == 1 { Duration::MAX } else { ms(0) });
    let connector = ConnectTimeoutLayer::default().layer(connector);
    let channel = Endpoint::from_static("http://shop.test");
    let channel = channel.connect_with_connector_lazy(connector);
    let first = hurried(ms(50)).layer(tonic(channel.clone())).oneshot(post("http://shop.test/0"));
    assert_eq!(elapsed(first.await).which(), Limit::Total);
    sleep(ms(60_000)).await;
    // A channel's future is polled only while somebody waits: its time was up long ago, and it was not told.
    let (answer, took) =
        timed(grpc().layer(tonic(channel)).oneshot(post("http://shop.test/0"))).await;
    assert_eq!((answer.unwrap().status().as_u16(), count.calls()), (200, 2));
    assert!(took < 10, "{took} ms");
}

/// A listener whose queue is full: who knocks gets no answer. Open for as long as this is kept.
async fn full() -> (SocketAddr, Vec<TcpStream>, TcpListener) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let addr = listener.local_addr().unwrap();
    let mut queued = Vec::new();
    while let Ok(stream) = tokio::time::timeout(ms(100), TcpStream::connect(addr)).await {
        queued.push(stream.unwrap());
    }
    println!("{} fit into the queue", queued.len());
    (addr, queued, listener)
}

// TMO-07, RET-11
#[tokio::test]
async fn a_host_that_says_nothing_is_given_up_and_no_socket_is_kept() {
    let (addr, _queued, _listener) = full().await;
    let uri = format!("http://{addr}/");
    let limit = ms(50);
    let check = |client, answer: Elapsed, count: &Count| {
        assert_eq!(answer, Elapsed::new(Limit::Connect, limit), "{client}");
        assert_eq!((count.calls(), count.running()), (3, 0), "{client}");
    };
    let count = Count::default();
    let connector = ConnectTimeoutLayer::new(limit).layer(counted(HttpConnector::new(), &count));
    let inner = Client::builder(TokioExecutor::new()).build(connector.clone());
    let answer = stack().layer(hyper(inner)).oneshot(post(&uri)).await;
    check("hyper-util", elapsed(answer), &count);

    let count = Count::default();
    let inner = reqwest_client(&count, false, limit);
    let answer = stack().layer(reqwest(inner)).oneshot(post(&uri)).await;
    check("reqwest", elapsed(answer), &count);

    let count = Count::default();
    let connector = ConnectTimeoutLayer::new(limit).layer(counted(HttpConnector::new(), &count));
    let channel = Endpoint::new(uri.clone()).unwrap().connect_with_connector_lazy(connector);
    let answer = grpc().layer(tonic(channel)).oneshot(post(&uri)).await;
    check("tonic", elapsed(answer), &count);
}
