use std::{borrow::Cow, fmt, pin::Pin, sync::Arc, time::Duration};

use buttress_core::{BoxError, Health, HealthSignal, InvalidSetting};

use crate::LeaseConfig;

/// When a leader leaves by itself, and when a candidate may stand.
///
/// Whoever holds the lease is the leader, whether or not it can do the job: with its database cut off it
/// goes on renewing, and everybody waits for it. To stop renewing is no way out either, for that takes a
/// lease's length. So a leader looks at itself, and *resigns* as soon as what it needs has failed for long
/// enough; and whoever has the same trouble does not stand in the first place.
///
/// There are three kinds of signals:
///
/// - [`readiness`](Self::readiness): a function that tries what the work needs, again and again;
/// - [`critical`](Self::critical): without it there is no work, as a circuit breaker around the database;
/// - [`advisory`](Self::advisory): it is shown, and decides nothing.
///
/// A breaker tells soonest that a dependency has failed, since the work's own calls are its evidence. Just so
/// it says nothing where nobody calls: about a candidate. Let the readiness function call *through the same
/// breaker*: that gives it evidence, and closes it when all is well again. Else it stays unknown, and nobody
/// stands but as the last resort. A policy with critical signals and without a readiness function is refused.
///
/// # Examples
///
/// ```
/// use buttress_core::{Health, Reading};
/// use buttress_leadership::{Elector, LeaseConfig, LeaseName, MemoryStore, ResignPolicy};
/// use std::time::Duration;
///
/// # async fn ping() -> Result<(), std::io::Error> { Ok(()) }
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // A `Breaker` of `buttress-breaker` is such a signal.
/// let breaker = |_now| Reading { health: Health::Healthy, since: None };
/// let policy = ResignPolicy::new()
///     .readiness("orders-db", || async { ping().await })
///     .critical("orders-db breaker", breaker)
///     .resign_after(Duration::from_secs(3));
/// let config = LeaseConfig::new(LeaseName::new("orders")?);
/// let elector = Elector::new(MemoryStore::new(), config)?.resign_when(policy)?;
/// let leadership = elector.leadership();
/// let running = elector.spawn();
/// // It may stand once all has been well for a while.
/// leadership.watch().wait_for(|standing| standing.term.is_some()).await?;
/// assert!(!leadership.is_degraded());
/// running.stop().await;
/// # Ok(())
/// # }
/// ```
///
/// # When a leader leaves
///
/// It does as soon as all of this holds:
///
/// - A critical signal has been unhealthy for [`resign_after`](ResignSettings::resign_after). That time
///   begins when the signal says that it began, and ends when it is healthy. While it is degraded, as a
///   breaker that is half-open, it is not well yet, and the time runs on. While it is unknown, the time
///   stands still.
/// - Or it was unhealthy for half of the last minute, however often it was well in between: then it counts
///   as unhealthy as long as that is so.
/// - The term is as old as [`min_term`](ResignSettings::min_term).
/// - It has left less than [`budget`](ResignSettings::budget) times lately.
/// - It would mend anything. Where the last two leaders, being two, left for the same signal within
///   [`correlation_window`](ResignSettings::correlation_window), the trouble is not theirs: whoever comes
///   next has it too. So with any number of candidates a common failure costs two changes of the leader,
///   and no more. A signal is known by its name: let it be the same everywhere. (A leader is known by its
///   identity: a process that is started anew is another.)
///
/// Then it closes the gate, holds the lease while requests and work [end](LeaseConfig::drain_timeout),
/// gives it back, and stays away for a [cool-down](LeaseConfig::cooldown). In this order: a lease that is
/// given back while its work goes on has two leaders. What it left for, and when, is kept with the lease, in
/// its [memo](crate::LeaseRecord::memo): the last eight terms, for those who come after it.
///
/// # When a candidate stands
///
/// Once all critical signals have been healthy for [`eligible_after`](ResignSettings::eligible_after);
/// unknown is not healthy. Also at the start: a candidate leads that much later.
///
/// Or as the **last resort**: if nobody has led for
/// [`last_resort_after`](ResignSettings::last_resort_after), it stands whatever its signals say. A leader
/// that does part of the job is better than none. In a cool-down that time counts from 1.2 first
/// [cool-downs](LeaseConfig::cooldown) after it left: others come first. So by default it is 66 s, or less
/// where the cool-down is over sooner.
///
/// # A degraded term
///
/// is one that is led although its leader should not: as a last resort, since leaving would mend nothing,
/// or since it has left too often. What was wrong at its beginning, or is wrong with everybody, does not
/// end it. [`Leadership::is_degraded`](crate::Leadership::is_degraded) tells, and
/// [`LeadershipLayer::on_degraded`](crate::LeadershipLayer::on_degraded) says what becomes of requests. It
/// is degraded no longer once all critical signals have been healthy for `eligible_after`.
#[derive(Clone, Default)]
#[must_use = "a policy does nothing without an elector"]
pub struct ResignPolicy {
    pub(crate) settings: ResignSettings,
    pub(crate) signals: Vec<Signal>,
}

