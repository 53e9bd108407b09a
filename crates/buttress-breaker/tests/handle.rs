//! A breaker that is asked by hand, with no service.

use std::{sync::Arc, time::Duration};

use buttress_breaker::{Admission, Breaker, BreakerSettings, State, Window};
use buttress_core::{
    Class, Context, Deadline, Health, HealthSignal, Permit, Reason, Rejected, edge,
};
use tokio::time::advance;

const SECOND: Duration = Duration::from_secs(1);

/// Opens at the first failure, for five seconds, and is closed by one probe.
fn touchy() -> Breaker {
    Breaker::new(touchy_settings()).unwrap()
}

fn touchy_settings() -> BreakerSettings {
    BreakerSettings::default().consecutive(1).open_jitter(0.0).probes(1)
}

fn call(breaker: &Breaker, class: Class) {
    breaker.admit().unwrap().report(class);
}

const BAD: Class = Class::Fatal;

// CBK-06
#[tokio::test(start_paused = true)]
async fn every_class_says_what_is_documented() {
    let (after, none) = (Some(SECOND), None);
    let table = [
        (Class::Success, State::Closed, (1, 0, 0)),
        (Class::CallerError, State::Closed, (0, 0, 1)),
        (Class::Throttled { after }, State::Closed, (0, 0, 1)),
        (Class::Throttled { after: none }, State::Closed, (0, 0, 1)),
        (Class::Transient { after }, State::Open, (0, 1, 0)),
        (Class::Transient { after: none }, State::Open, (0, 1, 0)),
        (Class::Fatal, State::Open, (0, 1, 0)),
        (Class::Unreachable, State::Open, (0, 1, 0)),
        (Class::Refused, State::Closed, (0, 0, 1)),
    ];
    let strict = touchy_settings().throttled_is_failure(true);
    for (class, state, counts) in table {
        for settings in [touchy_settings(), strict.clone()] {
            let (state, counts) = match class {
                Class::Throttled { .. } if settings == strict => (State::Open, (0, 1, 0)),
                _ => (state, counts),
            };
            let breaker = Breaker::new(settings).unwrap();
            call(&breaker, class);
            let stats = breaker.stats();
            assert_eq!(breaker.state(), state, "{class:?}");
            assert_eq!((stats.success, stats.failure, stats.neutral), counts, "{class:?}");
            assert_eq!(stats.in_flight(), 0);
        }
    }
}

// CBK-06
#[tokio::test(start_paused = true)]
async fn a_hundred_mistakes_of_callers_open_nothing() {
    let breaker = Breaker::default();
    for _ in 0..100 {
        call(&breaker, Class::CallerError);
    }
    assert_eq!((breaker.state(), breaker.stats().window.calls), (State::Closed, 0));
}

// CBK-12
#[tokio::test(start_paused = true)]
async fn a_refusal_is_ours_and_says_when_to_come_again() {
    let breaker = Breaker::new(touchy_settings().open_jitter(0.2)).unwrap();
    call(&breaker, BAD);
    let refused: Rejected = breaker.admit().unwrap_err();
    assert_eq!((refused.reason(), refused.layer()), (Reason::CircuitOpen, "breaker"));
    let open = refused.retry_after().unwrap();
    assert!((4 * SECOND..6 * SECOND).contains(&open), "{open:?}");
    advance(open / 3).await;
    assert_eq!(breaker.admit().unwrap_err().retry_after(), Some(open - open / 3));
    advance(open - open / 3).await;
    let _probe = breaker.admit().unwrap();
    assert_eq!(breaker.admit().unwrap_err().retry_after(), None);
}

#[tokio::test(start_paused = true)]
async fn breakers_that_open_together_do_not_all_probe_together() {
    edge::seed(7);
    let mut times: Vec<_> = (0..100)
        .map(|_| {
            let breaker = Breaker::new(touchy_settings().open_jitter(0.2)).unwrap();
            call(&breaker, BAD);
            breaker.admit().unwrap_err().retry_after().unwrap()
        })
        .collect();
    times.sort();
    times.dedup();
    assert_eq!(times.len(), 100);
    assert!(times[0] < 4_200 * SECOND / 1000 && times[99] > 5_800 * SECOND / 1000);
}

#[tokio::test(start_paused = true)]
async fn a_clone_is_the_same_breaker() {
    let breaker = touchy();
    let clone = breaker.clone();
    call(&breaker, BAD);
    assert!(clone.admit().is_err());
    assert_eq!(clone.stats(), breaker.stats());
}

#[tokio::test(start_paused = true)]
async fn an_admission_keeps_its_breaker_whoever_else_lets_go() {
    let breaker = touchy();
    let admission = breaker.admit().unwrap();
    drop(breaker);
    admission.report(BAD);
}

