use std::{borrow::Cow, time::Duration};

use buttress_core::InvalidSetting;

/// The longest count window. It takes two bits a call.
pub(crate) const MAX_CALLS: u32 = 100_000;
/// The shortest and the longest time window. Shorter, a slot would be less than what a clock tells
/// apart; longer, an outage would drown in yesterday's successes.
pub(crate) const TIMES: (Duration, Duration) =
    (Duration::from_millis(1), Duration::from_secs(24 * 60 * 60));
/// More calls than this in one window are no minimum, but a breaker that never opens.
const MAX_MINIMUM: u32 = 1_000_000;
/// More probes than this at a time are no probes. Each takes 16 bytes while the breaker is half-open.
const MAX_PROBES: u32 = 1_000;

/// Which calls are looked at when it is decided whether a callee is ill.
///
/// ```
/// use buttress_breaker::{BreakerSettings, Window};
/// use std::time::Duration;
///
/// let busy = BreakerSettings::default().window(Window::time(Duration::from_secs(30)));
/// let quiet = BreakerSettings::default().window(Window::calls(100));
/// assert!(busy.check().is_ok() && quiet.check().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase", deny_unknown_fields)
)]
#[non_exhaustive]
pub enum Window {
    /// The last so many calls, from 1 to 100 000. However old they are: with little traffic the window
    /// tells of long ago. Takes two bits a call.
    #[cfg_attr(feature = "serde", serde(rename = "calls"))]
    Count(u32),
    /// The calls of the last so long, from 1 ms to a day.
    ///
    /// Counted in ten slots, each a tenth of the time: a call leaves the window when it is between
    /// nine and ten tenths old.
    Time(#[cfg_attr(feature = "serde", serde(with = "humantime_serde"))] Duration),
}

/// When a breaker opens, for how long, and what closes it again.
///
/// The defaults are for a callee that is asked often. [`quiet`](Self::quiet) is for one that is not.
///
/// ```
/// use buttress_breaker::{Breaker, BreakerSettings};
/// use std::time::Duration;
///
/// let settings = BreakerSettings::default()
///     .slow_call(Duration::from_secs(2))
///     .open(Duration::from_secs(3));
/// let breaker = Breaker::new(settings)?;
/// # Ok::<(), buttress_core::InvalidSetting>(())
/// ```
///
/// # Defaults
///
/// | setting | default | why |
/// |---|---|---|
/// | `window` | 10 s | opening takes half the window in a steady outage: 30 s of it would take 15 |
/// | `min_calls` | 20 | fewer say too little; one bad burst must not open it |
/// | `failure_rate` | 0.5 | a callee that does half of its work is better than none |
/// | `slow_call` | off | only the caller knows; half of an attempt's time limit is a good start |
/// | `slow_rate` | 0.8 | slow answers are still answers, so more of them are borne |
/// | `consecutive` | off | see [`quiet`](Self::quiet) |
/// | `open` | 5 s | long enough to spare the callee, short enough to see it recover |
/// | `open_max` | 60 s | |
/// | `open_jitter` | 0.2 | breakers that open together must not probe together |
/// | `probes` | 3 | a callee that fails every other call passes one probe by chance, three in one of eight tries |
/// | `probe_lease` | `open` | |
/// | `throttled_is_failure` | no | who asks for fewer requests is not ill |
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default, deny_unknown_fields)
)]
#[non_exhaustive]
pub struct BreakerSettings {
    /// A name for events. Give one that you choose, not one that comes with a request.
    pub name: Option<Cow<'static, str>>,
    /// Which calls are looked at.
    pub window: Window,
    /// How many of them there must be before a rate is looked at, from 1 to 1 000 000.
    pub min_calls: u32,
    /// It opens when this share of them failed, above 0 and up to 1.
    pub failure_rate: f64,
    /// A call that takes this long or longer is slow, answered or not. With none, no answer is slow,
    /// but a call that was abandoned at its deadline still is.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub slow_call: Option<Duration>,
    /// It opens when this share of them did not fail but was slow, above 0 and up to 1.
    pub slow_rate: f64,
    /// It opens when so many calls in a row failed or were abandoned, however few there are, from 1
    /// to 1 000 000.
    pub consecutive: Option<u32>,
    /// For how long it stays open. It doubles with each time that the probes fail.
    ///
    /// [`Duration::MAX`] is until somebody [resets](crate::Breaker::reset) it.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub open: Duration,
    /// For how long at most, with jitter.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub open_max: Duration,
    /// How far the open time is off by chance, as a share of it, from 0 and below 1.
    pub open_jitter: f64,
    /// How many calls are let through after the open time, from 1 to 1 000. All must succeed to close
    /// it, and one that fails opens it again.
    pub probes: u32,
    /// After how long a probe that has not ended may be replaced. As long as `open` if there is none.
    ///
    /// Without it, one probe that hangs would keep the breaker half-open for ever. It frees the place and
    /// discards no good answer: a probe that was replaced and then succeeds, and is not slow, counts as a
    /// success. What else it says is not heard any more.
    ///
    /// When more probes than `probes` were replaced, and none of these has succeeded since, it opens
    /// again. If one of them succeeds after that, leases are at least as long as it took, until the breaker
    /// closes. So a callee that is well closes it, however long it takes. But a lease that is longer than
    /// one attempt may take closes it sooner, and hears of failures too.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub probe_lease: Option<Duration>,
    /// Whether an answer that asks for fewer requests is a failure. It says nothing if not.
    pub throttled_is_failure: bool,
    /// Whether it starts as a [shadow](crate::Breaker::shadow), which never refuses.
    pub shadow: bool,
}

