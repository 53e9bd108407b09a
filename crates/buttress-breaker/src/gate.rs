//! What happens to nearly every call, past the lock: a breaker that is closed lets it through, and it succeeds;
//! or one that is open refuses it.
//!
//! A lock that each call takes twice is what keeps two threads that share a breaker from being faster than one.
//! So the machine says, whenever it is let go, what it would answer whoever comes next: that a call may start,
//! or that none may for a while, and that one which succeeds changes nothing but two numbers. The gate counts
//! such calls, in one word beside that promise, and whoever takes the lock takes them in first. So to the machine,
//! each of them came just before the next thing that it has to decide; and what it says of itself is whole.
//!
//! The word is exchanged as a whole. A promise that was taken back since it was read, or given anew, does not let
//! a call be counted: it has another generation.

use crate::sync::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

/// One call that succeeded.
const GOOD: u64 = 1;
/// One call that was let through, or one that was refused.
const ASKED: u64 = 1 << 16;
/// How many of either are counted before they have to be taken in.
const MOST: u64 = u16::MAX as u64;
/// One more time that the lock was let go.
const GENERATION: u64 = 1 << 32;
const GENERATIONS: u64 = REFUSES - GENERATION;
/// Every call is refused.
const REFUSES: u64 = 1 << 61;
/// A call that succeeds changes nothing but numbers.
const COUNTS: u64 = 1 << 62;
/// Every call is let through.
const ADMITS: u64 = 1 << 63;

/// See the module.
#[derive(Debug)]
pub(crate) struct Gate {
    /// The promise, its generation, and what was counted since it was given.
    word: AtomicU64,
    /// The epoch in which calls are let through. As `until`, it is written only while nothing is promised.
    epoch: AtomicU64,
    /// Until when calls are refused, or else until when a success may be counted.
    until: AtomicU64,
}

/// What a machine promises until somebody takes the lock again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Promise {
    /// Every call is let through, in this epoch.
    pub(crate) admits: bool,
    pub(crate) epoch: u64,
    /// No call is let through before this time, in nanoseconds. [`u64::MAX`] is for ever.
    pub(crate) refuses_until: Option<u64>,
    /// A call of this epoch that succeeds before this time, in nanoseconds, changes nothing but the numbers of
    /// those that have succeeded.
    pub(crate) counts_until: Option<u64>,
}

/// What was counted past the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) started: u32,
    pub(crate) refused: u32,
    pub(crate) good: u32,
}

/// How many of them were counted.
const fn number(word: u64, one: u64) -> u64 {
    (word / one) & MOST
}

impl Gate {
    pub(crate) fn new(promise: Promise) -> Self {
        let gate =
            Self { word: AtomicU64::new(0), epoch: AtomicU64::new(0), until: AtomicU64::new(0) };
        gate.open(promise);
        gate
    }

    /// Whether every call is let through.
    #[inline]
    pub(crate) fn admits(&self) -> bool {
        self.word.load(Relaxed) & ADMITS != 0
    }

    /// Lets a call through, and says in which epoch, if that was promised.
    #[inline]
    pub(crate) fn admit(&self) -> Option<u64> {
        let mut word = self.word.load(Acquire);
        loop {
            if word & ADMITS == 0 || number(word, ASKED) == MOST {
                return None;
            }
            let epoch = self.epoch.load(Relaxed);
            match self.word.compare_exchange_weak(word, word + ASKED, AcqRel, Acquire) {
                Ok(_) => return Some(epoch),
                Err(changed) => word = changed,
            }
        }
    }

    /// Whether a call that asks at `now` is refused, as far as that was promised.
    pub(crate) fn refuses(&self, now: u64) -> bool {
        self.word.load(Acquire) & REFUSES != 0 && now < self.until.load(Relaxed)
    }

    /// Refuses a call at `now`, and says until when there is no better answer, if that was promised.
    pub(crate) fn refuse(&self, now: u64) -> Option<u64> {
        let mut word = self.word.load(Acquire);
        loop {
            let until = self.until.load(Relaxed);
            if word & REFUSES == 0 || number(word, ASKED) == MOST || until <= now {
                return None;
            }
            match self.word.compare_exchange_weak(word, word + ASKED, AcqRel, Acquire) {
                Ok(_) => return Some(until),
                Err(changed) => word = changed,
            }
        }
    }

    /// Counts a call of that epoch which has succeeded at `now`, if that was promised.
    #[inline]
    pub(crate) fn succeed(&self, epoch: u64, now: u64) -> bool {
        let mut word = self.word.load(Acquire);
        loop {
            if word & COUNTS == 0
                || number(word, GOOD) == MOST
                || self.epoch.load(Relaxed) != epoch
                || self.until.load(Relaxed) <= now
            {
                return false;
            }
            match self.word.compare_exchange_weak(word, word + GOOD, AcqRel, Acquire) {
                Ok(_) => return true,
                Err(changed) => word = changed,
            }
        }
    }

