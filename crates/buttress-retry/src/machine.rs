//! Decides whether and when a request is sent again, from what it is told: no clock, no dice.

use std::time::Duration;

use buttress_core::{Class, Deadline, Repeat};
use tokio::time::Instant;

use crate::Backoff;

/// How often, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    pub(crate) attempts: u32,
    pub(crate) backoff: Backoff,
    pub(crate) max_retry_after: Duration,
}

/// Why a request is not sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It would not help.
    Final,
    /// All attempts are made.
    Attempts,
    /// It must not be carried out twice, and may have been carried out.
    Unsafe,
    /// Nothing was kept of it.
    NotKept,
    /// What was kept can no longer be copied.
    NoCopy,
    /// The callee asks for a longer wait than we make.
    RetryAfter,
    /// There is no time left for the wait.
    Deadline,
    /// The budget is used up.
    Budget,
}

/// When a request is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Again {
    pub(crate) wait: Duration,
    pub(crate) until: Instant,
}

impl Schedule {
    /// Whether a request whose last of `attempt` attempts ended so may be sent again. `safe` says whether it may
    /// be carried out twice; `None` if nothing was kept of it.
    pub(crate) fn may(&self, attempt: u32, class: Class, safe: Option<bool>) -> Result<(), Stop> {
        match (class.repeat(), safe) {
            (Repeat::Never, _) => Err(Stop::Final),
            _ if attempt >= self.attempts => Err(Stop::Attempts),
            (_, None) => Err(Stop::NotKept),
            (Repeat::IfSafe, Some(false)) => Err(Stop::Unsafe),
            (Repeat::IfSafe | Repeat::Always, Some(_)) => Ok(()),
        }
    }

    /// When the attempt after `attempt` attempts begins, if there is time for it.
    ///
    /// `units` are two independent draws from `[0, 1)`.
    pub(crate) fn when(
        &self,
        attempt: u32,
        class: Class,
        now: Instant,
        deadline: Option<Deadline>,
        units: [f64; 2],
    ) -> Result<Again, Stop> {
        let drawn = self.backoff.delay(attempt - 1, units[0]);
        let wait = match class.after() {
            Some(after) if after > self.max_retry_after => return Err(Stop::RetryAfter),
            // Spread anew: everybody who was turned away was told the same time.
            Some(after) if after > drawn => after.saturating_add(self.backoff.spread(units[1])),
            _ => drawn,
        };
        // An instant beyond the clock's reach never comes.
        let until = now.checked_add(wait).ok_or(Stop::Deadline)?;
        if deadline.is_some_and(|deadline| deadline.has_passed(until)) {
            return Err(Stop::Deadline);
        }
        Ok(Again { wait, until })
    }
}

impl Stop {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Final => "final",
            Self::Attempts => "attempts",
            Self::Unsafe => "unsafe",
            Self::NotKept => "not kept",
            Self::NoCopy => "no copy",
            Self::RetryAfter => "retry after",
            Self::Deadline => "deadline",
            Self::Budget => "budget",
        }
    }
}

#[cfg(test)]
mod tests {
    use buttress_core::edge;
    use proptest::prelude::*;

    use super::*;

    const BASE: Duration = Duration::from_millis(100);

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn schedule() -> Schedule {
        Schedule { attempts: 3, backoff: Backoff::default(), max_retry_after: secs(60) }
    }

    fn wait(after: Option<Duration>, units: [f64; 2]) -> Result<Duration, Stop> {
        let class = Class::Throttled { after };
        schedule().when(1, class, edge::now(), None, units).map(|again| again.wait)
    }

    #[test]
    fn what_must_not_happen_twice_is_repeated_only_if_it_did_not_happen_once() {
        let schedule = schedule();
        let transient = Class::Transient { after: None };
        for (class, safe, may) in [
            (transient, Some(true), Ok(())),
            (transient, Some(false), Err(Stop::Unsafe)),
            (transient, None, Err(Stop::NotKept)),
            (Class::Throttled { after: None }, Some(true), Ok(())),
            (Class::Throttled { after: None }, Some(false), Err(Stop::Unsafe)),
            (Class::Unreachable, Some(true), Ok(())),
            (Class::Unreachable, Some(false), Ok(())),
            (Class::Unreachable, None, Err(Stop::NotKept)),
            (Class::Success, Some(true), Err(Stop::Final)),
            (Class::CallerError, Some(true), Err(Stop::Final)),
            (Class::Fatal, Some(true), Err(Stop::Final)),
            (Class::Refused, Some(true), Err(Stop::Final)),
        ] {
            assert_eq!(schedule.may(1, class, safe), may);
            assert_eq!(schedule.may(2, class, safe), may);
            assert!(schedule.may(3, class, safe).is_err(), "three are all");
        }
    }

    // BKO-07
    #[test]
    fn nobody_comes_before_the_time_that_the_callee_asked_for_nor_all_at_once() {
        assert_eq!(wait(Some(secs(7)), [0.5, 0.0]), Ok(secs(7)));
        assert_eq!(wait(Some(secs(7)), [0.5, 0.5]), Ok(secs(7) + BASE / 2));
        assert_eq!(wait(Some(secs(60)), [0.0, 0.0]), Ok(secs(60)));
    }

    // BKO-08
    #[test]
    fn a_time_that_has_passed_already_leaves_the_drawn_wait() {
        assert_eq!(wait(Some(Duration::ZERO), [0.5, 0.9]), Ok(BASE / 2));
        assert_eq!(wait(None, [0.5, 0.9]), Ok(BASE / 2));
    }

    // BKO-09
    #[test]
    fn a_callee_that_asks_for_too_long_a_wait_is_not_waited_for_at_all() {
        for after in [secs(60) + Duration::from_nanos(1), secs(3600), Duration::MAX] {
            assert_eq!(wait(Some(after), [0.0, 0.0]), Err(Stop::RetryAfter));
        }
    }

    // BKO-05, BKO-10
    #[test]
    fn a_wait_that_the_clock_cannot_hold_is_none() {
        let endless = Schedule {
            attempts: 3,
            backoff: Backoff::exponential(Duration::MAX, Duration::MAX),
            max_retry_after: Duration::MAX,
        };
        for after in [None, Some(Duration::MAX)] {
            let class = Class::Transient { after };
            let when = endless.when(1, class, edge::now(), None, [0.9, 0.9]);
            assert_eq!(when, Err(Stop::Deadline));
        }
    }

    proptest! {
        // BKO-05
        #[test]
        fn an_attempt_begins_before_the_deadline_or_not_at_all(
            left in 0..10_000_000u64,
            after in proptest::option::of(0..100_000_000u64),
            attempt in 1..u32::MAX,
            units in [0.0..1.0f64, 0.0..1.0f64],
        ) {
            let now = edge::now();
            let deadline = now + Duration::from_micros(left);
            let after = after.map(Duration::from_micros);
            let class = Class::Transient { after };
            let free = schedule().when(attempt, class, now, None, units);
            let bound = schedule().when(attempt, class, now, Some(Deadline::at(deadline)), units);
            match free {
                Ok(again) => {
                    prop_assert!(again.wait >= after.unwrap_or_default());
                    prop_assert_eq!(again.until, now + again.wait);
                    let fits = again.until < deadline;
                    prop_assert_eq!(bound, if fits { Ok(again) } else { Err(Stop::Deadline) });
                }
                Err(stop) => {
                    prop_assert_eq!(stop, Stop::RetryAfter);
                    prop_assert!(after.unwrap() > secs(60));
                }
            }
        }
    }
}
