//! What a breaker decides. A function of the instant, of chance, and of how calls ended: it knows no
//! clock, no dice, no tasks and no logging.
//!
//! ```text
//!              a rate, or a run of failures
//!   Closed ------------------------------------> Open <---.
//!     ^                                            |      | a probe failed, most were slow,
//!     |               the open time is over, and a |      | or too many never ended
//!     |               call asks                    v      |
//!     `----------------------------------------- HalfOpen-'
//!              as many probes succeeded as are let through
//! ```
//!
//! Each arrow begins a new **epoch**. A call carries the epoch in which it was let through, and where
//! that is over when it ends, its answer is to a question that nobody asks any more: it decides nothing.
//! Probes count as epochs of their own, in the same sequence, so that one number tells of each call what it
//! was let through for.
//!
//! A probe holds its place on a **lease**. When that is over the place is free, but a good answer is good
//! still: if the epoch is the same, it counts as if it had been in time. Where so many were given up that
//! the breaker has opened again, it comes too late, but the next leases are as long as it took. Else a
//! callee whose answers take longer than the lease would be cut off for ever, though it is well.

use std::time::Duration;

use buttress_core::Health;

use crate::{
    gate::{Counted, Promise},
    moment::Moment,
    settings::BreakerSettings,
    stats::{State, Stats},
    window::{Mark, Ring},
};

/// For how many of the longest open times a breaker that is not closed must be left alone before it may
/// be forgotten.
const QUIET: u32 = 10;

/// The state of one breaker. Every function takes the same settings, which are kept once for all
/// breakers of a kind.
#[derive(Debug)]
pub(crate) struct Machine {
    phase: Phase,
    /// Nobody but a hand changes the phase.
    forced: bool,
    shadow: bool,
    /// The newest, be it that of a state or of a probe.
    epoch: u64,
    since: Moment,
    ring: Ring,
    /// Failures in a row.
    run: u32,
    /// Since it last opened by itself, until it closes. Apart, so that the many breakers that are closed do
    /// not keep room for it.
    outage: Option<Box<Outage>>,
    stats: Stats,
    /// Apart, as nearly all breakers have none at nearly all times.
    news: Option<Box<News>>,
}

#[derive(Debug, Default)]
struct News(Vec<Transition>);

#[derive(Debug)]
struct Outage {
    /// The epoch that it began with.
    epoch: u64,
    /// The open time, before jitter. It doubles from trip to trip.
    open_time: Duration,
    /// When somebody last asked to be let through.
    asked: Moment,
    /// How long the longest good answer of a probe took that came after its epoch. No lease is shorter: who
    /// was given up too soon once must not be given up too soon each time.
    late: Duration,
}

#[derive(Debug)]
enum Phase {
    Closed,
    /// Until then.
    Open(Moment),
    /// Apart, so that the many breakers that are closed do not keep room for it.
    HalfOpen(Box<Probing>),
}

/// The probes of one half-open phase.
#[derive(Debug)]
struct Probing {
    /// The epoch of the phase. Those of its probes are greater.
    epoch: u64,
    in_flight: Vec<Probe>,
    successes: u32,
    slow: u32,
    /// Those whose lease was over, and which have not answered well since.
    given_up: u32,
}

#[derive(Debug)]
struct Probe {
    epoch: u64,
    /// When it may be replaced.
    until: Moment,
}

/// What a call carries from its admission to its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    epoch: u64,
    /// Never, where it does not matter how long it takes.
    started: Moment,
}

/// Of a call that a shadow would have refused, and learns nothing from.
const UNSEEN: u64 = u64::MAX;

/// A call was refused. It may come again at that instant, where one is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// [Never](Moment::NEVER) if it is not known: in half of the room.
    until: Moment,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Good,
    Bad,
    Neutral,
    /// The caller walked away, and that was at its deadline or later.
    DroppedLate,
    /// The caller walked away.
    Dropped,
}

/// What that says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Success,
    Slow,
    Failure,
    Neutral,
    Abandoned,
    Dropped,
    Stale,
}

