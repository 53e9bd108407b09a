//! How long it waits, and what no deadline has room for.

use std::{future, time::Duration};

use crate::support::*;
use buttress_core::{BoxError, Context, Deadline, Elapsed, Limit, Reason, Rejected, edge, find};
use buttress_retry::{Backoff, Budget, BudgetSettings, RetryLayer};
use futures_util::FutureExt;
use tokio::time::advance;
use tower::{Layer, Service, ServiceExt, limit::ConcurrencyLimit, service_fn};

fn jittered(base: Duration, cap: Duration) -> RetryLayer<Classifier> {
    RetryLayer::new(Backoff::exponential(base, cap), rich()).classify(classify as Classifier)
}

/// When the attempts begin, drawn as the retry draws: two numbers for each wait, of which an answer without
/// a hint needs one.
fn drawn(seed: u64, backoff: Backoff, attempts: u32) -> Vec<Duration> {
    edge::seed(seed);
    let mut at = Duration::ZERO;
    let mut all = vec![at];
    for n in 0..attempts - 1 {
        at += backoff.delay(n, edge::unit());
        let _ = edge::unit();
        all.push(at);
    }
    edge::seed(seed);
    all
}

/// Whether each came at its instant: tokio's timers fire at the end of the millisecond.
fn assert_on_time(seen: &[Duration], due: &[Duration]) {
    assert_eq!(seen.len(), due.len(), "{seen:?} and {due:?}");
    let mut late = Duration::ZERO;
    for (seen, due) in seen.iter().zip(due) {
        let due = *due + late;
        assert!(*seen >= due && *seen < due + MS, "{seen:?} is not {due:?}");
        // A wait begins when the answer came, which was so much later.
        late += *seen - due;
    }
}

#[tokio::test(start_paused = true)]
async fn waits_are_drawn_below_ceilings_that_double_to_the_cap() {
    for seed in 0..20 {
        let backoff = Backoff::exponential(100 * MS, SEC);
        let due = drawn(seed, backoff, 8);
        let callee = Callee::always(BUSY);
        send(&mut over(&jittered(100 * MS, SEC).attempts(8), &callee)).await.unwrap();
        assert_on_time(&callee.times(), &due);
    }
}

// BKO-05
#[tokio::test(start_paused = true)]
async fn a_wait_that_does_not_fit_ends_it_now_and_not_at_the_deadline() {
    // 4, 8, 16: asked for, so that they are known.
    let acts = [4, 8, 16, 32].map(|after| Act::Answer(later(after * SEC)));
    let callee = Callee::new(acts);
    let mut service = over(&at_once().attempts(9), &callee);
    let answer = total(15 * SEC, || send(&mut service)).await.unwrap();
    assert_eq!(answer, later(16 * SEC), "with the time that it asks for");
    assert_eq!(callee.times(), [0, 4, 12].map(|s| s * SEC));
    assert_eq!(callee.elapsed(), 12 * SEC);
}

// BKO-05
#[tokio::test(start_paused = true)]
async fn no_attempt_begins_at_the_deadline_itself() {
    for (after, calls) in [(5 * SEC, 1), (5 * SEC - MS, 2)] {
        let callee = Callee::new([Act::Answer(later(after)), Act::Answer(OK)]);
        let mut service = over(&at_once(), &callee);
        let _ = total(5 * SEC, || send(&mut service)).await.unwrap();
        assert_eq!(callee.calls(), calls, "{after:?}");
    }
}

// BKO-05
#[tokio::test(start_paused = true)]
async fn drawn_waits_stop_where_the_deadline_has_no_room() {
    for seed in 0..50 {
        let limit = 15 * SEC;
        let due = drawn(seed, Backoff::exponential(4 * SEC, 3600 * SEC), 10);
        let due: Vec<_> = due.into_iter().take_while(|at| *at < limit - 20 * MS).collect();
        let callee = Callee::always(BUSY);
        let mut service = over(&jittered(4 * SEC, 3600 * SEC).attempts(10), &callee);
        assert_eq!(total(limit, || send(&mut service)).await.unwrap(), BUSY);
        assert_on_time(&callee.times(), &due);
        assert_eq!(callee.elapsed(), *callee.times().last().unwrap(), "no sleep after the last");
    }
}

// BKO-05, BKO-10
#[tokio::test(start_paused = true)]
async fn an_endless_wait_is_not_begun() {
    let endless = RetryLayer::new(Backoff::exponential(Duration::MAX, Duration::MAX), rich())
        .classify(classify as Classifier)
        .max_retry_after(Duration::MAX);
    let callee = Callee::new([later(Duration::MAX), later(Duration::MAX), BUSY].map(Act::Answer));
    let mut service = over(&endless, &callee);
    assert_eq!(send(&mut service).await.unwrap(), later(Duration::MAX));
    assert_eq!(total(SEC, || send(&mut service)).await.unwrap(), later(Duration::MAX));
    assert_eq!(total(SEC, || send(&mut service)).await.unwrap(), BUSY);
    assert_eq!((callee.calls(), callee.elapsed()), (3, ZERO));
}