// CBK-04
#[tokio::test(start_paused = true)]
async fn dropped_before_the_deadline_says_nothing_and_at_it_that_the_callee_was_too_slow() {
    for (waited, late) in [(SECOND - Duration::from_nanos(1), false), (SECOND, true)] {
        let breaker = touchy();
        let within = Context::default().with_deadline(Deadline::after(SECOND));
        let admission = within.within(|| breaker.admit().unwrap());
        advance(waited).await;
        // Outside of the request's context, as drops are.
        drop(admission);
        let stats = breaker.stats();
        assert_eq!((stats.abandoned, stats.dropped), (late.into(), (!late).into()));
        assert_eq!(breaker.state(), if late { State::Open } else { State::Closed });
    }
}

// CBK-04
#[tokio::test(start_paused = true)]
async fn fifty_callers_that_walk_away_leave_no_trace_in_the_window() {
    let breaker = Breaker::new(BreakerSettings::quiet().slow_call(2 * SECOND)).unwrap();
    for _ in 0..50 {
        drop(breaker.admit().unwrap());
        advance(SECOND / 10).await;
    }
    let stats = breaker.stats();
    assert_eq!((breaker.state(), stats.window.calls), (State::Closed, 0));
    assert_eq!((stats.dropped, stats.in_flight()), (50, 0));
}

#[tokio::test(start_paused = true)]
async fn dropped_once_it_is_slow_it_was_abandoned_whatever_the_deadline() {
    let breaker = Breaker::new(touchy_settings().slow_call(SECOND)).unwrap();
    let admission = breaker.admit().unwrap();
    advance(SECOND).await;
    drop(admission);
    assert_eq!((breaker.stats().abandoned, breaker.state()), (1, State::Open));
}

#[tokio::test(start_paused = true)]
async fn a_drop_while_something_else_panics_says_nothing_of_the_callee() {
    let breaker = touchy();
    let admission = breaker.admit().unwrap();
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _held = admission;
        std::panic::resume_unwind(Box::new("planted"));
    }));
    assert_eq!((breaker.state(), breaker.stats().dropped), (State::Closed, 1));
}

