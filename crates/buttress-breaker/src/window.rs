//! What became of the calls of late.

use std::time::Duration;

use crate::{
    Tally,
    moment::{Moment, nanos},
    settings::Window,
};

/// In how many slots a time window is counted. Ten keep the error at a tenth of the window, and the
/// whole in two cache lines.
const SLOTS: usize = 10;
/// Marks in one word of a count window, at two bits each.
const PER_WORD: u32 = 32;

/// What a call says of the callee, as far as the window is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Mark {
    Good = 0,
    Failed = 1,
    Slow = 2,
}

/// A window that slides.
///
/// What is in it is counted in a tally that the caller keeps: nobody else writes that.
#[derive(Debug)]
pub(crate) enum Ring {
    Last(Last),
    Slots(Slots),
}

/// The last so many calls, each as a mark of two bits.
#[derive(Debug)]
pub(crate) struct Last {
    marks: Box<[u64]>,
    capacity: u32,
    next: u32,
}

/// The calls of the last so long, counted in slots of a tenth of it.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: [Tally; SLOTS],
    /// A slot's width in nanoseconds.
    width: u64,
    /// The number of the newest slot. The first begins at the start of time.
    newest: u64,
}

// === impl Ring ===

impl Ring {
    pub(crate) fn new(window: Window, now: Moment) -> Self {
        match window {
            Window::Count(calls) => Self::Last(Last::new(calls)),
            Window::Time(time) => Self::Slots(Slots::new(time, now)),
        }
    }

    /// Records a call that ended at `now`.
    pub(crate) fn record(&mut self, now: Moment, mark: Mark, tally: &mut Tally) {
        match self {
            Self::Last(last) => last.record(mark, tally),
            Self::Slots(slots) => slots.record(now, mark, tally),
        }
    }

    /// Records so many good calls, of before the newest slot ends.
    pub(crate) fn record_good(&mut self, calls: u32, tally: &mut Tally) {
        match self {
            Self::Last(last) => last.record_good(calls, tally),
            Self::Slots(slots) => slots.add(Tally { calls, ..Tally::default() }, tally),
        }
    }

    /// When the newest slot ends. Never where there are none.
    pub(crate) fn newest_ends(&self) -> Moment {
        match self {
            Self::Last(_) => Moment::NEVER,
            Self::Slots(slots) => Moment::at((slots.newest + 1).saturating_mul(slots.width)),
        }
    }

    /// Forgets what is too old at `now`.
    pub(crate) fn slide(&mut self, now: Moment, tally: &mut Tally) {
        match self {
            Self::Last(_) => {}
            Self::Slots(slots) => slots.slide(now, tally),
        }
    }

    pub(crate) fn clear(&mut self, tally: &mut Tally) {
        *tally = Tally::default();
        match self {
            // The marks themselves may stay: what is not counted is never taken out.
            Self::Last(last) => last.next = 0,
            Self::Slots(slots) => slots.slots = Default::default(),
        }
    }
}

// === impl Last ===

impl Last {
    fn new(capacity: u32) -> Self {
        let marks = vec![0; capacity.div_ceil(PER_WORD) as usize].into();
        Self { marks, capacity, next: 0 }
    }

    fn record(&mut self, mark: Mark, tally: &mut Tally) {
        let word = &mut self.marks[(self.next / PER_WORD) as usize];
        let shift = 2 * (self.next % PER_WORD);
        if tally.calls == self.capacity {
            tally.remove(Tally::of_bits(*word >> shift & 0b11));
        }
        *word = *word & !(0b11 << shift) | (mark as u64) << shift;
        tally.add(Tally::of(mark));
        self.next = (self.next + 1) % self.capacity;
    }

