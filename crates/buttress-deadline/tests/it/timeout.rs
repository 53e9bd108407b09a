//! How long one attempt may take.

use std::pin::pin;

use buttress_core::{Context, Deadline, edge};
use buttress_deadline::{DeadlineLayer, TimeoutLayer};
use buttress_test::{Act, Readiness};
use tokio::{task::yield_now, time::advance};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::support::{
    LATE_ATTEMPT, attempt, due_in, echo, elapsed, mirror, ms, panics, rejected, secs, seen, silent,
    timed, total,
};

#[tokio::test(start_paused = true)]
async fn an_attempt_ends_at_its_limit() {
    let (answer, took) = timed(TimeoutLayer::new(secs(10)).layer(silent())).await;
    assert_eq!((elapsed(answer), took), (attempt(secs(10)), secs(10)));
    let (answer, took) = timed(TimeoutLayer::call_only(secs(10)).layer(silent())).await;
    assert_eq!((elapsed(answer), took), (attempt(secs(10)), secs(10)));
}

#[tokio::test(start_paused = true)]
async fn one_made_for_beneath_a_deadline_ends_there_too_and_without_one() {
    let layer = TimeoutLayer::new(secs(10)).beneath_deadline();
    let (answer, took) = timed(layer.layer(silent())).await;
    assert_eq!((elapsed(answer), took), (attempt(secs(10)), secs(10)));
    let (answer, took) = timed(DeadlineLayer::new(secs(30)).layer(layer.layer(silent()))).await;
    assert_eq!((elapsed(answer), took), (attempt(secs(10)), secs(10)));
    let (answer, took) = timed(DeadlineLayer::new(secs(10)).layer(layer.layer(silent()))).await;
    assert_eq!(
        (elapsed(answer), took),
        (total(secs(10)), secs(10)),
        "at once, the request is over"
    );
}

#[tokio::test(start_paused = true)]
async fn an_answer_at_the_very_instant_wins() {
    for layer in [TimeoutLayer::new(secs(5)), TimeoutLayer::new(secs(6))] {
        let probe = echo();
        probe.script([Act::Delay(secs(5))]);
        let (answer, took) = timed(layer.layer(probe)).await;
        assert_eq!((answer.unwrap(), took), (7, secs(5)));
    }
}

