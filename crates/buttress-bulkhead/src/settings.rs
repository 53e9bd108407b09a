use std::time::Duration;

use buttress_core::InvalidSetting;

use crate::Bulkhead;

/// How many calls may be in flight, and who may wait.
///
/// Plain values. [`Bulkhead::new`] refuses what cannot work, and names the field.
///
/// ```
/// use buttress_bulkhead::{Bulkhead, BulkheadSettings};
/// use std::time::Duration;
///
/// let settings =
///     BulkheadSettings::new(10).max_waiting(5).max_wait(Duration::from_millis(100));
/// let bulkhead = Bulkhead::new(settings)?;
/// assert_eq!(bulkhead.room(), 10);
/// # Ok::<_, buttress_core::InvalidSetting>(())
/// ```
///
/// With the feature `serde` they come from files, durations as `"250ms"`. What a file leaves out is as
/// in [`Default`]; a field that does not exist is an error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[non_exhaustive]
pub struct BulkheadSettings {
    /// How many calls may be in flight, from 1 to [`Bulkhead::MAX_LIMIT`]. 1000 by default, as in .NET's
    /// standard resilience handler.
    pub limit: usize,
    /// How many may wait for a slot. None by default: whoever finds no slot is refused at once.
    /// [`usize::MAX`] bounds the queue by time alone.
    pub max_waiting: usize,
    /// How long each of them may wait. A second by default: a wait is always bounded unless you say
    /// otherwise. [`Duration::MAX`] is no bound of the queue's own; the request's deadline still holds.
    /// Must be more than zero, unless nobody may wait.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub max_wait: Duration,
}

impl BulkheadSettings {
    /// So many calls in flight, and nobody waits.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Sets how many calls may be in flight.
    #[must_use]
    pub const fn limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }

    /// Sets how many may wait for a slot.
    #[must_use]
    pub const fn max_waiting(mut self, max_waiting: usize) -> Self {
        self.max_waiting = max_waiting;
        self
    }

    /// Sets how long each of them may wait.
    #[must_use]
    pub const fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = max_wait;
        self
    }

    pub(crate) fn check(&self) -> Result<(), InvalidSetting> {
        check_limit(self.limit)?;
        if self.max_waiting > 0 && self.max_wait.is_zero() {
            return Err(InvalidSetting::new(
                "max_wait",
                format!(
                    "must be more than zero, for `max_waiting` lets {} wait (let nobody wait with 0)",
                    self.max_waiting
                ),
            ));
        }
        Ok(())
    }
}

impl Default for BulkheadSettings {
    fn default() -> Self {
        Self { limit: 1000, max_waiting: 0, max_wait: Duration::from_secs(1) }
    }
}

pub(crate) fn check_limit(limit: usize) -> Result<(), InvalidSetting> {
    match limit {
        0 => Err(InvalidSetting::new(
            "limit",
            "must be at least 1 (no limit is `Bulkhead::unlimited()`)",
        )),
        1..=Bulkhead::MAX_LIMIT => Ok(()),
        _ => Err(InvalidSetting::new(
            "limit",
            format!(
                "must be at most {} (no limit is `Bulkhead::unlimited()`)",
                Bulkhead::MAX_LIMIT
            ),
        )),
    }
}