/// The numbers of a [`ResignPolicy`].
///
/// # Defaults
///
/// | setting | default | why |
/// |---|---|---|
/// | `resign_after` | what a hand-over takes, 2 s at least | see there |
/// | `min_term` | 30 s | as long as a cool-down: two sick candidates change places twice a minute at most |
/// | `budget`, `budget_window` | 3 in 10 min | who is ill again after three cool-downs gains nothing by a fourth |
/// | `eligible_after` | 5 s | two readiness checks in a row, and more than `resign_after`: who is hardly well does not come back |
/// | `last_resort_after` | two leases | whoever is well has had its turn by then |
/// | `correlation_window` | 10 min | an outage that is over is no reason any more |
/// | `check_every` | 250 ms | an eighth of the least `resign_after` |
/// | `readiness_every`, `readiness_limit` | 2 s, 1 s | every candidate asks: it is a load for the dependency |
///
/// With the feature `serde` they come from a file, durations as `"250ms"`. What it leaves out is as in
/// [`Default`]; a field that does not exist is an error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
#[non_exhaustive]
pub struct ResignSettings {
    /// For how long a critical signal is unhealthy before the leader leaves. Zero is at once: for signals
    /// that have thought about it already, as breakers.
    ///
    /// Unless set, it is what a hand-over costs, as measured over the last terms: the median of the times
    /// from a release to the next leader's start; 2 s at least, and while nothing is measured. (Where that
    /// took longer than a lease, nobody was there to hand over to, and it does not count.) That is how long
    /// to rent skis before buying them: whoever waits for as long as the change costs, has at most twice
    /// the cost of knowing in advance how long the trouble lasts (Karlin, Manasse, Rudolph and Sleator,
    /// *Competitive snoopy caching*, 1988). 10 s is the careful choice where a start is dear.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub resign_after: Option<Duration>,
    /// How old a term is at least before its leader leaves.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub min_term: Duration,
    /// How often this process leaves within `budget_window`, for its signals.
    pub budget: u32,
    /// See [`budget`](Self::budget).
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub budget_window: Duration,
    /// For how long all critical signals are healthy before a candidate stands.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub eligible_after: Duration,
    /// For how long nobody leads before a candidate stands that should not. Two leases unless set, and one
    /// at least.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub last_resort_after: Option<Duration>,
    /// How long ago the last two leaders have left at most, if the next one stays for that.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub correlation_window: Duration,
    /// How often signals are looked at, from 10 ms to 1 min.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub check_every: Duration,
    /// How often readiness functions are called.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub readiness_every: Duration,
    /// How long they may take. At most `readiness_every`.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub readiness_limit: Duration,
}

/// What a signal decides. See [`ResignPolicy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SignalRole {
    /// Whether a leader stays and a candidate stands: this process asks by itself.
    Readiness,
    /// The same, from what others have learned.
    Critical,
    /// Nothing. It is shown.
    Advisory,
}

