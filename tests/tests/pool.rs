//! hyper-util's composable pool beneath the standard stack.
//!
//! The pool is built of its parts, as they are meant to be put together: a map by authority, in it what speaks
//! HTTP/1.1 from a cache and what speaks HTTP/2 from a singleton. What is between them and a client is below, in
//! `client`: fewer lines than the connector of many a program.

use std::{
    convert::Infallible,
    future::{poll_fn, ready},
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use ::hyper::{
    body::Incoming,
    client::conn::{http1, http2},
    rt,
};
use buttress::{
    BoxError, BudgetSettings, ConnectTimeoutLayer, Elapsed, HttpStandard, Limit, RetrySettings,
    Standard, edge, find, http::hyper,
};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
use http::{Request, Response, StatusCode, Uri, header::HOST};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper_util::{
    client::{
        legacy::connect::HttpConnector,
        pool::{cache, map::Map, negotiate, singleton::Singleton},
    },
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{
    io::DuplexStream,
    net::{TcpListener, TcpStream},
    sync::Notify,
    time::sleep,
};
use tower::{Layer, Service, ServiceExt, layer::layer_fn, service_fn, util::BoxCloneSyncService};

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

type Answer<B> = BoxFuture<'static, Result<B, BoxError>>;

// === The client ===

/// A connection that takes one request at a time.
struct Http1(http1::SendRequest<Full<Bytes>>);

/// A connection that takes many.
#[derive(Clone)]
struct Http2(http2::SendRequest<Full<Bytes>>);

/// Makes connections that speak HTTP/1.1.
#[derive(Clone)]
struct Handshake1<C>(C);

/// Makes connections that speak HTTP/2.
#[derive(Clone)]
struct Handshake2<C>(C);

/// Keeps its connection until it has ended, and then gives it back.
struct Kept<C> {
    body: Incoming,
    connection: Option<C>,
}

impl Service<Request<Full<Bytes>>> for Http1 {
    type Response = Response<Incoming>;
    type Error = BoxError;
    type Future = Answer<Self::Response>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<Full<Bytes>>) -> Self::Future {
        let host = request.uri().authority().map(|host| host.as_str().parse().unwrap());
        request.headers_mut().extend(host.map(|host| (HOST, host)));
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = path.map_or_else(Uri::default, Uri::from);
        self.0.send_request(request).map(|answer| answer.map_err(Into::into)).boxed()
    }
}

impl Service<Request<Full<Bytes>>> for Http2 {
    type Response = Response<Incoming>;
    type Error = BoxError;
    type Future = Answer<Self::Response>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> Self::Future {
        self.0.send_request(request).map(|answer| answer.map_err(Into::into)).boxed()
    }
}

impl<C, Dst> Service<Dst> for Handshake1<C>
where
    C: Service<Dst, Error = BoxError, Future: Send + 'static>,
    C::Response: rt::Read + rt::Write + Unpin + Send + 'static,
{
    type Response = Http1;
    type Error = BoxError;
    type Future = Answer<Http1>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, dst: Dst) -> Self::Future {
        let connecting = self.0.call(dst);
        Box::pin(async move {
            let (sender, connection) = http1::handshake(connecting.await?).await?;
            tokio::spawn(connection);
            Ok(Http1(sender))
        })
    }
}

impl<C, Dst> Service<Dst> for Handshake2<C>
where
    C: Service<Dst, Error = BoxError, Future: Send + 'static>,
    C::Response: rt::Read + rt::Write + Unpin + Send + 'static,
{
    type Response = Http2;
    type Error = BoxError;
    type Future = Answer<Http2>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, dst: Dst) -> Self::Future {
        let connecting = self.0.call(dst);
        Box::pin(async move {
            let io = connecting.await?;
            let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
            tokio::spawn(connection);
            Ok(Http2(sender))
        })
    }
}