/// The breaker changed its mind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transition {
    pub(crate) epoch: u64,
    pub(crate) from: State,
    pub(crate) to: State,
    pub(crate) why: Why,
    pub(crate) shadow: bool,
}

/// Why it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    FailureRate,
    SlowRate,
    Consecutive,
    OpenTimeOver,
    ProbesSucceeded,
    ProbeFailed,
    ProbesSlow,
    ProbesExpired,
    Forced,
    Reset,
}

// === impl Machine ===

impl Machine {
    pub(crate) fn new(settings: &BreakerSettings, now: Moment) -> Self {
        Self {
            phase: Phase::Closed,
            forced: false,
            shadow: settings.shadow,
            epoch: 0,
            since: now,
            ring: Ring::new(settings.window, now),
            run: 0,
            outage: None,
            stats: Stats::default(),
            news: None,
        }
    }

    /// Lets a call through, or refuses it.
    pub(crate) fn admit(
        &mut self,
        settings: &BreakerSettings,
        now: Moment,
        unit: impl Fn() -> f64,
    ) -> Result<Ticket, Refused> {
        let epoch = match self.ask(settings, now, unit) {
            Ok(epoch) => epoch,
            Err(_) if self.shadow => {
                self.stats.shadowed += 1;
                UNSEEN
            }
            Err(refused) => {
                self.stats.rejected += 1;
                return Err(refused);
            }
        };
        self.stats.started += 1;
        Ok(Ticket { epoch, started: now })
    }

    fn ask(
        &mut self,
        settings: &BreakerSettings,
        now: Moment,
        unit: impl Fn() -> f64,
    ) -> Result<u64, Refused> {
        if let Some(outage) = &mut self.outage {
            outage.asked = outage.asked.max(now);
        }
        loop {
            match &mut self.phase {
                Phase::Closed => return Ok(self.epoch),
                // ## Open => (Open | HalfOpen)
                Phase::Open(until) if *until <= now => {
                    let probing = Probing::new(self.next_epoch());
                    self.turn(now, Phase::HalfOpen(Box::new(probing)), Why::OpenTimeOver);
                }
                Phase::Open(until) => return Err(Refused::new(*until)),
                // ## HalfOpen => (HalfOpen | Open)
                Phase::HalfOpen(probing) => {
                    let (expired, last) = probing.expire(now);
                    self.stats.expired += u64::from(expired);
                    // As many as there are probes, and of their successors one: the callee hangs.
                    if probing.given_up > settings.probes {
                        self.trip(settings, last.unwrap_or(now), unit(), Why::ProbesExpired);
                        continue;
                    }
                    if !probing.has_room(settings) {
                        return Err(Refused::UNTIL_NOBODY_KNOWS);
                    }
                    let late = self.outage.as_ref().map_or(Duration::ZERO, |outage| outage.late);
                    // One answer that took an hour must not keep all probes back for the next.
                    let late = late.min(settings.open_max.saturating_mul(QUIET));
                    let lease = settings.lease().max(late);
                    self.epoch += 1;
                    probing.in_flight.push(Probe { epoch: self.epoch, until: now.after(lease) });
                    return Ok(self.epoch);
                }
            }
        }
    }

    /// Refuses a call without asking.
    pub(crate) fn refuse(&mut self) -> Refused {
        self.stats.rejected += 1;
        match self.phase {
            Phase::Open(until) => Refused::new(until),
            Phase::Closed | Phase::HalfOpen(_) => Refused::UNTIL_NOBODY_KNOWS,
        }
    }

    /// Whether a call that asks at `now` would be refused.
    pub(crate) fn refuses(&self, settings: &BreakerSettings, now: Moment) -> bool {
        let refuses = match &self.phase {
            Phase::Closed => false,
            Phase::Open(until) => now < *until,
            Phase::HalfOpen(probing) => !probing.would_have_room(settings, now),
        };
        refuses && !self.shadow
    }

