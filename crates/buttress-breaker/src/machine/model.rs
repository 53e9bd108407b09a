//! The machine against a model that keeps everything and works it all out anew each time.

use std::time::Duration;

use super::*;
use crate::settings::Window;

/// A small generator (SplitMix64), so that a history is told by its seed.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// What is known of one call.
#[derive(Clone, Debug)]
struct Call {
    round: usize,
    at: Moment,
    role: Role,
    end: Option<(Moment, Outcome)>,
    /// It succeeded, and was not slow, whether that was heard or not.
    well: bool,
    /// When its place may go to another.
    until: Moment,
    /// Its place went to another.
    replaced: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Role {
    Plain,
    Probe,
    Unseen,
}

/// A stretch between two changes of the state.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stretch {
    Closed,
    Open { until: Moment },
    HalfOpen,
    ForcedOpen,
    ForcedClosed,
}

/// All that ever happened.
struct Model {
    settings: BreakerSettings,
    /// Every stretch; the last is the present. Its number is a call's round.
    stretches: Vec<Stretch>,
    calls: Vec<Call>,
    shadow: bool,
    refused: u64,
}

impl Model {
    fn present(&self) -> Stretch {
        *self.stretches.last().unwrap()
    }

    fn round(&self) -> usize {
        self.stretches.len() - 1
    }

    /// The calls of the present stretch.
    fn present_calls(&self) -> impl DoubleEndedIterator<Item = &Call> {
        self.calls.iter().filter(|call| call.round == self.round() && call.role != Role::Unseen)
    }

    /// What it went through since it was last closed.
    fn outage(&self) -> impl Iterator<Item = &Stretch> {
        let back = self.stretches.iter().rev();
        back.take_while(|s| matches!(s, Stretch::Open { .. } | Stretch::HalfOpen))
    }

    /// How many openings led here since it was last closed.
    fn trips(&self) -> u32 {
        self.outage().filter(|s| matches!(s, Stretch::Open { .. })).count() as u32
    }

    /// As long as is set, or as the longest good answer took that came too late to be heard, but for ten of
    /// the longest open times.
    fn lease(&self) -> Duration {
        let outage = self.round() + 1 - self.outage().count();
        let probes = self.calls.iter().filter(|c| c.role == Role::Probe && c.round >= outage);
        let unheard = probes.filter(|call| call.well && !is_answer(call));
        let longest = unheard.map(|call| call.end.unwrap().0 - call.at).max();
        let late = longest.unwrap_or_default().min(self.settings.open_max.saturating_mul(10));
        self.settings.lease().max(late)
    }

    fn trip(&mut self, at: Moment) {
        let doubled = self.settings.open.saturating_mul(2u32.saturating_pow(self.trips()));
        let open = doubled.min(self.settings.open_max);
        self.stretches.push(Stretch::Open { until: at + open });
    }

    fn holds_place(call: &&Call) -> bool {
        call.role == Role::Probe && call.end.is_none() && !call.replaced
    }

    fn ask(&mut self, now: Moment) -> Option<Role> {
        loop {
            match self.present() {
                Stretch::Closed | Stretch::ForcedClosed => return Some(Role::Plain),
                Stretch::ForcedOpen => return None,
                Stretch::Open { until } if now < until => return None,
                Stretch::Open { .. } => self.stretches.push(Stretch::HalfOpen),
                Stretch::HalfOpen => {
                    let round = self.round();
                    let mut last = None;
                    for call in &mut self.calls {
                        let holds = Self::holds_place(&&*call);
                        if call.round == round && holds && call.until <= now {
                            call.replaced = true;
                            last = last.max(Some(call.until));
                        }
                    }
                    let probes = self.settings.probes as usize;
                    let given_up = self.present_calls().filter(|c| c.replaced && !c.well);
                    if given_up.count() > probes {
                        self.trip(last.unwrap());
                        continue;
                    }
                    let running = self.present_calls().filter(Self::holds_place).count();
                    let won = self.present_calls().filter(|call| is_answer(call)).count();
                    return (running + won < probes).then_some(Role::Probe);
                }
            }
        }
    }

