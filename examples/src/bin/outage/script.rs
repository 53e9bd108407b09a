//! What the server does, and when: healthy, hanging, failing, slow, healthy again.
//!
//! Pure: the time since the start is an argument, and the server, the clients' figures and
//! the picture all ask the same script.

use std::{ops::Range, time::Duration};

/// How the server treats a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mood {
    /// Answers at once.
    Healthy,
    /// Stands still, as behind a lock or in a pause: takes nothing on, answers nothing. What
    /// arrives queues up, and is worked off when the hang is over.
    Hanging,
    /// Answers 503, and takes its time for it: as when the database is down, and a worker waits for
    /// it until it gives up.
    Failing,
    /// Answers well, but late: some fifty times later than usual, and still soon enough for all
    /// three clients. (The stack's breaker takes a callee for ill that mostly needs more than half
    /// of an attempt, and would spare it.)
    Slow,
}

/// A stretch of time with one mood.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Phase {
    pub(crate) mood: Mood,
    pub(crate) from: Duration,
    pub(crate) until: Duration,
}

/// The phases over time, counted in beats: one beat is a second when the script runs at its
/// full length, and every phase is a whole number of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Script {
    total: Duration,
}

/// The moods in their order, each with its length in beats.
const PLAN: [(Mood, u32); 5] = [
    (Mood::Healthy, 4),
    (Mood::Hanging, 5),
    (Mood::Failing, 5),
    (Mood::Slow, 5),
    (Mood::Healthy, 7),
];

/// The beats of the whole script.
pub(crate) const BEATS: u32 = 26;

// === impl Mood ===

impl Mood {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Hanging => "hanging",
            Self::Failing => "failing",
            Self::Slow => "slow",
        }
    }

    /// Whether nobody gets an answer worth having. A slow server is not sick: it serves all.
    pub(crate) fn is_sick(self) -> bool {
        matches!(self, Self::Hanging | Self::Failing)
    }

    /// How long a worker takes for an answer, given a draw from `0.0..1.0`. `None` where nothing
    /// is worked for.
    pub(crate) fn delay(self, unit: f64) -> Option<Duration> {
        let (least, most) = self.span()?;
        Some(Duration::from_secs_f64((least + unit * (most - least)) / 1e3))
    }

    /// The least and the most that a worker takes for an answer, in milliseconds.
    pub(crate) fn span(self) -> Option<(f64, f64)> {
        match self {
            Self::Healthy => Some((1.0, 4.0)),
            Self::Hanging => None,
            Self::Failing => Some((40.0, 60.0)),
            Self::Slow => Some((60.0, 180.0)),
        }
    }
}

// === impl Script ===

impl Script {
    /// A script that takes `total` from beginning to end.
    pub(crate) fn new(total: Duration) -> Self {
        Self { total }
    }

    pub(crate) fn total(&self) -> Duration {
        self.total
    }

    pub(crate) fn beat(&self) -> Duration {
        self.total / BEATS
    }

    /// The beat that `at` falls into; the last one for all that comes later.
    pub(crate) fn beat_at(&self, at: Duration) -> usize {
        let beat = at.as_nanos() * u128::from(BEATS) / self.total.as_nanos();
        beat.min(u128::from(BEATS) - 1) as usize
    }

    pub(crate) fn phases(&self) -> impl Iterator<Item = Phase> {
        let total = self.total;
        let moment = move |beats: u32| total * beats / BEATS;
        plan().map(move |(mood, beats)| Phase {
            mood,
            from: moment(beats.start),
            until: moment(beats.end),
        })
    }

    /// The mood at `at`; the last one for all that comes later.
    pub(crate) fn mood_at(&self, at: Duration) -> Mood {
        self.phases()
            .find(|phase| at < phase.until)
            .map_or(PLAN[PLAN.len() - 1].0, |phase| phase.mood)
    }

    /// The first moment from `at` on at which the server does not hang.
    pub(crate) fn awake_at(&self, at: Duration) -> Duration {
        self.hangs()
            .find(|hang| (hang.from..hang.until).contains(&at))
            .map_or(at, |hang| hang.until)
    }

    /// When work is done that is begun at `begins` and takes `takes`. A hang stops it.
    pub(crate) fn work(&self, begins: Duration, takes: Duration) -> Duration {
        self.hangs().fold(begins + takes, |done, hang| {
            let stopped = begins < hang.from && hang.from < done;
            if stopped { done + (hang.until - hang.from) } else { done }
        })
    }

