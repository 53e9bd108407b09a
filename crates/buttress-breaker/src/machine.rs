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

use std::time::Duration;

use tokio::time::Instant;

use crate::{
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
    epoch: u64,
    since: Instant,
    /// When somebody last asked to be let through while it was not closed.
    asked: Instant,
    ring: Ring,
    /// Failures in a row.
    run: u32,
    /// The open time of this outage, before jitter. It doubles from trip to trip.
    open_time: Duration,
    stats: Stats,
    news: Vec<Transition>,
}

#[derive(Debug)]
enum Phase {
    Closed,
    /// Until an instant, or for ever.
    Open(Option<Instant>),
    /// Apart, so that the many breakers that are closed do not keep room for it.
    HalfOpen(Box<Probing>),
}

/// The probes of one half-open phase.
#[derive(Debug, Default)]
struct Probing {
    in_flight: Vec<Probe>,
    /// The number of the next probe. None is given twice, so that who comes late is known.
    next: u32,
    successes: u32,
    slow: u32,
    expired: u32,
}

#[derive(Debug)]
struct Probe {
    number: u32,
    /// When it may be replaced, or never.
    until: Option<Instant>,
}

/// What a call carries from its admission to its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    epoch: u64,
    kind: Kind,
    started: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// One of many, while closed.
    Counted,
    /// The probe of that number.
    Probe(u32),
    /// A shadow would have refused it, and so learns nothing from it.
    Unseen,
}