    /// Learns how a call ended.
    pub(crate) fn end(
        &mut self,
        settings: &BreakerSettings,
        now: Moment,
        unit: impl Fn() -> f64,
        ticket: Ticket,
        end: End,
    ) {
        let took = ticket.took(now);
        let said = Outcome::new(settings, took, end);
        let outcome = if self.hears(ticket, said) { said } else { Outcome::Stale };
        self.count(outcome);
        if outcome == Outcome::Stale && said == Outcome::Success {
            self.learn_late(ticket, took);
        }
        let Some(decided) = self.learn(settings, now, ticket, outcome) else { return };
        match decided {
            Why::ProbesSucceeded => self.close(now, decided),
            why => self.trip(settings, now, unit(), why),
        }
    }

    /// Whether it does not come too late to say that.
    fn hears(&self, ticket: Ticket, said: Outcome) -> bool {
        match &self.phase {
            _ if ticket.epoch == UNSEEN => true,
            Phase::Closed => ticket.epoch == self.epoch,
            Phase::Open(_) => false,
            // Given up, it has given way: nothing but that the callee is well is still news.
            Phase::HalfOpen(probing) => {
                let is_of_these = probing.epoch < ticket.epoch;
                is_of_these && (said == Outcome::Success || probing.has(ticket.epoch))
            }
        }
    }

    /// A good answer that comes too late decides nothing, but if it is of this outage, and so a probe's, it
    /// tells how long a callee that is well may take.
    fn learn_late(&mut self, ticket: Ticket, took: Duration) {
        if let Some(outage) = &mut self.outage
            && outage.epoch < ticket.epoch
        {
            outage.late = outage.late.max(took);
        }
    }

    fn count(&mut self, outcome: Outcome) {
        let counter = match outcome {
            Outcome::Success => &mut self.stats.success,
            Outcome::Slow => &mut self.stats.slow,
            Outcome::Failure => &mut self.stats.failure,
            Outcome::Neutral => &mut self.stats.neutral,
            Outcome::Abandoned => &mut self.stats.abandoned,
            Outcome::Dropped => &mut self.stats.dropped,
            Outcome::Stale => &mut self.stats.stale,
        };
        *counter += 1;
    }

    /// Takes in an outcome, and says why it is time to change, if it is.
    fn learn(
        &mut self,
        settings: &BreakerSettings,
        now: Moment,
        ticket: Ticket,
        outcome: Outcome,
    ) -> Option<Why> {
        if outcome == Outcome::Stale || ticket.epoch == UNSEEN || self.forced {
            return None;
        }
        match &mut self.phase {
            Phase::Closed => self.judge(settings, now, outcome),
            Phase::HalfOpen(probing) => probing.end(settings, ticket.epoch, outcome),
            Phase::Open(_) => None,
        }
    }

    /// Looks at the window again, with one more outcome in it.
    fn judge(&mut self, settings: &BreakerSettings, now: Moment, outcome: Outcome) -> Option<Why> {
        let mark = match outcome {
            Outcome::Success => Mark::Good,
            Outcome::Slow | Outcome::Abandoned => Mark::Slow,
            Outcome::Failure => Mark::Failed,
            Outcome::Neutral | Outcome::Dropped | Outcome::Stale => return None,
        };
        self.ring.record(now, mark, &mut self.stats.window);
        self.run = match outcome {
            Outcome::Failure | Outcome::Abandoned => self.run.saturating_add(1),
            // An answer, though late, ends the run.
            _ => 0,
        };
        self.verdict(settings, self.stats.window.calls)
    }

    /// Why it is time to open, if it is, or would be with so many calls in the window.
    fn verdict(&self, settings: &BreakerSettings, calls: u32) -> Option<Why> {
        if settings.consecutive.is_some_and(|most| most <= self.run) {
            return Some(Why::Consecutive);
        }
        let tally = self.stats.window;
        if calls < settings.min_calls {
            None
        } else if share(tally.failures, calls) >= settings.failure_rate {
            Some(Why::FailureRate)
        } else if share(tally.slow, calls) >= settings.slow_rate {
            Some(Why::SlowRate)
        } else {
            None
        }
    }

