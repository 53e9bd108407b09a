//! failsafe and recloser: breakers that wrap a future, in a service that hands them one.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use failsafe::{
    Config, FailurePolicy, StateMachine, backoff, failure_policy,
    futures::{CircuitBreaker, ResponseFuture},
};
use recloser::{AnyError, AsyncRecloser, Recloser, RecloserFuture};
use tower_service::Service;

use super::HOUR;
use crate::{
    inner::{Answers, Fails},
    path,
    subject::{
        End::{Answer, Refusal},
        Subject, open,
    },
};

const WINDOW: Duration = Duration::from_secs(10);

#[derive(Clone)]
struct Failing<S, P> {
    inner: S,
    breaker: StateMachine<P, ()>,
}

#[derive(Clone)]
pub(super) struct Reclosing<S> {
    inner: S,
    breaker: AsyncRecloser,
}

pub(super) fn subjects() -> Vec<Subject> {
    let rate = || failure_policy::success_rate_over_time_window(0.5, 20, WINDOW, hourly());
    let row = || failure_policy::consecutive_failures(5, hourly());
    let (by_rate, by_row) =
        (("failsafe", "success rate in 10 s"), ("failsafe", "5 in a row, no window"));
    let by_last = ("recloser", "last 100 calls");
    vec![
        Subject::new(path::BREAKER, by_rate, Answer, || Failing::new(Answers, rate()))
            .like("last 10 s"),
        Subject::new(path::BREAKER, by_row, Answer, || Failing::new(Answers, row())),
        Subject::new(path::BREAKER, by_last, Answer, || last_calls(Answers)),
        Subject::new(path::OPEN, by_row, Refusal, || open(Failing::new(Fails, row()))),
        Subject::new(path::OPEN, by_last, Refusal, || open(last_calls(Fails))),
    ]
}

/// recloser's, around `inner`.
pub(super) fn last_calls<S>(inner: S) -> Reclosing<S> {
    let breaker = Recloser::custom().error_rate(0.5).closed_len(100).open_wait(HOUR).build();
    Reclosing { inner, breaker: breaker.into() }
}

fn hourly() -> backoff::Constant {
    backoff::constant(HOUR)
}

impl<S, P: FailurePolicy> Failing<S, P> {
    fn new(inner: S, policy: P) -> Self {
        Self { inner, breaker: Config::new().failure_policy(policy).build() }
    }
}

impl<S, P> Service<u64> for Failing<S, P>
where
    S: Service<u64>,
    P: FailurePolicy + Send + Sync,
{
    type Response = S::Response;
    type Error = failsafe::Error<S::Error>;
    type Future = ResponseFuture<S::Future, P, (), failsafe::Any>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(failsafe::Error::Inner)
    }

    fn call(&mut self, request: u64) -> Self::Future {
        self.breaker.call(self.inner.call(request))
    }
}

impl<S: Service<u64>> Service<u64> for Reclosing<S> {
    type Response = S::Response;
    type Error = recloser::Error<S::Error>;
    type Future = RecloserFuture<S::Future, AnyError>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(recloser::Error::Inner)
    }

    fn call(&mut self, request: u64) -> Self::Future {
        self.breaker.call(self.inner.call(request))
    }
}