/// A signal, as it was last looked at. See [`Status::signals`](crate::Status::signals).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct SignalStatus {
    /// Its name.
    pub name: Cow<'static, str>,
    /// What it decides.
    pub role: SignalRole,
    /// How well it was.
    pub health: Health,
}

#[derive(Clone)]
pub(crate) struct Signal {
    pub(crate) name: Cow<'static, str>,
    pub(crate) role: SignalRole,
    pub(crate) source: Source,
}

#[derive(Clone)]
pub(crate) enum Source {
    Sampled(Arc<dyn HealthSignal + Send + Sync>),
    Asked(Ask),
}

/// Makes a call of a readiness function.
pub(crate) type Ask = Arc<dyn Fn() -> Asked + Send + Sync>;
type Asked = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;

/// How many leaders have to leave for the same signal so that it is not theirs.
pub(crate) const CORRELATED_HOLDERS: usize = 2;
/// The least hold, unless somebody says otherwise. Of failures that last half a second or longer, most of
/// them little longer (Pareto-distributed, 1.1), 78 % are over by then.
pub(crate) const LEAST_HOLD: Duration = Duration::from_secs(2);
/// More often is a busy loop; less often is not at all.
const CHECKS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(60));
/// Names are kept with the lease.
pub(super) const MAX_NAME: usize = 128;

// === impl ResignPolicy ===

impl ResignPolicy {
    /// A policy by which a leader never leaves and everybody may stand: it has no signals yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets a leader stay, and a candidate stand, as long as `ask` is answered in time.
    ///
    /// It should try what the work needs, in the way that the work does: through the same breaker and pool,
    /// but with a call that is cheap. It is called every
    /// [`readiness_every`](ResignSettings::readiness_every), by leaders and candidates alike, in a task on
    /// the work's [runtime](crate::Elector::work_on): where that does not run, nothing answers in time. An
    /// error, a panic, and no answer within [`readiness_limit`](ResignSettings::readiness_limit) are
    /// unhealthy. A call that takes too long is dropped; it is not called again before it is gone, and when
    /// the elector ends it is dropped, too.
    pub fn readiness<F, Fut, E>(mut self, name: impl Into<Cow<'static, str>>, ask: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        let ask: Ask = Arc::new(move || {
            let asked = ask();
            Box::pin(async move { asked.await.map_err(Into::into) })
        });
        let (name, role, source) = (name.into(), SignalRole::Readiness, Source::Asked(ask));
        self.signals.push(Signal { name, role, source });
        self
    }

    /// Lets a leader leave that cannot do without what has failed.
    ///
    /// It is looked at every [`check_every`](ResignSettings::check_every), by the elector, and must not
    /// block. One that panics is unknown.
    pub fn critical(
        self,
        name: impl Into<Cow<'static, str>>,
        signal: impl HealthSignal + Send + Sync + 'static,
    ) -> Self {
        self.sampled(name.into(), SignalRole::Critical, Arc::new(signal))
    }

    /// Shows how well that is, and decides nothing by it.
    pub fn advisory(
        self,
        name: impl Into<Cow<'static, str>>,
        signal: impl HealthSignal + Send + Sync + 'static,
    ) -> Self {
        self.sampled(name.into(), SignalRole::Advisory, Arc::new(signal))
    }

    fn sampled(
        mut self,
        name: Cow<'static, str>,
        role: SignalRole,
        signal: Arc<dyn HealthSignal + Send + Sync>,
    ) -> Self {
        self.signals.push(Signal { name, role, source: Source::Sampled(signal) });
        self
    }

    /// Sets all the numbers.
    pub fn settings(mut self, settings: ResignSettings) -> Self {
        self.settings = settings;
        self
    }

    /// Sets for how long a critical signal is unhealthy before the leader leaves.
    pub fn resign_after(mut self, time: Duration) -> Self {
        self.settings.resign_after = Some(time);
        self
    }

    /// Sets how old a term is at least before its leader leaves.
    pub fn min_term(mut self, time: Duration) -> Self {
        self.settings.min_term = time;
        self
    }

    /// Sets how often this process leaves within such a time.
    pub fn budget(mut self, times: u32, window: Duration) -> Self {
        (self.settings.budget, self.settings.budget_window) = (times, window);
        self
    }

    /// Sets for how long all critical signals are healthy before a candidate stands.
    pub fn eligible_after(mut self, time: Duration) -> Self {
        self.settings.eligible_after = time;
        self
    }

    /// Sets for how long nobody leads before a candidate stands that should not.
    pub fn last_resort_after(mut self, time: Duration) -> Self {
        self.settings.last_resort_after = Some(time);
        self
    }

    /// Sets how long ago the last two leaders have left at most, if the next one stays for that.
    pub fn correlation_window(mut self, time: Duration) -> Self {
        self.settings.correlation_window = time;
        self
    }

    /// Sets how often signals are looked at.
    pub fn check_every(mut self, time: Duration) -> Self {
        self.settings.check_every = time;
        self
    }

    /// Sets how often readiness functions are called, and how long they may take.
    pub fn readiness_every(mut self, every: Duration, limit: Duration) -> Self {
        (self.settings.readiness_every, self.settings.readiness_limit) = (every, limit);
        self
    }

    /// Whether an elector with those settings can go by it.
    ///
    /// # Errors
    ///
    /// Names the first setting, or the first signal, that cannot work.
    pub fn check(&self, config: &LeaseConfig) -> Result<(), InvalidSetting> {
        self.settings.check(config)?;
        let mut names = std::collections::HashSet::new();
        for Signal { name, role, .. } in &self.signals {
            let is_name =
                !name.is_empty() && name.len() <= MAX_NAME && !name.chars().any(char::is_control);
            if !is_name {
                let must = "have a name of 1 to 128 bytes without control characters";
                return refuse(format!("{role} signal {name:?}"), must);
            }
            if !names.insert(&**name) {
                return refuse(name.to_string(), "be the name of one signal: two are called so");
            }
        }
        let asks = self.signals.iter().any(|signal| signal.role == SignalRole::Readiness);
        let critical = self.signals.iter().find(|signal| signal.role == SignalRole::Critical);
        match critical {
            Some(critical) if !asks => refuse(
                critical.name.to_string(),
                "have a `readiness` function beside it: nobody calls through a candidate's breaker, and so it \
                 says nothing",
            ),
            _ => Ok(()),
        }
    }
}

