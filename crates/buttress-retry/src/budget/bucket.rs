//! The bucket in one atomic word.

use super::machine::{Level, Rules};
use crate::sync::{AtomicU64, Ordering::Relaxed};

/// A level that many threads change at once. Each change is one step.
///
/// `Relaxed` is enough: there is one word, and nothing else is published with it.
#[derive(Debug)]
pub(super) struct Bucket {
    rules: Rules,
    cell: AtomicU64,
}

impl Bucket {
    pub(super) fn new(rules: Rules, now: u32) -> Self {
        Self { rules, cell: AtomicU64::new(pack(rules.start(now))) }
    }

    /// Whether a success adds anything at all.
    pub(super) const fn earns(&self) -> bool {
        self.rules.deposit > 0
    }

    pub(super) fn deposit(&self, now: u32) {
        self.update(self.cell.load(Relaxed), |level| Some(self.rules.deposit(level, now)));
    }

    /// The same, at the time of whatever came before. To a full bucket nothing is done.
    #[inline]
    pub(super) fn deposit_in_passing(&self) {
        let word = self.cell.load(Relaxed);
        if unpack(word).micro < self.rules.cap {
            self.update(word, |level| Some(self.rules.deposit(level, level.tick)));
        }
    }

    pub(super) fn refund(&self, now: u32) {
        self.update(self.cell.load(Relaxed), |level| Some(self.rules.refund(level, now)));
    }

    /// Whether there was a token to take.
    pub(super) fn withdraw(&self, now: u32) -> bool {
        self.update(self.cell.load(Relaxed), |level| self.rules.withdraw(level, now))
    }

    /// In millionths of a token.
    pub(super) fn balance(&self, now: u32) -> u32 {
        self.rules.at(unpack(self.cell.load(Relaxed)), now).micro
    }

    /// `word` is what was there a moment ago.
    fn update(&self, mut word: u64, next: impl Fn(Level) -> Option<Level>) -> bool {
        loop {
            let Some(level) = next(unpack(word)) else { return false };
            let changed = pack(level);
            // A full bucket stays as it is, and its cache line with whoever has it.
            if changed == word {
                return true;
            }
            match self.cell.compare_exchange_weak(word, changed, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }
}

const fn pack(level: Level) -> u64 {
    (level.tick as u64) << 32 | level.micro as u64
}

const fn unpack(word: u64) -> Level {
    Level { tick: (word >> 32) as u32, micro: word as u32 }
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use std::{
        sync::{Barrier, atomic::AtomicU32},
        thread,
    };

    use super::*;
    use crate::BudgetSettings;

    #[test]
    fn a_level_survives_its_word() {
        for level in [(0, 0), (u32::MAX, 0), (0, u32::MAX), (7, 2_000_001)] {
            let level = Level { tick: level.0, micro: level.1 };
            assert_eq!(unpack(pack(level)), level);
        }
    }

    // BUD-02
    #[test]
    fn eight_threads_take_a_thousand_tokens_and_not_one_more() {
        let settings = BudgetSettings::default().reserve(1000).refill(0.0);
        for _ in 0..20 {
            let bucket = Bucket::new(settings.rules().unwrap(), 0);
            let start = Barrier::new(8);
            let granted: usize = thread::scope(|scope| {
                let take = || {
                    start.wait();
                    (0..).take_while(|_| bucket.withdraw(0)).count()
                };
                let all: Vec<_> = (0..8).map(|_| scope.spawn(take)).collect();
                all.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            assert_eq!(granted, 1000);
        }
    }

    /// Eight threads pay in and take out while the clock goes on. Between rounds they meet, so every
    /// interval from one meeting to another holds whole operations, and the bound must hold in each.
    // BUD-02
    #[test]
    fn eight_threads_keep_the_bound_in_every_interval() {
        const ROUNDS: usize = 60;
        let settings = BudgetSettings::default().reserve(5).cap(40).refill(2.0);
        let bucket = Bucket::new(settings.rules().unwrap(), u32::MAX - 300);
        let tick = AtomicU32::new(u32::MAX - 300);
        let meet = Barrier::new(8);
        let logs: Vec<Vec<(u32, u32)>> = thread::scope(|scope| {
            let work = |thread: usize| {
                let (bucket, tick, meet) = (&bucket, &tick, &meet);
                move || {
                    let mut log = Vec::new();
                    for round in 0..ROUNDS {
                        let (mut granted, mut deposits) = (0, 0);
                        for op in 0..300 {
                            let now = tick.load(Relaxed);
                            // Some rounds are outages, some are good times, and most are mixed.
                            if (op + thread) % 7 < [0, 7, 3, 5][round % 4] {
                                bucket.deposit(now);
                                deposits += 1;
                            } else if bucket.withdraw(now) {
                                granted += 1;
                            }
                            if thread == 0 && op % 30 == 0 {
                                tick.fetch_add(1, Relaxed);
                            }
                        }
                        log.push((granted, deposits));
                        meet.wait();
                    }
                    log
                }
            };
            let all: Vec<_> = (0..8).map(|thread| scope.spawn(work(thread))).collect();
            all.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let sum = |round: usize| {
            logs.iter().fold((0, 0), |sum, log| (sum.0 + log[round].0, sum.1 + log[round].1))
        };
        let mut total = 0;
        for from in 0..ROUNDS {
            let (mut granted, mut deposits) = (0, 0);
            for until in from..ROUNDS {
                let round = sum(until);
                granted += round.0;
                deposits += round.1;
                let seconds = (10 * (until - from + 1)) as f64 * 0.15625;
                let bound = 40.0 + 0.1 * f64::from(deposits) + 2.0 * seconds;
                assert!(f64::from(granted) <= bound, "{granted} > {bound} in {from}..={until}");
            }
            total = total.max(granted);
        }
        assert!(total > 2000, "the bound is near: {total}");
    }
}
