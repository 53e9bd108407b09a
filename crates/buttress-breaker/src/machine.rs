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
//!
//! A probe holds its place on a **lease**. When that is over the place is free, but a good answer is good
//! still: if the epoch is the same, it counts as if it had been in time. Where so many were given up that
//! the breaker has opened again, it comes too late, but the next leases are as long as it took. Else a
//! callee whose answers take longer than the lease would be cut off for ever, though it is well.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    gate::{Counted, Promise},
    settings::BreakerSettings,
    stats::{State, Stats},
    window::{Mark, Ring, nanos},
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
    asked: Instant,
    /// How long the longest good answer of a probe took that came after its epoch. No lease is shorter: who
    /// was given up too soon once must not be given up too soon each time.
    late: Duration,
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
    /// Those whose lease was over, and which have not answered well since.
    given_up: u32,
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
    /// Where it matters how long it takes.
    started: Option<Instant>,
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
        Ok(Ticket { epoch: self.epoch, kind, started: Some(now) })
    }

    fn ask(
        &mut self,
        settings: &BreakerSettings,
        now: Instant,
        unit: impl Fn() -> f64,
    ) -> Result<Kind, Refused> {
        if let Some(outage) = &mut self.outage {
            outage.asked = outage.asked.max(now);
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
                    // As many as there are probes, and of their successors one: the callee hangs.
                    if probing.given_up > settings.probes {
                        self.trip(settings, last.unwrap_or(now), unit(), Why::ProbesExpired);
                        continue;
                    }
                    if !probing.has_room(settings) {
                        return Err(Refused { retry_in: None });
                    }
                    let late = self.outage.as_ref().map_or(Duration::ZERO, |outage| outage.late);
                    // One answer that took an hour must not keep all probes back for the next.
                    let late = late.min(settings.open_max.saturating_mul(QUIET));
                    let lease = settings.lease().max(late);
                    return Ok(Kind::Probe(probing.start(now.checked_add(lease))));
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
        match (&self.phase, ticket.kind) {
            (_, Kind::Unseen) => true,
            _ if ticket.epoch != self.epoch => false,
            // Given up, it has given way: nothing but that the callee is well is still news.
            (Phase::HalfOpen(probing), Kind::Probe(number)) => {
                said == Outcome::Success || probing.has(number)
            }
            _ => true,
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
        self.verdict(settings)
    }

    /// Why it is time to open, if it is.
    fn verdict(&self, settings: &BreakerSettings) -> Option<Why> {
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
        let epoch = self.epoch + 1;
        let outage = self.outage.get_or_insert_with(|| {
            let (open_time, late) = (settings.open, Duration::ZERO);
            Box::new(Outage { epoch, open_time, asked: at, late })
        });
        if let Phase::HalfOpen(_) = self.phase {
            outage.open_time = outage.open_time.saturating_mul(2).min(settings.open_max);
        }
        let until = at.checked_add(jittered(outage.open_time, settings, unit));
        self.turn(at, Phase::Open(until), why);
    }

    fn close(&mut self, at: Instant, why: Why) {
        self.ring.clear(&mut self.stats.window);
        self.run = 0;
        self.outage = None;
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
        if let Some(outage) = &mut self.outage {
            outage.asked = outage.asked.max(at);
        }
        let (epoch, shadow) = (self.epoch, self.shadow);
        let news = self.news.get_or_insert_default();
        news.0.push(Transition { epoch, from, to, why, shadow });
    }

    // === past the lock ===

    /// What it would answer whoever comes next, and what it would do. Time counts from `origin`.
    pub(crate) fn promise(&self, settings: &BreakerSettings, origin: Instant) -> Promise {
        let closed = self.is_closed();
        // More successes make no share larger. But fewer calls than the minimum are not looked at yet, and one
        // more might change that; so it might where calls have left the window since. (Forced, it looks at
        // none.)
        let counts = closed
            && self.stats.window.calls >= settings.min_calls
            && self.verdict(settings).is_none();
        let until = match self.phase {
            Phase::Open(until) if !self.shadow => Some(until),
            _ => None,
        };
        let since_origin = |until: Option<Instant>| {
            until.map_or(u64::MAX, |until| nanos(until.saturating_duration_since(origin)))
        };
        Promise {
            admits: closed,
            epoch: self.epoch,
            refuses_until: until.map(since_origin),
            counts_until: counts.then(|| self.ring.newest_ends(origin)),
        }
    }

    /// Takes in what was counted on its promise.
    pub(crate) fn take_in(&mut self, counted: Counted) {
        let Counted { started, refused, good } = counted;
        self.stats.started += u64::from(started);
        self.stats.rejected += u64::from(refused);
        if let (Phase::Open(Some(until)), Some(outage), 1..) =
            (&self.phase, &mut self.outage, refused)
        {
            // Nobody wrote down when: no later than then.
            outage.asked = outage.asked.max(*until);
        }
        if good > 0 {
            self.stats.success += u64::from(good);
            self.ring.record_good(good, &mut self.stats.window);
            self.run = 0;
        }
    }

    /// What it decided since this was last called.
    pub(crate) fn news(&mut self) -> Vec<Transition> {
        self.news.take().map(|news| news.0).unwrap_or_default()
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
            self.outage.as_ref().is_none_or(|outage| {
                let alone = now.saturating_duration_since(outage.asked);
                alone >= settings.open_max.saturating_mul(QUIET)
            })
        };
        match self.phase {
            Phase::Closed => true,
            Phase::Open(until) => until.is_some_and(|until| until <= now) && left_alone(),
            Phase::HalfOpen(_) => left_alone(),
        }
    }
}

// === impl Ticket ===

impl Ticket {
    /// For a call that is let through while it is closed.
    pub(crate) const fn counted(epoch: u64, started: Option<Instant>) -> Self {
        Self { epoch, kind: Kind::Counted, started }
    }

    /// The epoch, if it is of a call that was let through while it was closed, and not of a probe.
    pub(crate) fn counted_in(&self) -> Option<u64> {
        (self.kind == Kind::Counted).then_some(self.epoch)
    }

    /// How long the call took.
    pub(crate) fn took(&self, now: Instant) -> Duration {
        self.started.map_or(Duration::ZERO, |started| now.saturating_duration_since(started))
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
        self.given_up = self.given_up.saturating_add(expired);
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

    /// Whether it holds a place.
    fn has(&self, number: u32) -> bool {
        self.in_flight.iter().any(|probe| probe.number == number)
    }

    /// Learns how one ended that holds a place, or that was given up and is well.
    fn end(&mut self, settings: &BreakerSettings, number: u32, outcome: Outcome) -> Option<Why> {
        match self.in_flight.iter().position(|probe| probe.number == number) {
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
