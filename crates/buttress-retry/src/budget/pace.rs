//! When a success looks at the clock.

use super::machine::Rules;
use crate::sync::{AtomicU64, Ordering::Relaxed};

/// How often a success looks at the clock.
///
/// A look costs more than all else that a success does. So those that come fast are counted at the time of what
/// came before, and every so often one looks and moves the bucket's time on. To the bucket they seem a bit older
/// than they are, so that a bit too much of them decays: it never holds more than it would with a look for each.
///
/// Without a look pass about so many as came in a tick of late, and those that come slowly all look. So it holds
/// about a 64th less, as after one tick more; and as much is lost for once when a rush has ended.
///
/// `Relaxed` is enough: whoever sees an older word looks once too often, or once too late.
#[derive(Debug)]
pub(super) struct Pace {
    /// The number of the success that looks next.
    next: AtomicU64,
    /// The tick of the last look, and how many passed without one after it.
    last: AtomicU64,
    /// How many may.
    most: u32,
}

/// More than these save nothing to speak of.
const MOST: u32 = 64;

/// And they are worth no more than such a part of a full bucket.
const PART: u32 = 32;

impl Pace {
    pub(super) fn new(rules: Rules) -> Self {
        let most = (rules.cap / PART).checked_div(rules.deposit).unwrap_or(0).min(MOST);
        // With nothing to earn there is nothing to look for.
        let next = if rules.deposit == 0 { u64::MAX } else { 0 };
        Self { next: AtomicU64::new(next), last: AtomicU64::new(0), most }
    }

    /// Whether the success of that number looks. They are counted from 0 on.
    #[inline]
    pub(super) fn is_due(&self, nth: u64) -> bool {
        nth >= self.next.load(Relaxed)
    }

    /// It did, at `now`.
    pub(super) fn looked(&self, nth: u64, now: u32) {
        let last = self.last.load(Relaxed);
        let passed = now.wrapping_sub((last >> 32) as u32);
        let skip = skip(last as u32, passed).min(self.most);
        self.last.store(u64::from(now) << 32 | u64::from(skip), Relaxed);
        self.next.store(nth + 1 + u64::from(skip), Relaxed);
    }
}

