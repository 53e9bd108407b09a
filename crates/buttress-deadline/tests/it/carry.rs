//! What a `Buffer` loses, carried through it.

use std::panic::AssertUnwindSafe;

use buttress_core::{Context, Deadline, edge};
use buttress_deadline::{CarryLayer, DeadlineLayer, ResumeLayer, TimeoutLayer};
use buttress_test::{Act, Subject, contract};
use futures_util::FutureExt;
use tokio::time::sleep;
use tower::{Layer, Service, ServiceExt, buffer::Buffer, limit::ConcurrencyLimit};

use crate::support::{
    LATE, due_in, echo, elapsed, mirror, rejected, secs, seen, silent, timed, total,
};

#[test]
fn the_two_keep_the_contract_together() {
    contract(
        || Subject::stateless(tower_layer::Stack::new(ResumeLayer, CarryLayer)),
        || 1_u32,
        || 2_u32,
    );
}

#[tokio::test(start_paused = true)]
async fn a_buffer_loses_the_deadline_in_call_unless_it_is_carried() {
    let start = edge::now();
    let at = |n| Some(Deadline::at(start + secs(n)));
    let inner = || DeadlineLayer::new(secs(10)).layer(seen());

    let bare = DeadlineLayer::new(secs(3)).layer(Buffer::new(inner(), 4));
    assert_eq!(bare.oneshot(()).await.unwrap(), (at(10), at(3)));

    let carried = CarryLayer.layer(Buffer::new(ResumeLayer.layer(inner()), 4));
    let carried = DeadlineLayer::new(secs(3)).layer(carried);
    assert_eq!(carried.oneshot(()).await.unwrap(), (at(3), at(3)));
}

#[tokio::test(start_paused = true)]
async fn all_of_the_context_goes_through_a_buffer() {
    let request = due_in(secs(9)).with_attempt(2).with_attempt_deadline(Deadline::after(secs(4)));
    let service = CarryLayer.layer(Buffer::new(ResumeLayer.layer(mirror()), 4));
    assert_eq!(request.scope(service.clone().oneshot(())).await.unwrap(), [request; 2]);
    assert_eq!(service.oneshot(()).await.unwrap(), [Context::default(); 2], "and none stays");
}

#[tokio::test(start_paused = true)]
async fn what_is_late_when_the_buffer_comes_to_it_is_not_sent() {
    let probe = echo();
    probe.script([Act::Delay(secs(5))]);
    // One at a time, so that the second request waits in the buffer, and nobody ends that.
    let inner = ResumeLayer.layer(DeadlineLayer::new(secs(10)).layer(probe.clone()));
    let service = CarryLayer.layer(Buffer::new(ConcurrencyLimit::new(inner, 1), 4));
    let first = tokio::spawn(due_in(secs(9)).scope(service.clone().oneshot(1)));
    sleep(secs(1)).await;
    let second = due_in(secs(2)).scope(service.oneshot(2)).await;
    assert_eq!(rejected(second), LATE);
    assert_eq!((first.await.unwrap().unwrap(), probe.calls()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn limits_through_it_are_exact() {
    for n in [3, 5] {
        let inner = ResumeLayer.layer(TimeoutLayer::new(secs(10)).layer(silent()));
        let service = DeadlineLayer::new(secs(n)).layer(CarryLayer.layer(Buffer::new(inner, 4)));
        let (answer, took) = timed(service).await;
        assert_eq!((elapsed(answer), took), (total(secs(n)), secs(n)));
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_the_context_of_the_call_and_not_of_whoever_polls() {
    let request = due_in(secs(9)).with_attempt(2);
    let mut service = CarryLayer.layer(ResumeLayer.layer(mirror()));
    let call = request.within(|| service.call(()));
    assert_eq!(due_in(secs(1)).scope(call).await.unwrap(), [request; 2]);
}

#[tokio::test(start_paused = true)]
async fn beneath_another_buffer_that_carried_nothing_polls_are_left_as_they_are() {
    let request = due_in(secs(9)).with_attempt(2);
    let carries = CarryLayer.layer(Buffer::new(ResumeLayer.layer(mirror()), 4));
    let seen = request.scope(Buffer::new(carries, 4).oneshot(())).await.unwrap();
    assert_eq!(seen, [Context::default(), request]);
}

#[tokio::test(start_paused = true)]
async fn beneath_another_buffer_that_carried_a_part_polls_bring_the_rest() {
    // The layer between the buffers knows its own limit, and not the request's deadline.
    let carries = CarryLayer.layer(Buffer::new(ResumeLayer.layer(mirror()), 4));
    let between = TimeoutLayer::new(secs(2)).layer(carries);
    let [_, polled] = due_in(secs(9)).scope(Buffer::new(between, 4).oneshot(())).await.unwrap();
    assert_eq!(polled.deadline(), due_in(secs(9)).deadline());
    assert_eq!(polled.attempt_deadline(), due_in(secs(2)).deadline());
}

#[tokio::test(start_paused = true)]
async fn a_panic_within_leaves_no_context_behind() {
    let probe = echo();
    let mut service = CarryLayer.layer(ResumeLayer.layer(probe.clone()));
    for act in [Act::PanicInCall, Act::PanicInPoll] {
        probe.script([act]);
        let request = due_in(secs(9)).with_attempt(2);
        let call = async { service.ready().await.unwrap().call(1).await };
        assert!(AssertUnwindSafe(request.scope(call)).catch_unwind().await.is_err());
        assert_eq!(Context::current(), Context::default());
    }
}
