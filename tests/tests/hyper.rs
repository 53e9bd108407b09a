//! The standard stack around hyper-util's client: real sockets on loopback, real errors.
//!
//! Nothing here asserts how long anything takes. What must come to pass is waited for.

use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use buttress::{
    BudgetSettings, Elapsed, HttpService, HttpStandard, Limit, RetrySettings, Standard, find,
    http::{HttpReplay, ReplayBody, hyper},
};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header::HeaderName};
use http_body::Frame;
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tower::{Layer, Service, ServiceExt};

type Hyper = Client<HttpConnector, Full<Bytes>>;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Counts how often the client beneath is called.
#[derive(Clone)]
struct Counted<S> {
    inner: S,
    calls: Arc<AtomicUsize>,
}

impl<S, Req> Service<Req> for Counted<S>
where
    S: Service<Req>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Req) -> S::Future {
        self.calls.fetch_add(1, SeqCst);
        self.inner.call(request)
    }
}

/// A client with the standard stack; short waits, and as much budget as it wants.
fn client(calls: &Arc<AtomicUsize>) -> HttpService<buttress::http::Hyper<Counted<Hyper>>> {
    let inner = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(1).build_http();
    stack(ms(10_000)).layer(hyper(Counted { inner, calls: calls.clone() }))
}

fn stack(attempt: Duration) -> HttpStandard {
    Standard::http()
        .total(ms(60_000))
        .attempt(attempt)
        .retry(RetrySettings::default().base(ms(1)).cap(ms(2)))
        .budget(BudgetSettings::default().reserve(1000))
        .build()
        .unwrap()
}

fn request(method: Method, addr: SocketAddr) -> Request<Full<Bytes>> {
    let builder = Request::builder().method(method).uri(format!("http://{addr}/"));
    builder.body(Full::from("hello")).unwrap()
}

/// Waits for what must come to pass.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..3_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(ms(10)).await;
    }
    panic!("it never came to pass that {what}");
}

/// Accepts on loopback, and counts the connections: in all, and those that are open.
async fn serve<F>(
    on_connection: impl Fn(TcpStream) -> F + Send + 'static,
) -> (SocketAddr, Arc<AtomicUsize>, Arc<AtomicUsize>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (accepted, open) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (accepted.clone(), open.clone());
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            accepted.fetch_add(1, SeqCst);
            open.fetch_add(1, SeqCst);
            let (connection, open) = (on_connection(socket), open.clone());
            tokio::spawn(async move {
                connection.await;
                open.fetch_sub(1, SeqCst);
            });
        }
    });
    (addr, counts.0, counts.1)
}

/// Reads one request as raw bytes: the head, and a body of five bytes.
async fn read_request(socket: &mut TcpStream) -> Option<()> {
    let mut read = Vec::new();
    while !read.ends_with(b"hello") {
        if socket.read_buf(&mut read).await.ok()? == 0 {
            return None;
        }
    }
    Some(())
}

// RET-08
#[tokio::test]
async fn discarded_answers_give_their_connection_back() {
    let (addr, accepted, _) = serve(|mut socket| async move {
        let mut answered = 0;
        while read_request(&mut socket).await.is_some() {
            answered += 1;
            let answer = if answered < 3 {
                let chunk = format!("400\r\n{}\r\n0\r\n\r\n", "x".repeat(1024));
                format!("HTTP/1.1 503 Busy\r\ntransfer-encoding: chunked\r\n\r\n{chunk}")
            } else {
                "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok".to_owned()
            };
            socket.write_all(answer.as_bytes()).await.unwrap();
        }
    })
    .await;
    let calls = Arc::default();
    let response = client(&calls).oneshot(request(Method::PUT, addr)).await.unwrap();
    assert_eq!((response.status(), calls.load(SeqCst)), (StatusCode::OK, 3));
    assert_eq!(accepted.load(SeqCst), 1);
}

// RET-11, HTP-01
#[tokio::test]
async fn what_may_have_been_carried_out_is_repeated_only_where_that_is_safe() {
    // Reads the whole request, then closes: it may have been carried out.
    let (reads_then_closes, ..) = serve(|mut socket| async move {
        read_request(&mut socket).await;
    })
    .await;
    let nobody = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let keyed = |mut request: Request<Full<Bytes>>| {
        let key = HeaderName::from_static("idempotency-key");
        request.headers_mut().insert(key, "k".parse().unwrap());
        request
    };
    let table = [
        ("GET, closed after the request", request(Method::GET, reads_then_closes), 3),
        ("POST, closed after the request", request(Method::POST, reads_then_closes), 1),
        (
            "POST with a key, closed after the request",
            keyed(request(Method::POST, reads_then_closes)),
            3,
        ),
        ("POST, connection refused", request(Method::POST, nobody), 3),
    ];
    for (what, request, attempts) in table {
        let calls = Arc::default();
        client(&calls).oneshot(request).await.expect_err(what);
        assert_eq!(calls.load(SeqCst), attempts, "{what}");
    }
}

