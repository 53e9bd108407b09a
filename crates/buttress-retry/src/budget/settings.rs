use buttress_core::InvalidSetting;

use super::machine::{Rules, TICKS_A_SECOND, TOKEN};

/// How much all requests of a client together may repeat.
///
/// ```text
/// repeats in any interval <= cap + ratio * successes + refill * seconds
/// ```
///
/// and where nothing succeeds, no more than what was there at its beginning and `refill * seconds`.
///
#[cfg_attr(feature = "serde", doc = "```")]
#[cfg_attr(not(feature = "serde"), doc = "```ignore")]
/// # use buttress_retry::BudgetSettings;
/// let settings: BudgetSettings = serde_json::from_str(r#"{ "ratio": 0.2 }"#).unwrap();
/// assert_eq!(settings, BudgetSettings::default().ratio(0.2));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[non_exhaustive]
pub struct BudgetSettings {
    /// How many repeats each success pays for: 0.1, from 0 to 10. Zero leaves the reserve alone.
    ///
    /// Six digits are kept.
    pub ratio: f64,
    /// How many tokens there are from the start, and are not lost with time: 2.
    ///
    /// One less than the attempts of a request, so that the first request of a fresh client may make all of
    /// them.
    pub reserve: u32,
    /// How many tokens a second come back while there are fewer than the reserve: 0.1. Zero for none.
    ///
    /// It is what a client lives on that sends a request now and then. It comes in steps of 156.25 ms.
    pub refill: f64,
    /// How many tokens there are at most, up to 4294. `None` is 100 times the reserve, and 100 without one.
    pub cap: Option<u32>,
}

/// The most whole tokens that 32 bits of millionths hold.
const MOST: u32 = u32::MAX / TOKEN;

/// Where `cap` is not set: so many times the reserve.
const CAP_FACTOR: u32 = 100;

impl BudgetSettings {
    /// Sets how many repeats each success pays for.
    #[must_use]
    pub fn ratio(mut self, ratio: f64) -> Self {
        self.ratio = ratio;
        self
    }

    /// Sets how many tokens there are from the start.
    #[must_use]
    pub fn reserve(mut self, tokens: u32) -> Self {
        self.reserve = tokens;
        self
    }

    /// Sets how many tokens a second come back up to the reserve.
    #[must_use]
    pub fn refill(mut self, tokens_a_second: f64) -> Self {
        self.refill = tokens_a_second;
        self
    }

    /// Sets how many tokens there are at most.
    #[must_use]
    pub fn cap(mut self, tokens: u32) -> Self {
        self.cap = Some(tokens);
        self
    }

    /// The rules of a bucket that these settings describe.
    pub(super) fn rules(&self) -> Result<Rules, InvalidSetting> {
        let deposit = micro(self.ratio, 10.0, 1.0)
            .ok_or_else(|| InvalidSetting::new("ratio", "must be 0, or from 0.000001 to 10"))?;
        let refill =
            micro(self.refill, f64::from(MOST), 1.0 / TICKS_A_SECOND).ok_or_else(|| {
                InvalidSetting::new("refill", "must be 0, or from 0.0000064 to 4294 a second")
            })?;
        if self.reserve > MOST {
            return Err(InvalidSetting::new("reserve", "must be at most 4294"));
        }
        let cap = match self.cap {
            Some(0) => return Err(InvalidSetting::new("cap", "must be at least 1")),
            Some(cap) if cap > MOST => {
                return Err(InvalidSetting::new("cap", "must be at most 4294"));
            }
            Some(cap) if cap < self.reserve => {
                let reserve = self.reserve;
                let must = format!("must not be less than `reserve` ({cap} < {reserve})");
                return Err(InvalidSetting::new("cap", must));
            }
            Some(cap) => cap,
            None => self.reserve.max(1).saturating_mul(CAP_FACTOR).min(MOST),
        };
        Ok(Rules { deposit, refill, reserve: self.reserve * TOKEN, cap: cap * TOKEN })
    }
}

