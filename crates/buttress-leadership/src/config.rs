use std::{fmt, time::Duration};

use buttress_core::InvalidSetting;
use bytes::Bytes;

use crate::{Identity, LeaseName, StoreCapabilities};

/// What is led, by whom, and how long everything takes.
///
/// ```
/// use buttress_leadership::{LeaseConfig, LeaseName};
/// use std::time::Duration;
///
/// let config = LeaseConfig::new(LeaseName::new("scheduler")?)
///     .payload("10.0.0.7:8080")
///     .lease_duration(Duration::from_secs(10))
///     .renew_interval(Duration::from_secs(3))
///     .operation_timeout(Duration::from_millis(1500));
/// config.check()?;
/// # Ok::<(), buttress_core::InvalidSetting>(())
/// ```
///
/// # How long everything takes
///
/// ```text
/// leader     t0 = 0      5.0        7.5    8.5       11.0   12.0
///            | acquire   | renewal  | no   | another | no   | valid_until = t0 + lease_duration - safety_margin:
///            |           |          answer |         answer   the gate is closed, the work is dropped
/// store      |- commit c in 0 ..= 2.5 ---------------------------------- c + 15: it ends, and not before
/// candidate                                                  |--------->| nobody leads for 3 s at least
/// ```
///
/// With the defaults, a leader that dies is replaced within 15 + 1.2 s; one that leaves, within the time that
/// candidates wait between two looks (1.2 s), or at once where the store [tells](crate::LeaseStore::changes)
/// them.
///
/// # The margin
///
/// All leases end on two clocks, and no two clocks run alike. A leader that stops `safety_margin` early is
/// safe from clocks that each run wrong by a share `r` if the margin is at least `lease_duration * 2r / (1 +
/// r)`. Crystals are off by 0.01 %. A clock that is slewed by chrony, at its default limit, is off by 8.33 %,
/// and needs 15.4 %: hence 20 %. Whoever knows that clocks are off by 0.05 % at most may set 1 %. The
/// response's delay is not in the formula, since a lease is counted from when it was *asked* for (Gray and
/// Cheriton, *Leases*, SOSP 1989).
///
/// # From a file
///
/// With the feature `serde` it comes from a file, durations as `"250ms"`. Only `name` has to be there; a field
/// that does not exist is an error. `payload` is text. Who wants to lead is not in a file, where two processes
/// would read it and be one: it is generated, or [set](Self::identity) by the program.
#[cfg_attr(feature = "serde", doc = "```")]
#[cfg_attr(not(feature = "serde"), doc = "```ignore")]
/// use buttress_leadership::LeaseConfig;
///
/// let config: LeaseConfig =
///     serde_json::from_str(r#"{ "name": "scheduler", "lease_duration": "30s", "renew_interval": "8s" }"#).unwrap();
/// assert!(config.identity.is_unique());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(remote = "Self", deny_unknown_fields))]
#[cfg_attr(feature = "serde", serde(default = "crate::file::without_a_name"))]
#[non_exhaustive]
pub struct LeaseConfig {
    /// What is led.
    pub name: LeaseName,
    /// Who wants to lead. [Generated](Identity::generate) unless set.
    #[cfg_attr(feature = "serde", serde(skip, default = "Identity::generate"))]
    pub identity: Identity,
    /// What a leader says of itself to those who do not lead: its address as `host:port`, or whatever else you
    /// like. At most 16 KiB; empty unless set.
    #[cfg_attr(feature = "serde", serde(with = "crate::file::text"))]
    pub payload: Bytes,
    /// For how long the store is asked to grant the lease. What counts is how long it is granted. 15 s by
    /// default, from 1 s and the store's own minimum on.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub lease_duration: Duration,
    /// From one renewal that succeeds to the next, from send to send, up to a tenth less by chance. 5 s by
    /// default, whatever the lease: [`scaled_to`](Self::scaled_to) sets what goes with a shorter one.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub renew_interval: Duration,
    /// How long a leader waits after a renewal that failed, and a candidate between two looks, up to a fifth
    /// more by chance. 1 s by default, from 10 ms to `renew_interval`. There is never more than one call in
    /// 0.8 of it.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub retry_period: Duration,
    /// How long one call to the store may take. 2.5 s by default, and at most a third of the time that a
    /// lease is valid: so that one that hangs does not cost the lease.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub operation_timeout: Duration,
    /// How long before the lease ends its holder stops to lead. A fifth of the lease by default, and
    /// 100 ms at least.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub safety_margin: Option<Duration>,
    /// Whether a leader that stops gives the lease back, so that the next one need not wait until it ends. It
    /// does by default, and a [`Lock`](crate::Lock) always.
    pub release_on_stop: bool,
    /// Whether the identity may be one that is the same after a restart. See [`Identity`].
    #[cfg_attr(feature = "serde", serde(skip))]
    pub allow_stable_identity: bool,
    /// How long a leader that leaves waits for its work and its requests to end, before it drops them.
    /// 10 s by default, and as long as you like: it holds the lease meanwhile, and nobody else leads. Only a runtime
    /// that stands still is not waited for.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub drain_timeout: Duration,
    /// How long it then waits for what it dropped to be gone, while it holds the lease. 1 s by default, and at most
    /// `lease_duration`: what is not gone by then may never be, as on a runtime that stands still.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub cancel_grace: Duration,
    /// What it does if something is still there.
    pub on_drain_timeout: OnDrainTimeout,
    /// For how long a leader that left by itself does not come back, a fifth more or less by chance. 30 s by
    /// default. It doubles each time, up to `cooldown_max`, and starts anew after a term that lasted as long
    /// as that. (Where its [work](crate::Elector::lead) returned, it comes back sooner.) Meanwhile it looks who
    /// leads, as one does that may not stand, and asks for nothing.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub cooldown: Duration,
    /// For how long at most, also where its work returns at once again and again. 10 min by default.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub cooldown_max: Duration,
    /// For how long the runtime of the work may stand still before the leader leaves, where the elector runs
    /// [elsewhere](crate::ElectorThread#the-interlock). Half the lease by default, and 100 ms at
    /// least; with [`Duration::MAX`] there is no interlock.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub probe_deadline: Option<Duration>,
}

