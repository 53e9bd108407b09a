use std::{fmt, time::Duration};

use buttress_breaker::{BreakerSettings, Window};
use buttress_bulkhead::BulkheadSettings;
use buttress_core::InvalidSetting;
use buttress_retry::{BudgetSettings, RetrySettings};

/// The settings of a whole [`Standard`](super::Standard) stack, as plain values.
///
/// With the feature `serde` they come from a file; what is left out keeps its default, and a field that does
/// not exist is refused.
///
#[cfg_attr(feature = "serde", doc = "```")]
#[cfg_attr(not(feature = "serde"), doc = "```ignore")]
/// # use buttress::StandardSettings;
/// # use std::time::Duration;
/// let settings: StandardSettings =
///     serde_json::from_str(r#"{ "total": "2s", "attempt": "250ms" }"#).unwrap();
/// assert_eq!(settings.attempt, Duration::from_millis(250));
/// assert!(serde_json::from_str::<StandardSettings>(r#"{ "totl": "2s" }"#).is_err());
/// ```
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[non_exhaustive]
pub struct StandardSettings {
    /// How long an answer is worth having: over the wait for room, all attempts, and the waits between
    /// them. 30 s.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub total: Duration,
    /// How long one attempt may take. 10 s.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub attempt: Duration,
    /// How many requests may be in flight: 1000, and none waits.
    pub bulkhead: BulkheadSettings,
    /// How often and when a request is sent again: 3 attempts in all.
    pub retry: RetrySettings,
    /// How much all requests together may repeat: a tenth of what succeeds.
    pub budget: BudgetSettings,
    /// When a callee is spared. Where no slow call is set, a call is slow that takes half of `attempt`
    /// (to turn that off, set it to [`Duration::MAX`]). Where no lease of probes is set, it is the open time, or
    /// `attempt` and a tenth if that is longer.
    pub breaker: BreakerSettings,
}

/// Settings that work, but hardly as they were meant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// The breaker's window is shorter than an attempt: while the callee hangs, outcomes leave the window as
    /// fast as they enter it, and it may never hold enough of them to open.
    WindowShorterThanAttempt {
        /// How long outcomes count.
        window: Duration,
        /// How long one takes to be known.
        attempt: Duration,
    },
    /// A probe's lease is no longer than an attempt: probes are replaced while they are still under way, so a
    /// callee that is well but slow is asked more often than it should be, and a failure that comes late has no
    /// say.
    LeaseWithinAttempt {
        /// How long a probe keeps its place.
        lease: Duration,
        /// How long one may take.
        attempt: Duration,
    },
}

// === impl StandardSettings ===

impl Default for StandardSettings {
    fn default() -> Self {
        Self {
            total: Duration::from_secs(30),
            attempt: Duration::from_secs(10),
            bulkhead: BulkheadSettings::default(),
            retry: RetrySettings::default(),
            budget: BudgetSettings::default(),
            breaker: BreakerSettings::default(),
        }
    }
}

impl StandardSettings {
    /// Sets how long an answer is worth having.
    #[must_use]
    pub const fn total(mut self, total: Duration) -> Self {
        self.total = total;
        self
    }

    /// Sets how long one attempt may take.
    #[must_use]
    pub const fn attempt(mut self, attempt: Duration) -> Self {
        self.attempt = attempt;
        self
    }

    /// Sets how many requests may be in flight.
    #[must_use]
    pub fn bulkhead(mut self, bulkhead: BulkheadSettings) -> Self {
        self.bulkhead = bulkhead;
        self
    }

    /// Sets how often and when a request is sent again.
    #[must_use]
    pub fn retry(mut self, retry: RetrySettings) -> Self {
        self.retry = retry;
        self
    }

    /// Sets how much all requests together may repeat.
    #[must_use]
    pub fn budget(mut self, budget: BudgetSettings) -> Self {
        self.budget = budget;
        self
    }

    /// Sets when a callee is spared.
    #[must_use]
    pub fn breaker(mut self, breaker: BreakerSettings) -> Self {
        self.breaker = breaker;
        self
    }

    /// The breaker's settings, with what follows from the others.
    pub(super) fn effective_breaker(&self) -> BreakerSettings {
        let mut breaker = self.breaker.clone();
        breaker.slow_call = breaker.slow_call.or(Some(self.attempt / 2).filter(|d| !d.is_zero()));
        // Longer than an attempt by more than timers are late: else a probe that hangs would lose its say to
        // whoever asks in between.
        let slack = (self.attempt / 10).max(Duration::from_millis(10));
        let lease = breaker.open.max(self.attempt.saturating_add(slack));
        breaker.probe_lease = breaker.probe_lease.or(Some(lease));
        breaker
    }

    /// Checks the settings against each other. What is wrong with one alone, its own type says.
    pub(super) fn check(&self) -> Result<Vec<Warning>, InvalidSetting> {
        let Self { total, attempt, bulkhead, retry, .. } = self;
        if total.is_zero() {
            return Err(InvalidSetting::new("total", "must be longer than zero"));
        }
        if attempt.is_zero() {
            return Err(InvalidSetting::new("attempt", "must be longer than zero"));
        }
        if attempt > total {
            let must = format!("must not be longer than `total` ({attempt:?} > {total:?})");
            return Err(InvalidSetting::new("attempt", must));
        }
        if bulkhead.max_waiting > 0 && bulkhead.max_wait >= *total {
            let wait = bulkhead.max_wait;
            let must = format!("must be shorter than `total` ({wait:?} >= {total:?})");
            return Err(InvalidSetting::new("bulkhead.max_wait", must));
        }
        let longest = longest(*attempt, retry)?;
        if retry.attempts > 1 && longest > *total {
            let must = format!(
                "must leave room for `retry.attempts`: all attempts but the last at `attempt`, and all \
                 waits at their longest, take {longest:?} of {total:?}"
            );
            return Err(InvalidSetting::new("total", must));
        }
        let mut warnings = Vec::new();
        if let Window::Time(window) = self.breaker.window
            && window < *attempt
        {
            warnings.push(Warning::WindowShorterThanAttempt { window, attempt: *attempt });
        }
        if let Some(lease) = self.breaker.probe_lease
            && lease <= *attempt
        {
            warnings.push(Warning::LeaseWithinAttempt { lease, attempt: *attempt });
        }
        Ok(warnings)
    }
}

/// All attempts but the last at their limit, and all waits at their longest. The last attempt gets what is
/// left.
fn longest(attempt: Duration, retry: &RetrySettings) -> Result<Duration, InvalidSetting> {
    let backoff = retry.backoff().map_err(|error| error.within("retry"))?;
    let repeats = retry.attempts.saturating_sub(1);
    let mut longest = attempt.saturating_mul(repeats);
    for n in 0..repeats {
        let ceiling = backoff.ceiling(n);
        longest = longest.saturating_add(ceiling);
        // From here on every wait is as long as this one.
        if ceiling == backoff.ceiling(u32::MAX) {
            return Ok(longest.saturating_add(ceiling.saturating_mul(repeats - n - 1)));
        }
    }
    Ok(longest)
}

// === impl Warning ===

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WindowShorterThanAttempt { window, attempt } => write!(
                f,
                "`breaker.window` is shorter than `attempt` ({window:?} < {attempt:?}): a callee that \
                 hangs may never open the breaker"
            ),
            Self::LeaseWithinAttempt { lease, attempt } => write!(
                f,
                "`breaker.probe_lease` is not longer than `attempt` ({lease:?} <= {attempt:?}): probes are \
                 replaced while they are still under way"
            ),
        }
    }
}