    /// Whether the next call is let through.
    fn admit(&mut self, now: Moment) -> bool {
        let role = match self.ask(now) {
            Some(role) => role,
            None if self.shadow => Role::Unseen,
            None => {
                self.refused += 1;
                return false;
            }
        };
        let (round, until) = (self.round(), now + self.lease());
        let (end, well, replaced) = (None, false, false);
        self.calls.push(Call { round, at: now, role, end, well, until, replaced });
        true
    }

    fn end(&mut self, now: Moment, index: usize, end: End) {
        let (round, settings) = (self.round(), self.settings.clone());
        let call = &mut self.calls[index];
        let slow = settings.slow_call.is_some_and(|slow| now >= call.at + slow);
        call.well = end == End::Good && !slow;
        let given_up = call.replaced && !call.well;
        let late = call.role != Role::Unseen && (call.round != round || given_up);
        let outcome = match end {
            _ if late => Outcome::Stale,
            End::Good if slow => Outcome::Slow,
            End::Good => Outcome::Success,
            End::Bad => Outcome::Failure,
            End::Neutral => Outcome::Neutral,
            End::DroppedLate => Outcome::Abandoned,
            End::Dropped if slow => Outcome::Abandoned,
            End::Dropped => Outcome::Dropped,
        };
        call.end = Some((now, outcome));
        if late || call.role == Role::Unseen {
            return;
        }
        match self.present() {
            Stretch::Closed => self.judge_closed(now, outcome),
            Stretch::HalfOpen => self.judge_probes(now),
            _ => {}
        }
    }

    /// What ended in the present stretch, in the order in which it did, as it goes into a window.
    fn marks(&self) -> Vec<(Moment, Outcome)> {
        let mut marks: Vec<_> = self.present_calls().filter_map(|call| call.end).collect();
        marks.retain(|(_, outcome)| {
            !matches!(outcome, Outcome::Neutral | Outcome::Dropped | Outcome::Stale)
        });
        // Histories in this model end no two calls at one instant.
        marks.sort_by_key(|(at, _)| *at);
        marks
    }

    fn window(&self, now: Moment) -> (u32, u32, u32) {
        let marks = self.marks();
        let in_window: Vec<_> = match self.settings.window {
            Window::Count(calls) => marks.iter().rev().take(calls as usize).collect(),
            Window::Time(time) => {
                let slot = |at: Moment| u128::from(at.nanos()) / (time.as_nanos() / 10);
                marks.iter().filter(|(at, _)| slot(now) - slot(*at) < 10).collect()
            }
        };
        let of = |wanted: &[Outcome]| {
            in_window.iter().filter(|(_, outcome)| wanted.contains(outcome)).count() as u32
        };
        let slow = of(&[Outcome::Slow, Outcome::Abandoned]);
        (in_window.len() as u32, of(&[Outcome::Failure]), slow)
    }

    fn judge_closed(&mut self, now: Moment, outcome: Outcome) {
        if matches!(outcome, Outcome::Neutral | Outcome::Dropped) {
            return;
        }
        let (calls, failures, slow) = self.window(now);
        let marks = self.marks();
        let run = marks
            .iter()
            .rev()
            .take_while(|(_, outcome)| matches!(outcome, Outcome::Failure | Outcome::Abandoned))
            .count() as u32;
        // In whole numbers: the rates of this model are in tenths.
        let tenths = |rate: f64| (rate * 10.0).round() as u32;
        let enough = calls >= self.settings.min_calls;
        if self.settings.consecutive.is_some_and(|n| run >= n)
            || enough && failures * 10 >= tenths(self.settings.failure_rate) * calls
            || enough && slow * 10 >= tenths(self.settings.slow_rate) * calls
        {
            self.trip(now);
        }
    }

    fn judge_probes(&mut self, now: Moment) {
        let of = |wanted: &[Outcome]| {
            let ends = self.present_calls().filter_map(|call| call.end);
            ends.filter(|(_, outcome)| wanted.contains(outcome)).count() as u32
        };
        let slow = of(&[Outcome::Slow, Outcome::Abandoned]);
        let tenths = (self.settings.slow_rate * 10.0).round() as u32;
        if of(&[Outcome::Failure]) > 0 || slow * 10 >= tenths * self.settings.probes {
            self.trip(now);
        } else if of(&[Outcome::Success, Outcome::Slow]) >= self.settings.probes {
            self.stretches.push(Stretch::Closed);
        }
    }

