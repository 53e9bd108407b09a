//! Whether the runtime of the work runs.
//!
//! A lease that is renewed from a thread of its own is renewed whatever happens to the work: so it is too
//! while the work has stood still for an hour, and nobody else may do it. A probe ticks on the work's runtime.
//! This decides, from when it was heard, whether the leader has to leave, and whether it may come back.

use std::time::Duration;

use crate::BootTime;

/// See the module. It is asked at each turn of the elector, which has one at each tick.
#[derive(Debug)]
pub(crate) struct Interlock {
    deadline: Duration,
    /// How many ticks had been heard.
    ticks: u64,
    /// From when on it is silent, by the time for which the elector ran itself.
    since: BootTime,
    looked: BootTime,
    pulse: Pulse,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pulse {
    /// It has not ticked yet.
    Unheard,
    Ticking,
    /// It was silent for longer than it may be.
    Stuck,
    /// It ticks again, from then on.
    Recovering(BootTime),
}

// === impl Interlock ===

impl Interlock {
    pub(crate) const fn new(deadline: Duration, now: BootTime) -> Self {
        Self { deadline, ticks: 0, since: now, looked: now, pulse: Pulse::Unheard }
    }

    /// Takes in that so many ticks were heard by now, and whether more can come. Whether it is since now that
    /// the runtime is stuck.
    pub(crate) fn look(&mut self, now: BootTime, ticks: u64, is_gone: bool) -> bool {
        // Whoever looks late did not run either. That the work did not tick meanwhile is no fault of it.
        let late = now.since(self.looked + self.pause());
        self.since = if self.ticks < ticks { now } else { self.since + late };
        let is_heard = self.ticks < ticks;
        (self.ticks, self.looked) = (ticks, now);
        let silent = now.since(self.since);
        self.pulse = match self.pulse {
            // ## Unheard, Ticking => Stuck
            Pulse::Unheard | Pulse::Ticking if is_gone || self.deadline <= silent => {
                self.pulse = Pulse::Stuck;
                return true;
            }
            // ## Unheard => Ticking
            Pulse::Unheard if is_heard => Pulse::Ticking,
            // It was shut down.
            _ if is_gone => Pulse::Stuck,
            // ## Stuck => Recovering
            Pulse::Stuck if is_heard => Pulse::Recovering(now),
            // ## Recovering => Stuck, Ticking
            Pulse::Recovering(_) if self.deadline / 2 <= silent => Pulse::Stuck,
            Pulse::Recovering(from) if is_heard && self.deadline <= now.since(from) => {
                Pulse::Ticking
            }
            pulse => pulse,
        };
        false
    }

    /// Whether it may lead: the runtime ticks, and has done so for a while if it was stuck.
    pub(crate) fn is_well(&self) -> bool {
        self.pulse == Pulse::Ticking
    }

    /// When to look next, if nothing is heard until then.
    pub(crate) fn next(&self) -> BootTime {
        let next = self.looked + self.pause();
        match self.pulse {
            Pulse::Unheard | Pulse::Ticking => next.min(self.since + self.deadline),
            Pulse::Stuck | Pulse::Recovering(_) => next,
        }
    }

    fn pause(&self) -> Duration {
        self.deadline / 4
    }
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DEADLINE: Duration = Duration::from_millis(8_000);

    fn at(millis: u64) -> BootTime {
        BootTime::from_nanos(1_000_000 * (1_000_000 + millis))
    }

    /// One that has heard a tick at zero.
    fn ticking() -> Interlock {
        let mut interlock = Interlock::new(DEADLINE, at(0));
        assert!(!interlock.is_well(), "nobody has heard anything yet");
        assert!(!interlock.look(at(0), 1, false));
        assert!(interlock.is_well());
        interlock
    }

    #[test]
    fn silence_for_as_long_as_the_deadline_is_standstill_and_is_told_once() {
        let mut interlock = ticking();
        for now in (0..8_000).step_by(500) {
            assert!(!interlock.look(at(now), 1, false) && interlock.is_well(), "{now}");
        }
        assert_eq!(interlock.next(), at(8_000));
        assert!(interlock.look(at(8_000), 1, false) && !interlock.is_well());
        assert!(!interlock.look(at(8_001), 1, false), "it is told once");
    }

