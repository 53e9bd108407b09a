//! What others ran into, tried on layers together. `docs/cases.md` tells what the ids stand for.

use std::{
    collections::VecDeque,
    convert::Infallible,
    fmt,
    future::ready,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, SystemTime},
};

use buttress::{
    Backoff, BoxError, Breaker, BreakerLayer, BreakerSettings, Budget, BudgetSettings, Bulkhead,
    BulkheadLayer, BulkheadSettings, DeadlineLayer, Elapsed, FixedLimit, Limit, Reason, Rejected,
    RetryLayer, RetrySettings, Shed, ShedLayer, ShedSettings, Standard, edge,
    http::{Body, HttpClass, HttpReplay, Idempotent, hyper},
};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, Method, Request, Response, Uri, Version, header::RETRY_AFTER};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use tokio::time::{Instant, sleep};
use tower::{Layer, Service, ServiceExt, service_fn};

const ZERO: Duration = Duration::ZERO;
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A retry that does not wait by itself and never lacks a token.
fn retry() -> RetryLayer {
    let budget = Budget::new(BudgetSettings::default().reserve(1000)).unwrap();
    RetryLayer::new(Backoff::none(), budget)
}

// === What is sent ===

/// What one attempt sent.
#[derive(Debug, PartialEq)]
struct Sent {
    method: Method,
    uri: Uri,
    version: Version,
    headers: HeaderMap,
    extension: Option<u32>,
    body: Bytes,
    trailers: Option<HeaderMap>,
}

/// Reads each request to its end, and answers by its script.
#[derive(Clone)]
struct Callee {
    script: Arc<Mutex<VecDeque<Result<u16, io::Error>>>>,
    sent: Arc<Mutex<Vec<Sent>>>,
}

impl Callee {
    fn new(script: impl IntoIterator<Item = Result<u16, io::Error>>) -> Self {
        let script = Arc::new(Mutex::new(script.into_iter().collect()));
        Self { script, sent: Arc::default() }
    }

    async fn answer<B>(self, request: Request<B>) -> Result<Response<Full<Bytes>>, BoxError>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(Into::into)?;
        let trailers = body.trailers().cloned();
        self.sent.lock().unwrap().push(Sent {
            method: head.method,
            uri: head.uri,
            version: head.version,
            headers: head.headers,
            extension: head.extensions.get().copied(),
            body: body.to_bytes(),
            trailers,
        });
        let status = self.script.lock().unwrap().pop_front().expect("the script goes on")?;
        Ok(Response::builder().status(status).body(Full::default()).unwrap())
    }
}

/// Sends the request through a retry that records so many bytes: the answer, and what each attempt sent.
async fn recorded<B>(
    cap: usize,
    request: Request<B>,
    script: impl IntoIterator<Item = Result<u16, io::Error>>,
) -> (Result<u16, BoxError>, Vec<Sent>)
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let callee = Callee::new(script);
    let sent = callee.sent.clone();
    let signatures = Arc::new(AtomicUsize::new(0));
    let signed = service_fn(move |mut request: Request<_>| {
        // Appended, as by a layer beneath that signs.
        let signature = signatures.fetch_add(1, SeqCst).into();
        request.headers_mut().append("x-signature", signature);
        callee.clone().answer(request)
    });
    let layer = retry().classify(HttpClass).replay(HttpReplay::record(cap));
    let answer = layer.layer(signed).oneshot(request).await;
    let sent = std::mem::take(&mut *sent.lock().unwrap());
    (answer.map(|response| response.status().as_u16()), sent)
}

/// A body that does not tell its length.
fn streamed(
    chunks: impl IntoIterator<Item = Bytes, IntoIter: Send>,
) -> impl http_body::Body<Data = Bytes, Error = Infallible> {
    let frames: Vec<_> = chunks.into_iter().map(|chunk| Ok(Frame::data(chunk))).collect();
    StreamBody::new(stream::iter(frames))
}

fn busy(attempts: usize) -> impl Iterator<Item = Result<u16, io::Error>> {
    std::iter::repeat_with(|| Ok(503)).take(attempts)
}