    /// Opens, as of an instant that may lie in the past.
    fn trip(&mut self, settings: &BreakerSettings, at: Moment, unit: f64, why: Why) {
        let epoch = self.next_epoch();
        let outage = self.outage.get_or_insert_with(|| {
            let (open_time, late) = (settings.open, Duration::ZERO);
            Box::new(Outage { epoch, open_time, asked: at, late })
        });
        if let Phase::HalfOpen(_) = self.phase {
            outage.open_time = outage.open_time.saturating_mul(2).min(settings.open_max);
        }
        let until = at.after(jittered(outage.open_time, settings, unit));
        self.turn(at, Phase::Open(until), why);
    }

    fn close(&mut self, at: Moment, why: Why) {
        self.ring.clear(&mut self.stats.window);
        self.run = 0;
        self.outage = None;
        self.turn(at, Phase::Closed, why);
    }

    /// Begins a new epoch.
    fn turn(&mut self, at: Moment, phase: Phase, why: Why) {
        let from = self.phase.state();
        self.phase = phase;
        self.epoch = self.next_epoch();
        let to = self.phase.state();
        if from != to {
            self.since = at;
        }
        if to == State::Open && from != State::Open {
            self.stats.opened += 1;
        }
        if let Some(outage) = &mut self.outage {
            outage.asked = outage.asked.max(at);
        }
        let (epoch, shadow) = (self.epoch, self.shadow);
        let news = self.news.get_or_insert_default();
        news.0.push(Transition { epoch, from, to, why, shadow });
    }

    fn next_epoch(&self) -> u64 {
        self.epoch + 1
    }

    // === past the lock ===

    /// What it would answer whoever comes next, and what it would do.
    pub(crate) fn promise(&self, settings: &BreakerSettings) -> Promise {
        // More successes make no share larger. But the one with which there are enough has it looked at for the
        // first time; and so has any, where calls have left the window since. Forced, it looks at none.
        let enough = self.stats.window.calls.max(settings.min_calls);
        let counts_until = match self.phase {
            Phase::Closed if self.forced => Some(Moment::NEVER),
            Phase::Closed if self.verdict(settings, enough).is_none() => {
                Some(self.ring.newest_ends())
            }
            _ => None,
        };
        let until = match self.phase {
            Phase::Open(until) if !self.shadow => Some(until),
            _ => None,
        };
        Promise {
            admits: matches!(self.phase, Phase::Closed),
            epoch: self.epoch,
            refuses_until: until,
            counts_until,
        }
    }

    /// Takes in what was counted on its promise.
    pub(crate) fn take_in(&mut self, counted: Counted) {
        let Counted { started, refused, good } = counted;
        self.stats.started += u64::from(started);
        self.stats.rejected += u64::from(refused);
        if let (Phase::Open(until), Some(outage), 1..) = (&self.phase, &mut self.outage, refused)
            && let Some(until) = until.if_ever()
        {
            // Nobody wrote down when: no later than then.
            outage.asked = outage.asked.max(until);
        }
        if good > 0 {
            self.stats.success += u64::from(good);
            if !self.forced {
                self.ring.record_good(good, &mut self.stats.window);
                self.run = 0;
            }
        }
    }

    /// What it decided since this was last called.
    pub(crate) fn news(&mut self) -> Vec<Transition> {
        self.news.take().map(|news| news.0).unwrap_or_default()
    }

    // === by hand ===

    pub(crate) fn force_open(&mut self, now: Moment) {
        self.forced = true;
        self.turn(now, Phase::Open(Moment::NEVER), Why::Forced);
    }

    pub(crate) fn force_closed(&mut self, now: Moment) {
        self.forced = true;
        self.close(now, Why::Forced);
    }

    pub(crate) fn reset(&mut self, now: Moment) {
        self.forced = false;
        self.close(now, Why::Reset);
    }

    pub(crate) fn set_shadow(&mut self, shadow: bool) {
        self.shadow = shadow;
    }

    // === to look at ===

