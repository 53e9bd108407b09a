//! The layer: which calls go in, when, on which instance, and when they give their slots back.

use std::{
    convert::Infallible,
    future::{self, Ready},
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use buttress_bulkhead::{
    Bulkhead, BulkheadLayer, BulkheadService, BulkheadSettings, ResponseFuture, Slot,
};
use buttress_core::{
    BoxError, Class, Context as Ambient, Deadline, Observe, Permit, Reason, Rejected, edge,
};
use buttress_test::{Act, Probe, Readiness, Subject, contract};
use futures_util::{FutureExt, future::join_all};
use tokio::time::{advance, sleep, timeout};
use tokio_test::{assert_pending, assert_ready, task};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, limit::ConcurrencyLimit, service_fn};

const MS: Duration = Duration::from_millis(1);

fn bulkhead(limit: usize, max_waiting: usize, max_wait: Duration) -> Bulkhead {
    let settings = BulkheadSettings::new(limit).max_waiting(max_waiting).max_wait(max_wait);
    Bulkhead::new(settings).unwrap()
}

fn probe() -> Probe<u32, u32> {
    Probe::new(|n| n)
}

/// A probe whose calls take so long.
fn slow(calls: usize, delay: Duration) -> Probe<u32, u32> {
    let probe = probe();
    probe.script((0..calls).map(|_| Act::Delay(delay)));
    probe
}

fn reason<T>(result: &Result<T, BoxError>) -> Option<Reason> {
    let rejected = result.as_ref().err()?.downcast_ref::<Rejected>().expect("one of our refusals");
    assert_eq!(rejected.layer(), "bulkhead");
    Some(rejected.reason())
}

async fn called<S: Service<u32>>(service: &mut S, n: u32) -> S::Future
where
    S::Error: std::fmt::Debug,
{
    service.ready().await.unwrap().call(n)
}

// BLK-11
#[test]
fn it_keeps_the_contract_of_layers_with_a_queue_and_without() {
    for places in [0, 100] {
        contract(
            || {
                let bulkhead = bulkhead(3, places, 1000 * MS);
                Subject::new(BulkheadLayer::new(bulkhead.clone()), move || bulkhead.in_flight())
            },
            || 1,
            || 2,
        );
    }
}

// BLK-01
#[tokio::test(start_paused = true)]
async fn every_service_of_every_layer_around_one_bulkhead_shares_its_slots() {
    let five = bulkhead(5, 100, Duration::MAX);
    let probe = slow(50, 10 * MS);
    let layer = BulkheadLayer::new(five.clone());
    let other = BulkheadLayer::new(five.clone());
    let services: Vec<_> = (0..50)
        .map(|n| match n % 3 {
            0 => layer.layer(probe.clone()),
            1 => layer.clone().layer(probe.clone()).clone(),
            _ => other.layer(probe.clone()),
        })
        .collect();
    let answers = join_all(services.into_iter().map(|service| service.oneshot(1))).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(probe.max_in_flight(), 5);
    assert_eq!(five.in_flight(), 0);
}

// BLK-02
#[tokio::test(start_paused = true)]
async fn ready_and_idle_clones_leave_every_slot_free() {
    let two = bulkhead(2, 0, MS);
    let mut service = BulkheadLayer::new(two.clone()).layer(probe());
    let mut parked: Vec<_> = (0..100).map(|_| service.clone()).collect();
    for clone in &mut parked {
        clone.ready().await.unwrap();
    }
    assert_eq!(two.in_flight(), 0);
    assert_eq!(called(&mut service, 101).await.await.unwrap(), 101);
}