/// What a leader that leaves does if its work does not end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum OnDrainTimeout {
    /// It lets the lease end by itself. Nobody leads until then, and the work has that long to end.
    #[default]
    HoldUntilExpiry,
    /// It gives the lease back. The next leader works beside the work that has not ended: only for what
    /// checks tokens.
    ReleaseAnyway,
}

/// What to do about it, where a lease was made shorter and nothing else was.
const SCALES: &str = "; `scaled_to` sets all that goes with a lease";
/// The largest payload.
const MAX_PAYLOAD: usize = 16 * 1024;
/// A shorter wait between two calls is a flood.
const MIN_RETRY: Duration = Duration::from_millis(10);
/// In less time a runtime that is busy may well not come to tick.
const MIN_PROBE_DEADLINE: Duration = Duration::from_millis(100);
/// The shortest lease. Less than that leaves no room for a call that hangs.
const MIN_LEASE: Duration = Duration::from_secs(1);
/// The longest. Further away, an instant may be beyond a clock's reach.
const MAX_LEASE: Duration = Duration::from_secs(24 * 60 * 60);

// === impl LeaseConfig ===

impl LeaseConfig {
    /// The lease unless set.
    pub const DEFAULT_LEASE_DURATION: Duration = Duration::from_secs(15);
    /// The time between renewals unless set.
    pub const DEFAULT_RENEW_INTERVAL: Duration = Duration::from_secs(5);
    /// The wait after a failure, and between a candidate's looks, unless set.
    pub const DEFAULT_RETRY_PERIOD: Duration = Duration::from_secs(1);
    /// The limit of one call unless set.
    pub const DEFAULT_OPERATION_TIMEOUT: Duration = Duration::from_millis(2_500);
    /// The share of the lease that the margin is unless set: covers two clocks that are slewed apart at 8.33
    /// % each.
    pub const DEFAULT_SAFETY_MARGIN_FRACTION: f64 = 0.20;
    /// The shortest margin: timers are late by some milliseconds, and so are tasks.
    pub const MIN_SAFETY_MARGIN: Duration = Duration::from_millis(100);

    /// The defaults, for the lease of that name.
    #[must_use]
    pub fn new(name: LeaseName) -> Self {
        Self {
            name,
            identity: Identity::generate(),
            payload: Bytes::new(),
            lease_duration: Self::DEFAULT_LEASE_DURATION,
            renew_interval: Self::DEFAULT_RENEW_INTERVAL,
            retry_period: Self::DEFAULT_RETRY_PERIOD,
            operation_timeout: Self::DEFAULT_OPERATION_TIMEOUT,
            safety_margin: None,
            release_on_stop: true,
            allow_stable_identity: false,
            drain_timeout: Duration::from_secs(10),
            cancel_grace: Duration::from_secs(1),
            on_drain_timeout: OnDrainTimeout::default(),
            cooldown: Duration::from_secs(30),
            cooldown_max: Duration::from_secs(600),
            probe_deadline: None,
        }
    }

