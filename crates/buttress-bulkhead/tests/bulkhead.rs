//! The handle: slots, the queue before them, and what leaves it.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};

use buttress_bulkhead::{Acquire, Bulkhead, BulkheadSettings, BulkheadStats, Slot};
use buttress_core::{
    Class, Context as Ambient, Deadline, Health, HealthSignal, Permit, Reason, Rejected, edge,
    timer::{Alarm, poll_within},
};
use tokio::time::{advance, sleep};
use tokio_test::{assert_pending, assert_ready, task};

const MS: Duration = Duration::from_millis(1);

fn bulkhead(limit: usize, max_waiting: usize, max_wait: Duration) -> Bulkhead {
    let settings = BulkheadSettings::new(limit).max_waiting(max_waiting).max_wait(max_wait);
    Bulkhead::new(settings).unwrap()
}

fn patient(limit: usize, max_waiting: usize) -> Bulkhead {
    bulkhead(limit, max_waiting, Duration::MAX)
}

fn take(bulkhead: &Bulkhead, n: usize) -> Vec<Slot> {
    (0..n).map(|_| bulkhead.try_acquire().unwrap()).collect()
}

fn reason<T>(result: Result<T, Rejected>) -> Option<Reason> {
    result.err().map(|rejected| rejected.reason())
}

fn until<T>(deadline: Duration, f: impl FnOnce() -> T) -> T {
    Deadline::within(Deadline::after(deadline), f)
}

fn waiting(bulkhead: &Bulkhead) -> task::Spawn<Acquire> {
    let mut waiting = task::spawn(bulkhead.acquire());
    assert_pending!(waiting.poll());
    waiting
}

/// All capacity is there, and no more than that.
fn assert_idle(bulkhead: &Bulkhead) {
    assert_eq!((bulkhead.in_flight(), bulkhead.waiting()), (0, 0));
    let slots = take(bulkhead, bulkhead.limit());
    assert_eq!(bulkhead.room(), 0);
    assert!(bulkhead.try_acquire().is_err());
    drop(slots);
}

#[test]
fn a_slot_is_free_again_when_it_is_dropped_or_reported() {
    let bulkhead = patient(2, 0);
    let first = bulkhead.try_acquire().unwrap();
    let second = bulkhead.try_acquire().unwrap();
    assert_eq!((bulkhead.in_flight(), bulkhead.room()), (2, 0));
    let rejected = bulkhead.clone().try_acquire().unwrap_err();
    assert_eq!(rejected, Rejected::new(Reason::BulkheadFull, "bulkhead"));
    drop(first);
    second.report(Class::Fatal);
    assert_idle(&bulkhead);
}

// BLK-05
#[test]
fn without_a_limit_nobody_is_refused_and_all_are_counted() {
    let bulkhead = Bulkhead::unlimited();
    let slots = take(&bulkhead, 10_000);
    assert_eq!((bulkhead.in_flight(), bulkhead.limit()), (10_000, Bulkhead::MAX_LIMIT));
    drop(slots);
    assert_eq!(bulkhead.stats().finished, 10_000);
}

#[test]
fn it_is_decided_when_asked_and_not_when_polled() {
    let bulkhead = patient(1, 1);
    let admitted = bulkhead.acquire();
    let queued = bulkhead.acquire();
    let refused = bulkhead.acquire();
    assert_eq!((bulkhead.in_flight(), bulkhead.waiting()), (1, 1));
    drop(admitted);
    assert_eq!((bulkhead.in_flight(), bulkhead.waiting()), (1, 0), "called before it was polled");
    assert_eq!(reason(assert_ready!(task::spawn(refused).poll())), Some(Reason::BulkheadFull));
    drop(assert_ready!(task::spawn(queued).poll()).unwrap());
    assert_idle(&bulkhead);
}

// BLK-07
#[test]
fn first_come_first_served() {
    let bulkhead = patient(2, 10);
    let mut slots = take(&bulkhead, 2);
    let mut queue: Vec<_> = (0..10).map(|_| waiting(&bulkhead)).collect();
    for n in 0..10 {
        drop(slots.remove(0));
        let woken: Vec<_> = (0..10).filter(|n| queue[*n].is_woken()).collect();
        assert_eq!(woken, [n], "the one that has waited longest, and nobody else");
        assert!(bulkhead.try_acquire().is_err(), "nobody overtakes");
        slots.push(assert_ready!(queue[n].poll()).unwrap());
        // Those who were served are not asked again.
        queue[n] = task::spawn(Bulkhead::unlimited().acquire());
    }
    drop(slots);
    assert_idle(&bulkhead);
}