// BKO-10
#[tokio::test(start_paused = true)]
async fn zero_waits_repeat_in_the_same_instant_and_a_nanosecond_works() {
    for (base, cap) in [(0, 0), (0, 1), (1, 1)] {
        let callee = Callee::always(BUSY);
        let layer = jittered(Duration::from_nanos(base), Duration::from_nanos(cap));
        send(&mut over(&layer, &callee)).await.unwrap();
        assert_eq!(callee.calls(), 3);
        assert!(callee.elapsed() <= 2 * MS, "{:?}", callee.elapsed());
        assert!(base > 0 || callee.elapsed().is_zero());
    }
}

// BKO-07
#[tokio::test(start_paused = true)]
async fn nobody_comes_before_the_time_the_callee_asked_for_nor_all_in_step() {
    let mut came = Vec::new();
    for seed in 0..50 {
        edge::seed(seed);
        let callee = Callee::new([Act::Answer(later(7 * SEC)), Act::Answer(OK)]);
        send(&mut over(&jittered(100 * MS, 5 * SEC), &callee)).await.unwrap();
        let at = callee.times()[1];
        assert!(at >= 7 * SEC && at <= 7 * SEC + 100 * MS, "{at:?}");
        came.push(at);
    }
    came.sort();
    came.dedup();
    assert!(came.len() > 30, "{} instants of 50", came.len());
}

// BKO-07
#[tokio::test(start_paused = true)]
async fn the_schedule_holds_where_it_asks_for_more_than_the_callee() {
    let mut longer = 0;
    for seed in 0..20 {
        let due = drawn(seed, Backoff::exponential(4 * SEC, 4 * SEC), 2);
        let callee = Callee::new([Act::Answer(later(SEC)), Act::Answer(OK)]);
        send(&mut over(&jittered(4 * SEC, 4 * SEC), &callee)).await.unwrap();
        if due[1] >= SEC {
            assert_on_time(&callee.times(), &due);
            longer += 1;
        }
    }
    assert!(longer > 10, "{longer} of 20 drew more than the second that was asked for");
}

// BKO-08
#[tokio::test(start_paused = true)]
async fn a_time_that_has_passed_does_not_bring_everyone_back_at_once() {
    let mut came = Vec::new();
    for seed in 0..50 {
        edge::seed(seed);
        let callee = Callee::new([Act::Answer(later(ZERO)), Act::Answer(OK)]);
        send(&mut over(&jittered(SEC, 5 * SEC), &callee)).await.unwrap();
        let at = callee.times()[1];
        assert!(at > ZERO && at <= SEC, "{at:?}");
        came.push(at);
    }
    assert!(came.iter().max().unwrap().saturating_sub(*came.iter().min().unwrap()) > 800 * MS);
}

// BKO-09
#[tokio::test(start_paused = true)]
async fn a_callee_that_asks_for_an_hour_is_answered_for_at_once_with_its_own_answer() {
    for after in [60 * SEC + MS, 3600 * SEC, Duration::MAX] {
        let budget = Budget::default();
        let callee = Callee::always(later(after));
        let answer = send(&mut over(&within(&budget), &callee)).await.unwrap();
        assert_eq!((answer, callee.calls()), (later(after), 1));
        assert_eq!((callee.elapsed(), budget.stats().granted), (ZERO, 0));
    }
    let callee = Callee::always(later(3600 * SEC));
    let mut service = over(&at_once().max_retry_after(Duration::MAX), &callee);
    let answer = total(5 * SEC, || send(&mut service)).await.unwrap();
    assert_eq!((answer, callee.elapsed()), (later(3600 * SEC), ZERO));
}

// BKO-09
#[tokio::test(start_paused = true)]
async fn what_a_callee_may_ask_for_can_be_set() {
    for (most, calls) in [(ZERO, 1), (SEC - MS, 1), (SEC, 3), (Duration::MAX, 3)] {
        let callee = Callee::always(later(SEC));
        send(&mut over(&at_once().max_retry_after(most), &callee)).await.unwrap();
        assert_eq!(callee.calls(), calls, "{most:?}");
    }
    let callee = Callee::always(later(60 * SEC));
    send(&mut over(&at_once(), &callee)).await.unwrap();
    assert_eq!(callee.elapsed(), 120 * SEC, "a minute by default");
}

