use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use buttress_core::{Health, HealthSignal, Reading, edge};
use tokio::time::Instant;

use crate::{Leadership, State, clock::nanos};

/// Whether an elector does its rounds: for a liveness check.
///
/// An election that ended unnoticed looks like one that is lost again and again: this process never leads,
/// and all is green. Healthy as long as the elector takes its next step when it has to, or no more than a
/// lease's duration later. Unhealthy once it hangs (in a store that blocks its thread, in an observer), has
/// ended, or was dropped: only a new process helps. Unknown before it runs.
///
/// It does not ask whether this process leads, and a store that does not answer is no reason: a new process
/// has the same one.
///
/// It comes from [`Leadership::liveness`]. After a machine was suspended, or a process stopped for longer than
/// a lease, it may be unhealthy for the moment until the elector goes on: let a check fail twice before
/// anything is done about it.
#[derive(Clone, Debug)]
pub struct Liveness {
    leadership: Leadership,
}

/// Whether somebody leads: for a page, an alert, or the readiness of those who need a leader.
///
/// Healthy as long as this process leads, or its store said not longer ago than `within` that another one does. Then
/// unhealthy: nobody does, or nobody can tell. Unknown until the first time is up.
///
/// It comes from [`Leadership::leader_seen`].
#[derive(Clone, Debug)]
pub struct LeaderSeen {
    leadership: Leadership,
    within: Duration,
}

/// When an elector steps next, and when it saw a leader last: in nanoseconds from its making on.
#[derive(Debug)]
pub(crate) struct Turns {
    origin: Instant,
    /// Zero before it runs.
    due: AtomicU64,
    /// Zero before it saw one.
    led: AtomicU64,
}

const UNKNOWN: Reading = Reading { health: Health::Unknown, since: None };

// === impl Leadership ===

impl Leadership {
    /// Whether the elector does its rounds, as a signal.
    #[must_use]
    pub fn liveness(&self) -> Liveness {
        Liveness { leadership: self.clone() }
    }

    /// Whether somebody was seen to lead within that time, as a signal.
    ///
    /// Twice the [lease](crate::LeaseConfig::lease_duration) is a good bound: a leader that dies is replaced
    /// within little more than one. Less than one is too little, since candidates do not look all the time.
    ///
    /// ```
    /// use buttress_core::{Health, HealthSignal, edge};
    /// use buttress_leadership::{Elector, LeaseConfig, LeaseName, MemoryStore};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let elector = Elector::new(MemoryStore::new(), LeaseConfig::new(LeaseName::new("a")?))?;
    /// let leader_seen = elector.leadership().leader_seen(Duration::from_secs(30));
    /// let running = elector.spawn();
    /// tokio::time::sleep(Duration::from_secs(60)).await;
    /// assert_eq!(leader_seen.sample(edge::now()).health, Health::Healthy);
    /// running.stop().await;
    /// tokio::time::sleep(Duration::from_secs(60)).await;
    /// assert_eq!(leader_seen.sample(edge::now()).health, Health::Unhealthy);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn leader_seen(&self, within: Duration) -> LeaderSeen {
        LeaderSeen { leadership: self.clone(), within }
    }
}

// === impl Liveness ===

impl HealthSignal for Liveness {
    fn sample(&self, now: Instant) -> Reading {
        let shared = &self.leadership.shared;
        // An elector may be dropped, and its task, before it ever ran.
        if shared.standing.borrow().state == State::Stopped {
            return Reading { health: Health::Unhealthy, since: None };
        }
        let Some(due) = shared.turns.at(&shared.turns.due) else { return UNKNOWN };
        late(now, due, shared.lease_duration())
    }
}

// === impl LeaderSeen ===

impl HealthSignal for LeaderSeen {
    fn sample(&self, now: Instant) -> Reading {
        if self.leadership.is_leader() {
            return Reading { health: Health::Healthy, since: None };
        }
        let turns = &self.leadership.shared.turns;
        match turns.at(&turns.led) {
            Some(led) => late(now, led, self.within),
            None => match late(now, turns.origin, self.within) {
                Reading { health: Health::Healthy, .. } => UNKNOWN,
                reading => reading,
            },
        }
    }
}

/// Unhealthy once it is longer ago than `within`.
fn late(now: Instant, at: Instant, within: Duration) -> Reading {
    if now.saturating_duration_since(at) <= within {
        Reading { health: Health::Healthy, since: None }
    } else {
        Reading { health: Health::Unhealthy, since: at.checked_add(within) }
    }
}

// === impl Turns ===

impl Turns {
    /// It will step by then.
    pub(crate) fn expect(&self, by: Instant) {
        self.set(&self.due, by);
    }

    /// Somebody leads, as it sees now.
    pub(crate) fn sees_a_leader(&self) {
        self.set(&self.led, edge::now());
    }

    fn set(&self, of: &AtomicU64, at: Instant) {
        of.store(nanos(at.saturating_duration_since(self.origin)).max(1), Relaxed);
    }

    fn at(&self, of: &AtomicU64) -> Option<Instant> {
        let nanos = of.load(Relaxed);
        (nanos > 0).then(|| self.origin + Duration::from_nanos(nanos))
    }
}

impl Default for Turns {
    fn default() -> Self {
        Self { origin: edge::now(), due: AtomicU64::new(0), led: AtomicU64::new(0) }
    }
}
