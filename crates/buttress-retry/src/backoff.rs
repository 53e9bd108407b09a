use std::time::Duration;

use buttress_core::InvalidSetting;

/// How long to wait before a request is sent again.
///
/// A callee that has just failed needs time, and the more it needs the longer it has been failing: so the
/// ceiling of the wait doubles with each attempt, up to a cap. And clients that failed together must not
/// come back together: so each wait is drawn at random from zero to that ceiling, which spreads them evenly
/// (**full jitter**).
///
/// ```text
/// ceiling(n) = min(cap, base * 2^n)        n = 0 before the second attempt
/// delay(n)   = uniform over [0, ceiling(n)]
/// ```
///
/// The rule, and why the whole wait is drawn and not a part of it, is Marc Brooker's: *Exponential Backoff
/// And Jitter*, AWS Architecture Blog, 2015. A wait may so be close to zero. What keeps the load down is the
/// [`Budget`](crate::Budget), not the shortest wait.
///
/// # Examples
///
/// ```
/// use buttress_retry::Backoff;
/// use std::time::Duration;
///
/// let backoff = Backoff::exponential(Duration::from_millis(100), Duration::from_secs(5));
/// assert_eq!(backoff, Backoff::default());
/// assert_eq!(backoff.ceiling(0), Duration::from_millis(100));
/// assert_eq!(backoff.ceiling(3), Duration::from_millis(800));
/// assert_eq!(backoff.ceiling(u32::MAX), Duration::from_secs(5));
/// assert_eq!(backoff.delay(0, 0.25), Duration::from_millis(25));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
}

impl Backoff {
    pub(crate) const BASE: Duration = Duration::from_millis(100);
    pub(crate) const CAP: Duration = Duration::from_secs(5);

    /// Waits of up to `base` before the second attempt, twice as long before each next one, never beyond
    /// `cap`.
    ///
    /// Equal values make every wait one of up to that long. A `base` of zero never waits.
    ///
    /// # Panics
    ///
    /// If `base` is longer than `cap`; see [`try_new`](Self::try_new).
    #[must_use]
    #[track_caller]
    pub const fn exponential(base: Duration, cap: Duration) -> Self {
        assert!(base.as_nanos() <= cap.as_nanos(), "`base` must not be longer than `cap`");
        Self { base, cap }
    }

    /// The same as [`exponential`](Self::exponential), for values that come from elsewhere.
    ///
    /// # Errors
    ///
    /// If `base` is longer than `cap`: the first wait would be cut already, and none would ever double.
    pub fn try_new(base: Duration, cap: Duration) -> Result<Self, InvalidSetting> {
        if base > cap {
            let must = format!("must not be longer than `cap` ({base:?} > {cap:?})");
            return Err(InvalidSetting::new("base", must));
        }
        Ok(Self { base, cap })
    }

    /// No waits at all.
    ///
    /// For callees that do not mind, as where each attempt goes to another one. The budget still holds.
    #[must_use]
    pub const fn none() -> Self {
        Self::exponential(Duration::ZERO, Duration::ZERO)
    }

    /// The longest wait after attempt `n`, which counts from zero. Never shorter than the one before.
    #[must_use]
    pub fn ceiling(&self, n: u32) -> Duration {
        let mut ceiling = self.base;
        // Ends after 95 rounds at most: that is how often a nanosecond doubles until it is `Duration::MAX`.
        for _ in 0..n {
            if ceiling.is_zero() || ceiling >= self.cap {
                break;
            }
            ceiling = ceiling.saturating_mul(2);
        }
        ceiling.min(self.cap)
    }

    /// The wait after attempt `n`, which counts from zero, where `unit` was drawn uniformly from `[0, 1)`.
    /// Never longer than [`ceiling`](Self::ceiling).
    #[must_use]
    pub fn delay(&self, n: u32, unit: f64) -> Duration {
        part(self.ceiling(n), unit)
    }

    /// What is added to a wait that the callee asked for: all clients were told the same instant.
    pub(crate) fn spread(&self, unit: f64) -> Duration {
        part(self.base, unit)
    }
}

impl Default for Backoff {
    /// Up to 100 ms before the second attempt, doubling up to 5 s.
    fn default() -> Self {
        Self::exponential(Self::BASE, Self::CAP)
    }
}