// TMO-07
#[tokio::test]
async fn a_call_that_timed_out_leaves_no_socket_open() {
    let (addr, accepted, open) = serve(|mut socket| async move {
        let mut sink = Vec::new();
        let _ = socket.read_to_end(&mut sink).await;
    })
    .await;
    let inner: Hyper = Client::builder(TokioExecutor::new()).build_http();
    let stack = Standard::http().total(ms(50)).attempt(ms(50)).attempts(1).build().unwrap();
    let client = stack.layer(hyper(inner));
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..100 {
        calls.spawn(client.clone().oneshot(request(Method::POST, addr)));
    }
    while let Some(result) = calls.join_next().await {
        result.unwrap().expect_err("nobody answers");
    }
    assert!(accepted.load(SeqCst) > 0);
    until("all sockets are closed", || open.load(SeqCst) == 0).await;
}

/// Counts the requests that a server works on.
struct Working(Arc<AtomicUsize>);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

// TMO-07
#[tokio::test]
async fn a_call_that_timed_out_resets_its_stream() {
    let working = Arc::new(AtomicUsize::new(0));
    let seen = Arc::new(AtomicUsize::new(0));
    let (counts, total) = (working.clone(), seen.clone());
    let (addr, accepted, _) = serve(move |socket| {
        let (counts, total) = (counts.clone(), total.clone());
        async move {
            let handler = hyper::service::service_fn(move |_| {
                counts.fetch_add(1, SeqCst);
                total.fetch_add(1, SeqCst);
                let working = Working(counts.clone());
                async move {
                    let _working = working;
                    std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>().await
                }
            });
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let _ = server.serve_connection(TokioIo::new(socket), handler).await;
        }
    })
    .await;
    let inner: Hyper = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let stack = Standard::http().total(ms(300)).attempt(ms(300)).attempts(1).build().unwrap();
    let client = stack.layer(hyper(inner));
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..20 {
        calls.spawn(client.clone().oneshot(request(Method::POST, addr)));
    }
    while let Some(result) = calls.join_next().await {
        let error = result.unwrap().expect_err("nobody answers");
        assert_eq!(find::<Elapsed>(&*error).map(Elapsed::which), Some(Limit::Total), "{error}");
    }
    assert!(seen.load(SeqCst) > 0 && accepted.load(SeqCst) == 1);
    until("the server works on nothing", || working.load(SeqCst) == 0).await;
}

/// An upload of which a beginning comes, and then nothing for ever.
struct Upload {
    begun: bool,
    _alive: Working,
}

impl http_body::Body for Upload {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if std::mem::replace(&mut self.begun, true) {
            return Poll::Pending;
        }
        Poll::Ready(Some(Ok(Frame::data(Bytes::from("hello")))))
    }
}

// TMO-07
#[tokio::test]
async fn a_call_that_timed_out_lets_go_of_its_upload() {
    for http2 in [false, true] {
        let (addr, accepted, _) = serve(move |socket| async move {
            let hangs = hyper::service::service_fn(|request: Request<hyper::body::Incoming>| {
                let read = request.into_body().collect();
                async move {
                    let _ = read.await;
                    std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>().await
                }
            });
            let _ = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(socket), hangs)
                .await;
        })
        .await;
        let inner: Client<_, ReplayBody<Upload>> =
            Client::builder(TokioExecutor::new()).http2_only(http2).build_http();
        let stack = Standard::http().total(ms(300)).attempt(ms(200));
        let retry = RetrySettings::default().attempts(2).base(ms(1)).cap(ms(2));
        let stack = stack.retry(retry).replay(HttpReplay::record(1024)).build().unwrap();
        let client = stack.layer(hyper(inner));
        let alive = Arc::new(AtomicUsize::new(0));
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..10 {
            alive.fetch_add(1, SeqCst);
            let upload = Upload { begun: false, _alive: Working(alive.clone()) };
            let request = Request::put(format!("http://{addr}/")).body(upload).unwrap();
            calls.spawn(client.clone().oneshot(request));
        }
        while let Some(result) = calls.join_next().await {
            result.unwrap().expect_err("nobody answers");
        }
        assert!(accepted.load(SeqCst) > 0);
        // The client goes on, and so do its connections' tasks.
        until("every upload is let go of", || alive.load(SeqCst) == 0).await;
        drop(client);
    }
}