impl<C: Unpin> Body for Kept<C> {
    type Data = Bytes;
    type Error = ::hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ::hyper::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) || self.body.is_end_stream() {
            self.connection = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Nothing was sent: the pool had no connection to send it over.
///
/// What a singleton fails with has no name, so nobody can know it for what it is. Here it is known.
fn not_connected(error: impl Into<BoxError>) -> BoxError {
    io::Error::new(io::ErrorKind::ConnectionRefused, error).into()
}

type Pooled = BoxCloneSyncService<
    Request<Full<Bytes>>,
    Response<http_body_util::combinators::UnsyncBoxBody<Bytes, BoxError>>,
    BoxError,
>;

/// A client over one pool for each authority.
fn client<P, C>(pool: impl Fn(&Uri) -> P + Send + Sync + 'static) -> Pooled
where
    P: Service<Uri, Response = C, Error: Into<BoxError>, Future: Send> + Clone + Send + 'static,
    C: Service<Request<Full<Bytes>>, Response = Response<Incoming>, Error = BoxError>,
    C: Send + Unpin + 'static,
    C::Future: Send,
{
    let pools = Map::builder::<Uri>().keys(|uri| uri.authority().cloned()).values(pool).build();
    let pools = Arc::new(Mutex::new(pools));
    BoxCloneSyncService::new(service_fn(move |request: Request<Full<Bytes>>| {
        let mut pool = pools.lock().unwrap().service(request.uri()).clone();
        async move {
            let mut connection = loop {
                poll_fn(|cx| pool.poll_ready(cx)).await.map_err(not_connected)?;
                let connecting = pool.call(request.uri().clone());
                let mut connection = connecting.await.map_err(not_connected)?;
                // One that was closed while nobody used it is not kept, and the next one is asked for.
                if poll_fn(|cx| connection.poll_ready(cx)).await.is_ok() {
                    break connection;
                }
            };
            let response = connection.call(request).await?;
            Ok::<_, BoxError>(response.map(|body| {
                let kept = Kept { body, connection: Some(connection) };
                kept.map_err(Into::into).boxed_unsync()
            }))
        }
    }))
}

/// What turns out to speak HTTP/2 gets one connection, all else as many as it needs.
fn negotiated<C>(
    connector: C,
    speaks_http2: impl Fn(&C::Response) -> bool + Clone + Send + Sync + 'static,
) -> Pooled
where
    C: Service<Uri, Future: Unpin + Send + 'static> + Clone + Send + Sync + 'static,
    C::Error: Into<BoxError>,
    C::Response: rt::Read + rt::Write + Unpin + Send + Sync + 'static,
{
    let connector = ConnectTimeoutLayer::default().layer(connector);
    client(move |_| {
        negotiate::builder()
            .connect(connector.clone())
            .inspect(speaks_http2.clone())
            .fallback(layer_fn(|inner| {
                cache::builder().executor(TokioExecutor::new()).build(Handshake1(inner))
            }))
            .upgrade(layer_fn(|inner| Singleton::new(Handshake2(inner))))
            .build::<Uri>()
    })
}

/// What is known to speak HTTP/2: all who ask for a connection wait for the same one.
fn shared<C>(connector: C) -> Pooled
where
    C: Service<Uri, Future: Send + 'static> + Clone + Send + Sync + 'static,
    C::Error: Into<BoxError>,
    C::Response: rt::Read + rt::Write + Unpin + Send + 'static,
{
    let connector = ConnectTimeoutLayer::default().layer(connector);
    client(move |_| Singleton::new(Handshake2(connector.clone())))
}

fn stack() -> HttpStandard {
    Standard::http()
        .retry(RetrySettings::default().base(ms(1)).cap(ms(2)))
        .budget(BudgetSettings::default().reserve(1000))
        .build()
        .unwrap()
}

// === The servers ===

/// What a server saw.
#[derive(Clone, Default)]
struct Seen {
    accepted: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
}

impl Seen {
    fn accepted(&self) -> usize {
        self.accepted.load(SeqCst)
    }

    fn requests(&self) -> usize {
        self.requests.load(SeqCst)
    }
}

/// Answers the n-th request of all with what `status` says. Each connection lasts for `lasts` requests.
async fn serve(
    seen: &Seen,
    lasts: usize,
    status: impl Fn(usize) -> u16 + Clone + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let seen = seen.clone();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            seen.accepted.fetch_add(1, SeqCst);
            let (status, requests) = (status.clone(), seen.requests.clone());
            tokio::spawn(async move {
                let served = Arc::new(Notify::new());
                let (rings, left) = (served.clone(), AtomicUsize::new(lasts));
                let answer = ::hyper::service::service_fn(move |request: Request<Incoming>| {
                    let status = status(requests.fetch_add(1, SeqCst) + 1);
                    let is_last = left.fetch_sub(1, SeqCst) == 1;
                    let rings = rings.clone();
                    async move {
                        request.into_body().collect().await?;
                        if is_last {
                            rings.notify_one();
                        }
                        let body = Full::<Bytes>::from(vec![7; 1024]);
                        Ok::<_, ::hyper::Error>(
                            Response::builder().status(status).body(body).unwrap(),
                        )
                    }
                });
                let server = auto::Builder::new(TokioExecutor::new());
                let mut connection = pin!(server.serve_connection(TokioIo::new(socket), answer));
                tokio::select! {
                    _ = connection.as_mut() => {}
                    () = served.notified() => {
                        connection.as_mut().graceful_shutdown();
                        let _ = connection.await;
                    }
                }
            });
        }
    });
    addr
}

