use std::time::Duration;

use buttress_core::{Class, InvalidSetting};
use tokio::time::Instant;

/// How many requests may be in flight at once.
///
/// Today it is a [number](FixedLimit). A limit that finds the number by itself will be another
/// implementation: so it is told how each call ended. It is not for others to implement as long as
/// what it is told may still change.
pub trait LimitAlgorithm: sealed::Sealed + Send + Sync {
    /// How many may be in flight now. Less than one is taken for one.
    ///
    /// It is asked whenever a request arrives, ends or gives up waiting. So a limit that has grown is
    /// noticed then; one that has shrunk takes nothing from those in flight, but admits nobody until
    /// enough of them have ended.
    fn current(&self) -> usize;

    /// Whether it wants to learn how calls end. Asked once, when the shed is made.
    fn learns(&self) -> bool {
        true
    }

    /// Learns how a call ended. Called before its place goes to the next, with nothing locked.
    fn finished(&self, sample: &Sample) {
        let _ = sample;
    }
}

/// How a call ended, for a [`LimitAlgorithm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sample {
    /// When it ended.
    pub at: Instant,
    /// How long it was in flight. The time in the queue is not in it: a limit that followed its own
    /// queue would never stop falling.
    pub latency: Duration,
    /// Whether it ended at or after the request's deadline.
    pub late: bool,
    /// What its end says. `None` if it was dropped: nothing was learned but that it took so long.
    pub class: Option<Class>,
    /// How many were in flight when it began, itself among them.
    pub in_flight: usize,
}

/// A limit that stays as it is.
///
/// By Little's law a service that is offered `r` requests a second and takes `t` seconds for each has
/// `r * t` in flight. Half as much again leaves room for those that take longer: at 200 a second and
/// 50 ms each that is 15.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedLimit(usize);

mod sealed {
    pub trait Sealed {}

    impl Sealed for super::FixedLimit {}
}

// === impl FixedLimit ===

impl FixedLimit {
    /// The largest limit: more requests than the memory of a machine holds.
    pub const MAX: usize = i32::MAX as usize;

    /// So many in flight.
    ///
    /// # Errors
    ///
    /// If `limit` is zero, which would serve nobody, or above [`MAX`](Self::MAX): who wants no limit
    /// leaves the layer out.
    pub fn new(limit: usize) -> Result<Self, InvalidSetting> {
        match limit {
            1..=Self::MAX => Ok(Self(limit)),
            _ => Err(InvalidSetting::new("limit", format!("must be from 1 to {}", Self::MAX))),
        }
    }
}

impl LimitAlgorithm for FixedLimit {
    fn current(&self) -> usize {
        self.0
    }

    fn learns(&self) -> bool {
        false
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    };

    use super::*;

    /// A limit that a test sets, and that keeps what it is told.
    #[derive(Debug, Default)]
    pub(crate) struct Told {
        pub(crate) limit: AtomicUsize,
        pub(crate) samples: Mutex<Vec<Sample>>,
    }

    impl sealed::Sealed for &'static Told {}

    impl LimitAlgorithm for &'static Told {
        fn current(&self) -> usize {
            self.limit.load(Relaxed)
        }

        fn finished(&self, sample: &Sample) {
            self.samples.lock().unwrap().push(*sample);
        }
    }

    impl Told {
        /// Leaked, so that the test keeps it while the handle has it.
        pub(crate) fn new(limit: usize) -> &'static Self {
            Box::leak(Box::new(Self { limit: limit.into(), samples: Mutex::default() }))
        }
    }

    // BLK-05
    #[test]
    fn no_place_at_all_and_more_than_memory_holds_are_refused_and_named() {
        for wrong in [0, FixedLimit::MAX + 1, usize::MAX] {
            assert_eq!(FixedLimit::new(wrong).unwrap_err().setting(), "limit");
        }
        assert_eq!(FixedLimit::new(1).unwrap().current(), 1);
        assert_eq!(FixedLimit::new(FixedLimit::MAX).unwrap().current(), FixedLimit::MAX);
    }
}
