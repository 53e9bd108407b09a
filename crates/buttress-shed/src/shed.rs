use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use buttress_core::{Class, Deadline, InvalidSetting, Reason, Rejected, edge};
use tokio::time::Instant;

use crate::{
    Admit, LimitAlgorithm, NAME, Permit, Priority, Sample, ShedSettings,
    admit::Waiter,
    machine::{Decided, Ended, Machine, Outcome, Ticket},
    slot::{Slot, Wakers},
};

/// The door of a server: how many requests are in flight, who waits, and for how long. Clones share it.
///
/// Make one for each resource that can be exhausted, as a rule one for the process, and put it into as
/// many layers, routes and connections as there are. Routes that take very different times deserve one
/// each: how long a call will take is guessed from those before it.
///
/// # Examples
///
/// Without tower, a [`Permit`] is held for as long as the work takes:
///
/// ```
/// use buttress_core::{Class, Permit as _};
/// use buttress_shed::{FixedLimit, Priority, Shed, ShedSettings};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let shed = Shed::new(FixedLimit::new(1)?, ShedSettings::default())?;
/// let permit = shed.admit(Priority::Critical).await?;
/// assert!(shed.try_admit(Priority::Critical).is_err());
///
/// let next = shed.admit(Priority::Critical);
/// permit.report(Class::Success); // the work is done
/// next.await?;
/// assert_eq!(shed.stats().admitted, 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Shed {
    shared: Arc<Shared>,
}

/// What a [`Shed`] has done so far, and what it does now.
///
/// The counts always add up:
///
/// ```text
/// arrived  = admitted + overloaded + expired + abandoned + waiting
/// admitted = finished + dropped + in_flight
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShedStats {
    /// How many asked to be admitted.
    pub arrived: u64,
    /// How many of them were.
    pub admitted: u64,
    /// How many were refused with [`Reason::Overloaded`]: there was no room to wait, they had waited for
    /// too long, or made room for somebody else.
    pub overloaded: u64,
    /// How many were refused with [`Reason::DeadlineExceeded`], before they were admitted.
    pub expired: u64,
    /// How many stopped asking while they waited: their future was dropped.
    pub abandoned: u64,
    /// How many wait, and do not know yet what will become of them.
    pub waiting: usize,
    /// How many places came back with a report.
    pub finished: u64,
    /// How many came back without: the request was dropped, or panicked.
    pub dropped: u64,
    /// How many of those that came back did so at or after the request's deadline.
    pub late: u64,
    /// How many places are held.
    pub in_flight: usize,
}

/// What becomes of somebody who arrives.
pub(crate) enum Decision {
    Admit(Permit),
    Wait(Waiter),
    Refuse(Rejected),
}

/// Somebody who could not enter at once. The shed is locked, so that nothing has changed since.
pub(crate) struct Undecided<'a> {
    state: MutexGuard<'a, State>,
    limit: usize,
    now: Instant,
    deadline: Option<Deadline>,
}

struct Shared {
    limit: Box<dyn LimitAlgorithm>,
    /// Whether the limit wants to know how calls end.
    learns: bool,
    retry_in: Option<Duration>,
    state: Mutex<State>,
}

struct State {
    machine: Machine<Arc<Slot>>,
    /// Kept from step to step for its memory.
    decided: Decided<Arc<Slot>>,
}

// === impl Shed ===

