//! Where a request goes, its deadline goes.

use std::{
    convert::Infallible,
    future::{pending, ready},
    pin::pin,
};

use buttress_core::{Context, Deadline, edge};
use buttress_deadline::{DeadlineLayer, EntryLayer, TimeoutLayer};
use buttress_test::{Act, Readiness};
use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::time::{advance, sleep};
use tower::{BoxError, Layer, Service, ServiceExt, buffer::Buffer, service_fn, util::BoxService};

use crate::support::{
    LATE, LATE_ATTEMPT, attempt, due_in, echo, elapsed, poll_once, rejected, secs, seen, silent,
    timed, total,
};

#[tokio::test(start_paused = true)]
async fn through_a_buffer_both_limits_are_exact() {
    for (deadline, expected) in [(30, attempt(secs(10))), (5, total(secs(5)))] {
        let buffered = Buffer::new(TimeoutLayer::new(secs(10)).layer(silent()), 4);
        let (answer, took) = timed(DeadlineLayer::new(secs(deadline)).layer(buffered)).await;
        assert_eq!((elapsed(answer), took), (expected, expected.limit()));
    }
}

#[tokio::test(start_paused = true)]
async fn beneath_a_buffer_a_deadline_that_nobody_enforces_is_found_at_the_first_poll() {
    let start = edge::now();
    let attempts = Buffer::new(TimeoutLayer::new(secs(10)).layer(silent()), 4);
    let answer = due_in(secs(3)).scope(attempts.oneshot(1)).await;
    assert_eq!((elapsed(answer), edge::now() - start), (total(secs(3)), secs(3)));

    let start = edge::now();
    let requests = Buffer::new(DeadlineLayer::new(secs(10)).layer(silent()), 4);
    let answer = due_in(secs(3)).scope(requests.oneshot(1)).await;
    assert_eq!((elapsed(answer), edge::now() - start), (total(secs(3)), secs(3)));

    let start = edge::now();
    let requests = Buffer::new(DeadlineLayer::new(secs(10)).layer(seen()), 4);
    let (in_call, in_poll) = due_in(secs(3)).scope(requests.oneshot(())).await.unwrap();
    assert_eq!(in_call, Some(Deadline::at(start + secs(10))), "a buffer calls elsewhere");
    assert_eq!(in_poll, Some(Deadline::at(start + secs(3))));
}

type Told = (tokio::time::Instant, Option<Deadline>);

fn boxed<S>(service: S) -> BoxService<(), Told, BoxError>
where
    S: Service<(), Response = Told, Error: Into<BoxError>> + Send + 'static,
    S::Future: Send,
{
    BoxService::new(service.map_err(Into::into))
}

