//! Figures from answers: shares, percentiles, success over time, time to recover.
//!
//! Pure: answers in, numbers out.
//!
//! Shares and waits belong to the phase in which a request is made. How things stand at a moment
//! is told by the answers that come in it: a request that waited for four seconds has helped nobody
//! in the first three.

use std::time::Duration;

use crate::{
    plain,
    script::{self, BEATS, Mood, Script},
};

/// What became of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    /// When it was due to start, since the script began.
    pub(crate) at: Duration,
    /// How long its caller waited for an answer or an error.
    pub(crate) took: Duration,
    /// Whether the answer was a good one.
    pub(crate) good: bool,
}

// === impl Answer ===

impl Answer {
    /// When it came.
    pub(crate) fn came(&self) -> Duration {
        self.at + self.took
    }
}

/// What one client's run came to. A share of nothing is `None`, as is a percentile of nothing.
#[derive(Clone, Debug)]
pub(crate) struct Summary {
    pub(crate) requests: usize,
    pub(crate) good: usize,
    pub(crate) success: Option<f64>,
    /// The share of good answers that came while a client with a timeout and no more would wait.
    pub(crate) prompt: Option<f64>,
    pub(crate) success_healthy: Option<f64>,
    pub(crate) success_sick: Option<f64>,
    pub(crate) success_slow: Option<f64>,
    pub(crate) p50: Option<Duration>,
    pub(crate) p99: Option<Duration>,
    pub(crate) sick_p50: Option<Duration>,
    pub(crate) sick_p99: Option<Duration>,
    /// Requests that the server saw, for each that a caller made.
    pub(crate) attempts: Option<f64>,
    /// Requests that the server saw while it was sick.
    pub(crate) reached_sick: u64,
    /// From the end of the sick phases until all was well; `None` if it never was.
    pub(crate) recovery: Option<Duration>,
    /// The share of good answers by the beat in which they came; nothing is good in a beat in which
    /// callers wait and none comes.
    pub(crate) success_by_beat: Vec<Option<f64>>,
    /// The median wait by the beat in which a request started.
    pub(crate) wait_by_beat: Vec<Option<Duration>>,
}

/// A client has recovered with the first stretch of this length in which more than
/// [`RECOVERED`] of the answers that come are good.
const STRETCH: Duration = Duration::from_secs(1);
const RECOVERED: f64 = 0.99;

// === impl Summary ===

impl Summary {
    /// Sums up `answers`; `reached` is what the server saw, by beat.
    pub(crate) fn new(answers: &[Answer], reached: &[u64], script: &Script) -> Self {
        let during =
            |wanted: fn(Mood) -> bool| answers.iter().filter(move |a| wanted(script.mood_at(a.at)));
        let waits = sorted(answers.iter());
        let sick_waits = sorted(during(Mood::is_sick));
        let seen: u64 = reached.iter().sum();
        let in_time = |answer: &Answer| answer.good && answer.took <= plain::TIMEOUT;
        let prompt: Vec<_> =
            answers.iter().map(|answer| Answer { good: in_time(answer), ..*answer }).collect();
        let made = by_beat(answers, script, |answer| answer.at);

        Self {
            requests: answers.len(),
            good: answers.iter().filter(|answer| answer.good).count(),
            success: success(answers.iter()),
            prompt: success(prompt.iter()),
            success_healthy: success(during(|mood| mood == Mood::Healthy)),
            success_sick: success(during(Mood::is_sick)),
            success_slow: success(during(|mood| mood == Mood::Slow)),
            p50: percentile(&waits, 50.0),
            p99: percentile(&waits, 99.0),
            sick_p50: percentile(&sick_waits, 50.0),
            sick_p99: percentile(&sick_waits, 99.0),
            attempts: (!answers.is_empty()).then(|| seen as f64 / answers.len() as f64),
            reached_sick: script::sick_beats().filter_map(|beat| reached.get(beat)).sum(),
            recovery: recovery(answers, script.sick_until(), script.total()),
            success_by_beat: success_by_beat(answers, script),
            wait_by_beat: made.iter().map(|beat| percentile(&sorted(beat.iter()), 50.0)).collect(),
        }
    }
}

/// The share of good answers.
pub(crate) fn success<'a>(answers: impl Iterator<Item = &'a Answer>) -> Option<f64> {
    let (good, all) = answers
        .fold((0_u32, 0_u32), |(good, all), answer| (good + u32::from(answer.good), all + 1));
    (all > 0).then(|| f64::from(good) / f64::from(all))
}