/// How many do not look next, where `last` did not before, and so many ticks have passed over them.
const fn skip(last: u32, passed: u32) -> u32 {
    match passed {
        0 => 2 * last + 1,
        1 => last,
        2..32 => last >> (passed - 1),
        // A clock that went back, too.
        _ => 0,
    }
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        BudgetSettings,
        budget::{
            bucket::Bucket,
            machine::{Level, TICKS_A_SECOND, TOKEN},
        },
    };

    /// A bucket whose successes come in passing, and beside it the level where each of them looks.
    struct Pair {
        rules: Rules,
        passing: Bucket,
        pace: Pace,
        looking: Level,
        successes: u64,
        looks: u64,
        now: u32,
    }

    impl Pair {
        fn new(settings: &BudgetSettings) -> Self {
            let rules = settings.rules().unwrap();
            Self {
                rules,
                passing: Bucket::new(rules, 0),
                pace: Pace::new(rules),
                looking: rules.start(0),
                successes: 0,
                looks: 0,
                now: 0,
            }
        }

        fn success(&mut self) {
            self.looking = self.rules.deposit(self.looking, self.now);
            if self.pace.is_due(self.successes) {
                self.passing.deposit(self.now);
                self.pace.looked(self.successes, self.now);
                self.looks += 1;
            } else {
                self.passing.deposit_in_passing();
            }
            self.successes += 1;
        }

        /// For so long that many successes a second.
        fn rush(&mut self, rate: f64, seconds: f64) {
            let start = self.now;
            for nth in 0..(rate * seconds) as u32 {
                self.now = start + (f64::from(nth) / rate * TICKS_A_SECOND) as u32;
                self.success();
            }
            self.now = start + (seconds * TICKS_A_SECOND) as u32;
        }

        /// Tokens in both.
        fn balances(&self) -> [f64; 2] {
            let looking = self.rules.at(self.looking, self.now).micro;
            [self.passing.balance(self.now), looking].map(|micro| f64::from(micro) * 1e-6)
        }
    }

    #[test]
    fn at_a_steady_rate_few_look_and_next_to_nothing_is_lost() {
        for (rate, one_in) in [(0.2, 1), (1.0, 1), (10.0, 1), (100.0, 8), (1000.0, 50), (1e5, 60)] {
            let mut pair = Pair::new(&BudgetSettings::default());
            pair.rush(rate, 60.0);
            let [passing, looking] = pair.balances();
            let lost = looking - passing;
            assert!((0.0..=0.02 * looking).contains(&lost), "{passing} of {looking} at {rate}");
            let enough = pair.successes / one_in;
            assert!(pair.looks <= enough, "{} look of {} at {rate}", pair.looks, pair.successes);
        }
    }

    #[test]
    fn when_a_rush_is_over_little_is_lost_for_once() {
        for pause in [1.0, 10.0, 100.0, 100_000.0] {
            for after in [0.2, 1.0, 10.0] {
                let mut pair = Pair::new(&BudgetSettings::default());
                pair.rush(10_000.0, 30.0);
                pair.now += (pause * TICKS_A_SECOND) as u32;
                for _ in 0..60 {
                    pair.rush(after, 5.0);
                    let [passing, looking] = pair.balances();
                    let lost = looking - passing;
                    assert!((-1e-3..=6.25).contains(&lost), "{passing} of {looking}");
                }
                let [passing, looking] = pair.balances();
                assert!(looking - passing <= 0.02 * looking, "{passing} of {looking} at the end");
            }
        }
    }

    #[test]
    fn after_a_rush_a_look_comes_once_a_tick_again() {
        let mut pair = Pair::new(&BudgetSettings::default());
        pair.rush(10_000.0, 30.0);
        // 15 or 16 in a tick.
        pair.rush(100.0, 2.0);
        let before = pair.looks;
        pair.rush(100.0, 10.0);
        let looks = pair.looks - before;
        assert!((50..=130).contains(&looks), "{looks} in 64 ticks");
    }

    #[test]
    fn without_a_ratio_nobody_looks() {
        let mut pair = Pair::new(&BudgetSettings::default().ratio(0.0));
        pair.rush(100.0, 10.0);
        assert_eq!((pair.looks, pair.passing.balance(pair.now)), (0, 2 * TOKEN));
    }

    #[test]
    fn successes_that_are_worth_a_part_of_the_bucket_all_look() {
        let mut pair = Pair::new(&BudgetSettings::default().ratio(1.0).cap(31));
        pair.rush(10_000.0, 10.0);
        assert_eq!(pair.looks, pair.successes);
    }

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Wait(u32),
        Success(u16),
        Repeat(u16),
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let wait = prop_oneof![4 => 0..3u32, 2 => 0..100u32, 1 => 0..100_000u32];
        let op = prop_oneof![
            wait.prop_map(Op::Wait),
            (0..300u16).prop_map(Op::Success),
            (0..20u16).prop_map(Op::Repeat),
        ];
        proptest::collection::vec(op, 0..200)
    }

    proptest! {
        #[test]
        fn in_passing_the_bound_is_kept_and_a_32nd_of_the_bucket_is_the_most_that_is_lost(
            ratio in 1..2000u32,
            reserve in 0..20u32,
            refill in 0..300u32,
            room in 1..200u32,
            ops in ops(),
        ) {
            let [ratio, refill] = [ratio, refill].map(|hundredths| f64::from(hundredths) / 100.0);
            prop_assume!(ratio <= 10.0);
            let cap = reserve + room;
            let settings = BudgetSettings::default().ratio(ratio).reserve(reserve).refill(refill).cap(cap);
            let mut pair = Pair::new(&settings);
            // Each step of the decay rounds a few millionths off.
            let mut drift = 1e-5;
            let (mut granted, mut lowest) = (0.0, 0.0f64);
            for op in ops {
                match op {
                    Op::Wait(ticks) => pair.now += ticks,
                    Op::Success(count) => (0..count).for_each(|_| pair.success()),
                    Op::Repeat(count) => for _ in 0..count {
                        if pair.passing.withdraw(pair.now) {
                            let Level { tick, micro } = pair.rules.at(pair.looking, pair.now);
                            pair.looking = Level { tick, micro: micro.saturating_sub(TOKEN) };
                            granted += 1.0;
                        }
                    }
                }
                drift += 1e-5 * f64::from(match op { Op::Wait(_) => 1, Op::Success(n) | Op::Repeat(n) => n });
                let [passing, looking] = pair.balances();
                let lost = looking - passing;
                prop_assert!((-drift..=f64::from(cap) / 32.0 + drift).contains(&lost), "{passing} of {looking}");
                // As in the machine's own: all that came in any interval is at most the cap.
                let passed = refill * f64::from(pair.now) / TICKS_A_SECOND;
                let net = granted - ratio * pair.successes as f64 - passed;
                lowest = lowest.min(net);
                prop_assert!(net - lowest <= f64::from(cap) + 1e-6);
            }
        }
    }
}
