use std::time::Duration;

use buttress_core::InvalidSetting;

/// How long requests may wait, and how many.
///
/// Plain values. [`Shed::new`](crate::Shed::new) refuses what cannot work, and names the field.
///
/// ```
/// use buttress_shed::{FixedLimit, Shed, ShedSettings};
/// use std::time::Duration;
///
/// let settings = ShedSettings::default().target(Duration::from_millis(20)).max_queue(64);
/// let shed = Shed::new(FixedLimit::new(16)?, settings)?;
/// assert_eq!(shed.limit(), 16);
/// # Ok::<_, buttress_core::InvalidSetting>(())
/// ```
///
/// With the feature `serde` they come from files, durations as `"250ms"`. What a file leaves out is as
/// in [`Default`]; a field that does not exist is an error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[non_exhaustive]
pub struct ShedSettings {
    /// The wait that is still good, 10 ms by default. While the server is overloaded nobody waits for
    /// longer than twice this.
    ///
    /// CoDel's *target*: its authors chose 5 to 10 % of the interval. More than half of the interval makes
    /// the longest wait the same whether the server is overloaded or not. Must be more than zero;
    /// [`Duration::MAX`] is no limit of age.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub target: Duration,
    /// For how long the queue may be used without a break until the server counts as overloaded, 100 ms
    /// by default. A burst that is gone by then is served in order, and nobody of it is refused.
    ///
    /// CoDel's *interval*: long enough for a burst to drain, and short enough that callers have not given
    /// up. Must be more than zero; [`Duration::MAX`] is never overloaded.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub interval: Duration,
    /// How many may wait. `None`, the default, is four for each place of the limit.
    ///
    /// It bounds memory; what bounds the wait is the time. `Some(0)` lets nobody wait, and then no priority
    /// matters: there is nobody to wait behind.
    pub max_queue: Option<usize>,
}

impl ShedSettings {
    /// Sets the wait that is still good.
    #[must_use]
    pub const fn target(mut self, target: Duration) -> Self {
        self.target = target;
        self
    }

    /// Sets for how long the queue may be used without a break.
    #[must_use]
    pub const fn interval(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Sets how many may wait.
    #[must_use]
    pub const fn max_queue(mut self, max_queue: usize) -> Self {
        self.max_queue = Some(max_queue);
        self
    }

    pub(crate) fn check(&self) -> Result<(), InvalidSetting> {
        for (name, value) in [("target", self.target), ("interval", self.interval)] {
            if value.is_zero() {
                return Err(InvalidSetting::new(name, "must be more than zero"));
            }
        }
        Ok(())
    }
}

impl Default for ShedSettings {
    fn default() -> Self {
        Self {
            target: Duration::from_millis(10),
            interval: Duration::from_millis(100),
            max_queue: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(settings: ShedSettings) -> Option<String> {
        settings.check().err().map(|error| error.setting().to_owned())
    }

    // BKO-10
    #[test]
    fn no_time_at_all_is_refused_and_named_and_all_other_times_work() {
        let settings = ShedSettings::default();
        assert_eq!(refused(settings.clone().target(Duration::ZERO)).as_deref(), Some("target"));
        assert_eq!(refused(settings.clone().interval(Duration::ZERO)).as_deref(), Some("interval"));
        for time in [Duration::from_nanos(1), Duration::MAX] {
            assert_eq!(refused(settings.clone().target(time)), None);
            assert_eq!(refused(settings.clone().interval(time)), None);
        }
        for queue in [0, 1, usize::MAX] {
            assert_eq!(refused(settings.clone().max_queue(queue)), None);
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn what_a_file_leaves_out_is_the_default_and_what_it_misspells_is_an_error() {
        let read = |json: &str| serde_json::from_str::<ShedSettings>(json);
        let settings = ShedSettings::default().target(Duration::from_millis(250)).max_queue(7);
        assert_eq!(read(r#"{"target": "250ms", "max_queue": 7}"#).unwrap(), settings);
        assert_eq!(read("{}").unwrap(), ShedSettings::default());
        let written = serde_json::to_string(&settings).unwrap();
        assert_eq!(written, r#"{"target":"250ms","interval":"100ms","max_queue":7}"#);
        assert_eq!(read(&written).unwrap(), settings);
        assert!(read(r#"{"targt": "250ms"}"#).unwrap_err().to_string().contains("targt"));
    }
}
