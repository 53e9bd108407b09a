use std::{
    future::poll_fn,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Wake, Waker},
    time::Duration,
};

use buttress_core::{
    Class, Permit as _, Reason, edge,
    timer::{Alarm, poll_within},
};
use buttress_shed::{Priority, Shed, ShedSettings};
use tokio::time::{advance, sleep};

use crate::support::{fill, ms, overloaded, peek, shed, timed, wait, with, within};

#[tokio::test(start_paused = true)]
async fn a_place_that_comes_back_is_the_next_ones_in_that_instant() {
    let shed = shed(1);
    let permit = shed.try_admit(Priority::Critical).unwrap();
    let next = async { timed(shed.admit(Priority::Critical)).await };
    let first = async {
        sleep(ms(70)).await;
        permit.report(Class::Success);
    };
    let ((next, waited), ()) = tokio::join!(next, first);
    assert_eq!((next.is_ok(), waited), (true, ms(70)));
}

#[tokio::test(start_paused = true)]
async fn whoever_has_waited_for_an_interval_is_refused_though_nothing_else_happens() {
    let shed = shed(1);
    let _permit = shed.try_admit(Priority::Critical).unwrap();
    let (refused, waited) = timed(shed.admit(Priority::Critical)).await;
    let refused = refused.unwrap_err();
    assert_eq!((refused.reason(), waited), (Reason::Overloaded, ms(101)));
    assert_eq!(refused.retry_after(), Some(ms(100)));
}