// TMO-04
#[tokio::test(start_paused = true)]
async fn an_attempt_that_runs_out_of_time_is_repeated_and_the_last_gets_what_is_left() {
    let callee = Callee::new((0..5).map(|_| Act::Hang));
    let mut service = at_once().attempts(5).layer(Attempt(callee.clone(), SEC));
    let error = total(2500 * MS, || send(&mut service)).await.unwrap_err();
    assert_eq!(error.downcast_ref(), Some(&Elapsed::new(Limit::Total, 2500 * MS)));
    assert_eq!(callee.times(), [0, 1, 2].map(|s| s * SEC));
    assert_eq!(callee.elapsed(), 2500 * MS);
}

// TMO-04
#[tokio::test(start_paused = true)]
async fn a_deadline_that_comes_sooner_than_it_was_cuts_the_wait() {
    let callee = Callee::always(later(10 * SEC));
    let mut service = over(&at_once(), &callee);
    let service = service.ready().await.unwrap();
    // Called with a minute, waited for with five seconds.
    let minute = Context::default().with_deadline(Deadline::after(60 * SEC));
    let call = minute.within(|| service.call("request"));
    let error = total(5 * SEC, || call).await.unwrap_err();
    assert_eq!(error.downcast_ref(), Some(&Elapsed::new(Limit::Total, 5 * SEC)));
    assert_eq!((callee.calls(), callee.elapsed()), (1, 5 * SEC));
}

// TMO-05
#[tokio::test(start_paused = true)]
async fn no_number_of_attempts_outlives_the_deadline() {
    let callee = Callee::always(later(100 * MS));
    let mut service = over(&at_once().attempts(u32::MAX), &callee);
    let answer = total(5 * SEC, || send(&mut service)).await.unwrap();
    assert_eq!(answer, later(100 * MS));
    assert_eq!((callee.calls(), callee.elapsed()), (50, 4900 * MS));
}

// TMO-05
#[tokio::test(start_paused = true)]
async fn a_request_that_enters_again_has_only_what_is_left_of_its_time() {
    let callee = Callee::always(later(2 * SEC));
    let mut service = over(&at_once().attempts(9), &callee);
    let answer = total(5 * SEC, || async move {
        total(60 * SEC, || send(&mut service)).await?;
        total(60 * SEC, || send(&mut service)).await
    });
    assert_eq!(answer.await.unwrap(), later(2 * SEC));
    assert_eq!(callee.times(), [0, 2, 4, 4].map(|s| s * SEC));
}

#[tokio::test(start_paused = true)]
async fn the_deadline_at_the_call_holds_wherever_it_is_polled() {
    let callee = Callee::always(later(3 * SEC));
    let mut service = over(&at_once(), &callee);
    let service = service.ready().await.unwrap();
    let soon = Context::default().with_deadline(Deadline::after(2 * SEC));
    let call = soon.within(|| service.call("request"));
    assert_eq!(tokio::spawn(call).await.unwrap().unwrap(), later(3 * SEC));
    assert_eq!((callee.calls(), callee.elapsed()), (1, ZERO));

    // As from the worker of a buffer: the call knows of none, the polls do.
    let call = service.call("request");
    assert_eq!(soon.scope(call).await.unwrap(), later(3 * SEC));
    assert_eq!((callee.calls(), callee.elapsed()), (2, ZERO));
}

const LATE: Rejected = Rejected::new(Reason::DeadlineExceeded, "retry");

/// Two seconds are left.
fn soon() -> Context {
    Context::default().with_deadline(Deadline::after(2 * SEC))
}

// TMO-01
#[tokio::test(start_paused = true)]
async fn an_attempt_whose_callee_is_ready_too_late_is_not_sent_nor_waited_for_any_longer() {
    for ready in [2 * SEC, 10 * SEC, 100_000 * SEC] {
        for (first, refused) in [(failed(1), false), (Act::Answer(BUSY), true)] {
            let budget = budget(BudgetSettings::default().refill(0.0));
            let callee = Callee::new([first]).readiness([Readiness::Now, Readiness::After(ready)]);
            let mut service = over(&within(&budget), &callee);
            let service = service.ready().await.unwrap();
            let error = soon().within(|| service.call("request")).await.unwrap_err();
            assert_eq!(find(&*error), refused.then_some(&LATE));
            assert!(!error.is::<Rejected>(), "the first attempt was sent");
            assert_eq!(error.is::<Failed>(), !refused, "what the callee said last tells more");
            assert_eq!((callee.calls(), budget.balance()), (1, 2.0));
            assert_eq!(callee.elapsed(), 2 * SEC);
        }
    }
}