// RET-01
#[tokio::test(start_paused = true)]
async fn an_upload_beyond_the_cap_arrives_whole_is_sent_once_and_keeps_its_answer() {
    const CHUNK: usize = 64 * 1024;
    let whole = Bytes::from(vec![7; 64 * CHUNK]);
    let chunks = (0..64).map(|n| whole.slice(n * CHUNK..(n + 1) * CHUNK)).collect::<Vec<_>>();
    for script in [vec![Ok(200)], vec![Ok(503)]] {
        let status = *script[0].as_ref().unwrap();
        let unknown = Request::put("/").body(streamed(chunks.clone())).unwrap();
        let (answer, sent) = recorded(CHUNK, unknown, script).await;
        assert_eq!((answer.unwrap(), sent.len()), (status, 1));
        assert!(sent[0].body == whole);

        let known = Request::put("/").body(Full::new(whole.clone())).unwrap();
        let (answer, sent) = recorded(CHUNK, known, [Ok(status)]).await;
        assert_eq!((answer.unwrap(), sent.len()), (status, 1));
        assert!(sent[0].body == whole);
    }
}

// RET-02
#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_tell_its_length_is_sent_again_whole() {
    let bodies: [&[&str]; 3] = [&["hello"], &["he", "", "llo"], &[]];
    for chunks in bodies {
        let body = streamed(chunks.iter().map(|chunk| Bytes::from(*chunk)).collect::<Vec<_>>());
        let request = Request::post("/").extension(Idempotent(true)).body(body).unwrap();
        let (answer, sent) = recorded(5, request, [Ok(503), Ok(200)]).await;
        assert_eq!(answer.unwrap(), 200);
        let bodies: Vec<_> = sent.iter().map(|sent| &sent.body[..]).collect();
        assert_eq!(bodies, [chunks.concat().as_bytes(); 2]);
    }
}

// RET-04
#[tokio::test(start_paused = true)]
async fn what_cannot_be_sent_again_goes_through_once_with_its_own_result() {
    let upload = || Request::put("/").body(streamed([Bytes::from("too long")])).unwrap();
    let (answer, sent) = recorded(4, upload(), [Ok(200)]).await;
    assert_eq!((answer.unwrap(), sent.len()), (200, 1));
    let reset = io::Error::new(io::ErrorKind::ConnectionReset, "its own");
    let (answer, sent) = recorded(4, upload(), [Err(reset)]).await;
    let error = answer.unwrap_err().downcast::<io::Error>().expect("the callee's, as it is");
    assert_eq!((error.to_string(), sent.len()), ("its own".to_owned(), 1));
}

// RET-05, RET-13
#[tokio::test(start_paused = true)]
async fn attempts_differ_in_nothing_but_the_signature_that_each_got() {
    let frames = [
        Ok::<_, Infallible>(Frame::data(Bytes::from("te"))),
        Ok(Frame::data(Bytes::from("a"))),
        Ok(Frame::trailers(HeaderMap::from_iter([(RETRY_AFTER, "7".parse().unwrap())]))),
    ];
    let request = Request::put("https://a.test/b?c=d")
        .version(Version::HTTP_2)
        .header("x-one", "1")
        .header("x-one", "2")
        .extension(7_u32)
        .body(StreamBody::new(stream::iter(frames)))
        .unwrap();
    let (answer, mut sent) = recorded(64, request, [Ok(503), Ok(503), Ok(200)]).await;
    assert_eq!((answer.unwrap(), sent.len()), (200, 3));
    for (n, sent) in sent.iter_mut().enumerate() {
        let signatures: Vec<_> = sent.headers.get_all("x-signature").iter().cloned().collect();
        assert_eq!(signatures, [n.to_string()], "one, and its own");
        sent.headers.remove("x-signature");
    }
    assert!(sent[0] == sent[1] && sent[1] == sent[2], "{sent:?}");
    let Sent { method, uri, version, headers, extension, body, trailers } = &sent[2];
    assert_eq!((method, uri.to_string().as_str()), (&Method::PUT, "https://a.test/b?c=d"));
    assert_eq!((*version, headers.get_all("x-one").iter().count()), (Version::HTTP_2, 2));
    assert_eq!((*extension, &body[..]), (Some(7), &b"tea"[..]));
    assert_eq!(trailers.as_ref().unwrap()[RETRY_AFTER], "7");
}

