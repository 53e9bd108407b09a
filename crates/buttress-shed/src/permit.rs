use std::fmt;

use buttress_core::{Class, Deadline};
use tokio::time::Instant;

use crate::Shed;

/// One of the places of a [`Shed`], held. Dropped, it goes to the next in that instant.
///
/// [`report`](buttress_core::Permit::report) says how the request ended, and how long such requests take
/// is learned from that. Dropped, nothing is learned.
#[must_use = "a permit that is dropped goes to the next"]
pub struct Permit {
    shed: Shed,
    started: Instant,
    deadline: Option<Deadline>,
    in_flight: usize,
    class: Option<Class>,
}

impl Permit {
    #[inline]
    pub(crate) fn new(
        shed: Shed,
        started: Instant,
        deadline: Option<Deadline>,
        in_flight: usize,
    ) -> Self {
        Self { shed, started, deadline, in_flight, class: None }
    }

    /// The deadline, where it was not known when the permit was given.
    pub(crate) const fn set_deadline(&mut self, deadline: Option<Deadline>) {
        self.deadline = deadline;
    }
}

impl buttress_core::Permit for Permit {
    #[inline]
    fn report(mut self, class: Class) {
        self.class = Some(class);
    }
}

impl Drop for Permit {
    #[inline]
    fn drop(&mut self) {
        self.shed.end(self.started, self.deadline, self.in_flight, self.class);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("started", &self.started).finish_non_exhaustive()
    }
}