impl Default for BudgetSettings {
    fn default() -> Self {
        Self { ratio: 0.1, reserve: 2, refill: 0.1, cap: None }
    }
}

/// `tokens * scale` in millionths, if `tokens` is 0, or at most `most` and not lost in rounding.
fn micro(tokens: f64, most: f64, scale: f64) -> Option<u32> {
    // NaN is in no range.
    if !(0.0..=most).contains(&tokens) {
        return None;
    }
    // Down, so that never more is given than was asked for; but 2.01 is 2010000 and not 2009999.
    let micro = (tokens * scale * f64::from(TOKEN) + 1e-4).floor() as u32;
    (micro > 0 || tokens == 0.0).then_some(micro)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(settings: &BudgetSettings) -> String {
        settings.rules().unwrap_err().to_string()
    }

    fn works(settings: &BudgetSettings) -> Rules {
        settings.rules().unwrap()
    }

    const OURS: fn() -> BudgetSettings = BudgetSettings::default;

    #[test]
    fn the_defaults_are_a_tenth_of_what_succeeds_and_two_in_reserve() {
        let rules =
            Rules { deposit: 100_000, refill: 15_625, reserve: 2_000_000, cap: 200_000_000 };
        assert_eq!(works(&OURS()), rules);
    }

    // BUD-01
    #[test]
    fn a_ratio_that_is_no_share_is_refused_by_name() {
        for ratio in [f64::NAN, -1e-9, -1.0, 10.0 + 1e-9, f64::INFINITY, f64::MAX, 9e-7, 1e-300] {
            assert!(refused(&OURS().ratio(ratio)).contains("`ratio`"), "{ratio}");
        }
        for (ratio, deposit) in
            [(0.0, 0), (-0.0, 0), (1e-6, 1), (0.29, 290_000), (2.01, 2_010_000), (10.0, 10_000_000)]
        {
            assert_eq!(works(&OURS().ratio(ratio)).deposit, deposit);
        }
    }

    #[test]
    fn a_refill_that_is_no_rate_is_refused_by_name() {
        for refill in [f64::NAN, -0.1, f64::INFINITY, f64::MAX, 4295.0, 1e-6, 1e-300] {
            assert!(refused(&OURS().refill(refill)).contains("`refill`"), "{refill}");
        }
        for (refill, a_tick) in
            [(0.0, 0), (6.4e-6, 1), (0.5, 78_125), (3.0, 468_750), (4294.0, 670_937_500)]
        {
            assert_eq!(works(&OURS().refill(refill)).refill, a_tick, "{refill}");
        }
    }

    #[test]
    fn more_tokens_than_the_word_holds_are_refused_by_name() {
        for tokens in [4295, u32::MAX] {
            assert!(refused(&OURS().reserve(tokens)).contains("`reserve`"));
            assert!(refused(&OURS().cap(tokens)).contains("`cap`"));
        }
        assert_eq!(works(&OURS().reserve(4294)).cap, 4_294_000_000, "not beyond it by default");
        assert_eq!(works(&OURS().cap(4294)).cap, 4_294_000_000);
    }

    #[test]
    fn a_cap_that_cuts_the_reserve_is_refused_and_both_are_named() {
        let shown = refused(&OURS().reserve(5).cap(4));
        assert!(shown.contains("`cap`") && shown.contains("`reserve`"), "{shown}");
        assert_eq!(works(&OURS().reserve(5).cap(5)).cap, 5_000_000);
    }

    #[test]
    fn a_bucket_without_room_is_refused_and_one_without_reserve_has_some() {
        assert!(refused(&OURS().cap(0)).contains("`cap`"));
        assert!(refused(&OURS().reserve(0).cap(0)).contains("`cap`"));
        assert_eq!(works(&OURS().reserve(0)).cap, 100_000_000);
        assert_eq!(works(&OURS().reserve(7)).cap, 700_000_000);
    }
}