    fn hangs(&self) -> impl Iterator<Item = Phase> {
        self.phases().filter(|phase| phase.mood == Mood::Hanging)
    }

    /// When the first sick phase begins.
    pub(crate) fn sick_from(&self) -> Duration {
        self.phases().find(|phase| phase.mood.is_sick()).map_or(self.total, |phase| phase.from)
    }

    /// When the last sick phase ends.
    pub(crate) fn sick_until(&self) -> Duration {
        self.phases()
            .filter(|phase| phase.mood.is_sick())
            .map(|phase| phase.until)
            .max()
            .unwrap_or(Duration::ZERO)
    }
}

/// The beats in which the server is sick.
pub(crate) fn sick_beats() -> impl Iterator<Item = usize> {
    plan().filter(|(mood, _)| mood.is_sick()).flat_map(|(_, beats)| beats).map(|beat| beat as usize)
}

/// The moods in their order, each with its beats.
fn plan() -> impl Iterator<Item = (Mood, Range<u32>)> {
    PLAN.into_iter().scan(0, |next, (mood, beats)| {
        let from = *next;
        *next += beats;
        Some((mood, from..*next))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn full() -> Script {
        Script::new(SECOND * BEATS)
    }

    #[test]
    fn phases_follow_each_other_without_a_gap_and_fill_the_script() {
        let mut next = Duration::ZERO;
        for phase in full().phases() {
            assert_eq!(phase.from, next);
            assert!(phase.until > phase.from);
            next = phase.until;
        }
        assert_eq!(next, full().total());
    }

    #[test]
    fn a_phase_begins_at_its_first_instant_and_is_over_at_its_last() {
        let script = full();
        for phase in script.phases() {
            assert_eq!(script.mood_at(phase.from), phase.mood);
            assert_eq!(script.mood_at(phase.until - Duration::from_nanos(1)), phase.mood);
        }
    }

    #[test]
    fn after_the_end_the_server_stays_healthy() {
        assert_eq!(full().mood_at(Duration::MAX), Mood::Healthy);
        assert_eq!(full().beat_at(Duration::MAX), BEATS as usize - 1);
    }

    #[test]
    fn slow_is_not_sick() {
        assert_eq!((full().sick_from(), full().sick_until()), (4 * SECOND, 14 * SECOND));
        assert_eq!(sick_beats().collect::<Vec<_>>(), (4..14).collect::<Vec<_>>());
    }

    #[test]
    fn a_hang_stops_the_work_that_was_begun_before_it_and_lets_none_begin() {
        let (script, ms) = (full(), Duration::from_millis(1));
        assert_eq!(script.work(3 * SECOND, 5 * ms), 3 * SECOND + 5 * ms);
        assert_eq!(script.work(4 * SECOND - 2 * ms, 2 * ms), 4 * SECOND);
        assert_eq!(script.work(4 * SECOND - 2 * ms, 5 * ms), 9 * SECOND + 3 * ms);
        assert_eq!(script.awake_at(4 * SECOND - ms), 4 * SECOND - ms);
        assert_eq!(script.awake_at(4 * SECOND), 9 * SECOND);
        assert_eq!(script.awake_at(9 * SECOND), 9 * SECOND);
    }

    #[test]
    fn a_short_script_has_the_same_phases_in_proportion() {
        let short = Script::new(SECOND * BEATS / 10);
        for (long, short) in full().phases().zip(short.phases()) {
            assert_eq!(long.mood, short.mood);
            assert_eq!(long.until / 10, short.until);
        }
    }

    #[test]
    fn a_beat_of_the_full_script_is_a_second() {
        assert_eq!(full().beat(), SECOND);
        for beat in 0..BEATS {
            let begins = SECOND * beat;
            assert_eq!(full().beat_at(begins), beat as usize);
            assert_eq!(full().beat_at(begins + SECOND - Duration::from_nanos(1)), beat as usize);
        }
    }

    #[test]
    fn only_a_hanging_server_has_no_delay_to_wait_for() {
        assert_eq!(Mood::Hanging.delay(0.5), None);
        assert_eq!(Mood::Failing.delay(0.5), Some(Duration::from_millis(50)));
        assert_eq!(Mood::Slow.delay(0.0), Some(Duration::from_millis(60)));
        assert_eq!(Mood::Slow.delay(0.5), Some(Duration::from_millis(120)));
    }
}
