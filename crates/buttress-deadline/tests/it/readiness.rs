//! The wait for readiness counts.

use std::{pin::pin, time::Duration};

use buttress_core::edge;
use buttress_deadline::{DeadlineLayer, TimeoutLayer};
use buttress_test::{Act, Readiness};
use tokio::time::advance;
use tower::{
    Layer, Service, ServiceBuilder, ServiceExt,
    limit::{ConcurrencyLimit, RateLimitLayer},
};

use crate::support::{
    LATE, LATE_ATTEMPT, attempt, due_in, echo, elapsed, ms, poll_once, poll_ready, rejected, secs,
    timed,
};

// TMO-01
#[tokio::test(start_paused = true)]
async fn a_full_limit_is_waited_for_until_the_deadline_and_not_an_hour() {
    let probe = echo();
    probe.script([Act::Delay(secs(3600))]);
    let mut limit = ConcurrencyLimit::new(probe.clone(), 1);
    let mut service = DeadlineLayer::new(ms(10)).layer(limit.clone());
    let holder = tokio::spawn(limit.ready().await.unwrap().call(1));

    let start = edge::now();
    let answer = service.ready().await.unwrap().call(2).await;
    assert_eq!(rejected(answer), LATE, "nothing was sent");
    assert_eq!(edge::now() - start, ms(10));
    assert_eq!(probe.calls(), 1);

    holder.await.unwrap().unwrap();
    assert_eq!(service.ready().await.unwrap().call(3).await.unwrap(), 3, "usable afterwards");
    let mut limit = pin!(limit.ready());
    assert!(poll_once(limit.as_mut()).await.is_ready(), "and it holds no place");
}

// TMO-01
#[tokio::test(start_paused = true)]
async fn a_service_that_never_becomes_ready_is_given_up() {
    let probe = echo();
    probe.set_readiness(Readiness::Pending);
    let mut service = DeadlineLayer::new(ms(10)).layer(probe.clone());
    for _ in 0..3 {
        let (answer, took) = timed(&mut service).await;
        assert_eq!((rejected(answer), took), (LATE, ms(10)));
    }
    assert_eq!(probe.calls(), 0);
    probe.set_readiness(Readiness::Ready);
    assert_eq!(service.ready().await.unwrap().call(3).await.unwrap(), 3);
}

// TMO-01
#[tokio::test(start_paused = true)]
async fn an_attempt_that_was_never_sent_says_so() {
    let probe = echo();
    probe.set_readiness(Readiness::Pending);
    let (answer, took) = timed(TimeoutLayer::new(secs(10)).layer(probe.clone())).await;
    assert_eq!((elapsed(answer), took), (attempt(secs(10)).unsent(), secs(10)));
    assert_eq!(probe.calls(), 0);
}

