//! With hyper's real client, against real sockets on loopback. No time is asserted: what has to come is
//! waited for.
#![cfg(feature = "hyper")]

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use buttress_core::{
    BoxError, Class, Classify, Deadline, Discard, Elapsed, Kept, Limit, Reason, Rejected, Replay,
    find, judge,
};
use buttress_http::{
    Body, HttpClass, HttpReplay, Hyper, OVERLOADED, RecordReplay, RejectedAsResponseLayer,
    ReplayBody, hyper as adapt,
};
use bytes::Bytes;
use futures_util::StreamExt;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    client::legacy::{
        Client,
        connect::{HttpConnector, dns::Name},
    },
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::Notify,
};
use tower::{Layer, Service, ServiceExt, buffer::Buffer};

const TRANSIENT: Class = Class::Transient { after: None };
/// Far longer than anything here takes: a test that needs it has failed.
const PATIENCE: Duration = Duration::from_secs(30);

type HyperClient<B> = Client<HttpConnector, B>;

fn client<B>() -> HyperClient<B>
where
    B: http_body::Body + Send,
    B::Data: Send,
{
    Client::builder(TokioExecutor::new()).pool_max_idle_per_host(1).build_http()
}

fn uri(address: SocketAddr) -> Uri {
    format!("http://{address}/").parse().unwrap()
}

fn request<B>(method: Method, address: SocketAddr, body: B) -> Request<B> {
    Request::builder().method(method).uri(uri(address)).body(body).unwrap()
}

fn class_of(error: &BoxError) -> Class {
    judge::<Response<()>, _>(&HttpClass, Err(error))
}

async fn eventually(mut holds: impl FnMut() -> bool) {
    let polled = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, polled).await.expect("it should hold by now");
}

/// Accepts connections and does the same with each. Counts them.
async fn server<F>(
    serve: impl Fn(TcpStream) -> F + Send + 'static,
) -> (SocketAddr, Arc<AtomicUsize>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = accepted.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(serve(stream));
        }
    });
    (address, accepted)
}

/// Serves HTTP/1.1 with `answer`.
async fn http<F, B>(
    answer: impl Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
) -> (SocketAddr, Arc<AtomicUsize>)
where
    F: Future<Output = Response<B>> + Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    server(move |stream| {
        let answer = answer.clone();
        async move {
            let service = service_fn(move |request| {
                let answered = answer(request);
                async move { Ok::<_, Infallible>(answered.await) }
            });
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        }
    })
    .await
}

/// Reads until the head of a request has come.
async fn head(stream: &mut TcpStream) -> Vec<u8> {
    let mut read = Vec::new();
    while !read.windows(4).any(|end| end == b"\r\n\r\n") {
        let n = stream.read_buf(&mut read).await.unwrap_or(0);
        if n == 0 {
            break;
        }
    }
    read
}

fn reset(stream: TcpStream) {
    #[expect(deprecated, reason = "zero does not block")]
    stream.set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
}

/// An address at which nobody listens, for as long as the socket is there: it is bound and no more.
fn deserted() -> (TcpSocket, SocketAddr) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

async fn fails<B>(client: HyperClient<B>, request: Request<B>) -> BoxError
where
    B: http_body::Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let answer = tokio::time::timeout(PATIENCE, adapt(client).oneshot(request)).await;
    answer.expect("it fails by itself").map(drop).expect_err("it fails")
}

// RET-08
#[tokio::test]
async fn answers_that_are_discarded_leave_their_connection_to_the_next_attempt() {
    let answers = Arc::new(AtomicUsize::new(0));
    let (address, accepted) = http(move |_| {
        let unwell = answers.fetch_add(1, Ordering::SeqCst) < 2;
        // A stream has no length: it is sent in chunks.
        let chunks = [Ok::<_, Infallible>(Frame::data(Bytes::from_static(&[b'x'; 1024])))];
        let body = StreamBody::new(futures_util::stream::iter(chunks));
        let status = if unwell { 503 } else { 200 };
        async move { Response::builder().status(status).body(body).unwrap() }
    })
    .await;

    let mut service = adapt(client());
    let first = request(Method::GET, address, Full::<Bytes>::default());
    let (mut sent, kept) = HttpReplay.keep(first);
    let mut kept = kept.unwrap();
    let mut attempts = 0;
    let response = loop {
        attempts += 1;
        let response = service.ready().await.unwrap().call(sent).await.unwrap();
        if HttpClass.classify(Ok(&response)) == Class::Success {
            break response;
        }
        let drain: <HttpReplay as Discard<_>>::Discarding = HttpReplay.discard(response);
        drain.await;
        sent = kept.copy(false).unwrap();
    };
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 1024);
    assert_eq!((attempts, accepted.load(Ordering::SeqCst)), (3, 1));
}

