//! What every layer promises, whatever it is for.

use std::{pin::pin, task::Poll};

use buttress_core::Class;
use buttress_fallback::{Cause, FallbackLayer, NoFallback};
use buttress_test::{Probe, Readiness, Subject, contract};
use tower::{Layer, Service, ServiceExt};

use crate::support::{pages, poll_once};

// BLK-11, BLK-12
#[test]
fn the_one_that_was_ready_is_called_and_only_real_failures_are_final() {
    let (ask, answer) = (|| 1_u32, || 2_u32);
    contract(|| Subject::stateless(FallbackLayer::new(NoFallback)), ask, answer);
    contract(|| Subject::stateless(FallbackLayer::value(|| 3)), ask, answer);
    contract(|| Subject::stateless(FallbackLayer::respond_with(|_| 3)), ask, answer);
    let fails = || FallbackLayer::try_respond_with(|_: &Cause<u32>| Err("none"));
    contract(|| Subject::stateless(fails()), ask, answer);
    let keeps = || FallbackLayer::keep(|n: &u32| *n, |n, _| n);
    contract(|| Subject::stateless(keeps()), ask, answer);
    // A service that answers in place of another is held to the same contract.
    let other = Probe::new(|n: u32| n);
    let asks = || FallbackLayer::service(|n: &u32| *n, other.clone());
    contract(|| Subject::stateless(asks()), ask, answer);
    assert_eq!((other.violations(), other.in_flight()), (0, 0));
    assert!(other.calls() > 0);
    // Also where every answer is replaced.
    let all = || asks().classify(|_: Result<&u32, &_>| Class::Fatal);
    contract(|| Subject::stateless(all()), ask, answer);
    assert_eq!((other.violations(), other.in_flight()), (0, 0));
}

// BLK-12
#[tokio::test]
async fn an_error_of_readiness_is_final_and_is_not_answered() {
    let probe = pages();
    probe.set_readiness(Readiness::Failed);
    let mut service = FallbackLayer::value(|| crate::support::page(200)).layer(probe);
    for _ in 0..2 {
        let error = service.ready().await.map(drop).unwrap_err();
        assert_eq!(error.to_string(), "not ready, for ever");
    }
}

#[tokio::test]
async fn readiness_is_the_inner_services() {
    let probe = pages();
    probe.set_readiness(Readiness::Pending);
    let mut service = FallbackLayer::value(|| crate::support::page(200)).layer(probe.clone());
    let mut ready = pin!(service.ready());
    assert!(poll_once(ready.as_mut()).await.is_pending());
    probe.set_readiness(Readiness::Ready);
    assert!(matches!(poll_once(ready.as_mut()).await, Poll::Ready(Ok(_))));
}

#[tokio::test]
#[should_panic(expected = "polled after it had answered")]
async fn a_future_whose_fallback_has_answered_says_so_too() {
    let other = FallbackLayer::service(|n: &u16| *n, pages());
    let mut service = other.layer(crate::support::failing("down"));
    let mut call = pin!(service.ready().await.unwrap().call(200));
    assert!(poll_once(call.as_mut()).await.is_ready());
    let _ = poll_once(call.as_mut()).await;
}

#[tokio::test]
#[should_panic(expected = "polled after it had answered")]
async fn a_future_that_has_answered_says_so_when_it_is_polled_again() {
    let mut service = FallbackLayer::value(|| crate::support::page(200)).layer(pages());
    let mut call = pin!(service.ready().await.unwrap().call(200));
    assert!(poll_once(call.as_mut()).await.is_ready());
    let _ = poll_once(call.as_mut()).await;
}
