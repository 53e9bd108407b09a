use std::{fmt, ops::AddAssign};

/// What a breaker lets through.
// Exhaustive on purpose: a circuit breaker has these three, and whoever matches on them should not need an
// arm for what cannot be. Being forced or a shadow is apart from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Every call: the callee is well.
    Closed,
    /// No call: the callee is ill, and is spared for a while.
    Open,
    /// A few probes: the while is over, and nobody knows yet.
    HalfOpen,
}

/// What became of all calls since a breaker was made.
///
/// One reading is a whole: `started` is what ended, in one of the ways of the second group, and what is
/// in flight. It holds at any time, under any interleaving.
///
/// ```
/// use buttress_breaker::Breaker;
/// use buttress_core::{Class, Permit};
///
/// let breaker = Breaker::default();
/// let one = breaker.admit()?;
/// let two = breaker.admit()?;
/// one.report(Class::Success);
/// let stats = breaker.stats();
/// assert_eq!((stats.started, stats.success, stats.in_flight()), (2, 1, 1));
/// drop(two);
/// assert_eq!((breaker.stats().dropped, breaker.stats().in_flight()), (1, 0));
/// # Ok::<(), buttress_core::Rejected>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Calls that were let through.
    pub started: u64,

    /// Of those, the ones that succeeded in time.
    pub success: u64,
    /// That succeeded, but were slow.
    pub slow: u64,
    /// That failed.
    pub failure: u64,
    /// Whose answer says nothing of the callee's health.
    pub neutral: u64,
    /// That the caller gave up at its deadline, or when they were slow already.
    pub abandoned: u64,
    /// That the caller gave up for a reason of its own.
    pub dropped: u64,
    /// That ended after the breaker had changed its mind: too late to say anything. So is a probe that was
    /// replaced, unless it succeeds.
    pub stale: u64,

    /// Calls that were refused.
    pub rejected: u64,
    /// Calls that a [shadow](crate::Breaker::shadow) let through and would have refused.
    pub shadowed: u64,
    /// How often it opened.
    pub opened: u64,
    /// Probes that did not end within their lease, and were replaced. They are in flight until they end.
    pub expired: u64,

    /// What is in the window right now: what it would be judged by.
    pub window: Tally,
}

/// The calls in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tally {
    /// How many they are.
    pub calls: u32,
    /// How many of them failed.
    pub failures: u32,
    /// How many did not fail, but were slow or abandoned.
    pub slow: u32,
}

// === impl State ===

impl State {
    /// The state as a short name, for events and labels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half-open",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// === impl Stats ===

impl Stats {
    /// Calls that ended, in whatever way.
    #[must_use]
    pub const fn ended(&self) -> u64 {
        self.success
            + self.slow
            + self.failure
            + self.neutral
            + self.abandoned
            + self.dropped
            + self.stale
    }

    /// Calls that were let through and have not ended.
    #[must_use]
    pub const fn in_flight(&self) -> u64 {
        self.started - self.ended()
    }
}

/// Adds up breakers. The windows are added too, which tells how many calls are looked at in all.
impl AddAssign for Stats {
    fn add_assign(&mut self, other: Self) {
        self.started += other.started;
        self.success += other.success;
        self.slow += other.slow;
        self.failure += other.failure;
        self.neutral += other.neutral;
        self.abandoned += other.abandoned;
        self.dropped += other.dropped;
        self.stale += other.stale;
        self.rejected += other.rejected;
        self.shadowed += other.shadowed;
        self.opened += other.opened;
        self.expired += other.expired;
        self.window.add(other.window);
    }
}
