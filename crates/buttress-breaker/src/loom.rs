//! Every interleaving of threads that share a breaker.
//!
//! The instants are fixed: loom runs each model many times, and it must do the same each time.

use std::time::Duration;

use loom::thread;

use crate::{
    Breaker, BreakerSettings, Breakers, Select, State, Window,
    machine::{End, Ticket},
    moment::Moment,
};

/// Opens at the first failure, and is closed by so many probes.
fn breaker(probes: u32) -> (Breaker, Moment) {
    let settings = BreakerSettings::default()
        .window(Window::calls(1))
        .min_calls(1)
        .consecutive(1)
        .open_jitter(0.0)
        .probes(probes);
    (Breaker::new(settings).unwrap(), Moment::START)
}

fn admit(breaker: &Breaker, now: Moment) -> Option<Ticket> {
    breaker.with(|machine, settings| machine.admit(settings, now, || 0.5)).ok()
}

fn end(breaker: &Breaker, now: Moment, ticket: Ticket, end: End) {
    breaker.with(|machine, settings| machine.end(settings, now, || 0.5, ticket, end));
}

fn state(breaker: &Breaker, now: Moment) -> State {
    breaker.look(|machine, _| machine.state(now))
}

/// The breaker is open, and this is when its open time is over.
fn opened(probes: u32) -> (Breaker, Moment) {
    let (breaker, start) = breaker(probes);
    let ticket = admit(&breaker, start).unwrap();
    end(&breaker, start, ticket, End::Bad);
    (breaker, start + Duration::from_secs(5))
}

// CBK-01
#[test]
fn however_many_ask_at_once_no_more_probes_are_let_through_than_may_be() {
    for probes in [1, 2] {
        loom::model(move || {
            let (breaker, now) = opened(probes);
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let breaker = breaker.clone();
                    thread::spawn(move || admit(&breaker, now))
                })
                .collect();
            let mut admitted: Vec<_> = admit(&breaker, now).into_iter().collect();
            admitted.extend(threads.into_iter().filter_map(|thread| thread.join().unwrap()));
            assert_eq!(admitted.len(), probes as usize);
            for ticket in admitted {
                end(&breaker, now, ticket, End::Good);
            }
            assert_eq!(state(&breaker, now), State::Closed);
        });
    }
}

// CBK-02
#[test]
fn a_place_that_is_given_back_while_others_ask_is_not_lost() {
    loom::model(|| {
        let (breaker, now) = opened(1);
        let probe = admit(&breaker, now).unwrap();
        let dropping = {
            let breaker = breaker.clone();
            thread::spawn(move || end(&breaker, now, probe, End::Dropped))
        };
        let asking = {
            let breaker = breaker.clone();
            thread::spawn(move || match admit(&breaker, now) {
                Some(ticket) => end(&breaker, now, ticket, End::Neutral),
                None => assert_eq!(state(&breaker, now), State::HalfOpen),
            })
        };
        dropping.join().unwrap();
        asking.join().unwrap();
        let ticket = admit(&breaker, now).expect("nothing is in flight");
        end(&breaker, now, ticket, End::Good);
        let stats = breaker.look(|machine, _| machine.stats(now));
        assert_eq!((state(&breaker, now), stats.in_flight()), (State::Closed, 0));
    });
}

#[test]
fn answers_that_race_with_the_trip_are_counted_once_each_and_open_it_once() {
    loom::model(|| {
        let (breaker, now) = breaker(1);
        let tickets = [admit(&breaker, now).unwrap(), admit(&breaker, now).unwrap()];
        let threads = tickets.map(|ticket| {
            let breaker = breaker.clone();
            thread::spawn(move || end(&breaker, now, ticket, End::Bad))
        });
        let third = admit(&breaker, now);
        for thread in threads {
            thread.join().unwrap();
        }
        if let Some(ticket) = third {
            end(&breaker, now, ticket, End::Bad);
        }
        let stats = breaker.look(|machine, _| machine.stats(now));
        assert_eq!((stats.opened, stats.failure, stats.in_flight()), (1, 1, 0));
        assert_eq!(stats.stale, stats.started - 1);
        assert_eq!(state(&breaker, now), State::Open);
    });
}

