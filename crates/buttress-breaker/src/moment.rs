use std::time::Duration;

/// An instant as a breaker counts it: in nanoseconds from the one that all breakers of its kind start with.
///
/// It has half the size of an `Instant`, and is compared in one instruction. What lies before the start is
/// taken for it, and what is 584 years beyond it is [never](Self::NEVER).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

impl Moment {
    pub(crate) const START: Self = Self(0);
    /// Later than all others.
    pub(crate) const NEVER: Self = Self(u64::MAX);

    pub(crate) const fn at(nanos: u64) -> Self {
        Self(nanos)
    }

    pub(crate) const fn nanos(self) -> u64 {
        self.0
    }

    /// So much later, or never.
    pub(crate) fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(nanos(time)))
    }

    /// How much later it is than another. Not at all if it is earlier.
    #[inline]
    pub(crate) const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// None if it is never.
    #[inline]
    pub(crate) fn if_ever(self) -> Option<Self> {
        (self != Self::NEVER).then_some(self)
    }
}

/// As far as 64 bits go.
#[inline]
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
impl std::ops::Add<Duration> for Moment {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        self.after(time)
    }
}

#[cfg(test)]
impl std::ops::AddAssign<Duration> for Moment {
    fn add_assign(&mut self, time: Duration) {
        *self = self.after(time);
    }
}

/// Unlike [`Moment::since`], for what must be later.
#[cfg(test)]
impl std::ops::Sub for Moment {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        assert!(earlier <= self, "{earlier:?} is not earlier than {self:?}");
        self.since(earlier)
    }
}
