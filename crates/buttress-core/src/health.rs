use std::fmt;

use tokio::time::Instant;

/// How well a part is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Health {
    /// It does its job.
    Healthy,
    /// It does part of it, or did so a moment ago.
    Degraded,
    /// It does not.
    Unhealthy,
    /// Nobody has looked, or nobody can tell. Nothing may be decided upon this.
    #[default]
    Unknown,
}

/// A [`Health`], and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// How well it is.
    pub health: Health,
    /// Since when it has been so, where that is known.
    pub since: Option<Instant>,
}

/// A part that can tell how well it is.
///
/// Breakers, bulkheads and readiness checks are such parts. Whoever decides by health, as a readiness probe
/// does, takes signals, and so meets them all without knowing any.
pub trait HealthSignal {
    /// How well it is at `now`. Cheap, and never blocks.
    fn sample(&self, now: Instant) -> Reading;
}

impl<F> HealthSignal for F
where
    F: Fn(Instant) -> Reading,
{
    fn sample(&self, now: Instant) -> Reading {
        self(now)
    }
}

/// By the names that events and labels have.
#[cfg(feature = "serde")]
impl serde::Serialize for Health {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Unhealthy => "unhealthy",
            Self::Unknown => "unknown",
        })
    }
}