#[test]
fn a_probe_that_ends_while_its_lease_does_has_one_say_or_none() {
    loom::model(|| {
        let (breaker, now) = opened(1);
        let probe = admit(&breaker, now).unwrap();
        let later = now + Duration::from_secs(5);
        let ending = {
            let breaker = breaker.clone();
            thread::spawn(move || end(&breaker, later, probe, End::Bad))
        };
        let next = admit(&breaker, later);
        ending.join().unwrap();
        let stats = breaker.look(|machine, _| machine.stats(later));
        match next {
            // The lease ended first: its successor decides.
            Some(ticket) if stats.expired == 1 => {
                assert_eq!((state(&breaker, later), stats.stale), (State::HalfOpen, 1));
                end(&breaker, later, ticket, End::Good);
                assert_eq!(state(&breaker, later), State::Closed);
            }
            // It failed first.
            None => assert_eq!((state(&breaker, later), stats.failure), (State::Open, 2)),
            Some(_) => panic!("two probes at once: {stats:?}"),
        }
    });
}

#[test]
fn a_probe_that_ends_well_while_its_lease_does_closes_it_either_way() {
    loom::model(|| {
        let (breaker, now) = opened(1);
        let probe = admit(&breaker, now).unwrap();
        let later = now + Duration::from_secs(5);
        let ending = {
            let breaker = breaker.clone();
            thread::spawn(move || end(&breaker, later, probe, End::Good))
        };
        let next = admit(&breaker, later).expect("its place is free, or the breaker is closed");
        ending.join().unwrap();
        assert_eq!(state(&breaker, later), State::Closed);
        let expired = breaker.look(|machine, _| machine.stats(later)).expired;
        end(&breaker, later, next, End::Bad);
        // What took its place is a probe, of before; else it is a call as any other.
        let expected = if expired == 1 { State::Closed } else { State::Open };
        assert_eq!(state(&breaker, later), expected);
    });
}

/// Lets a call through as handles do: past the lock, if that was promised.
fn enter(breaker: &Breaker, now: Moment) -> Option<Ticket> {
    match breaker.gate().admit() {
        Some(admitted) => Some(Ticket::counted(admitted.epoch, Moment::NEVER)),
        None => admit(breaker, now),
    }
}

/// Ends it well, as handles do.
fn succeed(breaker: &Breaker, now: Moment, ticket: Ticket) {
    if !breaker.gate().succeed(ticket.epoch(), || Some(now)) {
        end(breaker, now, ticket, End::Good);
    }
}

/// One call has succeeded, so that the next ones need no lock.
fn with_a_gate_that_is_open() -> (Breaker, Moment) {
    let settings = BreakerSettings::default()
        .window(Window::calls(4))
        .min_calls(1)
        .consecutive(1)
        .open_jitter(0.0);
    let (breaker, now) = (Breaker::new(settings).unwrap(), Moment::START);
    let first = enter(&breaker, now).unwrap();
    succeed(&breaker, now, first);
    (breaker, now)
}

#[test]
fn past_the_lock_no_answer_from_before_counts_after() {
    loom::model(|| {
        let (breaker, now) = with_a_gate_that_is_open();
        let bad = enter(&breaker, now).unwrap();
        let calling = {
            let breaker = breaker.clone();
            thread::spawn(move || {
                let ticket = enter(&breaker, now)?;
                succeed(&breaker, now, ticket);
                Some(ticket.epoch())
            })
        };
        end(&breaker, now, bad, End::Bad);
        breaker.with(|machine, _| machine.reset(now));
        let epoch = calling.join().unwrap();
        let stats = breaker.look(|machine, _| machine.stats(now));
        // Two turns: it opened, and it was closed.
        let counts_now = u32::from(epoch == Some(2));
        assert_eq!((stats.window.calls, stats.window.failures), (counts_now, 0), "{stats:?}");
        assert_eq!((stats.in_flight(), stats.failure), (0, 1), "{stats:?}");
        assert_eq!(stats.started + stats.rejected, 3, "{stats:?}");
    });
}