#[tokio::test(start_paused = true)]
async fn health_is_what_calls_tell_and_since_when() {
    let sample = |breaker: &Breaker| {
        let reading = breaker.sample(edge::now());
        (reading.health, edge::now() - reading.since.unwrap())
    };
    let breaker = touchy();
    advance(SECOND).await;
    drop(breaker.admit().unwrap());
    call(&breaker, Class::CallerError);
    assert_eq!(sample(&breaker), (Health::Unknown, SECOND), "no call has told anything");
    call(&breaker, Class::Success);
    assert_eq!(sample(&breaker), (Health::Healthy, SECOND));
    call(&breaker, BAD);
    advance(2 * SECOND).await;
    assert_eq!(sample(&breaker), (Health::Unhealthy, 2 * SECOND));
    advance(4 * SECOND).await;
    let over = "the open time is over since then, and nobody has asked";
    assert_eq!(sample(&breaker), (Health::Unknown, SECOND), "{over}");
    let probe = breaker.admit().unwrap();
    assert_eq!(sample(&breaker), (Health::Degraded, Duration::ZERO));
    probe.report(Class::Success);
    assert_eq!(sample(&breaker), (Health::Healthy, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_breaker_that_was_forced_open_says_nothing_of_the_callee() {
    let breaker = touchy();
    call(&breaker, BAD);
    breaker.force_open();
    advance(60 * SECOND).await;
    assert_eq!(breaker.sample(edge::now()).health, Health::Unknown);
    breaker.force_closed();
    assert_eq!(breaker.sample(edge::now()).health, Health::Healthy, "somebody says so");
}

#[tokio::test(start_paused = true)]
async fn a_watcher_hears_of_each_change_when_it_is_decided() {
    let breaker = touchy();
    call(&breaker, BAD);
    let mut watch = breaker.watch();
    assert_eq!(*watch.borrow_and_update(), State::Open, "as it is when the watch begins");
    assert!(!watch.has_changed().unwrap());

    advance(5 * SECOND).await;
    assert!(!watch.has_changed().unwrap(), "nothing fires by itself");
    let waiting = tokio::spawn(async move {
        watch.changed().await.unwrap();
        let half_open = *watch.borrow_and_update();
        watch.changed().await.unwrap();
        let closed = *watch.borrow_and_update();
        (half_open, closed, watch)
    });
    tokio::task::yield_now().await;
    let probe = breaker.admit().unwrap();
    tokio::task::yield_now().await;
    probe.report(Class::Success);
    let (first, second, watch) = waiting.await.unwrap();
    assert_eq!((first, second), (State::HalfOpen, State::Closed));

    breaker.reset();
    assert!(!watch.has_changed().unwrap(), "closed as before");
    drop(breaker);
    assert!(watch.has_changed().is_err(), "a watcher keeps nothing alive");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_state_that_watchers_hear_of_is_the_last_that_was_decided() {
    for _ in 0..200 {
        let breaker = touchy();
        let watch = breaker.watch();
        let threads: Vec<_> = (0..4)
            .map(|n| {
                let breaker = breaker.clone();
                std::thread::spawn(move || match n % 2 {
                    0 => breaker.force_open(),
                    _ => breaker.reset(),
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*watch.borrow(), breaker.state());
        assert_eq!(*breaker.watch().borrow(), breaker.state());
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_may_ask_the_breaker_when_it_hears_of_a_change() {
    // What is told is told outside of the lock.
    let breaker = touchy();
    let mut watch = breaker.watch();
    let reader = {
        let breaker = breaker.clone();
        tokio::spawn(async move {
            watch.changed().await.unwrap();
            (breaker.state(), breaker.stats().opened, breaker.admit().is_err())
        })
    };
    tokio::task::yield_now().await;
    call(&breaker, BAD);
    assert_eq!(reader.await.unwrap(), (State::Open, 1, true));
}

#[tokio::test(start_paused = true)]
async fn by_hand_it_stays_as_it_was_put_until_it_is_reset() {
    let breaker = touchy();
    breaker.force_open();
    advance(3_600 * SECOND).await;
    assert_eq!((breaker.state(), breaker.is_forced()), (State::Open, true));
    assert_eq!(breaker.admit().unwrap_err().retry_after(), None, "nobody knows when");
    breaker.force_closed();
    for _ in 0..100 {
        call(&breaker, BAD);
    }
    assert_eq!((breaker.state(), breaker.is_forced()), (State::Closed, true));
    breaker.reset();
    assert_eq!((breaker.state(), breaker.is_forced()), (State::Closed, false));
    call(&breaker, BAD);
    assert_eq!(breaker.state(), State::Open);
    breaker.reset();
    assert_eq!((breaker.state(), breaker.stats().window.calls), (State::Closed, 0));
    assert_eq!((breaker.stats().failure, breaker.stats().opened), (101, 2), "counters go on");
}

#[tokio::test(start_paused = true)]
async fn a_shadow_counts_what_it_would_have_refused() {
    let breaker = Breaker::new(touchy_settings().shadow(true)).unwrap();
    call(&breaker, BAD);
    assert_eq!((breaker.state(), breaker.is_shadow()), (State::Open, true));
    for _ in 0..10 {
        call(&breaker, BAD);
    }
    breaker.force_open();
    call(&breaker, BAD);
    let stats = breaker.stats();
    assert_eq!((stats.shadowed, stats.rejected, stats.failure), (11, 0, 12));
    breaker.shadow(false);
    assert!(breaker.admit().is_err());
    breaker.reset();
    breaker.shadow(true);
    breaker.reset();
    assert!(breaker.is_shadow(), "who resets a shadow does not arm it");
}

// OPS-02
#[test]
fn what_was_started_is_what_ended_and_what_is_in_flight_at_any_time() {
    let settings = BreakerSettings::default()
        .window(Window::calls(8))
        .min_calls(4)
        .open(Duration::from_nanos(1_000))
        .open_max(Duration::from_nanos(4_000));
    let breaker = Breaker::new(settings).unwrap();
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let reader = {
        let (breaker, stop) = (breaker.clone(), stop.clone());
        std::thread::spawn(move || {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let stats = breaker.stats();
                // Panics if more ended than was started.
                assert!(stats.in_flight() <= 4 * 3, "{stats:?}");
            }
        })
    };
    let threads: Vec<_> = (0..4)
        .map(|thread: usize| {
            let breaker = breaker.clone();
            std::thread::spawn(move || {
                let mut asked = 0;
                for n in 0..5_000 {
                    let held: Vec<Admission> = (0..3).flat_map(|_| breaker.admit()).collect();
                    asked += 3;
                    for (m, admission) in held.into_iter().enumerate() {
                        match (n + m + thread) % 5 {
                            0 => drop(admission),
                            1 => admission.report(Class::CallerError),
                            2 if n % 7 != 0 => admission.report(BAD),
                            _ => admission.report(Class::Success),
                        }
                    }
                }
                asked
            })
        })
        .collect();
    let asked: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    reader.join().unwrap();
    let stats = breaker.stats();
    assert_eq!((stats.started + stats.rejected, stats.in_flight()), (asked, 0));
    assert_eq!(stats.started, stats.ended());
}

#[test]
fn handles_and_admissions_go_where_they_are_needed() {
    fn anywhere<T: Send + Sync + 'static>() {}
    anywhere::<Breaker>();
    anywhere::<Admission>();
    assert!(size_of::<Admission>() <= 64, "{}", size_of::<Admission>());
    assert_eq!(size_of::<Breaker>(), size_of::<usize>());
}
