use std::time::Duration;

use buttress_core::InvalidSetting;

use crate::Backoff;

/// How often and when a request is sent again, as plain values.
///
/// For settings that come from a file, and for code that checks them together with others. The budget has
/// [its own](crate::BudgetSettings). Code that knows its values uses [`RetryLayer`](crate::RetryLayer)
/// directly.
///
#[cfg_attr(feature = "serde", doc = "```")]
#[cfg_attr(not(feature = "serde"), doc = "```ignore")]
/// # use buttress_retry::RetrySettings;
/// # use std::time::Duration;
/// let settings: RetrySettings = serde_json::from_str(r#"{ "attempts": 2, "cap": "1s" }"#).unwrap();
/// assert_eq!(settings, RetrySettings::default().attempts(2).cap(Duration::from_secs(1)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[non_exhaustive]
pub struct RetrySettings {
    /// How many attempts are made in all, the first one too: 3. One never repeats.
    pub attempts: u32,
    /// The longest wait before the second attempt: 100 ms. It doubles with each further one.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub base: Duration,
    /// The longest wait of all: 5 s.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub cap: Duration,
    /// The longest wait that a callee may ask for: 60 s. Where it asks for more, its answer is returned.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub max_retry_after: Duration,
}

impl RetrySettings {
    pub(crate) const ATTEMPTS: u32 = 3;
    pub(crate) const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

    /// Sets how many attempts are made in all.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// Sets the longest wait before the second attempt.
    #[must_use]
    pub fn base(mut self, base: Duration) -> Self {
        self.base = base;
        self
    }

    /// Sets the longest wait of all.
    #[must_use]
    pub fn cap(mut self, cap: Duration) -> Self {
        self.cap = cap;
        self
    }

    /// Sets the longest wait that a callee may ask for.
    #[must_use]
    pub fn max_retry_after(mut self, after: Duration) -> Self {
        self.max_retry_after = after;
        self
    }

    /// The waits.
    ///
    /// # Errors
    ///
    /// If `base` is longer than `cap`.
    pub fn backoff(&self) -> Result<Backoff, InvalidSetting> {
        Backoff::try_new(self.base, self.cap)
    }
}

impl Default for RetrySettings {
    fn default() -> Self {
        Self {
            attempts: Self::ATTEMPTS,
            base: Backoff::BASE,
            cap: Backoff::CAP,
            max_retry_after: Self::MAX_RETRY_AFTER,
        }
    }
}

/// Zero attempts would answer nothing.
pub(crate) fn check_attempts(attempts: u32) -> Result<(), InvalidSetting> {
    match attempts {
        0 => Err(InvalidSetting::new("attempts", "must be at least 1: the first one counts")),
        _ => Ok(()),
    }
}
