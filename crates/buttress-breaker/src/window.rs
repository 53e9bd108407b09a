//! What became of the calls of late.

use std::time::Duration;

use tokio::time::Instant;

use crate::{Tally, settings::Window};

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
    /// Where the first slot begins.
    origin: Instant,
    /// A slot's width in nanoseconds.
    width: u64,
    /// The number of the newest slot, counted from the origin.
    newest: u64,
}

// === impl Ring ===

impl Ring {
    pub(crate) fn new(window: Window, now: Instant) -> Self {
        match window {
            Window::Count(calls) => Self::Last(Last::new(calls)),
            Window::Time(time) => Self::Slots(Slots::new(time, now)),
        }
    }

    /// Records a call that ended at `now`.
    pub(crate) fn record(&mut self, now: Instant, mark: Mark, tally: &mut Tally) {
        match self {
            Self::Last(last) => last.record(mark, tally),
            Self::Slots(slots) => slots.record(now, mark, tally),
        }
    }

    /// Records so many good calls, of before the newest slot ends.
    pub(crate) fn record_good(&mut self, calls: u32, tally: &mut Tally) {
        match self {
            Self::Last(last) => (0..calls).for_each(|_| last.record(Mark::Good, tally)),
            Self::Slots(slots) => slots.add(Tally { calls, ..Tally::default() }, tally),
        }
    }

    /// When the newest slot ends, in nanoseconds since `origin`. Never where there are none.
    pub(crate) fn newest_ends(&self, origin: Instant) -> u64 {
        match self {
            Self::Last(_) => u64::MAX,
            Self::Slots(slots) => {
                let before = nanos(slots.origin.saturating_duration_since(origin));
                before.saturating_add((slots.newest + 1).saturating_mul(slots.width))
            }
        }
    }

    /// Forgets what is too old at `now`.
    pub(crate) fn slide(&mut self, now: Instant, tally: &mut Tally) {
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
}

// === impl Slots ===

impl Slots {
    fn new(time: Duration, now: Instant) -> Self {
        let width = nanos(time) / SLOTS as u64;
        Self { slots: Default::default(), origin: now, width, newest: 0 }
    }

    fn record(&mut self, now: Instant, mark: Mark, tally: &mut Tally) {
        self.slide(now, tally);
        self.add(Tally::of(mark), tally);
    }

    fn add(&mut self, calls: Tally, tally: &mut Tally) {
        let slot = (self.newest % SLOTS as u64) as usize;
        self.slots[slot].add(calls);
        tally.add(calls);
    }

    /// A clock that went back changes nothing: the newest slot stays the newest.
    fn slide(&mut self, now: Instant, tally: &mut Tally) {
        let current = nanos(now.saturating_duration_since(self.origin)) / self.width;
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

/// As far as 64 bits go: 584 years.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