/// A call was refused. It may come again after a while, where that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) retry_in: Option<Duration>,
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
    pub(crate) fn new(settings: &BreakerSettings, now: Instant) -> Self {
        Self {
            phase: Phase::Closed,
            forced: false,
            shadow: settings.shadow,
            epoch: 0,
            since: now,
            asked: now,
            ring: Ring::new(settings.window, now),
            run: 0,
            open_time: Duration::ZERO,
            stats: Stats::default(),
            news: Vec::new(),
        }
    }

    /// Lets a call through, or refuses it.
    pub(crate) fn admit(
        &mut self,
        settings: &BreakerSettings,
        now: Instant,
        unit: impl Fn() -> f64,
    ) -> Result<Ticket, Refused> {
        let kind = match self.ask(settings, now, unit) {
            Ok(kind) => kind,
            Err(_) if self.shadow => {
                self.stats.shadowed += 1;
                Kind::Unseen
            }
            Err(refused) => {
                self.stats.rejected += 1;
                return Err(refused);
            }
        };
        self.stats.started += 1;
        Ok(Ticket { epoch: self.epoch, kind, started: now })
    }

    fn ask(
        &mut self,
        settings: &BreakerSettings,
        now: Instant,
        unit: impl Fn() -> f64,
    ) -> Result<Kind, Refused> {
        if !self.is_closed() {
            self.asked = self.asked.max(now);
        }
        loop {
            match &mut self.phase {
                Phase::Closed => return Ok(Kind::Counted),
                // ## Open => (Open | HalfOpen)
                Phase::Open(until) => match *until {
                    Some(until) if until <= now => {
                        self.turn(now, Phase::HalfOpen(Box::default()), Why::OpenTimeOver);
                    }
                    until => return Err(Refused { retry_in: until.map(|until| until - now) }),
                },
                // ## HalfOpen => (HalfOpen | Open)
                Phase::HalfOpen(probing) => {
                    let (expired, last) = probing.expire(now);
                    self.stats.expired += u64::from(expired);
                    // As many again as there are probes: the callee hangs.
                    if probing.expired > settings.probes {
                        self.trip(settings, last.unwrap_or(now), unit(), Why::ProbesExpired);
                        continue;
                    }
                    if !probing.has_room(settings) {
                        return Err(Refused { retry_in: None });
                    }
                    return Ok(Kind::Probe(probing.start(now.checked_add(settings.lease()))));
                }
            }
        }
    }

    /// Refuses a call without asking.
    pub(crate) fn refuse(&mut self, now: Instant) -> Refused {
        self.stats.rejected += 1;
        let retry_in = match self.phase {
            Phase::Open(until) => until.map(|until| until.saturating_duration_since(now)),
            Phase::Closed | Phase::HalfOpen(_) => None,
        };
        Refused { retry_in }
    }

    /// Whether every call is let through, whatever the time.
    pub(crate) fn is_closed(&self) -> bool {
        matches!(self.phase, Phase::Closed)
    }

    /// Whether a call that asks at `now` would be refused.
    pub(crate) fn refuses(&self, settings: &BreakerSettings, now: Instant) -> bool {
        let refuses = match &self.phase {
            Phase::Closed => false,
            Phase::Open(until) => until.is_none_or(|until| now < until),
            Phase::HalfOpen(probing) => !probing.would_have_room(settings, now),
        };
        refuses && !self.shadow
    }

    /// Learns how a call ended.
    pub(crate) fn end(
        &mut self,
        settings: &BreakerSettings,
        now: Instant,
        unit: impl Fn() -> f64,
        ticket: Ticket,
        end: End,
    ) {
        let outcome = self.outcome(settings, now, ticket, end);
        self.count(outcome);
        let Some(decided) = self.learn(settings, now, ticket, outcome) else { return };
        match decided {
            Why::ProbesSucceeded => self.close(now, decided),
            why => self.trip(settings, now, unit(), why),
        }
    }

    fn outcome(
        &self,
        settings: &BreakerSettings,
        now: Instant,
        ticket: Ticket,
        end: End,
    ) -> Outcome {
        if self.is_stale(ticket) {
            return Outcome::Stale;
        }
        let took = now.saturating_duration_since(ticket.started);
        let slow = settings.slow_call.is_some_and(|slow| slow <= took);
        match end {
            End::Good if slow => Outcome::Slow,
            End::Good => Outcome::Success,
            // However slow it was: it counts once.
            End::Bad => Outcome::Failure,
            End::Neutral => Outcome::Neutral,
            End::DroppedLate => Outcome::Abandoned,
            End::Dropped if slow => Outcome::Abandoned,
            End::Dropped => Outcome::Dropped,
        }
    }

    fn is_stale(&self, ticket: Ticket) -> bool {
        match ticket.kind {
            Kind::Unseen => false,
            Kind::Counted => ticket.epoch != self.epoch,
            Kind::Probe(number) => {
                ticket.epoch != self.epoch
                    || !matches!(&self.phase, Phase::HalfOpen(probing) if probing.knows(number))
            }
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
        now: Instant,
        ticket: Ticket,
        outcome: Outcome,
    ) -> Option<Why> {
        if outcome == Outcome::Stale || self.forced {
            return None;
        }
        match (&mut self.phase, ticket.kind) {
            (Phase::Closed, Kind::Counted) => self.judge(settings, now, outcome),
            (Phase::HalfOpen(probing), Kind::Probe(number)) => {
                probing.end(settings, number, outcome)
            }
            _ => None,
        }
    }

    /// Looks at the window again, with one more outcome in it.
    fn judge(&mut self, settings: &BreakerSettings, now: Instant, outcome: Outcome) -> Option<Why> {
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
        if settings.consecutive.is_some_and(|most| most <= self.run) {
            return Some(Why::Consecutive);
        }
        let tally = self.stats.window;
        if tally.calls < settings.min_calls {
            None
        } else if share(tally.failures, tally.calls) >= settings.failure_rate {
            Some(Why::FailureRate)
        } else if share(tally.slow, tally.calls) >= settings.slow_rate {
            Some(Why::SlowRate)
        } else {
            None
        }
    }

    /// Opens, as of an instant that may lie in the past.
    fn trip(&mut self, settings: &BreakerSettings, at: Instant, unit: f64, why: Why) {
        self.open_time = match self.phase {
            Phase::HalfOpen(_) => self.open_time.saturating_mul(2).min(settings.open_max),
            Phase::Closed | Phase::Open(_) => settings.open,
        };
        let until = at.checked_add(jittered(self.open_time, settings, unit));
        self.turn(at, Phase::Open(until), why);
    }

    fn close(&mut self, at: Instant, why: Why) {
        self.ring.clear(&mut self.stats.window);
        self.run = 0;
        self.open_time = Duration::ZERO;
        self.turn(at, Phase::Closed, why);
    }

    /// Begins a new epoch.
    fn turn(&mut self, at: Instant, phase: Phase, why: Why) {
        let from = self.phase.state();
        self.phase = phase;
        self.epoch += 1;
        let to = self.phase.state();
        if from != to {
            self.since = at;
        }
        if to == State::Open && from != State::Open {
            self.stats.opened += 1;
        }
        self.asked = self.asked.max(at);
        let (epoch, shadow) = (self.epoch, self.shadow);
        self.news.push(Transition { epoch, from, to, why, shadow });
    }

    /// What it decided since this was last called.
    pub(crate) fn news(&mut self) -> Vec<Transition> {
        std::mem::take(&mut self.news)
    }

    // === by hand ===

    pub(crate) fn force_open(&mut self, now: Instant) {
        self.forced = true;
        self.turn(now, Phase::Open(None), Why::Forced);
    }

    pub(crate) fn force_closed(&mut self, now: Instant) {
        self.forced = true;
        self.close(now, Why::Forced);
    }

    pub(crate) fn reset(&mut self, now: Instant) {
        self.forced = false;
        self.close(now, Why::Reset);
    }

    pub(crate) fn set_shadow(&mut self, shadow: bool) {
        self.shadow = shadow;
    }

    // === to look at ===

    /// The state at `now`: it is half-open from the instant on that the open time is over, although
    /// nothing happens until somebody asks.
    pub(crate) fn state(&self, now: Instant) -> State {
        match self.phase {
            Phase::Open(Some(until)) if until <= now => State::HalfOpen,
            _ => self.phase.state(),
        }
    }

    /// Since when it is in that state.
    pub(crate) fn since(&self, now: Instant) -> Instant {
        match self.phase {
            Phase::Open(Some(until)) if until <= now => until,
            _ => self.since,
        }
    }

    /// The state that was last decided, and in which epoch.
    pub(crate) fn decided(&self) -> (u64, State) {
        (self.epoch, self.phase.state())
    }

    pub(crate) fn stats(&mut self, now: Instant) -> Stats {
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
    pub(crate) fn may_be_forgotten(&self, settings: &BreakerSettings, now: Instant) -> bool {
        if self.forced || self.stats.in_flight() > 0 {
            return false;
        }
        let left_alone = || {
            let alone = now.saturating_duration_since(self.asked);
            alone >= settings.open_max.saturating_mul(QUIET)
        };
        match self.phase {
            Phase::Closed => true,
            Phase::Open(until) => until.is_some_and(|until| until <= now) && left_alone(),
            Phase::HalfOpen(_) => left_alone(),
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
    /// Gives up the probes whose lease is over. Says how many, and when the last of their leases ended.
    fn expire(&mut self, now: Instant) -> (u32, Option<Instant>) {
        let (before, mut last) = (self.in_flight.len(), None);
        self.in_flight.retain(|probe| {
            let over = probe.is_over(now);
            if over {
                last = last.max(probe.until);
            }
            !over
        });
        let expired = u32::try_from(before - self.in_flight.len()).unwrap_or(u32::MAX);
        self.expired = self.expired.saturating_add(expired);
        (expired, last)
    }

    /// Whether one more probe is wanted: as many as must succeed are let through, and no more.
    fn has_room(&self, settings: &BreakerSettings) -> bool {
        self.in_flight.len() + (self.successes as usize) < settings.probes as usize
    }

    /// The same, after those whose lease is over were given up.
    fn would_have_room(&self, settings: &BreakerSettings, now: Instant) -> bool {
        self.has_room(settings) || self.in_flight.iter().any(|probe| probe.is_over(now))
    }

    fn start(&mut self, until: Option<Instant>) -> u32 {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        self.in_flight.push(Probe { number, until });
        number
    }

    fn knows(&self, number: u32) -> bool {
        self.in_flight.iter().any(|probe| probe.number == number)
    }

    fn end(&mut self, settings: &BreakerSettings, number: u32, outcome: Outcome) -> Option<Why> {
        self.in_flight.retain(|probe| probe.number != number);
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
    fn is_over(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now)
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
