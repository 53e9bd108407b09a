//! The one-liner and the spelled-out stack are the same stack, and each runs the same way twice.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{self, Poll},
    time::Duration,
};

use buttress::{
    Backoff, BoxError, BreakerLayer, BreakerSettings, Breakers, Budget, Bulkhead, BulkheadLayer,
    Cause, Context, DeadlineLayer, FallbackLayer, RetryLayer, Standard, Substitute, TimeoutLayer,
    Window, edge,
    http::{Body, ByAuthority, HttpClass, HttpReplay, hyper},
};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::time::{Instant, sleep};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// What happened, in the order in which it did. Times are since the start, to the nanosecond.
#[derive(Clone, Debug, PartialEq)]
enum Event {
    /// The callee was called.
    Called { at: Duration, request: usize, attempt: u32, left: Option<Duration> },
    /// The caller got its answer.
    Answered { at: Duration, request: usize, answer: String },
}

#[derive(Clone, Default)]
struct Trace(Arc<Mutex<Vec<Event>>>);

impl Trace {
    fn push(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }
}

/// What the callee does at that time: healthy, hanging, failing, slow, refusing, healthy again.
async fn callee(start: Instant, request: usize) -> Result<Response<Full<Bytes>>, BoxError> {
    let status = |status| {
        let mut response = Response::new(Full::from(format!("{request}")));
        *response.status_mut() = status;
        Ok(response)
    };
    let second = (edge::now() - start).as_secs();
    sleep(ms(3 + request as u64 % 7)).await;
    match second {
        10..20 => std::future::pending().await,
        20..30 if request.is_multiple_of(5) => {
            let mut response: Result<Response<_>, BoxError> =
                status(StatusCode::SERVICE_UNAVAILABLE);
            let value = http::HeaderValue::from_static("1");
            response.as_mut().unwrap().headers_mut().insert("retry-after", value);
            response
        }
        20..30 => status(StatusCode::INTERNAL_SERVER_ERROR),
        30..40 => {
            sleep(ms(350)).await;
            status(StatusCode::OK)
        }
        40..45 => Err(io::Error::from(io::ErrorKind::ConnectionReset).into()),
        45..50 => Err(io::Error::from(io::ErrorKind::ConnectionRefused).into()),
        _ if request.is_multiple_of(11) => status(StatusCode::NOT_FOUND),
        _ => status(StatusCode::OK),
    }
}

fn busy<B>(_: &Cause<Response<Body<B>>>) -> Response<Body<B>> {
    let mut response = Response::new(Body::from("busy"));
    *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    response
}

fn breaker() -> BreakerSettings {
    BreakerSettings::default()
        .window(Window::time(ms(3000)))
        .open(ms(1000))
        .open_max(ms(4000))
        .slow_call(ms(200))
}

/// Runs ten thousand requests, one each 6 ms, and tells what happened.
fn run<S: Client>(stack: impl FnOnce(Callee) -> S) -> Vec<Event> {
    edge::seed(7);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let start = edge::now();
        let trace = Trace::default();
        let service = stack(Callee { start, trace: trace.clone() });
        let mut running = tokio::task::JoinSet::new();
        for request in 0..10_000 {
            tokio::time::sleep_until(start + ms(6) * request as u32).await;
            let (service, trace) = (service.clone(), trace.clone());
            running.spawn_local(async move {
                let host = ["a", "b", "c"][request % 3];
                let builder = match request % 4 {
                    0 => Request::post(format!("http://{host}.test/")),
                    _ => Request::get(format!("http://{host}.test/")),
                };
                let body = Full::from(format!("{request}"));
                let answer = match service.oneshot(builder.body(body).unwrap()).await {
                    Ok(response) => {
                        let by = match response.extensions().get::<Substitute>() {
                            Some(why) => format!(" for {why:?}"),
                            None => String::new(),
                        };
                        format!("{}{by}", response.status())
                    }
                    Err(error) => error.to_string(),
                };
                trace.push(Event::Answered { at: edge::now() - start, request, answer });
            });
        }
        while running.join_next().await.is_some() {}
        trace.0.lock().unwrap().clone()
    })
}

/// What both stacks are.
trait Client:
    Service<
        Request<Full<Bytes>>,
        Response = Response<Body<Full<Bytes>>>,
        Error = BoxError,
        Future: 'static,
    > + Clone
    + 'static
{
}

impl<S> Client for S where
    S: Service<
            Request<Full<Bytes>>,
            Response = Response<Body<Full<Bytes>>>,
            Error = BoxError,
            Future: 'static,
        > + Clone
        + 'static
{
}

/// The callee, as a client that answers `Full` bodies.
#[derive(Clone)]
struct Callee {
    start: Instant,
    trace: Trace,
}

impl Service<Request<Full<Bytes>>> for Callee {
    type Response = Response<Full<Bytes>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>>>>;

    fn poll_ready(&mut self, _: &mut task::Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Full<Bytes>>) -> Self::Future {
        let Self { start, trace } = self.clone();
        let called = Context::current();
        Box::pin(async move {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let request = std::str::from_utf8(&body).unwrap().parse().unwrap();
            let now = edge::now();
            trace.push(Event::Called {
                at: now - start,
                request,
                attempt: called.attempt(),
                left: called.deadline().map(|deadline| deadline.left(now)),
            });
            callee(start, request).await
        })
    }
}

fn one_line(callee: Callee) -> impl Client {
    Standard::http()
        .total(ms(1500))
        .attempt(ms(400))
        .breaker(breaker())
        .fallback(busy)
        .build()
        .unwrap()
        .layer(hyper(callee))
}

fn spelled_out(callee: Callee) -> impl Client {
    ServiceBuilder::new()
        .layer(FallbackLayer::respond_with(busy).classify(HttpClass))
        .layer(BulkheadLayer::new(Bulkhead::default()))
        .layer(DeadlineLayer::new(ms(1500)))
        .layer(
            RetryLayer::new(Backoff::default(), Budget::default())
                .classify(HttpClass)
                .replay(HttpReplay),
        )
        .layer(
            BreakerLayer::new(Breakers::new(breaker(), ByAuthority).unwrap()).classify(HttpClass),
        )
        .layer(TimeoutLayer::new(ms(400)))
        .service(hyper(callee))
}

#[test]
fn the_one_liner_and_the_spelled_out_stack_are_the_same_stack() {
    let (short, long) = (run(one_line), run(spelled_out));
    assert_eq!(short.len(), long.len());
    for (short, long) in short.iter().zip(&long) {
        assert_eq!(short, long);
    }
    // The script brings out all that the stack can say.
    let answers = |text: &str| {
        let told = |event: &&Event| matches!(event, Event::Answered { answer, .. } if answer.contains(text));
        short.iter().filter(told).count()
    };
    assert_eq!(
        short.iter().filter(|event| matches!(event, Event::Answered { .. })).count(),
        10_000
    );
    for text in ["200", "404", "CircuitOpen", "Unreachable", "Transient"] {
        assert!(answers(text) > 0, "no answer tells of {text}");
    }
    for attempt in [2, 3] {
        let called =
            |event: &Event| matches!(event, Event::Called { attempt: n, .. } if *n == attempt);
        assert!(short.iter().any(called), "attempt {attempt} is never made");
    }
}

#[test]
fn a_seeded_stack_runs_the_same_way_twice_to_the_nanosecond() {
    assert_eq!(run(one_line), run(one_line));
}