// === impl Window ===

impl Window {
    /// The last so many calls.
    #[must_use]
    pub const fn calls(calls: u32) -> Self {
        Self::Count(calls)
    }

    /// The calls of the last so long.
    #[must_use]
    pub const fn time(time: Duration) -> Self {
        Self::Time(time)
    }
}

// === impl BreakerSettings ===

impl BreakerSettings {
    /// For a leader, or a caller who asks now and then: it also opens after five failures in a row.
    ///
    /// Such a caller seldom makes `min_calls` calls in one window, so that the rates alone would never
    /// open it. Five, because a run of failures is what one bad burst looks like too.
    #[must_use]
    pub fn quiet() -> Self {
        Self::default().consecutive(5)
    }

    /// Sets the name for events.
    #[must_use]
    pub fn name(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets which calls are looked at.
    #[must_use]
    pub fn window(mut self, window: Window) -> Self {
        self.window = window;
        self
    }

    /// Sets how many calls there must be before a rate is looked at.
    #[must_use]
    pub fn min_calls(mut self, calls: u32) -> Self {
        self.min_calls = calls;
        self
    }

    /// Sets the share of failed calls that opens it.
    #[must_use]
    pub fn failure_rate(mut self, rate: f64) -> Self {
        self.failure_rate = rate;
        self
    }

    /// Sets from when on a call is slow.
    #[must_use]
    pub fn slow_call(mut self, slow: impl Into<Option<Duration>>) -> Self {
        self.slow_call = slow.into();
        self
    }

    /// Sets the share of slow calls that opens it.
    #[must_use]
    pub fn slow_rate(mut self, rate: f64) -> Self {
        self.slow_rate = rate;
        self
    }

    /// Sets how many failures in a row open it.
    #[must_use]
    pub fn consecutive(mut self, failures: impl Into<Option<u32>>) -> Self {
        self.consecutive = failures.into();
        self
    }

    /// Sets for how long it stays open.
    #[must_use]
    pub fn open(mut self, open: Duration) -> Self {
        self.open = open;
        self
    }

    /// Sets for how long it stays open at most.
    #[must_use]
    pub fn open_max(mut self, max: Duration) -> Self {
        self.open_max = max;
        self
    }

    /// Sets how far the open time is off by chance.
    #[must_use]
    pub fn open_jitter(mut self, share: f64) -> Self {
        self.open_jitter = share;
        self
    }

    /// Sets how many calls must succeed to close it.
    #[must_use]
    pub fn probes(mut self, probes: u32) -> Self {
        self.probes = probes;
        self
    }

    /// Sets after how long a probe may be replaced.
    #[must_use]
    pub fn probe_lease(mut self, lease: impl Into<Option<Duration>>) -> Self {
        self.probe_lease = lease.into();
        self
    }

    /// Sets whether an answer that asks for fewer requests is a failure.
    #[must_use]
    pub fn throttled_is_failure(mut self, failure: bool) -> Self {
        self.throttled_is_failure = failure;
        self
    }

    /// Sets whether it starts as a shadow.
    #[must_use]
    pub fn shadow(mut self, shadow: bool) -> Self {
        self.shadow = shadow;
        self
    }

    /// Whether a breaker can be made of them.
    ///
    /// # Errors
    ///
    /// Names the first setting that cannot work.
    pub fn check(&self) -> Result<(), InvalidSetting> {
        match self.window {
            Window::Count(calls) => {
                require((1..=MAX_CALLS).contains(&calls), "window", "be 1 to 100000 calls")?;
                let fits = self.min_calls <= calls;
                require(fits, "min_calls", "be at most the calls of `window`, or it never opens")?;
            }
            Window::Time(time) => {
                let fits = (TIMES.0..=TIMES.1).contains(&time);
                require(fits, "window", "be from 1ms to 24h")?;
            }
        }
        let minimum = 1..=MAX_MINIMUM;
        require(minimum.contains(&self.min_calls), "min_calls", "be 1 to 1000000")?;
        require(is_rate(self.failure_rate), "failure_rate", "be above 0 and at most 1")?;
        require(self.slow_call != Some(Duration::ZERO), "slow_call", "be longer than zero")?;
        require(is_rate(self.slow_rate), "slow_rate", "be above 0 and at most 1")?;
        let consecutive = self.consecutive.is_none_or(|n| minimum.contains(&n));
        require(consecutive, "consecutive", "be 1 to 1000000")?;
        require(!self.open.is_zero(), "open", "be longer than zero")?;
        require(self.open <= self.open_max, "open_max", "be at least as long as `open`")?;
        let jitter = (0.0..1.0).contains(&self.open_jitter);
        require(jitter, "open_jitter", "be from 0 to below 1")?;
        require((1..=MAX_PROBES).contains(&self.probes), "probes", "be 1 to 1000")?;
        require(self.probe_lease != Some(Duration::ZERO), "probe_lease", "be longer than zero")
    }

    /// Whether a call is slow that took so long.
    pub(crate) fn is_slow(&self, took: Duration) -> bool {
        self.slow_call.is_some_and(|slow| slow <= took)
    }

    /// After how long a probe may be replaced.
    pub(crate) fn lease(&self) -> Duration {
        self.probe_lease.unwrap_or(self.open)
    }
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self {
            name: None,
            window: Window::Time(Duration::from_secs(10)),
            min_calls: 20,
            failure_rate: 0.5,
            slow_call: None,
            slow_rate: 0.8,
            consecutive: None,
            open: Duration::from_secs(5),
            open_max: Duration::from_secs(60),
            open_jitter: 0.2,
            probes: 3,
            probe_lease: None,
            throttled_is_failure: false,
            shadow: false,
        }
    }
}

/// A share of something, where none of it makes no sense. Not a number is no rate.
fn is_rate(rate: f64) -> bool {
    rate > 0.0 && rate <= 1.0
}

fn require(holds: bool, setting: &'static str, must: &'static str) -> Result<(), InvalidSetting> {
    if holds { Ok(()) } else { Err(InvalidSetting::new(setting, format!("must {must}"))) }
}