impl Shed {
    /// A shed with that many places, whose queue obeys `settings`.
    ///
    /// # Errors
    ///
    /// If a setting cannot work. It says which.
    pub fn new(
        limit: impl LimitAlgorithm + 'static,
        settings: ShedSettings,
    ) -> Result<Self, InvalidSetting> {
        settings.check()?;
        let state = State { machine: Machine::new(&settings), decided: Vec::new() };
        let shared = Shared {
            learns: limit.learns(),
            limit: Box::new(limit),
            retry_in: (settings.interval < Duration::MAX).then_some(settings.interval),
            state: Mutex::new(state),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Asks for a place, and waits for it if there is none but room in the queue.
    ///
    /// All of it is decided when the future is first polled, and nothing in this call. Whether a request is
    /// admitted at all depends on its deadline, and that is the one of the [request](Deadline::current)
    /// that the future is polled for; and a future that is never polled must not count as load, nor push
    /// somebody else out of the queue. (`Bulkhead::acquire` of `buttress-bulkhead` decides in the call, for
    /// its reasons.)
    ///
    /// # Errors
    ///
    /// [`Reason::Overloaded`] if there is no room to wait, if the wait is longer than the age limit, or if
    /// somebody more important needs the room. It says to try again after an interval.
    /// [`Reason::DeadlineExceeded`] if the deadline has passed, or is nearer than what half of the last
    /// calls took.
    ///
    /// # Panics
    ///
    /// The future panics if it has to wait for a bounded time outside of a tokio runtime with timers.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the future gives back its place, granted or in the queue, in that instant.
    pub fn admit(&self, priority: Priority) -> Admit {
        Admit::new(self.clone(), priority)
    }

    /// Asks for a place, and does not wait.
    ///
    /// # Errors
    ///
    /// As [`admit`](Self::admit), and [`Reason::Overloaded`] if it would have to wait.
    pub fn try_admit(&self, priority: Priority) -> Result<Permit, Rejected> {
        let now = edge::now();
        let deadline = Deadline::current();
        let arrived = self.step(now, |machine, limit, decided| {
            let arrived = machine.arrive(now, limit, deadline, decided);
            arrived
                .unwrap_or_else(|| Err(machine.turn_away()))
                .map(|()| Permit::new(self.clone(), now, deadline, machine.running()))
        });
        arrived.map_err(|reason| self.refusal(reason, priority))
    }

    /// What it has done so far, and what it does now.
    #[must_use]
    pub fn stats(&self) -> ShedStats {
        let state = self.lock();
        let counts = state.machine.counts();
        ShedStats {
            arrived: counts.arrived,
            admitted: counts.admitted,
            overloaded: counts.overloaded,
            expired: counts.expired,
            abandoned: counts.abandoned,
            waiting: state.machine.waiting(),
            finished: counts.finished,
            dropped: counts.dropped,
            late: counts.late,
            in_flight: state.machine.running(),
        }
    }

    /// How many places are held.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.lock().machine.running()
    }

    /// How many wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.lock().machine.waiting()
    }