    /// Sets who wants to lead.
    #[must_use]
    pub fn identity(mut self, identity: Identity) -> Self {
        self.identity = identity;
        self
    }

    /// Sets what a leader says of itself.
    #[must_use]
    pub fn payload(mut self, payload: impl Into<Bytes>) -> Self {
        self.payload = payload.into();
        self
    }

    /// Sets how long a lease is, and with it `renew_interval`, `retry_period` and `operation_timeout`: in the
    /// proportions of the defaults, a third, a fifteenth and a sixth. A margin that is not set follows by
    /// itself. How long work may take to end, and a cool-down, have nothing to do with it, but that `cancel_grace` may
    /// be too long for a lease that is short.
    ///
    /// ```
    /// use buttress_leadership::{LeaseConfig, LeaseName};
    /// use std::time::Duration;
    ///
    /// let config = LeaseConfig::new(LeaseName::new("scheduler")?).scaled_to(Duration::from_secs(3));
    /// assert_eq!(config.renew_interval, Duration::from_secs(1));
    /// config.check()?;
    /// # Ok::<(), buttress_core::InvalidSetting>(())
    /// ```
    #[must_use]
    pub fn scaled_to(mut self, lease: Duration) -> Self {
        self.lease_duration = lease;
        self.renew_interval = lease / 3;
        self.retry_period = lease / 15;
        self.operation_timeout = lease / 6;
        self
    }

    /// Sets how long a lease is, and nothing else: see [`scaled_to`](Self::scaled_to).
    #[must_use]
    pub const fn lease_duration(mut self, duration: Duration) -> Self {
        self.lease_duration = duration;
        self
    }

    /// Sets how often it is renewed.
    #[must_use]
    pub const fn renew_interval(mut self, interval: Duration) -> Self {
        self.renew_interval = interval;
        self
    }

    /// Sets how long to wait after a failure, and between a candidate's looks.
    #[must_use]
    pub const fn retry_period(mut self, period: Duration) -> Self {
        self.retry_period = period;
        self
    }

    /// Sets how long one call to the store may take.
    #[must_use]
    pub const fn operation_timeout(mut self, timeout: Duration) -> Self {
        self.operation_timeout = timeout;
        self
    }

    /// Sets how long before its lease ends a leader stops.
    #[must_use]
    pub fn safety_margin(mut self, margin: impl Into<Option<Duration>>) -> Self {
        self.safety_margin = margin.into();
        self
    }

    /// Sets whether a leader that stops gives the lease back.
    #[must_use]
    pub const fn release_on_stop(mut self, release: bool) -> Self {
        self.release_on_stop = release;
        self
    }

    /// Allows an identity that is the same after a restart.
    ///
    /// Then it is you who sees to it that never two processes have it: not for a moment while one is
    /// replaced.
    #[must_use]
    pub const fn allow_stable_identity(mut self) -> Self {
        self.allow_stable_identity = true;
        self
    }

    /// Sets how long work may take to end, and how long it may take to be gone when it was dropped.
    #[must_use]
    pub const fn drain(mut self, timeout: Duration, grace: Duration) -> Self {
        self.drain_timeout = timeout;
        self.cancel_grace = grace;
        self
    }

    /// Sets what becomes of the lease if it does not end.
    #[must_use]
    pub const fn on_drain_timeout(mut self, then: OnDrainTimeout) -> Self {
        self.on_drain_timeout = then;
        self
    }

    /// Sets for how long a leader that left does not come back, at first and at most.
    #[must_use]
    pub const fn cooldown(mut self, first: Duration, max: Duration) -> Self {
        self.cooldown = first;
        self.cooldown_max = max;
        self
    }

    /// Sets for how long the runtime of the work may stand still.
    #[must_use]
    pub fn probe_deadline(mut self, deadline: impl Into<Option<Duration>>) -> Self {
        self.probe_deadline = deadline.into();
        self
    }

    /// For how long the runtime of the work may stand still.
    pub(crate) fn stands_still_for(&self) -> Duration {
        self.probe_deadline.unwrap_or(self.lease_duration / 2)
    }

