//! Every interleaving of requests, and of the elector that opens, renews, closes and ends terms.

use std::time::Duration;

use loom::thread;

use crate::{
    BootTime, FencingToken,
    gate::{Gate, Shut, Term},
    sync::{
        Arc, AtomicU64,
        Ordering::{AcqRel, Acquire, Release},
    },
};

const MIN: Duration = Duration::ZERO;

fn at(nanos: u64) -> BootTime {
    BootTime::from_nanos(nanos)
}

/// The first term is valid until 100, or 200 once it was renewed, and the second from then on until 300.
fn term(fence: u64) -> Arc<Term> {
    Arc::new(Term::new(FencingToken::new(fence).unwrap(), at(fence * 100)))
}

fn gate(term: &Arc<Term>) -> Arc<Gate> {
    let gate = Gate::new();
    gate.set(Some(Arc::clone(term)));
    Arc::new(gate)
}

#[test]
fn nobody_has_one_terms_token_and_the_validity_of_another() {
    loom::model(|| {
        let (first, second) = (term(1), term(3));
        let gate = gate(&first);
        let elector = {
            let (gate, first) = (Arc::clone(&gate), Arc::clone(&first));
            thread::spawn(move || {
                first.end();
                gate.set(None);
                gate.set(Some(second));
            })
        };
        // By this clock the first term is over and the second is not.
        if let Ok(fence) = gate.check(|| at(150), MIN) {
            assert_eq!(fence.get(), 3);
        }
        if let Ok(term) = gate.admit(|| at(150), MIN) {
            assert_eq!(term.fence().get(), 3);
            term.leave();
        }
        elector.join().unwrap();
    });
}

#[test]
fn a_renewal_is_the_terms_that_was_renewed() {
    loom::model(|| {
        let (first, second) = (term(1), term(2));
        let gate = gate(&first);
        let elector = {
            let (gate, first) = (Arc::clone(&gate), Arc::clone(&first));
            thread::spawn(move || {
                gate.set(Some(Arc::clone(&second)));
                first.extend(at(1_000));
            })
        };
        let fence = gate.check(|| at(250), MIN).map(FencingToken::get);
        assert!(fence != Ok(2), "the renewal was the first one's");
        elector.join().unwrap();
        assert_eq!(gate.check(|| at(250), MIN), Err(Shut::Short(Duration::ZERO)));
    });
}

#[test]
fn once_a_closed_term_is_empty_nobody_comes_in() {
    loom::model(|| {
        let first = term(1);
        // What is released while somebody is in is a lease that two use.
        let released = Arc::new(AtomicU64::new(0));
        let requests: Vec<_> = (0..2)
            .map(|_| {
                let (first, released) = (Arc::clone(&first), Arc::clone(&released));
                thread::spawn(move || {
                    if first.enter().is_ok() {
                        assert_eq!(released.load(Acquire), 0, "it was empty");
                        first.leave();
                    }
                })
            })
            .collect();
        first.close(Shut::Leaving);
        if first.in_flight() == 0 {
            released.store(1, Release);
        }
        for request in requests {
            request.join().unwrap();
        }
        assert_eq!(first.in_flight(), 0);
    });
}

#[test]
fn whoever_is_the_last_to_leave_a_closed_term_tells() {
    loom::model(|| {
        let first = term(1);
        let told = Arc::new(AtomicU64::new(0));
        first.enter().unwrap();
        let leaves = {
            let (first, told) = (Arc::clone(&first), Arc::clone(&told));
            thread::spawn(move || {
                first.leave();
                told.fetch_add(1, AcqRel);
            })
        };
        first.close(Shut::Leaving);
        let was_empty = first.in_flight() == 0;
        leaves.join().unwrap();
        let mut woken = std::pin::pin!(first.empty().notified());
        assert!(was_empty || woken.as_mut().enable(), "the elector would wait for ever");
    });
}