#[tokio::test(start_paused = true)]
async fn the_layers_of_one_call_agree_when_it_was_made_and_nobody_beneath_them_has_to() {
    let told =
        || service_fn(|()| ready(Ok::<_, Infallible>((edge::called(), Deadline::current()))));
    let earlier = edge::now();
    advance(secs(1)).await;
    let call = async |mut service: BoxService<_, _, _>| {
        service.ready().await.unwrap();
        edge::within_call(Some(earlier), || service.call(())).await.unwrap()
    };
    let until = Deadline::at(earlier + secs(10));
    let entry = EntryLayer::new(secs(10)).above_ours().layer(told());
    assert_eq!(call(boxed(entry)).await, (earlier, Some(until)));
    let deadline = DeadlineLayer::new(secs(10)).layer(told());
    assert_eq!(call(boxed(deadline)).await, (earlier, Some(until)));
    for attempt in [
        boxed(TimeoutLayer::new(secs(10)).layer(told())),
        boxed(TimeoutLayer::call_only(secs(10)).layer(told())),
    ] {
        assert_eq!(call(attempt).await.0, edge::now(), "who works first looks for itself");
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_is_found_passed_at_the_first_poll_sends_nothing() {
    let probe = echo();
    probe.set_readiness(Readiness::Pending);
    let mut deadline = DeadlineLayer::new(secs(10)).layer(probe.clone());
    let mut timeout = TimeoutLayer::new(secs(10)).layer(probe.clone());
    let deadline = deadline.ready().await.unwrap().call(1);
    let timeout = timeout.ready().await.unwrap().call(1);
    probe.set_readiness(Readiness::Ready);
    let passed = due_in(secs(1));
    advance(secs(2)).await;
    assert_eq!(rejected(passed.scope(deadline).await), LATE);
    assert_eq!(rejected(passed.scope(timeout).await), LATE_ATTEMPT);
    assert_eq!(probe.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn in_another_task_an_attempt_has_its_own_timer_and_what_was_carried() {
    let one = TimeoutLayer::new(secs(10)).layer(silent());
    let spawned = {
        let one = one.clone();
        service_fn(move |n| {
            let call = one.clone().oneshot(n);
            async { tokio::spawn(call).await.unwrap() }
        })
    };
    let carried = service_fn(move |n| {
        let call = Context::current().scope(one.clone().oneshot(n));
        async { tokio::spawn(call).await.unwrap() }
    });
    let (answer, took) = timed(DeadlineLayer::new(secs(30)).layer(spawned.clone())).await;
    assert_eq!((elapsed(answer), took), (attempt(secs(10)), secs(10)));
    let (answer, took) = timed(DeadlineLayer::new(secs(3)).layer(spawned)).await;
    assert_eq!((elapsed(answer), took), (total(secs(3)), secs(3)));
    let (answer, took) = timed(DeadlineLayer::new(secs(3)).layer(carried)).await;
    assert_eq!((elapsed(answer), took), (total(secs(3)), secs(3)));
}

#[tokio::test(start_paused = true)]
async fn what_is_carried_to_another_task_ends_there_by_itself() {
    let start = edge::now();
    let (done, ended) = tokio::sync::oneshot::channel();
    let mut done = Some(done);
    let carries = service_fn(move |()| {
        let one = TimeoutLayer::new(secs(60)).layer(silent()).oneshot(1);
        let carried = Context::current().scope(one);
        let done = done.take().unwrap();
        tokio::spawn(async move { done.send((carried.await, edge::now())) });
        async { Ok::<_, Infallible>(()) }
    });
    let entered = buttress_deadline::EntryLayer::new(secs(3)).layer(carries);
    entered.oneshot(()).await.unwrap();
    let (answer, at) = ended.await.unwrap();
    assert_eq!((elapsed(answer), at - start), (total(secs(3)), secs(3)));
}

#[tokio::test(start_paused = true)]
async fn through_futures_unordered_each_attempt_is_exact() {
    let one = TimeoutLayer::new(secs(10)).layer(silent());
    let fan = service_fn(move |_: u32| {
        let one = one.clone();
        async move {
            let start = edge::now();
            let mut all: FuturesUnordered<_> = (0..3)
                .map(|n| {
                    let one = one.clone();
                    async move {
                        sleep(secs(n)).await;
                        (n, elapsed(one.oneshot(1).await), edge::now() - start)
                    }
                })
                .collect();
            let mut ends = Vec::new();
            while let Some(end) = all.next().await {
                ends.push(end);
            }
            Ok::<_, Infallible>(ends)
        }
    });
    let ends = DeadlineLayer::new(secs(30)).layer(fan.clone()).oneshot(1).await.unwrap();
    assert_eq!(ends, [0, 1, 2].map(|n| (n, attempt(secs(10)), secs(10 + n))));
    // The deadline ends all of them at once, each by a timer of its own.
    let mut ends = DeadlineLayer::new(secs(9)).layer(fan).oneshot(1).await.unwrap();
    ends.sort_by_key(|end| end.0);
    assert_eq!(ends, [0, 1, 2].map(|n| (n, total(secs(9 - n)), secs(9))));
}

#[tokio::test(start_paused = true)]
async fn a_hundred_requests_in_one_task_have_a_hundred_deadlines() {
    let start = edge::now();
    let mut all: FuturesUnordered<_> = (1..=100)
        .map(|n| {
            let call = DeadlineLayer::new(secs(n)).layer(silent()).oneshot(1);
            async move { (n, elapsed(call.await), edge::now() - start) }
        })
        .collect();
    for n in 1..=100 {
        assert_eq!(all.next().await, Some((n, total(secs(n)), secs(n))));
    }
}

#[tokio::test(start_paused = true)]
async fn joined_attempts_are_both_exact() {
    let joins = service_fn(|_: u32| async {
        let (long, short) = tokio::join!(
            timed(TimeoutLayer::new(secs(10)).layer(silent())),
            timed(TimeoutLayer::new(secs(7)).layer(silent())),
        );
        Ok::<_, Infallible>((elapsed(long.0), long.1, elapsed(short.0), short.1))
    });
    let ends = DeadlineLayer::new(secs(30)).layer(joins).oneshot(1).await.unwrap();
    assert_eq!(ends, (attempt(secs(10)), secs(10), attempt(secs(7)), secs(7)));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_lost_a_race_does_not_end_the_request() {
    let races = service_fn(|_: u32| async {
        tokio::select! {
            biased;
            _ = timed(TimeoutLayer::new(secs(10)).layer(silent())) => {}
            () = async {} => {}
        }
        pending::<Result<u32, Infallible>>().await
    });
    let (answer, took) = timed(DeadlineLayer::new(secs(30)).layer(races)).await;
    assert_eq!((elapsed(answer), took), (total(secs(30)), secs(30)));
}

#[tokio::test(start_paused = true)]
async fn a_handlers_deadline_ends_before_its_servers() {
    let client = DeadlineLayer::new(secs(20)).layer(TimeoutLayer::new(secs(60)).layer(silent()));
    let handler = service_fn(move |_: u32| {
        let client = client.clone();
        async move {
            let (answer, took) = timed(client).await;
            assert_eq!((elapsed(answer), took), (total(secs(20)), secs(20)));
            pending::<Result<u32, Infallible>>().await
        }
    });
    let (answer, took) = timed(DeadlineLayer::new(secs(30)).layer(handler)).await;
    assert_eq!((elapsed(answer), took), (total(secs(30)), secs(30)));
}

#[tokio::test(start_paused = true)]
async fn a_future_dropped_outside_any_poll_leaves_the_context_alone() {
    let probe = echo();
    probe.script([Act::Hang]);
    let mut service = DeadlineLayer::new(secs(5)).layer(probe.clone());
    let mut call = Box::pin(service.ready().await.unwrap().call(1));
    assert!(poll_once(pin!(call.as_mut())).await.is_pending());
    let other = due_in(secs(1));
    other.within(|| {
        drop(call);
        assert_eq!(Context::current(), other);
    });
    assert_eq!((Context::current(), probe.in_flight()), (Context::default(), 0));
}
