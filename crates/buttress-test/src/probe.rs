use std::{
    collections::VecDeque,
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use buttress_core::BoxError;
use tokio::time::{Sleep, sleep};
use tower_service::Service;

/// An inner service that watches how it is used.
///
/// It panics when the contract of [`Service`] is broken: when it is called without readiness of its own,
/// twice for one readiness, or after its readiness failed. A layer above may catch that, so it is counted
/// as well: see [`violations`](Self::violations). Clones share everything but their readiness.
///
/// ```
/// use buttress_test::{Act, Probe};
/// use tower::{Service, ServiceExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let mut probe = Probe::new(|n: u32| n + 1);
/// probe.script([Act::Fail("down".into()), Act::Answer]);
/// assert!(probe.ready().await.unwrap().call(1).await.is_err());
/// assert_eq!(probe.ready().await.unwrap().call(1).await.unwrap(), 2);
/// assert_eq!((probe.calls(), probe.in_flight()), (2, 0));
/// # }
/// ```
pub struct Probe<Req, Res> {
    shared: Arc<Shared<Req, Res>>,
    readied: Readied,
}

/// What the probe does with a call.
#[derive(Debug)]
pub enum Act {
    /// Answers at once.
    Answer,
    /// Fails at once.
    Fail(BoxError),
    /// Answers after so many polls that are pending and wake at once.
    Steps(u32),
    /// Answers after a while.
    Delay(Duration),
    /// Never answers.
    Hang,
    /// Panics in `call`.
    PanicInCall,
    /// Panics when its future is polled.
    PanicInPoll,
}

/// What the probe says when it is asked whether it is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// It is.
    Ready,
    /// Not yet.
    Pending,
    /// It never will be.
    Failed,
}

/// The future of a call to a [`Probe`]. It is in flight until it is done or dropped.
pub struct ProbeFuture<Req, Res> {
    state: State<Res>,
    shared: Arc<Shared<Req, Res>>,
    in_flight: bool,
}

enum State<Res> {
    Answer { steps: u32, response: Option<Res> },
    Delay { sleep: Pin<Box<Sleep>>, response: Option<Res> },
    Fail(Option<BoxError>),
    Hang,
    Panic,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Readied {
    No,
    Yes,
    Failed,
}

struct Shared<Req, Res> {
    answer: Box<dyn Fn(Req) -> Res + Send + Sync>,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    script: VecDeque<Act>,
    readiness: Option<Readiness>,
    waiting: Vec<Waker>,
    polled_ready: usize,
    calls: usize,
    in_flight: usize,
    max_in_flight: usize,
    violations: usize,
}

// === impl Probe ===

impl<Req, Res> Probe<Req, Res> {
    /// A probe that is ready, and answers what `answer` makes of the request.
    pub fn new(answer: impl Fn(Req) -> Res + Send + Sync + 'static) -> Self {
        let shared = Shared { answer: Box::new(answer), log: Mutex::default() };
        Self { shared: Arc::new(shared), readied: Readied::No }
    }

    /// What the next calls do, one after the other. After them it answers.
    pub fn script(&self, acts: impl IntoIterator<Item = Act>) {
        self.log().script.extend(acts);
    }

