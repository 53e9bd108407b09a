//! When a candidate has seen what: for it alone to decide that a lease is over.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use buttress_leadership::{BootTime, FencingToken, LeaseClock, LeaseName};

pub(crate) struct Observed {
    clock: LeaseClock,
    seen: Mutex<HashMap<LeaseName, Seen>>,
}

/// The latest state of a lease, and since when it is known to be so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) fence: FencingToken,
    pub(crate) revision: u64,
    /// When the term was seen first.
    pub(crate) term_since: BootTime,
    /// When this state was.
    pub(crate) since: BootTime,
    pub(crate) now: BootTime,
}

impl Observed {
    pub(crate) fn new(clock: LeaseClock) -> Self {
        Self { clock, seen: Mutex::default() }
    }

    /// Notes a state that the server has just told of. It was written before, so that a lease which is counted
    /// from here is never too short.
    pub(crate) fn see(&self, name: &LeaseName, fence: FencingToken, revision: u64) -> Seen {
        let now = self.clock.now();
        let mut all = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let same_term = all.get(name).filter(|before| before.fence == fence);
        let same = same_term.filter(|before| before.revision == revision);
        let seen = Seen {
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