// RET-08
#[tokio::test]
async fn an_endless_answer_that_is_discarded_is_dropped_and_its_connection_closed() {
    let closed = Arc::new(AtomicBool::new(false));
    let is_closed = closed.clone();
    let (address, _) = server(move |mut stream| {
        let closed = closed.clone();
        async move {
            head(&mut stream).await;
            let head = b"HTTP/1.1 503 Unwell\r\ntransfer-encoding: chunked\r\n\r\n";
            stream.write_all(head).await.unwrap();
            while stream.write_all(b"1\r\nx\r\n").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            closed.store(true, Ordering::SeqCst);
        }
    })
    .await;
    let request = request(Method::GET, address, Full::<Bytes>::default());
    let response = adapt(client()).oneshot(request).await.unwrap();
    tokio::time::timeout(PATIENCE, HttpReplay.discard(response)).await.expect("bounded");
    eventually(|| is_closed.load(Ordering::SeqCst)).await;
}

/// Wraps an error as others do.
#[derive(Debug)]
struct Wrapped(BoxError);

impl std::fmt::Display for Wrapped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the call failed")
    }
}

impl std::error::Error for Wrapped {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.0)
    }
}

// HTP-02
#[tokio::test]
async fn what_was_refused_at_the_door_was_not_sent_however_it_is_wrapped() {
    let (_socket, address) = deserted();
    let refused = || fails(client(), request(Method::POST, address, Full::<Bytes>::from("x")));
    let legacy = async || {
        *refused().await.downcast::<hyper_util::client::legacy::Error>().expect("hyper-util's own")
    };
    let shared: Arc<dyn std::error::Error + Send + Sync> = Arc::new(legacy().await);
    let held: [BoxError; 5] = [
        refused().await,
        io::Error::other(refused().await).into(),
        Box::new(Box::new(legacy().await)),
        Box::new(Arc::new(Box::new(legacy().await))),
        Box::new(shared),
    ];
    for error in held {
        assert_eq!(class_of(&error), Class::Unreachable, "{error:?}");
    }
    // Found in somebody else's error as well, but there it may be of another call.
    let wrapped: [BoxError; 3] = [
        Wrapped(refused().await).into(),
        Wrapped(Wrapped(refused().await).into()).into(),
        Box::new(io::Error::other(Wrapped(Box::new(Arc::new(legacy().await))))),
    ];
    for error in wrapped {
        assert_eq!(class_of(&error), Class::Transient { after: None }, "{error:?}");
    }
}

/// Never becomes ready.
#[derive(Clone)]
struct Unready(Arc<dyn Fn() -> BoxError + Send + Sync>);

impl Service<()> for Unready {
    type Response = ();
    type Error = BoxError;
    type Future = std::future::Ready<Result<(), BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Err(self.0()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        unreachable!("it is not ready")
    }
}

// HTP-02
#[tokio::test]
async fn what_a_buffer_says_is_looked_through() {
    let (_socket, address) = deserted();
    let mut old = request(Method::GET, address, Full::<Bytes>::default());
    *old.version_mut() = http::Version::HTTP_09;
    let error = std::sync::Mutex::new(Some(fails(client(), old).await));
    let unready = Unready(Arc::new(move || error.lock().unwrap().take().unwrap()));
    let error = Buffer::new(unready, 1).oneshot(()).await.unwrap_err();
    assert!(error.is::<tower::buffer::error::ServiceError>());
    assert_eq!(class_of(&error), Class::CallerError);
}