#[test]
fn past_the_lock_what_is_said_of_all_calls_is_whole() {
    loom::model(|| {
        let (breaker, now) = with_a_gate_that_is_open();
        let calling = {
            let breaker = breaker.clone();
            thread::spawn(move || {
                let ticket = enter(&breaker, now).expect("it is closed");
                succeed(&breaker, now, ticket);
            })
        };
        let stats = breaker.look(|machine, _| machine.stats(now));
        assert!(stats.success <= stats.started && stats.started <= 2, "{stats:?}");
        assert_eq!(u64::from(stats.window.calls), stats.success);
        calling.join().unwrap();
        let stats = breaker.look(|machine, _| machine.stats(now));
        assert_eq!((stats.started, stats.success, stats.window.calls), (2, 2, 2));
    });
}

#[test]
fn past_the_lock_every_refusal_is_counted_and_none_comes_after_the_reset() {
    loom::model(|| {
        let (breaker, now) = opened(1);
        let asking = {
            let breaker = breaker.clone();
            thread::spawn(move || breaker.gate().refuse(now).is_some())
        };
        breaker.with(|machine, _| machine.reset(now));
        assert!(breaker.gate().refuse(now).is_none());
        let refused = asking.join().unwrap();
        let stats = breaker.look(|machine, _| machine.stats(now));
        assert_eq!((stats.rejected, stats.started), (u64::from(refused), 1));
    });
}

#[test]
fn past_the_lock_no_success_is_missed_that_makes_them_enough_to_be_judged() {
    loom::model(|| {
        let settings = BreakerSettings::default()
            .window(Window::calls(4))
            .min_calls(2)
            .failure_rate(0.5)
            .open_jitter(0.0);
        let (breaker, now) = (Breaker::new(settings).unwrap(), Moment::START);
        let [good, bad] = [(); 2].map(|()| enter(&breaker, now).unwrap());
        let calling = {
            let breaker = breaker.clone();
            thread::spawn(move || succeed(&breaker, now, good))
        };
        end(&breaker, now, bad, End::Bad);
        calling.join().unwrap();
        let stats = breaker.look(|machine, _| machine.stats(now));
        assert_eq!((stats.success, stats.failure, stats.in_flight()), (1, 1, 0));
        assert_eq!(state(&breaker, now), State::Open, "half of two, whichever was first");
    });
}

#[test]
fn past_the_lock_nobody_is_refused_until_an_instant_of_a_later_promise() {
    loom::model(|| {
        // The open time is over, so that nobody is refused before the reset; and nobody is after it.
        let (breaker, now) = opened(1);
        let asking = {
            let breaker = breaker.clone();
            thread::spawn(move || breaker.gate().refuses(now))
        };
        breaker.with(|machine, _| machine.reset(now));
        assert!(!asking.join().unwrap());
    });
}

#[test]
fn past_the_lock_no_breaker_is_found_that_is_not_in_the_map() {
    loom::model(|| {
        let settings = BreakerSettings::default().window(Window::calls(4)).min_calls(1);
        let breakers = Breakers::with_capacity(1, settings, |key: &u64| *key).unwrap();
        let call = |breakers: &Breakers<u64, _>, key: u64| {
            let breaker = breakers.select(&key);
            let ticket = enter(&breaker, Moment::START).expect("all succeed");
            succeed(&breaker, Moment::START, ticket);
        };
        // Made, found under the lock, and from then on past it.
        (0..2).for_each(|_| call(&breakers, 1));
        let calling = {
            let breakers = breakers.clone();
            thread::spawn(move || call(&breakers, 1))
        };
        // Takes its place, if nobody has it.
        call(&breakers, 2);
        calling.join().unwrap();
        // A call of one that was replaced before would be in no sum.
        let stats = breakers.stats();
        assert_eq!((stats.started, stats.success, breakers.len()), (4, 4, 1), "{stats:?}");
    });
}