/// That part of `whole`, to the nanosecond. Never more than the whole, whatever `unit` is.
fn part(whole: Duration, unit: f64) -> Duration {
    // Fails only for `Duration::MAX`, which as a float is rounded up beyond itself, and for NaN.
    Duration::try_from_secs_f64(whole.as_secs_f64() * unit.clamp(0.0, 1.0))
        .map_or(whole, |part| part.min(whole))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use buttress_core::edge;
    use proptest::prelude::*;

    use super::*;

    const NANO: Duration = Duration::from_nanos(1);
    const SEC: Duration = Duration::from_secs(1);

    fn durations() -> impl Strategy<Value = Duration> {
        let any = (any::<u64>(), 0..1_000_000_000u32).prop_map(|(s, n)| Duration::new(s, n));
        prop_oneof![
            Just(Duration::ZERO),
            Just(NANO),
            Just(SEC),
            Just(Duration::MAX),
            (0..10_000_000_000u64).prop_map(Duration::from_nanos),
            any,
        ]
    }

    proptest! {
        // BKO-01
        #[test]
        fn the_ceiling_is_base_times_two_to_the_n_up_to_the_cap_for_every_n(
            one in durations(),
            other in durations(),
            n in prop_oneof![0..130u32, any::<u32>(), Just(u32::MAX)],
        ) {
            let (base, cap) = (one.min(other), one.max(other));
            let exact = match 1u128.checked_shl(n) {
                // Beyond 128 doublings even a nanosecond is longer than any duration.
                Some(factor) if n < 127 => base.as_nanos().saturating_mul(factor),
                _ if base.is_zero() => 0,
                _ => u128::MAX,
            };
            let backoff = Backoff::exponential(base, cap);
            prop_assert_eq!(backoff.ceiling(n).as_nanos(), exact.min(cap.as_nanos()));
            prop_assert!(backoff.ceiling(n) <= backoff.ceiling(n.saturating_add(1)));
        }

        #[test]
        fn no_wait_is_longer_than_its_ceiling(
            one in durations(),
            other in durations(),
            n in any::<u32>(),
            unit in prop_oneof![0.0..1.0f64, any::<f64>(), Just(1.0 - f64::EPSILON / 2.0)],
        ) {
            let backoff = Backoff::exponential(one.min(other), one.max(other));
            prop_assert!(backoff.delay(n, unit) <= backoff.ceiling(n));
            prop_assert!(backoff.spread(unit) <= backoff.ceiling(0));
        }
    }

    // BKO-01
    #[test]
    fn the_waits_of_five_libraries_that_overflowed_do_not() {
        for base in [Duration::ZERO, NANO, SEC, Duration::MAX] {
            for cap in [Duration::from_millis(1), Duration::from_secs(3600), Duration::MAX] {
                if base > cap {
                    continue;
                }
                let backoff = Backoff::exponential(base, cap);
                let mut last = Duration::ZERO;
                for n in [0, 1, 10, 31, 32, 63, 64, 1000, u32::MAX] {
                    let ceiling = backoff.ceiling(n);
                    assert!(last <= ceiling && ceiling <= cap, "{base:?} {cap:?} {n}");
                    assert_eq!(ceiling.is_zero(), base.is_zero(), "{base:?} {cap:?} {n}");
                    last = ceiling;
                }
            }
        }
    }

    // BKO-03
    #[test]
    fn the_jitter_is_full_uniform_and_finer_than_a_millisecond() {
        edge::seed(1);
        let backoff = Backoff::exponential(SEC, SEC);
        let mut tenths = [0u32; 10];
        let mut distinct = HashSet::new();
        for _ in 0..10_000 {
            let delay = backoff.delay(0, edge::unit());
            tenths[usize::try_from(delay.as_millis() / 100).unwrap()] += 1;
            distinct.insert(delay);
        }
        assert!(distinct.len() > 9_990, "{} of 10000 differ", distinct.len());
        // 27.88 is exceeded once in a thousand seeds; this one is fixed.
        let chi_square: f64 =
            tenths.iter().map(|&n| (f64::from(n) - 1000.0).powi(2) / 1000.0).sum();
        assert!(chi_square < 27.88, "{chi_square} of {tenths:?}");
    }

    #[test]
    fn every_point_of_the_ceiling_can_be_drawn() {
        let backoff = Backoff::exponential(SEC, 4 * SEC);
        for (n, unit, delay) in
            [(0, 0.0, 0), (0, 0.5, 500), (1, 0.5, 1000), (2, 0.75, 3000), (9, 0.75, 3000)]
        {
            assert_eq!(backoff.delay(n, unit), Duration::from_millis(delay));
        }
        let almost = backoff.delay(0, 1.0 - f64::EPSILON / 2.0);
        assert!(almost > SEC - Duration::from_micros(1), "{almost:?}");
    }

    #[test]
    fn a_base_beyond_the_cap_is_refused_and_both_are_named() {
        let error = Backoff::try_new(SEC, SEC - NANO).unwrap_err();
        assert_eq!(error.setting(), "base");
        assert!(error.to_string().contains("`cap`"), "{error}");
        assert!(Backoff::try_new(SEC, SEC).is_ok());
        assert!(Backoff::try_new(Duration::MAX, Duration::MAX).is_ok());
        assert_eq!(Backoff::try_new(Duration::ZERO, Duration::ZERO), Ok(Backoff::none()));
    }

    #[test]
    #[should_panic(expected = "`base` must not be longer than `cap`")]
    fn a_base_beyond_the_cap_in_the_code_is_a_panic() {
        let _ = Backoff::exponential(2 * SEC, SEC);
    }
}