#[tokio::test(start_paused = true)]
async fn a_place_that_comes_back_in_the_last_instant_of_a_wait_is_still_its() {
    let shed = shed(1);
    let permit = shed.try_admit(Priority::Critical).unwrap();
    let mut waiter = wait(&shed, Priority::Critical);
    advance(ms(100)).await;
    drop(permit);
    assert!(peek(&mut waiter).unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn under_overload_twice_the_target_is_the_longest_wait() {
    let (shed, _permit, _second) = overloaded().await;
    let (refused, waited) = timed(shed.admit(Priority::Critical)).await;
    assert_eq!((refused.unwrap_err().reason(), waited), (Reason::Overloaded, ms(21)));
}

#[tokio::test(start_paused = true)]
async fn those_who_came_before_the_overload_learn_of_it_when_it_begins() {
    let shed = shed(1);
    let _permit = shed.try_admit(Priority::Critical).unwrap();
    let _first = wait(&shed, Priority::Critical);
    // The queue is used from 0 on: after 100 ms, the longest wait is 20 ms.
    for (came, told) in [(10, 101), (30, 101), (90, 111)] {
        let shed = shed.clone();
        tokio::spawn(async move {
            let start = edge::now();
            sleep(ms(came)).await;
            assert!(shed.admit(Priority::Critical).await.is_err());
            assert_eq!(edge::now() - start, ms(told), "who came at {came} ms");
        });
    }
    sleep(ms(115)).await;
    assert_eq!(shed.stats().overloaded, 4, "the first, too");
}

#[tokio::test(start_paused = true)]
async fn an_overload_is_over_when_the_queue_was_empty_for_a_moment() {
    let (shed, _permit, second) = overloaded().await;
    drop(second);
    assert!(!shed.is_overloaded());
    let (_, waited) = timed(shed.admit(Priority::Critical)).await;
    assert_eq!(waited, ms(101));
}

#[tokio::test(start_paused = true)]
async fn first_come_first_served_unless_it_is_overloaded() {
    let shed = shed(1);
    let permit = shed.try_admit(Priority::Critical).unwrap();
    let mut waiters = [(); 3].map(|()| wait(&shed, Priority::Critical));
    drop(permit);
    let first = peek(&mut waiters[0]).unwrap().unwrap();
    drop(first);
    assert!(peek(&mut waiters[1]).unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn under_overload_the_newest_is_served_first() {
    let (shed, permit, mut second) = overloaded().await;
    let mut third = wait(&shed, Priority::Critical);
    drop(permit);
    let third = peek(&mut third).unwrap().unwrap();
    assert!(peek(&mut second).is_none());
    drop(third);
    assert!(peek(&mut second).unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn who_matters_more_is_served_first_whenever_they_came() {
    let shed = shed(1);
    let mut permit = shed.try_admit(Priority::Sheddable).unwrap();
    let order =
        [Priority::Sheddable, Priority::Critical, Priority::CriticalPlus, Priority::SheddablePlus];
    let mut waiters = order.map(|priority| wait(&shed, priority));
    for expected in [2, 1, 3, 0] {
        drop(permit);
        let served: Vec<_> = waiters.iter_mut().map(peek_once).collect();
        let (at, next) = served.into_iter().enumerate().find_map(|(at, p)| Some((at, p?))).unwrap();
        assert_eq!(at, expected);
        permit = next;
        // Somebody is in its place who does not matter for what follows.
        waiters[at] = wait(&shed, Priority::Sheddable);
    }
}

fn peek_once(
    waiter: &mut std::pin::Pin<Box<buttress_shed::Admit>>,
) -> Option<buttress_shed::Permit> {
    peek(waiter).map(Result::unwrap)
}

#[tokio::test(start_paused = true)]
async fn nobody_overtakes_the_queue() {
    let shed = shed(1);
    let permit = shed.try_admit(Priority::Critical).unwrap();
    let mut waiter = wait(&shed, Priority::Sheddable);
    drop(permit);
    assert!(shed.try_admit(Priority::CriticalPlus).is_err(), "the place has been given away");
    assert!(peek(&mut waiter).unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_in_the_same_instant() {
    let shed = with(1, ShedSettings::default().max_queue(2));
    let _permit = shed.try_admit(Priority::Critical).unwrap();
    let _waiters = [(); 2].map(|()| wait(&shed, Priority::Critical));
    let (refused, took) = timed(shed.admit(Priority::Critical)).await;
    assert_eq!((refused.unwrap_err().reason(), took), (Reason::Overloaded, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_queue_holds_four_for_each_place_unless_it_is_told() {
    for (limit, max_queue, room) in
        [(1, None, 4), (3, None, 12), (3, Some(0), 0), (3, Some(5), 5), (1, Some(usize::MAX), 900)]
    {
        let mut settings = ShedSettings::default();
        settings.max_queue = max_queue;
        let shed = with(limit, settings);
        let _permits = fill(&shed);
        let mut waiters: Vec<_> =
            (0..900).map(|_| Box::pin(shed.admit(Priority::Critical))).collect();
        let refused = waiters.iter_mut().filter_map(peek).filter(Result::is_err).count();
        assert_eq!((shed.waiting(), refused), (room, 900 - room));
    }
}

#[tokio::test(start_paused = true)]
async fn who_matters_least_makes_room_and_the_oldest_of_them_first() {
    let shed = with(1, ShedSettings::default().max_queue(3));
    let _permit = shed.try_admit(Priority::Critical).unwrap();
    let mut plus = wait(&shed, Priority::SheddablePlus);
    let mut older = wait(&shed, Priority::Sheddable);
    let mut newer = wait(&shed, Priority::Sheddable);
    for goes in [&mut older, &mut newer, &mut plus] {
        assert!(peek(goes).is_none());
        std::mem::forget(wait(&shed, Priority::Critical));
        assert_eq!(peek(goes).unwrap().unwrap_err().reason(), Reason::Overloaded);
    }
    assert!(shed.admit(Priority::Critical).await.is_err(), "an equal makes no room");
    assert_eq!(shed.waiting(), 3);
}

#[tokio::test(start_paused = true)]
async fn under_overload_the_oldest_equal_makes_room_for_the_newest() {
    let (shed, _permit, mut second) = overloaded().await;
    let mut more = [(); 2].map(|()| wait(&shed, Priority::Critical));
    assert!(peek(&mut second).is_none());
    let _newest = wait(&shed, Priority::Critical);
    assert!(peek(&mut second).unwrap().is_err());
    assert!(more.iter_mut().all(|waiter| peek(waiter).is_none()));
    assert!(shed.admit(Priority::Sheddable).await.is_err(), "nobody makes room for less");
}

#[tokio::test(start_paused = true)]
async fn who_has_to_make_room_is_woken_at_once() {
    let shed = with(1, ShedSettings::default().max_queue(1));
    let _permit = shed.try_admit(Priority::Critical).unwrap();
    let sheddable = tokio::spawn({
        let shed = shed.clone();
        async move { timed(shed.admit(Priority::Sheddable)).await }
    });
    sleep(ms(7)).await;
    let _waiter = wait(&shed, Priority::Critical);
    let (refused, waited) = sheddable.await.unwrap();
    assert_eq!((refused.unwrap_err().reason(), waited), (Reason::Overloaded, ms(7)));
}

// BLK-06, BLK-07
#[tokio::test(start_paused = true)]
async fn whoever_leaves_at_any_time_leaves_nothing_behind() {
    let shed = with(1, ShedSettings::default().max_queue(100));
    let permit = shed.try_admit(Priority::Critical).unwrap();
    drop(shed.admit(Priority::Critical));
    let before_the_grant = wait(&shed, Priority::Critical);
    let after_the_grant = wait(&shed, Priority::Critical);
    let mut last = wait(&shed, Priority::Critical);
    drop(before_the_grant);
    drop(permit);
    assert!(peek(&mut last).is_none());
    drop(after_the_grant);
    drop(peek(&mut last).unwrap().unwrap());
    let stats = shed.stats();
    assert_eq!((stats.arrived, stats.abandoned), (4, 2), "who never asked is not counted");
    assert_eq!((stats.in_flight, stats.waiting), (0, 0));
    assert_eq!((stats.admitted, stats.dropped), (2, 2));
}

// BLK-07
#[tokio::test(start_paused = true)]
async fn a_hundred_who_waited_in_vain_take_no_place_along() {
    let shed = with(8, ShedSettings::default().max_queue(100));
    let permits = fill(&shed);
    let waiters = (0..100).map(|_| tokio::spawn(shed.admit(Priority::Critical)));
    for waiter in waiters.collect::<Vec<_>>() {
        assert!(waiter.await.unwrap().is_err());
    }
    drop(permits);
    assert_eq!(fill(&shed).len(), 8);
    assert_eq!((shed.in_flight(), shed.waiting()), (0, 0));
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

// BLK-06
#[tokio::test(start_paused = true)]
async fn a_waiter_is_woken_once_and_only_by_what_is_its_own() {
    let shed = with(1, ShedSettings::default().interval(ms(10_000)));
    let mut permit = shed.try_admit(Priority::Critical).unwrap();
    let counts: Vec<Arc<Count>> = (0..4).map(|_| Arc::default()).collect();
    let mut waiters: Vec<_> =
        counts.iter().map(|_| Box::pin(shed.admit(Priority::Critical))).collect();
    for (waiter, count) in waiters.iter_mut().zip(&counts) {
        let waker = Waker::from(count.clone());
        assert!(waiter.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    for (served, waiter) in waiters.iter_mut().enumerate() {
        advance(ms(20)).await;
        drop(permit);
        permit = peek(waiter).unwrap().unwrap();
        let woken: Vec<_> = counts.iter().map(|count| count.0.load(Relaxed)).collect();
        let expected: Vec<_> = (0..4).map(|at| usize::from(at <= served)).collect();
        assert_eq!(woken, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_decided_when_first_polled_and_not_when_asked() {
    let shed = shed(1);
    let mut first = Box::pin(shed.admit(Priority::Critical));
    let mut second = Box::pin(shed.admit(Priority::Critical));
    assert_eq!((shed.stats().arrived, shed.in_flight()), (0, 0));
    let permit = peek(&mut second).unwrap();
    assert!(peek(&mut first).is_none() && permit.is_ok());

    // The deadline is that of the poll, too.
    let asked = within(1).within(|| shed.admit(Priority::Critical));
    let (refused, waited) = timed(within(30).scope(asked)).await;
    assert_eq!((refused.unwrap_err().reason(), waited), (Reason::DeadlineExceeded, ms(30)));
}

#[tokio::test(start_paused = true)]
async fn clones_share_the_places_and_the_queue() {
    let one = shed(1);
    let other = one.clone();
    let _permit = one.try_admit(Priority::Critical).unwrap();
    let _waiter = wait(&other, Priority::Critical);
    assert_eq!((other.in_flight(), one.waiting()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_timer_that_is_lent_tells_just_as_exactly() {
    let shed = shed(1);
    let _permit = shed.try_admit(Priority::Critical).unwrap();
    let mut waits = pin!(shed.admit(Priority::Critical));
    let mut lends = pin!(Alarm::default());
    let far = edge::now() + ms(30_000);
    let lent = poll_fn(|cx| poll_within(waits.as_mut(), lends.as_mut(), || Some(far), cx));
    let (refused, waited) = timed(lent).await;
    assert_eq!((refused.unwrap().unwrap_err().reason(), waited), (Reason::Overloaded, ms(101)));
}

// BKO-10
#[tokio::test(start_paused = true)]
async fn the_longest_and_the_shortest_times_serve_and_keep_waiting_as_they_say() {
    let longest = ShedSettings::default().target(Duration::MAX).interval(Duration::MAX);
    let shed = with(1, longest);
    let permit = shed.try_admit(Priority::Critical).unwrap();
    let mut patient = wait(&shed, Priority::Critical);
    sleep(Duration::from_secs(86_400)).await;
    assert!(peek(&mut patient).is_none() && !shed.is_overloaded());
    drop(permit);
    assert!(peek(&mut patient).unwrap().is_ok());

    let shortest =
        ShedSettings::default().target(Duration::from_nanos(1)).interval(Duration::from_nanos(1));
    let shed = with(1, shortest);
    let _permit = shed.try_admit(Priority::Critical).unwrap();
    let (refused, waited) = timed(shed.admit(Priority::Critical)).await;
    assert!(refused.is_err() && waited <= ms(2), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn settings_that_cannot_work_make_no_shed() {
    let made = |settings| {
        Shed::new(buttress_shed::FixedLimit::new(1).unwrap(), settings)
            .err()
            .map(|error| error.setting().to_owned())
    };
    let settings = ShedSettings::default();
    assert_eq!(made(settings.clone().target(Duration::ZERO)).as_deref(), Some("target"));
    assert_eq!(made(settings.clone().interval(Duration::ZERO)).as_deref(), Some("interval"));
    assert_eq!(made(settings), None);
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "`Admit` was polled after it was ready")]
async fn a_future_that_is_done_says_so() {
    let mut admit = pin!(shed(1).admit(Priority::Critical));
    let _permit = admit.as_mut().await;
    let _ = admit.await;
}