#[test]
fn a_full_queue_refuses_at_once() {
    let bulkhead = patient(1, 2);
    let _slot = bulkhead.try_acquire().unwrap();
    let _queue = [waiting(&bulkhead), waiting(&bulkhead)];
    assert_eq!(
        reason(assert_ready!(task::spawn(bulkhead.acquire()).poll())),
        Some(Reason::BulkheadFull)
    );
    assert_eq!(bulkhead.stats().rejected, 1);
}

// BLK-07
#[test]
fn whoever_leaves_frees_the_place_in_that_instant() {
    let bulkhead = patient(1, 1);
    let slot = bulkhead.try_acquire().unwrap();
    for _ in 0..100 {
        drop(waiting(&bulkhead));
        drop(bulkhead.acquire());
        assert_eq!(bulkhead.waiting(), 0);
    }
    assert_eq!(bulkhead.stats().abandoned, 200);
    drop(slot);
    assert_idle(&bulkhead);
}

// BLK-07
#[test]
fn the_slot_of_one_who_was_called_and_left_goes_to_the_next() {
    let bulkhead = patient(1, 3);
    let slot = bulkhead.try_acquire().unwrap();
    let [first, second, mut third] = [(); 3].map(|()| waiting(&bulkhead));
    drop(slot);
    assert!(first.is_woken() && !second.is_woken());
    drop(first);
    assert!(second.is_woken() && !third.is_woken());
    drop(second);
    assert!(third.is_woken());
    drop(assert_ready!(third.poll()).unwrap());
    assert_idle(&bulkhead);
}

#[test]
fn dropped_at_any_poll_it_leaves_nothing_behind() {
    for polls in 0..4 {
        for release_before in 0..5 {
            let bulkhead = patient(1, 1);
            let mut slot = bulkhead.try_acquire().ok();
            let mut waiting = task::spawn(bulkhead.acquire());
            for nth in 0..polls {
                if nth == release_before {
                    slot = None;
                }
                if waiting.poll().is_ready() {
                    break;
                }
            }
            drop((waiting, slot));
            assert_idle(&bulkhead);
        }
    }
}

// BLK-07
#[tokio::test(start_paused = true)]
async fn a_hundred_who_waited_in_vain_take_no_capacity_along() {
    let bulkhead = bulkhead(8, 100, 50 * MS);
    let slots = take(&bulkhead, 8);
    let crowd: Vec<_> = (0..100).map(|_| tokio::spawn(bulkhead.acquire())).collect();
    for waiter in crowd {
        assert_eq!(reason(waiter.await.unwrap()), Some(Reason::BulkheadFull));
    }
    assert_eq!(bulkhead.stats().timed_out, 100);
    drop(slots);
    assert_idle(&bulkhead);
}

