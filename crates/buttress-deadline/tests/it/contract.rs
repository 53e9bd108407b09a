//! What every layer promises, whatever it is for.

use std::time::Duration;

use buttress_core::{Context, Deadline, edge};
use buttress_deadline::{DeadlineLayer, EntryLayer, TimeoutLayer};
use buttress_test::{Act, Subject, contract};
use tower::{Layer, Service, ServiceExt};

use crate::support::{echo, elapsed, poll_once, secs, silent, total};

// BLK-11, BLK-12
#[test]
fn the_one_that_was_ready_is_called_and_only_real_failures_are_final() {
    contract(|| Subject::stateless(DeadlineLayer::new(secs(1))), || 1_u32, || 2_u32);
    contract(|| Subject::stateless(EntryLayer::new(secs(1))), || 1_u32, || 2_u32);
    contract(|| Subject::stateless(TimeoutLayer::new(secs(1))), || 1_u32, || 2_u32);
    contract(|| Subject::stateless(TimeoutLayer::call_only(secs(1))), || 1_u32, || 2_u32);
}

// BLK-11
#[test]
fn two_limits_keep_the_contract_together() {
    let both = || tower_layer::Stack::new(TimeoutLayer::new(secs(1)), DeadlineLayer::new(secs(2)));
    contract(|| Subject::stateless(both()), || 1_u32, || 2_u32);
}

// BLK-12
#[tokio::test(start_paused = true)]
async fn a_hundred_requests_that_were_late_leave_the_service_as_it_was() {
    let probe = echo();
    let mut service = DeadlineLayer::new(secs(5)).layer(probe.clone());
    for _ in 0..100 {
        probe.script([Act::Hang]);
        assert!(service.ready().await.unwrap().call(1).await.is_err());
    }
    assert_eq!(service.ready().await.unwrap().call(2).await.unwrap(), 2);
    assert_eq!((probe.in_flight(), probe.violations()), (0, 0));
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "polled after it had answered")]
async fn a_future_that_has_answered_says_so_when_it_is_polled_again() {
    let mut service = TimeoutLayer::new(secs(1)).layer(echo());
    let mut call = std::pin::pin!(service.ready().await.unwrap().call(1));
    assert!(poll_once(call.as_mut()).await.is_ready());
    let _ = poll_once(call.as_mut()).await;
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "polled after it had answered")]
async fn nor_does_one_that_was_sent_say_later_that_it_was_not() {
    let over = Context::default().with_deadline(Some(Deadline::at(edge::now())));
    let mut service = TimeoutLayer::new(secs(1)).layer(silent());
    // As a buffer does: the deadline is there only when it is polled.
    let mut call = std::pin::pin!(over.scope(service.ready().await.unwrap().call(1)));
    assert_eq!(elapsed(call.as_mut().await), total(Duration::ZERO));
    let _ = poll_once(call.as_mut()).await;
}
