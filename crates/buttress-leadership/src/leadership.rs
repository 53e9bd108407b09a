use std::{
    borrow::Cow,
    error::Error,
    fmt,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use buttress_core::{InvalidSetting, Reason, Rejected, edge};
use bytes::Bytes;
use tokio::{
    sync::{Notify, watch},
    task::AbortHandle,
};

use crate::{
    BootTime, DegradedBy, FencingToken, Identity, LeaderInfo, LeadershipMetrics, LeaseClock,
    LeaseConfig, LeaseName, NAME, ResignReason, SignalStatus, Standing, State, Status, TermPermit,
    config::check_payload,
    gate::{Gate, Shut, Term},
    health::Turns,
    metrics::{Counters, age, count, left},
    planted::{Plant, is_planted},
    probe::Probe,
    sync::{Arc, Swap},
};

/// Whether this process leads, asked at any time and from anywhere. Clones are the same election.
///
/// Leadership is nothing to be told of and then to remember. A process is stopped for a minute, goes on, and
/// is told of the loss a moment later; what it does in that moment it does beside its successor. So
/// everything here looks at the
/// [clock](LeaseClock) as it is asked: no lock, no allocation, one reading.
///
/// It comes from an [`Elector`](crate::Elector), which has to run. Once that has ended, in whatever way,
/// nobody leads here.
///
/// # Examples
///
/// ```
/// use buttress_leadership::{Elector, LeaseConfig, LeaseName, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let elector = Elector::new(MemoryStore::new(), LeaseConfig::new(LeaseName::new("a")?))?;
/// let leadership = elector.leadership();
/// assert!(!leadership.is_leader());
/// let running = elector.spawn();
/// leadership.watch().wait_for(|standing| standing.term.is_some()).await?;
/// let fence = leadership.check()?;
/// println!("write, and send {fence} along");
/// running.stop().await;
/// assert!(leadership.check().is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Leadership {
    pub(crate) shared: std::sync::Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) gate: Gate,
    pub(crate) clock: LeaseClock,
    pub(crate) name: LeaseName,
    pub(crate) identity: Identity,
    pub(crate) counters: Counters,
    pub(crate) standing: watch::Sender<Standing>,
    /// What the store said last.
    pub(crate) seen: Swap<Seen>,
    /// Why the last call got no answer.
    pub(crate) error: Swap<String>,
    /// What its signals said last.
    pub(crate) signals: Swap<Vec<SignalStatus>>,
    /// For requests, which have no time for locks: whether [`Standing::degraded`] is something.
    is_degraded: AtomicBool,
    pub(crate) clocks: Clocks,
    /// What it was set up with.
    settings: LeaseConfig,
    pub(crate) orders: Mutex<Orders>,
    halt: Mutex<Halt>,
    /// Listens to the runtime of the work, if it is turned on.
    pub(crate) probe: std::sync::Arc<Probe>,
    pub(crate) turns: Turns,
    /// Told when there are orders, or the clocks disagree.
    pub(crate) wake: Notify,
}

#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) leader: Option<LeaderInfo>,
    pub(crate) at: BootTime,
}

/// What an elector is asked to do.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    pub(crate) resign: Option<ResignReason>,
    pub(crate) payload: Option<Bytes>,
}

/// Whether whoever holds the elector has let go of it: then nobody leads here, at once.
#[derive(Debug, Default)]
struct Halt {
    is_halted: bool,
    work: Option<AbortHandle>,
}

/// Compares the wall clock with the lease's: one that jumps forward has been set right after a time that no
/// other has counted.
#[derive(Debug)]
pub(crate) struct Clocks {
    /// How far the wall clock was ahead when it was looked at last, in nanoseconds.
    drift: AtomicI64,
    /// A jump farther than this is none of the clock's own.
    limit: i64,
    /// When requests look at it next.
    next: AtomicU64,
    jumped: AtomicBool,
}

/// Why a request is not let in.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NotLeading {
    /// This process does not lead.
    NotLeader {
        /// Who does, as was last seen.
        leader: Option<LeaderInfo>,
    },
    /// It is about to leave.
    Resigning,
    /// It leads, but not for as long as was asked.
    TooShort {
        /// For how long it does.
        remaining: Duration,
    },
    /// The clocks disagree about how much time has passed.
    ClockAnomaly,
}

/// Requests compare the clocks so often at most.
const LOOK: Duration = Duration::from_millis(100);

// === impl Leadership ===