#[tokio::test(start_paused = true)]
async fn the_longest_wait_counts_from_the_question_and_ends_on_time() {
    let bulkhead = bulkhead(1, 1, 100 * MS);
    let _slot = bulkhead.try_acquire().unwrap();
    let start = edge::now();
    let waiting = bulkhead.acquire();
    sleep(30 * MS).await;
    assert_eq!(reason(waiting.await), Some(Reason::BulkheadFull));
    assert_eq!(edge::now() - start, 100 * MS);
    assert_eq!((bulkhead.stats().timed_out, bulkhead.waiting()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_beyond_the_deadline() {
    let bulkhead = bulkhead(1, 1, 100 * MS);
    let _slot = bulkhead.try_acquire().unwrap();
    let start = edge::now();
    let waiting = until(40 * MS, || bulkhead.acquire());
    assert_eq!(reason(waiting.await), Some(Reason::DeadlineExceeded));
    assert_eq!(edge::now() - start, 40 * MS);
    assert_eq!((bulkhead.stats().expired, bulkhead.waiting()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn of_deadline_and_longest_wait_the_earlier_is_named_and_the_deadline_if_both() {
    for (deadline, named) in [
        (99, Reason::DeadlineExceeded),
        (100, Reason::DeadlineExceeded),
        (101, Reason::BulkheadFull),
    ] {
        let bulkhead = bulkhead(1, 1, 100 * MS);
        let _slot = bulkhead.try_acquire().unwrap();
        let start = edge::now();
        let waiting = until(deadline * MS, || bulkhead.acquire());
        assert_eq!(reason(waiting.await), Some(named));
        assert_eq!(edge::now() - start, deadline.min(100) * MS);
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_is_late_already_does_not_queue() {
    let bulkhead = patient(1, 1);
    let _slot = bulkhead.try_acquire().unwrap();
    let late = until(Duration::ZERO, || bulkhead.acquire());
    assert_eq!(bulkhead.waiting(), 0);
    assert_eq!(reason(assert_ready!(task::spawn(late).poll())), Some(Reason::DeadlineExceeded));
    assert_eq!(bulkhead.stats().expired, 1);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_is_known_only_where_the_wait_is_polled_holds_too() {
    let bulkhead = bulkhead(1, 1, 60_000 * MS);
    let _slot = bulkhead.try_acquire().unwrap();
    let start = edge::now();
    let ambient = Ambient::default().with_deadline(Deadline::after(40 * MS));
    assert_eq!(reason(ambient.scope(bulkhead.acquire()).await), Some(Reason::DeadlineExceeded));
    assert_eq!(edge::now() - start, 40 * MS);
}

#[tokio::test(start_paused = true)]
async fn with_a_timer_lent_by_a_limit_above_the_longest_wait_ends_on_time_too() {
    let bulkhead = bulkhead(1, 1, 100 * MS);
    let _slot = bulkhead.try_acquire().unwrap();
    let start = edge::now();
    let (mut waiting, mut alarm) = (pin!(bulkhead.acquire()), pin!(Alarm::default()));
    let limit = start.checked_add(60_000 * MS);
    let ended = poll_fn(|cx| poll_within(waiting.as_mut(), alarm.as_mut(), || limit, cx)).await;
    assert_eq!(reason(ended.expect("the limit above is later")), Some(Reason::BulkheadFull));
    assert_eq!(edge::now() - start, 100 * MS);
}

#[tokio::test(start_paused = true)]
async fn a_slot_at_the_last_instant_of_the_longest_wait_is_taken() {
    let bulkhead = bulkhead(1, 1, 100 * MS);
    let slot = bulkhead.try_acquire().unwrap();
    let mut waiting = waiting(&bulkhead);
    advance(100 * MS).await;
    drop(slot);
    assert!(assert_ready!(waiting.poll()).is_ok());
    assert_eq!(bulkhead.stats().timed_out, 0);
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_comes_with_the_deadline_goes_to_the_next() {
    let bulkhead = patient(1, 2);
    let slot = bulkhead.try_acquire().unwrap();
    let mut late = task::spawn(until(100 * MS, || bulkhead.acquire()));
    assert_pending!(late.poll());
    let mut next = waiting(&bulkhead);
    advance(100 * MS).await;
    drop(slot);
    assert_eq!(reason(assert_ready!(late.poll())), Some(Reason::DeadlineExceeded));
    assert!(next.is_woken());
    drop(assert_ready!(next.poll()).unwrap());
    assert_idle(&bulkhead);
}

#[test]
fn a_raised_limit_admits_so_many_of_those_who_wait() {
    let bulkhead = patient(1, 5);
    let slot = bulkhead.try_acquire().unwrap();
    let mut queue: Vec<_> = (0..5).map(|_| waiting(&bulkhead)).collect();
    bulkhead.set_limit(4).unwrap();
    let woken: Vec<_> = queue.iter().map(task::Spawn::is_woken).collect();
    assert_eq!(woken, [true, true, true, false, false]);
    assert_eq!((bulkhead.in_flight(), bulkhead.waiting(), bulkhead.room()), (4, 2, 0));
    let slots: Vec<_> = queue.drain(..3).map(|mut called| assert_ready!(called.poll())).collect();
    drop((slot, slots, queue));
    assert_idle(&bulkhead);
}

// BLK-06
#[test]
fn a_lowered_limit_admits_nobody_until_enough_have_left_and_leaks_nothing() {
    let bulkhead = patient(4, 1);
    let mut slots = take(&bulkhead, 4);
    bulkhead.set_limit(2).unwrap();
    assert_eq!((bulkhead.in_flight(), bulkhead.limit(), bulkhead.room()), (4, 2, 0));
    let mut waiting = waiting(&bulkhead);
    for left in [3, 2] {
        slots.pop();
        assert_eq!(bulkhead.in_flight(), left);
        assert!(!waiting.is_woken() && bulkhead.try_acquire().is_err());
    }
    slots.pop();
    assert!(waiting.is_woken());
    slots.push(assert_ready!(waiting.poll()).unwrap());
    assert_eq!(bulkhead.in_flight(), 2);
    drop(slots);
    assert_idle(&bulkhead);
}

#[test]
fn up_and_down_while_full_the_limit_of_the_moment_holds() {
    let bulkhead = patient(1, 1000);
    let mut slots = take(&bulkhead, 1);
    let mut queue: Vec<_> = (0..200).map(|_| waiting(&bulkhead)).collect();
    for limit in [3, 1, 2, 5, 4, 1, 10, 10, 7] {
        let before = bulkhead.in_flight();
        bulkhead.set_limit(limit).unwrap();
        assert_eq!(bulkhead.in_flight(), before.max(limit));
        let called = bulkhead.in_flight() - before;
        slots.extend(queue.drain(..called).map(|mut called| assert_ready!(called.poll()).unwrap()));
        slots.truncate(limit);
        assert_eq!(bulkhead.in_flight(), limit);
    }
    drop((queue, slots));
    assert_idle(&bulkhead);
}

// BLK-06
#[tokio::test(start_paused = true)]
async fn a_waiter_is_polled_once_to_wait_and_once_to_go() {
    let bulkhead = bulkhead(1, 50, 60_000 * MS);
    let mut slot = bulkhead.try_acquire().ok();
    let polls = Arc::new(AtomicUsize::new(0));
    let crowd: Vec<_> = (0..50)
        .map(|_| {
            let (mut acquire, polls) = (Box::pin(bulkhead.acquire()), polls.clone());
            tokio::spawn(poll_fn(move |cx| {
                polls.fetch_add(1, SeqCst);
                acquire.as_mut().poll(cx)
            }))
        })
        .collect();
    sleep(MS).await;
    assert_eq!(polls.load(SeqCst), 50);
    for (n, waiter) in crowd.into_iter().enumerate() {
        sleep(10 * MS).await;
        assert_eq!(polls.load(SeqCst), 50 + n, "nobody is woken while nothing happens");
        drop(slot.take());
        slot = waiter.await.unwrap().ok();
    }
    assert_eq!(polls.load(SeqCst), 100);
}

#[test]
fn the_last_waker_that_it_was_polled_with_is_woken() {
    let bulkhead = patient(1, 1);
    let slot = bulkhead.try_acquire().unwrap();
    let mut acquire = Box::pin(bulkhead.acquire());
    let mut moved_from = task::spawn(());
    let mut moved_to = task::spawn(());
    let poll = |cx: &mut Context<'_>, acquire: &mut std::pin::Pin<Box<Acquire>>| {
        assert_pending!(acquire.as_mut().poll(cx));
    };
    moved_from.enter(|cx, _| poll(cx, &mut acquire));
    moved_to.enter(|cx, _| poll(cx, &mut acquire));
    drop(slot);
    assert!(moved_to.is_woken() && !moved_from.is_woken());
}

/// Counts how often it is woken, and panics each time if it was made to.
struct Woken {
    times: AtomicUsize,
    panics: bool,
}

impl Woken {
    fn new(panics: bool) -> Arc<Self> {
        Arc::new(Self { times: AtomicUsize::new(0), panics })
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.times.fetch_add(1, SeqCst);
        assert!(!self.panics, "planted");
    }
}

#[test]
fn wakers_that_panic_keep_no_other_from_being_called() {
    type Step = fn(&Bulkhead, &mut Vec<Slot>);
    let raised: Step = |bulkhead, _| bulkhead.set_limit(6).unwrap();
    let given_back_to: Step = |_, slots| slots.clear();
    for step in [raised, given_back_to] {
        let bulkhead = patient(3, 5);
        let mut slots = take(&bulkhead, 3);
        // Two of them: the second panics while the panic of the first is under way.
        let woken = [true, true, false].map(Woken::new);
        let mut calls: Vec<_> = woken.iter().map(|_| Box::pin(bulkhead.acquire())).collect();
        for (call, woken) in calls.iter_mut().zip(&woken) {
            let waker = Waker::from(woken.clone());
            assert_pending!(call.as_mut().poll(&mut Context::from_waker(&waker)));
        }
        let stepped = catch_unwind(AssertUnwindSafe(|| step(&bulkhead, &mut slots)));
        assert!(stepped.is_err(), "whoever caused it is told of the panic");
        assert_eq!(woken.map(|woken| woken.times.load(SeqCst)), [1; 3]);
        assert_eq!(bulkhead.waiting(), 0);
        drop((calls, slots));
        assert_eq!(bulkhead.in_flight(), 0);
    }
}

/// A task that owns a slot, as a hand-made executor keeps it: in its waker.
struct OwnsSlot(#[expect(dead_code, reason = "it is owned, and that is all")] Slot);

impl Wake for OwnsSlot {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn a_waker_that_owns_a_slot_can_be_let_go_of_by_the_queue() {
    let bulkhead = patient(2, 2);
    let owned = OwnsSlot(bulkhead.try_acquire().unwrap());
    let _slot = bulkhead.try_acquire().unwrap();
    let mut acquire = pin!(bulkhead.acquire());
    let waker = Waker::from(Arc::new(owned));
    assert_pending!(acquire.as_mut().poll(&mut Context::from_waker(&waker)));
    drop(waker);
    // The queue has the last one, and lets go of it here: that gives a slot back.
    let mut cx = Context::from_waker(Waker::noop());
    assert_pending!(acquire.as_mut().poll(&mut cx));
    assert!(assert_ready!(acquire.as_mut().poll(&mut cx)).is_ok());
}

// BLK-06, OPS-02
#[test]
fn sixty_four_threads_that_come_and_walk_away_never_hold_more_than_there_is() {
    const THREADS: usize = 64;
    const CALLS: usize = 1000;
    let bulkhead = patient(8, 20);
    let (inside, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let threads: Vec<_> = (0..THREADS)
        .map(|n| {
            let (bulkhead, inside, most) = (bulkhead.clone(), inside.clone(), most.clone());
            thread::spawn(move || {
                edge::seed(n as u64);
                for _ in 0..CALLS {
                    let acquire = bulkhead.acquire();
                    let slot = match (edge::unit() * 4.0) as u32 {
                        0 => continue,
                        1 => match poll_once(acquire) {
                            Poll::Ready(Ok(slot)) => slot,
                            _ => continue,
                        },
                        _ => match block_on(acquire) {
                            Ok(slot) => slot,
                            Err(_) => continue,
                        },
                    };
                    most.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                    thread::yield_now();
                    inside.fetch_sub(1, SeqCst);
                    drop(slot);
                }
            })
        })
        .collect();
    while threads.iter().any(|thread| !thread.is_finished()) {
        let stats = bulkhead.stats();
        assert!(stats.in_flight <= 8 && stats.waiting <= 20, "{stats:?}");
        assert!(bulkhead.in_flight() <= 8);
        thread::yield_now();
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(most.load(SeqCst), 8);
    let stats = bulkhead.stats();
    assert_eq!(stats.started, (THREADS * CALLS) as u64, "{stats:?}");
    assert_eq!(stats.granted, stats.finished);
    assert_idle(&bulkhead);
}

fn poll_once(mut acquire: Acquire) -> Poll<Result<Slot, Rejected>> {
    std::pin::Pin::new(&mut acquire).poll(&mut Context::from_waker(Waker::noop()))
}

/// A future on this thread, which sleeps until it is woken: a wake-up that is lost is a test that hangs.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

// OPS-02
#[tokio::test(start_paused = true)]
async fn every_question_has_one_outcome() {
    let bulkhead = bulkhead(1, 3, 100 * MS);
    let slot = bulkhead.try_acquire().unwrap();
    let timed_out = bulkhead.acquire();
    let expired = until(50 * MS, || bulkhead.acquire());
    let abandoned = bulkhead.acquire();
    let rejected = bulkhead.acquire();
    drop(abandoned);
    let (rejected, expired, timed_out) = tokio::join!(rejected, expired, timed_out);
    assert_eq!(
        [rejected, expired, timed_out].map(reason),
        [Reason::BulkheadFull, Reason::DeadlineExceeded, Reason::BulkheadFull].map(Some)
    );
    let mut waiting = waiting(&bulkhead);
    let stats = bulkhead.stats();
    let told = |stats: BulkheadStats| {
        let left = [stats.rejected, stats.timed_out, stats.expired, stats.abandoned];
        (stats.started, stats.granted, stats.finished, stats.in_flight, stats.waiting, left)
    };
    assert_eq!(told(stats), (6, 1, 0, 1, 1, [1; 4]));
    drop(slot);
    drop(assert_ready!(waiting.poll()).unwrap());
    assert_eq!(told(bulkhead.stats()), (6, 2, 2, 0, 0, [1; 4]));
}

#[test]
fn it_is_degraded_while_it_is_full_and_never_ill() {
    let bulkhead = patient(1, 0);
    let health = || bulkhead.sample(edge::now()).health;
    assert_eq!(health(), Health::Healthy);
    let slot = bulkhead.try_acquire().unwrap();
    assert_eq!(health(), Health::Degraded);
    drop(slot);
    assert_eq!(health(), Health::Healthy);
}

#[test]
fn what_is_shared_can_be_shared() {
    fn shareable<T: Send + Sync + Unpin + 'static>() {}
    shareable::<Bulkhead>();
    shareable::<Slot>();
    shareable::<Acquire>();
    assert_eq!((size_of::<Bulkhead>(), size_of::<Slot>()), (8, 8));
}
