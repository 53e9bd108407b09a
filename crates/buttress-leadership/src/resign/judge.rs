//! Whether a leader stays, and whether a candidate stands: a function of what signals have said, and when.
//!
//! It knows no clock, no signal and no store. It is told readings, terms and vacancies; it tells what
//! follows.

use std::{collections::VecDeque, time::Duration};

use buttress_core::{Health, Reading};
use tokio::time::Instant;

use super::DegradedBy;
use crate::planted::{Plant, is_planted};

/// A signal that was unhealthy for half of this, and became so more than once, is unhealthy also while it
/// says that it is not. Long enough for some turns of a breaker that opens for 5 s, short enough for a
/// leader to leave before anybody is woken.
const FLAPS: Duration = Duration::from_secs(60);
/// An outage that is over is one time.
const TIMES: usize = 2;

/// See the module.
#[derive(Debug)]
pub(crate) struct Judge {
    rules: Rules,
    /// Of the signals that decide.
    streaks: Vec<Streak>,
    term: Option<Term>,
    /// When this process left for its signals, as long as that counts.
    resigned: VecDeque<Instant>,
    /// Since when nobody leads, as the store has said.
    vacant_since: Option<Instant>,
}

/// What of the settings it goes by.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) resign_after: Duration,
    pub(crate) min_term: Duration,
    pub(crate) budget: usize,
    pub(crate) budget_window: Duration,
    pub(crate) eligible_after: Duration,
    pub(crate) last_resort_after: Duration,
}

/// What follows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// The leader is to leave for this signal.
    pub(crate) resign: Option<usize>,
    /// It stays although this signal is unhealthy, since it is with everybody. Told once.
    pub(crate) correlated: Option<usize>,
    pub(crate) candidacy: Candidacy,
    /// Why the term is degraded, if it is.
    pub(crate) degraded: Option<DegradedBy>,
    /// When something else follows, if nothing is read by then.
    pub(crate) next: Option<Instant>,
}

/// Whether this process may ask for the lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Candidacy {
    /// It asks.
    #[default]
    Stands,
    /// It looks who leads, and does not ask.
    Looks,
    /// It asks, whether it should or not, for nobody else does. A cool-down is over.
    LastResort,
}

/// What is known of one signal.
#[derive(Debug, Default)]
struct Streak {
    last: Option<Last>,
    /// For how long it has been unhealthy, without the time for which it was unknown. `None` once it is
    /// healthy.
    ill: Option<Duration>,
    well_since: Option<Instant>,
    /// When in the last while it said that it was unhealthy, oldest first.
    times: VecDeque<(Instant, Instant)>,
    /// When in the last while that began, after it had been healthy.
    falls: VecDeque<Instant>,
    was_healthy: bool,
}

#[derive(Clone, Copy, Debug)]
struct Last {
    at: Instant,
    /// What it said.
    said: Health,
    /// What that counts as.
    health: Health,
}

#[derive(Debug)]
struct Term {
    started: Instant,
    is_leaving: bool,
    degraded: Option<DegradedBy>,
    /// The signals that do not end it.
    excused: Vec<bool>,
}

// === impl Judge ===

impl Judge {
    pub(crate) fn new(rules: Rules, signals: usize) -> Self {
        let streaks = std::iter::repeat_with(Streak::default).take(signals).collect();
        Self { rules, streaks, term: None, resigned: VecDeque::new(), vacant_since: None }
    }

    /// Sets for how long a signal is unhealthy before the leader leaves.
    pub(crate) fn hold(&mut self, time: Duration) {
        self.rules.resign_after = time;
    }

    /// That signal has just said so.
    pub(crate) fn read(&mut self, signal: usize, now: Instant, reading: Reading) {
        self.streaks[signal].read(now, reading);
    }

    /// The store has just said whether nobody leads.
    pub(crate) fn saw(&mut self, now: Instant, is_vacant: bool) {
        self.vacant_since = is_vacant.then(|| self.vacant_since.unwrap_or(now));
    }