impl Leadership {
    pub(crate) fn new(config: &LeaseConfig, clock: LeaseClock) -> Self {
        let shared = Shared {
            gate: Gate::new(),
            clocks: Clocks::new(&clock, config.margin() / 2),
            settings: config.clone(),
            clock,
            name: config.name.clone(),
            identity: config.identity.clone(),
            counters: Counters::default(),
            standing: watch::Sender::new(Standing::default()),
            seen: Swap::empty(),
            error: Swap::empty(),
            signals: Swap::empty(),
            is_degraded: AtomicBool::new(false),
            orders: Mutex::default(),
            halt: Mutex::default(),
            probe: std::sync::Arc::new(Probe::new(config.stands_still_for())),
            turns: Turns::default(),
            wake: Notify::new(),
        };
        Self { shared: std::sync::Arc::new(shared) }
    }

    /// What is led.
    #[must_use]
    pub fn name(&self) -> &LeaseName {
        &self.shared.name
    }

    /// Who this process is.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    /// The clock that it goes by.
    #[must_use]
    pub fn clock(&self) -> &LeaseClock {
        &self.shared.clock
    }

    /// Whether this process leads, at this instant. Do not remember it.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.look(Duration::ZERO).is_ok()
    }

    /// The token of this process's term, if it leads at this instant: to be sent along with what is written.
    #[must_use]
    pub fn fence(&self) -> Option<FencingToken> {
        self.look(Duration::ZERO).ok()
    }

    /// Whether this process leads although it should not, at this instant: nobody else does, or all are as
    /// ill. See [`ResignPolicy`](crate::ResignPolicy#a-degraded-term).
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.shared.is_degraded.load(Relaxed) && self.is_leader()
    }

    /// Whether this process leads, and by which token.
    ///
    /// # Errors
    ///
    /// [`NotLeading`] says why it does not.
    pub fn check(&self) -> Result<FencingToken, NotLeading> {
        self.check_for(Duration::ZERO)
    }

    /// The same, for longer than that.
    pub(crate) fn check_for(&self, min: Duration) -> Result<FencingToken, NotLeading> {
        self.look(min).map_err(|shut| self.why(shut))
    }

    /// Lets somebody in if this process leads, and will for longer than `min_remaining`.
    ///
    /// Ask for as long as the work takes: what begins just before a lease ends, ends after it. The lease is
    /// not given back until the permit is, unless it ends by itself.
    ///
    /// # Errors
    ///
    /// [`NotLeading`] says why not.
    pub fn admit(&self, min_remaining: Duration) -> Result<TermPermit, NotLeading> {
        self.counted(self.enter(min_remaining))
    }

    #[inline]
    pub(crate) fn counted(
        &self,
        entered: Result<TermPermit, Shut>,
    ) -> Result<TermPermit, NotLeading> {
        let counters = &self.shared.counters;
        match entered {
            Ok(permit) => {
                count(&counters.admitted);
                Ok(permit)
            }
            Err(shut) => {
                let refused = self.why(shut);
                count(match &refused {
                    NotLeading::NotLeader { .. } => &counters.not_leader,
                    NotLeading::Resigning => &counters.resigning,
                    NotLeading::TooShort { .. } => &counters.low_validity,
                    NotLeading::ClockAnomaly => &counters.anomaly,
                });
                Err(refused)
            }
        }
    }

    /// As [`admit`](Self::admit), for as short as it may be: for work that is spawned, and is to be waited
    /// for before the lease is given back. Whoever has a permit clones it instead.
    ///
    /// # Errors
    ///
    /// [`NotLeading`] says why not.
    pub fn hold(&self) -> Result<TermPermit, NotLeading> {
        self.enter(Duration::ZERO).map_err(|shut| self.why(shut))
    }

    pub(crate) fn check_min_remaining(&self, min: Duration) -> Result<(), InvalidSetting> {
        self.shared.settings.check_min_remaining(min)
    }

    /// Who leads, as the store said last. It may be this process.
    #[must_use]
    pub fn leader(&self) -> Option<LeaderInfo> {
        self.shared.seen.read(|seen| seen.and_then(|seen| seen.leader.clone()))
    }

    /// What is known, at this instant.
    #[must_use]
    pub fn status(&self) -> Status {
        let shared = &self.shared;
        let now = shared.clock.now();
        let fence = shared.gate.check(|| now, Duration::ZERO).ok();
        let (leader, observation_age) = shared.seen.read(|seen| match seen {
            Some(seen) => (seen.leader.clone(), Some(now.since(seen.at))),
            None => (None, None),
        });
        let (state, degraded) = {
            let standing = shared.standing.borrow();
            (standing.state, standing.degraded)
        };
        Status {
            identity: shared.identity.clone(),
            state,
            is_leader: fence.is_some(),
            fence,
            valid_for: fence.and_then(|_| self.valid_for(now)),
            cooldown_remaining: left(&shared.counters.cools_until, now),
            leader,
            observation_age,
            last_error: shared.error.read(|error| error.map(|error| String::clone(error))),
            degraded: degraded.filter(|_| fence.is_some()),
            signals: shared.signals.read(|of| of.map(|of| Vec::clone(of)).unwrap_or_default()),
        }
    }

    /// What it has done so far.
    #[must_use]
    pub fn metrics(&self) -> LeadershipMetrics {
        let Shared { counters, clock, gate, seen, error, probe, .. } = &*self.shared;
        let now = clock.now();
        let fence = gate.check(|| now, Duration::ZERO).ok();
        let is_working = counters.work_active.load(Relaxed) > 0;
        LeadershipMetrics {
            running: self.shared.is_running(),
            state: self.shared.standing.borrow().state,
            cooldown_remaining: left(&counters.cools_until, now),
            is_leader: fence.is_some(),
            fence,
            lease_remaining: fence.and_then(|_| self.valid_for(now)),
            last_renewal_age: age(&counters.renewed_at, now),
            observation_age: seen.read(|seen| seen.map(|seen| now.since(seen.at))),
            has_error: error.read(|error| error.is_some()),
            leader_changes_observed: counters.leader_changes.load(Relaxed),
            terms_started: counters.terms_started.load(Relaxed),
            terms_ended: counters.terms_ended.load(Relaxed),
            lease_losses: counters.lost.load(Relaxed),
            local_expirations: counters.expired.load(Relaxed),
            resignations: counters.resigned(),
            resigned_for: counters.resigned_for(),
            clock_anomalies: counters.anomalies.load(Relaxed),
            store_panics: counters.store_panics.load(Relaxed),
            dropped: counters.dropped.load(Relaxed),
            is_degraded: fence.is_some() && self.shared.is_degraded.load(Relaxed),
            degradations: counters.degradations.load(Relaxed),
            correlated_failures: counters.correlated_failures.load(Relaxed),
            renewals_accepted: counters.renewed.load(Relaxed),
            renewals_failed: counters.renewals_failed.load(Relaxed),
            work_active: is_working,
            work_cancelled_still_active: age(&counters.cancelled_at, now).filter(|_| is_working),
            runtime_standstills: counters.standstills.load(Relaxed),
            runtime_lag: probe.p99(edge::now()),
            requests_in_flight: gate.read(|term| term.map_or(0, |term| term.in_flight())),
            requests: counters.requests(),
            store: counters.store(),
        }
    }

    /// Tells when the elector does something else, or another one leads.
    ///
    /// It misses states in between, but never the last one. It is for those who show it, route by it, or wait
    /// for it: whoever *acts* as a leader [asks](Self::check). An elector that has ended is
    /// [`Stopped`](State::Stopped), and this channel stays open: who waits for a leader that may not come waits for that
    /// as well.
    ///
    /// Clone what `borrow` lends, and let go of it: the elector cannot tell of anything else, or renew, as long as
    /// somebody has it.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Standing> {
        self.shared.standing.subscribe()
    }

    /// Lets the leader leave: the gate closes, the work is asked to end, and when nothing is left the lease
    /// is given back. Nothing happens if this process does not lead.
    ///
    /// Then it stays away for a [cool-down](LeaseConfig::cooldown), 30 s at first and longer each time, so that
    /// another one leads. One that is alone leaves nobody to lead for as long, unless it has a
    /// [policy](crate::ResignPolicy#when-a-candidate-stands), and with it a last resort. Whatever a leader left
    /// for, it cools down, but where its work returned.
    pub fn resign(&self) {
        self.order(|orders| orders.resign = Some(ResignReason::Operator));
    }

    /// The same, since the program has found that this process is not to lead: what it writes was refused, or its
    /// part of the data is not there. `why` is short and plain; events, and the [memo](crate::LeaseRecord::memo) of
    /// a leader with a [policy](crate::ResignPolicy), tell it.
    ///
    /// It ends a term whatever its age, and however often that was asked for. Where a leader is to leave once something
    /// has been wrong for a while, and to stay if it is so with everybody, let it be a signal of the policy.
    pub fn resign_because(&self, why: impl Into<Cow<'static, str>>) {
        let why = why.into();
        self.order(|orders| orders.resign = Some(ResignReason::Program(why)));
    }

    /// Changes what this process says of itself when it leads. The store learns of it with the next renewal.
    ///
    /// # Errors
    ///
    /// Names the `payload` if it is more than 16 KiB. Then nothing is changed.
    pub fn set_payload(&self, payload: impl Into<Bytes>) -> Result<(), InvalidSetting> {
        let payload = payload.into();
        check_payload(&payload)?;
        self.order(|orders| orders.payload = Some(payload));
        Ok(())
    }

    fn order(&self, order: impl FnOnce(&mut Orders)) {
        order(&mut self.shared.orders());
        self.shared.wake.notify_one();
    }

    #[inline]
    fn look(&self, min: Duration) -> Result<FencingToken, Shut> {
        let mut now = BootTime::default();
        let fence = self.shared.gate.check(|| self.shared.read(&mut now), min)?;
        self.shared.compare_clocks(now)?;
        Ok(fence)
    }

    #[inline]
    pub(crate) fn enter(&self, min: Duration) -> Result<TermPermit, Shut> {
        let mut now = BootTime::default();
        let term = self.shared.gate.admit(|| self.shared.read(&mut now), min)?;
        // From here on it is left when it is dropped.
        let permit = TermPermit::new(term);
        self.shared.compare_clocks(now)?;
        Ok(permit)
    }

    fn valid_for(&self, now: BootTime) -> Option<Duration> {
        self.shared.gate.read(|term| term.map(|term| term.valid_until().since(now)))
    }

    #[cold]
    pub(crate) fn why(&self, shut: Shut) -> NotLeading {
        match shut {
            Shut::Leaving => NotLeading::Resigning,
            Shut::Anomaly => NotLeading::ClockAnomaly,
            Shut::Short(remaining) if !remaining.is_zero() => NotLeading::TooShort { remaining },
            Shut::Short(_) | Shut::NoTerm => {
                // Whoever is sent to us again would come in circles.
                let other = |leader: &LeaderInfo| leader.identity != self.shared.identity;
                NotLeading::NotLeader { leader: self.leader().filter(other) }
            }
        }
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership")
            .field("name", &self.shared.name)
            .field("identity", &self.shared.identity)
            .field("fence", &self.fence())
            .finish_non_exhaustive()
    }
}

