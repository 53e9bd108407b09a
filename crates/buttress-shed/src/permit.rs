use std::{fmt, mem};

use buttress_core::{Class, Deadline};
use tokio::time::Instant;

use crate::Shed;

/// One of the places of a [`Shed`], held. Dropped, it goes to the next in that instant.
///
/// [`report`](buttress_core::Permit::report) says how the request ended, and how long such requests take
/// is learned from that. Dropped, nothing is learned.
#[must_use = "a permit that is dropped goes to the next"]
pub struct Permit {
    /// Gone once the place has come back.
    shed: Option<Shed>,
    started: Instant,
    deadline: Option<Deadline>,
    in_flight: usize,
}

impl Permit {
    #[inline]
    pub(crate) fn new(
        shed: Shed,
        started: Instant,
        deadline: Option<Deadline>,
        in_flight: usize,
    ) -> Self {
        Self { shed: Some(shed), started, deadline, in_flight }
    }

    /// The deadline, where it was not known when the permit was given.
    #[inline]
    pub(crate) const fn set_deadline(&mut self, deadline: Option<Deadline>) {
        self.deadline = deadline;
    }

    #[inline]
    fn end(&mut self, class: Option<Class>) {
        if let Some(shed) = self.shed.take() {
            shed.end(self.started, self.deadline, self.in_flight, class);
        }
    }
}

impl buttress_core::Permit for Permit {
    // Always: where it is known how a call ended, next to nothing of this is left.
    #[inline(always)]
    fn report(mut self, class: Class) {
        self.end(Some(class));
        // Nothing is left in it.
        mem::forget(self);
    }
}

impl Drop for Permit {
    #[inline]
    fn drop(&mut self) {
        self.end(None);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("started", &self.started).finish_non_exhaustive()
    }
}
