use std::{
    fmt,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use buttress_core::{
    Class, Deadline, Health, HealthSignal, InvalidSetting, Permit, Reading, Reason, Rejected,
    Verdict, edge,
};
use tokio::{sync::watch, time::Instant};

use crate::{
    machine::{End, Machine, Refused, Ticket, Transition},
    settings::BreakerSettings,
    stats::{State, Stats},
    sync::{Arc, Mutex, lock},
};

/// The name that refusals carry.
const LAYER: &str = "breaker";

/// A circuit breaker: it watches how the calls to one callee end, and refuses further ones for a while
/// once too many have failed or were slow.
///
/// Calls to a callee that is down cost a timeout each, and a callee that is drowning is drowned by
/// them. A breaker makes them fail at once, and lets the callee come up for air. See [the
/// settings](BreakerSettings) for when it opens and what closes it.
///
/// A clone is another handle to the same breaker. Make one for each callee that fails by itself, and keep
/// it where you can ask it; [`Breakers`](crate::Breakers) keeps one a key.
///
/// # Examples
///
/// By hand, without a service:
///
/// ```
/// use buttress_breaker::{Breaker, BreakerSettings, State};
/// use buttress_core::{Class, Permit};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let breaker = Breaker::new(BreakerSettings::quiet().open_jitter(0.0))?;
/// for _ in 0..5 {
///     let admission = breaker.admit()?;
///     admission.report(Class::Unreachable);
/// }
/// assert_eq!(breaker.state(), State::Open);
/// let refused = breaker.admit().unwrap_err();
/// assert_eq!(refused.retry_after(), Some(Duration::from_secs(5)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Breaker {
    shared: Arc<Shared>,
}

/// A call was let through: a promise to say how it ended.
///
/// [Report](Permit::report) its class. Dropped, it says that nothing was learned, and gives its place
/// back; but dropped at or after the deadline of the request that it was made for, or once the call was
/// slow, it says that the callee was too slow. Else one that hangs under impatient callers would never be
/// cut off.
#[must_use = "dropped, it reports that nothing was learned"]
pub struct Admission {
    breaker: Breaker,
    /// None once it was reported.
    ticket: Option<Ticket>,
    deadline: Option<Deadline>,
}

struct Shared {
    machine: Mutex<Machine>,
    // Kept once for all breakers of a map, whatever else is counted by loom.
    settings: std::sync::Arc<BreakerSettings>,
    /// Which of many it is, for events.
    key: Option<Box<str>>,
    /// Made when somebody watches: most breakers of a map are never watched.
    watch: OnceLock<watch::Sender<State>>,
    /// The newest epoch that watchers were told of. Written under the lock of `watch` alone.
    told: AtomicU64,
}

// === impl Breaker ===

impl Breaker {
    /// A breaker that is closed.
    ///
    /// # Errors
    ///
    /// Names the setting that cannot work.
    pub fn new(settings: BreakerSettings) -> Result<Self, InvalidSetting> {
        settings.check()?;
        Ok(Self::unchecked(std::sync::Arc::new(settings), None))
    }

    pub(crate) fn unchecked(
        settings: std::sync::Arc<BreakerSettings>,
        key: Option<Box<str>>,
    ) -> Self {
        let machine = Mutex::new(Machine::new(&settings, edge::now()));
        let (watch, told) = Default::default();
        Self { shared: Arc::new(Shared { machine, settings, key, watch, told }) }
    }

    /// One that is [forced closed](Self::force_closed) from the start, and says nothing of that.
    pub(crate) fn unprotected(settings: std::sync::Arc<BreakerSettings>, key: &str) -> Self {
        let breaker = Self::unchecked(settings, Some(key.into()));
        let now = edge::now();
        breaker.look(|machine, _| {
            machine.force_closed(now);
            machine.news()
        });
        breaker
    }

    /// Asks to be let through.
    ///
    /// What ends before the call is made, as a panic or a cancellation, drops the admission, and that
    /// gives it back. It belongs to the request whose [deadline](Deadline::current) is current now.
    ///
    /// # Errors
    ///
    /// [`Rejected`] for [`Reason::CircuitOpen`]. It says in how long the open time is over. While the
    /// breaker is half-open and has all its probes it says nothing: they may end at any time.
    pub fn admit(&self) -> Result<Admission, Rejected> {
        self.clone().enter()
    }

