use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use crate::{BootTime, FencingToken, LeaseClock, LeaseName};

/// When a candidate has seen what: for a store that leaves it to [each of them](crate::Expiry::Observed) to decide that
/// a lease is over.
///
/// The store writes a number beside the lease that changes with each write. A lease is over for whoever has seen no
/// other number for as long as it lasts, by a clock of its own; and it is taken just if the number is still that one.
///
/// # Examples
///
/// ```
/// use buttress_leadership::{FencingToken, LeaseClock, LeaseName, Observations};
/// use std::time::Duration;
///
/// let (clock, name) = (LeaseClock::simulated(), LeaseName::new("a")?);
/// let observations = Observations::new(clock.clone());
/// let fence = FencingToken::new(7).unwrap();
/// observations.see(&name, fence, 1);
/// clock.suspend(Duration::from_secs(15));
/// let seen = observations.see(&name, fence, 1);
/// assert!(Duration::from_secs(15) <= seen.now.since(seen.since), "nobody has renewed it for so long");
/// # Ok::<(), buttress_core::InvalidSetting>(())
/// ```
#[derive(Debug)]
pub struct Observations {
    clock: LeaseClock,
    seen: Mutex<HashMap<LeaseName, Observation>>,
}

/// The latest state of a lease, and since when it is known to be so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Observation {
    /// The token of the term.
    pub fence: FencingToken,
    /// The number that changes with each write.
    pub revision: u64,
    /// When the term was seen first.
    pub term_since: BootTime,
    /// When this state of it was.
    pub since: BootTime,
    /// When it was seen last: now.
    pub now: BootTime,
}

// === impl Observations ===

impl Observations {
    /// By that clock.
    #[must_use]
    pub fn new(clock: LeaseClock) -> Self {
        Self { clock, seen: Mutex::default() }
    }

    /// Notes a state that the store has just told of. It was written before, so that a lease which is counted
    /// from here is never too short.
    pub fn see(&self, name: &LeaseName, fence: FencingToken, revision: u64) -> Observation {
        let now = self.clock.now();
        let mut all = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let same_term = all.get(name).filter(|before| before.fence == fence);
        let same = same_term.filter(|before| before.revision == revision);
        let seen = Observation {
            fence,
            revision,
            term_since: same_term.map_or(now, |before| before.term_since),
            since: same.map_or(now, |before| before.since),
            now,
        };
        all.insert(name.clone(), seen);
        seen
    }
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_state_counts_from_when_it_was_seen_first_and_so_does_its_term() {
        let clock = LeaseClock::simulated();
        let observations = Observations::new(clock.clone());
        let [a, b] = ["a", "b"].map(|name| LeaseName::new(name).unwrap());
        let start = clock.now();
        let seen = |name: &LeaseName, fence, revision| {
            let seen = observations.see(name, FencingToken::new(fence).unwrap(), revision);
            clock.suspend(Duration::from_secs(1));
            [seen.term_since, seen.since, seen.now].map(|at| at.since(start).as_secs())
        };
        assert_eq!(seen(&a, 7, 1), [0, 0, 0]);
        assert_eq!(seen(&a, 7, 1), [0, 0, 1]);
        assert_eq!(seen(&a, 7, 2), [0, 2, 2], "it was renewed");
        assert_eq!(seen(&b, 7, 2), [3, 3, 3], "this is another lease");
        assert_eq!(seen(&a, 7, 2), [0, 2, 4]);
        assert_eq!(seen(&a, 8, 2), [5, 5, 5], "this is another term, whatever its number is");
        assert_eq!(seen(&a, 7, 2), [6, 6, 6], "and what is back is new");
    }
}