    /// How many places there are.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.shared.limit.current().max(1)
    }

    /// Whether the queue has not been empty for more than an interval. The newest are then served first,
    /// and nobody waits for longer than twice the target.
    #[must_use]
    pub fn is_overloaded(&self) -> bool {
        let now = edge::now();
        self.lock().machine.is_overloaded(now)
    }

    /// A permit, if nobody waits and there is room; if not, the way to [`decide`](Self::decide).
    #[inline]
    pub(crate) fn enter(
        &self,
        now: Instant,
        deadline: Option<Deadline>,
    ) -> Result<Permit, Undecided<'_>> {
        let limit = self.limit();
        let mut state = self.lock();
        if !state.machine.enter(now, limit, deadline) {
            return Err(Undecided { state, limit, now, deadline });
        }
        let in_flight = state.machine.running();
        drop(state);
        Ok(Permit::new(self.clone(), now, deadline, in_flight))
    }

    /// What becomes of somebody who could not enter at once.
    #[cold]
    #[inline(never)]
    pub(crate) fn decide(&self, undecided: Undecided<'_>, priority: Priority) -> Decision {
        let Undecided { mut state, limit, now, deadline } = undecided;
        let State { machine, decided } = &mut *state;
        let arrived = match machine.arrive(now, limit, deadline, decided) {
            Some(Ok(())) => {
                Ok(Decision::Admit(Permit::new(self.clone(), now, deadline, machine.running())))
            }
            Some(Err(reason)) => Err(reason),
            None => {
                // Made only for those who wait.
                let mut slot = None;
                let key = || slot.insert(Arc::new(Slot::default())).clone();
                let ticket = machine.enqueue(now, limit, deadline, priority, key, decided);
                ticket.map(|ticket| {
                    let slot = slot.expect("whoever has a ticket has a slot");
                    Decision::Wait(Waiter::new(self.clone(), ticket, slot, deadline, priority))
                })
            }
        };
        if !machine.is_quiet() || !decided.is_empty() {
            self.finish(state, now, limit);
        } else {
            drop(state);
        }
        arrived.unwrap_or_else(|reason| Decision::Refuse(self.refusal(reason, priority)))
    }

    /// The refusal of somebody, for their own eyes.
    #[cold]
    pub(crate) fn refusal(&self, reason: Reason, priority: Priority) -> Rejected {
        tracing::debug!(
            target: "buttress_shed",
            reason = reason.as_str(),
            priority = priority.as_str(),
            "refused"
        );
        let rejected = Rejected::new(reason, NAME);
        match self.shared.retry_in {
            Some(interval) if reason == Reason::Overloaded => rejected.retry_in(interval),
            _ => rejected,
        }
    }

    pub(crate) fn set_deadline(&self, ticket: Ticket, deadline: Deadline) {
        self.lock().machine.set_deadline(ticket, deadline);
    }

    /// Somebody takes the place that they were granted.
    pub(crate) fn start(&self, deadline: Option<Deadline>) -> Result<Permit, Reason> {
        let now = edge::now();
        self.step(now, |machine, limit, decided| {
            let started = machine.start(now, limit, deadline, decided);
            started.map(|()| Permit::new(self.clone(), now, deadline, machine.running()))
        })
    }

    /// Somebody stops waiting, or does not take the place that they were granted.
    pub(crate) fn leave(&self, ticket: Ticket, slot: &Slot) {
        let now = edge::now();
        self.step(now, |machine, limit, decided| {
            if !machine.leave(ticket) && slot.outcome() == Some(Outcome::Granted) {
                machine.forgo(now, limit, decided);
            }
        });
    }

    /// The time of somebody who waits is up since `at`.
    pub(crate) fn expire(&self, at: Instant, ticket: Ticket) {
        // A timer may be told that it is due without a look at the clock.
        let now = edge::now().max(at);
        self.step(now, |machine, limit, decided| machine.expire(now, limit, ticket, decided));
    }

    /// A place comes back.
    // Out of line: it is called where permits are dropped, which is in many places.
    #[inline(never)]
    pub(crate) fn end(
        &self,
        started: Instant,
        deadline: Option<Deadline>,
        in_flight: usize,
        class: Option<Class>,
    ) {
        let now = edge::now();
        let is_late = deadline.is_some_and(|deadline| deadline.has_passed(now));
        if self.shared.learns {
            let latency = now.saturating_duration_since(started);
            let sample = Sample { at: now, latency, late: is_late, class, in_flight };
            self.shared.limit.finished(&sample);
        }
        let ended = Ended {
            // A refusal from within took no time, and says nothing of the work.
            started: class.filter(|class| *class != Class::Refused).map(|_| started),
            is_reported: class.is_some(),
            is_late,
        };
        self.step(now, |machine, limit, decided| machine.end(now, limit, ended, decided));
    }

    /// Lets the machine do one step, and does what it has decided, outside the lock.
    ///
    /// What is given away in a step is held by its output: a waker that panics then drops it, and it comes
    /// back.
    #[inline]
    fn step<T>(
        &self,
        now: Instant,
        step: impl FnOnce(&mut Machine<Arc<Slot>>, usize, &mut Decided<Arc<Slot>>) -> T,
    ) -> T {
        let limit = self.limit();
        let mut state = self.lock();
        let State { machine, decided } = &mut *state;
        let output = step(machine, limit, decided);
        if !machine.is_quiet() || !decided.is_empty() {
            self.finish(state, now, limit);
        }
        output
    }

    /// Does what the machine has decided, outside the lock.
    #[cold]
    #[inline(never)]
    fn finish(&self, mut state: MutexGuard<'_, State>, now: Instant, limit: usize) {
        let State { machine, decided } = &mut *state;
        let mut wakers = Wakers::default();
        for (slot, outcome) in decided.drain(..) {
            if let Some(waker) = slot.decide(outcome) {
                wakers.push(waker);
            }
        }
        let turned = machine.turned(now);
        let (in_flight, waiting) = (machine.running(), machine.waiting());
        drop(state);
        wakers.wake();
        if let Some(is_overloaded) = turned {
            self.tell(is_overloaded, limit, in_flight, waiting);
        }
    }

    #[cold]
    fn tell(&self, is_overloaded: bool, limit: usize, in_flight: usize, waiting: usize) {
        if is_overloaded {
            tracing::info!(target: "buttress_shed", limit, in_flight, waiting, "overloaded");
        } else {
            tracing::info!(target: "buttress_shed", limit, in_flight, waiting, "no longer overloaded");
        }
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing foreign runs under the lock, so nothing is left half done by a panic.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Shed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shed")
            .field("limit", &self.limit())
            .field("in_flight", &self.in_flight())
            .field("waiting", &self.waiting())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        sync::atomic::Ordering::Relaxed,
        task::{self, Wake, Waker},
    };

    use buttress_core::{Context, Permit as _};

    use super::*;
    use crate::limit::tests::Told;

    const MS: Duration = Duration::from_millis(1);

    fn shed(limit: &'static Told) -> Shed {
        Shed::new(limit, ShedSettings::default()).unwrap()
    }

    fn take(shed: &Shed, places: usize) -> Vec<Permit> {
        (0..places).map(|_| shed.try_admit(Priority::Critical).unwrap()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_limit_learns_how_each_call_ended_and_not_how_long_it_waited() {
        let limit = Told::new(1);
        let shed = shed(limit);
        let soon = Deadline::after(50 * MS);
        let first = take(&shed, 1).remove(0);
        let second = shed.admit(Priority::Critical);
        let second = tokio::spawn(Context::default().with_deadline(soon).scope(second));
        tokio::time::sleep(30 * MS).await;
        first.report(Class::Success);
        let second = second.await.unwrap().unwrap();
        tokio::time::advance(20 * MS).await;
        drop(second);

        let samples = limit.samples.lock().unwrap();
        let told: Vec<_> =
            samples.iter().map(|s| (s.latency, s.late, s.class, s.in_flight)).collect();
        assert_eq!(told, [(30 * MS, false, Some(Class::Success), 1), (20 * MS, true, None, 1)]);
        assert_eq!(samples[1].at, edge::now());
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_that_has_shrunk_admits_nobody_until_it_holds_again() {
        let limit = Told::new(3);
        let shed = shed(limit);
        let mut permits = take(&shed, 3);
        limit.limit.store(1, Relaxed);
        for in_flight in [2, 1] {
            permits.pop();
            assert_eq!(shed.in_flight(), in_flight);
            assert!(shed.try_admit(Priority::Critical).is_err());
        }
        permits.pop();
        assert_eq!(take(&shed, 1).len(), 1);
        limit.limit.store(0, Relaxed);
        assert_eq!(shed.limit(), 1, "nobody served is no limit");
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_that_has_grown_serves_who_waits_before_who_comes() {
        let limit = Told::new(1);
        let shed = shed(limit);
        let _permits = take(&shed, 1);
        let waiting = tokio::spawn(shed.admit(Priority::Sheddable));
        tokio::time::sleep(MS).await;
        limit.limit.store(2, Relaxed);
        assert!(shed.try_admit(Priority::CriticalPlus).is_err());
        let since = edge::now();
        assert!(waiting.await.unwrap().is_ok());
        assert_eq!(edge::now(), since);
    }

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("planted");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_is_admitted_and_meets_a_waker_that_panics_leaves_no_place_taken() {
        for try_admit in [false, true] {
            let limit = Told::new(1);
            let shed = shed(limit);
            let permits = take(&shed, 1);
            let mut waiting = Box::pin(shed.admit(Priority::Critical));
            let waker = Waker::from(Arc::new(Panics));
            assert!(waiting.as_mut().poll(&mut task::Context::from_waker(&waker)).is_pending());
            // Room for both: whoever comes next finds that, and wakes whoever waits.
            limit.limit.store(3, Relaxed);
            let mut cx = task::Context::from_waker(Waker::noop());
            let comes = AssertUnwindSafe(|| match try_admit {
                true => drop(shed.try_admit(Priority::Critical)),
                false => drop(Box::pin(shed.admit(Priority::Critical)).as_mut().poll(&mut cx)),
            });
            assert!(catch_unwind(comes).is_err());
            drop((waiting, permits));
            let stats = shed.stats();
            assert_eq!((stats.in_flight, stats.waiting, stats.dropped), (0, 0, 2));
        }
    }
}