// === impl Shared ===

impl Shared {
    #[inline]
    fn read(&self, now: &mut BootTime) -> BootTime {
        if is_planted(Plant::CachedFlag) {
            return BootTime::default();
        }
        *now = self.clock.now();
        *now
    }

    pub(crate) fn orders(&self) -> MutexGuard<'_, Orders> {
        // Nothing of a user's runs under it.
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_running(&self) -> bool {
        self.counters.running.load(Relaxed) > 0
    }

    pub(crate) const fn lease_duration(&self) -> Duration {
        self.settings.lease_duration
    }

    /// Opens the gate, unless the elector was let go of. Whether it did.
    pub(crate) fn open(&self, term: &Arc<Term>) -> bool {
        let halt = self.halted();
        if !halt.is_halted {
            self.gate.set(Some(Arc::clone(term)));
        }
        !halt.is_halted
    }

    /// Sees to it that the work is dropped if the elector is let go of, or was meanwhile.
    pub(crate) fn works(&self, work: AbortHandle) {
        let mut halt = self.halted();
        if halt.is_halted {
            work.abort();
        } else {
            halt.work = Some(work);
        }
    }

    /// From here on nobody leads, whatever the elector is doing at this instant.
    pub(crate) fn halt(&self) {
        let mut halt = self.halted();
        halt.is_halted = true;
        self.gate.read(|term| {
            if let Some(term) = term {
                term.end();
            }
        });
        self.gate.set(None);
        let work = halt.work.take();
        drop(halt);
        self.asked_to_end(self.clock.now());
        if let Some(work) = work {
            work.abort();
        }
    }

