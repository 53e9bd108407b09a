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

use crate::{
    moment::Moment,
    sync::{
        AtomicU64,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
};

/// One call that succeeded.
const GOOD: u64 = 1;
/// One call that was let through, or one that was refused.
const ASKED: u64 = 1 << 14;
/// How many of either are counted before they have to be taken in: when the highest of their bits is set.
const MOST: u64 = 1 << 13;
/// As many have succeeded.
const GOOD_IS_FULL: u64 = GOOD * MOST;
/// As many have asked.
const ASKED_IS_FULL: u64 = ASKED * MOST;
/// One more time that the lock was let go.
const GENERATION: u64 = 1 << 28;
const GENERATIONS: u64 = TIMES_STARTS - GENERATION;
/// It matters when a call starts. This and the next hold for ever, and are here to be read with the rest.
const TIMES_STARTS: u64 = 1 << 59;
/// It matters when a call ends well.
const TIMES_ENDS: u64 = 1 << 60;
const KEPT: u64 = GENERATIONS | TIMES_STARTS | TIMES_ENDS;
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

/// When the clock has to be read for a call that goes past the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Timed {
    pub(crate) starts: bool,
    pub(crate) ends: bool,
}

/// What a machine promises until somebody takes the lock again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Promise {
    /// Every call is let through, in this epoch.
    pub(crate) admits: bool,
    pub(crate) epoch: u64,
    /// No call is let through before this.
    pub(crate) refuses_until: Option<Moment>,
    /// A call of this epoch that succeeds before this changes nothing but the numbers of those that have
    /// succeeded.
    pub(crate) counts_until: Option<Moment>,
}

/// A call was let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    pub(crate) epoch: u64,
    /// It matters when it started.
    pub(crate) is_timed: bool,
}

/// What was counted past the lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) started: u32,
    pub(crate) refused: u32,
    pub(crate) good: u32,
}

const fn flag(flag: u64, is_set: bool) -> u64 {
    if is_set { flag } else { 0 }
}

impl Gate {
    pub(crate) fn new(timed: Timed, promise: Promise) -> Self {
        let word = flag(TIMES_STARTS, timed.starts) | flag(TIMES_ENDS, timed.ends);
        let (word, epoch, until) = (AtomicU64::new(word), AtomicU64::new(0), AtomicU64::new(0));
        let gate = Self { word, epoch, until };
        gate.open(promise);
        gate
    }

    /// Whether every call is let through.
    #[inline]
    pub(crate) fn admits(&self) -> bool {
        self.word.load(Relaxed) & ADMITS != 0
    }

    /// Lets a call through, if that was promised.
    #[inline]
    pub(crate) fn admit(&self) -> Option<Admitted> {
        let mut word = self.word.load(Acquire);
        loop {
            if word & (ADMITS | ASKED_IS_FULL) != ADMITS {
                return None;
            }
            let epoch = self.epoch.load(Relaxed);
            match self.word.compare_exchange_weak(word, word + ASKED, AcqRel, Acquire) {
                Ok(_) => return Some(Admitted { epoch, is_timed: word & TIMES_STARTS != 0 }),
                Err(changed) => word = changed,
            }
        }
    }

    /// Whether a call that asks at `now` is refused, as far as that was promised.
    #[inline]
    pub(crate) fn refuses(&self, now: Moment) -> bool {
        let word = self.word.load(Acquire);
        let until = self.until.load(Acquire);
        // Nothing is exchanged here that would fail. So it is looked at again: whoever reads an instant of a later
        // promise sees that this one was taken back.
        let is_another = (self.word.load(Relaxed) ^ word) & (REFUSES | GENERATIONS) != 0;
        word & REFUSES != 0 && now.nanos() < until && !is_another
    }

    /// Refuses a call at `now`, and says until when there is no better answer, if that was promised.
    #[inline]
    pub(crate) fn refuse(&self, now: Moment) -> Option<Moment> {
        let mut word = self.word.load(Acquire);
        loop {
            let until = self.until.load(Relaxed);
            if word & (REFUSES | ASKED_IS_FULL) != REFUSES || until <= now.nanos() {
                return None;
            }
            match self.word.compare_exchange_weak(word, word + ASKED, AcqRel, Acquire) {
                Ok(_) => return Some(Moment::at(until)),
                Err(changed) => word = changed,
            }
        }
    }