/// Waits for what must come to pass, and tells how long that took.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = edge::now();
    while !holds() {
        assert!(edge::now() - start < ms(30_000), "it never came to pass that {what}");
        sleep(ms(1)).await;
    }
    println!("{what}: after {:?}", edge::now() - start);
}

/// How many tasks there are. Each end of each connection has one.
fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

fn over_sockets(http2: bool) -> Pooled {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    negotiated(connector, move |_: &TokioIo<TcpStream>| http2)
}

fn put(addr: SocketAddr) -> Request<Full<Bytes>> {
    Request::put(format!("http://{addr}/")).body(Full::from("hello")).unwrap()
}

// RET-08
#[tokio::test]
async fn attempts_share_a_connection() {
    for http2 in [false, true] {
        let seen = Seen::default();
        let addr = serve(&seen, usize::MAX, |n| if n < 3 { 503 } else { 200 }).await;
        let client = stack().layer(hyper(over_sockets(http2)));
        for requests in [3, 4, 5] {
            let response = client.clone().oneshot(put(addr)).await.unwrap();
            assert_eq!((response.status(), seen.requests()), (StatusCode::OK, requests));
            response.into_body().collect().await.unwrap();
        }
        assert_eq!(seen.accepted(), 1, "http2: {http2}");
    }
}

// RET-10
#[tokio::test]
async fn a_connection_that_was_closed_is_replaced_and_costs_no_attempt() {
    for http2 in [false, true] {
        let seen = Seen::default();
        let addr = serve(&seen, 1, |_| 200).await;
        let stack = Standard::http().attempts(1).build().unwrap();
        let client = stack.layer(hyper(over_sockets(http2)));
        let before = tasks();
        for n in 1..=5 {
            let response = client.clone().oneshot(put(addr)).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            response.into_body().collect().await.unwrap();
            assert_eq!((seen.requests(), seen.accepted()), (n, n), "http2: {http2}");
            until("both ends of the connection are gone", || tasks() == before).await;
        }
    }
}

// RET-11
#[tokio::test]
async fn a_connection_that_failed_for_one_request_does_not_fail_the_next() {
    for http2 in [false, true] {
        let seen = Seen::default();
        let addr = serve(&seen, usize::MAX, |_| 200).await;
        let tried = Arc::new(AtomicUsize::new(0));
        let tries = tried.clone();
        // Nobody is there the first two times.
        let connector = service_fn(move |_: Uri| {
            let n = tries.fetch_add(1, SeqCst) + 1;
            let connecting = async move {
                match n {
                    1 | 2 => Err(io::Error::from(io::ErrorKind::ConnectionRefused)),
                    _ => Ok(TokioIo::new(TcpStream::connect(addr).await?)),
                }
            };
            connecting.boxed()
        });
        let client = stack().layer(hyper(negotiated(connector, move |_| http2)));
        for _ in 0..2 {
            let post = Request::post(format!("http://{addr}/")).body(Full::from("hello")).unwrap();
            let response = client.clone().oneshot(post).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            response.into_body().collect().await.unwrap();
        }
        assert_eq!((tried.load(SeqCst), seen.accepted(), seen.requests()), (3, 1, 2));
    }
}

