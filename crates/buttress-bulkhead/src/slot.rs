use std::fmt;

use buttress_core::{Class, Permit};

use crate::Bulkhead;

/// One of a bulkhead's slots, held. Dropped, it is free again in that instant.
#[must_use = "a slot that is dropped is free for the next"]
pub struct Slot {
    bulkhead: Bulkhead,
}

impl Slot {
    #[inline]
    pub(crate) fn new(bulkhead: Bulkhead) -> Self {
        Self { bulkhead }
    }
}

/// How the call ended makes no difference: the slot is given back.
impl Permit for Slot {
    #[inline]
    fn report(self, _: Class) {}
}

impl Drop for Slot {
    #[inline]
    fn drop(&mut self) {
        self.bulkhead.give_back();
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").finish_non_exhaustive()
    }
}