// TMO-01
#[tokio::test(start_paused = true)]
async fn a_first_attempt_whose_callee_is_not_ready_by_the_deadline_is_not_sent() {
    for ready in [2 * SEC, 10 * SEC, 100_000 * SEC] {
        // It may be in charge, have nothing to be in charge of, or be beneath one that is.
        for (layer, attempt) in [(at_once(), 0), (at_once().attempts(1), 0), (at_once(), 1)] {
            // As from the worker of a buffer: the call knows of no deadline, the polls do.
            for known_at_the_call in [true, false] {
                // The service itself is asked first, is not ready, and is replaced.
                let readiness = [ready, ready].map(Readiness::After);
                let callee = Callee::new([Act::Answer(OK)]).readiness(readiness);
                let mut service = over(&layer, &callee);
                let service = service.ready().await.unwrap();
                let (with, without) = (soon(), Context::default());
                let (called_in, polled_in) =
                    if known_at_the_call { (with, without) } else { (without, with) };
                let called_in = called_in.with_attempt(attempt);
                let call = called_in.within(|| service.call("request"));
                let error = polled_in.scope(call).await.unwrap_err();
                assert_eq!(error.downcast_ref(), Some(&LATE), "nothing was ever sent");
                assert_eq!((callee.calls(), callee.elapsed()), (0, 2 * SEC));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn readiness_that_comes_in_time_is_used() {
    let readiness = [2 * SEC, 2 * SEC - MS].map(Readiness::After);
    let callee = Callee::new([Act::Slow(10 * SEC, OK)]).readiness(readiness);
    let mut service = over(&at_once(), &callee);
    let service = service.ready().await.unwrap();
    let answer = soon().within(|| service.call("request")).await.unwrap();
    assert_eq!((answer, callee.calls()), (OK, 1));
    assert_eq!(callee.elapsed(), 12 * SEC - MS, "the attempt itself is for others to end");
}

#[tokio::test(start_paused = true)]
async fn the_limit_above_is_who_says_that_there_was_no_time_for_readiness() {
    for readiness in [[10, 10], [0, 10]] {
        let readiness = readiness.map(|seconds| Readiness::After(seconds * SEC));
        let callee = Callee::new([Act::Answer(BUSY)]).readiness(readiness);
        let mut service = over(&at_once(), &callee);
        let error = total(2 * SEC, || send(&mut service)).await.unwrap_err();
        assert_eq!(error.downcast_ref(), Some(&Elapsed::new(Limit::Total, 2 * SEC)));
        assert_eq!(callee.elapsed(), 2 * SEC);
    }
}

#[tokio::test(start_paused = true)]
async fn a_callee_that_was_waited_for_too_long_is_let_go_of_with_the_answer() {
    let hangs = service_fn(|_: &'static str| future::pending::<Result<(), BoxError>>());
    let one_place = ConcurrencyLimit::new(hangs, 1);
    let held = one_place.clone().ready_oneshot().await.unwrap().call("holds the place");
    let mut service = RetryLayer::new(Backoff::none(), rich()).layer(one_place.clone());
    let service = service.ready().await.unwrap();
    let mut call = Box::pin(soon().within(|| service.call("waits in the queue")));
    assert!((&mut call).await.unwrap_err().is::<Rejected>());
    drop(held);
    let free = one_place.ready_oneshot().now_or_never();
    assert!(free.is_some(), "what is left of the call keeps no place");
    drop(call);
}

#[tokio::test(start_paused = true)]
async fn a_late_wake_sends_no_first_attempt_after_the_deadline() {
    let readiness = [SEC, SEC].map(Readiness::After);
    let callee = Callee::new([Act::Answer(OK)]).readiness(readiness);
    let mut service = over(&at_once(), &callee);
    let service = service.ready().await.unwrap();
    let mut call = tokio_test::task::spawn(soon().within(|| service.call("request")));
    assert!(call.poll().is_pending());
    // It is ready after a second. The task gets its turn only now, as in a process that was stopped.
    advance(2 * SEC).await;
    let error = tokio_test::assert_ready!(call.poll()).unwrap_err();
    assert_eq!((error.downcast_ref(), callee.calls()), (Some(&LATE), 0));
}

#[tokio::test(start_paused = true)]
async fn a_late_wake_sends_nothing_after_the_deadline() {
    let budget = budget(BudgetSettings::default().refill(0.0));
    let callee = Callee::new([failed(1), Act::Answer(OK)]);
    let layer = RetryLayer::new(Backoff::exponential(SEC, SEC), budget.clone());
    let mut service = over(&layer, &callee);
    let service = service.ready().await.unwrap();
    let soon = Context::default().with_deadline(Deadline::after(2 * SEC));
    let mut call = tokio_test::task::spawn(soon.scope(soon.within(|| service.call("request"))));
    assert!(call.poll().is_pending());
    // The task gets its turn only now, as in a process that was stopped.
    advance(2 * SEC).await;
    tokio_test::assert_ready!(call.poll()).unwrap_err().downcast::<Failed>().unwrap();
    assert_eq!((callee.calls(), budget.balance()), (1, 2.0));
}