/// Connections in memory, which take so long. The server answers two requests with 503, those that follow with
/// 200; the second half of a body comes 5 ms after the first.
fn in_memory(
    tried: &Arc<AtomicUsize>,
    takes: Duration,
) -> impl Service<
    Uri,
    Response = TokioIo<DuplexStream>,
    Error = Infallible,
    Future = BoxFuture<'static, Result<TokioIo<DuplexStream>, Infallible>>,
> + Clone
+ Send
+ Sync
+ use<> {
    let (tried, requests) = (tried.clone(), Arc::new(AtomicUsize::new(0)));
    service_fn(move |_: Uri| {
        tried.fetch_add(1, SeqCst);
        let requests = requests.clone();
        let connecting = async move {
            sleep(takes).await;
            let (client, server) = tokio::io::duplex(1 << 16);
            tokio::spawn(async move {
                let answer = ::hyper::service::service_fn(|_: Request<Incoming>| {
                    let status = if requests.fetch_add(1, SeqCst) < 2 { 503 } else { 200 };
                    let half = |wait| async move {
                        sleep(wait).await;
                        Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"half")))
                    };
                    let body = stream::once(half(ms(0))).chain(stream::once(half(ms(5))));
                    let body = StreamBody::new(body.boxed());
                    ready(Ok::<_, Infallible>(
                        Response::builder().status(status).body(body).unwrap(),
                    ))
                });
                let server_of = auto::Builder::new(TokioExecutor::new());
                let _ = server_of.serve_connection(TokioIo::new(server), answer).await;
            });
            Ok(TokioIo::new(client))
        };
        connecting.boxed()
    })
}

/// What becomes of a request, and after how many milliseconds.
async fn timed<F: Future>(future: F) -> (F::Output, u128) {
    let start = edge::now();
    let output = future.await;
    (output, (edge::now() - start).as_millis())
}

fn post() -> Request<Full<Bytes>> {
    Request::post("http://shared.test/").body(Full::from("hello")).unwrap()
}

// RET-08
#[tokio::test(start_paused = true)]
async fn attempts_share_a_connection_also_where_an_answer_takes_its_time() {
    for http2 in [false, true] {
        let tried = Arc::default();
        let pool = negotiated(in_memory(&tried, ms(0)), move |_| http2);
        let put = Request::put("http://shared.test/").body(Full::from("hello")).unwrap();
        let response = stack().layer(hyper(pool)).oneshot(put).await.unwrap();
        assert_eq!((response.status(), tried.load(SeqCst)), (StatusCode::OK, 1), "{http2}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_shared_connection_goes_on_with_it_when_the_one_that_began_it_leaves() {
    let tried = Arc::default();
    let pool = shared(in_memory(&tried, ms(200)));
    let hurried = Standard::http().total(ms(50)).attempt(ms(50)).attempts(1).build().unwrap();
    let hurried = hurried.layer(hyper(pool.clone())).oneshot(post());
    let waits = stack().layer(hyper(pool)).oneshot(post()); // answered with 503, and sent once
    let ((hurried, left), (answer, took)) = tokio::join!(timed(hurried), timed(waits));
    let elapsed: Elapsed = *find(&*hurried.unwrap_err()).unwrap();
    assert_eq!((elapsed.which(), left), (Limit::Total, 50));
    // The limit of the one that left is not in it.
    assert_eq!(answer.unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(tried.load(SeqCst), 1);
    assert!((200..=202).contains(&took), "{took} ms");
}

#[tokio::test(start_paused = true)]
async fn a_shared_connection_that_does_not_come_about_is_tried_for_again_for_all_who_wait() {
    let tried = Arc::default();
    let client = stack().layer(hyper(shared(in_memory(&tried, Duration::MAX))));
    let ((one, took), other) =
        tokio::join!(timed(client.clone().oneshot(post())), client.oneshot(post()));
    for answer in [one, other] {
        let elapsed: Elapsed = *find(&*answer.unwrap_err()).unwrap();
        assert_eq!(elapsed, Elapsed::new(Limit::Connect, ms(1_000)));
    }
    assert_eq!(tried.load(SeqCst), 3, "for both");
    assert!((3_000..3_010).contains(&took), "{took} ms");
}