    /// A term of this process begins. Why it is degraded, if it is.
    pub(crate) fn term_started(&mut self, now: Instant) -> Option<DegradedBy> {
        self.vacant_since = None;
        let is_well = self.is_well(now);
        let excused = self.streaks.iter().map(|streak| !is_well && !streak.is_healthy()).collect();
        let degraded = (!is_well).then_some(DegradedBy::LastResort);
        self.term = Some(Term { started: now, is_leaving: false, degraded, excused });
        degraded
    }

    /// Its leader leaves: for a signal of its own, or for whatever else.
    pub(crate) fn leaves(&mut self, now: Instant, for_signal: bool) {
        if for_signal {
            self.resigned.push_back(now);
        }
        if let Some(term) = &mut self.term {
            term.is_leaving = true;
        }
    }

    pub(crate) fn term_ended(&mut self) {
        self.term = None;
    }

    /// What follows from all that. `is_correlated` says whether leaving for that signal would mend nothing.
    pub(crate) fn judge(
        &mut self,
        now: Instant,
        mut is_correlated: impl FnMut(usize) -> bool,
    ) -> Verdict {
        let window = self.rules.budget_window;
        self.resigned.retain(|at| now.saturating_duration_since(*at) < window);
        let mut verdict = Verdict { candidacy: self.candidacy(now), ..Verdict::default() };
        verdict.next_is(self.turns_eligible(now));
        let is_well = self.is_well(now);
        let Some(term) = &mut self.term else { return verdict };
        if is_well {
            term.degraded = None;
            term.excused.fill(false);
        }
        for (signal, streak) in self.streaks.iter().enumerate() {
            if term.is_leaving || term.excused[signal] {
                continue;
            }
            let Some(due) = streak.due(now, self.rules.resign_after) else { continue };
            let min_term =
                if is_planted(Plant::NoMinTerm) { Duration::ZERO } else { self.rules.min_term };
            let due = latest(due, term.started.checked_add(min_term));
            if due.is_none_or(|due| now < due) {
                verdict.next_is(due);
                continue;
            }
            if is_correlated(signal) {
                term.excused[signal] = true;
                term.degraded.get_or_insert(DegradedBy::CorrelatedFailure);
                verdict.correlated = verdict.correlated.or(Some(signal));
                continue;
            }
            if self.rules.budget <= self.resigned.len() && !is_planted(Plant::NoBudget) {
                term.degraded.get_or_insert(DegradedBy::ResignBudget);
                verdict.next_is(self.resigned.front().and_then(|at| at.checked_add(window)));
                continue;
            }
            verdict.resign = Some(signal);
            break;
        }
        verdict.degraded = term.degraded;
        verdict
    }

    fn candidacy(&self, now: Instant) -> Candidacy {
        if self.is_last_resort(now) {
            Candidacy::LastResort
        } else if self.is_well(now) || is_planted(Plant::AnyoneStands) {
            Candidacy::Stands
        } else {
            Candidacy::Looks
        }
    }

    /// Whether all signals have been healthy for long enough.
    fn is_well(&self, now: Instant) -> bool {
        let least = self.rules.eligible_after;
        self.streaks.iter().all(|streak| streak.well_for(now).is_some_and(|time| least <= time))
    }

    fn is_last_resort(&self, now: Instant) -> bool {
        if is_planted(Plant::NoLastResort) {
            return false;
        }
        let least = self.rules.last_resort_after;
        let since = |at: Instant| now.saturating_duration_since(at);
        self.vacant_since.is_some_and(|at| least <= since(at))
    }

    /// When it may stand next, if it may not now and nothing else happens.
    fn turns_eligible(&self, now: Instant) -> Option<Instant> {
        let healthy = self.streaks.iter().map(|streak| streak.well_since);
        let well = healthy.collect::<Option<Vec<_>>>().and_then(|since| since.into_iter().max());
        let well = well.and_then(|since| since.checked_add(self.rules.eligible_after));
        let vacant = self.vacant_since.and_then(|at| at.checked_add(self.rules.last_resort_after));
        [well, vacant].into_iter().flatten().filter(|at| now < *at).min()
    }
}