// BLK-02: differential.
#[tokio::test(start_paused = true)]
async fn what_idle_clones_do_to_load_shed_over_concurrency_limit_they_do_not_do_here() {
    let towers = ServiceBuilder::new().load_shed().concurrency_limit(10).service(probe());
    let ours = BulkheadLayer::new(bulkhead(10, 0, MS)).layer(probe());
    let mut idle: Vec<_> = (0..64).map(|_| (towers.clone(), ours.clone())).collect();
    for (towers, ours) in &mut idle {
        towers.ready().await.unwrap();
        ours.ready().await.unwrap();
    }
    sleep(3600 * 1000 * MS).await;
    assert!(towers.oneshot(1).await.is_err(), "nothing is in flight, and it refuses");
    assert_eq!(ours.oneshot(1).await.unwrap(), 1);
}

// BLK-04
#[tokio::test(start_paused = true)]
async fn an_inner_service_that_is_busy_is_waited_for_and_not_taken_for_a_full_bulkhead() {
    let ten = bulkhead(10, 0, MS);
    let probe = probe();
    probe.set_readiness(Readiness::Pending);
    let service = BulkheadLayer::new(ten.clone()).layer(probe.clone());
    let start = edge::now();
    let busy = async {
        sleep(50 * MS).await;
        assert_eq!(ten.in_flight(), 0, "readiness takes no slot");
        probe.set_readiness(Readiness::Ready);
    };
    let (answer, ()) = tokio::join!(service.oneshot(7), busy);
    assert_eq!(answer.unwrap(), 7);
    assert_eq!(edge::now() - start, 50 * MS);
}

// BLK-04
#[tokio::test(start_paused = true)]
async fn the_eleventh_of_ten_is_refused_in_the_first_poll() {
    let probe = slow(10, 100 * MS);
    let mut service = BulkheadLayer::new(bulkhead(10, 0, MS)).layer(probe.clone());
    let mut running = Vec::new();
    for n in 0..10 {
        running.push(called(&mut service, n).await);
    }
    let mut eleventh = task::spawn(called(&mut service, 11).await);
    assert_eq!(reason(&assert_ready!(eleventh.poll())), Some(Reason::BulkheadFull));
    assert!(join_all(running).await.iter().all(Result::is_ok));
    assert_eq!(probe.calls(), 10);
}

