//! When what was, by the clock of the process that has seen it.
//!
//! etcd decides by a clock of its own when a lease is over, and tells of that clock so much: how many whole seconds
//! of a lease are left.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use buttress_leadership::{BootTime, FencingToken, LeaseClock, LeaseName, StoreTime};

/// What is known of each lease that is held.
pub(crate) struct Clock {
    clock: LeaseClock,
    terms: Mutex<HashMap<LeaseName, Term>>,
}

#[derive(Clone, Copy)]
struct Term {
    fence: FencingToken,
    began: StoreTime,
    ends: StoreTime,
}

/// What a record says of a lease that is held.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    pub(crate) began: StoreTime,
    pub(crate) renewed: StoreTime,
    pub(crate) ends: StoreTime,
    pub(crate) granted: Duration,
}

/// How much of a lease is left.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Left {
    /// It has just begun, or was renewed.
    All,
    /// So many whole seconds, and less than one more.
    Seconds(Duration),
}

const SECOND: Duration = Duration::from_secs(1);

impl Clock {
    pub(crate) fn new(clock: LeaseClock) -> Self {
        Self { clock, terms: Mutex::default() }
    }

    pub(crate) fn now(&self) -> StoreTime {
        of(self.clock.now())
    }

    /// Notes what etcd has just told of a term. As long as that goes with what was known before, its end stays where
    /// it was.
    pub(crate) fn see(
        &self,
        name: &LeaseName,
        fence: FencingToken,
        granted: Duration,
        left: Left,
    ) -> (StoreTime, Times) {
        let now = self.clock.now();
        let mut terms = self.terms.lock().unwrap_or_else(PoisonError::into_inner);
        let before = terms.get(name).copied().filter(|term| term.fence == fence);
        let ends = match (left, before) {
            (Left::All, _) => of(now + granted),
            (Left::Seconds(left), before) => {
                // A second beyond, since it was noted later than it was so.
                let (least, most) = (of(now + left), of(now + left + 2 * SECOND));
                let known = before.map(|term| term.ends);
                let known = known.filter(|ends| least < *ends && *ends <= most);
                known.unwrap_or_else(|| of(now + granted.min(left + SECOND)))
            }
        };
        let renewed = StoreTime::from_nanos(ends.as_nanos().saturating_sub(nanos(granted)));
        let began = before.map_or(renewed, |term| term.began);
        terms.insert(name.clone(), Term { fence, began, ends });
        (of(now), Times { began, renewed, ends, granted })
    }

    /// Forgets what nobody holds.
    pub(crate) fn forget(&self, name: &LeaseName) {
        self.terms.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}

fn of(time: BootTime) -> StoreTime {
    StoreTime::from_nanos(time.as_nanos())
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: Duration = Duration::from_secs(10);

    struct Seer {
        clock: LeaseClock,
        seen: Clock,
        name: LeaseName,
    }

    impl Seer {
        fn new() -> Self {
            let clock = LeaseClock::simulated();
            let name = LeaseName::new("a").unwrap();
            Self { seen: Clock::new(clock.clone()), clock, name }
        }

        fn pass(&self, millis: u64) {
            self.clock.suspend(Duration::from_millis(millis));
        }

        /// The end in milliseconds from now on, and how long ago it began.
        fn sees(&self, fence: u64, left: Left) -> (u128, u128) {
            let fence = FencingToken::new(fence).unwrap();
            let (now, times) = self.seen.see(&self.name, fence, TEN, left);
            assert!(times.began <= times.renewed && times.renewed <= now);
            (times.ends.since(now).as_millis(), now.since(times.began).as_millis())
        }
    }

    fn seconds(left: u64) -> Left {
        Left::Seconds(Duration::from_secs(left))
    }

    #[tokio::test(start_paused = true)]
    async fn what_etcd_says_in_whole_seconds_moves_no_end_that_goes_with_it() {
        let seer = Seer::new();
        seer.pass(60_000);
        assert_eq!(seer.sees(7, Left::All), (10_000, 0));
        seer.pass(2_500);
        assert_eq!(seer.sees(7, seconds(7)), (7_500, 2_500));
        // It knows of it a little later than it was so.
        seer.pass(490);
        assert_eq!(seer.sees(7, seconds(6)), (7_010, 2_990));
        assert_eq!(seer.sees(7, Left::All), (10_000, 2_990), "it is renewed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_that_nobody_saw_is_seen_by_what_is_left() {
        let seer = Seer::new();
        seer.pass(60_000);
        assert_eq!(seer.sees(7, seconds(3)), (4_000, 6_000), "it had begun before");
        seer.pass(2_000);
        assert_eq!(seer.sees(7, seconds(8)), (9_000, 8_000));
        // A cluster whose leader changes lengthens leases; and what is there is not over.
        seer.pass(9_000);
        assert_eq!(seer.sees(7, seconds(0)), (1_000, 17_000));
        assert_eq!(seer.sees(7, seconds(9)), (10_000, 17_000));
        assert_eq!(seer.sees(8, seconds(9)), (10_000, 0), "this is another term");
    }
}