    /// Counts a call of that epoch which has succeeded, if that was promised. `now` is asked if it matters
    /// when, and says nothing if it was not in time.
    #[inline]
    pub(crate) fn succeed(&self, epoch: u64, now: impl FnOnce() -> Option<Moment>) -> bool {
        let mut word = self.word.load(Acquire);
        let now = if word & TIMES_ENDS == 0 { Some(Moment::START) } else { now() };
        let Some(now) = now else { return false };
        loop {
            if word & (COUNTS | GOOD_IS_FULL) != COUNTS
                || self.epoch.load(Relaxed) != epoch
                || self.until.load(Relaxed) <= now.nanos()
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
        let word = self.word.fetch_and(KEPT, AcqRel);
        let number = |one| u32::try_from(word / one % (2 * MOST)).expect("it has 14 bits");
        let (asked, good) = (number(ASKED), number(GOOD));
        match word & REFUSES {
            0 => Counted { started: asked, refused: 0, good },
            _ => Counted { started: 0, refused: asked, good },
        }
    }

    /// Gives a promise. Whoever opens it holds the lock still, and has shut it.
    pub(crate) fn open(&self, promise: Promise) {
        self.epoch.store(promise.epoch, Relaxed);
        let until = promise.refuses_until.or(promise.counts_until);
        self.until.store(until.map_or(0, Moment::nanos), Release);
        let promised = flag(ADMITS, promise.admits)
            | flag(REFUSES, promise.refuses_until.is_some())
            | flag(COUNTS, promise.counts_until.is_some());
        let word = self.word.load(Relaxed);
        let generation = word.wrapping_add(GENERATION) & GENERATIONS;
        self.word.store(word & !GENERATIONS | generation | promised, Release);
    }
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use super::*;

    const UNTIL: Option<Moment> = Some(Moment::at(100));
    const ALL: Promise =
        Promise { admits: true, epoch: 7, refuses_until: None, counts_until: UNTIL };
    const NONE: Promise =
        Promise { admits: false, epoch: 8, refuses_until: UNTIL, counts_until: None };

    fn gate() -> Gate {
        Gate::new(Timed { starts: true, ends: true }, ALL)
    }

    fn admit(gate: &Gate) -> Option<u64> {
        gate.admit().map(|admitted| admitted.epoch)
    }

    fn succeed(gate: &Gate, of: u64, now: u64) -> bool {
        gate.succeed(of, || Some(Moment::at(now)))
    }

    fn refuse(gate: &Gate, now: u64) -> Option<u64> {
        gate.refuse(Moment::at(now)).map(Moment::nanos)
    }

    fn refuses(gate: &Gate, now: u64) -> bool {
        gate.refuses(Moment::at(now))
    }

    #[test]
    fn what_is_counted_is_taken_in_once() {
        let gate = gate();
        assert_eq!((admit(&gate), admit(&gate)), (Some(7), Some(7)));
        assert!(succeed(&gate, 7, 99));
        assert_eq!(gate.shut(), Counted { started: 2, refused: 0, good: 1 });
        assert_eq!((admit(&gate), succeed(&gate, 7, 0)), (None, false), "it is shut");
        assert_eq!(gate.shut(), Counted::default());
        gate.open(ALL);
        assert_eq!(gate.shut(), Counted::default());
    }

    #[test]
    fn nothing_is_counted_but_what_was_promised() {
        let gate = gate();
        assert!(!succeed(&gate, 6, 0) && !succeed(&gate, 8, 0), "of another epoch");
        assert!(!succeed(&gate, 7, 100), "too late");
        gate.shut();
        gate.open(Promise { counts_until: None, ..ALL });
        assert!(gate.admits() && !succeed(&gate, 7, 0));
        gate.shut();
        gate.open(Promise { admits: false, ..ALL });
        assert!(!gate.admits() && admit(&gate).is_none() && succeed(&gate, 7, 0));
        assert!(!refuses(&gate, 0) && refuse(&gate, 0).is_none());
    }

    #[test]
    fn what_is_refused_is_no_call_that_started() {
        let gate = Gate::new(Timed::default(), NONE);
        assert!(!gate.admits() && admit(&gate).is_none() && !succeed(&gate, 8, 0));
        assert!(refuses(&gate, 99) && !refuses(&gate, 100));
        assert_eq!((refuse(&gate, 99), refuse(&gate, 100)), (Some(100), None));
        assert_eq!(gate.shut(), Counted { started: 0, refused: 1, good: 0 });
        assert!(!refuses(&gate, 0) && refuse(&gate, 0).is_none());
    }

    #[test]
    fn when_it_can_count_no_more_it_says_so() {
        let gate = gate();
        for _ in 0..MOST {
            assert!(admit(&gate).is_some() && succeed(&gate, 7, 0));
        }
        assert!(gate.admits() && admit(&gate).is_none() && !succeed(&gate, 7, 0));
        let most = u32::try_from(MOST).unwrap();
        assert_eq!(gate.shut(), Counted { started: most, refused: 0, good: most });
        gate.open(NONE);
        assert!((0..MOST).all(|_| refuse(&gate, 0).is_some()) && refuse(&gate, 0).is_none());
        assert_eq!(gate.shut().refused, most);
    }

    #[test]
    fn when_the_clock_has_to_be_read_is_said_whatever_is_promised() {
        for (starts, ends) in [(false, false), (false, true), (true, true)] {
            let gate = Gate::new(Timed { starts, ends }, ALL);
            for promise in [ALL, NONE, ALL] {
                gate.shut();
                gate.open(promise);
            }
            assert_eq!(gate.admit().map(|admitted| admitted.is_timed), Some(starts));
            assert_eq!(gate.succeed(7, || None), !ends, "only if it matters it is too late");
        }
    }

    #[test]
    fn a_promise_that_is_given_again_is_another_one() {
        let gate = gate();
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
