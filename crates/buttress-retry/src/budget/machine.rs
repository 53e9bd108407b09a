//! The bucket as a function of its level and the time. No clock, no atomics.

/// What one repeat costs. The bucket counts millionths of it, so that every ratio is kept to six digits
/// and no fraction is lost.
pub(super) const TOKEN: u32 = 1_000_000;

/// The time in which what is above the reserve falls to 1/e of itself, in ticks: 10 s.
const TAU: u32 = 64;

/// 1/64 of tau, 156.25 ms.
///
/// Nothing is divided or decays within a tick, so the clock may be coarse; and 32 bits of it last for 21
/// years, where those of milliseconds would last for seven weeks.
pub(super) const TICK_NANOS: u64 = 156_250_000;

/// How far back a clock may go to be known for one that did: a month.
///
/// Ticks wrap, so a level of an hour ahead and one of 21 years ago look alike. Threads read the clock a
/// moment apart, and paused clocks of tests differ by more; but the rest of the circle is the past. A bucket
/// that nobody touched for a decade must not be taken for one of the future, or an empty one stays so.
const BACK: u32 = 1 << 24;

/// How many ticks a second has.
pub(super) const TICKS_A_SECOND: f64 = 6.4;

/// `exp(-n/64)` and `exp(-n)`, times 2^32, rounded down: a bucket never holds more than the true one.
const DECAY_BY_TICK: [u64; TAU as usize] = powers(0xfc07_f55f_f77d_2493);
const DECAY_BY_TAU: [u64; 23] = powers(0x5e2d_58d8_b3bc_df1a);

/// The powers of `step / 2^64`, times 2^32, from the zeroth on.
const fn powers<const N: usize>(step: u64) -> [u64; N] {
    let mut powers = [0; N];
    let mut power = u64::MAX;
    let mut n = 0;
    while n < N {
        powers[n] = power >> 32;
        power = ((power as u128 * step as u128) >> 64) as u64;
        n += 1;
    }
    powers[0] = 1 << 32;
    powers
}

/// What goes in and out, in millionths of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rules {
    /// What a success adds.
    pub(super) deposit: u32,
    /// What a tick adds, up to the reserve.
    pub(super) refill: u32,
    /// What is there from the start, and does not decay.
    pub(super) reserve: u32,
    /// What there is at most.
    pub(super) cap: u32,
}

/// How much there was, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Level {
    pub(super) tick: u32,
    pub(super) micro: u32,
}

impl Rules {
    /// The level of a fresh bucket.
    pub(super) const fn start(&self, now: u32) -> Level {
        Level { tick: now, micro: self.reserve }
    }

    /// The level at `now`: above the reserve it decays, beneath it is refilled. A clock that has gone back
    /// changes nothing.
    pub(super) fn at(&self, level: Level, now: u32) -> Level {
        if level.tick.wrapping_sub(now) <= BACK {
            return level;
        }
        let ticks = now.wrapping_sub(level.tick);
        let micro = match level.micro.checked_sub(self.reserve) {
            Some(excess) => self.reserve + decay(excess, ticks),
            None => level.micro.saturating_add(self.refill.saturating_mul(ticks)).min(self.reserve),
        };
        Level { tick: now, micro }
    }

    /// The level after a success.
    pub(super) fn deposit(&self, level: Level, now: u32) -> Level {
        self.add(level, now, self.deposit)
    }

    /// The level after a token was given back.
    pub(super) fn refund(&self, level: Level, now: u32) -> Level {
        self.add(level, now, TOKEN)
    }

    /// The level after a token was taken, if there was one.
    pub(super) fn withdraw(&self, level: Level, now: u32) -> Option<Level> {
        let Level { tick, micro } = self.at(level, now);
        Some(Level { tick, micro: micro.checked_sub(TOKEN)? })
    }

    fn add(&self, level: Level, now: u32, micro: u32) -> Level {
        let level = self.at(level, now);
        Level { micro: level.micro.saturating_add(micro).min(self.cap), ..level }
    }
}