// HTP-02
#[tokio::test]
async fn a_name_that_nobody_knows_was_not_sent_to() {
    let resolver = tower::service_fn(|_: Name| {
        std::future::ready(Err::<std::iter::Empty<SocketAddr>, _>(io::Error::other("no such name")))
    });
    let client = Client::builder(TokioExecutor::new())
        .build::<_, Full<Bytes>>(HttpConnector::new_with_resolver(resolver));
    let nowhere = Request::post("http://nowhere.invalid/").body("x".into()).unwrap();
    let error = adapt(client).oneshot(nowhere).await.map(drop).unwrap_err();
    assert_eq!(class_of(&error), Class::Unreachable);
}

// HTP-01
#[tokio::test]
async fn a_connection_that_ends_after_the_request_was_read_may_have_carried_it_out() {
    for resets in [false, true] {
        let (address, _) = server(move |mut stream| async move {
            head(&mut stream).await;
            if resets {
                reset(stream);
            }
        })
        .await;
        for method in [Method::GET, Method::POST] {
            let error = fails(client(), request(method, address, Full::<Bytes>::from("x"))).await;
            assert_eq!(class_of(&error), TRANSIENT, "{error:?}");
        }
    }
}

// HTP-01
#[tokio::test]
async fn a_response_that_is_cut_off_or_makes_no_sense_may_have_been_carried_out() {
    for answer in ["HTTP/1.1 200 O", "HTTP/1.1 200 OK\r\ncontent-le", "gibberish\r\n\r\n"] {
        let (address, _) = server(move |mut stream| async move {
            head(&mut stream).await;
            stream.write_all(answer.as_bytes()).await.unwrap();
        })
        .await;
        let error = fails(client(), request(Method::GET, address, Full::<Bytes>::default())).await;
        assert_eq!(class_of(&error), TRANSIENT, "{answer:?}: {error:?}");
    }
}

#[tokio::test]
async fn a_body_that_is_cut_off_is_no_success() {
    let (address, _) = server(|mut stream| async move {
        head(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf").await.unwrap();
    })
    .await;
    let request = request(Method::GET, address, Full::<Bytes>::default());
    let response = adapt(client()).oneshot(request).await.unwrap();
    let error = response.into_body().collect().await.unwrap_err();
    assert_eq!(class_of(&error), TRANSIENT, "{error:?}");
}

// HTP-01
#[tokio::test]
async fn what_never_got_onto_a_connection_was_not_sent() {
    let (address, _) = server(|stream| async move { drop(stream) }).await;
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake::<_, Full<Bytes>>(TokioIo::new(stream))
            .await
            .unwrap();
    // The connection has ended, and the sender has not been told.
    let _ = connection.await;
    let answer = sender.send_request(Request::post("/").body("x".into()).unwrap()).await;
    let error = BoxError::from(answer.unwrap_err());
    assert_eq!(class_of(&error), Class::Unreachable, "{error:?}");
}

// HTP-01
#[tokio::test]
async fn a_connection_whose_task_is_gone_may_have_sent_the_request() {
    let seen = Arc::new(Notify::new());
    let read = seen.clone();
    let (address, _) = server(move |mut stream| {
        let read = read.clone();
        async move {
            head(&mut stream).await;
            read.notify_one();
            std::future::pending::<()>().await;
        }
    })
    .await;
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake::<_, Full<Bytes>>(TokioIo::new(stream))
            .await
            .unwrap();
    let task = tokio::spawn(connection);
    let answer = sender.send_request(Request::post("/").body("x".into()).unwrap());
    let gone = async {
        seen.notified().await;
        task.abort();
    };
    let (answer, ()) = tokio::join!(answer, gone);
    let error = BoxError::from(answer.unwrap_err());
    assert_eq!(class_of(&error), TRANSIENT, "{error:?}");
}

// HTP-01
#[tokio::test]
async fn an_upgrade_that_came_to_nothing_is_no_request_that_was_not_sent() {
    let (address, _) = server(|mut stream| async move {
        head(&mut stream).await;
        let granted = b"HTTP/1.1 101 Go on\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n";
        stream.write_all(granted).await.unwrap();
        std::future::pending::<()>().await;
    })
    .await;
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let task = tokio::spawn(connection.with_upgrades());
    let (_tell, go_on) = tokio::sync::oneshot::channel();
    let asks = Request::post("/").header("connection", "upgrade").header("upgrade", "x");
    let answer = sender.send_request(asks.body(half_then_wait(go_on)).unwrap()).await.unwrap();
    assert_eq!(answer.status(), 101);
    // The request is still being sent, so the connection cannot be handed over yet.
    task.abort();
    let error = hyper::upgrade::on(answer).await.map(drop).unwrap_err();
    assert!(error.is_canceled(), "so hyper calls it");
    assert_eq!(class_of(&error.into()), TRANSIENT);
}

// HTP-01
#[tokio::test]
async fn a_pooled_connection_that_the_server_closes_never_makes_a_sent_request_look_unsent() {
    let seen = Arc::new(AtomicUsize::new(0));
    let count = seen.clone();
    let (address, _) = server(move |mut stream| {
        let count = count.clone();
        async move {
            // One answer, with the promise of more; then the server goes away.
            if !head(&mut stream).await.is_empty() {
                count.fetch_add(1, Ordering::SeqCst);
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                stream.write_all(answer).await.unwrap();
                tokio::task::yield_now().await;
                // Was there another request under way?
                let mut rest = [0; 1];
                if matches!(stream.try_read(&mut rest), Ok(1)) {
                    count.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
    })
    .await;
    let mut service = adapt(client());
    let (mut answered, mut unsent, mut perhaps) = (0, 0, 0);
    for _ in 0..200 {
        let post = request(Method::POST, address, Full::<Bytes>::from("x"));
        match service.ready().await.unwrap().call(post).await {
            Ok(_) => answered += 1,
            Err(error) => match class_of(&error) {
                Class::Unreachable => unsent += 1,
                TRANSIENT => perhaps += 1,
                class => panic!("{class:?}: {error:?}"),
            },
        }
    }
    assert!(answered > 0);
    eventually(|| seen.load(Ordering::SeqCst) >= answered).await;
    let seen = seen.load(Ordering::SeqCst);
    assert!(seen <= answered + perhaps, "{seen} seen, {answered} answered, {unsent} unsent");
}

/// Fails halfway, with an error that knows of a connection that was refused.
struct FailsToo(Option<BoxError>, bool);

impl http_body::Body for FailsToo {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if std::mem::take(&mut self.1) {
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"half")))));
        }
        Poll::Ready(self.0.take().map(Err))
    }
}

