//! How long an answer is worth having.

use std::{convert::Infallible, pin::pin, time::Duration};

use buttress_core::{BoxError, Deadline, edge};
use buttress_deadline::{DeadlineLayer, TimeoutLayer};
use buttress_test::Act;
use tokio::time::{advance, sleep};
use tower::{Layer, Service, ServiceExt, service_fn, util::BoxCloneService};

use crate::support::{
    attempt, due_in, echo, elapsed, ms, poll_once, secs, seen, silent, timed, total,
};

#[tokio::test(start_paused = true)]
async fn a_silent_service_is_given_up_at_the_deadline() {
    let (answer, took) = timed(DeadlineLayer::new(secs(30)).layer(silent())).await;
    assert_eq!((elapsed(answer), took), (total(secs(30)), secs(30)));
}

#[tokio::test(start_paused = true)]
async fn an_answer_at_the_very_instant_wins() {
    let probe = echo();
    probe.script([Act::Delay(secs(5))]);
    let (answer, took) = timed(DeadlineLayer::new(secs(5)).layer(probe)).await;
    assert_eq!((answer.unwrap(), took), (7, secs(5)));
}

#[tokio::test(start_paused = true)]
async fn the_callees_error_is_passed_on() {
    let probe = echo();
    probe.script([Act::Fail("down".into())]);
    let (answer, _) = timed(DeadlineLayer::new(secs(5)).layer(probe)).await;
    assert_eq!(answer.unwrap_err().to_string(), "down");
}

// TMO-07
#[tokio::test(start_paused = true)]
async fn the_inner_call_is_gone_in_the_poll_that_finds_the_time_up() {
    let probe = echo();
    probe.script([Act::Hang, Act::Hang, Act::Hang]);
    let mut deadline = DeadlineLayer::new(secs(5)).layer(probe.clone());
    let mut timeout = TimeoutLayer::new(secs(5)).layer(probe.clone());
    let mut only = TimeoutLayer::call_only(secs(5)).layer(probe.clone());
    let mut deadline = pin!(deadline.ready().await.unwrap().call(1));
    let mut timeout = pin!(timeout.ready().await.unwrap().call(1));
    let mut only = pin!(only.ready().await.unwrap().call(1));
    assert_eq!(probe.in_flight(), 3);
    assert!(deadline.as_mut().await.is_err());
    assert_eq!(probe.in_flight(), 2, "the future is still there, what it waited for is not");
    assert!(timeout.as_mut().await.is_err());
    assert!(only.as_mut().await.is_err());
    assert_eq!(probe.in_flight(), 0);
}