    /// Asks to be let through, and spares a clone.
    pub(crate) fn enter(self) -> Result<Admission, Rejected> {
        let (now, deadline) = (edge::now(), Deadline::current());
        match self.with(|machine, settings| machine.admit(settings, now, edge::unit)) {
            Ok(ticket) => Ok(Admission { breaker: self, ticket: Some(ticket), deadline }),
            Err(refused) => Err(self.rejected(refused)),
        }
    }

    /// Refuses a call that may not ask, and counts it.
    pub(crate) fn refuse(&self) -> Rejected {
        let now = edge::now();
        let refused = self.with(|machine, _| machine.refuse(now));
        self.rejected(refused)
    }

    /// Whether a call that asks now would be refused. Reads no clock while it is closed: each service asks
    /// before each call.
    pub(crate) fn refuses(&self) -> bool {
        self.look(|machine, settings| {
            !machine.is_closed() && machine.refuses(settings, edge::now())
        })
    }

    /// The state now.
    ///
    /// No task moves a breaker: it reads half-open from the instant on that its open time is over, although
    /// nothing has happened until the next call asks.
    #[must_use]
    pub fn state(&self) -> State {
        let now = edge::now();
        self.look(|machine, _| machine.state(now))
    }

    /// What became of all calls.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let now = edge::now();
        self.look(|machine, _| machine.stats(now))
    }

    /// Tells of each change of the state, as it is decided.
    ///
    /// Half-open is decided by the first call that asks after the open time, and told then. Who is slow to
    /// look misses states in between, but never the last one. The receiver does not keep the breaker
    /// alive.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<State> {
        let sender = self.shared.watch.get_or_init(|| watch::Sender::new(State::Closed));
        // Only now is the present told: whoever changes it after this reading finds the sender.
        let (epoch, state) = self.look(|machine, _| machine.decided());
        self.tell(epoch, state);
        sender.subscribe()
    }

    /// The settings it was made with.
    #[must_use]
    pub fn settings(&self) -> &BreakerSettings {
        &self.shared.settings
    }

    /// Refuses all calls until [`reset`](Self::reset), as before work on the callee.
    pub fn force_open(&self) {
        let now = edge::now();
        self.with(|machine, _| machine.force_open(now));
    }

    /// Lets all calls through until [`reset`](Self::reset), whatever becomes of them.
    pub fn force_closed(&self) {
        let now = edge::now();
        self.with(|machine, _| machine.force_closed(now));
    }

    /// Closes it, forgets what it has learned, and leaves it to itself again. The counters of
    /// [`stats`](Self::stats) go on, and a [shadow](Self::shadow) stays one.
    pub fn reset(&self) {
        let now = edge::now();
        self.with(|machine, _| machine.reset(now));
    }

    /// Whether it was forced, and not reset since.
    #[must_use]
    pub fn is_forced(&self) -> bool {
        self.look(|machine, _| machine.is_forced())
    }

    /// Makes it a shadow, or a breaker again.
    ///
    /// A shadow watches, changes its state, and counts the calls that it would have refused
    /// (`stats().shadowed`), but never refuses one, not even when it is forced open. So that new
    /// settings can be tried on live traffic. What a call that it would have refused teaches is not
    /// learned: it would not have been made.
    pub fn shadow(&self, shadow: bool) {
        self.look(|machine, _| machine.set_shadow(shadow));
    }

    /// Whether it is a shadow.
    #[must_use]
    pub fn is_shadow(&self) -> bool {
        self.look(|machine, _| machine.is_shadow())
    }

    /// Whether nobody else has it, and nothing that matters is lost with it.
    pub(crate) fn may_be_forgotten(&self, now: Instant) -> bool {
        Arc::strong_count(&self.shared) == 1
            && self.look(|machine, settings| machine.may_be_forgotten(settings, now))
    }

    /// Looks at the machine, or changes what does not change its state.
    pub(crate) fn look<T>(&self, f: impl FnOnce(&mut Machine, &BreakerSettings) -> T) -> T {
        f(&mut lock(&self.shared.machine), &self.shared.settings)
    }

    /// Works the machine. What it decides is told after the lock is free again: those who hear of it may
    /// ask the breaker.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut Machine, &BreakerSettings) -> T) -> T {
        let (value, news) = {
            let mut machine = lock(&self.shared.machine);
            let value = f(&mut machine, &self.shared.settings);
            (value, machine.news())
        };
        for transition in news {
            self.announce(transition);
        }
        value
    }

    #[cold]
    fn announce(&self, transition: Transition) {
        let Transition { epoch, from, to, why, shadow } = transition;
        self.tell(epoch, to);
        tracing::info!(
            breaker = self.name(),
            key = self.shared.key.as_deref(),
            from = from.as_str(),
            to = to.as_str(),
            reason = why.as_str(),
            shadow,
            "circuit breaker changed state"
        );
    }

    /// Tells watchers, if there are any, unless they know of something newer: whoever decided later may
    /// have been faster.
    fn tell(&self, epoch: u64, state: State) {
        let Some(sender) = self.shared.watch.get() else { return };
        sender.send_if_modified(|told| {
            if epoch < self.shared.told.load(Relaxed) {
                return false;
            }
            self.shared.told.store(epoch, Relaxed);
            std::mem::replace(told, state) != state
        });
    }

    #[cold]
    fn rejected(&self, refused: Refused) -> Rejected {
        tracing::debug!(
            breaker = self.name(),
            key = self.shared.key.as_deref(),
            retry_in = refused.retry_in.map(tracing::field::debug),
            "circuit breaker refused a call"
        );
        let rejected = Rejected::new(Reason::CircuitOpen, LAYER);
        match refused.retry_in {
            Some(after) => rejected.retry_in(after),
            None => rejected,
        }
    }

    fn name(&self) -> Option<&str> {
        self.shared.settings.name.as_deref()
    }
}

