//! tower's own layers, and the best peer of each pattern stacked.

use std::{
    future::{Ready, ready},
    sync::Arc,
    time::Duration,
};

use tower::{
    BoxError, ServiceBuilder,
    retry::{
        Policy,
        budget::{Budget, TpsBudget},
    },
};
use tower_service::Service;

use super::{ATTEMPT, TOTAL, breakers::last_calls};
use crate::{
    inner::{Answers, Failure, Hangs, Waits},
    path,
    subject::{
        End::{Answer, Refusal},
        Subject, full,
    },
};

/// Repeats what failed, within a budget. Attempts are not counted, as none fails here.
#[derive(Clone)]
struct Budgeted(Arc<TpsBudget>);

pub(super) fn subjects() -> Vec<Subject> {
    let tower = |form| ("tower", form);
    let timeout = || ServiceBuilder::new().timeout(ATTEMPT);
    let limit = |n| ServiceBuilder::new().concurrency_limit(n);
    let shed = |n| ServiceBuilder::new().load_shed().concurrency_limit(n);
    let retry = || ServiceBuilder::new().retry(Budgeted::new());
    let five = "five layers";
    let six = ("best of each", "six layers");
    vec![
        Subject::new(path::TIMEOUT, tower("Timeout"), Answer, || timeout().service(Answers)),
        Subject::new(path::TIMEOUT_WAITS, tower("Timeout"), Answer, || timeout().service(Waits)),
        Subject::new(path::RETRY, tower("Retry, TpsBudget"), Answer, || retry().service(Answers)),
        Subject::new(path::BULKHEAD, tower("ConcurrencyLimit"), Answer, || {
            limit(1000).service(Answers)
        }),
        Subject::new(path::FULL, tower("LoadShed, ConcurrencyLimit"), Refusal, || {
            full(shed(1).service(Hangs))
        }),
        Subject::new(path::SHED, tower("LoadShed, ConcurrencyLimit"), Answer, || {
            shed(1000).service(Answers)
        }),
        Subject::new(path::SHEDDING, tower("LoadShed, ConcurrencyLimit"), Refusal, || {
            full(shed(1).service(Hangs))
        }),
        Subject::new(path::STACK, tower(five), Answer, || stack(Answers)),
        Subject::new(path::STACK_WAITS, tower(five), Answer, || stack(Waits)),
        Subject::new(path::STACK, six, Answer, || best(Answers)),
        Subject::new(path::STACK_WAITS, six, Answer, || best(Waits)),
    ]
}

/// What is nearest: there is no breaker, and no fallback.
pub(super) fn stack<S>(
    inner: S,
) -> impl Service<u64, Response = u64, Future: Send> + Clone + Send + 'static
where
    S: Service<u64, Response = u64, Error = Failure, Future: Send> + Clone + Send + 'static,
{
    ServiceBuilder::new()
        .load_shed()
        .concurrency_limit(1000)
        .timeout(TOTAL)
        .retry(Budgeted::new())
        .timeout(ATTEMPT)
        .service(inner)
}

/// Each pattern by whoever has it at the lowest price: recloser's breaker, a mapped result for the fallback, and
/// tower's own for the rest.
pub(super) fn best<S>(
    inner: S,
) -> impl Service<u64, Response = u64, Future: Send> + Clone + Send + 'static
where
    S: Service<u64, Response = u64, Error = Failure, Future: Send> + Clone + Send + 'static,
{
    let unwrap = |error| match error {
        recloser::Error::Inner(error) => error,
        recloser::Error::Rejected => BoxError::from(Failure),
    };
    ServiceBuilder::new()
        .map_result(|result: Result<u64, BoxError>| Ok::<_, BoxError>(result.unwrap_or(0)))
        .concurrency_limit(1000)
        .timeout(TOTAL)
        .retry(Budgeted::new())
        .map_err(unwrap)
        .layer_fn(last_calls)
        .timeout(ATTEMPT)
        .service(inner)
}

// === impl Budgeted ===

impl Budgeted {
    fn new() -> Self {
        Self(Arc::new(TpsBudget::new(Duration::from_secs(10), 1, 0.1)))
    }
}

impl<E> Policy<u64, u64, E> for Budgeted {
    type Future = Ready<()>;

    fn retry(&mut self, _: &mut u64, result: &mut Result<u64, E>) -> Option<Ready<()>> {
        match result {
            Ok(_) => {
                self.0.deposit();
                None
            }
            Err(_) => self.0.withdraw().then(|| ready(())),
        }
    }

    fn clone_request(&mut self, request: &u64) -> Option<u64> {
        Some(*request)
    }
}