#[tokio::test]
async fn a_request_body_that_fails_was_sent_in_part_whatever_it_failed_of() {
    let (address, _) = server(|mut stream| async move {
        head(&mut stream).await;
        std::future::pending::<()>().await;
    })
    .await;
    let (_socket, nobody) = deserted();
    let refused = fails(client(), request(Method::GET, nobody, Full::<Bytes>::default()));
    for cause in [refused.await, io::Error::from(io::ErrorKind::ConnectionRefused).into()] {
        let upload = FailsToo(Some(cause), true);
        let error = fails(client(), request(Method::POST, address, upload)).await;
        assert_eq!(
            class_of(&error),
            Class::CallerError,
            "our side failed, not the callee: {error:?}"
        );
    }
}

#[tokio::test]
async fn what_the_client_does_not_take_is_the_callers_error() {
    let nowhere = Request::get("/path").body(Full::<Bytes>::default()).unwrap();
    assert_eq!(class_of(&fails(client(), nowhere).await), Class::CallerError);
    let (_socket, nobody) = deserted();
    let mut old = request(Method::GET, nobody, Full::<Bytes>::default());
    *old.version_mut() = http::Version::HTTP_09;
    assert_eq!(class_of(&fails(client(), old).await), Class::CallerError);
}

// HTP-02
#[tokio::test]
async fn a_certificate_that_does_not_verify_will_not_verify_next_time() {
    for (kind, class) in [
        // As TLS libraries say it.
        (io::ErrorKind::InvalidData, Class::Fatal),
        // The handshake was cut off.
        (io::ErrorKind::UnexpectedEof, Class::Unreachable),
        (io::ErrorKind::HostUnreachable, Class::Unreachable),
    ] {
        let connector = tower::service_fn(move |_: Uri| {
            let failed = io::Error::new(kind, "the handshake failed");
            std::future::ready(Err::<TokioIo<TcpStream>, _>(io::Error::other(failed)))
        });
        let client = Client::builder(TokioExecutor::new()).build(connector);
        let request = Request::post("https://a/").body(Full::<Bytes>::from("x")).unwrap();
        let error = adapt(client).oneshot(request).await.map(drop).unwrap_err();
        assert_eq!(class_of(&error), class, "{error:?}");
    }
}

