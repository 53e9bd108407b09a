//! A callee that does what a script says, and tells what it saw.

use std::{
    collections::VecDeque,
    fmt,
    future::{self, poll_fn},
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard},
    task::{Poll, ready},
    time::Duration,
};

use buttress_core::{
    BoxError, Class, Context, Deadline, Elapsed, Limit, Rejected, edge,
    timer::{Alarm, poll_within},
};
use buttress_retry::{Backoff, Budget, BudgetSettings, RetryLayer};
use tokio::time::{Instant, Sleep, sleep};
use tower::{Layer, Service, ServiceExt};

pub(crate) const ZERO: Duration = Duration::ZERO;
pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SEC: Duration = Duration::from_secs(1);

/// What the callee answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) after: Option<Duration>,
}

pub(crate) const OK: Answer = Answer { status: 200, after: None };
pub(crate) const BUSY: Answer = Answer { status: 503, after: None };
pub(crate) const WRONG: Answer = Answer { status: 400, after: None };

/// An answer that asks to come again after that time.
pub(crate) const fn later(after: Duration) -> Answer {
    Answer { status: 429, after: Some(after) }
}

/// An error that cannot be cloned, with a number to know it by.
#[derive(Debug)]
pub(crate) struct Failed(pub(crate) u32, pub(crate) std::io::Error);

/// Nothing was sent.
#[derive(Debug)]
pub(crate) struct NoConnection;

pub(crate) fn failed(number: u32) -> Act {
    Act::Fail(Failed(number, std::io::Error::other("reset")).into())
}

/// What one attempt does.
pub(crate) enum Act {
    Answer(Answer),
    Fail(BoxError),
    Slow(Duration, Answer),
    Hang,
    PanicInCall,
    PanicInPoll,
}

/// What one attempt was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen<Req> {
    pub(crate) at: Duration,
    pub(crate) attempt: u32,
    pub(crate) request: Req,
}

/// The callee. Clones share script and log, and none may be called that was not itself polled ready.
pub(crate) struct Callee<Req = &'static str> {
    shared: Arc<Mutex<Log<Req>>>,
    readied: bool,
    getting_ready: Option<Pin<Box<Sleep>>>,
}

struct Log<Req> {
    start: Instant,
    script: VecDeque<Act>,
    readiness: VecDeque<Readiness>,
    seen: Vec<Seen<Req>>,
    readies: usize,
    numbers: Vec<(&'static str, u32)>,
}

/// What one question for readiness is answered.
pub(crate) enum Readiness {
    Now,
    After(Duration),
    Fail(BoxError),
    Panic,
}

pub(crate) type CalleeFuture = Pin<Box<dyn Future<Output = Result<Answer, BoxError>> + Send>>;

impl<Req> Callee<Req> {
    pub(crate) fn new(script: impl IntoIterator<Item = Act>) -> Self {
        let log = Log {
            start: edge::now(),
            script: script.into_iter().collect(),
            readiness: VecDeque::new(),
            seen: Vec::new(),
            readies: 0,
            numbers: Vec::new(),
        };
        Self { shared: Arc::new(Mutex::new(log)), readied: false, getting_ready: None }
    }

    /// Answers so for ever.
    pub(crate) fn always(answer: Answer) -> Self {
        Self::new((0..100_000).map(|_| Act::Answer(answer)))
    }

    pub(crate) fn readiness(self, readiness: impl IntoIterator<Item = Readiness>) -> Self {
        self.log().readiness.extend(readiness);
        self
    }

    pub(crate) fn calls(&self) -> usize {
        self.log().seen.len()
    }

    pub(crate) fn readies(&self) -> usize {
        self.log().readies
    }

    /// When each attempt came.
    pub(crate) fn times(&self) -> Vec<Duration> {
        self.log().seen.iter().map(|seen| seen.at).collect()
    }

    pub(crate) fn requests(&self) -> Vec<Req>
    where
        Req: Clone,
    {
        self.log().seen.iter().map(|seen| seen.request.clone()).collect()
    }

    /// Where the context was asked for the attempt's number, and what it said.
    pub(crate) fn numbers(&self) -> Vec<(&'static str, u32)> {
        self.log().numbers.clone()
    }

    pub(crate) fn elapsed(&self) -> Duration {
        edge::now() - self.log().start
    }

    fn log(&self) -> MutexGuard<'_, Log<Req>> {
        self.shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn note(&self, place: &'static str) {
        self.log().numbers.push((place, Context::current().attempt()));
    }
}

impl<Req> Clone for Callee<Req> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), readied: false, getting_ready: None }
    }
}