// By hand: signals are often closures, which are not `Debug`.
impl fmt::Debug for ResignPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let signals = self.signals.iter().map(|signal| (&signal.name, signal.role));
        f.debug_struct("ResignPolicy")
            .field("settings", &self.settings)
            .field("signals", &signals.collect::<Vec<_>>())
            .finish()
    }
}

// === impl ResignSettings ===

impl ResignSettings {
    fn check(&self, config: &LeaseConfig) -> Result<(), InvalidSetting> {
        let is_some = |time: Duration| !time.is_zero();
        if self.budget == 0 || !is_some(self.budget_window) {
            return refuse(
                "budget",
                "be at least once in more than zero: what never decides is `advisory`",
            );
        }
        if self.last_resort(config) < config.lease_duration {
            return refuse(
                "last_resort_after",
                "be at least `lease_duration`: whoever is well comes first",
            );
        }
        if !is_some(self.correlation_window) {
            return refuse("correlation_window", "be more than zero");
        }
        if !(CHECKS.0..=CHECKS.1).contains(&self.check_every) {
            return refuse("check_every", "be from 10ms to 1min");
        }
        if !is_some(self.readiness_limit) || self.readiness_every < self.readiness_limit {
            return refuse("readiness_limit", "be more than zero, and at most `readiness_every`");
        }
        Ok(())
    }

    pub(crate) fn last_resort(&self, config: &LeaseConfig) -> Duration {
        self.last_resort_after.unwrap_or(config.lease_duration * 2)
    }
}