/// A frame of HTTP/2.
fn frame(kind: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [length[1], length[2], length[3], kind, 0];
    [&head[..], &stream.to_be_bytes(), payload].concat()
}

fn rst_stream(reason: h2::Reason) -> Vec<u8> {
    frame(3, 1, &u32::from(reason).to_be_bytes())
}

fn goaway(last: u32, reason: h2::Reason) -> Vec<u8> {
    frame(7, 0, &[last.to_be_bytes(), u32::from(reason).to_be_bytes()].concat())
}

/// Speaks HTTP/2 until a request comes, answers it with `frames`, and is gone.
async fn http2(frames: Vec<u8>) -> SocketAddr {
    let serve = move |mut stream: TcpStream| {
        let frames = frames.clone();
        async move {
            stream.write_all(&frame(4, 0, &[])).await.unwrap();
            stream.read_exact(&mut [0; 24]).await.unwrap();
            loop {
                let mut head = [0; 9];
                if stream.read_exact(&mut head).await.is_err() {
                    return;
                }
                let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
                let mut payload = vec![0; length as usize];
                stream.read_exact(&mut payload).await.unwrap();
                if head[3] == 1 {
                    break;
                }
            }
            stream.write_all(&frames).await.unwrap();
            stream.shutdown().await.unwrap();
            while stream.read(&mut [0; 1024]).await.is_ok_and(|n| n > 0) {}
        }
    };
    server(serve).await.0
}

// HTP-01, RET-11, GRP-09
#[tokio::test]
async fn a_stream_that_the_server_did_not_look_at_was_not_sent_and_any_other_may_have_been() {
    use h2::Reason;

    let throttled = Class::Throttled { after: None };
    let table = [
        (rst_stream(Reason::REFUSED_STREAM), Class::Unreachable),
        (rst_stream(Reason::CANCEL), TRANSIENT),
        (rst_stream(Reason::NO_ERROR), TRANSIENT),
        (rst_stream(Reason::INTERNAL_ERROR), TRANSIENT),
        (rst_stream(Reason::PROTOCOL_ERROR), TRANSIENT),
        (rst_stream(Reason::STREAM_CLOSED), TRANSIENT),
        (rst_stream(Reason::ENHANCE_YOUR_CALM), throttled),
        (rst_stream(Reason::HTTP_1_1_REQUIRED), Class::CallerError),
        (rst_stream(Reason::INADEQUATE_SECURITY), Class::Fatal),
        // It is the first stream, so it is beyond the last that was looked at, or it is that.
        (goaway(0, Reason::NO_ERROR), Class::Unreachable),
        (goaway(0, Reason::PROTOCOL_ERROR), Class::Unreachable),
        (goaway(0, Reason::ENHANCE_YOUR_CALM), Class::Unreachable),
        (goaway(0, Reason::INADEQUATE_SECURITY), Class::Fatal),
        (goaway(1, Reason::NO_ERROR), TRANSIENT),
        (goaway(1, Reason::REFUSED_STREAM), TRANSIENT),
        (goaway(1, Reason::PROTOCOL_ERROR), TRANSIENT),
        (goaway(u32::MAX >> 1, Reason::NO_ERROR), TRANSIENT),
        // What makes no sense is our own library's word, and no proof.
        (frame(0, 1, b"data before the head"), TRANSIENT),
        (frame(8, 0, &[0; 4]), TRANSIENT),
        (vec![], TRANSIENT),
    ];
    for (answer, class) in table {
        let address = http2(answer.clone()).await;
        let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
        let post = request(Method::POST, address, Full::<Bytes>::from("x"));
        let error = fails(client, post).await;
        assert_eq!(class_of(&error), class, "{answer:?}: {error:?}");
        let shared: Arc<dyn std::error::Error + Send + Sync> = error.into();
        let wrapped = io::Error::other(shared.clone()).into();
        assert_eq!(class_of(&wrapped), class, "however it is wrapped");
        let believed = if class == Class::Unreachable { TRANSIENT } else { class };
        assert_eq!(
            class_of(&Wrapped(Box::new(shared)).into()),
            believed,
            "of another call, perhaps"
        );
    }
}

