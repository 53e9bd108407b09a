//! What the server can do at once: so many workers, and a FIFO queue before them, as in a server
//! with a pool of threads.
//!
//! A server that could do everything at once would make a storm of retries look free of charge.
//!
//! Each client has workers of its own, so that no client pays for what another does: it is as if
//! each had a server to itself, and all of these fell ill at the same time.
//!
//! Work is booked when a request arrives, for a worker that will then be free, and nothing takes it
//! back: a caller who has left is worked for all the same, as in the many servers that do not
//! notice. That also makes this a pure machine: time and chance are arguments.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    time::Duration,
};

use crate::script::{Mood, Script};

/// The workers of one client.
#[derive(Debug)]
pub(crate) struct Workers {
    script: Script,
    /// How many may wait.
    room: usize,
    /// When each worker is free.
    free: BinaryHeap<Reverse<Duration>>,
    /// When those begin who wait, or did when somebody last came: the first to begin in front.
    waiting: VecDeque<Duration>,
}

/// What will become of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Work {
    /// How the server is when a worker begins with it.
    pub(crate) mood: Mood,
    /// When it is answered.
    pub(crate) done: Duration,
}

/// Workers for each 100 requests a second of a client.
///
/// Chosen before the first run, as one chooses the size of a pool: for the server's slow times,
/// with a quarter to spare. A slow request takes 120 ms, so that 100 a second keep 12 workers busy;
/// 16 are then busy for three quarters of the time. What follows from it:
///
/// | requests a second | healthy, 2.5 ms | failing, 50 ms | slow, 120 ms |
/// |---|---|---|---|
/// | 16 workers can do | 6400 | 320 | 133 |
/// | each asked once | 100 | 100 | 100 |
/// | each asked four times | 400 | **400** | **400** |
///
/// Who asks once stays within it in every phase, and makes up for the hang (500 have queued up, and
/// 220 a second more are done than arrive) while the server still fails. Who asks four times does
/// not, as long as answers are errors or come too late.
const WORKERS: f64 = 16.0;

/// Seconds of calm load that may wait. It bounds the memory (10 000 waiting at 100 requests a
/// second, 16 bytes each), and is three times what queues up in a script of the usual length.
const QUEUE: f64 = 100.0;

/// The workers that each client has, at `rate` requests a second. Rounded up, so that who asks once
/// stays within them at every rate.
pub(crate) fn count(rate: f64) -> usize {
    (rate * WORKERS / 100.0).ceil() as usize
}

/// How many requests `workers` can do in a second, while the server is in this mood.
pub(crate) fn throughput(workers: usize, mood: Mood) -> f64 {
    mood.delay(0.5).map_or(0.0, |takes| workers as f64 / takes.as_secs_f64())
}

// === impl Workers ===

impl Workers {
    /// Workers for a client that makes `rate` requests a second.
    pub(crate) fn new(rate: f64, script: Script) -> Self {
        Self::with_room(count(rate), (rate * QUEUE) as usize, script)
    }

    fn with_room(count: usize, room: usize, script: Script) -> Self {
        Self {
            script,
            room,
            free: (0..count).map(|_| Reverse(Duration::ZERO)).collect(),
            waiting: VecDeque::new(),
        }
    }