// RET-11
#[tokio::test(start_paused = true)]
async fn a_method_with_side_effects_is_repeated_only_on_demand_or_when_nothing_was_sent() {
    let refused = || Err(io::Error::from(io::ErrorKind::ConnectionRefused));
    let reset = || Err(io::Error::from(io::ErrorKind::ConnectionReset));
    for (method, safe) in [
        ("GET", true),
        ("HEAD", true),
        ("OPTIONS", true),
        ("TRACE", true),
        ("PUT", true),
        ("DELETE", true),
        ("POST", false),
        ("PATCH", false),
    ] {
        let plain = || Request::builder().method(method).uri("/");
        let key = || plain().header("idempotency-key", "k");
        let told = || plain().extension(Idempotent(true));
        let once = || plain().extension(Idempotent(false));
        let often = if safe { 3 } else { 1 };
        for (builder, attempts) in [(plain(), often), (key(), 3), (told(), 3), (once(), 1)] {
            let request = builder.body(Full::from("x")).unwrap();
            assert_eq!(recorded(9, request, busy(3)).await.1.len(), attempts, "{method}");
        }
        for (builder, attempts) in [(plain(), often), (key(), 3)] {
            let request = builder.body(Full::from("x")).unwrap();
            let (answer, sent) = recorded(9, request, [reset(), reset(), reset()]).await;
            assert!(answer.is_err());
            assert_eq!(sent.len(), attempts, "{method}: it may have been carried out");
        }
        let request = once().body(Full::from("x")).unwrap();
        let (answer, sent) = recorded(9, request, [refused(), refused(), refused()]).await;
        assert!(answer.is_err());
        assert_eq!(sent.len(), 3, "{method}: nothing was sent");
    }
}

// === What the caller gets ===

/// An error that holds what cannot be cloned, and a response that cannot either.
#[derive(Debug)]
struct Failed(u32, #[expect(dead_code, reason = "it cannot be cloned")] io::Error);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "failure {}", self.0)
    }
}

impl std::error::Error for Failed {}

struct Unique(u32);

// RET-09
#[tokio::test(start_paused = true)]
async fn the_whole_stack_returns_the_last_error_by_value_and_clones_neither_it_nor_an_answer() {
    for fails in [3, 2] {
        let calls = Arc::new(AtomicUsize::new(0));
        let inner = service_fn(move |(): ()| {
            let nth = calls.fetch_add(1, SeqCst) as u32 + 1;
            ready(if nth > fails {
                Ok(Unique(nth))
            } else {
                Err(Failed(nth, io::ErrorKind::ConnectionReset.into()))
            })
        });
        let answer = Standard::generic().build().unwrap().layer(inner).oneshot(()).await;
        match answer {
            Ok(unique) => assert_eq!((unique.0, fails), (3, 2)),
            Err(error) => assert_eq!((error.downcast::<Failed>().unwrap().0, fails), (3, 3)),
        }
    }
}

// BUD-06, CBK-12
#[tokio::test(start_paused = true)]
async fn nobody_knocks_twice_at_a_door_of_ours_that_is_shut() {
    async fn refused<S>(guarded: S) -> Reason
    where
        S: Service<u32, Response = u32, Error = BoxError> + Clone,
    {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        let guarded = guarded.map_request(move |n| {
            counted.fetch_add(1, SeqCst);
            n
        });
        let budget = Budget::default();
        let layer = RetryLayer::new(Backoff::default(), budget.clone()).attempts(5);
        let start = edge::now();
        let error = layer.layer(guarded).oneshot(1).await.unwrap_err();
        assert_eq!((asked.load(SeqCst), edge::now() - start), (1, ZERO), "{error}");
        assert_eq!(budget.stats().granted, 0);
        error.downcast_ref::<Rejected>().expect("the refusal itself").reason()
    }
    let never = || service_fn(|_: u32| async { Err::<u32, BoxError>("it is not asked".into()) });

    let breaker = Breaker::default();
    breaker.force_open();
    assert_eq!(refused(BreakerLayer::new(breaker).layer(never())).await, Reason::CircuitOpen);

    let bulkhead = Bulkhead::new(BulkheadSettings::new(1)).unwrap();
    let _slot = bulkhead.try_acquire().unwrap();
    assert_eq!(refused(BulkheadLayer::new(bulkhead).layer(never())).await, Reason::BulkheadFull);

    let settings = ShedSettings::default().max_queue(0);
    let shed = Shed::new(FixedLimit::new(1).unwrap(), settings).unwrap();
    let _permit = shed.try_admit(buttress::Priority::Critical).unwrap();
    assert_eq!(refused(ShedLayer::new(shed).layer(never())).await, Reason::Overloaded);
}

