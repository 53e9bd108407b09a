//! Every interleaving of what threads do with a bulkhead.

use std::time::Duration;

use ::loom::{future::block_on, model, thread};

use crate::{Bulkhead, BulkheadSettings};

fn bulkhead(limit: usize, max_waiting: usize) -> Bulkhead {
    let settings = BulkheadSettings::new(limit).max_waiting(max_waiting).max_wait(Duration::MAX);
    Bulkhead::new(settings).unwrap()
}

fn assert_idle(bulkhead: &Bulkhead) {
    assert_eq!((bulkhead.in_flight(), bulkhead.waiting()), (0, 0));
    let slots: Vec<_> = (0..bulkhead.limit()).map(|_| bulkhead.try_acquire().unwrap()).collect();
    assert!(bulkhead.try_acquire().is_err(), "there are {} slots, and no more", slots.len());
}

// BLK-06
#[test]
fn no_more_slots_are_out_than_there_are() {
    model(|| {
        let bulkhead = bulkhead(1, 0);
        let inside = ::loom::sync::Arc::new(::loom::sync::atomic::AtomicUsize::new(0));
        let threads = [(); 2].map(|()| {
            let (bulkhead, inside) = (bulkhead.clone(), inside.clone());
            thread::spawn(move || {
                if let Ok(_slot) = bulkhead.try_acquire() {
                    assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::Relaxed), 0);
                    inside.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
                }
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
        assert_idle(&bulkhead);
    });
}

#[test]
fn nobody_is_refused_while_there_is_room() {
    model(|| {
        let bulkhead = bulkhead(2, 0);
        let other = bulkhead.clone();
        let thread = thread::spawn(move || {
            // Never more than one at a time.
            for _ in 0..2 {
                drop(other.try_acquire().expect("there is room for two"));
            }
        });
        assert!(bulkhead.in_flight() <= 1);
        drop(bulkhead.try_acquire().expect("there is room for two"));
        thread.join().unwrap();
        assert_idle(&bulkhead);
    });
}

#[test]
fn whoever_queues_while_a_slot_comes_back_gets_it() {
    model(|| {
        let bulkhead = bulkhead(1, 1);
        let slot = bulkhead.try_acquire().unwrap();
        let waiter = bulkhead.clone();
        let thread = thread::spawn(move || drop(block_on(waiter.acquire()).unwrap()));
        drop(slot);
        thread.join().unwrap();
        assert_idle(&bulkhead);
        assert_eq!(bulkhead.stats().granted, 3);
    });
}

// BLK-07
#[test]
fn a_slot_on_its_way_to_one_who_leaves_goes_to_the_next() {
    model(|| {
        let bulkhead = bulkhead(1, 2);
        let slot = bulkhead.try_acquire().unwrap();
        let leaving = bulkhead.acquire();
        let staying = bulkhead.acquire();
        let thread = thread::spawn(move || drop(leaving));
        drop(slot);
        drop(block_on(staying).unwrap());
        thread.join().unwrap();
        assert_idle(&bulkhead);
    });
}

#[test]
fn nobody_overtakes_whoever_waits() {
    model(|| {
        let bulkhead = bulkhead(1, 1);
        let slot = bulkhead.try_acquire().unwrap();
        let waiting = bulkhead.acquire();
        let late = bulkhead.clone();
        let thread = thread::spawn(move || assert!(late.try_acquire().is_err()));
        drop(slot);
        thread.join().unwrap();
        drop(block_on(waiting).unwrap());
        assert_idle(&bulkhead);
    });
}

#[test]
fn a_slot_that_nobody_waits_for_is_there_even_while_one_who_waits_is_being_called() {
    for queue_up in [false, true] {
        model(move || {
            let bulkhead = bulkhead(1, 1);
            let slot = bulkhead.try_acquire().unwrap();
            let waiting = bulkhead.acquire();
            let other = bulkhead.clone();
            let thread = thread::spawn(move || other.set_limit(3).unwrap());
            if bulkhead.limit() == 3 {
                // One is held, one is for whoever waits, and the third is ours.
                let third =
                    if queue_up { block_on(bulkhead.acquire()) } else { bulkhead.try_acquire() };
                drop(third.expect("there is a slot for each"));
            }
            thread.join().unwrap();
            drop((slot, waiting));
            assert_idle(&bulkhead);
        });
    }
}

#[test]
fn a_raised_limit_admits_whoever_is_about_to_wait() {
    model(|| {
        let bulkhead = bulkhead(1, 1);
        let slot = bulkhead.try_acquire().unwrap();
        let waiter = bulkhead.clone();
        let thread = thread::spawn(move || drop(block_on(waiter.acquire()).unwrap()));
        bulkhead.set_limit(2).unwrap();
        thread.join().unwrap();
        drop(slot);
        assert_idle(&bulkhead);
    });
}

#[test]
fn once_the_limit_is_lowered_nobody_is_admitted_under_the_old_one() {
    model(|| {
        let bulkhead = bulkhead(2, 0);
        let slot = bulkhead.try_acquire().unwrap();
        let other = bulkhead.clone();
        let thread = thread::spawn(move || other.try_acquire());
        bulkhead.set_limit(1).unwrap();
        let then = bulkhead.in_flight();
        let admitted = thread.join().unwrap();
        assert_eq!(
            bulkhead.in_flight(),
            then,
            "the limit was set, and somebody came in after that"
        );
        drop((slot, admitted));
        assert_idle(&bulkhead);
    });
}

#[test]
fn raising_lowering_and_giving_back_at_once_loses_no_slot() {
    model(|| {
        let bulkhead = bulkhead(1, 1);
        let slot = bulkhead.try_acquire().unwrap();
        let waiting = bulkhead.acquire();
        let other = bulkhead.clone();
        let thread = thread::spawn(move || {
            other.set_limit(2).unwrap();
            other.set_limit(1).unwrap();
        });
        drop(slot);
        drop(block_on(waiting).unwrap());
        thread.join().unwrap();
        assert_idle(&bulkhead);
    });
}

#[test]
fn the_counts_add_up_at_every_instant() {
    model(|| {
        let bulkhead = bulkhead(1, 1);
        let slot = bulkhead.try_acquire().unwrap();
        let waiter = bulkhead.clone();
        let thread = thread::spawn(move || drop(waiter.acquire()));
        let other = thread::spawn(move || drop(slot));
        let stats = bulkhead.stats();
        assert!((1..=2).contains(&stats.started), "{stats:?}");
        assert!(stats.in_flight <= 1, "{stats:?}");
        thread.join().unwrap();
        other.join().unwrap();
        assert_eq!(bulkhead.stats().started, 2);
        assert_idle(&bulkhead);
    });
}
