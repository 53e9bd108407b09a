use std::{
    fmt,
    mem::ManuallyDrop,
    ops::{Deref, DerefMut},
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use buttress_core::{
    Class, Deadline, HealthSignal, InvalidSetting, Permit, Reading, Reason, Rejected, Verdict, edge,
};
use tokio::{sync::watch, time::Instant};

use crate::{
    gate::{Gate, Timed},
    machine::{End, Machine, Refused, Ticket, Transition},
    moment::{Moment, nanos},
    settings::{BreakerSettings, Window},
    stats::{State, Stats},
    sync::{Arc, Mutex, MutexGuard, lock},
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
    /// None once it was reported.
    breaker: Option<Breaker>,
    ticket: Ticket,
    deadline: Option<Deadline>,
}

struct Shared {
    gate: Gate,
    machine: Mutex<Machine>,
    // Whatever else is counted by loom.
    kind: std::sync::Arc<Kind>,
    /// Which of many it is, for events.
    key: Option<Box<str>>,
    /// Made when somebody watches: most breakers of a map are never watched.
    watch: OnceLock<Box<Watched>>,
}

/// What all breakers of a map have in common, and is kept once for them.
pub(crate) struct Kind {
    pub(crate) settings: BreakerSettings,
    /// From where on they count time.
    start: Instant,
    /// From when on a call is slow, in nanoseconds, as in the settings.
    slow: u64,
}

struct Watched {
    sender: watch::Sender<State>,
    /// The newest epoch that watchers were told of. Written under the lock of `sender` alone.
    told: AtomicU64,
}

/// The machine, while nothing goes past the lock.
struct Held<'a> {
    machine: MutexGuard<'a, Machine>,
    shared: &'a Shared,
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
        Ok(Self::unchecked(Kind::new(settings), None))
    }

    pub(crate) fn unchecked(kind: std::sync::Arc<Kind>, key: Option<Box<str>>) -> Self {
        let machine = Machine::new(&kind.settings, kind.moment(edge::now()));
        let gate = Gate::new(kind.timed(), machine.promise(&kind.settings));
        let (machine, watch) = (Mutex::new(machine), OnceLock::new());
        Self { shared: Arc::new(Shared { gate, machine, kind, key, watch }) }
    }

    /// One that is [forced closed](Self::force_closed) from the start, and says nothing of that.
    pub(crate) fn unprotected(kind: std::sync::Arc<Kind>, key: &str) -> Self {
        let breaker = Self::unchecked(kind, Some(key.into()));
        let now = breaker.now();
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
        match self.enter(false) {
            Ok(ticket) => Ok(self.clone().admission(ticket)),
            Err(refused) => Err(*self.rejected(refused)),
        }
    }

    /// Asks to be let through, unless it was refused before there was a call: then it stays so, even if the
    /// call would be let through by now. Of the ticket an [admission](Self::admission) must be made, and of the other a
    /// [refusal](Self::rejected).
    #[inline]
    pub(crate) fn enter(&self, is_refused: bool) -> Result<Ticket, Refused> {
        if is_refused {
            return Err(self.refuse());
        }
        match self.shared.gate.admit() {
            Some(admitted) if admitted.is_timed => {
                let started = self.shared.kind.moment(edge::called());
                Ok(Ticket::counted(admitted.epoch, started))
            }
            Some(admitted) => Ok(Ticket::counted(admitted.epoch, Moment::NEVER)),
            None => self.ask(),
        }
    }

    /// For the request that is current now.
    #[inline]
    pub(crate) fn admission(self, ticket: Ticket) -> Admission {
        Admission { breaker: Some(self), ticket, deadline: Deadline::current() }
    }

    #[cold]
    #[inline(never)]
    fn ask(&self) -> Result<Ticket, Refused> {
        let now = self.shared.kind.moment(edge::called());
        match self.refused_past_the_lock(now) {
            Some(refused) => Err(refused),
            None => self.with(|machine, settings| machine.admit(settings, now, edge::unit)),
        }
    }

    /// Refuses a call that may not ask, and counts it. It is refused at whatever time.
    #[inline(never)]
    fn refuse(&self) -> Refused {
        let past_the_lock = self.refused_past_the_lock(Moment::START);
        past_the_lock.unwrap_or_else(|| self.with(|machine, _| machine.refuse()))
    }

    #[inline]
    fn refused_past_the_lock(&self, now: Moment) -> Option<Refused> {
        self.shared.gate.refuse(now).map(Refused::new)
    }

    /// Tells that it refused a call.
    #[inline(never)]
    pub(crate) fn rejected(&self, refused: Refused) -> Box<Rejected> {
        let rejected = Rejected::new(Reason::CircuitOpen, LAYER);
        let rejected = match refused.until() {
            Some(until) => rejected.retry_at(self.shared.kind.instant(until)),
            None => rejected,
        };
        tracing::debug!(
            breaker = self.name(),
            key = self.shared.key.as_deref(),
            retry_in = rejected.retry_after().map(tracing::field::debug),
            "circuit breaker refused a call"
        );
        Box::new(rejected)
    }

    /// Whether a call that asks now would be refused. Reads no clock while it is closed: each service asks
    /// before each call.
    #[inline]
    pub(crate) fn refuses(&self) -> bool {
        !self.shared.gate.admits() && self.refuses_now()
    }

    #[inline(never)]
    fn refuses_now(&self) -> bool {
        let now = self.now();
        self.shared.gate.refuses(now)
            || self.look(|machine, settings| machine.refuses(settings, now))
    }

    fn now(&self) -> Moment {
        self.shared.kind.moment(edge::now())
    }

    /// The state now.
    ///
    /// No task moves a breaker: it reads half-open from the instant on that its open time is over, although
    /// nothing has happened until the next call asks.
    #[must_use]
    pub fn state(&self) -> State {
        let now = self.now();
        self.look(|machine, _| machine.state(now))
    }

    /// What became of all calls.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let now = self.now();
        self.look(|machine, _| machine.stats(now))
    }

    /// Tells of each change of the state, as it is decided.
    ///
    /// Half-open is decided by the first call that asks after the open time, and told then. Who is slow to
    /// look misses states in between, but never the last one. The receiver does not keep the breaker
    /// alive.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<State> {
        let watched = self.shared.watch.get_or_init(|| {
            let (sender, told) = (watch::Sender::new(State::Closed), AtomicU64::new(0));
            Box::new(Watched { sender, told })
        });
        // Only now is the present told: whoever changes it after this reading finds the sender.
        let (epoch, state) = self.look(|machine, _| machine.decided());
        self.tell(epoch, state);
        watched.sender.subscribe()
    }

    /// The settings it was made with.
    #[must_use]
    pub fn settings(&self) -> &BreakerSettings {
        &self.shared.kind.settings
    }

    /// Refuses all calls until [`reset`](Self::reset), as before work on the callee.
    pub fn force_open(&self) {
        let now = self.now();
        self.with(|machine, _| machine.force_open(now));
    }

    /// Lets all calls through until [`reset`](Self::reset), whatever becomes of them.
    pub fn force_closed(&self) {
        let now = self.now();
        self.with(|machine, _| machine.force_closed(now));
    }

    /// Closes it, forgets what it has learned, and leaves it to itself again. The counters of
    /// [`stats`](Self::stats) go on, and a [shadow](Self::shadow) stays one.
    pub fn reset(&self) {
        let now = self.now();
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
        let now = self.shared.kind.moment(now);
        Arc::strong_count(&self.shared) == 1
            && self.look(|machine, settings| machine.may_be_forgotten(settings, now))
    }

    /// Counts a success past the lock, if it changes nothing else.
    #[inline]
    fn succeed(&self, ticket: Ticket) -> bool {
        let shared = &*self.shared;
        shared.gate.succeed(ticket.epoch(), || shared.kind.now_if_not_slow(ticket))
    }

    fn end(&self, now: Moment, ticket: Ticket, end: End) {
        self.with(|machine, settings| machine.end(settings, now, edge::unit, ticket, end));
    }

    #[cold]
    #[inline(never)]
    fn end_as(self, ticket: Ticket, class: Class) {
        let throttled = matches!(class, Class::Throttled { .. });
        let end = match class.health() {
            _ if throttled && self.settings().throttled_is_failure => End::Bad,
            Verdict::Good => End::Good,
            Verdict::Bad => End::Bad,
            Verdict::Neutral => End::Neutral,
        };
        self.end(self.now(), ticket, end);
    }

    /// The caller walked away.
    #[cold]
    #[inline(never)]
    fn drop_call(self, ticket: Ticket, deadline: Option<Deadline>) {
        let now = edge::now();
        let late = deadline.is_some_and(|deadline| deadline.has_passed(now));
        let end = if late { End::DroppedLate } else { End::Dropped };
        self.end(self.shared.kind.moment(now), ticket, end);
    }

    #[cfg(buttress_loom)]
    pub(crate) fn gate(&self) -> &Gate {
        &self.shared.gate
    }

    /// Looks at the machine, or changes what does not change its state.
    pub(crate) fn look<T>(&self, f: impl FnOnce(&mut Machine, &BreakerSettings) -> T) -> T {
        f(&mut Held::new(&self.shared), self.settings())
    }

    /// Works the machine. What it decides is told after the lock is free again: those who hear of it may
    /// ask the breaker.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut Machine, &BreakerSettings) -> T) -> T {
        let (value, news) = {
            let mut machine = Held::new(&self.shared);
            let value = f(&mut machine, self.settings());
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
        let Some(watched) = self.shared.watch.get() else { return };
        watched.sender.send_if_modified(|told| {
            if epoch < watched.told.load(Relaxed) {
                return false;
            }
            watched.told.store(epoch, Relaxed);
            std::mem::replace(told, state) != state
        });
    }

    fn name(&self) -> Option<&str> {
        self.settings().name.as_deref()
    }
}

