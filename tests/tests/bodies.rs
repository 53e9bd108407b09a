//! Bodies through the standard stack, over real sockets: long ones in bounded memory, and the same bytes and
//! trailers in every attempt.
//!
//! Client and server share one thread, whose allocator is asked for the most that was held at once. What the
//! system keeps in its sockets is not ours, and is not counted.

use std::{
    collections::VecDeque,
    convert::Infallible,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use ::hyper::{body::Incoming, service::service_fn};
use allocation_counter::measure;
use buttress::{
    BoxError, Breaker, BreakerLayer, BudgetSettings, Bulkhead, BulkheadLayer, BulkheadSettings,
    NoFallback, PerKey, Reason, Rejected, RetrySettings, Standard, StandardBuilder, edge, find,
    http::{AtEnd, Authority, ByAuthority, HttpClass, HttpReplay, RecordReplay, WholeBody, hyper},
};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream, stream::BoxStream};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode,
    header::{CONTENT_LENGTH, TE, TRAILER, TRANSFER_ENCODING},
};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use proptest::prelude::*;
use tokio::{net::TcpListener, sync::Notify};
use tower::{Layer, ServiceBuilder, ServiceExt};

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// What is recorded of an upload, in case it has to be sent again.
const CAP: usize = 64 * KIB;
/// More than fits into 32 bits.
const LONG: u64 = 4 << 30;
/// Far more than there may be between a server and a reader.
const MUCH: u64 = 1 << 30;
/// What client and server may hold together: a few frames, windows of 2 MiB, and what was recorded.
const MOST: u64 = 8 << 20;
/// What is in each frame of a long body.
static FRAME: [u8; MIB] = [7; MIB];

const CHECKSUM: HeaderName = HeaderName::from_static("x-checksum");

/// Waits for what must come to pass, and tells how long that took.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = edge::now();
    while !holds() {
        assert!(edge::now() - start < ms(30_000), "it never came to pass that {what}");
        tokio::time::sleep(ms(5)).await;
    }
    println!("{what}: after {:?}", edge::now() - start);
}

/// A stack that records, and whose breakers wait for the end of a body.
fn stack() -> StandardBuilder<
    HttpClass,
    RecordReplay,
    PerKey<Authority, ByAuthority>,
    NoFallback,
    AtEnd<HttpClass>,
> {
    Standard::http()
        .total(ms(600_000))
        .attempt(ms(60_000))
        .retry(RetrySettings::default().base(ms(1)).cap(ms(2)))
        .budget(BudgetSettings::default().reserve(1000))
        .replay(HttpReplay::record(CAP))
        .observe(AtEnd(HttpClass))
}

/// hyper-util's client, with long frames in HTTP/2.
fn client<B>(http2: bool) -> Client<HttpConnector, B>
where
    B: http_body::Body<Data: Send> + Send,
{
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    Client::builder(TokioExecutor::new())
        .http2_only(http2)
        .http2_max_frame_size(Some(MIB as u32))
        .http2_initial_stream_window_size(Some(2 * MIB as u32))
        .http2_initial_connection_window_size(Some(2 * MIB as u32))
        .build(connector)
}

/// Answers as it is told, in HTTP/1.1 and in HTTP/2.
async fn serve<F, B>(
    answer: impl Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
) -> SocketAddr
where
    F: Future<Output = Response<B>> + Send + 'static,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            socket.set_nodelay(true).unwrap();
            let answer = answer.clone();
            tokio::spawn(async move {
                let answer = service_fn(|request| {
                    let answer = answer(request);
                    async { Ok::<_, Infallible>(answer.await) }
                });
                let mut server = auto::Builder::new(TokioExecutor::new());
                server.http2().max_frame_size(MIB as u32);
                server.http2().initial_stream_window_size(2 * MIB as u32);
                server.http2().initial_connection_window_size(2 * MIB as u32);
                let _ = server.serve_connection(TokioIo::new(socket), answer).await;
            });
        }
    });
    addr
}

/// Counts the bytes of frames: how many were made, how many are held now, and at most.
///
/// To allocate four gigabytes takes longer than to send them, so frames are counted and not allocated.
#[derive(Clone, Default)]
struct Held(Arc<[AtomicU64; 3]>);

/// One frame. Whoever keeps it is seen.
struct Counted(usize, Held);

/// So many bytes in long frames. Tells no length.
struct Stream {
    left: u64,
    held: Held,
}