impl Default for ResignSettings {
    fn default() -> Self {
        Self {
            resign_after: None,
            min_term: Duration::from_secs(30),
            budget: 3,
            budget_window: Duration::from_secs(600),
            eligible_after: Duration::from_secs(5),
            last_resort_after: None,
            correlation_window: Duration::from_secs(600),
            check_every: Duration::from_millis(250),
            readiness_every: Duration::from_secs(2),
            readiness_limit: Duration::from_secs(1),
        }
    }
}

// === impl SignalRole ===

impl fmt::Display for SignalRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Readiness => "readiness",
            Self::Critical => "critical",
            Self::Advisory => "advisory",
        })
    }
}

fn refuse(setting: impl Into<Cow<'static, str>>, must: &str) -> Result<(), InvalidSetting> {
    Err(InvalidSetting::new(setting, format!("must {must}")))
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use buttress_core::Reading;
    use tokio::time::Instant;

    use super::*;
    use crate::LeaseName;

    const fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn unknown(_: Instant) -> Reading {
        Reading { health: Health::Unknown, since: None }
    }

    async fn ready() -> Result<(), BoxError> {
        Ok(())
    }

    fn refused(policy: &ResignPolicy) -> String {
        let config = LeaseConfig::new(LeaseName::new("a").unwrap());
        policy.check(&config).map_or_else(|error| error.setting().to_owned(), |()| "nothing".into())
    }

    #[test]
    fn a_breaker_that_nobody_calls_through_is_refused_by_its_name() {
        let policy = ResignPolicy::new().advisory("cache", unknown);
        assert_eq!(refused(&policy), "nothing");
        let policy = policy.critical("database", unknown);
        assert_eq!(refused(&policy), "database");
        assert_eq!(refused(&policy.readiness("ping", ready)), "nothing");
    }

    #[test]
    fn signals_that_cannot_be_told_apart_are_refused() {
        let policy = ResignPolicy::new().readiness("database", ready);
        let twice = policy.clone().advisory("database", unknown);
        assert_eq!(refused(&twice), "database");
        let config = LeaseConfig::new(LeaseName::new("a").unwrap());
        let said = twice.check(&config).unwrap_err().to_string();
        assert!(said.contains("two are called so"), "{said}");
        for name in [String::new(), "a\tb".into(), "a".repeat(129)] {
            let error = refused(&policy.clone().advisory(name.clone(), unknown));
            assert_eq!(error, format!("advisory signal {name:?}"));
        }
    }

    #[test]
    fn numbers_that_cannot_work_are_refused_by_their_names() {
        let policy = ResignPolicy::new;
        let most = Duration::MAX;
        assert_eq!(refused(&policy()), "nothing");
        assert_eq!(
            refused(&policy().resign_after(Duration::ZERO).min_term(Duration::ZERO)),
            "nothing"
        );
        assert_eq!(
            refused(&policy().resign_after(most).min_term(most).eligible_after(most)),
            "nothing"
        );
        assert_eq!(refused(&policy().budget(0, secs(1))), "budget");
        assert_eq!(refused(&policy().budget(1, secs(0))), "budget");
        assert_eq!(refused(&policy().last_resort_after(secs(14))), "last_resort_after");
        assert_eq!(refused(&policy().last_resort_after(secs(15))), "nothing");
        assert_eq!(refused(&policy().correlation_window(secs(0))), "correlation_window");
        for (every, works) in [(9, false), (10, true), (60_000, true), (60_001, false)] {
            let policy = policy().check_every(Duration::from_millis(every));
            assert_eq!(refused(&policy), if works { "nothing" } else { "check_every" });
        }
        assert_eq!(refused(&policy().readiness_every(secs(2), secs(3))), "readiness_limit");
        assert_eq!(refused(&policy().readiness_every(secs(0), secs(0))), "readiness_limit");
        assert_eq!(refused(&policy().readiness_every(most, most)), "nothing");
    }
}