/// A breaker with the default [settings](BreakerSettings).
impl Default for Breaker {
    fn default() -> Self {
        Self::unchecked(Kind::new(BreakerSettings::default()), None)
    }
}

/// Closed is healthy, half-open degraded, open unhealthy.
///
/// It is unknown where no call tells: closed, before any call has ended that says how well the callee is;
/// once the open time is over, until somebody asks; and while it is [forced open](Self::force_open), which
/// is somebody's will. (Forced closed, it is as well as one that is closed: whoever forces it says so.)
impl HealthSignal for Breaker {
    fn sample(&self, now: Instant) -> Reading {
        let kind = &self.shared.kind;
        let now = kind.moment(now);
        self.look(|machine, _| {
            let health = machine.health(now);
            Reading { health, since: Some(kind.instant(machine.since(now))) }
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

// === impl Kind ===

impl Kind {
    pub(crate) fn new(settings: BreakerSettings) -> std::sync::Arc<Self> {
        let slow = settings.slow_call.map_or(u64::MAX, nanos);
        std::sync::Arc::new(Self { settings, start: edge::now(), slow })
    }

    /// None if the call is slow.
    #[inline]
    fn now_if_not_slow(&self, ticket: Ticket) -> Option<Moment> {
        let now = self.moment(edge::now());
        (ticket.nanos(now) < self.slow).then_some(now)
    }

    #[inline]
    fn moment(&self, instant: Instant) -> Moment {
        Moment::at(nanos(instant.saturating_duration_since(self.start)))
    }

    fn instant(&self, moment: Moment) -> Instant {
        self.start + moment.since(Moment::START)
    }

    /// What it looks at the clock for, while it is closed.
    fn timed(&self) -> Timed {
        let starts = self.settings.slow_call.is_some();
        Timed { starts, ends: starts || matches!(self.settings.window, Window::Time(_)) }
    }
}

// === impl Held ===

impl<'a> Held<'a> {
    fn new(shared: &'a Shared) -> Self {
        let mut machine = lock(&shared.machine);
        machine.take_in(shared.gate.shut());
        Self { machine, shared }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.shared.gate.open(self.machine.promise(&self.shared.kind.settings));
    }
}

impl Deref for Held<'_> {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.machine
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Machine {
        &mut self.machine
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
}

// What is seldom takes all that it needs out of the admission, so that nothing points to that, and one in a
// future is reported without being put together anew. It must all be inlined for this.
impl Permit for Admission {
    #[inline(always)]
    fn report(self, class: Class) {
        let mut this = ManuallyDrop::new(self);
        let Some(breaker) = this.breaker.take() else { return };
        if class.health() != Verdict::Good || !breaker.succeed(this.ticket) {
            breaker.end_as(this.ticket, class);
        }
    }
}

impl Drop for Admission {
    #[inline]
    fn drop(&mut self) {
        if let Some(breaker) = self.breaker.take() {
            breaker.drop_call(self.ticket, self.deadline);
        }
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission")
            .field("breaker", &self.breaker.as_ref().and_then(Breaker::name))
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use std::time::Duration;

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

    const MS: Duration = Duration::from_millis(1);

    fn below(n: u32) -> u32 {
        (edge::unit() * f64::from(n)) as u32
    }

    fn one_of<T: Copy>(of: &[T]) -> T {
        of[below(u32::try_from(of.len()).unwrap()) as usize]
    }

    fn any_settings() -> BreakerSettings {
        let calls = Window::calls(3 + below(6));
        let settings = BreakerSettings::default()
            .window(one_of(&[calls, Window::time(20 * MS), Window::time(100 * MS)]))
            .min_calls(1 + below(3))
            .failure_rate(one_of(&[0.1, 0.5, 1.0]))
            .slow_rate(one_of(&[0.3, 0.8]))
            .probes(1 + below(2))
            .open(30 * MS)
            .open_jitter(0.0)
            .shadow(one_of(&[false, false, true]));
        let settings = if below(2) == 0 { settings.slow_call(10 * MS) } else { settings };
        if below(2) == 0 { settings.consecutive(3) } else { settings }
    }

    /// A breaker, and a machine to which all goes through a lock.
    #[tokio::test(start_paused = true)]
    async fn what_goes_past_the_lock_changes_nothing_but_the_cost() {
        let mut past = 0;
        for seed in 0..3000 {
            edge::seed(seed);
            let settings = any_settings();
            let breaker = Breaker::new(settings.clone()).unwrap();
            let mut machine = Machine::new(&settings, breaker.now());
            let mut calls = Vec::new();
            for step in 0..80 {
                let now = breaker.now();
                match below(12) {
                    0..4 => {
                        past += u32::from(breaker.shared.gate.admits());
                        let refuses = machine.refuses(&settings, now);
                        assert_eq!(breaker.refuses(), refuses, "seed {seed}, step {step}");
                        let admission = breaker.admit();
                        let ticket = machine.admit(&settings, now, || 0.5);
                        match (admission, ticket) {
                            (Ok(admission), Ok(ticket)) => calls.push((admission, ticket)),
                            (Err(rejected), Err(refused)) => assert_eq!(
                                rejected.retry_after(),
                                refused.until().map(|until| until - now),
                                "seed {seed}, step {step}"
                            ),
                            (one, other) => panic!("seed {seed}, step {step}: {one:?}, {other:?}"),
                        }
                    }
                    4..8 if !calls.is_empty() => {
                        let which = below(u32::try_from(calls.len()).unwrap());
                        let (admission, ticket) = calls.swap_remove(which as usize);
                        let (class, end) = one_of(&[
                            (Some(Class::Success), End::Good),
                            (Some(Class::Success), End::Good),
                            (Some(Class::Unreachable), End::Bad),
                            (Some(Class::CallerError), End::Neutral),
                            (None, End::Dropped),
                        ]);
                        match class {
                            Some(class) => admission.report(class),
                            None => drop(admission),
                        }
                        machine.end(&settings, now, || 0.5, ticket, end);
                    }
                    8 => {
                        let stats = machine.stats(now);
                        assert_eq!(breaker.stats(), stats, "seed {seed}, step {step}");
                    }
                    9 => tokio::time::advance(Duration::from_micros(one_of(&[1, 700, 9000]))).await,
                    10 => tokio::time::advance(Duration::from_millis(one_of(&[2, 30, 200]))).await,
                    _ => match below(30) {
                        0 => {
                            breaker.force_open();
                            machine.force_open(now);
                        }
                        1 => {
                            breaker.force_closed();
                            machine.force_closed(now);
                        }
                        2..5 => {
                            breaker.reset();
                            machine.reset(now);
                        }
                        _ => {}
                    },
                }
                let since = breaker.sample(breaker.shared.kind.instant(now)).since;
                assert_eq!(
                    (breaker.state(), since.map(|since| breaker.shared.kind.moment(since))),
                    (machine.state(breaker.now()), Some(machine.since(now))),
                    "seed {seed}, step {step}"
                );
            }
        }
        assert!(past > 10_000, "only {past} went past it");
    }

    #[tokio::test(start_paused = true)]
    async fn a_success_is_looked_at_where_calls_have_left_the_window_since() {
        let settings = BreakerSettings::default().min_calls(2).window(Window::time(10 * MS));
        let breaker = Breaker::new(settings).unwrap();
        let call = |class| breaker.admit().unwrap().report(class);
        (0..4).for_each(|_| call(Class::Success));
        tokio::time::advance(5 * MS).await;
        (0..2).for_each(|_| call(Class::Unreachable));
        tokio::time::advance(5 * MS).await;
        assert_eq!((breaker.stats().window.calls, breaker.state()), (2, State::Closed));
        call(Class::Success);
        assert_eq!(breaker.state(), State::Open, "two of three have failed");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_asked_while_it_is_open_is_not_left_alone() {
        let settings =
            BreakerSettings::quiet().open_jitter(0.0).open(5000 * MS).open_max(5000 * MS);
        let breaker = Breaker::new(settings).unwrap();
        (0..5).for_each(|_| breaker.admit().unwrap().report(Class::Unreachable));
        tokio::time::advance(4000 * MS).await;
        assert!(breaker.admit().is_err());
        let forgets =
            || breaker.look(|machine, settings| machine.may_be_forgotten(settings, breaker.now()));
        tokio::time::advance(49_999 * MS).await;
        assert!(!forgets());
        tokio::time::advance(1001 * MS).await;
        assert!(forgets(), "ten open times after it could be asked in vain");
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