    #[test]
    fn a_runtime_that_is_not_heard_at_all_stands_still_as_well() {
        let mut interlock = Interlock::new(DEADLINE, at(0));
        for now in (2_000..8_000).step_by(2_000) {
            assert!(!interlock.look(at(now), 0, false), "{now}");
        }
        assert!(interlock.look(at(8_000), 0, false), "it is told");
        assert!(!interlock.look(at(10_000), 0, false), "and once");
        assert!(!interlock.look(at(10_500), 1, false) && !interlock.is_well());
    }

    #[test]
    fn a_runtime_that_was_shut_down_is_stuck_at_once_and_for_good() {
        for mut interlock in [ticking(), Interlock::new(DEADLINE, at(0))] {
            assert!(interlock.look(at(1), 1, true) && !interlock.is_well());
            for now in (2_000..60_000).step_by(2_000) {
                assert!(!interlock.look(at(now), 1, true) && !interlock.is_well(), "{now}");
            }
        }
    }

    #[test]
    fn whoever_looks_late_was_stopped_itself_and_does_not_blame_the_work() {
        let mut interlock = ticking();
        assert!(!interlock.look(at(1_000), 1, false));
        // Both stood still for an hour. The work ticks a moment after the elector looks.
        assert!(!interlock.look(at(3_600_000), 1, false) && interlock.is_well());
        assert!(!interlock.look(at(3_600_010), 2, false) && interlock.is_well());
        // Of the hour it has 2 s, for which it would have waited. It stays silent.
        let mut interlock = ticking();
        assert!(!interlock.look(at(3_600_000), 1, false));
        assert_eq!(interlock.next(), at(3_602_000));
        for now in [3_602_000, 3_604_000] {
            assert!(!interlock.look(at(now), 1, false));
        }
        assert!(interlock.look(at(3_606_000), 1, false));
    }

    #[test]
    fn a_runtime_that_ticks_again_is_trusted_after_a_while_and_only_if_it_goes_on() {
        let mut interlock = ticking();
        for now in (0..=8_000).step_by(2_000) {
            interlock.look(at(now), 1, false);
        }
        // It ticks once, and stands still again: no second standstill is told, for nobody was let back.
        for now in (10_000..=30_000).step_by(2_000) {
            assert!(!interlock.look(at(now), 2, false) && !interlock.is_well(), "{now}");
        }
        for (tick, now) in (30_500..38_500).step_by(500).enumerate() {
            interlock.look(at(now), tick as u64 + 3, false);
            assert!(!interlock.is_well(), "{now}");
        }
        interlock.look(at(38_500), 100, false);
        assert!(interlock.is_well());
    }

    #[test]
    fn a_deadline_without_end_is_never_reached() {
        let mut interlock = Interlock::new(Duration::MAX, at(0));
        interlock.look(at(0), 1, false);
        for hour in 0..1_000 {
            assert!(!interlock.look(at(hour * 3_600_000), 1, false));
        }
    }

    proptest! {
        /// Naively: the time since the last tick, by looks that are each at most a quarter late, against the
        /// deadline.
        #[test]
        fn standstill_is_told_by_the_deadline_and_never_before(
            steps in proptest::collection::vec((1_u64..2_000, any::<bool>()), 1..200)
        ) {
            let mut interlock = ticking();
            let (mut now, mut ticks, mut heard) = (0, 1, 0);
            for (pause, ticked) in steps {
                now += pause;
                if ticked {
                    (ticks, heard) = (ticks + 1, now);
                }
                let is_stuck = interlock.look(at(now), ticks, false);
                prop_assert_eq!(is_stuck, 8_000 <= now - heard);
                prop_assert!(now - heard < 8_000 + 2_000);
                if is_stuck {
                    break;
                }
                prop_assert!(interlock.is_well());
            }
        }
    }
}
