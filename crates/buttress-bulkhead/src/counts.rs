//! How many slots are out, as two counters that only grow.
//!
//! One counts the slots that were taken, the other those that came back; the difference is in flight.
//! Each call writes each counter once, and that is all it writes: the totals of `stats()` come for
//! nothing. The limit holds exactly, for a slot is taken by a compare-and-swap on the first counter.
//! It succeeds only if nothing was taken since the counters were read, and what has come back since can
//! only have made more room.
//!
//! The low bits of both words are marks, so that a change of them is seen by whoever is about to swap:
//!
//! ```text
//!            63                16 15            0
//! taken      | taken so far      | limit changes |   a swap that began under an old limit fails
//! returned   | returned so far   |           W   |   W: somebody waits
//! ```
//!
//! 48 bits count for nine years at a million calls a second. The number in flight is right beyond that, too.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::sync::{AtomicU64, AtomicUsize};

/// One slot, above the marks.
const ONE: u64 = 1 << 16;
const MARKS: u64 = ONE - 1;
const SOMEBODY_WAITS: u64 = 1;

#[derive(Debug)]
pub(crate) struct Counts {
    taken: AtomicU64,
    returned: AtomicU64,
    limit: AtomicUsize,
}

/// What came of the attempt to take a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    Taken,
    /// Every slot is out.
    Full,
    /// A slot is there, or about to be, and somebody has waited for it.
    NotMine,
}

/// Both words as they stood at one instant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Snapshot {
    taken: u64,
    returned: u64,
}

// === impl Counts ===

impl Counts {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            taken: AtomicU64::new(0),
            returned: AtomicU64::new(0),
            limit: AtomicUsize::new(limit),
        }
    }

    /// Takes a slot, if there is one and nobody waits for it.
    #[inline]
    pub(crate) fn take(&self) -> Take {
        loop {
            let now = self.snapshot();
            if !self.has_room(now) {
                return Take::Full;
            }
            if now.somebody_waits() {
                return Take::NotMine;
            }
            if self.swap(now) {
                return Take::Taken;
            }
        }
    }

    /// Takes a slot, if there is one, for whoever has waited longest.
    pub(crate) fn take_for_first(&self) -> bool {
        loop {
            let now = self.snapshot();
            if !self.has_room(now) {
                return false;
            }
            if self.swap(now) {
                return true;
            }
        }
    }

    /// Whether there was room at that instant. If the limit has changed since, a swap fails: it is read
    /// after `taken`.
    #[inline]
    pub(crate) fn has_room(&self, at: Snapshot) -> bool {
        at.in_flight() < self.limit()
    }

    /// Takes a slot, if none was taken since.
    #[inline]
    fn swap(&self, since: Snapshot) -> bool {
        let more = since.taken.wrapping_add(ONE);
        self.taken.compare_exchange_weak(since.taken, more, AcqRel, Relaxed).is_ok()
    }

    /// Gives a slot back, and tells whether somebody waits for it.
    #[inline]
    pub(crate) fn give_back(&self) -> bool {
        self.returned.fetch_add(ONE, AcqRel) & SOMEBODY_WAITS != 0
    }

    /// From here on, whoever gives a slot back is told that somebody waits. Whatever was given back
    /// before is seen by whoever takes after this: both write the same word, so one of them is first.
    pub(crate) fn somebody_waits(&self) {
        self.returned.fetch_or(SOMEBODY_WAITS, AcqRel);
    }

    pub(crate) fn nobody_waits(&self) {
        self.returned.fetch_and(!SOMEBODY_WAITS, AcqRel);
    }

    #[inline]
    pub(crate) fn limit(&self) -> usize {
        self.limit.load(Acquire)
    }

    /// Once this returns, no slot is taken under the old limit any more.
    pub(crate) fn resize(&self, limit: usize) {
        self.limit.store(limit, Release);
        let mark = |taken: u64| Some(taken & !MARKS | taken.wrapping_add(1) & MARKS);
        let _ = self.taken.fetch_update(AcqRel, Acquire, mark);
    }

    /// The words as they stood together. Read one after the other they would show calls as in flight
    /// that came and went in between, and refuse others that had room all the time.
    #[inline]
    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut returned = self.returned.load(Acquire);
        loop {
            let taken = self.taken.load(Acquire);
            let again = self.returned.load(Acquire);
            if again == returned {
                return Snapshot { taken, returned };
            }
            returned = again;
        }
    }
}

// === impl Snapshot ===

impl Snapshot {
    #[inline]
    pub(crate) fn in_flight(self) -> usize {
        let in_flight = (self.taken & !MARKS).wrapping_sub(self.returned & !MARKS) / ONE;
        // Never more than the largest limit, which fits.
        in_flight as usize
    }

    pub(crate) fn taken(self) -> u64 {
        self.taken / ONE
    }

    #[inline]
    fn somebody_waits(self) -> bool {
        self.returned & SOMEBODY_WAITS != 0
    }
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_number_in_flight_is_right_when_the_counters_wrap() {
        let counts = Counts::new(2);
        counts.taken.store(!MARKS, Relaxed);
        counts.returned.store(!MARKS, Relaxed);
        assert_eq!(counts.snapshot().in_flight(), 0);
        assert_eq!(
            [counts.take(), counts.take(), counts.take()],
            [Take::Taken, Take::Taken, Take::Full]
        );
        assert_eq!(counts.snapshot().in_flight(), 2);
        counts.give_back();
        assert_eq!(counts.snapshot().in_flight(), 1);
    }

    #[test]
    fn changes_of_the_limit_never_count_as_slots() {
        let counts = Counts::new(1);
        assert_eq!(counts.take(), Take::Taken);
        for _ in 0..3 * ONE {
            counts.resize(1);
        }
        assert_eq!((counts.snapshot().in_flight(), counts.snapshot().taken()), (1, 1));
        counts.somebody_waits();
        assert!(counts.give_back());
        assert_eq!(counts.snapshot().in_flight(), 0);
        assert_eq!(counts.take(), Take::NotMine);
        assert!(counts.take_for_first());
        assert_eq!(counts.take(), Take::Full);
    }
}