#[test]
fn a_reason_that_nobody_sent_proves_nothing() {
    for reason in [h2::Reason::REFUSED_STREAM, h2::Reason::ENHANCE_YOUR_CALM] {
        assert_eq!(class_of(&h2::Error::from(reason).into()), TRANSIENT);
    }
}

#[tokio::test]
async fn what_ended_a_connection_says_nothing_of_one_of_its_streams() {
    let address = http2(goaway(1, h2::Reason::PROTOCOL_ERROR)).await;
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
    let (answer, _) = sender.send_request(request(Method::POST, address, ()), true).unwrap();
    drop(sender);
    let (answer, connection) = tokio::join!(answer, connection);
    for error in [answer.map(drop).unwrap_err(), connection.unwrap_err()] {
        assert_eq!(class_of(&error.into()), TRANSIENT);
    }
}

#[tokio::test]
async fn a_request_body_that_was_refused_as_a_stream_is_not_a_stream_that_was_refused() {
    // A proxy's, say, whose upload comes over a connection that is reset.
    let address = http2(rst_stream(h2::Reason::REFUSED_STREAM)).await;
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let refused = fails(client, request(Method::POST, address, Full::<Bytes>::from("x"))).await;
    assert_eq!(class_of(&refused), Class::Unreachable);
    let (address, _) = server(|stream| async move {
        let waits = service_fn(|_: Request<Incoming>| {
            std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>()
        });
        let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(TokioIo::new(stream), waits)
            .await;
    })
    .await;
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let upload = FailsToo(Some(refused), true);
    let error = fails(client, request(Method::POST, address, upload)).await;
    assert_eq!(class_of(&error), Class::CallerError, "our side failed: {error:?}");
}

/// Answers with a head, and then with nothing. Tells whether the client has gone.
async fn head_then_silence() -> (SocketAddr, Arc<AtomicBool>) {
    let gone = Arc::new(AtomicBool::new(false));
    let is_gone = gone.clone();
    let (address, _) = server(move |mut stream| {
        let gone = gone.clone();
        async move {
            head(&mut stream).await;
            let head = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n";
            stream.write_all(head).await.unwrap();
            let left = stream.read(&mut [0; 1]).await;
            gone.store(matches!(left, Ok(0) | Err(_)), Ordering::SeqCst);
        }
    })
    .await;
    (address, is_gone)
}

async fn stalls(service: Hyper<HyperClient<Full<Bytes>>>, deadline: Option<Deadline>) -> Elapsed {
    let (address, gone) = head_then_silence().await;
    let mut service = service;
    let request = request(Method::GET, address, Full::default());
    let response = Deadline::within(deadline, || service.call(request)).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["content-length"], "10");
    let mut response = response;
    let frame = tokio::time::timeout(PATIENCE, response.body_mut().frame()).await.unwrap();
    let error = frame.unwrap().map(drop).unwrap_err();
    // The response is still there; its connection is not.
    eventually(|| gone.load(Ordering::SeqCst)).await;
    assert_eq!(class_of(&error), TRANSIENT);
    *find(&*error).expect("a limit passed")
}

// TMO-02, TMO-07
#[tokio::test]
async fn a_body_that_stalls_fails_and_its_connection_is_released() {
    let idle = Duration::from_millis(50);
    let elapsed = stalls(adapt(client()).idle(idle).unwrap(), None).await;
    assert_eq!(elapsed, Elapsed::new(Limit::Idle, idle));
    let elapsed = stalls(adapt(client()), Deadline::after(idle)).await;
    assert_eq!(elapsed.which(), Limit::Total);
}

// TMO-07
#[tokio::test]
async fn a_call_that_is_dropped_gives_its_connection_up() {
    let open = Arc::new(AtomicUsize::new(0));
    let now_open = open.clone();
    let (address, accepted) = server(move |mut stream| {
        let open = open.clone();
        async move {
            open.fetch_add(1, Ordering::SeqCst);
            head(&mut stream).await;
            let _ = stream.read(&mut [0; 1]).await;
            open.fetch_sub(1, Ordering::SeqCst);
        }
    })
    .await;
    let service = adapt(client::<Empty<Bytes>>());
    for _ in 0..20 {
        let call = service.clone().oneshot(request(Method::GET, address, Empty::new()));
        assert!(tokio::time::timeout(Duration::from_millis(20), call).await.is_err());
    }
    eventually(|| accepted.load(Ordering::SeqCst) > 0 && now_open.load(Ordering::SeqCst) == 0)
        .await;
}