    fn state(&self, now: Moment) -> State {
        match self.present() {
            Stretch::Closed | Stretch::ForcedClosed => State::Closed,
            Stretch::Open { until } if until <= now => State::HalfOpen,
            Stretch::Open { .. } | Stretch::ForcedOpen => State::Open,
            Stretch::HalfOpen => State::HalfOpen,
        }
    }

    fn check_stats(&self, stats: &Stats) {
        let of = |wanted| {
            let ends = self.calls.iter().filter_map(|call| call.end);
            ends.filter(|(_, outcome)| *outcome == wanted).count() as u64
        };
        assert_eq!(stats.started, self.calls.len() as u64);
        assert_eq!(stats.success, of(Outcome::Success));
        assert_eq!(stats.slow, of(Outcome::Slow));
        assert_eq!(stats.failure, of(Outcome::Failure));
        assert_eq!(stats.neutral, of(Outcome::Neutral));
        assert_eq!(stats.abandoned, of(Outcome::Abandoned));
        assert_eq!(stats.dropped, of(Outcome::Dropped));
        assert_eq!(stats.stale, of(Outcome::Stale));
        assert_eq!(stats.rejected, self.refused);
        let unseen = self.calls.iter().filter(|call| call.role == Role::Unseen).count();
        assert_eq!(stats.shadowed, unseen as u64);
        let replaced = self.calls.iter().filter(|call| call.replaced).count();
        assert_eq!(stats.expired, replaced as u64);
        let open = |s: &Stretch| matches!(s, Stretch::Open { .. } | Stretch::ForcedOpen);
        let opened = self.stretches.windows(2).filter(|pair| !open(&pair[0]) && open(&pair[1]));
        assert_eq!(stats.opened, opened.count() as u64);
        let running = self.calls.iter().filter(|call| call.end.is_none()).count();
        assert_eq!(stats.in_flight(), running as u64);
    }
}

fn is_answer(call: &Call) -> bool {
    matches!(call.end, Some((_, Outcome::Success | Outcome::Slow)))
}

fn settings(dice: &mut Dice) -> BreakerSettings {
    let calls = 1 + dice.below(40) as u32;
    let (window, min_calls) = if dice.below(2) == 0 {
        (Window::calls(calls), 1 + dice.below(calls.min(6).into()) as u32)
    } else {
        let time = Duration::from_millis(dice.pick(&[1, 10, 100, 1000, 10_000]));
        (Window::time(time), 1 + dice.below(6) as u32)
    };
    let rate = |dice: &mut Dice| (1 + dice.below(10)) as f64 / 10.0;
    let maybe = |dice: &mut Dice, some: u64| (dice.below(2) == 0).then_some(some);
    let ms = |n| n * Duration::from_millis(1);
    let open = 1 + dice.below(500) as u32;
    let (failure_rate, slow_rate) = (rate(dice), rate(dice));
    let slow = 1 + dice.below(300);
    let lease = 1 + dice.below(600);
    let run = 1 + dice.below(5);
    BreakerSettings::default()
        .window(window)
        .min_calls(min_calls)
        .failure_rate(failure_rate)
        .slow_rate(slow_rate)
        .slow_call(maybe(dice, slow).map(Duration::from_millis))
        .consecutive(maybe(dice, run).map(|n| n as u32))
        .open(ms(open))
        .open_max(ms(open * (1 + dice.below(5) as u32)))
        .open_jitter(0.0)
        .probes(1 + dice.below(4) as u32)
        .probe_lease(maybe(dice, lease).map(Duration::from_millis))
        .shadow(dice.below(8) == 0)
}