impl<Req: Send + 'static> Service<Req> for Callee<Req> {
    type Response = Answer;
    type Error = BoxError;
    type Future = CalleeFuture;

    fn poll_ready(&mut self, cx: &mut std::task::Context<'_>) -> Poll<Result<(), BoxError>> {
        self.note("readiness");
        if self.readied {
            return Poll::Ready(Ok(()));
        }
        if self.getting_ready.is_none() {
            let next = self.log().readiness.pop_front();
            match next {
                None | Some(Readiness::Now) => {}
                Some(Readiness::After(time)) => self.getting_ready = Some(Box::pin(sleep(time))),
                Some(Readiness::Fail(error)) => return Poll::Ready(Err(error)),
                Some(Readiness::Panic) => panic!("planted: in poll_ready"),
            }
        }
        if let Some(sleep) = &mut self.getting_ready {
            ready!(sleep.as_mut().poll(cx));
            self.getting_ready = None;
        }
        self.readied = true;
        self.log().readies += 1;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Req) -> CalleeFuture {
        assert!(std::mem::take(&mut self.readied), "called without being ready");
        self.note("call");
        let act = {
            let mut log = self.log();
            let at = edge::now() - log.start;
            let attempt = Context::current().attempt();
            log.seen.push(Seen { at, attempt, request });
            log.script.pop_front().expect("the script goes on")
        };
        if matches!(act, Act::PanicInCall) {
            panic!("planted: in call");
        }
        let this = self.clone();
        Box::pin(async move {
            this.note("poll");
            match act {
                Act::Answer(answer) => Ok(answer),
                Act::Fail(error) => Err(error),
                Act::Slow(time, answer) => {
                    sleep(time).await;
                    Ok(answer)
                }
                Act::Hang => future::pending().await,
                Act::PanicInCall | Act::PanicInPoll => panic!("planted: in poll"),
            }
        })
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "failure {}: {}", self.0, self.1)
    }
}

impl std::error::Error for Failed {}

impl fmt::Display for NoConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("connection refused")
    }
}

impl std::error::Error for NoConnection {}

/// What answers and errors say.
pub(crate) fn classify(result: Result<&Answer, &BoxError>) -> Class {
    match result {
        Ok(Answer { status: 200, .. }) => Class::Success,
        Ok(Answer { status: 429, after }) => Class::Throttled { after: *after },
        Ok(Answer { status: 503, after }) => Class::Transient { after: *after },
        Ok(_) => Class::CallerError,
        Err(error) if error.is::<NoConnection>() => Class::Unreachable,
        Err(_) => Class::Transient { after: None },
    }
}

pub(crate) type Classifier = fn(Result<&Answer, &BoxError>) -> Class;

/// A retry that never waits but where it is asked to, and never lacks a token.
pub(crate) fn at_once() -> RetryLayer<Classifier> {
    RetryLayer::new(Backoff::none(), rich()).classify(classify as Classifier)
}

/// A retry that never waits but where it is asked to, within that budget.
pub(crate) fn within(budget: &Budget) -> RetryLayer<Classifier> {
    RetryLayer::new(Backoff::none(), budget.clone()).classify(classify as Classifier)
}

/// A budget with tokens for everything.
pub(crate) fn rich() -> Budget {
    Budget::new(BudgetSettings::default().reserve(4000)).unwrap()
}

pub(crate) fn budget(settings: BudgetSettings) -> Budget {
    Budget::new(settings).unwrap()
}

/// Readies and calls.
pub(crate) async fn send<S>(service: &mut S) -> Result<S::Response, S::Error>
where
    S: Service<&'static str>,
{
    service.ready().await?.call("request").await
}

/// Makes the call in a request that has so much time, and ends it when that is over, as a deadline layer does.
pub(crate) async fn total<T, F>(limit: Duration, call: impl FnOnce() -> F) -> Result<T, BoxError>
where
    F: Future<Output = Result<T, BoxError>>,
{
    let deadline =
        Deadline::earlier(Deadline::current(), Deadline::after(limit)).expect("a finite limit");
    let context = Context::current().with_deadline(Some(deadline));
    let mut inner = pin!(context.scope(context.within(call)));
    let mut alarm = pin!(Alarm::default());
    poll_fn(|cx| poll_within(inner.as_mut(), alarm.as_mut(), || Some(deadline.instant()), cx))
        .await
        .unwrap_or_else(|| Err(Elapsed::new(Limit::Total, limit).into()))
}

/// Limits one attempt, as a timeout layer does.
#[derive(Clone)]
pub(crate) struct Attempt<S>(pub(crate) S, pub(crate) Duration);

impl<S> Service<&'static str> for Attempt<S>
where
    S: Service<&'static str, Error = BoxError>,
    S::Future: Send + 'static,
    S::Response: 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut std::task::Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: &'static str) -> Self::Future {
        let mut inner = Box::pin(self.0.call(request));
        let (limit, mut alarm) = (self.1, Box::pin(Alarm::default()));
        let until = edge::now() + limit;
        Box::pin(poll_fn(move |cx| {
            poll_within(inner.as_mut(), alarm.as_mut(), || Some(until), cx).map(|answer| {
                answer.unwrap_or_else(|| Err(Elapsed::new(Limit::Attempt, limit).into()))
            })
        }))
    }
}

/// Refuses without asking anybody, from the n-th call on.
#[derive(Clone)]
pub(crate) struct Refusing<S> {
    pub(crate) inner: S,
    pub(crate) rejected: Rejected,
    pub(crate) from: usize,
    pub(crate) calls: Arc<Mutex<usize>>,
}

impl<S> Refusing<S> {
    pub(crate) fn new(inner: S, rejected: Rejected, from: usize) -> Self {
        Self { inner, rejected, from, calls: Arc::default() }
    }
}

impl<S, Req> Service<Req> for Refusing<S>
where
    S: Service<Req, Error = BoxError>,
    S::Future: Send + 'static,
    S::Response: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut std::task::Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let mut calls = self.calls.lock().unwrap();
        *calls += 1;
        if *calls >= self.from {
            Box::pin(future::ready(Err(self.rejected.into())))
        } else {
            Box::pin(self.inner.call(request))
        }
    }
}

/// The layer around the callee.
pub(crate) fn over<L: Layer<Callee>>(layer: &L, callee: &Callee) -> L::Service {
    layer.layer(callee.clone())
}