/// The smallest wait that at least `percent` of all waits do not exceed (nearest rank).
fn percentile(sorted: &[Duration], percent: f64) -> Option<Duration> {
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

fn sorted<'a>(answers: impl Iterator<Item = &'a Answer>) -> Vec<Duration> {
    let mut waits: Vec<_> = answers.map(|answer| answer.took).collect();
    waits.sort_unstable();
    waits
}

/// The answers by the beat of the moment that `when` names.
fn by_beat(
    answers: &[Answer],
    script: &Script,
    when: impl Fn(&Answer) -> Duration,
) -> Vec<Vec<Answer>> {
    let mut beats = vec![Vec::new(); BEATS as usize];
    for answer in answers {
        beats[script.beat_at(when(answer))].push(*answer);
    }
    beats
}

fn success_by_beat(answers: &[Answer], script: &Script) -> Vec<Option<f64>> {
    let came = by_beat(answers, script, Answer::came);
    let share = |(beat, came): (u32, &Vec<Answer>)| {
        let end = script.beat() * (beat + 1);
        let waits = || answers.iter().any(|answer| answer.at < end && answer.came() >= end);
        success(came.iter()).or_else(|| waits().then_some(0.0))
    };
    (0..).zip(&came).map(share).collect()
}

/// From `ill` until the beginning of the first stretch, wholly before `end`, in which more than
/// [`RECOVERED`] of the answers that come are good.
///
/// The beginning and not the end of that stretch, so that a client that is well at once has
/// recovered after zero seconds, and not after the length of a stretch.
fn recovery(answers: &[Answer], ill: Duration, end: Duration) -> Option<Duration> {
    let mut answers: Vec<_> = answers.iter().filter(|answer| answer.came() >= ill).collect();
    answers.sort_unstable_by_key(|answer| answer.came());

    // As the stretch slides, its share rises only where a failure leaves it at the front or a
    // success enters it at the back. No other beginning needs a look.
    let instant = Duration::from_nanos(1);
    let leaves = answers.iter().map(|answer| answer.came() + instant);
    let enters = answers.iter().filter_map(|answer| (answer.came() + instant).checked_sub(STRETCH));
    let mut begins: Vec<_> = leaves.chain(enters).filter(|begin| *begin >= ill).collect();
    begins.push(ill);
    begins.sort_unstable();

    begins
        .into_iter()
        .take_while(|begin| *begin + STRETCH <= end)
        .find(|begin| {
            let from = answers.partition_point(|answer| answer.came() < *begin);
            let until = answers.partition_point(|answer| answer.came() < *begin + STRETCH);
            success(answers[from..until].iter().copied()).is_some_and(|share| share > RECOVERED)
        })
        .map(|begin| begin - ill)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Answered at once.
    fn answer(at: u64, good: bool) -> Answer {
        Answer { at: ms(at), took: Duration::ZERO, good }
    }

    /// One request each 10 ms until 26 s, good where `good` says so.
    fn run(good: impl Fn(u64) -> bool) -> Vec<Answer> {
        (0..26_000).step_by(10).map(|at| answer(at, good(at))).collect()
    }

    #[test]
    fn nothing_has_no_share_and_no_percentile() {
        assert_eq!(success([].iter()), None);
        assert_eq!(percentile(&[], 50.0), None);
        let none = Summary::new(&[], &[], &Script::new(26 * SECOND));
        assert_eq!((none.attempts, none.recovery), (None, None));
        assert!(none.success_by_beat.iter().all(Option::is_none));
    }

    #[test]
    fn a_percentile_is_a_wait_that_someone_had() {
        let waits: Vec<_> = (1..=200).map(ms).collect();
        assert_eq!(percentile(&waits, 0.0), Some(ms(1)));
        assert_eq!(percentile(&waits, 50.0), Some(ms(100)));
        assert_eq!(percentile(&waits, 99.0), Some(ms(198)));
        assert_eq!(percentile(&waits, 100.0), Some(ms(200)));
        assert_eq!(percentile(&[ms(7)], 99.0), Some(ms(7)));
        // At least half of three are two.
        assert_eq!(percentile(&waits[..3], 50.0), Some(ms(2)));
    }

    #[test]
    fn whoever_is_well_at_once_recovers_in_no_time() {
        let answers = run(|at| !(4_000..14_000).contains(&at));
        assert_eq!(recovery(&answers, 14 * SECOND, 26 * SECOND), Some(Duration::ZERO));
    }

    #[test]
    fn recovery_begins_after_the_last_failure_before_a_good_second() {
        let answers = run(|at| at > 15_230);
        let recovery = recovery(&answers, 14 * SECOND, 26 * SECOND).unwrap();
        assert_eq!(recovery, ms(1_230) + Duration::from_nanos(1));
    }

    #[test]
    fn half_a_good_second_is_no_recovery() {
        let answers = run(|at| at > 25_500 || (15_000..15_500).contains(&at));
        assert_eq!(recovery(&answers, 14 * SECOND, 26 * SECOND), None);
    }

    #[test]
    fn a_success_that_enters_the_second_can_outweigh_a_failure() {
        // 100 good of 101 is above 99 %; 99 of 100 is not.
        let mut answers = vec![answer(14_010, false)];
        answers.extend((0..99).map(|i| answer(14_020 + i, true)));
        answers.push(answer(15_005, true));
        let recovery = recovery(&answers, 14 * SECOND, 26 * SECOND).unwrap();
        assert_eq!(recovery, ms(5) + Duration::from_nanos(1));
    }

    #[test]
    fn a_good_answer_that_comes_late_makes_nobody_well_before_it_comes() {
        // Who asks at 15 s is answered well, at 19 s.
        let mut answers = run(|at| at > 15_000);
        for answer in answers.iter_mut().filter(|answer| answer.at > 14 * SECOND) {
            answer.took = 4 * SECOND;
        }
        let recovery = recovery(&answers, 14 * SECOND, 26 * SECOND).unwrap();
        assert_eq!(recovery, 5 * SECOND + Duration::from_nanos(1));
    }

    #[test]
    fn an_error_that_comes_after_the_sickness_counts_though_its_request_was_made_before() {
        let mut answers = run(|at| at >= 14_000);
        for answer in answers.iter_mut().filter(|answer| answer.at < 14 * SECOND) {
            answer.took = SECOND;
        }
        // The last comes at 14.99 s; one error among a hundred good answers is less than a hundredth.
        let recovery = recovery(&answers, 14 * SECOND, 26 * SECOND).unwrap();
        assert_eq!(recovery, ms(980) + Duration::from_nanos(1));
    }

    #[test]
    fn a_beat_in_which_all_wait_has_no_good_answer_and_one_in_which_none_asks_has_no_share() {
        let script = Script::new(26 * SECOND);
        let waited = Answer { at: 4 * SECOND, took: 3 * SECOND, good: true };
        let shares = success_by_beat(&[answer(3_000, true), waited], &script);
        assert_eq!(
            shares[2..9],
            [None, Some(1.0), Some(0.0), Some(0.0), Some(0.0), Some(1.0), None]
        );
    }

    #[test]
    fn the_order_in_which_answers_come_back_does_not_matter() {
        let mut answers = run(|at| at > 15_230);
        let forwards = recovery(&answers, 14 * SECOND, 26 * SECOND);
        answers.reverse();
        assert_eq!(recovery(&answers, 14 * SECOND, 26 * SECOND), forwards);
    }

    #[test]
    fn a_good_answer_after_the_timeout_of_others_is_good_and_not_prompt() {
        let [mut late, mut last] = [answer(0, true); 2];
        late.took = ms(1_001);
        last.took = ms(1_000);
        let answers = [late, last, answer(0, true), answer(0, false)];
        let summary = Summary::new(&answers, &[], &Script::new(26 * SECOND));
        assert_eq!((summary.success, summary.prompt), (Some(0.75), Some(0.5)));
    }

    #[test]
    fn a_summary_keeps_sick_and_slow_apart() {
        let script = Script::new(26 * SECOND);
        // Fails while sick, and in every second request while slow.
        let answers = run(|at| match script.mood_at(ms(at)) {
            Mood::Healthy => true,
            Mood::Hanging | Mood::Failing => false,
            Mood::Slow => at % 20 == 0,
        });
        let mut reached = vec![100; 26];
        reached[4..14].fill(200);

        let summary = Summary::new(&answers, &reached, &script);

        assert_eq!((summary.requests, summary.good), (2_600, 1_350));
        assert_eq!(summary.success_healthy, Some(1.0));
        assert_eq!(summary.success_sick, Some(0.0));
        assert_eq!(summary.success_slow, Some(0.5));
        assert_eq!(summary.reached_sick, 2_000);
        assert_eq!(summary.attempts, Some(3_600.0 / 2_600.0));
        assert_eq!(summary.success_by_beat[3], Some(1.0));
        assert_eq!(summary.success_by_beat[4], Some(0.0));
        assert_eq!(summary.success_by_beat[14], Some(0.5));
    }
}