    /// From here on it is told for how long the work of a term runs on.
    pub(crate) fn asked_to_end(&self, now: BootTime) {
        let at = &self.counters.cancelled_at;
        let _ = at.compare_exchange(0, now.as_nanos().max(1), Relaxed, Relaxed);
    }

    pub(crate) fn is_halted(&self) -> bool {
        self.halted().is_halted
    }

    fn halted(&self) -> MutexGuard<'_, Halt> {
        self.halt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn stand(&self, change: impl FnOnce(&mut Standing)) {
        self.standing.send_if_modified(|standing| {
            let before = standing.clone();
            change(standing);
            *standing != before
        });
    }

    pub(crate) fn see(&self, leader: Option<LeaderInfo>, at: BootTime) {
        if leader.is_some() {
            self.turns.sees_a_leader();
        }
        self.stand(|standing| standing.leader.clone_from(&leader));
        self.seen.store(Some(Arc::new(Seen { leader, at })));
    }

    /// Why the last call got no answer, or that it did.
    pub(crate) fn failed(&self, text: Option<String>) {
        if text.is_some() || self.error.read(|error| error.is_some()) {
            self.error.store(text.map(Arc::new));
        }
    }

    /// Whether it was something else before.
    pub(crate) fn degrade(&self, by: Option<DegradedBy>) -> bool {
        self.is_degraded.store(by.is_some(), Relaxed);
        let mut is_new = false;
        self.stand(|standing| is_new = std::mem::replace(&mut standing.degraded, by) != by);
        is_new
    }