// TMO-01
#[tokio::test(start_paused = true)]
async fn a_rate_that_is_used_up_is_not_waited_for_longer_than_the_attempt() {
    let mut service = ServiceBuilder::new()
        .layer(TimeoutLayer::new(ms(10)))
        .buffer(4)
        .layer(RateLimitLayer::new(1, secs(3600)))
        .service(echo());
    assert_eq!(service.ready().await.unwrap().call(1).await.unwrap(), 1);
    let (answer, took) = timed(&mut service).await;
    assert_eq!((elapsed(answer), took), (attempt(ms(10)), ms(10)));
    advance(secs(3600)).await;
    assert_eq!(service.ready().await.unwrap().call(2).await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_wait_and_the_call_share_one_limit() {
    let probe = echo();
    probe.set_readiness(Readiness::Pending);
    probe.script([Act::Delay(secs(7))]);
    let mut call = pin!(TimeoutLayer::new(secs(10)).layer(probe.clone()).oneshot(1));
    let start = edge::now();
    assert!(poll_once(call.as_mut()).await.is_pending());
    advance(secs(4)).await;
    probe.set_readiness(Readiness::Ready);
    assert_eq!(elapsed(call.await), attempt(secs(10)), "sent, and not answered in what was left");
    assert_eq!(edge::now() - start, secs(10));
}

#[tokio::test(start_paused = true)]
async fn time_between_readiness_and_the_call_is_nobodys() {
    let probe = echo();
    probe.script([Act::Delay(secs(9))]);
    let mut service = TimeoutLayer::new(secs(10)).layer(probe);
    assert!(poll_ready(&mut service).await.is_ready());
    advance(secs(3600)).await;
    assert_eq!(service.call(1).await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_limit_starts_at_the_call_and_not_at_the_first_poll() {
    let probe = echo();
    probe.script([Act::Hang]);
    let mut service = TimeoutLayer::new(secs(10)).layer(probe);
    let call = service.ready().await.unwrap().call(1);
    advance(secs(8)).await;
    let start = edge::now();
    assert_eq!(elapsed(call.await), attempt(secs(10)));
    assert_eq!(edge::now() - start, secs(2));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_once_the_time_is_up() {
    // Readiness comes with the very instant, or long after it.
    for late in [secs(5), secs(60)] {
        let probe = echo();
        probe.set_readiness(Readiness::Pending);
        let mut deadline = DeadlineLayer::new(secs(5)).layer(probe.clone());
        let mut timeout = TimeoutLayer::new(secs(5)).layer(probe.clone());
        let mut both = timeout.clone();
        let deadline = deadline.ready().await.unwrap().call(1);
        let timeout = timeout.ready().await.unwrap().call(1);
        both.ready().await.unwrap();
        let both = due_in(secs(5)).within(|| both.call(1));
        advance(late).await;
        probe.set_readiness(Readiness::Ready);
        assert_eq!(rejected(deadline.await), LATE);
        assert_eq!(elapsed(timeout.await), attempt(secs(5)).unsent());
        assert_eq!(rejected(both.await), LATE_ATTEMPT);
        assert_eq!(probe.calls(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn one_moment_before_the_deadline_it_is_sent() {
    let probe = echo();
    probe.set_readiness(Readiness::Pending);
    let mut service = DeadlineLayer::new(secs(5)).layer(probe.clone());
    let call = service.ready().await.unwrap().call(1);
    advance(secs(5) - Duration::from_nanos(1)).await;
    probe.set_readiness(Readiness::Ready);
    assert_eq!(call.await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_has_passed_refuses_before_anything_is_sent() {
    for left in [Duration::ZERO, secs(1)] {
        let probe = echo();
        let context = due_in(left);
        advance(secs(1)).await;
        let in_time = context.scope(async {
            let deadline = DeadlineLayer::new(secs(5)).layer(probe.clone()).oneshot(1).await;
            let timeout = TimeoutLayer::new(secs(5)).layer(probe.clone()).oneshot(1).await;
            let call = TimeoutLayer::call_only(secs(5)).layer(probe.clone()).oneshot(1).await;
            [deadline, timeout, call].map(rejected)
        });
        let start = edge::now();
        assert_eq!(in_time.await, [LATE, LATE_ATTEMPT, LATE_ATTEMPT]);
        assert_eq!((probe.calls(), edge::now() - start), (0, Duration::ZERO));
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_request_leaves_the_service_ready_for_the_next() {
    let probe = echo();
    let mut service = DeadlineLayer::new(secs(5)).layer(probe.clone());
    service.ready().await.unwrap();
    let refused = due_in(Duration::ZERO).within(|| service.call(1));
    assert_eq!(rejected(refused.await), LATE);
    assert_eq!(service.ready().await.unwrap().call(2).await.unwrap(), 2);
    assert_eq!(probe.violations(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_failure_to_become_ready_ends_the_request_that_waited() {
    let probe = echo();
    probe.set_readiness(Readiness::Pending);
    let mut service = DeadlineLayer::new(secs(5)).layer(probe.clone());
    let call = service.ready().await.unwrap().call(1);
    probe.set_readiness(Readiness::Failed);
    assert_eq!(call.await.unwrap_err().to_string(), "not ready, for ever");
    probe.set_readiness(Readiness::Ready);
    assert_eq!(service.ready().await.unwrap().call(2).await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_the_call_alone_forwards_readiness() {
    let probe = echo();
    probe.set_readiness(Readiness::Pending);
    let mut service = TimeoutLayer::call_only(secs(5)).layer(probe.clone());
    assert!(poll_ready(&mut service).await.is_pending());
    advance(secs(3600)).await;
    assert!(poll_ready(&mut service).await.is_pending());
    probe.set_readiness(Readiness::Ready);
    probe.script([Act::Hang]);
    assert!(poll_ready(&mut service).await.is_ready());
    let start = edge::now();
    assert_eq!(elapsed(service.call(1).await), attempt(secs(5)));
    assert_eq!(edge::now() - start, secs(5));
}
