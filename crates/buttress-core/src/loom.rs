//! Every interleaving of writers that come with their tokens.

use loom::thread;

use crate::{
    FenceGuard, FencingToken, LeaseId,
    sync::{
        Arc, AtomicU64,
        Ordering::{Acquire, Release},
    },
};

fn token(number: u64) -> FencingToken {
    FencingToken::new(number).unwrap()
}

#[test]
fn the_mark_is_the_greatest_token_whoever_comes_last() {
    loom::model(|| {
        let guard = FenceGuard::new(LeaseId::of("a"));
        let writers = [1, 3].map(|number| {
            let guard = guard.clone();
            thread::spawn(move || guard.admit(token(number)).is_ok())
        });
        let _ = guard.admit(token(2));
        let [_, third] = writers.map(|writer| writer.join().unwrap());
        assert!(third, "nothing is greater");
        assert_eq!(guard.highest(), Some(token(3)));
    });
}

// LDR-02
#[test]
fn nobody_is_admitted_after_somebody_with_a_greater_token() {
    loom::model(|| {
        let guard = FenceGuard::new(LeaseId::of("a"));
        let admitted = Arc::new(AtomicU64::new(0));
        let newer = {
            let (guard, admitted) = (guard.clone(), Arc::clone(&admitted));
            thread::spawn(move || {
                guard.admit(token(2)).unwrap();
                admitted.store(1, Release);
            })
        };
        let newer_was_first = admitted.load(Acquire) == 1;
        let older = guard.admit(token(1)).is_ok();
        assert!(!(newer_was_first && older), "the stale one came in");
        newer.join().unwrap();
        assert_eq!(guard.highest(), Some(token(2)));
    });
}