fn history(seed: u64, steps: u32) {
    let mut dice = Dice(seed);
    let settings = settings(&mut dice);
    settings.check().unwrap();
    let mut now = Moment::at(dice.below(1 << 40));
    let mut machine = Machine::new(&settings, now);
    let mut model = Model {
        settings: settings.clone(),
        stretches: vec![Stretch::Closed],
        calls: Vec::new(),
        shadow: settings.shadow,
        refused: 0,
    };
    let mut running: Vec<(usize, Ticket)> = Vec::new();
    // Some callees are well, some ill, some change.
    let mood = dice.below(4);
    for step in 0..steps {
        // Never the same instant twice, so that the order of ends is that of instants.
        now += Duration::from_nanos(1);
        now += match dice.below(8) {
            0 => Duration::from_millis(dice.below(1_000)),
            1 => Duration::from_micros(dice.below(5_000)),
            2 if dice.below(50) == 0 => Duration::from_secs(365 * 24 * 60 * 60),
            _ => Duration::ZERO,
        };
        match dice.below(100) {
            0 => {
                machine.force_open(now);
                model.stretches.push(Stretch::ForcedOpen);
            }
            1 => {
                machine.force_closed(now);
                model.stretches.push(Stretch::ForcedClosed);
            }
            2..=4 => {
                machine.reset(now);
                model.stretches.push(Stretch::Closed);
            }
            5 if dice.below(4) == 0 => {
                model.shadow = !model.shadow;
                machine.set_shadow(model.shadow);
            }
            6..=55 => {
                let refuses = machine.refuses(&settings, now);
                let admitted = machine.admit(&settings, now, || 0.5);
                let expected = model.admit(now);
                assert_eq!(admitted.is_ok(), expected, "admission");
                if model.shadow {
                    assert!(!refuses);
                }
                // A look ahead may miss that hung probes have just opened it; it never refuses what would
                // be let through.
                assert!(!refuses || !expected, "looks ahead");
                match (admitted, model.present()) {
                    (Ok(ticket), _) => running.push((model.calls.len() - 1, ticket)),
                    (Err(refused), Stretch::Open { until }) => {
                        assert_eq!(refused.until(), Some(until));
                    }
                    (Err(refused), _) => assert_eq!(refused.until(), None),
                }
            }
            _ if running.is_empty() => {}
            _ => {
                let chosen = dice.below(running.len() as u64) as usize;
                let (index, ticket) = running.swap_remove(chosen);
                let ill = match mood {
                    0 => false,
                    1 => true,
                    2 => step / 8 % 2 == 0,
                    _ => dice.below(2) == 0,
                };
                let end = match (dice.below(10), ill) {
                    (0, _) => End::Neutral,
                    (1, _) => End::Dropped,
                    (2, _) => End::DroppedLate,
                    // What a panic is told as.
                    (_, true) => End::Bad,
                    (_, false) => End::Good,
                };
                machine.end(&settings, now, || 0.5, ticket, end);
                model.end(now, index, end);
            }
        }
        assert_eq!(machine.state(now), model.state(now), "state");
        let stats = machine.stats(now);
        if step % 8 == 7 {
            model.check_stats(&stats);
        }
        if model.present() == Stretch::Closed {
            let window = stats.window;
            assert_eq!((window.calls, window.failures, window.slow), model.window(now), "window");
        }
        // Whatever happened: with nothing in flight, whoever asks after the open time is let through.
        if running.is_empty() && model.state(now) == State::HalfOpen {
            assert!(!machine.refuses(&settings, now), "a place is lost");
        }
    }
}

/// Runs histories of some seeds, and says which one went wrong.
fn histories(seeds: std::ops::Range<u64>, steps: u32) {
    for seed in seeds {
        if let Err(panic) = std::panic::catch_unwind(|| history(seed, steps)) {
            eprintln!("in the history of seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

// Two tests, for two threads.
// CBK-02
#[test]
fn in_short_histories_it_does_what_a_naive_model_does() {
    histories(0..50_000, 24);
}

#[test]
fn in_other_short_histories_it_does_what_a_naive_model_does() {
    histories(50_000..100_000, 24);
}

// CBK-02
#[test]
fn in_long_histories_it_does_what_a_naive_model_does() {
    histories(1_000_000..1_001_000, 300);
}