    /// How long before its lease ends a leader stops.
    #[must_use]
    pub fn margin(&self) -> Duration {
        let share = || self.lease_duration.mul_f64(Self::DEFAULT_SAFETY_MARGIN_FRACTION);
        self.safety_margin.unwrap_or_else(|| share().max(Self::MIN_SAFETY_MARGIN))
    }

    /// Whether anybody can lead by it, whatever the store.
    ///
    /// # Errors
    ///
    /// Names the first setting that cannot work.
    pub fn check(&self) -> Result<(), InvalidSetting> {
        // Name and identity are checked by their own types.
        require(
            self.allow_stable_identity || self.identity.is_unique(),
            "identity",
            "be one that no other run has, with 64 bits by chance in hexadecimal: use \
             `Identity::generate()`, or allow it with `allow_stable_identity()`",
        )?;
        let lease = self.lease_duration;
        require(
            (MIN_LEASE..=MAX_LEASE).contains(&lease),
            "lease_duration",
            format_args!("be from 1s to 24h (is {lease:?})"),
        )?;
        let margin = self.margin();
        require(
            Self::MIN_SAFETY_MARGIN <= margin && margin < lease / 2,
            "safety_margin",
            format_args!(
                "be at least 100ms, and less than half of `lease_duration` (is {margin:?} of {lease:?})"
            ),
        )?;
        let valid = lease - margin;
        let timeout = self.operation_timeout;
        require(
            !timeout.is_zero() && timeout <= valid / 3,
            "operation_timeout",
            format_args!(
                "be more than zero, and at most a third of `lease_duration - safety_margin` (is {timeout:?}, at \
                 most {:?}){SCALES}",
                valid / 3
            ),
        )?;
        require(
            MIN_RETRY <= self.retry_period && self.retry_period <= self.renew_interval,
            "retry_period",
            format_args!(
                "be at least 10ms, and at most `renew_interval` (is {:?}, at most {:?})",
                self.retry_period, self.renew_interval
            ),
        )?;
        let worst = self
            .renew_interval
            .saturating_add(timeout.saturating_mul(2))
            .saturating_add(self.retry_period.saturating_mul(6) / 5);
        require(
            worst <= valid,
            "renew_interval",
            format_args!(
                "leave room for two calls as slow as may be and the wait between them: `renew_interval + 2 * \
                 operation_timeout + 1.2 * retry_period` at most `lease_duration - safety_margin` ({worst:?} > \
                 {valid:?}){SCALES}"
            ),
        )?;
        require(
            MIN_PROBE_DEADLINE <= self.stands_still_for(),
            "probe_deadline",
            "be at least 100ms, or a runtime that is merely busy is taken for one that stands still",
        )?;
        require(
            self.cancel_grace <= lease,
            "cancel_grace",
            format_args!(
                "be at most `lease_duration`, or a leader whose runtime stands still holds on for as long (is {:?}, \
                 at most {lease:?})",
                self.cancel_grace
            ),
        )?;
        check_payload(&self.payload)?;
        let (cooldown, max) = (self.cooldown, self.cooldown_max);
        let must = format_args!("be at least `cooldown` ({max:?} < {cooldown:?})");
        require(cooldown <= max, "cooldown_max", must)
    }

    /// Whether anybody can lead by it, with a store that can do so much.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check), and names the `lease_duration` if the store does not grant it.
    pub fn check_with(&self, store: &StoreCapabilities) -> Result<(), InvalidSetting> {
        self.check()?;
        let lease = self.lease_duration;
        if lease < store.min_ttl {
            let must = format!("must be at least {:?}, the least of this store", store.min_ttl);
            return Err(InvalidSetting::new("lease_duration", must));
        }
        let step = store.ttl_granularity.as_nanos();
        if step > 0 && !lease.as_nanos().is_multiple_of(step) {
            let must = format!("must be a multiple of {:?} with this store", store.ttl_granularity);
            return Err(InvalidSetting::new("lease_duration", must));
        }
        Ok(())
    }

    /// Whether requests that ask for so much of the lease could ever be let in.
    ///
    /// # Errors
    ///
    /// Names `min_remaining` if the lease is never valid for so long just before it is renewed.
    pub fn check_min_remaining(&self, min_remaining: Duration) -> Result<(), InvalidSetting> {
        let least =
            (self.lease_duration.saturating_sub(self.margin())).saturating_sub(self.renew_interval);
        require(
            min_remaining < least,
            "min_remaining",
            format_args!(
                "be less than `lease_duration - safety_margin - renew_interval`, or nobody is let in \
                 just before a renewal ({min_remaining:?} >= {least:?})"
            ),
        )
    }
}