    /// The same as so many times a good one, but a word at a time.
    fn record_good(&mut self, calls: u32, tally: &mut Tally) {
        // Where all are good, further ones change nothing.
        let mut calls = calls.min(self.capacity);
        while calls > 0 {
            let (word, place) =
                (&mut self.marks[(self.next / PER_WORD) as usize], self.next % PER_WORD);
            let some = calls.min(PER_WORD - place).min(self.capacity - self.next);
            let mask = u64::MAX >> (64 - 2 * some) << (2 * place);
            // It is full, or else all of these places are free: they are filled from the first to the last.
            if tally.calls == self.capacity {
                tally.remove(Tally::of_word(*word & mask, some));
            }
            *word &= !mask;
            tally.add(Tally { calls: some, ..Tally::default() });
            self.next = (self.next + some) % self.capacity;
            calls -= some;
        }
    }
}

// === impl Slots ===

impl Slots {
    fn new(time: Duration, now: Moment) -> Self {
        let width = nanos(time) / SLOTS as u64;
        Self { slots: Default::default(), width, newest: now.nanos() / width }
    }

    fn record(&mut self, now: Moment, mark: Mark, tally: &mut Tally) {
        self.slide(now, tally);
        self.add(Tally::of(mark), tally);
    }

    fn add(&mut self, calls: Tally, tally: &mut Tally) {
        let slot = (self.newest % SLOTS as u64) as usize;
        self.slots[slot].add(calls);
        tally.add(calls);
    }

    /// A clock that went back changes nothing: the newest slot stays the newest.
    fn slide(&mut self, now: Moment, tally: &mut Tally) {
        let current = now.nanos() / self.width;
        let passed = current.saturating_sub(self.newest);
        for newer in 1..=passed.min(SLOTS as u64) {
            let slot = ((self.newest + newer) % SLOTS as u64) as usize;
            tally.remove(std::mem::take(&mut self.slots[slot]));
        }
        self.newest += passed;
    }
}

// === impl Tally ===

impl Tally {
    fn of(mark: Mark) -> Self {
        Self {
            calls: 1,
            failures: (mark == Mark::Failed).into(),
            slow: (mark == Mark::Slow).into(),
        }
    }

    fn of_bits(bits: u64) -> Self {
        Self {
            calls: 1,
            failures: (bits == Mark::Failed as u64).into(),
            slow: (bits == Mark::Slow as u64).into(),
        }
    }

    fn of_word(marks: u64, calls: u32) -> Self {
        const FAILED: u64 = u64::MAX / 3 * Mark::Failed as u64;
        const SLOW: u64 = u64::MAX / 3 * Mark::Slow as u64;
        let (failures, slow) = ((marks & FAILED).count_ones(), (marks & SLOW).count_ones());
        Self { calls, failures, slow }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.calls = self.calls.saturating_add(other.calls);
        self.failures = self.failures.saturating_add(other.failures);
        self.slow = self.slow.saturating_add(other.slow);
    }

    fn remove(&mut self, other: Self) {
        self.calls = self.calls.saturating_sub(other.calls);
        self.failures = self.failures.saturating_sub(other.failures);
        self.slow = self.slow.saturating_sub(other.slow);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_good_ones_at_once_are_the_same_as_one_after_another() {
        for capacity in [1, 2, 31, 32, 33, 64, 65, 100] {
            let (mut one, mut other) = (Last::new(capacity), Last::new(capacity));
            let (mut one_tally, mut other_tally) = (Tally::default(), Tally::default());
            // Steps that meet each edge of a word at some time, with and without marks of all kinds behind it.
            for step in 0..2000 {
                let calls = step * 7 % (2 * capacity + 3);
                (0..calls).for_each(|_| one.record(Mark::Good, &mut one_tally));
                other.record_good(calls, &mut other_tally);
                for mark in [Mark::Failed, Mark::Slow, Mark::Good] {
                    if step % (mark as u32 + 2) == 0 {
                        one.record(mark, &mut one_tally);
                        other.record(mark, &mut other_tally);
                    }
                }
                assert_eq!(other_tally, one_tally, "{capacity}, step {step}");
            }
        }
    }
}