/// What is left of `excess` after so many ticks.
fn decay(excess: u32, ticks: u32) -> u32 {
    let by_tick = DECAY_BY_TICK[(ticks % TAU) as usize];
    // After 22 tau not a millionth is left of the fullest bucket.
    let by_tau = DECAY_BY_TAU.get((ticks / TAU) as usize).copied().unwrap_or(0);
    // One of them is less than 2^32, since a tick at least has passed.
    let factor = (by_tick * by_tau) >> 32;
    ((u64::from(excess) * factor) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use buttress_core::edge;
    use proptest::prelude::*;

    use super::*;
    use crate::BudgetSettings;

    /// Ticks of one second, rounded up.
    const SECOND: u32 = 7;

    fn rules(settings: &BudgetSettings) -> Rules {
        settings.rules().unwrap()
    }

    /// A bucket with a clock of its own, as a client sees it.
    struct Bucket {
        rules: Rules,
        level: Level,
        now: u32,
    }

    impl Bucket {
        fn new(settings: &BudgetSettings) -> Self {
            let rules = rules(settings);
            Self { rules, level: rules.start(0), now: 0 }
        }

        fn success(&mut self) {
            self.level = self.rules.deposit(self.level, self.now);
        }

        fn repeat(&mut self) -> bool {
            match self.rules.withdraw(self.level, self.now) {
                Some(level) => {
                    self.level = level;
                    true
                }
                None => false,
            }
        }

        fn drain(&mut self) -> u32 {
            (0..).take_while(|_| self.repeat()).count() as u32
        }
    }

    /// A share of successes and nothing else.
    fn share(ratio: f64) -> BudgetSettings {
        BudgetSettings::default().ratio(ratio).reserve(0).refill(0.0).cap(4294)
    }

    // BUD-01
    #[test]
    fn every_ratio_grants_its_share_to_the_token_and_never_more() {
        let asked = [0.0, 0.01, 0.1, 0.15, 0.2, 0.3, 0.33, 0.35, 0.5, 0.6, 0.7, 0.75, 0.9, 0.99];
        for ratio in asked.into_iter().chain([1.0, 1.5, 2.0, 10.0, 1.0 / 3.0, 2.0 / 3.0]) {
            for deposits in [1, 3, 7, 10, 99, 100, 400] {
                let mut bucket = Bucket::new(&share(ratio));
                (0..deposits).for_each(|_| bucket.success());
                let due = (ratio * f64::from(deposits) + 1e-9).floor() as u32;
                let granted = bucket.drain();
                assert!(
                    granted <= due && granted + 1 >= due,
                    "{granted} of {due} at {ratio} after {deposits}"
                );
                let whole = [1.0 / 3.0, 2.0 / 3.0].contains(&ratio);
                assert!(whole || granted == due, "six digits are exact: {ratio} x {deposits}");
            }
        }
    }

    // BUD-01
    #[test]
    fn a_thousand_successes_earn_their_share_though_they_are_spent_as_they_come() {
        for ratio in [0.01, 0.1, 0.15, 0.33, 0.35, 0.6, 0.9, 1.0, 1.5, 10.0] {
            let mut bucket = Bucket::new(&share(ratio));
            let granted: u32 = (0..1000)
                .map(|_| {
                    bucket.success();
                    bucket.drain()
                })
                .sum();
            assert_eq!(granted, (ratio * 1000.0f64).round() as u32, "{ratio}");
        }
    }

    #[test]
    fn a_minute_of_outage_from_the_reserve_grants_eight_repeats() {
        let mut bucket = Bucket::new(&BudgetSettings::default());
        let mut granted = 0;
        for tick in 0..=60 * 64 / 10 {
            bucket.now = tick;
            granted += (0..100).filter(|_| bucket.repeat()).count();
        }
        assert_eq!(granted, 8, "2 in reserve, and 0.1 a second for 60 s");
    }

    /// How many times the load of a client that sends so many requests a second in an outage of 20 s, with
    /// three attempts each, after a minute in which all went well.
    fn amplification(rate: f64) -> f64 {
        let mut bucket = Bucket::new(&BudgetSettings::default());
        let (mut requests, mut sent) = (0.0, 0.0);
        let total = (80.0 * rate).round() as u32;
        for nth in 0..total {
            let at = f64::from(nth) / rate;
            bucket.now = (at * 6.4) as u32;
            if at < 60.0 {
                bucket.success();
            } else {
                requests += 1.0;
                sent += 1.0 + (0..2).take_while(|_| bucket.repeat()).count() as f64;
            }
        }
        sent / requests
    }

    #[test]
    fn an_outage_adds_to_the_load_what_the_chapter_says() {
        let percent = |rate| (amplification(rate) * 100.0).round() - 100.0;
        assert_eq!([1000.0, 100.0, 10.0, 1.0, 0.2].map(percent), [1.0, 5.0, 7.0, 20.0, 75.0]);
    }

    #[test]
    fn at_an_error_rate_that_the_ratio_pays_for_hardly_a_first_repeat_is_refused() {
        edge::seed(1);
        let errors = 0.1 / 1.1 / 1.2;
        let mut bucket = Bucket::new(&BudgetSettings::default());
        let (mut asked, mut refused) = (0, 0);
        // 100 requests a second, for ten minutes.
        for nth in 0..60_000 {
            bucket.now = nth * 64 / 1000;
            if edge::unit() < errors {
                asked += 1;
                if !bucket.repeat() {
                    refused += 1;
                    continue;
                }
                if edge::unit() < errors {
                    continue;
                }
            }
            bucket.success();
        }
        assert!(asked > 4000 && refused * 100 <= asked, "{refused} of {asked}");
    }

    // BUD-02
    #[test]
    fn the_refill_comes_at_its_rate_and_loses_no_fraction() {
        let mut bucket = Bucket::new(&BudgetSettings::default().reserve(5).refill(0.5));
        assert_eq!(bucket.drain(), 5);
        let mut at = Vec::new();
        for tick in 1..=64 {
            bucket.now = tick;
            if bucket.repeat() {
                at.push(tick);
            }
        }
        // Every 12.8 ticks, which is 2 s, at the first tick that is not before.
        assert_eq!(at, [13, 26, 39, 52, 64]);
    }

    // BUD-04
    #[test]
    fn the_reserve_is_there_from_the_first_request_on_and_again_after_a_second() {
        let mut bucket = Bucket::new(&BudgetSettings::default().ratio(0.0).reserve(3).refill(3.0));
        assert_eq!(bucket.drain(), 3);
        bucket.now += SECOND;
        assert_eq!(bucket.drain(), 3);
        bucket.now += 1000 * SECOND;
        assert_eq!(bucket.drain(), 3, "and not more after a long time");
    }

    #[test]
    fn successes_fill_it_to_the_cap_and_time_takes_what_is_above_the_reserve() {
        let mut bucket = Bucket::new(&BudgetSettings::default().ratio(1.0).cap(12));
        (0..100).for_each(|_| bucket.success());
        assert_eq!(bucket.level.micro, 12 * TOKEN);
        for (seconds, left) in [(10, 10.0 / 1f64.exp()), (100, 10.0 / 10f64.exp()), (1000, 0.0)] {
            let level = bucket.rules.at(bucket.level, seconds * 64 / 10);
            let micro = (2.0 + left) * f64::from(TOKEN);
            assert!((f64::from(level.micro) - micro).abs() <= 10.0, "{level:?} is not {micro}");
        }
    }

    #[test]
    fn the_decay_tables_are_those_of_the_exponential() {
        for ticks in 1..1500 {
            let left = f64::from(decay(u32::MAX, ticks));
            let exact = f64::from(u32::MAX) * (-f64::from(ticks) / 64.0).exp();
            assert!(left <= exact && exact - left < 8.0, "{left} is not {exact} after {ticks}");
        }
        assert_eq!(decay(u32::MAX, 1500), 0);
        assert_eq!([i32::MAX as u32, u32::MAX].map(|ticks| decay(u32::MAX, ticks)), [0, 0]);
    }

    #[test]
    fn a_token_that_comes_back_does_not_pass_the_cap() {
        let mut bucket = Bucket::new(&BudgetSettings::default().cap(2));
        assert!(bucket.repeat());
        bucket.level = bucket.rules.refund(bucket.level, 0);
        assert_eq!(bucket.level.micro, 2 * TOKEN);
        bucket.level = bucket.rules.refund(bucket.level, 0);
        assert_eq!(bucket.level.micro, 2 * TOKEN);
    }

    #[test]
    fn a_clock_that_goes_back_neither_gives_nor_takes() {
        let rules = rules(&BudgetSettings::default());
        for micro in [0, TOKEN, 2 * TOKEN, 50 * TOKEN] {
            let level = Level { tick: 1000, micro };
            for now in [1000, 999, 0, 1000u32.wrapping_sub(BACK)] {
                assert_eq!(rules.at(level, now), level);
            }
        }
    }

    #[test]
    fn ticks_wrap_and_a_pause_of_years_freezes_nothing() {
        let rules = rules(&BudgetSettings::default());
        let empty = |tick| Level { tick, micro: 0 };
        let after = |tick: u32, ticks| rules.at(empty(tick), tick.wrapping_add(ticks)).micro;
        for tick in [0, u32::MAX, u32::MAX - 5, 1 << 31, (1 << 31) - 1] {
            assert_eq!(after(tick, 10), 156_250, "over the wrap as elsewhere");
            assert_eq!(after(tick, 1 << 26), 2 * TOKEN, "after four months");
            for years in [i32::MAX as u32, 1 << 31, 3 << 30, u32::MAX - BACK] {
                assert_eq!(after(tick, years), 2 * TOKEN, "after ten years and up to 21");
            }
            // For a month in 21 years it looks as if the clock had gone back.
            assert_eq!(after(tick, 0u32.wrapping_sub(BACK)), 0);
        }
        let full = Level { tick: u32::MAX - 31, micro: 12 * TOKEN };
        assert_eq!(rules.at(full, full.tick.wrapping_add(1 << 31)).micro, 2 * TOKEN);
        let decayed = f64::from(rules.at(full, 32).micro);
        assert!((decayed - 1e6 * (2.0 + 10.0 / 1f64.exp())).abs() < 10.0, "{decayed}");
    }

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Wait(u32),
        Back(u32),
        Success(u32),
        Repeat(u32),
        Refund,
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let op = prop_oneof![
            3 => (0..20u32).prop_map(Op::Wait),
            1 => prop_oneof![100..10_000u32, 0..u32::MAX - BACK].prop_map(Op::Wait),
            1 => (1..50u32).prop_map(Op::Back),
            6 => (1..40u32).prop_map(Op::Success),
            6 => (1..40u32).prop_map(Op::Repeat),
            1 => Just(Op::Refund),
        ];
        proptest::collection::vec(op, 1..200)
    }

    fn settings() -> impl Strategy<Value = BudgetSettings> {
        let ratio = prop_oneof![Just(0.0), Just(0.1), 1e-6..10.0f64];
        let refill = prop_oneof![Just(0.0), Just(0.1), 1e-5..50.0f64];
        (ratio, refill, 0..20u32, 0..200u32).prop_map(|(ratio, refill, reserve, more)| {
            BudgetSettings::default()
                .ratio(ratio)
                .refill(refill)
                .reserve(reserve)
                .cap((reserve + more).max(1))
        })
    }

    /// The same bucket as one would write it down: no integers, no tables, no wrap.
    struct Naive {
        ratio: f64,
        a_tick: f64,
        reserve: f64,
        cap: f64,
        level: f64,
        tick: u64,
    }

    impl Naive {
        fn new(rules: &Rules) -> Self {
            let [ratio, a_tick, reserve, cap] =
                [rules.deposit, rules.refill, rules.reserve, rules.cap]
                    .map(|micro| f64::from(micro) / 1e6);
            Self { ratio, a_tick, reserve, cap, level: reserve, tick: 0 }
        }

        fn at(&mut self, now: u64) {
            let ticks = now.saturating_sub(self.tick) as f64;
            self.level = if self.level >= self.reserve {
                self.reserve + (self.level - self.reserve) * (-ticks / 64.0).exp()
            } else {
                (self.level + self.a_tick * ticks).min(self.reserve)
            };
            self.tick = self.tick.max(now);
        }

        #[inline]
        fn add(&mut self, tokens: f64) {
            self.level = (self.level + tokens).min(self.cap);
        }
    }

    proptest! {
        #[test]
        fn it_does_what_the_naive_bucket_does_and_keeps_the_bound(
            settings in settings(),
            start in prop_oneof![Just(0), Just(u32::MAX - 10), any::<u32>()],
            ops in ops(),
        ) {
            let rules = rules(&settings);
            let mut level = rules.start(start);
            let mut naive = Naive::new(&rules);
            // `now` may go back; what has passed for the bucket is its highest value.
            let (mut now, mut held) = (0u64, 0u32);
            let (mut granted, mut deposits) = (0.0, 0.0);
            let mut lowest = f64::INFINITY;
            // What the decay has lost so far: a few millionths a step.
            let mut drift = 1e-6;
            for op in ops {
                let (count, kind) = match op {
                    Op::Wait(ticks) => {
                        now += u64::from(ticks);
                        continue;
                    }
                    Op::Back(ticks) => {
                        now = now.saturating_sub(u64::from(ticks));
                        continue;
                    }
                    Op::Success(count) | Op::Repeat(count) => (count, op),
                    Op::Refund if held > 0 => (1, op),
                    Op::Refund => continue,
                };
                // A whole turn of the model's clock is not what this is about.
                prop_assume!(now.saturating_sub(naive.tick) < u64::from(u32::MAX - BACK));
                for _ in 0..count {
                    let tick = start.wrapping_add(now as u32);
                    let before = (naive.level, naive.tick);
                    naive.at(now);
                    drift += 4e-6;
                    match kind {
                        Op::Success(_) => {
                            level = rules.deposit(level, tick);
                            naive.add(naive.ratio);
                            deposits += 1.0;
                        }
                        Op::Refund => {
                            level = rules.refund(level, tick);
                            naive.add(1.0);
                            granted -= 1.0;
                            held -= 1;
                        }
                        _ => {
                            let next = rules.withdraw(level, tick);
                            let unclear = (naive.level - 1.0).abs() <= drift;
                            prop_assert!(unclear || next.is_some() == (naive.level >= 1.0));
                            if let Some(next) = next {
                                level = next;
                                naive.level -= 1.0;
                                granted += 1.0;
                                held += 1;
                            } else {
                                // Nothing is written where there is nothing to take, not even the time.
                                (naive.level, naive.tick) = before;
                            }
                        }
                    }
                    let micro = f64::from(level.micro) * 1e-6;
                    prop_assert!(micro <= naive.level + drift, "{micro} over {}", naive.level);
                    prop_assert!(micro >= naive.level - drift, "{micro} under {}", naive.level);
                    naive.level = naive.level.max(0.0);

                    // In every interval: R <= cap + ratio * S + refill * t. So the sum of all that came
                    // since any earlier moment is at most the cap: it is enough to know the lowest.
                    let passed = settings.refill * 0.15625 * naive.tick as f64;
                    let net = granted - settings.ratio * deposits - passed;
                    lowest = lowest.min(net);
                    prop_assert!(net - lowest <= f64::from(settings.cap.unwrap()) + 1e-6);
                }
            }
        }
    }
}
