//! tower-resilience's layers, without the features that add to what a call does: no metrics, and no tracing.

use std::time::Duration;

use tower::ServiceBuilder;
use tower_layer::Layer;
use tower_resilience::{
    bulkhead::BulkheadLayer,
    circuitbreaker::{
        CircuitBreakerConfigBuilder, CircuitBreakerLayer, DefaultClassifier, SlidingWindowType,
    },
    fallback::FallbackLayer,
    retry::{RetryBudgetBuilder, RetryLayer},
    timelimiter::TimeLimiterLayer,
};
use tower_service::Service;

use super::{ATTEMPT, HOUR, TOTAL};
use crate::{
    inner::{Answers, Fails, Failure, Hangs, Waits},
    path,
    subject::{
        End::{Answer, Refusal},
        Subject, full, open,
    },
};

pub(super) fn subjects() -> Vec<Subject> {
    let theirs = |form| ("tower-resilience", form);
    let limit = || TimeLimiterLayer::builder().timeout_duration(ATTEMPT).build();
    let fallback = || FallbackLayer::<u64, u64, Failure>::value(0);
    let by_calls = || breaker().sliding_window_size(100).build().expect("it is sound");
    let by_time = || {
        let timed = breaker().sliding_window_type(SlidingWindowType::TimeBased);
        timed.sliding_window_duration(Duration::from_millis(1)).build().expect("it is sound")
    };
    let six = "six layers";
    vec![
        Subject::new(path::TIMEOUT, theirs(""), Answer, || limit().layer(Answers)),
        Subject::new(path::TIMEOUT_WAITS, theirs(""), Answer, || limit().layer(Waits)),
        Subject::new(path::RETRY, theirs("token bucket"), Answer, || retry().layer(Answers)),
        Subject::new(path::BREAKER, theirs("last 100 calls"), Answer, || by_calls().layer(Answers)),
        Subject::new(path::BREAKER, theirs("last 1 ms"), Answer, || by_time().layer(Answers))
            .like("last 10 s"),
        Subject::new(path::OPEN, theirs(""), Refusal, || open(by_calls().layer(Fails))),
        Subject::new(path::BULKHEAD, theirs(""), Answer, || bulkhead(1000).layer(Answers)),
        Subject::new(path::FULL, theirs(""), Refusal, || full(bulkhead(1).layer(Hangs))),
        Subject::new(path::FALLBACK, theirs(""), Answer, || fallback().layer(Answers)),
        Subject::new(path::STACK, theirs(six), Answer, || stack(Answers)),
        Subject::new(path::STACK_WAITS, theirs(six), Answer, || stack(Waits)),
    ]
}

fn breaker() -> CircuitBreakerConfigBuilder<DefaultClassifier> {
    CircuitBreakerLayer::builder()
        .failure_rate_threshold(0.5)
        .minimum_number_of_calls(20)
        .wait_duration_in_open(HOUR)
}

fn bulkhead(limit: usize) -> BulkheadLayer {
    let bulkhead = BulkheadLayer::builder().max_concurrent_calls(limit).reject_when_full();
    bulkhead.build().expect("there is room")
}

fn retry<E>() -> RetryLayer<u64, u64, E> {
    let budget = RetryBudgetBuilder::new().token_bucket().build().expect("the defaults are sound");
    RetryLayer::builder()
        .max_attempts(3)
        .exponential_backoff(Duration::from_millis(100))
        .budget(budget)
        .build()
}

pub(super) fn stack<S>(
    inner: S,
) -> impl Service<u64, Response = u64, Future: Send> + Clone + Send + 'static
where
    S: Service<u64, Response = u64, Error = Failure, Future: Send> + Clone + Send + 'static,
{
    ServiceBuilder::new()
        .layer(FallbackLayer::value(0))
        .layer(bulkhead(1000))
        .layer(TimeLimiterLayer::builder().timeout_duration(TOTAL).build())
        .layer(retry())
        .layer(breaker().sliding_window_size(100).build().expect("it is sound"))
        .layer(TimeLimiterLayer::builder().timeout_duration(ATTEMPT).build())
        .service(inner)
}
