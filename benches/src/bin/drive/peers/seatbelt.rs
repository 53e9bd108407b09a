//! seatbelt's layers, as services of tower's. There is no bulkhead among them.

use seatbelt::{
    RecoveryInfo, ResilienceContext,
    breaker::{Breaker, BreakerLayer},
    fallback::{Fallback, FallbackLayer},
    retry::{Retry, RetryLayer},
    timeout::{Timeout, TimeoutLayer},
    typestates::Set,
};
use tick::Clock;
use tower::ServiceBuilder;
use tower_layer::Layer;
use tower_service::Service;

use super::{ATTEMPT, HOUR, TOTAL};
use crate::{
    inner::{Answers, Fails, Failure, Waits},
    path,
    subject::{
        End::{Answer, Refusal},
        Subject, open,
    },
};

type Answered = Result<u64, Failure>;
type Context = ResilienceContext<u64, Answered>;

pub(super) fn subjects() -> Vec<Subject> {
    let seatbelt = |form| ("seatbelt", form);
    let five = "five layers";
    vec![
        Subject::new(path::TIMEOUT, seatbelt(""), Answer, || timeout(&context()).layer(Answers)),
        Subject::new(path::TIMEOUT_WAITS, seatbelt(""), Answer, || {
            timeout(&context()).layer(Waits)
        }),
        Subject::new(path::RETRY, seatbelt("no budget"), Answer, || {
            retry(&context()).layer(Answers)
        }),
        Subject::new(path::BREAKER, seatbelt("last 10 s"), Answer, || {
            breaker(&context()).layer(Answers)
        })
        .like("last 10 s"),
        Subject::new(path::OPEN, seatbelt(""), Refusal, || open(breaker(&context()).layer(Fails))),
        Subject::new(path::FALLBACK, seatbelt(""), Answer, || fallback(&context()).layer(Answers)),
        Subject::new(path::STACK, seatbelt(five), Answer, || stack(Answers)),
        Subject::new(path::STACK_WAITS, seatbelt(five), Answer, || stack(Waits)),
    ]
}

fn context() -> Context {
    Context::new(Clock::new_tokio())
}

fn recovery(answered: &Answered) -> RecoveryInfo {
    if answered.is_ok() { RecoveryInfo::never() } else { RecoveryInfo::retry() }
}

fn timeout(context: &Context) -> TimeoutLayer<u64, Answered, Set, Set> {
    Timeout::layer("timeout", context).timeout(ATTEMPT).timeout_error(|_| Failure)
}

fn total(context: &Context) -> TimeoutLayer<u64, Answered, Set, Set> {
    timeout(context).timeout(TOTAL)
}

fn retry(context: &Context) -> RetryLayer<u64, Answered, Set, Set> {
    Retry::layer("retry", context).clone_input().recovery_with(|answered, _| recovery(answered))
}

fn breaker(context: &Context) -> BreakerLayer<u64, Answered, Set, Set> {
    Breaker::layer("breaker", context)
        .recovery_with(|answered, _| recovery(answered))
        .rejected_input_error(|_, _| Failure)
        .failure_threshold(0.5)
        .min_throughput(20)
        .sampling_duration(ATTEMPT)
        .break_duration(HOUR)
}

fn fallback(context: &Context) -> FallbackLayer<u64, Answered, Set, Set> {
    Fallback::layer("fallback", context)
        .should_fallback(|answered: &Answered| answered.is_err())
        .fallback(|_, _| Ok(0))
}

pub(super) fn stack<S>(
    inner: S,
) -> impl Service<u64, Response = u64, Future: Send> + Clone + Send + 'static
where
    S: Service<u64, Response = u64, Error = Failure, Future: Send> + Clone + Send + Sync + 'static,
{
    let context = context();
    ServiceBuilder::new()
        .layer(fallback(&context))
        .layer(total(&context))
        .layer(retry(&context))
        .layer(breaker(&context))
        .layer(timeout(&context))
        .service(inner)
}