    /// The state at `now`: it is half-open from the instant on that the open time is over, although
    /// nothing happens until somebody asks.
    pub(crate) fn state(&self, now: Moment) -> State {
        match self.phase {
            Phase::Open(until) if until <= now => State::HalfOpen,
            _ => self.phase.state(),
        }
    }

    /// Since when it is in that state.
    pub(crate) fn since(&self, now: Moment) -> Moment {
        match self.phase {
            Phase::Open(until) if until <= now => until,
            _ => self.since,
        }
    }

    /// How well the callee is, as far as calls tell. A breaker that nobody calls through knows nothing of it.
    pub(crate) fn health(&self, now: Moment) -> Health {
        let Stats { success, slow, failure, abandoned, .. } = self.stats;
        match self.phase {
            // A hand did it, and a hand knows why.
            Phase::Open(_) if self.forced => Health::Unknown,
            // Nobody has asked since it was over.
            Phase::Open(until) if until <= now => Health::Unknown,
            Phase::Open(_) => Health::Unhealthy,
            Phase::HalfOpen(_) => Health::Degraded,
            Phase::Closed if success + slow + failure + abandoned == 0 => Health::Unknown,
            Phase::Closed => Health::Healthy,
        }
    }

    /// The state that was last decided, and in which epoch.
    pub(crate) fn decided(&self) -> (u64, State) {
        (self.epoch, self.phase.state())
    }

    pub(crate) fn stats(&mut self, now: Moment) -> Stats {
        self.ring.slide(now, &mut self.stats.window);
        self.stats
    }

    pub(crate) fn is_forced(&self) -> bool {
        self.forced
    }

    pub(crate) fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// Whether nothing that matters is lost with it.
    ///
    /// One that is not closed matters until it has been left alone for so long that what it knows is
    /// old: else whoever makes many breakers open fills a bounded map for ever.
    pub(crate) fn may_be_forgotten(&self, settings: &BreakerSettings, now: Moment) -> bool {
        if self.forced || self.stats.in_flight() > 0 {
            return false;
        }
        let left_alone = || {
            self.outage.as_ref().is_none_or(|outage| {
                let alone = now.since(outage.asked);
                alone >= settings.open_max.saturating_mul(QUIET)
            })
        };
        match self.phase {
            Phase::Closed => true,
            Phase::Open(until) => until <= now && left_alone(),
            Phase::HalfOpen(_) => left_alone(),
        }
    }
}

// === impl Ticket ===

impl Ticket {
    /// For a call that is let through while it is closed.
    #[inline]
    pub(crate) const fn counted(epoch: u64, started: Moment) -> Self {
        Self { epoch, started }
    }

    #[inline]
    pub(crate) const fn epoch(self) -> u64 {
        self.epoch
    }

    /// How long the call took.
    fn took(self, now: Moment) -> Duration {
        now.since(self.started)
    }

    /// The same in nanoseconds.
    #[inline]
    pub(crate) const fn nanos(self, now: Moment) -> u64 {
        now.nanos().saturating_sub(self.started.nanos())
    }
}

// === impl Refused ===

impl Refused {
    const UNTIL_NOBODY_KNOWS: Self = Self { until: Moment::NEVER };

    #[inline]
    pub(crate) const fn new(until: Moment) -> Self {
        Self { until }
    }

    #[inline]
    pub(crate) fn until(self) -> Option<Moment> {
        self.until.if_ever()
    }
}

// === impl Outcome ===

impl Outcome {
    /// What such an end says, if it comes in time.
    fn new(settings: &BreakerSettings, took: Duration, end: End) -> Self {
        let slow = settings.is_slow(took);
        match end {
            End::Good if slow => Self::Slow,
            End::Good => Self::Success,
            // However slow it was: it counts once.
            End::Bad => Self::Failure,
            End::Neutral => Self::Neutral,
            End::DroppedLate => Self::Abandoned,
            End::Dropped if slow => Self::Abandoned,
            End::Dropped => Self::Dropped,
        }
    }
}

// === impl Phase ===

impl Phase {
    fn state(&self) -> State {
        match self {
            Self::Closed => State::Closed,
            Self::Open(_) => State::Open,
            Self::HalfOpen(_) => State::HalfOpen,
        }
    }
}