impl Held {
    fn frame(&self, len: usize) -> Bytes {
        let [made, now, most] = &*self.0;
        made.fetch_add(len as u64, SeqCst);
        most.fetch_max(now.fetch_add(len as u64, SeqCst) + len as u64, SeqCst);
        Bytes::from_owner(Counted(len, self.clone()))
    }

    fn made(&self) -> u64 {
        self.0[0].load(SeqCst)
    }

    fn most(&self) -> u64 {
        self.0[2].load(SeqCst)
    }
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &FRAME[..self.0]
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.0[1].fetch_sub(self.0 as u64, SeqCst);
    }
}

impl http_body::Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let len = self.left.min(FRAME.len() as u64);
        self.left -= len;
        Poll::Ready(Some(Ok(Frame::data(self.held.frame(len as usize)))))
    }
}

/// Runs client and server on this thread. What both held at most, must be little.
fn in_bounded_memory<F: Future<Output = ()>>(what: &str, run: impl FnOnce(Held) -> F) {
    let start = edge::now();
    let held = Held::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let allocated = measure(|| runtime.block_on(run(held.clone()))).bytes_max;
    let [frames, allocated] = [held.most(), allocated].map(|bytes| bytes / KIB as u64);
    println!(
        "{what}: {frames} KiB in frames, {allocated} KiB else, after {:?}",
        edge::now() - start
    );
    assert!(frames + allocated < MOST / KIB as u64, "{what}: {frames} KiB and {allocated} KiB");
}

// RET-01
#[test]
fn an_upload_of_four_gigabytes_passes_in_bounded_memory() {
    for http2 in [false, true] {
        in_bounded_memory(&format!("upload, http2: {http2}"), |held| async move {
            let arrived = Arc::new(AtomicU64::new(0));
            let counts = arrived.clone();
            let addr = serve(move |request: Request<Incoming>| {
                let counts = counts.clone();
                async move {
                    let mut body = request.into_body();
                    while let Some(frame) = body.frame().await {
                        let data = frame.unwrap().into_data().unwrap();
                        counts.fetch_add(data.len() as u64, SeqCst);
                    }
                    let mut response = Response::new(Full::<Bytes>::default());
                    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                    response
                }
            })
            .await;
            let client = stack().build().unwrap().layer(hyper(client(http2)));
            let upload = Stream { left: LONG, held };
            let request = Request::put(format!("http://{addr}/")).body(upload).unwrap();
            let response = client.oneshot(request).await.unwrap();
            assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(arrived.load(SeqCst), LONG, "sent once, as it cannot be sent again");
        });
    }
}

// RET-01
#[test]
fn an_endless_download_passes_in_bounded_memory_and_waits_for_a_slow_reader() {
    for http2 in [false, true] {
        in_bounded_memory(&format!("download, http2: {http2}"), |held| async move {
            let made = held.clone();
            let addr = serve(move |_| {
                let endless = Stream { left: u64::MAX, held: held.clone() };
                async move { Response::new(endless) }
            })
            .await;
            let client = stack().build().unwrap().layer(hyper(client(http2)));
            let request = Request::get(format!("http://{addr}/")).body(Full::<Bytes>::default());
            let mut body = client.oneshot(request.unwrap()).await.unwrap().into_body();
            let mut read = 0;
            while read < MUCH {
                read += body.frame().await.unwrap().unwrap().into_data().unwrap().len() as u64;
            }
            // Nobody reads: what is made fills the buffers between, and then no more is made.
            let mut seen = (0, 0);
            until("no more is made", || {
                let same = made.made() == seen.0;
                seen = (made.made(), if same { seen.1 + 1 } else { 0 });
                seen.1 == 20
            })
            .await;
            println!("{} KiB are under way", (seen.0 - read) / KIB as u64);
            // It goes on where it is read on.
            while made.made() == seen.0 {
                body.frame().await.unwrap().unwrap();
            }
        });
    }
}

// === The same in every attempt ===

/// A body as a test wants it.
#[derive(Clone, Debug)]
struct Upload {
    frames: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
    tells_its_length: bool,
    /// Whether the next frame has to be waited for.
    waits: Option<bool>,
}

impl Upload {
    fn bytes(&self) -> Vec<u8> {
        self.frames.iter().flatten().copied().collect()
    }
}

impl http_body::Body for Upload {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(waits) = &mut self.waits {
            *waits = !*waits;
            if *waits {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        let frame = self.frames.pop_front().map(Frame::data);
        let frame = frame.or_else(|| self.trailers.take().map(Frame::trailers));
        Poll::Ready(frame.map(Ok))
    }