// TMO-04
#[tokio::test(start_paused = true)]
async fn it_never_has_more_than_the_request_has_left() {
    for left in [3, 10] {
        // Nobody enforces the deadline here but the attempt. Where both end at once, it is the request
        // that is over.
        let start = edge::now();
        let call = due_in(secs(left)).scope(TimeoutLayer::new(secs(10)).layer(silent()).oneshot(1));
        assert_eq!(elapsed(call.await), total(secs(left)));
        assert_eq!(edge::now() - start, secs(left));
        let only = TimeoutLayer::call_only(secs(10)).layer(silent()).oneshot(1);
        assert_eq!(elapsed(due_in(secs(left)).scope(only).await), total(secs(left)));
    }
    let call = due_in(secs(11)).scope(TimeoutLayer::new(secs(10)).layer(silent()).oneshot(1));
    assert_eq!(elapsed(call.await), attempt(secs(10)));
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_passes_before_anything_was_sent_refuses() {
    let probe = echo();
    probe.set_readiness(Readiness::Pending);
    let start = edge::now();
    let call = TimeoutLayer::new(secs(10)).layer(probe.clone()).oneshot(1);
    assert_eq!(rejected(due_in(secs(3)).scope(call).await), LATE_ATTEMPT);
    assert_eq!((edge::now() - start, probe.calls()), (secs(3), 0));
}

#[tokio::test(start_paused = true)]
async fn at_the_same_instant_the_deadline_above_answers() {
    let probe = echo();
    probe.set_readiness(Readiness::Pending);
    for limit in [5, 60] {
        let stack =
            DeadlineLayer::new(secs(5)).layer(TimeoutLayer::new(secs(limit)).layer(silent()));
        let (answer, took) = timed(stack).await;
        assert_eq!((elapsed(answer), took), (total(secs(5)), secs(5)));

        // Also where the attempt knows by itself that it is late.
        let mut stack =
            DeadlineLayer::new(secs(5)).layer(TimeoutLayer::new(secs(limit)).layer(probe.clone()));
        let call = stack.ready().await.unwrap().call(1);
        advance(secs(5)).await;
        assert_eq!(elapsed(call.await), total(secs(5)));
    }
}

#[tokio::test(start_paused = true)]
async fn it_leaves_the_deadline_as_it_is() {
    let start = edge::now();
    let fifty = Some(Deadline::at(start + secs(50)));
    let request = Context::default().with_deadline(fifty);
    let call = TimeoutLayer::new(secs(1)).layer(seen()).oneshot(());
    assert_eq!(request.scope(call).await.unwrap(), (fifty, fifty));
    let only = TimeoutLayer::call_only(secs(1)).layer(seen()).oneshot(());
    assert_eq!(request.scope(only).await.unwrap(), (fifty, fifty));
    assert_eq!(TimeoutLayer::new(secs(1)).layer(seen()).oneshot(()).await.unwrap(), (None, None));
}

#[tokio::test(start_paused = true)]
async fn the_deadline_that_counts_is_the_one_of_the_call() {
    // Made for a request with 3 s, polled within another with 1 s.
    let mut service = TimeoutLayer::new(secs(10)).layer(silent());
    service.ready().await.unwrap();
    let call = due_in(secs(3)).within(|| service.call(1));
    assert_eq!(elapsed(due_in(secs(1)).scope(call).await), total(secs(3)));
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_shows_after_the_first_poll_is_another_requests() {
    let mut service = TimeoutLayer::new(secs(10)).layer(silent());
    let mut call = pin!(service.ready().await.unwrap().call(1));
    assert!(crate::support::poll_once(call.as_mut()).await.is_pending());
    assert_eq!(elapsed(due_in(secs(3)).scope(call).await), attempt(secs(10)));
}

#[tokio::test(start_paused = true)]
async fn a_panic_inside_leaves_deadline_and_timer_to_those_who_had_them() {
    for act in [Act::PanicInCall, Act::PanicInPoll] {
        let probe = echo();
        probe.script([act]);
        let start = edge::now();
        let inner =
            DeadlineLayer::new(secs(3)).layer(TimeoutLayer::new(secs(2)).layer(probe.clone()));
        let outer = service_fn(move |_: u32| {
            let inner = inner.clone();
            async move {
                let ten = Some(Deadline::at(start + secs(10)));
                let mut call = pin!(inner.oneshot(1));
                assert!(panics(call.as_mut()).await);
                assert_eq!(Deadline::current(), ten, "in the poll that caught it");
                yield_now().await;
                assert_eq!(Deadline::current(), ten, "and in the next");
                // What is timed here still borrows the outer timer, and is exact.
                let (answer, took) = timed(TimeoutLayer::new(secs(4)).layer(silent())).await;
                assert_eq!((elapsed(answer), took), (attempt(secs(4)), secs(4)));
                std::future::pending::<Result<u32, std::convert::Infallible>>().await
            }
        });
        let (answer, took) = timed(DeadlineLayer::new(secs(10)).layer(outer)).await;
        assert_eq!((elapsed(answer), took), (total(secs(10)), secs(10)));
        assert_eq!((Deadline::current(), probe.in_flight()), (None, 0));
        let (_, took) = timed(TimeoutLayer::new(ms(20)).layer(silent())).await;
        assert_eq!(took, ms(20));
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_knows_when_it_is_given_up_in_call_and_in_every_poll() {
    let start = edge::now();
    let at = |n| Some(Deadline::at(start + secs(n)));
    let seen = |context: Context| (context.deadline(), context.attempt_deadline());

    let stack = DeadlineLayer::new(secs(30)).layer(TimeoutLayer::new(secs(10)).layer(mirror()));
    assert_eq!(stack.oneshot(()).await.unwrap().map(seen), [(at(30), at(10)); 2]);

    let only = TimeoutLayer::call_only(secs(10)).layer(mirror());
    let only = DeadlineLayer::new(secs(30)).layer(only);
    assert_eq!(only.oneshot(()).await.unwrap().map(seen), [(at(30), at(10)); 2]);

    // Where less is left of the request, that is what the attempt has.
    let short = DeadlineLayer::new(secs(3)).layer(TimeoutLayer::new(secs(10)).layer(mirror()));
    assert_eq!(short.oneshot(()).await.unwrap().map(seen), [(at(3), at(3)); 2]);

    let nested = TimeoutLayer::new(secs(5)).layer(TimeoutLayer::new(secs(10)).layer(mirror()));
    assert_eq!(nested.oneshot(()).await.unwrap().map(seen), [(None, at(5)); 2]);

    let endless = TimeoutLayer::new(std::time::Duration::MAX).layer(mirror());
    assert_eq!(endless.oneshot(()).await.unwrap().map(seen), [(None, None); 2]);
    assert_eq!(Deadline::of_attempt(), None);
}