/// Whether a leader may say that of itself.
pub(crate) fn check_payload(payload: &Bytes) -> Result<(), InvalidSetting> {
    require(payload.len() <= MAX_PAYLOAD, "payload", "be at most 16 KiB")
}

fn require(
    holds: bool,
    setting: &'static str,
    must: impl fmt::Display,
) -> Result<(), InvalidSetting> {
    if holds { Ok(()) } else { Err(InvalidSetting::new(setting, format!("must {must}"))) }
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Expiry, LeaseName};

    const fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    const fn millis(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn config() -> LeaseConfig {
        LeaseConfig::new(LeaseName::new("a").unwrap())
    }

    fn refused(config: &LeaseConfig) -> String {
        config.check().map_or_else(|error| error.setting().to_owned(), |()| "nothing".to_owned())
    }

    #[test]
    fn the_defaults_work() {
        assert_eq!(refused(&config()), "nothing");
        assert_eq!(config().margin(), secs(3));
        let few = config().lease_duration(secs(1)).renew_interval(millis(200));
        let few = few.retry_period(millis(100)).operation_timeout(millis(200));
        assert_eq!((refused(&few).as_str(), few.margin()), ("nothing", millis(200)));
    }

    // kubernetes/kubernetes#22775
    #[test]
    fn an_identity_that_outlives_its_process_is_refused_unless_it_is_allowed() {
        let host = config().identity(Identity::new("node-7").unwrap());
        assert_eq!(refused(&host), "identity");
        assert_eq!(refused(&host.allow_stable_identity()), "nothing");
    }

    #[test]
    fn a_lease_that_the_store_does_not_grant_is_refused() {
        for lease in [Duration::ZERO, millis(999), secs(86_401), Duration::MAX] {
            assert_eq!(refused(&config().lease_duration(lease)), "lease_duration");
        }
        let store = StoreCapabilities::new(Expiry::Server).ttl_granularity(secs(1));
        let with = |config: LeaseConfig, store| {
            config.check_with(&store).map_err(|error| error.setting().to_owned())
        };
        assert_eq!(with(config(), store), Ok(()));
        assert_eq!(with(config(), store.min_ttl(secs(15))), Ok(()));
        assert_eq!(with(config(), store.min_ttl(secs(16))), Err("lease_duration".into()));
        let odd = config().lease_duration(millis(15_500));
        assert_eq!(with(odd.clone(), store), Err("lease_duration".into()));
        assert_eq!(with(odd, store.ttl_granularity(Duration::ZERO)), Ok(()));
    }

    #[test]
    fn a_margin_that_is_none_or_half_of_the_lease_is_refused() {
        for (margin, works) in [
            (Duration::ZERO, false),
            (millis(99), false),
            (millis(100), true),
            (millis(3_800), true),
            (millis(7_500), false),
            (Duration::MAX, false),
        ] {
            let refused = refused(&config().safety_margin(margin));
            assert_eq!(refused, if works { "nothing" } else { "safety_margin" }, "{margin:?}");
        }
    }

    // noobaa/noobaa-core#9765, ovn-kubernetes/ovn-kubernetes#3959, riverqueue/river#217
    #[test]
    fn a_lease_that_one_slow_call_could_cost_is_refused() {
        assert_eq!(refused(&config().renew_interval(millis(5_800))), "nothing");
        for interval in [millis(5_801), secs(10), secs(15), Duration::MAX] {
            assert_eq!(refused(&config().renew_interval(interval)), "renew_interval");
        }
        // Deadline 14, request 5, sleep 1, and a lease of 20.
        let no_margin = config().lease_duration(secs(20)).renew_interval(secs(14));
        assert_eq!(refused(&no_margin.operation_timeout(secs(5))), "renew_interval");
    }

    #[test]
    fn a_shorter_lease_takes_all_that_goes_with_it_along() {
        let scaled = config().scaled_to(LeaseConfig::DEFAULT_LEASE_DURATION);
        assert_eq!(scaled, config().identity(scaled.identity.clone()));
        for lease in [MIN_LEASE, millis(1_001), secs(3), secs(10), secs(60), MAX_LEASE] {
            assert_eq!(refused(&config().scaled_to(lease)), "nothing", "{lease:?}");
        }
        for lease in [Duration::ZERO, Duration::MAX] {
            assert_eq!(refused(&config().scaled_to(lease)), "lease_duration");
        }
    }

    #[test]
    fn what_is_refused_says_what_it_is_and_what_it_may_be() {
        let why = |config: LeaseConfig| config.check().unwrap_err().to_string();
        let ten = config().lease_duration(secs(10));
        let said = why(ten.clone());
        assert!(said.contains("(11.2s > 8s)") && said.contains("`scaled_to`"), "{said}");
        assert!(
            why(ten.clone().lease_duration(secs(5))).contains("(is 2.5s, at most 1.333333333s)")
        );
        assert!(why(ten.clone().retry_period(secs(6))).contains("(is 6s, at most 5s)"));
        assert!(why(ten.safety_margin(secs(5))).contains("(is 5s of 10s)"));
        assert!(why(config().cooldown(secs(9), secs(8))).contains("(8s < 9s)"));
        let said = config().check_min_remaining(secs(7)).unwrap_err().to_string();
        assert!(said.contains("(7s >= 7s)"), "{said}");
    }

    #[test]
    fn a_lease_that_is_held_for_what_does_not_end_is_refused() {
        for (grace, works) in [
            (Duration::ZERO, true),
            (secs(15), true),
            (millis(15_001), false),
            (secs(3_600), false),
            (Duration::MAX, false),
        ] {
            let refused = refused(&config().drain(Duration::MAX, grace));
            assert_eq!(refused, if works { "nothing" } else { "cancel_grace" }, "{grace:?}");
        }
        let hour = config().drain(secs(10), secs(3_600)).check().unwrap_err().to_string();
        assert!(
            hour.contains("`lease_duration`") && hour.contains("(is 3600s, at most 15s)"),
            "{hour}"
        );
        let three = config().drain(secs(10), secs(4)).scaled_to(secs(3));
        assert_eq!(refused(&three), "cancel_grace");
    }

    // kubernetes/kubernetes#65666
    #[test]
    fn a_wait_that_is_none_is_refused() {
        for retry in [Duration::ZERO, millis(9), millis(5_001), Duration::MAX] {
            assert_eq!(refused(&config().retry_period(retry)), "retry_period", "{retry:?}");
        }
        assert_eq!(refused(&config().retry_period(millis(10))), "nothing");
        for timeout in [Duration::ZERO, millis(4_001), Duration::MAX] {
            let refused = refused(&config().operation_timeout(timeout));
            assert_eq!(refused, "operation_timeout", "{timeout:?}");
        }
    }

    #[test]
    fn a_payload_that_is_a_document_is_refused() {
        assert_eq!(refused(&config().payload(vec![0; 16 * 1024])), "nothing");
        assert_eq!(refused(&config().payload(vec![0; 16 * 1024 + 1])), "payload");
    }

    #[test]
    fn a_gate_that_could_not_open_just_before_a_renewal_is_refused() {
        assert!(config().check_min_remaining(millis(6_999)).is_ok());
        for min in [secs(7), Duration::MAX] {
            assert_eq!(config().check_min_remaining(min).unwrap_err().setting(), "min_remaining");
        }
    }

    proptest! {
        // noobaa/noobaa-core#9765
        #[test]
        fn what_passes_the_check_has_room_for_two_calls_as_slow_as_may_be(
            lease in 1_000_u64..60_000,
            margin in proptest::option::of(0_u64..40_000),
            [renew, retry, timeout] in [0_u64..40_000, 0..5_000, 0..10_000],
        ) {
            let config = config()
                .lease_duration(millis(lease))
                .safety_margin(margin.map(millis))
                .renew_interval(millis(renew))
                .retry_period(millis(retry))
                .operation_timeout(millis(timeout));
            let margin = margin.map_or_else(|| (lease as f64 * 0.2).max(100.0), |m| m as f64);
            let (lease, renew, retry, timeout) =
                (lease as f64, renew as f64, retry as f64, timeout as f64);
            let works = margin >= 100.0
                && margin < lease / 2.0
                && renew + 2.0 * timeout + 1.2 * retry <= lease - margin
                && timeout > 0.0
                && timeout <= (lease - margin) / 3.0
                && (10.0..=renew).contains(&retry);
            // Fractions of a nanosecond are nobody's business.
            let close = [renew + 2.0 * timeout + 1.2 * retry, 3.0 * timeout]
                .iter()
                .any(|used| (used - (lease - margin)).abs() < 1e-3);
            prop_assert!(close || config.check().is_ok() == works, "{:?}", config.check());
        }
    }
}