// BLK-04
#[tokio::test(start_paused = true)]
async fn a_queue_takes_so_many_and_keeps_them_so_long() {
    let probe = slow(10, 300 * MS);
    let mut service = BulkheadLayer::new(bulkhead(10, 2, 100 * MS)).layer(probe.clone());
    let start = edge::now();
    let mut calls = Vec::new();
    for n in 0..14 {
        let call = called(&mut service, n).await;
        calls.push(async move { (reason(&call.await), edge::now() - start) });
    }
    let outcomes = join_all(calls).await;
    let full = Some(Reason::BulkheadFull);
    assert_eq!(outcomes[..10], [(None, 300 * MS); 10]);
    assert_eq!(outcomes[10..12], [(full, 100 * MS); 2], "the longest wait");
    assert_eq!(outcomes[12..], [(full, Duration::ZERO); 2], "no place to wait");
    assert_eq!(probe.calls(), 10);
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_are_called_in_order_as_slots_come_back() {
    let one = bulkhead(1, 3, Duration::MAX);
    let mut service = BulkheadLayer::new(one).layer(slow(4, 10 * MS));
    let start = edge::now();
    let mut calls = Vec::new();
    for n in 0..4 {
        let call = called(&mut service, n).await;
        calls.push(async move { (call.await.unwrap(), edge::now() - start) });
    }
    // Polled in reverse: their order is that of the calls.
    calls.reverse();
    let mut answers = join_all(calls).await;
    answers.reverse();
    assert_eq!(answers, [(0, 10 * MS), (1, 20 * MS), (2, 30 * MS), (3, 40 * MS)]);
}

// BLK-05
#[tokio::test(start_paused = true)]
async fn without_a_limit_ten_thousand_calls_run_together() {
    let unlimited = Bulkhead::unlimited();
    let probe = slow(10_000, 10 * MS);
    let service = BulkheadLayer::new(unlimited.clone()).layer(probe.clone());
    let start = edge::now();
    let answers = join_all((0..10_000).map(|n| service.clone().oneshot(n))).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!((probe.max_in_flight(), edge::now() - start), (10_000, 10 * MS));
    assert_eq!(unlimited.stats().finished, 10_000);
}

// BLK-07
#[tokio::test(start_paused = true)]
async fn after_a_hundred_timed_out_all_eight_run_in_parallel_again() {
    let eight = bulkhead(8, 100, 50 * MS);
    let probe = slow(16, 200 * MS);
    let service = BulkheadLayer::new(eight).layer(probe.clone());
    let crowd = join_all((0..108).map(|n| service.clone().oneshot(n))).await;
    assert_eq!(crowd.iter().filter(|answer| answer.is_ok()).count(), 8);
    let start = edge::now();
    let again = join_all((0..8).map(|n| service.clone().oneshot(n))).await;
    assert!(again.iter().all(Result::is_ok));
    assert_eq!((edge::now() - start, probe.max_in_flight()), (200 * MS, 8));
}

// BLK-09
#[tokio::test(start_paused = true)]
async fn a_panic_gives_the_slot_back_as_it_unwinds() {
    for queued in [false, true] {
        for in_call in [false, true] {
            let one = bulkhead(1, 1, Duration::MAX);
            let probe = probe();
            let mut service = BulkheadLayer::new(one.clone()).layer(probe.clone());
            for _ in 0..100 {
                let slot = queued.then(|| one.try_acquire().unwrap());
                probe.script([if in_call { Act::PanicInCall } else { Act::PanicInPoll }]);
                service.ready().await.unwrap();
                let whole = async {
                    let mut call = Box::pin(service.call(1));
                    drop(slot);
                    let polled = AssertUnwindSafe(&mut call).catch_unwind().await;
                    assert!(polled.is_err());
                    assert_eq!(one.in_flight(), 0, "while the future is still there");
                };
                let caught = AssertUnwindSafe(whole).catch_unwind().await;
                assert_eq!(caught.is_err(), in_call && !queued);
                assert_eq!(one.in_flight(), 0);
            }
            assert_eq!(service.ready().await.unwrap().call(2).await.unwrap(), 2);
            assert_eq!(one.stats().finished, if queued { 201 } else { 101 });
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_observer_gives_the_slot_back() {
    let one = bulkhead(1, 0, MS);
    let judge = |_: Result<&u32, &BoxError>| -> Class { panic!("planted") };
    let mut service = BulkheadLayer::new(one.clone()).until(judge).layer(probe());
    let mut call = Box::pin(called(&mut service, 1).await);
    assert!(AssertUnwindSafe(&mut call).catch_unwind().await.is_err());
    assert_eq!(one.in_flight(), 0);
}

// BLK-12
#[tokio::test(start_paused = true)]
async fn after_a_hundred_refusals_the_same_service_works() {
    let one = bulkhead(1, 0, MS);
    let probe = probe();
    let mut service = BulkheadLayer::new(one.clone()).layer(probe.clone());
    let slot = one.try_acquire().unwrap();
    for n in 0..100 {
        let refused = called(&mut service, n).await.await;
        assert_eq!(reason(&refused), Some(Reason::BulkheadFull));
    }
    drop(slot);
    assert_eq!(called(&mut service, 7).await.await.unwrap(), 7);
    assert_eq!((probe.calls(), one.stats().rejected), (1, 100));
}

// BLK-12
#[tokio::test(start_paused = true)]
async fn an_error_of_the_inner_readiness_is_passed_on_and_stays() {
    let probe = probe();
    probe.set_readiness(Readiness::Failed);
    let mut service = BulkheadLayer::new(Bulkhead::default()).layer(probe);
    for _ in 0..3 {
        assert!(service.ready().await.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_readiness_of_one_who_waited_ends_that_call_alone() {
    let one = bulkhead(1, 1, Duration::MAX);
    let probe = probe();
    let mut service = BulkheadLayer::new(one.clone()).layer(probe.clone());
    let slot = one.try_acquire().unwrap();
    let queued = called(&mut service, 1).await;
    probe.set_readiness(Readiness::Failed);
    drop(slot);
    assert!(queued.await.unwrap_err().downcast_ref::<Rejected>().is_none());
    assert_eq!(one.in_flight(), 0);
    probe.set_readiness(Readiness::Ready);
    assert_eq!(called(&mut service, 2).await.await.unwrap(), 2);
}

/// A service that is dear to clone, or whose readiness is dear: it counts both.
#[derive(Default)]
struct Counted {
    clones: Arc<AtomicUsize>,
    ready_and_idle: Arc<AtomicUsize>,
    is_ready: bool,
}

impl Clone for Counted {
    fn clone(&self) -> Self {
        self.clones.fetch_add(1, SeqCst);
        Self {
            clones: self.clones.clone(),
            ready_and_idle: self.ready_and_idle.clone(),
            is_ready: false,
        }
    }
}

impl Counted {
    fn forget(&mut self) {
        if std::mem::take(&mut self.is_ready) {
            self.ready_and_idle.fetch_sub(1, SeqCst);
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.forget();
    }
}

impl Service<u32> for Counted {
    type Response = u32;
    type Error = Infallible;
    type Future = Ready<Result<u32, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        if !std::mem::replace(&mut self.is_ready, true) {
            self.ready_and_idle.fetch_add(1, SeqCst);
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, n: u32) -> Self::Future {
        assert!(self.is_ready, "called without being ready");
        self.forget();
        future::ready(Ok(n))
    }
}

// BLK-11
#[tokio::test(start_paused = true)]
async fn with_a_slot_free_the_readied_instance_is_called_and_nothing_is_cloned() {
    let counted = Counted::default();
    let clones = counted.clones.clone();
    let mut service = BulkheadLayer::new(bulkhead(1, 5, MS)).layer(counted);
    for n in 0..10 {
        assert_eq!(called(&mut service, n).await.await.unwrap(), n);
    }
    assert_eq!(clones.load(SeqCst), 0);
}

// BLK-11
#[tokio::test(start_paused = true)]
async fn whoever_waits_holds_no_readiness_and_leaves_none_behind() {
    let one = bulkhead(1, 5, Duration::MAX);
    let counted = Counted::default();
    let (clones, reserved) = (counted.clones.clone(), counted.ready_and_idle.clone());
    let mut service = BulkheadLayer::new(one.clone()).layer(counted);
    let slot = one.try_acquire().unwrap();
    let mut queued = task::spawn(called(&mut service, 1).await);
    assert_pending!(queued.poll());
    assert_eq!(reserved.load(SeqCst), 0);
    drop(slot);
    assert_eq!(assert_ready!(queued.poll()).unwrap(), 1);
    assert_eq!(reserved.load(SeqCst), 0);
    assert_eq!(clones.load(SeqCst), 2, "one that waits, one that stays");
}

// BLK-02
#[tokio::test(start_paused = true)]
async fn a_queue_above_a_limit_that_reserves_starves_nobody_beneath() {
    let echo = service_fn(|n: u32| async move {
        sleep(10 * MS).await;
        Ok::<_, Infallible>(n)
    });
    let limited = ConcurrencyLimit::new(echo, 1);
    let one = bulkhead(1, 5, Duration::MAX);
    let mut service = BulkheadLayer::new(one.clone()).layer(limited.clone());
    let slot = one.try_acquire().unwrap();
    let mut queued = task::spawn(called(&mut service, 1).await);
    assert_pending!(queued.poll());
    // The limit beneath is free for others, although a call and an idle service stand above it.
    let beside = timeout(1000 * MS, limited.oneshot(2)).await;
    assert_eq!(beside.expect("it is not starved").unwrap(), 2);
    drop(slot);
    assert_eq!(queued.await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_slot_comes_back_with_the_answer_and_not_with_the_drop_of_the_future() {
    for queued in [false, true] {
        let one = bulkhead(1, 1, Duration::MAX);
        let mut service = BulkheadLayer::new(one.clone()).layer(probe());
        let slot = queued.then(|| one.try_acquire().unwrap());
        let mut call = task::spawn(called(&mut service, 1).await);
        drop(slot);
        assert!(assert_ready!(call.poll()).is_ok());
        assert_eq!(one.in_flight(), 0, "the future is still there");
        drop(call);
        assert_eq!(one.stats().finished, if queued { 2 } else { 1 });
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_at_any_poll_gives_all_back() {
    for waits in 0..3 {
        for polls in 0..8 {
            let one = bulkhead(1, 2, Duration::MAX);
            let probe = probe();
            probe.script([Act::Steps(2), Act::Steps(2), Act::Steps(2)]);
            let mut service = BulkheadLayer::new(one.clone()).layer(probe.clone());
            let mut slot = (waits > 0).then(|| one.try_acquire().unwrap());
            let mut call = task::spawn(called(&mut service, 1).await);
            for nth in 0..polls {
                if nth == waits {
                    slot = None;
                }
                if call.poll().is_ready() {
                    break;
                }
            }
            drop((call, slot));
            assert_eq!((one.in_flight(), one.waiting(), probe.in_flight()), (0, 0, 0));
            assert_eq!(called(&mut service, 2).await.await.unwrap(), 2);
        }
    }
}

// OPS-02
#[tokio::test(start_paused = true)]
async fn ten_thousand_calls_that_are_dropped_anywhere_have_one_outcome_each() {
    edge::seed(7);
    let dice = |n: u32| (edge::unit() * f64::from(n)) as u32;
    let four = bulkhead(4, 6, 3 * MS);
    let probe = probe();
    let mut service = BulkheadLayer::new(four.clone()).layer(probe.clone());
    let mut calls = Vec::new();
    for n in 0..10_000 {
        probe.script([match dice(4) {
            0 => Act::Hang,
            1 => Act::Fail("planted".into()),
            2 => Act::Steps(dice(4)),
            _ => Act::Delay(u32::from(n % 7 == 0) * 10 * MS),
        }]);
        service.ready().await.unwrap();
        let deadline = Deadline::after(dice(6) * MS);
        calls.push(Box::pin(Deadline::within(deadline, || service.call(n))));
        for _ in 0..dice(4) {
            let at = dice(calls.len() as u32) as usize;
            if futures_util::poll!(calls[at].as_mut()).is_ready() || dice(20) == 0 {
                drop(calls.swap_remove(at));
            }
            if calls.is_empty() {
                break;
            }
        }
        if dice(10) == 0 {
            sleep(MS).await;
        }
        let stats = four.stats();
        assert!(stats.in_flight <= 4 && stats.waiting <= 6, "{stats:?}");
        assert_eq!(stats.started, u64::from(n) + 1);
    }
    drop(calls);
    let stats = four.stats();
    assert_eq!((stats.in_flight, stats.waiting, stats.granted), (0, 0, stats.finished));
    let refused = [stats.rejected, stats.timed_out, stats.expired];
    let outcomes = [&refused[..], &[stats.finished, stats.abandoned]].concat();
    assert!(outcomes.iter().all(|count| *count > 0), "all of it happened: {stats:?}");
    assert_eq!(outcomes.iter().sum::<u64>(), 10_000);
}

/// Answers with the deadline and the attempt that the inner service sees.
fn context_seen() -> impl Service<
    u32,
    Response = (Ambient, Ambient),
    Error = Infallible,
    Future = impl Future<Output = Result<(Ambient, Ambient), Infallible>>,
> + Clone {
    service_fn(|_: u32| {
        let called = Ambient::current();
        async move { Ok((called, Ambient::current())) }
    })
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waited_runs_in_the_context_it_came_in() {
    let one = bulkhead(1, 1, Duration::MAX);
    let mut service = BulkheadLayer::new(one.clone()).layer(context_seen());
    let slot = one.try_acquire().unwrap();
    let came_in = Ambient::default().with_deadline(Deadline::after(5000 * MS)).with_attempt(3);
    service.ready().await.unwrap();
    let queued = came_in.within(|| service.call(1));
    drop(slot);
    // Polled by somebody who is in no such context, as when it is handed on.
    assert_eq!(queued.await.unwrap(), (came_in, came_in));
    assert_eq!(Ambient::current(), Ambient::default());
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_is_known_only_where_it_is_polled_ends_the_wait_and_goes_in() {
    let one = bulkhead(1, 1, 60_000 * MS);
    let mut service = BulkheadLayer::new(one.clone()).layer(context_seen());
    let polled_in = Ambient::default().with_deadline(Deadline::after(40 * MS));
    let slot = one.try_acquire().unwrap();
    let start = edge::now();
    let late = polled_in.scope(called(&mut service, 1).await).await;
    assert_eq!(reason(&late), Some(Reason::DeadlineExceeded));
    assert_eq!(edge::now() - start, 40 * MS);

    let polled_in = Ambient::default().with_deadline(Deadline::after(40 * MS));
    let in_time = called(&mut service, 1).await;
    drop(slot);
    assert_eq!(polled_in.scope(in_time).await.unwrap(), (polled_in, polled_in));
}

#[tokio::test(start_paused = true)]
async fn the_deadline_of_the_call_ends_the_wait() {
    let one = bulkhead(1, 1, 100 * MS);
    let mut service = BulkheadLayer::new(one.clone()).layer(probe());
    let _slot = one.try_acquire().unwrap();
    service.ready().await.unwrap();
    let start = edge::now();
    let queued = Deadline::within(Deadline::after(30 * MS), || service.call(1));
    assert_eq!(reason(&queued.await), Some(Reason::DeadlineExceeded));
    assert_eq!(edge::now() - start, 30 * MS);
    assert_eq!(one.stats().expired, 1);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_after_the_deadline_though_the_inner_service_was_long_in_getting_ready() {
    // The deadline is known in the call, or only where the future is polled.
    for in_call in [true, false] {
        let one = bulkhead(1, 1, Duration::MAX);
        let probe = probe();
        let mut service = BulkheadLayer::new(one.clone()).layer(probe.clone());
        let slot = one.try_acquire().unwrap();
        service.ready().await.unwrap();
        probe.set_readiness(Readiness::Pending);
        let start = edge::now();
        let due = Ambient::default().with_deadline(Deadline::after(50 * MS));
        let call = if in_call { due } else { Ambient::default() }.within(|| service.call(1));
        let mut queued = Box::pin(if in_call { Ambient::default() } else { due }.scope(call));
        assert!(futures_util::poll!(&mut queued).is_pending());
        drop(slot);
        assert!(futures_util::poll!(&mut queued).is_pending(), "it has its slot, and waits");
        assert_eq!((one.in_flight(), one.waiting()), (1, 0));
        let refused = timeout(60_000 * MS, &mut queued).await.expect("it ends with the deadline");
        assert_eq!(reason(&refused), Some(Reason::DeadlineExceeded));
        assert_eq!((edge::now() - start, probe.calls(), one.in_flight()), (50 * MS, 0, 0));

        // Nor if it becomes ready in the very instant.
        let slot = one.try_acquire().unwrap();
        let mut queued = Box::pin(Deadline::within(Deadline::after(50 * MS), || service.call(1)));
        drop(slot);
        assert!(futures_util::poll!(&mut queued).is_pending());
        advance(50 * MS).await;
        probe.set_readiness(Readiness::Ready);
        assert_eq!(reason(&queued.await), Some(Reason::DeadlineExceeded));
        assert_eq!((probe.calls(), one.in_flight()), (0, 0));
    }
}

/// A response with a body that holds what it was given.
struct WithBody<P>(P);

/// Holds the permit for as long as the response lives; errors are reported at once.
#[derive(Clone)]
struct ToTheEnd;

impl Observe<u32> for ToTheEnd {
    type Response<P: Permit> = WithBody<P>;

    fn observe<P: Permit>(
        &self,
        result: Result<u32, BoxError>,
        permit: P,
    ) -> Result<WithBody<P>, BoxError> {
        result.map(|_| WithBody(permit))
    }
}

#[tokio::test(start_paused = true)]
async fn held_to_the_end_the_slot_goes_with_the_response() {
    for queued in [false, true] {
        let one = bulkhead(1, 1, Duration::MAX);
        let probe = probe();
        let mut service = BulkheadLayer::new(one.clone()).until(ToTheEnd).layer(probe.clone());
        let slot = queued.then(|| one.try_acquire().unwrap());
        let call = called(&mut service, 1).await;
        drop(slot);
        let response: WithBody<Slot> = call.await.unwrap();
        assert_eq!(one.in_flight(), 1);
        drop(response);
        assert_eq!(one.in_flight(), 0);

        probe.script([Act::Fail("planted".into())]);
        assert!(called(&mut service, 1).await.await.is_err());
        assert_eq!(one.in_flight(), 0, "an error has no body");
    }
}

#[tokio::test(start_paused = true)]
async fn errors_of_the_inner_service_pass_through_as_they_are() {
    let probe = probe();
    probe.script([Act::Fail("planted".into())]);
    let mut service = BulkheadLayer::new(Bulkhead::default()).layer(probe);
    assert_eq!(called(&mut service, 1).await.await.unwrap_err().to_string(), "planted");
}

#[tokio::test(start_paused = true)]
async fn above_a_buffer_and_beneath_one_it_bounds_what_runs() {
    let two = bulkhead(2, 10, Duration::MAX);
    let probe = slow(10, 10 * MS);
    let stack = ServiceBuilder::new()
        .buffer(10)
        .layer(BulkheadLayer::new(two.clone()))
        .buffer(10)
        .service(probe.clone());
    let answers = join_all((0..10).map(|n| stack.clone().oneshot(n))).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!((probe.max_in_flight(), two.in_flight()), (2, 0));
}

#[test]
fn what_observes_with_a_closure_can_be_shown() {
    let judge = |_: Result<&u32, &BoxError>| Class::Success;
    let layer = BulkheadLayer::new(bulkhead(3, 0, MS)).until(judge);
    let shown = "bulkhead: Bulkhead { limit: 3, in_flight: 0, .. }, .. }";
    assert_eq!(format!("{layer:?}"), format!("BulkheadLayer {{ {shown}"));
    let service = format!("{:?}", layer.layer("inner"));
    assert_eq!(service, format!("BulkheadService {{ inner: \"inner\", {shown}"));
}

/// A service whose future is as large as it gets, and with no bits to spare.
#[derive(Clone)]
struct Sized<const WORDS: usize>;

impl<const WORDS: usize> Service<[u64; 64]> for Sized<WORDS> {
    type Response = ();
    type Error = Infallible;
    type Future = Bits<WORDS>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: [u64; 64]) -> Self::Future {
        Bits([0; WORDS])
    }
}

struct Bits<const WORDS: usize>([u64; WORDS]);

impl<const WORDS: usize> Future for Bits<WORDS> {
    type Output = Result<(), Infallible>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        assert_eq!(self.0, [0; WORDS]);
        Poll::Ready(Ok(()))
    }
}

#[test]
fn it_adds_one_word_to_the_service_and_two_to_the_future() {
    assert_eq!(size_of::<BulkheadService<Sized<0>>>(), 8);
    // The request of 512 bytes is in there only while it waits, on the heap.
    assert_eq!(size_of::<ResponseFuture<Sized<0>, [u64; 64]>>(), 16);
    assert_eq!(size_of::<ResponseFuture<Sized<8>, [u64; 64]>>(), 64 + 16);
    assert_eq!(size_of::<ResponseFuture<Sized<50>, [u64; 64]>>(), 400 + 16);
}