    /// Shows how well its signals are.
    pub(crate) fn show(&self, signals: Vec<SignalStatus>) {
        if self.signals.read(|shown| shown.is_none_or(|shown| **shown != signals)) {
            self.signals.store(Some(Arc::new(signals)));
        }
    }

    pub(crate) fn state(&self, state: State) {
        self.stand(|standing| standing.state = state);
    }

    /// Looks whether the wall clock has jumped, if nobody has for a while.
    #[inline]
    fn compare_clocks(&self, now: BootTime) -> Result<(), Shut> {
        if now.as_nanos() < self.clocks.next.load(Relaxed) { Ok(()) } else { self.compare_now(now) }
    }

    #[cold]
    fn compare_now(&self, now: BootTime) -> Result<(), Shut> {
        self.clocks.next.store((now + LOOK).as_nanos(), Relaxed);
        if !self.clocks.has_jumped(self.clock.drift()) {
            return Ok(());
        }
        self.clocks.jumped.store(true, Relaxed);
        self.gate.read(|term| {
            if let Some(term) = term {
                term.close(Shut::Anomaly);
            }
        });
        self.wake.notify_one();
        Err(Shut::Anomaly)
    }
}

// === impl Clocks ===

impl Clocks {
    fn new(clock: &LeaseClock, limit: Duration) -> Self {
        Self {
            drift: AtomicI64::new(clock.drift()),
            limit: i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX),
            next: AtomicU64::new(0),
            jumped: AtomicBool::new(false),
        }
    }

    fn has_jumped(&self, drift: i64) -> bool {
        drift.saturating_sub(self.drift.load(Relaxed)) > self.limit
    }

    /// Whether the wall clock has jumped since the last time, for the elector. From here on it is as it is
    /// now.
    pub(crate) fn look(&self, clock: &LeaseClock) -> bool {
        let drift = clock.drift();
        let jumped = self.has_jumped(drift);
        self.drift.store(drift, Relaxed);
        self.jumped.swap(false, Relaxed) || jumped
    }
}

// === impl NotLeading ===

impl NotLeading {
    /// Who leads, if that is known and is not this process.
    #[must_use]
    pub const fn leader(&self) -> Option<&LeaderInfo> {
        match self {
            Self::NotLeader { leader } => leader.as_ref(),
            _ => None,
        }
    }

    /// What layers make of it. It says why, and nothing of the leader: ask the [handle](Leadership::leader).
    pub const fn rejected(&self) -> Rejected {
        Rejected::new(Reason::NotLeader, NAME)
    }
}

impl fmt::Display for NotLeading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotLeader { leader: Some(leader) } => {
                write!(f, "not the leader: that is {}", leader.identity)
            }
            Self::NotLeader { leader: None } => {
                f.write_str("not the leader, and nobody is known to be")
            }
            Self::Resigning => f.write_str("about to leave"),
            Self::TooShort { remaining } => write!(f, "the leader for {remaining:?} only"),
            Self::ClockAnomaly => f.write_str("not the leader: the wall clock has jumped"),
        }
    }
}

impl Error for NotLeading {}