/// A breaker with the default [settings](BreakerSettings).
impl Default for Breaker {
    fn default() -> Self {
        Self::unchecked(Default::default(), None)
    }
}

/// Closed is healthy, half-open degraded, open unhealthy.
impl HealthSignal for Breaker {
    fn sample(&self, now: Instant) -> Reading {
        self.look(|machine, _| {
            let health = match machine.state(now) {
                State::Closed => Health::Healthy,
                State::HalfOpen => Health::Degraded,
                State::Open => Health::Unhealthy,
            };
            Reading { health, since: Some(machine.since(now)) }
        })
    }
}

impl fmt::Debug for Breaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Breaker")
            .field("name", &self.name())
            .field("key", &self.shared.key)
            .field("state", &self.state())
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

// === impl Admission ===

impl Admission {
    /// Takes the deadline of the request that is current now, if there was none before: a buffer calls
    /// where no request is.
    pub(crate) fn look_for_deadline(&mut self) {
        if self.deadline.is_none() {
            self.deadline = Deadline::current();
        }
    }

    fn end(&mut self, now: Instant, end: End) {
        if let Some(ticket) = self.ticket.take() {
            self.breaker.with(|machine, settings| {
                machine.end(settings, now, edge::unit, ticket, end);
            });
        }
    }
}

impl Permit for Admission {
    fn report(mut self, class: Class) {
        let throttled = matches!(class, Class::Throttled { .. });
        let end = match class.health() {
            _ if throttled && self.breaker.settings().throttled_is_failure => End::Bad,
            Verdict::Good => End::Good,
            Verdict::Bad => End::Bad,
            Verdict::Neutral => End::Neutral,
        };
        self.end(edge::now(), end);
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if self.ticket.is_some() {
            let now = edge::now();
            let late = self.deadline.is_some_and(|deadline| deadline.has_passed(now));
            self.end(now, if late { End::DroppedLate } else { End::Dropped });
        }
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission")
            .field("breaker", &self.breaker.name())
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_was_decided_earlier_and_is_told_later_is_not_told() {
        let breaker = Breaker::default();
        let watch = breaker.watch();
        breaker.tell(2, State::Open);
        breaker.tell(1, State::HalfOpen);
        assert_eq!(*watch.borrow(), State::Open);
        breaker.tell(3, State::Closed);
        assert_eq!(*watch.borrow(), State::Closed);
    }

    #[cfg(target_pointer_width = "64")]
    #[test]
    fn a_breaker_with_a_time_window_takes_at_most_512_bytes_in_a_map() {
        // With the two counters of its `Arc`. It has nothing else on the heap while it is closed, but its
        // label.
        let breaker = size_of::<Shared>() + 2 * size_of::<usize>();
        let entry = crate::keyed::entry_bytes::<u64>();
        let of_the_index = 2 * size_of::<u64>() + 1;
        assert!(breaker + entry + of_the_index <= 512, "{breaker} + {entry} + {of_the_index}");
    }
}
