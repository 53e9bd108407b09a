//! Callers that walk away, and services that panic.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::Poll,
};

use crate::support::*;
use buttress_core::Context;
use buttress_retry::{Budget, BudgetSettings};
use futures_util::FutureExt;
use tokio::time::advance;
use tower::{Service, ServiceExt};

/// A request with everything in it that can be waited for: readiness, an answer that takes its time, and a
/// wait that was asked for.
fn eventful() -> Callee {
    Callee::new([Act::Slow(SEC, later(2 * SEC)), Act::Slow(SEC, BUSY), Act::Slow(SEC, OK)])
        .readiness([0, 1, 1, 1].map(|s| Readiness::After(s * SEC)))
}

async fn polled<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    let mut future = future;
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

#[tokio::test(start_paused = true)]
async fn dropped_at_any_poll_a_request_keeps_only_the_tokens_of_what_was_sent() {
    let mut seen = std::collections::BTreeSet::new();
    for polls in 0.. {
        let budget = budget(BudgetSettings::default().ratio(0.0).refill(0.0));
        let callee = eventful();
        let mut service = over(&within(&budget), &callee);
        let mut call = Box::pin(service.ready().await.unwrap().call("request"));
        let mut done = false;
        for _ in 0..polls {
            if polled(call.as_mut()).await.is_ready() {
                done = true;
                break;
            }
            advance(SEC / 2).await;
        }
        let held = 2.0 - budget.balance();
        drop(call);
        let repeats = callee.calls().saturating_sub(1);
        assert_eq!(2.0 - budget.balance(), repeats as f64, "dropped after {polls} polls");
        seen.insert((held as u32, repeats));
        if done {
            break;
        }
    }
    let all = [(0, 0), (1, 0), (1, 1), (2, 1), (2, 2)];
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), all, "it was dropped in every state");
}

// BLK-09
#[tokio::test(start_paused = true)]
async fn a_panic_before_the_request_was_sent_returns_the_token_and_one_after_it_does_not() {
    let cases: [(Callee, f64); 4] = [
        (Callee::new([failed(1)]).readiness([Readiness::Now, Readiness::Panic]), 2.0),
        (Callee::new([failed(1), Act::PanicInCall]), 1.0),
        (Callee::new([failed(1), Act::PanicInPoll]), 1.0),
        (Callee::new([Act::PanicInPoll]), 2.0),
    ];
    for (callee, balance) in cases {
        let budget = budget(BudgetSettings::default().ratio(0.0).refill(0.0));
        let mut service = over(&within(&budget), &callee);
        let mut call = service.ready().await.unwrap().call("request");
        assert!(AssertUnwindSafe(&mut call).catch_unwind().await.is_err());
        assert_eq!(
            budget.balance(),
            balance,
            "as it unwinds, and not when what is left is dropped"
        );
        drop(call);
        assert_eq!(budget.balance(), balance);
        assert_eq!(Context::current().attempt(), 0, "the context is as it was");
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_panics_when_it_is_called_can_be_called_again() {
    let budget = Budget::default();
    let callee = Callee::new([Act::PanicInCall, Act::Answer(OK)]);
    let mut service = over(&within(&budget), &callee);
    service.ready().await.unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| drop(service.call("request")))).is_err());
    assert_eq!((budget.balance(), Context::current().attempt()), (2.0, 0));
    assert_eq!(send(&mut service).await.unwrap(), OK);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_abandoned_waits_cost_nothing() {
    let budget = Budget::default();
    for _ in 0..1000 {
        let callee = Callee::new([Act::Answer(later(SEC))]);
        let mut service = over(&within(&budget), &callee);
        let mut call = Box::pin(service.ready().await.unwrap().call("request"));
        assert!(polled(call.as_mut()).await.is_pending());
    }
    let stats = budget.stats();
    assert_eq!((stats.balance, stats.granted, stats.refunded), (2.0, 1000, 1000));
}