// === impl Streak ===

impl Streak {
    fn read(&mut self, now: Instant, reading: Reading) {
        let said = reading.health;
        let since = reading.since.unwrap_or(now).min(now);
        // What was not looked at before is believed. Later on, what it was when it was looked at stands.
        let last = self.last.unwrap_or(Last { at: since, said, health: Health::Unknown });
        let now = now.max(last.at);
        let turned = if said == last.said { now } else { since.clamp(last.at, now) };
        self.was(last.at, turned, last.said);
        self.was(turned, now, said);
        let health = match said {
            Health::Healthy | Health::Degraded if self.flaps(now) => Health::Unhealthy,
            Health::Unknown if is_planted(Plant::UnknownIsUnhealthy) => Health::Unhealthy,
            said => said,
        };
        // It counts as unhealthy from the look on that found it so, if it does not say so itself.
        let turned = match health {
            _ if self.last.is_none() => since,
            health if health == last.health => now,
            health if health == said => turned,
            _ => now,
        };
        self.count(last, turned, now, health);
        self.last = Some(Last { at: now, said, health });
    }

    /// Adds up for how long it has been unhealthy: as it was before until it `turned`, and as it is from
    /// then on.
    fn count(&mut self, last: Last, turned: Instant, now: Instant, health: Health) {
        let runs = |health| matches!(health, Health::Unhealthy | Health::Degraded);
        if let Some(ill) = self.ill.as_mut().filter(|_| runs(last.health)) {
            *ill += turned.saturating_duration_since(last.at);
        }
        match health {
            Health::Healthy => {
                self.ill = None;
                self.well_since.get_or_insert(turned);
                return;
            }
            Health::Unhealthy => {
                self.ill.get_or_insert_default();
            }
            _ => {}
        }
        self.well_since = None;
        if let Some(ill) = self.ill.as_mut().filter(|_| runs(health)) {
            *ill += now.saturating_duration_since(turned);
        }
    }

    /// It was so, from then to then.
    fn was(&mut self, from: Instant, to: Instant, health: Health) {
        self.was_healthy |= health == Health::Healthy;
        if health != Health::Unhealthy || to <= from {
            return;
        }
        if std::mem::take(&mut self.was_healthy) {
            self.falls.push_back(from);
        }
        match self.times.back_mut() {
            Some((_, end)) if *end == from => *end = to,
            _ => self.times.push_back((from, to)),
        }
    }

    /// Whether it was unhealthy for half of the last while, and not in one go.
    fn flaps(&mut self, now: Instant) -> bool {
        let Some(start) = now.checked_sub(FLAPS) else { return false };
        self.times.retain(|(_, to)| start < *to);
        self.falls.retain(|at| start < *at);
        let ill =
            |(from, to): &(Instant, Instant)| to.saturating_duration_since((*from).max(start));
        let ill: Duration = self.times.iter().map(ill).sum();
        TIMES <= self.falls.len() && FLAPS <= 2 * ill
    }

    fn is_healthy(&self) -> bool {
        self.well_since.is_some()
    }

    fn well_for(&self, now: Instant) -> Option<Duration> {
        Some(now.saturating_duration_since(self.well_since?))
    }

    /// When it has been unhealthy for so long, if it stays as it is. `None` if that is never.
    fn due(&self, now: Instant, hold: Duration) -> Option<Instant> {
        let (ill, last) = (self.ill?, self.last?);
        if last.health == Health::Unknown {
            return None;
        }
        if is_planted(Plant::NoHold) {
            return Some(now);
        }
        let left = hold.saturating_sub(ill + now.saturating_duration_since(last.at));
        now.checked_add(left)
    }
}

// === impl Verdict ===

impl Verdict {
    fn next_is(&mut self, at: Option<Instant>) {
        self.next = self.next.into_iter().chain(at).min();
    }
}

/// The later of the two; never, if the other one is beyond all time.
fn latest(one: Instant, other: Option<Instant>) -> Option<Instant> {
    other.map(|other| other.max(one))
}

#[cfg(all(test, not(buttress_loom)))]
mod tests;