    /// Takes on a request that arrives at `now`; `unit` is a draw from `0.0..1.0`. `None` when the
    /// queue is full.
    pub(crate) fn take_on(&mut self, now: Duration, unit: f64) -> Option<Work> {
        while self.waiting.front().is_some_and(|begins| *begins <= now) {
            self.waiting.pop_front();
        }
        if self.waiting.len() >= self.room {
            return None;
        }
        let Reverse(free) = self.free.pop()?;
        let begins = self.script.awake_at(now.max(free));
        let mood = self.script.mood_at(begins);
        let done = self.script.work(begins, mood.delay(unit).unwrap_or_default());
        self.free.push(Reverse(done));
        self.waiting.push_back(begins);
        Some(Work { mood, done })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::BEATS;

    /// Healthy until 4 s, hanging until 9 s, failing until 14 s, slow until 19 s.
    fn script() -> Script {
        Script::new(Duration::from_secs(BEATS.into()))
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn workers(count: usize, room: usize) -> Workers {
        Workers::with_room(count, room, script())
    }

    /// When a request that arrives at `at` is answered, in milliseconds. A draw of one half is the
    /// middle of every span: 2.5 ms, 50 ms, 120 ms.
    fn done(workers: &mut Workers, at: u64) -> f64 {
        workers.take_on(ms(at), 0.5).expect("there is room").done.as_secs_f64() * 1e3
    }

    /// Asks `rate` times a second, evenly; returns how long who comes last before `until` waits.
    fn wait_at(rate: f64, calm: f64, until: Duration) -> Duration {
        let mut workers = Workers::new(calm, script());
        let mut wait = Duration::ZERO;
        for slot in 0..(until.as_secs_f64() * rate) as u32 {
            let at = Duration::from_secs_f64(f64::from(slot) / rate);
            // Low and high draws take turns.
            let unit = if slot % 2 == 0 { 0.1 } else { 0.9 };
            wait = workers.take_on(at, unit).expect("there is room").done - at;
        }
        wait
    }

    #[test]
    fn so_many_are_worked_for_at_once_and_the_next_waits_for_the_first_to_be_done() {
        let mut workers = workers(2, 9);
        assert_eq!([(); 5].map(|()| done(&mut workers, 0)), [2.5, 2.5, 5.0, 5.0, 7.5]);
        // Both are free again long before.
        assert_eq!(done(&mut workers, 100), 102.5);
    }

    #[test]
    fn nobody_overtakes() {
        let mut workers = workers(2, 9);
        // The first takes 4 ms, the second 1 ms, the third begins after the second.
        let done = [1.0, 0.0, 0.0].map(|unit| workers.take_on(ms(0), unit).unwrap().done);
        assert_eq!(done, [ms(4), ms(1), ms(2)]);
    }

    #[test]
    fn failing_takes_a_worker_as_long_as_it_takes() {
        let mut workers = workers(1, 9);
        assert_eq!([(); 3].map(|()| done(&mut workers, 9_000)), [9_050.0, 9_100.0, 9_150.0]);
    }

    #[test]
    fn what_arrives_in_a_hang_is_done_after_it_and_in_the_manner_of_then() {
        let mut workers = workers(1, 9);
        assert_eq!(done(&mut workers, 5_000), 9_050.0);
        let second = workers.take_on(ms(8_000), 0.5).unwrap();
        assert_eq!(second, Work { mood: Mood::Failing, done: ms(9_100) });
        // Who comes after the hang stands behind those who came in it.
        assert_eq!(done(&mut workers, 9_010), 9_150.0);
    }

    #[test]
    fn what_was_begun_before_a_hang_is_done_after_it() {
        let mut workers = workers(1, 9);
        assert_eq!(done(&mut workers, 3_999), 9_001.5);
    }

    #[test]
    fn who_waits_beyond_the_end_of_a_phase_is_treated_as_in_the_next() {
        let mut workers = workers(1, 9);
        assert_eq!(workers.take_on(ms(13_960), 0.5).unwrap().mood, Mood::Failing);
        let next = workers.take_on(ms(13_961), 0.5).unwrap();
        assert_eq!(next, Work { mood: Mood::Slow, done: ms(14_010 + 120) });
    }

    #[test]
    fn a_full_queue_takes_nobody_on_until_somebody_has_begun() {
        let mut workers = workers(1, 2);
        for at in [5_000, 5_001] {
            assert!(workers.take_on(ms(at), 0.5).is_some());
        }
        assert_eq!(workers.take_on(ms(5_002), 0.5), None);
        assert_eq!(workers.take_on(ms(8_999), 0.5), None);
        assert_eq!(workers.waiting.len(), 2);
        // The first of them is being worked for, and the other waits.
        assert_eq!(done(&mut workers, 9_000), 9_150.0);
        assert_eq!(workers.take_on(ms(9_001), 0.5), None);
    }

    #[test]
    fn there_are_sixteen_workers_for_a_hundred_requests_a_second() {
        assert_eq!(
            [1.0, 10.0, 25.0, 50.0, 100.0, 101.0, 250.0].map(count),
            [1, 2, 4, 8, 16, 17, 40]
        );
    }

    #[test]
    fn what_workers_can_do_is_as_the_reasons_for_their_number_have_it() {
        let can = |mood| throughput(16, mood).round();
        assert_eq!([Mood::Healthy, Mood::Failing, Mood::Slow].map(can), [6_400.0, 320.0, 133.0]);
        assert_eq!(can(Mood::Hanging), 0.0);
    }

    #[test]
    fn who_asks_once_stays_within_the_workers_in_every_phase() {
        let slowest = Mood::Slow.delay(1.0).unwrap();
        for rate in [1.0, 7.0, 10.0, 25.0, 100.0, 250.0] {
            // The hang's queue is gone before the failing ends, and none grows while it is slow.
            assert!(wait_at(rate, rate, ms(14_000)) <= ms(60), "{rate}");
            assert!(wait_at(rate, rate, ms(19_000)) <= slowest, "{rate}");
        }
    }

    #[test]
    fn who_asks_four_times_is_behind_by_more_than_anybody_waits_until_the_server_is_healthy() {
        for rate in [25.0, 100.0, 250.0] {
            // Near the ends of failing and slow; who comes at the very end is saved by health.
            for late in [13_500, 17_500] {
                let wait = wait_at(4.0 * rate, rate, ms(late));
                assert!(wait > ms(1_000), "{rate}: {wait:?}");
            }
            assert!(wait_at(4.0 * rate, rate, ms(26_000)) <= ms(4), "{rate}");
        }
    }
}