    /// What it says from now on when it is asked whether it is ready. Wakes whoever waits.
    pub fn set_readiness(&self, readiness: Readiness) {
        let waiting = {
            let mut log = self.log();
            log.readiness = Some(readiness);
            std::mem::take(&mut log.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// How often it was asked whether it is ready.
    pub fn polled_ready(&self) -> usize {
        self.log().polled_ready
    }

    /// How often it was called.
    pub fn calls(&self) -> usize {
        self.log().calls
    }

    /// How many of its futures are neither done nor dropped.
    pub fn in_flight(&self) -> usize {
        self.log().in_flight
    }

    /// How many were at most.
    pub fn max_in_flight(&self) -> usize {
        self.log().max_in_flight
    }

    /// How often the contract was broken.
    pub fn violations(&self) -> usize {
        self.log().violations
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.shared.log()
    }
}

impl<Req, Res> Clone for Probe<Req, Res> {
    /// The clone has not been polled ready.
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), readied: Readied::No }
    }
}

impl<Req, Res> Service<Req> for Probe<Req, Res> {
    type Response = Res;
    type Error = BoxError;
    type Future = ProbeFuture<Req, Res>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let mut log = self.shared.log();
        log.polled_ready += 1;
        match log.readiness.unwrap_or(Readiness::Ready) {
            _ if self.readied == Readied::Failed => Poll::Ready(Err("not ready, for ever".into())),
            Readiness::Ready => {
                self.readied = Readied::Yes;
                Poll::Ready(Ok(()))
            }
            // What it said once holds until it is called.
            Readiness::Pending if self.readied == Readied::Yes => Poll::Ready(Ok(())),
            Readiness::Pending => {
                log.waiting.push(cx.waker().clone());
                Poll::Pending
            }
            Readiness::Failed => {
                self.readied = Readied::Failed;
                Poll::Ready(Err("not ready, for ever".into()))
            }
        }
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let act = {
            let mut log = self.shared.log();
            let readied = self.readied;
            if readied == Readied::Yes {
                self.readied = Readied::No;
            } else {
                log.violations += 1;
                drop(log);
                panic!(
                    "called without being ready: this very instance must be polled ready before each call"
                );
            }
            log.calls += 1;
            log.script.pop_front().unwrap_or(Act::Answer)
        };
        let answer = |request| Some((self.shared.answer)(request));
        let state = match act {
            Act::Answer => State::Answer { steps: 0, response: answer(request) },
            Act::Steps(steps) => State::Answer { steps, response: answer(request) },
            Act::Delay(delay) => {
                State::Delay { sleep: Box::pin(sleep(delay)), response: answer(request) }
            }
            Act::Fail(error) => State::Fail(Some(error)),
            Act::Hang => State::Hang,
            Act::PanicInPoll => State::Panic,
            Act::PanicInCall => panic!("planted: in call"),
        };
        let mut log = self.shared.log();
        log.in_flight += 1;
        log.max_in_flight = log.max_in_flight.max(log.in_flight);
        drop(log);
        ProbeFuture { state, shared: self.shared.clone(), in_flight: true }
    }
}

impl<Req, Res> fmt::Debug for Probe<Req, Res> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let log = self.log();
        f.debug_struct("Probe")
            .field("calls", &log.calls)
            .field("in_flight", &log.in_flight)
            .field("violations", &log.violations)
            .finish_non_exhaustive()
    }
}

// === impl ProbeFuture ===

impl<Req, Res> ProbeFuture<Req, Res> {
    fn finish(&mut self) {
        if std::mem::take(&mut self.in_flight) {
            self.shared.log().in_flight -= 1;
        }
    }
}

impl<Req, Res> Unpin for ProbeFuture<Req, Res> {}

impl<Req, Res> Future for ProbeFuture<Req, Res> {
    type Output = Result<Res, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = match &mut self.state {
            State::Answer { steps: 0, response } => Ok(response.take()),
            State::Answer { steps, .. } => {
                *steps -= 1;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            State::Delay { sleep, response } => {
                ready!(sleep.as_mut().poll(cx));
                Ok(response.take())
            }
            State::Fail(error) => Err(error.take()),
            State::Hang => return Poll::Pending,
            State::Panic => panic!("planted: in poll"),
        };
        self.finish();
        Poll::Ready(match result {
            Ok(response) => Ok(response.expect("polled after it was ready")),
            Err(error) => Err(error.expect("polled after it was ready")),
        })
    }
}

impl<Req, Res> Drop for ProbeFuture<Req, Res> {
    fn drop(&mut self) {
        self.finish();
    }
}

impl<Req, Res> fmt::Debug for ProbeFuture<Req, Res> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProbeFuture").field("in_flight", &self.in_flight).finish_non_exhaustive()
    }
}

// === impl Shared ===

impl<Req, Res> Shared<Req, Res> {
    fn log(&self) -> MutexGuard<'_, Log> {
        // It panics on purpose, and never with the log half written.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