// === Time ===

/// Asks a callee that answers so at first and with 200 then: what the caller got, and when attempts came.
async fn told_to_wait(status: u16, after: &str) -> (Response<Body<Full<Bytes>>>, Vec<Duration>) {
    let start: Instant = edge::now();
    let times = Arc::new(Mutex::new(Vec::new()));
    let log = times.clone();
    let after = after.to_owned();
    let callee = service_fn(move |_: Request<Full<Bytes>>| {
        let mut log = log.lock().unwrap();
        let first = log.is_empty();
        log.push(edge::now() - start);
        let builder = Response::builder().header(RETRY_AFTER, &after);
        let response = builder.status(if first { status } else { 200 }).body(Full::default());
        ready(Ok::<_, Infallible>(response.unwrap()))
    });
    let backoff = RetrySettings::default().base(100 * MS).cap(100 * MS);
    let stack = Standard::http().total(30 * SECOND).retry(backoff).build().unwrap();
    let request = Request::get("http://a.test/").body(Full::default()).unwrap();
    let response = stack.layer(hyper(callee)).oneshot(request).await.unwrap();
    let times = std::mem::take(&mut *times.lock().unwrap());
    (response, times)
}

// BKO-07, BKO-08, BKO-09
#[tokio::test(start_paused = true)]
async fn the_time_that_an_answer_asks_for_is_kept_ignored_or_too_long() {
    edge::seed(1);
    let seven = 7 * SECOND..=7 * SECOND + 101 * MS;
    let schedule = ZERO..=101 * MS;
    // Fri, 13 Feb 2009 23:31:30 GMT.
    let noted = SystemTime::UNIX_EPOCH + Duration::from_secs(1_234_567_890);
    for status in [429, 503] {
        for (after, due) in [
            ("7", &seven),
            ("Fri, 13 Feb 2009 23:31:37 GMT", &seven),
            ("Friday, 13-Feb-09 23:31:37 GMT", &seven),
            ("Fri Feb 13 23:31:37 2009", &seven),
            ("Wed, 21 Oct 1998 07:28:00 GMT", &schedule),
            ("0", &schedule),
            ("", &schedule),
            ("7.5", &schedule),
            ("-1", &schedule),
            ("soon", &schedule),
        ] {
            edge::set_wall(noted);
            let (response, times) = told_to_wait(status, after).await;
            assert_eq!((response.status().as_u16(), times.len()), (200, 2), "{status} {after}");
            assert!(due.contains(&times[1]), "{status} {after}: {times:?}");
        }
        // Neither do 40 s fit into what is left of 30, nor is an hour waited for.
        for after in ["40", "3600", "99999999999999999999999", "Sat, 14 Feb 2009 23:31:37 GMT"] {
            edge::set_wall(noted);
            let start = edge::now();
            let (response, times) = told_to_wait(status, after).await;
            assert_eq!((response.status().as_u16(), times), (status, vec![ZERO]), "{after}");
            assert_eq!(response.headers()[RETRY_AFTER], after, "for the caller to obey");
            assert_eq!(edge::now() - start, ZERO);
        }
    }
}