// BLK-12
#[tokio::test]
async fn a_server_that_refuses_keeps_its_connection() {
    let (address, accepted) = server(|stream| async move {
        let full = tower::service_fn(|_: Request<Incoming>| async {
            Err::<Response<Body<Incoming>>, _>(Rejected::new(Reason::BulkheadFull, "bulkhead"))
        });
        let service = RejectedAsResponseLayer::new().layer(full);
        hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
            .await
            .unwrap();
    })
    .await;
    let mut service = adapt(client());
    for _ in 0..10 {
        let request = request(Method::GET, address, Full::<Bytes>::default());
        let response = service.ready().await.unwrap().call(request).await.unwrap();
        assert_eq!(response.status(), 503);
        assert!(response.headers().contains_key(OVERLOADED));
        assert_eq!(HttpClass.classify(Ok(&response)), Class::Refused, "both sides are ours");
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "bulkhead full");
    }
    assert_eq!(accepted.load(Ordering::SeqCst), 1);
}

/// Sends half a body, then waits until it is told to go on.
fn half_then_wait(
    go_on: tokio::sync::oneshot::Receiver<()>,
) -> impl http_body::Body<Data = Bytes, Error = Infallible> + Send + Unpin {
    let rest = async move {
        let _ = go_on.await;
        Ok(Frame::data(Bytes::from_static(b"second half")))
    };
    let first = futures_util::stream::iter([Ok(Frame::data(Bytes::from_static(b"first half, ")))]);
    StreamBody::new(Box::pin(first.chain(futures_util::stream::once(rest))))
}

// RET-05
#[tokio::test]
async fn an_upload_that_was_answered_halfway_is_sent_whole_the_second_time() {
    let requests = Arc::new(AtomicUsize::new(0));
    let (address, _) = http(move |request: Request<Incoming>| {
        let first = requests.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if first {
                // Answers while the client is still sending, and reads no further.
                let mut body = request.into_body();
                body.frame().await.unwrap().unwrap();
                return Response::builder().status(503).body(Full::from("busy")).unwrap();
            }
            Response::new(Full::from(request.into_body().collect().await.unwrap().to_bytes()))
        }
    })
    .await;

    let (tell, go_on) = tokio::sync::oneshot::channel();
    let replay = HttpReplay::record(1024);
    let (sent, kept) = replay.keep(request(Method::PUT, address, half_then_wait(go_on)));
    let mut service = adapt(client());
    let response = service.ready().await.unwrap().call(sent).await.unwrap();
    assert_eq!(response.status(), 503);
    // Not drained, and its connection is not waited for: the first body may still be about.
    drop(response);
    let copy = kept.unwrap().copy(true).expect("it is within the cap");
    tell.send(()).unwrap();
    let response = service.ready().await.unwrap().call(copy).await.unwrap();
    let echo = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(echo, "first half, second half");
}

/// Marks an attempt that is to be answered well. Others are refused when half of their body has come.
const GOOD: &str = "x-good";

/// What a server saw.
#[derive(Default)]
struct Uploads {
    /// What is open still: connections, or streams.
    open: AtomicUsize,
    /// Half of one has come that is to be answered well.
    halfway: Notify,
}

/// Uploads. The answer is a refusal, which is let go of as by a retry; if it `repeats`, a copy is sent.
async fn upload(
    client: HyperClient<ReplayBody<UnsyncBoxBody<Bytes, Infallible>>>,
    (address, seen): (SocketAddr, &Uploads),
    repeats: bool,
) {
    let (tell, go_on) = tokio::sync::oneshot::channel();
    let replay = HttpReplay::record(1024);
    let whole = request(Method::PUT, address, half_then_wait(go_on).boxed_unsync());
    let (sent, kept) = if repeats { replay.keep(whole) } else { (replay.once(whole), None) };
    let mut service = adapt(client);
    let refused = service.ready().await.unwrap().call(sent).await.unwrap();
    assert_eq!(refused.status(), 503);
    let copy = kept.map(|mut kept| kept.copy(true).expect("it is within the cap"));
    let drain: <RecordReplay as Discard<_>>::Discarding = replay.discard(refused);
    drain.await;
    let Some(mut copy) = copy else { return tell.send(()).unwrap() };
    copy.headers_mut().insert(GOOD, HeaderValue::from_static("1"));
    let answer = service.ready().await.unwrap().call(copy);
    // Only now: what comes wakes the later attempt, and nobody else.
    let rest = async {
        seen.halfway.notified().await;
        tell.send(()).unwrap();
    };
    let (answer, ()) = tokio::join!(answer, rest);
    let answer = answer.unwrap();
    assert_eq!(answer.status(), 200);
    let echo = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(echo, "first half, second half");
}