#[tokio::test(start_paused = true)]
async fn whoever_walks_away_takes_the_inner_call_along() {
    for polls in 0..5 {
        let probe = echo();
        probe.script([Act::Steps(10)]);
        let mut service =
            DeadlineLayer::new(secs(5)).layer(TimeoutLayer::new(secs(1)).layer(probe.clone()));
        let mut call = Box::pin(service.ready().await.unwrap().call(1));
        for _ in 0..polls {
            assert!(poll_once(call.as_mut()).await.is_pending());
        }
        assert_eq!(probe.in_flight(), 1);
        drop(call);
        assert_eq!(probe.in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn the_smaller_of_nested_deadlines_wins() {
    for (outer, inner) in [(5, 60), (60, 5), (5, 5)] {
        let nested =
            DeadlineLayer::new(secs(outer)).layer(DeadlineLayer::new(secs(inner)).layer(silent()));
        let (answer, took) = timed(nested).await;
        assert_eq!((elapsed(answer), took), (total(secs(5)), secs(5)));
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_inherited_never_grows() {
    let start = edge::now();
    let nested = DeadlineLayer::new(secs(5)).layer(DeadlineLayer::new(secs(60)).layer(seen()));
    let five = Some(Deadline::at(start + secs(5)));
    assert_eq!(nested.oneshot(()).await.unwrap(), (five, five));
}

#[tokio::test(start_paused = true)]
async fn the_error_tells_what_was_left_where_the_requests_own_deadline_was_the_smaller() {
    let context = due_in(secs(5));
    advance(secs(2)).await;
    let call = DeadlineLayer::new(secs(30)).layer(silent()).oneshot(1);
    assert_eq!(elapsed(context.scope(call).await), total(secs(3)));
}

#[tokio::test(start_paused = true)]
async fn it_is_known_beneath_in_call_and_in_every_poll_and_nowhere_else() {
    let start = edge::now();
    let mut service = DeadlineLayer::new(secs(5)).layer(seen());
    let call = service.ready().await.unwrap().call(());
    assert_eq!(Deadline::current(), None);
    advance(secs(1)).await;
    let mut call = pin!(call);
    assert!(poll_once(call.as_mut()).await.is_pending());
    assert_eq!(Deadline::current(), None);
    let five = Some(Deadline::at(start + secs(5)));
    assert_eq!(call.await.unwrap(), (five, five));
}

/// Asks again and again, and knows nothing of deadlines.
async fn ask_again<S>(service: S, wait: Duration) -> Result<u32, Infallible>
where
    S: Service<u32, Response = u32, Error = BoxError> + Clone,
{
    loop {
        if let Ok(answer) = service.clone().oneshot(1).await {
            return Ok(answer);
        }
        sleep(wait).await;
    }
}

// TMO-04
#[tokio::test(start_paused = true)]
async fn attempts_end_at_their_own_limit_and_the_last_one_at_the_deadline() {
    let probe = echo();
    probe.script((0..9).map(|_| Act::Hang));
    let one = TimeoutLayer::new(secs(1)).layer(probe.clone());
    let again = service_fn(move |_| ask_again(one.clone(), Duration::ZERO));
    let (answer, took) = timed(DeadlineLayer::new(ms(2500)).layer(again)).await;
    assert_eq!((elapsed(answer), took), (total(ms(2500)), ms(2500)));
    assert_eq!((probe.calls(), probe.in_flight()), (3, 0), "at 0 s, 1 s and 2 s");
}

// TMO-04
#[tokio::test(start_paused = true)]
async fn a_deadline_ends_a_sleep_and_does_not_wait_for_it() {
    let probe = echo();
    probe.script((0..9).map(|_| Act::Fail("down".into())));
    let again = service_fn(move |_| ask_again(probe.clone(), secs(60)));
    let (answer, took) = timed(DeadlineLayer::new(secs(5)).layer(again)).await;
    assert_eq!((elapsed(answer), took), (total(secs(5)), secs(5)));
}

// TMO-05
#[tokio::test(start_paused = true)]
async fn no_number_of_attempts_arms_it_anew() {
    let probe = echo();
    probe.script((0..1000).map(|_| Act::Fail("down".into())));
    let one = DeadlineLayer::new(secs(5)).layer(probe.clone());
    let again = service_fn(move |_| ask_again(one.clone(), ms(100)));
    let (answer, took) = timed(DeadlineLayer::new(secs(5)).layer(again)).await;
    assert_eq!((elapsed(answer), took), (total(secs(5)), secs(5)));
    assert_eq!(probe.calls(), 50, "one each 100 ms, the first at once");
}

// TMO-05
#[tokio::test(start_paused = true)]
async fn a_request_that_enters_again_finds_less_time_each_time() {
    let stack = DeadlineLayer::new(secs(5)).layer(service_fn(|()| async {
        sleep(secs(1)).await;
        Ok::<_, Infallible>(Deadline::current().unwrap().left(edge::now()))
    }));
    let lefts = due_in(secs(5)).scope(async {
        let mut lefts = Vec::new();
        while let Ok(left) = stack.clone().oneshot(()).await {
            lefts.push(left);
        }
        lefts
    });
    // The last one answers at the very instant, and the next one is refused.
    assert_eq!(lefts.await, [4, 3, 2, 1, 0].map(secs));
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_jumps_by_a_year_ends_what_is_silent_and_keeps_what_is_answered() {
    let year = secs(365 * 86_400);
    let probe = echo();
    probe.script([Act::Hang, Act::Delay(secs(3))]);
    let mut service = DeadlineLayer::new(secs(30)).layer(TimeoutLayer::new(secs(10)).layer(probe));
    let mut silent = pin!(service.ready().await.unwrap().call(1));
    let mut answered = pin!(service.ready().await.unwrap().call(2));
    assert!(poll_once(silent.as_mut()).await.is_pending());
    assert!(poll_once(answered.as_mut()).await.is_pending());
    advance(year).await;
    assert_eq!(elapsed(silent.await), attempt(secs(10)), "of two that are over, the first speaks");
    assert_eq!(answered.await.unwrap(), 2, "late, but there");
}

#[tokio::test(start_paused = true)]
async fn a_future_that_moves_to_another_task_keeps_its_deadline() {
    let start = edge::now();
    let service: BoxCloneService<_, _, _> = BoxCloneService::new(silent());
    let mut service =
        DeadlineLayer::new(secs(30)).layer(TimeoutLayer::new(secs(10)).layer(service));
    let mut call = Box::pin(service.ready().await.unwrap().call(1));
    assert!(poll_once(call.as_mut()).await.is_pending());
    advance(secs(3)).await;
    assert_eq!(elapsed(tokio::spawn(call).await.unwrap()), attempt(secs(10)));
    assert_eq!(edge::now() - start, secs(10));
}