// === impl Probing ===

impl Probing {
    fn new(epoch: u64) -> Self {
        Self { epoch, in_flight: Vec::new(), successes: 0, slow: 0, given_up: 0 }
    }

    /// Gives up the probes whose lease is over. Says how many, and when the last of their leases ended.
    fn expire(&mut self, now: Moment) -> (u32, Option<Moment>) {
        let (before, mut last) = (self.in_flight.len(), None);
        self.in_flight.retain(|probe| {
            let over = probe.is_over(now);
            if over {
                last = last.max(Some(probe.until));
            }
            !over
        });
        let expired = u32::try_from(before - self.in_flight.len()).unwrap_or(u32::MAX);
        self.given_up = self.given_up.saturating_add(expired);
        (expired, last)
    }

    /// Whether one more probe is wanted: as many as must succeed are let through, and no more.
    fn has_room(&self, settings: &BreakerSettings) -> bool {
        self.in_flight.len() + (self.successes as usize) < settings.probes as usize
    }

    /// The same, after those whose lease is over were given up.
    fn would_have_room(&self, settings: &BreakerSettings, now: Moment) -> bool {
        self.has_room(settings) || self.in_flight.iter().any(|probe| probe.is_over(now))
    }

    /// Whether it holds a place.
    fn has(&self, epoch: u64) -> bool {
        self.in_flight.iter().any(|probe| probe.epoch == epoch)
    }

    /// Learns how one ended that holds a place, or that was given up and is well.
    fn end(&mut self, settings: &BreakerSettings, epoch: u64, outcome: Outcome) -> Option<Why> {
        match self.in_flight.iter().position(|probe| probe.epoch == epoch) {
            Some(place) => drop(self.in_flight.swap_remove(place)),
            None => self.given_up = self.given_up.saturating_sub(1),
        }
        match outcome {
            Outcome::Success => self.successes += 1,
            Outcome::Slow => (self.successes, self.slow) = (self.successes + 1, self.slow + 1),
            Outcome::Abandoned => self.slow += 1,
            Outcome::Failure => return Some(Why::ProbeFailed),
            // It gave its place back.
            Outcome::Neutral | Outcome::Dropped | Outcome::Stale => return None,
        }
        // The share of slow calls that opens it keeps it open, too.
        if share(self.slow, settings.probes) >= settings.slow_rate {
            Some(Why::ProbesSlow)
        } else if self.successes >= settings.probes {
            Some(Why::ProbesSucceeded)
        } else {
            None
        }
    }
}

impl Probe {
    fn is_over(&self, now: Moment) -> bool {
        self.until <= now
    }
}

// === impl Why ===

impl Why {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::FailureRate => "failure rate",
            Self::SlowRate => "slow rate",
            Self::Consecutive => "consecutive failures",
            Self::OpenTimeOver => "open time over",
            Self::ProbesSucceeded => "probes succeeded",
            Self::ProbeFailed => "probe failed",
            Self::ProbesSlow => "probes slow",
            Self::ProbesExpired => "probes expired",
            Self::Forced => "forced",
            Self::Reset => "reset",
        }
    }
}

/// The open time with jitter: evenly between that share less and that share more, and never beyond the
/// longest. Cut off there, rather than drawn in, half of all breakers would meet at the longest.
fn jittered(open: Duration, settings: &BreakerSettings, unit: f64) -> Duration {
    let off = part(open, settings.open_jitter);
    let least = open - off;
    let most = open.saturating_add(off).min(settings.open_max);
    least + part(most - least, unit)
}

/// That share of a duration, from 0 to 1. Exact where it is none of it.
fn part(whole: Duration, share: f64) -> Duration {
    let part = Duration::try_from_secs_f64(whole.as_secs_f64() * share);
    part.unwrap_or(Duration::MAX).min(whole)
}

/// Divided, not multiplied: 55 of 100 is 0.55, where 0.55 times 100 is a little more than 55.
fn share(some: u32, all: u32) -> f64 {
    f64::from(some) / f64::from(all)
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