// TMO-01
#[tokio::test(start_paused = true)]
async fn a_full_bulkhead_is_waited_for_until_the_deadline_and_not_an_hour() {
    let settings = BulkheadSettings::new(1).max_waiting(9).max_wait(Duration::MAX);
    let bulkhead = Bulkhead::new(settings.clone()).unwrap();
    let echo = service_fn(|n: u32| ready(Ok::<_, Infallible>(n)));
    let mut spelled_out =
        DeadlineLayer::new(10 * MS).layer(BulkheadLayer::new(bulkhead.clone()).layer(echo));
    let stack = Standard::generic().total(10 * MS).attempt(10 * MS).attempts(1);
    let settings = settings.max_wait(9 * MS);
    let stack = stack.bulkhead(settings).with_bulkhead(bulkhead.clone()).build().unwrap();
    let mut standard = stack.layer(echo);

    let slot = bulkhead.try_acquire().unwrap();
    let holder = tokio::spawn(async move {
        sleep(3600 * SECOND).await;
        drop(slot);
    });
    for _ in 0..3 {
        let start = edge::now();
        let error = spelled_out.ready().await.unwrap().call(1).await.unwrap_err();
        assert_eq!(error.downcast_ref(), Some(&Elapsed::new(Limit::Total, 10 * MS)));
        assert_eq!(edge::now() - start, 10 * MS);

        let start = edge::now();
        let error = standard.ready().await.unwrap().call(1).await.unwrap_err();
        let refused = error.downcast_ref().map(Rejected::reason);
        assert_eq!(refused, Some(Reason::DeadlineExceeded), "{error}: nothing was sent");
        assert_eq!(edge::now() - start, 10 * MS);
    }
    holder.await.unwrap();
    assert_eq!(spelled_out.ready().await.unwrap().call(2).await.unwrap(), 2);
    assert_eq!(standard.ready().await.unwrap().call(3).await.unwrap(), 3);
}

// === Many hosts ===

// CBK-11
#[tokio::test(start_paused = true)]
async fn in_the_http_stack_one_bad_host_does_not_cut_off_another() {
    let called = Arc::new(Mutex::new(Vec::new()));
    let log = called.clone();
    let callee = service_fn(move |request: Request<Full<Bytes>>| {
        let host = request.uri().host().unwrap().to_owned();
        let status = if host == "bad.test" { 500 } else { 200 };
        log.lock().unwrap().push(host);
        ready(Response::builder().status(status).body(Full::<Bytes>::default()))
    });
    let breaker = BreakerSettings::default().min_calls(10);
    let stack = Standard::http().attempts(1).breaker(breaker).build().unwrap();
    let service = stack.layer(hyper(callee));
    let send = |uri: &'static str| {
        service.clone().oneshot(Request::get(uri).body(Full::<Bytes>::default()).unwrap())
    };
    for _ in 0..10 {
        assert_eq!(send("http://bad.test/").await.unwrap().status(), 500);
        assert_eq!(send("http://good.test/").await.unwrap().status(), 200);
    }
    let refused = send("http://bad.test/").await.unwrap_err();
    assert_eq!(refused.downcast_ref().map(Rejected::reason), Some(Reason::CircuitOpen));
    assert_eq!(send("http://good.test/").await.unwrap().status(), 200);
    assert_eq!(called.lock().unwrap().len(), 21, "the bad one was spared");
}

/// Paid, but could not tell the auditor.
#[derive(Debug)]
struct Audit(io::Error);

impl fmt::Display for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("paid, but could not tell the auditor")
    }
}

impl std::error::Error for Audit {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

// RET-11
#[tokio::test(start_paused = true)]
async fn a_service_that_paid_and_then_could_not_reach_another_is_not_asked_to_pay_again() {
    type Failed = fn() -> BoxError;
    let refused = || Audit(io::ErrorKind::ConnectionRefused.into()).into();
    // Handed on with `?`, as a client of its own said them.
    let not_ready = || Elapsed::new(Limit::Attempt, SECOND).unsent().into();
    let open = || Rejected::new(Reason::CircuitOpen, "breaker").into();
    for failed in [refused as Failed, not_ready, open] {
        let paid = Arc::new(AtomicUsize::new(0));
        let counted = paid.clone();
        let payments = service_fn(move |_: Request<Full<Bytes>>| {
            counted.fetch_add(1, SeqCst);
            ready(Err::<Response<Full<Bytes>>, _>(failed()))
        });
        let client = Standard::http().build().unwrap().layer(hyper(payments));
        let payment = Request::post("http://bank.test/").body(Full::from("all")).unwrap();
        let error = client.oneshot(payment).await.map(drop).unwrap_err();
        assert_eq!(paid.load(SeqCst), 1, "{error}");
    }
}