    /// Takes the promise back, and says what was counted. Whoever shuts it holds the lock.
    pub(crate) fn shut(&self) -> Counted {
        let word = self.word.fetch_and(GENERATIONS, AcqRel);
        let part = |one| u32::try_from(number(word, one)).expect("it has 16 bits");
        let (asked, good) = (part(ASKED), part(GOOD));
        match word & REFUSES {
            0 => Counted { started: asked, refused: 0, good },
            _ => Counted { started: 0, refused: asked, good },
        }
    }

    /// Gives a promise. Whoever opens it holds the lock still, and has shut it.
    pub(crate) fn open(&self, promise: Promise) {
        self.epoch.store(promise.epoch, Relaxed);
        let until = promise.refuses_until.or(promise.counts_until);
        self.until.store(until.unwrap_or(0), Relaxed);
        let flag = |of, is_there| if is_there { of } else { 0 };
        let promised = flag(ADMITS, promise.admits)
            | flag(REFUSES, promise.refuses_until.is_some())
            | flag(COUNTS, promise.counts_until.is_some());
        let generation = self.word.load(Relaxed).wrapping_add(GENERATION) & GENERATIONS;
        self.word.store(generation | promised, Release);
    }
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use super::*;

    const ALL: Promise =
        Promise { admits: true, epoch: 7, refuses_until: None, counts_until: Some(100) };
    const NONE: Promise =
        Promise { admits: false, epoch: 8, refuses_until: Some(100), counts_until: None };

    #[test]
    fn what_is_counted_is_taken_in_once() {
        let gate = Gate::new(ALL);
        assert_eq!((gate.admit(), gate.admit()), (Some(7), Some(7)));
        assert!(gate.succeed(7, 99));
        assert_eq!(gate.shut(), Counted { started: 2, refused: 0, good: 1 });
        assert_eq!((gate.admit(), gate.succeed(7, 0)), (None, false), "it is shut");
        assert_eq!(gate.shut(), Counted::default());
        gate.open(ALL);
        assert_eq!(gate.shut(), Counted::default());
    }

    #[test]
    fn nothing_is_counted_but_what_was_promised() {
        let gate = Gate::new(ALL);
        assert!(!gate.succeed(6, 0) && !gate.succeed(8, 0), "of another epoch");
        assert!(!gate.succeed(7, 100), "too late");
        gate.shut();
        gate.open(Promise { counts_until: None, ..ALL });
        assert!(gate.admits() && !gate.succeed(7, 0));
        gate.shut();
        gate.open(Promise { admits: false, ..ALL });
        assert!(!gate.admits() && gate.admit().is_none() && gate.succeed(7, 0));
        assert!(!gate.refuses(0) && gate.refuse(0).is_none());
    }

    #[test]
    fn what_is_refused_is_no_call_that_started() {
        let gate = Gate::new(NONE);
        assert!(!gate.admits() && gate.admit().is_none() && !gate.succeed(8, 0));
        assert!(gate.refuses(99) && !gate.refuses(100));
        assert_eq!((gate.refuse(99), gate.refuse(100)), (Some(100), None));
        assert_eq!(gate.shut(), Counted { started: 0, refused: 1, good: 0 });
        assert!(!gate.refuses(0) && gate.refuse(0).is_none());
    }

    #[test]
    fn when_it_can_count_no_more_it_says_so() {
        let gate = Gate::new(ALL);
        for _ in 0..MOST {
            assert!(gate.admit().is_some() && gate.succeed(7, 0));
        }
        assert!(gate.admits() && gate.admit().is_none() && !gate.succeed(7, 0));
        let most = u16::MAX.into();
        assert_eq!(gate.shut(), Counted { started: most, refused: 0, good: most });
        gate.open(NONE);
        assert!((0..MOST).all(|_| gate.refuse(0).is_some()) && gate.refuse(0).is_none());
        assert_eq!(gate.shut().refused, most);
    }

    #[test]
    fn a_promise_that_is_given_again_is_another_one() {
        let gate = Gate::new(ALL);
        let before = gate.word.load(Relaxed);
        gate.shut();
        gate.open(ALL);
        assert_ne!(gate.word.load(Relaxed), before);
        gate.word.store(GENERATIONS | ADMITS | COUNTS, Relaxed);
        gate.shut();
        gate.open(ALL);
        assert_eq!(gate.word.load(Relaxed), ADMITS | COUNTS, "the last is followed by the first");
    }
}