/// Reads until `mark` has come, and takes away what was read so far. `None` if the other side closes.
async fn take_until(stream: &mut TcpStream, read: &mut Vec<u8>, mark: &[u8]) -> Option<Vec<u8>> {
    loop {
        if let Some(at) = read.windows(mark.len()).position(|found| found == mark) {
            let rest = read.split_off(at + mark.len());
            return Some(std::mem::replace(read, rest));
        }
        if stream.read_buf(read).await.unwrap_or(0) == 0 {
            return None;
        }
    }
}

/// Refuses uploads when half of them has come, but for those that are marked, and reads on: the connection
/// stays.
async fn refuse_halfway(stream: &mut TcpStream, seen: &Uploads) -> Option<()> {
    let mut read = Vec::new();
    loop {
        let head = take_until(stream, &mut read, b"\r\n\r\n").await?;
        let good = String::from_utf8(head).unwrap().contains(GOOD);
        take_until(stream, &mut read, b"first half, ").await?;
        if good {
            seen.halfway.notify_one();
        } else {
            let refusal = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(refusal).await.ok()?;
        }
        take_until(stream, &mut read, b"0\r\n\r\n").await?;
        if good {
            let echo = b"HTTP/1.1 200 OK\r\ncontent-length: 23\r\n\r\nfirst half, second half";
            stream.write_all(echo).await.ok()?;
        }
    }
}

/// The same for HTTP/2, where the stream stays.
async fn refuse_stream_halfway(
    request: Request<Incoming>,
    seen: Arc<Uploads>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let good = request.headers().contains_key(GOOD);
    let mut body = request.into_body();
    let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
    if good {
        seen.halfway.notify_one();
        let rest = body.collect().await.unwrap().to_bytes();
        return Ok(Response::new([first, rest].concat().into()));
    }
    seen.open.fetch_add(1, Ordering::SeqCst);
    tokio::spawn(async move {
        let _ = body.collect().await;
        seen.open.fetch_sub(1, Ordering::SeqCst);
    });
    Ok(Response::builder().status(503).body(Full::default()).unwrap())
}

// TMO-07
#[tokio::test]
async fn an_upload_that_is_sent_again_leaves_no_more_connections_than_one_that_is_not() {
    for repeats in [false, true] {
        let seen = Arc::new(Uploads::default());
        let noted = seen.clone();
        let (address, accepted) = server(move |mut stream| {
            let seen = noted.clone();
            async move {
                seen.open.fetch_add(1, Ordering::SeqCst);
                refuse_halfway(&mut stream, &seen).await;
                seen.open.fetch_sub(1, Ordering::SeqCst);
            }
        })
        .await;
        let client = client();
        for _ in 0..5 {
            upload(client.clone(), (address, &seen), repeats).await;
        }
        assert!(accepted.load(Ordering::SeqCst) > 0);
        // The one that the client keeps for later.
        eventually(|| seen.open.load(Ordering::SeqCst) == 1).await;
    }
}

// TMO-07
#[tokio::test]
async fn an_upload_that_is_sent_again_leaves_no_stream_open_on_a_connection_of_many() {
    for repeats in [false, true] {
        let seen = Arc::new(Uploads::default());
        let noted = seen.clone();
        let (address, accepted) = server(move |stream| {
            let seen = noted.clone();
            let answers = service_fn(move |request| refuse_stream_halfway(request, seen.clone()));
            async move {
                let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), answers)
                    .await;
            }
        })
        .await;
        let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
        for _ in 0..5 {
            upload(client.clone(), (address, &seen), repeats).await;
        }
        eventually(|| seen.open.load(Ordering::SeqCst) == 0).await;
        assert_eq!(accepted.load(Ordering::SeqCst), 1);
    }
}