    fn size_hint(&self) -> SizeHint {
        match self.tells_its_length {
            true => SizeHint::with_exact(self.frames.iter().map(|data| data.len() as u64).sum()),
            false => SizeHint::default(),
        }
    }
}

/// How much of a request a server reads before it answers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reads {
    All,
    Part,
    Nothing,
}

/// What a server got in one attempt. `None` of trailers, if it did not read so far.
#[derive(Clone, Debug)]
struct Got {
    method: Method,
    headers: HeaderMap,
    bytes: Vec<u8>,
    trailers: Option<Option<HeaderMap>>,
}

/// One request, and how it is answered: with 503 twice, and then with 200.
#[derive(Clone, Debug)]
struct Case {
    http2: bool,
    method: Method,
    upload: Upload,
    reads: [Reads; 2],
}

fn cases() -> impl Strategy<Value = Case> {
    let frame = prop_oneof![1..64_usize, 1..5_000_usize];
    let frames = prop::collection::vec((frame, any::<u8>()), 0..16);
    let trailers = prop::option::of(any::<u16>());
    let method = prop::sample::select(vec![Method::GET, Method::PUT, Method::POST]);
    let reads = || prop::sample::select(vec![Reads::All, Reads::Part, Reads::Nothing]);
    let waits = prop::option::of(any::<bool>());
    let all = (any::<bool>(), method, frames, trailers, any::<bool>(), waits, [reads(), reads()]);
    all.prop_map(|(http2, method, frames, trailers, tells_its_length, waits, reads)| {
        let frames = frames.into_iter().map(|(len, byte)| Bytes::from(vec![byte; len])).collect();
        let trailers = trailers.map(|value| HeaderMap::from_iter([(CHECKSUM, value.into())]));
        // HTTP/1.1 has no trailers where it has a length.
        let tells_its_length = tells_its_length && (http2 || trailers.is_none());
        let upload = Upload { frames, trailers, tells_its_length, waits };
        Case { http2, method, upload, reads }
    })
}

impl Case {
    fn request(&self, addr: SocketAddr) -> Request<Upload> {
        let request = Request::builder().method(&self.method).uri(format!("http://{addr}/orders"));
        let mut request = request.body(self.upload.clone()).unwrap();
        let headers = request.headers_mut();
        if self.method == Method::POST {
            headers.insert("idempotency-key", HeaderValue::from_static("7"));
        }
        if self.upload.trailers.is_some() {
            headers.insert(TRAILER, CHECKSUM.into());
        }
        // A `GET` has no body in HTTP/1.1, unless it says so.
        if !self.http2 && !self.upload.tells_its_length {
            headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        request
    }

    /// Sends it. What the server got, attempt by attempt.
    async fn send(&self) -> Vec<Got> {
        let got = Arc::new(Mutex::new(Vec::new()));
        let (gets, reads) = (got.clone(), self.reads);
        let addr = serve(move |request: Request<Incoming>| {
            let gets = gets.clone();
            async move {
                let (head, mut body) = request.into_parts();
                let (method, headers) = (head.method, head.headers);
                let attempt = {
                    let mut gets = gets.lock().unwrap();
                    gets.push(Got { method, headers, bytes: Vec::new(), trailers: None });
                    gets.len()
                };
                let reads = reads.get(attempt - 1).copied().unwrap_or(Reads::All);
                let (mut bytes, mut trailers) = (Vec::new(), None);
                if reads != Reads::Nothing {
                    let whole = loop {
                        let Some(frame) = body.frame().await else { break true };
                        match frame.unwrap().into_data() {
                            Ok(data) => bytes.extend_from_slice(&data),
                            Err(frame) => trailers = frame.into_trailers().ok(),
                        }
                        if reads == Reads::Part {
                            break false;
                        }
                    };
                    let got = &mut gets.lock().unwrap()[attempt - 1];
                    (got.bytes, got.trailers) = (bytes, whole.then_some(trailers));
                }
                let mut response = Response::new(Full::<Bytes>::from("answer"));
                if attempt < 3 {
                    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                }
                response
            }
        })
        .await;
        let client = stack().build().unwrap().layer(hyper(client(self.http2)));
        let response = client.oneshot(self.request(addr)).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let body = response.into_body();
        assert_eq!(body.size_hint().exact(), Some(6), "of the answer");
        assert_eq!(body.collect().await.unwrap().to_bytes(), "answer");
        std::mem::take(&mut *got.lock().unwrap())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..Default::default() })]

    // RET-05
    #[test]
    fn what_a_server_gets_is_the_same_in_every_attempt(case in cases()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut got = runtime.block_on(case.send());
        prop_assert_eq!(got.len(), 3);
        let bytes = case.upload.bytes();
        for got in &got {
            prop_assert_eq!(&got.method, &case.method);
            match &got.trailers {
                Some(trailers) => {
                    prop_assert_eq!(&got.bytes, &bytes);
                    prop_assert_eq!(trailers, &case.upload.trailers);
                }
                None => prop_assert!(bytes.starts_with(&got.bytes)),
            }
        }
        prop_assert!(got[2].trailers.is_some(), "the last one was read to its end");
        for got in &mut got {
            // How a body is framed is hyper's. A copy of what was read to its end tells a length that was not
            // known at first.
            got.headers.remove(TRANSFER_ENCODING);
            match got.headers.remove(CONTENT_LENGTH) {
                Some(told) => prop_assert_eq!(told.to_str().unwrap(), bytes.len().to_string()),
                None => prop_assert!(!case.upload.tells_its_length || bytes.is_empty()),
            }
        }
        prop_assert!(got.iter().all(|one| one.headers == got[0].headers));
    }
}

