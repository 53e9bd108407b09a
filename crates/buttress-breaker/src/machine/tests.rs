use std::time::Duration;

use super::*;
use crate::settings::Window;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// A machine with its settings, a clock that a test moves, and dice that always fall in the middle.
struct Rig {
    machine: Machine,
    settings: BreakerSettings,
    start: Moment,
    now: Moment,
    unit: f64,
}

impl Rig {
    fn new(settings: BreakerSettings) -> Self {
        settings.check().unwrap();
        let now = Moment::START + SECOND;
        Self { machine: Machine::new(&settings, now), settings, start: now, now, unit: 0.5 }
    }

    /// Opens at the first failure, for five seconds, and is closed by so many probes.
    fn open(probes: u32) -> Self {
        let mut rig = Self::new(plain().consecutive(1).probes(probes));
        rig.call(End::Bad);
        assert_eq!(rig.state(), State::Open);
        rig
    }

    /// The same, half-open.
    fn half_open(probes: u32) -> Self {
        let mut rig = Self::open(probes);
        rig.pass(5 * SECOND);
        assert_eq!(rig.state(), State::HalfOpen);
        rig
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    fn ask(&mut self) -> Result<Ticket, Refused> {
        let unit = self.unit;
        self.machine.admit(&self.settings, self.now, || unit)
    }

    fn admit(&mut self) -> Ticket {
        self.ask().expect("let through")
    }

    fn refusal(&mut self) -> Option<Duration> {
        self.ask().expect_err("refused").until().map(|until| until - self.now)
    }

    fn end(&mut self, ticket: Ticket, end: End) {
        let unit = self.unit;
        self.machine.end(&self.settings, self.now, || unit, ticket, end);
    }

    fn call(&mut self, end: End) {
        let ticket = self.admit();
        self.end(ticket, end);
    }

    fn calls(&mut self, n: u32, end: End) {
        for _ in 0..n {
            self.call(end);
        }
    }

    /// A call that takes a while.
    fn long_call(&mut self, took: Duration, end: End) {
        let ticket = self.admit();
        self.pass(took);
        self.end(ticket, end);
    }

    fn state(&self) -> State {
        self.machine.state(self.now)
    }

    fn stats(&mut self) -> Stats {
        self.machine.stats(self.now)
    }

    fn window(&mut self) -> (u32, u32, u32) {
        let window = self.stats().window;
        (window.calls, window.failures, window.slow)
    }
}

/// No jitter, and a count window of ten.
fn plain() -> BreakerSettings {
    BreakerSettings::default().window(Window::calls(10)).min_calls(10).open_jitter(0.0)
}

fn timed(time: Duration, min_calls: u32) -> BreakerSettings {
    plain().window(Window::time(time)).min_calls(min_calls)
}

// === Closed: windows and rates ===

#[test]
fn failures_after_a_long_good_time_open_it_within_half_a_window() {
    let mut rig = Rig::new(plain().window(Window::calls(100)).min_calls(20));
    rig.calls(10_000, End::Good);
    rig.calls(49, End::Bad);
    assert_eq!(rig.state(), State::Closed);
    rig.call(End::Bad);
    assert_eq!(rig.state(), State::Open);

    // The same by time: at a steady 100 calls a second, half of ten seconds are 500 calls.
    let mut rig = Rig::new(timed(10 * SECOND, 20));
    for _ in 0..10_000 {
        rig.call(End::Good);
        rig.pass(10 * MS);
    }
    let mut failures = 0;
    while rig.state() == State::Closed && failures < 1_000 {
        rig.call(End::Bad);
        rig.pass(10 * MS);
        failures += 1;
    }
    assert!((450..=500).contains(&failures), "{failures}: half a window, less up to a slot");
}

#[test]
fn the_count_window_is_the_last_n_and_forgets_the_rest() {
    // Sizes around the edges of a word of marks, and one of several words.
    for size in [1, 2, 31, 32, 33, 64, 100] {
        let mut rig = Rig::new(plain().window(Window::calls(size)).min_calls(size));
        let ends: Vec<End> =
            (0..5 * size).map(|n| if n % 3 == 1 { End::Bad } else { End::Good }).collect();
        for (n, end) in ends.iter().enumerate() {
            let mark = if *end == End::Bad { Mark::Failed } else { Mark::Good };
            rig.machine.ring.record(rig.now, mark, &mut rig.machine.stats.window);
            let last = &ends[(n + 1).saturating_sub(size as usize)..=n];
            let failed = last.iter().filter(|end| **end == End::Bad).count() as u32;
            assert_eq!(rig.window(), (last.len() as u32, failed, 0), "{size} at {n}");
        }
    }
}

#[test]
fn a_callee_that_hangs_is_cut_off_after_half_of_window_and_attempt_together() {
    for attempt in [Duration::ZERO, 4 * SECOND, 9 * SECOND] {
        let mut rig = Rig::new(timed(10 * SECOND, 20));
        for _ in 0..2_000 {
            rig.call(End::Good);
            rig.pass(10 * MS);
        }
        // From now on every call hangs, until the attempt's limit fails it.
        let hung_at = rig.now;
        let mut hanging = std::collections::VecDeque::new();
        while rig.state() == State::Closed && rig.now < hung_at + 60 * SECOND {
            hanging.push_back((rig.now + attempt, rig.admit()));
            rig.pass(10 * MS);
            while let Some((until, ticket)) = hanging.front().copied()
                && until <= rig.now
            {
                rig.end(ticket, End::Bad);
                hanging.pop_front();
            }
        }
        let (took, half) = (rig.now - hung_at, (10 * SECOND + attempt) / 2);
        // The window is between nine and ten tenths of what it is called.
        assert!((half - SECOND / 2..=half + 20 * MS).contains(&took), "{attempt:?}: {took:?}");
    }
}

// CBK-10
#[test]
fn it_is_judged_at_each_outcome_once_there_are_enough() {
    let mut rig = Rig::new(timed(10 * SECOND, 5));
    for _ in 0..4 {
        rig.call(End::Bad);
        rig.pass(200 * MS);
        assert_eq!(rig.state(), State::Closed);
    }
    rig.call(End::Bad);
    assert_eq!(rig.state(), State::Open, "at the fifth, and not when the window is over");

    // A success is an outcome too: it may be the one that makes them enough.
    let mut rig = Rig::new(timed(10 * SECOND, 5));
    rig.calls(4, End::Bad);
    rig.call(End::Good);
    assert_eq!(rig.state(), State::Open);
}

// CBK-10
#[test]
fn calls_leave_a_time_window_when_they_are_as_old_as_it_give_or_take_a_slot() {
    for (time, offset) in [
        (10 * SECOND, Duration::ZERO),
        (10 * SECOND, 999 * MS),
        (SECOND, 37 * MS),
        (MS, Duration::from_nanos(99_999)),
    ] {
        let slot = time / 10;
        for (gap, state) in [(time - slot, State::Open), (time + slot, State::Closed)] {
            let mut rig = Rig::new(timed(time, 5));
            rig.pass(offset);
            rig.calls(4, End::Bad);
            rig.pass(gap);
            rig.call(End::Bad);
            assert_eq!(rig.state(), state, "{time:?} window, {gap:?} later");
        }
    }
}

#[test]
fn a_share_that_is_just_the_rate_opens_it() {
    // Shares whose product with the count is not what it is on paper.
    for (rate, failures, calls) in [(0.55, 55, 100), (0.07, 7, 100), (0.29, 29, 100), (1.0, 3, 3)] {
        let settings = plain().window(Window::calls(calls)).min_calls(calls).failure_rate(rate);
        let mut rig = Rig::new(settings.clone());
        rig.calls(calls - failures, End::Good);
        rig.calls(failures - 1, End::Bad);
        assert_eq!(rig.state(), State::Closed, "{rate}");
        rig.call(End::Bad);
        assert_eq!(rig.state(), State::Open, "{rate}");

        let mut rig = Rig::new(settings);
        rig.calls(calls - failures + 1, End::Good);
        rig.calls(failures - 1, End::Bad);
        assert_eq!(rig.state(), State::Closed, "{rate}: one less");
    }
}

#[test]
fn slow_answers_are_as_bad_as_none_once_most_are_slow() {
    let settings = plain().slow_call(2 * SECOND).slow_rate(0.8).open(60 * SECOND);
    let mut rig = Rig::new(settings.clone());
    rig.calls(2, End::Good);
    for _ in 0..7 {
        rig.long_call(2 * SECOND, End::Good);
    }
    assert_eq!(rig.window(), (9, 0, 7));
    rig.long_call(2 * SECOND, End::Good);
    assert_eq!((rig.state(), rig.stats().slow, rig.stats().success), (State::Open, 8, 2));

    let mut rig = Rig::new(settings);
    for _ in 0..10 {
        rig.long_call(2 * SECOND - Duration::from_nanos(1), End::Good);
    }
    assert_eq!((rig.window(), rig.stats().success), ((10, 0, 0), 10));
}

#[test]
fn a_call_that_failed_slowly_counts_once() {
    let mut rig = Rig::new(plain().slow_call(SECOND).slow_rate(0.1).failure_rate(0.2));
    rig.long_call(2 * SECOND, End::Bad);
    rig.calls(9, End::Good);
    assert_eq!((rig.window(), rig.state()), ((10, 1, 0), State::Closed));
}

#[test]
fn failures_in_a_row_open_it_however_few_calls_there_are() {
    let mut rig = Rig::new(plain().consecutive(3));
    rig.calls(2, End::Bad);
    rig.call(End::Good);
    rig.calls(2, End::Bad);
    rig.calls(5, End::Neutral);
    rig.calls(5, End::Dropped);
    assert_eq!(rig.state(), State::Closed, "a success ends the run, what says nothing does not");
    rig.call(End::DroppedLate);
    assert_eq!(rig.state(), State::Open, "a call that was abandoned goes on with it");
}

// CBK-06
#[test]
fn neutral_ends_are_in_no_window() {
    let mut rig = Rig::new(plain().consecutive(1));
    rig.calls(100, End::Neutral);
    assert_eq!((rig.state(), rig.window()), (State::Closed, (0, 0, 0)));
    assert_eq!((rig.stats().neutral, rig.stats().in_flight()), (100, 0));
}

// CBK-04
#[test]
fn a_caller_that_walks_away_says_nothing() {
    let mut rig = Rig::new(timed(10 * SECOND, 5).consecutive(5).slow_call(SECOND));
    rig.calls(50, End::Dropped);
    assert_eq!((rig.state(), rig.window()), (State::Closed, (0, 0, 0)));
    assert_eq!(rig.stats().dropped, 50);
}

// CBK-04
#[test]
fn callers_that_wait_until_their_deadline_open_it() {
    // By the rate, with no slow call set; and by the run.
    for settings in [timed(10 * SECOND, 5), plain().consecutive(5)] {
        let mut rig = Rig::new(settings);
        rig.calls(4, End::DroppedLate);
        assert_eq!((rig.state(), rig.window()), (State::Closed, (4, 0, 4)));
        rig.call(End::DroppedLate);
        assert_eq!((rig.state(), rig.stats().abandoned), (State::Open, 5));
    }
}

// CBK-04
#[test]
fn a_call_that_is_dropped_once_it_is_slow_was_abandoned() {
    let mut rig = Rig::new(plain().slow_call(SECOND));
    rig.long_call(SECOND - Duration::from_nanos(1), End::Dropped);
    assert_eq!((rig.window(), rig.stats().dropped), ((0, 0, 0), 1));
    rig.long_call(SECOND, End::Dropped);
    assert_eq!((rig.window(), rig.stats().abandoned), ((1, 0, 1), 1));
}

// === Open ===

// CBK-12
#[test]
fn a_refusal_tells_what_is_left_of_the_open_time() {
    let mut rig = Rig::open(1);
    assert_eq!(rig.refusal(), Some(5 * SECOND));
    rig.pass(1234 * MS);
    assert_eq!(rig.refusal(), Some(3766 * MS));
    rig.pass(3766 * MS - Duration::from_nanos(1));
    assert_eq!(rig.refusal(), Some(Duration::from_nanos(1)));
    assert_eq!(rig.state(), State::Open);
    rig.pass(Duration::from_nanos(1));
    assert_eq!(rig.state(), State::HalfOpen, "although nobody has asked");
    assert_eq!(rig.machine.since(rig.now), rig.now);
    rig.admit();
    assert_eq!((rig.stats().rejected, rig.stats().opened), (3, 1));
}

#[test]
fn the_open_time_is_drawn_evenly_around_what_was_set_and_never_beyond_the_longest() {
    let open_time = |settings: &BreakerSettings, unit| {
        let mut rig = Rig::new(settings.clone());
        rig.unit = unit;
        rig.call(End::Bad);
        rig.refusal().unwrap()
    };
    let settings = plain().consecutive(1).open_jitter(0.2);
    for (unit, seconds) in [(0.0, 4.0), (0.25, 4.5), (0.5, 5.0), (0.75, 5.5)] {
        assert_eq!(open_time(&settings, unit), Duration::from_secs_f64(seconds));
    }
    // At the longest it is drawn from what is left, and does not heap up at the end.
    let longest = settings.open_max(5 * SECOND);
    for (unit, seconds) in [(0.0, 4.0), (0.5, 4.5), (0.9, 4.9)] {
        assert_eq!(open_time(&longest, unit), Duration::from_secs_f64(seconds));
    }
}

#[test]
fn the_open_time_doubles_while_probes_fail_up_to_the_longest_and_starts_over_after_it_closed() {
    let mut rig = Rig::new(plain().consecutive(1).probes(1).open_max(30 * SECOND));
    for outage in 0..2 {
        for (trip, seconds) in [5, 10, 20, 30, 30].into_iter().enumerate() {
            rig.call(End::Bad);
            let open = seconds * SECOND;
            assert_eq!(rig.refusal(), Some(open), "outage {outage}, trip {trip}");
            rig.pass(open);
        }
        rig.call(End::Good);
        assert_eq!(rig.state(), State::Closed);
    }
    assert_eq!(rig.stats().opened, 10);
}

// BKO-10
#[test]
fn an_open_time_beyond_the_clock_is_for_ever_and_no_panic() {
    let settings = plain().consecutive(1).open(Duration::MAX).open_max(Duration::MAX);
    for jitter in [0.0, 0.999] {
        let mut rig = Rig::new(settings.clone().open_jitter(jitter));
        rig.unit = 1.0 - f64::EPSILON;
        rig.call(End::Bad);
        assert_eq!(rig.refusal(), None);
        rig.pass(100 * YEAR);
        assert_eq!((rig.refusal(), rig.state()), (None, State::Open));
        rig.machine.reset(rig.now);
        rig.call(End::Good);
    }
}

// === Epochs ===

#[test]
fn answer_from_before_the_trip_decides_nothing() {
    let mut rig = Rig::new(plain().consecutive(1).probes(1));
    let old = [rig.admit(), rig.admit(), rig.admit()];
    rig.call(End::Bad);
    rig.end(old[0], End::Good);
    assert_eq!(rig.state(), State::Open);

    rig.pass(5 * SECOND);
    let probe = rig.admit();
    rig.end(old[1], End::Bad);
    assert_eq!(rig.state(), State::HalfOpen, "it is no probe");
    rig.end(probe, End::Good);
    assert_eq!(rig.state(), State::Closed);
    rig.end(old[2], End::Bad);
    assert_eq!((rig.state(), rig.window()), (State::Closed, (0, 0, 0)));
    assert_eq!((rig.stats().stale, rig.stats().in_flight()), (3, 0));
}

#[test]
fn a_probe_of_an_earlier_round_is_no_probe_of_this_one() {
    let mut rig = Rig::half_open(2);
    let (old, failed) = (rig.admit(), rig.admit());
    rig.end(failed, End::Bad);
    rig.pass(10 * SECOND);
    let probe = rig.admit();
    rig.end(old, End::Bad);
    assert_eq!((rig.state(), rig.stats().stale), (State::HalfOpen, 1));
    rig.end(probe, End::Good);
    rig.call(End::Good);
    assert_eq!(rig.state(), State::Closed);
}

// === HalfOpen ===

// CBK-01
#[test]
fn as_many_probes_as_must_succeed_and_the_one_that_moves_it_is_one_of_them() {
    let mut rig = Rig::half_open(3);
    let probes = [rig.admit(), rig.admit(), rig.admit()];
    assert_eq!(rig.refusal(), None, "nobody knows when a probe ends");
    for (n, probe) in probes.into_iter().enumerate() {
        assert_eq!(rig.state(), State::HalfOpen);
        rig.end(probe, End::Good);
        if n < 2 {
            assert_eq!(rig.refusal(), None, "no more than are needed");
        }
    }
    assert_eq!(rig.state(), State::Closed);
}

#[test]
fn one_probe_that_fails_opens_it_again_whatever_the_others_say() {
    let mut rig = Rig::half_open(3);
    let probes = [rig.admit(), rig.admit(), rig.admit()];
    rig.end(probes[0], End::Good);
    rig.end(probes[1], End::Good);
    rig.end(probes[2], End::Bad);
    assert_eq!((rig.state(), rig.refusal()), (State::Open, Some(10 * SECOND)));
}

// CBK-02
#[test]
fn a_probe_that_says_nothing_gives_its_place_back() {
    for end in [End::Neutral, End::Dropped] {
        let mut rig = Rig::half_open(1);
        for _ in 0..100 {
            let probe = rig.admit();
            assert_eq!(rig.refusal(), None);
            rig.end(probe, end);
            assert_eq!(rig.state(), State::HalfOpen);
        }
        rig.call(End::Good);
        assert_eq!(rig.state(), State::Closed);
    }
}

// CBK-03
#[test]
fn a_probe_that_hangs_is_replaced_after_its_lease_and_comes_too_late() {
    let mut rig = Rig::half_open(1);
    let hung = rig.admit();
    rig.pass(5 * SECOND - Duration::from_nanos(1));
    assert_eq!(rig.refusal(), None);
    rig.pass(Duration::from_nanos(1));
    let next = rig.admit();
    assert_eq!(rig.refusal(), None, "it has one successor, not two");
    rig.end(next, End::Good);
    assert_eq!(rig.state(), State::Closed);
    rig.end(hung, End::Bad);
    let stats = rig.stats();
    assert_eq!((rig.state(), stats.window.failures, stats.failure), (State::Closed, 0, 1));
    assert_eq!((stats.expired, stats.stale, stats.in_flight()), (1, 1, 0));
}

// CBK-03
#[test]
fn a_probe_that_comes_too_late_says_nothing_to_its_successor_either() {
    for end in [End::Bad, End::Neutral, End::Dropped, End::DroppedLate] {
        let mut rig = Rig::half_open(1);
        let hung = rig.admit();
        rig.pass(5 * SECOND);
        let next = rig.admit();
        rig.end(hung, end);
        assert_eq!((rig.state(), rig.refusal()), (State::HalfOpen, None), "{end:?}");
        rig.end(next, End::Good);
        assert_eq!(rig.state(), State::Closed, "{end:?}");
    }
}

// CBK-03
#[test]
fn a_probe_that_was_given_up_and_then_answers_well_counts_as_a_success() {
    let mut rig = Rig::half_open(1);
    let slow = rig.admit();
    rig.pass(5 * SECOND);
    let next = rig.admit();
    rig.pass(SECOND);
    rig.end(slow, End::Good);
    assert_eq!(rig.state(), State::Closed);
    rig.end(next, End::Bad);
    let stats = rig.stats();
    assert_eq!((rig.state(), stats.success, stats.stale), (State::Closed, 1, 1));
    assert_eq!((stats.expired, stats.in_flight()), (1, 0));

    // One of three, and its successor another: what one said does not count for both.
    let mut rig = Rig::half_open(3);
    let slow = rig.admit();
    rig.pass(5 * SECOND);
    let next = [rig.admit(), rig.admit(), rig.admit()];
    rig.end(slow, End::Good);
    assert_eq!((rig.state(), rig.refusal()), (State::HalfOpen, None), "nor does it make room");
    rig.end(next[0], End::Good);
    assert_eq!(rig.state(), State::HalfOpen);
    rig.end(next[1], End::Good);
    assert_eq!(rig.state(), State::Closed);
}

#[test]
fn a_probe_that_was_given_up_and_then_answers_slowly_says_nothing() {
    let settings = plain().consecutive(1).probes(1).slow_call(6 * SECOND);
    let half_open = || {
        let mut rig = Rig::new(settings.clone());
        rig.call(End::Bad);
        rig.pass(5 * SECOND);
        let slow = rig.admit();
        rig.pass(5 * SECOND);
        let next = rig.admit();
        (rig, slow, next)
    };
    let (mut rig, slow, next) = half_open();
    rig.pass(SECOND);
    rig.end(slow, End::Good);
    assert_eq!((rig.state(), rig.stats().stale), (State::HalfOpen, 1));
    rig.end(next, End::Good);
    assert_eq!(rig.state(), State::Closed);

    let (mut rig, slow, _) = half_open();
    rig.pass(SECOND - Duration::from_nanos(1));
    rig.end(slow, End::Good);
    assert_eq!(rig.state(), State::Closed, "longer than the lease, but not slow");
}

/// How long it takes to close, if a call that takes so long comes every tenth of a second, and all end well.
fn closes_after(settings: BreakerSettings, takes: Duration) -> Option<Duration> {
    let mut rig = Rig::new(settings.consecutive(1));
    rig.call(End::Bad);
    let opened = rig.now;
    let mut running = std::collections::VecDeque::new();
    while rig.now < opened + 3_600 * SECOND {
        while let Some((until, ticket)) = running.front().copied()
            && until <= rig.now
        {
            rig.end(ticket, End::Good);
            running.pop_front();
        }
        if rig.state() == State::Closed {
            return Some(rig.now - opened);
        }
        if let Ok(ticket) = rig.ask() {
            running.push_back((rig.now + takes, ticket));
        }
        rig.pass(100 * MS);
    }
    None
}

// CBK-03
#[test]
fn a_callee_that_is_well_closes_it_however_much_longer_than_the_lease_it_takes() {
    let of_a_second = || plain().open(SECOND);
    let of_a_minute = || plain().open(60 * SECOND).open_max(60 * SECOND);
    for probes in [1, 3, 10] {
        for (settings, open) in [(of_a_second(), SECOND), (of_a_minute(), 60 * SECOND)] {
            let settings = settings.probes(probes);
            for (takes, lease) in [(1500, 1000), (1900, 1000), (60, 50), (99_000, 50_000)] {
                let (takes, lease) = (takes * MS, lease * MS);
                let took = closes_after(settings.clone().probe_lease(lease), takes).unwrap();
                // The first that were let through are those that close it: none was in vain.
                let at_once = open + takes + probes * 100 * MS;
                assert!(took <= at_once, "{probes}, {takes:?} of {lease:?}: {took:?}");
            }
            for takes in [SECOND, 2 * SECOND, 3 * SECOND, 10 * SECOND, 100 * SECOND, 500 * SECOND] {
                let took = closes_after(settings.clone(), takes).expect("closes");
                // It opens again while they run, for a minute and a fifth at most.
                assert!(took <= open + 3 * takes + 120 * SECOND, "{probes}, {takes:?}: {took:?}");
            }
        }
    }
}

#[test]
fn one_answer_that_took_an_hour_keeps_no_probe_back_for_the_next() {
    let mut rig = Rig::half_open(1);
    let slow = rig.admit();
    rig.pass(5 * SECOND);
    let slower = rig.admit();
    rig.pass(5 * SECOND);
    assert!(rig.refusal().is_some(), "two hang");
    rig.pass(3600 * SECOND);
    assert_eq!(rig.state(), State::HalfOpen);
    rig.end(slow, End::Good);
    rig.end(slower, End::Neutral);
    let hung = rig.admit();
    rig.pass(600 * SECOND);
    let next = rig.admit();
    rig.end(next, End::Good);
    assert_eq!(rig.state(), State::Closed);
    rig.end(hung, End::Dropped);
}

#[test]
fn a_good_answer_from_before_it_opened_again_closes_nothing_but_lengthens_the_lease() {
    let mut rig = Rig::half_open(1);
    let slow = rig.admit();
    rig.pass(5 * SECOND);
    let slower = rig.admit();
    rig.pass(5 * SECOND);
    assert_eq!(rig.refusal(), Some(10 * SECOND), "two hang");
    rig.pass(10 * SECOND);
    assert_eq!(rig.state(), State::HalfOpen);
    rig.end(slow, End::Good);
    assert_eq!((rig.state(), rig.stats().stale), (State::HalfOpen, 1));

    // It took twenty seconds, and so may others.
    let hung = rig.admit();
    rig.pass(20 * SECOND - Duration::from_nanos(1));
    assert_eq!(rig.refusal(), None);
    rig.pass(Duration::from_nanos(1));
    let next = rig.admit();
    assert_eq!(rig.stats().expired, 3);

    // Until it closes.
    rig.end(next, End::Good);
    rig.end(hung, End::Good);
    rig.end(slower, End::Good);
    assert_eq!(rig.state(), State::Closed);
    rig.calls(1, End::Bad);
    rig.pass(5 * SECOND);
    rig.admit();
    rig.pass(5 * SECOND);
    rig.call(End::Good);
    assert_eq!((rig.state(), rig.stats().expired), (State::Closed, 4));
}

#[test]
fn what_is_no_good_answer_of_this_outage_lengthens_no_lease() {
    let settings = plain().consecutive(1).probes(2).slow_call(60 * SECOND);
    for (end, after) in [
        (End::Bad, 10 * SECOND),
        (End::Neutral, 10 * SECOND),
        (End::Dropped, 10 * SECOND),
        (End::DroppedLate, 10 * SECOND),
        (End::Good, 60 * SECOND),
    ] {
        let mut rig = Rig::new(settings.clone());
        let closed = rig.admit();
        rig.call(End::Bad);
        rig.pass(5 * SECOND);
        let old = rig.admit();
        rig.call(End::Bad);
        rig.pass(after);
        rig.admit();
        // Neither a call from before it opened, nor one that says no good.
        rig.end(closed, End::Good);
        rig.end(old, end);
        rig.admit();
        rig.pass(5 * SECOND);
        rig.admit();
        assert_eq!(rig.stats().expired, 2, "{end:?}");
    }

    // Nor one from the outage before.
    let mut rig = Rig::new(settings);
    rig.call(End::Bad);
    rig.pass(5 * SECOND);
    let old = rig.admit();
    rig.machine.reset(rig.now);
    rig.call(End::Bad);
    rig.pass(5 * SECOND);
    rig.admit();
    rig.pass(SECOND);
    rig.end(old, End::Good);
    rig.admit();
    rig.pass(5 * SECOND);
    rig.admit();
    assert_eq!((rig.state(), rig.stats().expired), (State::HalfOpen, 2));
}

#[test]
fn a_late_probe_that_nobody_has_replaced_still_has_its_say() {
    let mut rig = Rig::half_open(1);
    rig.long_call(60 * SECOND, End::Good);
    assert_eq!((rig.state(), rig.stats().expired), (State::Closed, 0));
}

// CBK-03
#[test]
fn a_callee_that_hangs_for_every_probe_opens_it_again() {
    for probes in [1, 3] {
        let mut rig = Rig::half_open(probes);
        for _ in 0..probes {
            rig.admit();
        }
        rig.pass(5 * SECOND);
        for _ in 0..probes {
            rig.admit();
        }
        // Both rounds hang. Nobody asks for two seconds more: it has been open for these already.
        rig.pass(7 * SECOND);
        assert_eq!(rig.refusal(), Some(8 * SECOND), "the doubled time, since the lease ended");
        assert_eq!((rig.state(), rig.stats().opened), (State::Open, 2));
        assert_eq!(rig.stats().expired, u64::from(2 * probes));
    }
}

#[test]
fn hung_probes_of_long_ago_do_not_refuse_whoever_comes_today() {
    let mut rig = Rig::half_open(1);
    rig.admit();
    rig.pass(5 * SECOND);
    rig.admit();
    rig.pass(YEAR);
    rig.call(End::Good);
    assert_eq!((rig.state(), rig.stats().opened), (State::Closed, 2));
}

#[test]
fn probes_of_which_most_are_slow_open_it_again() {
    let half_open = |probes, slow_rate| {
        let settings = plain().consecutive(1).probes(probes).slow_call(SECOND);
        let mut rig = Rig::new(settings.slow_rate(slow_rate).probe_lease(60 * SECOND));
        rig.call(End::Bad);
        rig.pass(5 * SECOND);
        rig
    };
    // The same share as in the window.
    let mut rig = half_open(3, 0.8);
    rig.long_call(SECOND, End::Good);
    rig.long_call(SECOND, End::Good);
    rig.call(End::Good);
    assert_eq!(rig.state(), State::Closed, "two of three are not eight in ten");

    let mut rig = half_open(3, 0.8);
    rig.long_call(SECOND, End::Good);
    rig.long_call(SECOND, End::Dropped);
    assert_eq!(rig.state(), State::HalfOpen);
    rig.long_call(SECOND, End::Good);
    assert_eq!((rig.state(), rig.refusal()), (State::Open, Some(10 * SECOND)));

    let mut rig = half_open(1, 0.8);
    rig.call(End::DroppedLate);
    assert_eq!(rig.state(), State::Open, "one of one");
}

// === By hand ===

#[test]
fn forced_open_it_stays_open_until_it_is_reset() {
    let mut rig = Rig::new(plain().consecutive(1));
    let before = rig.admit();
    rig.machine.force_open(rig.now);
    rig.end(before, End::Good);
    rig.pass(YEAR);
    assert_eq!((rig.state(), rig.refusal()), (State::Open, None));
    assert!(rig.machine.is_forced());
    rig.machine.reset(rig.now);
    assert_eq!(rig.state(), State::Closed);
    rig.call(End::Good);
    assert!(!rig.machine.is_forced());
}

#[test]
fn forced_closed_it_stays_closed_until_it_is_reset() {
    let mut rig = Rig::half_open(1);
    rig.machine.force_closed(rig.now);
    rig.calls(100, End::Bad);
    assert_eq!((rig.state(), rig.stats().failure), (State::Closed, 101));
    let forced = rig.admit();
    rig.machine.reset(rig.now);
    rig.end(forced, End::Bad);
    assert_eq!(rig.state(), State::Closed, "what was forced teaches nothing");
    rig.call(End::Bad);
    assert_eq!(rig.refusal(), Some(5 * SECOND), "and it starts over with the shortest time");
}

#[test]
fn a_shadow_does_all_but_refuse() {
    let mut rig = Rig::new(plain().consecutive(2).probes(1).shadow(true));
    rig.calls(2, End::Bad);
    assert_eq!(rig.state(), State::Open);
    rig.calls(3, End::Good);
    assert_eq!(rig.state(), State::Open, "a breaker would not have seen these");
    rig.pass(5 * SECOND);
    let probe = rig.admit();
    rig.call(End::Bad);
    assert_eq!(rig.state(), State::HalfOpen);
    rig.end(probe, End::Good);
    assert_eq!(rig.state(), State::Closed);

    let late = rig.admit();
    rig.machine.force_open(rig.now);
    rig.end(late, End::Good);
    rig.call(End::Good);
    let stats = rig.stats();
    assert_eq!((stats.shadowed, stats.rejected, stats.opened), (5, 0, 2));
    assert_eq!((stats.success, stats.failure, stats.stale), (5, 3, 1));
    assert_eq!(stats.in_flight(), 0);

    rig.machine.set_shadow(false);
    assert_eq!(rig.refusal(), None);
}

// === Clocks ===

#[test]
fn a_clock_that_goes_back_harms_nothing() {
    let mut rig = Rig::new(timed(10 * SECOND, 5).slow_call(SECOND).probes(1));
    rig.pass(60 * SECOND);
    rig.call(End::Good);
    let ticket = rig.admit();
    rig.now = Moment::START;
    assert!(rig.now < rig.start);
    rig.end(ticket, End::Good);
    rig.calls(2, End::Bad);
    assert_eq!((rig.window(), rig.state()), ((4, 2, 0), State::Closed));
    rig.call(End::Bad);
    assert_eq!((rig.state(), rig.refusal()), (State::Open, Some(5 * SECOND)));
    rig.pass(66 * SECOND);
    let probe = rig.admit();
    rig.now = rig.start;
    assert_eq!(rig.refusal(), None);
    rig.end(probe, End::Dropped);
    rig.pass(66 * SECOND);
    rig.calls(2, End::Good);
    assert_eq!((rig.state(), rig.window()), (State::Closed, (1, 0, 0)));
}

#[test]
fn a_jump_of_a_year_empties_the_window_and_ends_the_open_time() {
    let mut rig = Rig::new(timed(10 * SECOND, 5));
    rig.calls(4, End::Bad);
    rig.pass(YEAR);
    assert_eq!(rig.window(), (0, 0, 0));
    rig.call(End::Bad);
    assert_eq!((rig.state(), rig.window()), (State::Closed, (1, 1, 0)));
    rig.calls(4, End::Bad);
    assert_eq!(rig.state(), State::Open);
    rig.pass(YEAR);
    assert_eq!(rig.state(), State::HalfOpen);
    rig.admit();
}

#[test]
fn it_is_in_a_state_since_it_came_into_it_and_not_since_somebody_confirmed_it() {
    let mut rig = Rig::new(plain());
    let since = rig.now;
    rig.pass(SECOND);
    rig.machine.reset(rig.now);
    rig.machine.force_closed(rig.now);
    assert_eq!(rig.machine.since(rig.now), since);
    rig.machine.force_open(rig.now);
    let since = rig.now;
    rig.pass(SECOND);
    rig.machine.force_open(rig.now);
    assert_eq!((rig.machine.since(rig.now), rig.stats().opened), (since, 1));
}

// === What may be forgotten ===

#[test]
fn only_what_nobody_needs_may_be_forgotten() {
    let forgotten = |rig: &Rig| rig.machine.may_be_forgotten(&rig.settings, rig.now);
    let mut rig = Rig::new(plain().consecutive(1).probes(1));
    assert!(forgotten(&rig));
    let ticket = rig.admit();
    assert!(!forgotten(&rig), "a call is in flight");
    rig.end(ticket, End::Bad);
    assert!(!forgotten(&rig), "open");
    rig.pass(5 * SECOND);
    assert!(!forgotten(&rig), "half-open, and nobody has asked yet");
    rig.call(End::Neutral);
    assert!(!forgotten(&rig), "half-open");
    rig.pass(300 * SECOND);
    rig.call(End::Neutral);
    rig.pass(600 * SECOND - Duration::from_nanos(1));
    assert!(!forgotten(&rig));
    rig.pass(Duration::from_nanos(1));
    assert!(forgotten(&rig), "left alone for ten times the longest open time");
    rig.machine.force_closed(rig.now);
    rig.pass(YEAR);
    assert!(!forgotten(&rig), "forced");
}

#[test]
fn for_ever_open_is_never_forgotten() {
    let settings = plain().consecutive(1).open(Duration::MAX).open_max(Duration::MAX);
    let mut rig = Rig::new(settings);
    rig.call(End::Bad);
    rig.pass(100 * YEAR);
    assert!(!rig.machine.may_be_forgotten(&rig.settings, rig.now));
}