// === Permits ===

type Answer = StreamBody<BoxStream<'static, Result<Frame<Bytes>, BoxError>>>;

/// A frame; when the bell rings an end with trailers, an error, or nothing at all, as the path says.
fn answer(path: &str, bell: Arc<Notify>) -> Response<Answer> {
    let frame = Ok(Frame::data(Bytes::from_static(b"frame")));
    let trailers = HeaderMap::from_iter([(CHECKSUM, 7.into())]);
    let rest = match path {
        "/whole" => stream::iter([Ok(Frame::trailers(trailers))]).boxed(),
        "/breaks" => stream::iter([Err("the server's disk".into())]).boxed(),
        _ => stream::pending().boxed(),
    };
    let rest = async move { bell.notified().await }.map(|()| rest).flatten_stream();
    let body = StreamBody::new(stream::iter([frame]).chain(rest).boxed());
    Response::builder().header(TRAILER, CHECKSUM).body(body).unwrap()
}

// TMO-02
#[tokio::test]
async fn slots_and_verdicts_are_held_until_a_body_ends_breaks_or_is_let_go_of() {
    for http2 in [false, true] {
        let bell = Arc::new(Notify::new());
        let rings = bell.clone();
        let addr = serve(move |request| {
            let answer = answer(request.uri().path(), rings.clone());
            async { answer }
        })
        .await;
        let bulkhead = Bulkhead::new(BulkheadSettings::new(1)).unwrap();
        let breaker = Breaker::default();
        let service = ServiceBuilder::new()
            .layer(BulkheadLayer::new(bulkhead.clone()).until(AtEnd(WholeBody)))
            .layer(BreakerLayer::new(breaker.clone()).classify(AtEnd(HttpClass)))
            .service(hyper(client::<Full<Bytes>>(http2)));
        let ask = |path| {
            let uri = format!("http://{addr}{path}");
            let request = Request::get(uri).header(TE, "trailers").body(Full::default());
            service.clone().oneshot(request.unwrap())
        };
        let verdicts = || {
            let stats = breaker.stats();
            (stats.success, stats.failure, stats.dropped)
        };
        for (path, expected) in
            [("/whole", (1, 0, 0)), ("/breaks", (1, 1, 0)), ("/hangs", (1, 1, 1))]
        {
            let before = verdicts();
            let mut body = ask(path).await.unwrap().into_body();
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "frame");
            assert_eq!((bulkhead.in_flight(), verdicts()), (1, before), "{path}: there is more");
            let error = ask(path).await.unwrap_err();
            assert_eq!(find(&*error).map(Rejected::reason), Some(Reason::BulkheadFull));
            bell.notify_one();
            match path {
                "/whole" => {
                    let rest = body.collect().await.unwrap();
                    assert_eq!(rest.trailers().unwrap()[CHECKSUM], "7");
                }
                "/breaks" => drop(body.collect().await.unwrap_err()),
                _ => drop(body),
            }
            assert_eq!((bulkhead.in_flight(), verdicts()), (0, expected), "{path}");
        }
    }
}
