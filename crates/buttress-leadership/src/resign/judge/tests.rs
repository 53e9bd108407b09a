use buttress_core::edge;
use proptest::prelude::*;

use super::*;
use Health::{Degraded, Healthy, Unhealthy, Unknown};

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn rules() -> Rules {
    Rules {
        resign_after: secs(2),
        min_term: secs(30),
        budget: 3,
        budget_window: secs(600),
        eligible_after: secs(5),
        last_resort_after: secs(30),
    }
}

/// A judge of some signals, and where time has come to.
struct Run {
    judge: Judge,
    start: Instant,
    now: Instant,
    is_correlated: bool,
}

impl Run {
    fn new(signals: usize) -> Self {
        let start = edge::now();
        Self { judge: Judge::new(rules(), signals), start, now: start, is_correlated: false }
    }

    /// One whose leader has been well for an hour.
    fn leads(signals: usize) -> Self {
        let mut run = Self::new(signals);
        for signal in 0..signals {
            run.judge.read(signal, run.now, Reading { health: Healthy, since: None });
        }
        run.after(secs(6));
        run.judge.term_started(run.now);
        for signal in 0..signals {
            run.reads(signal, Healthy);
        }
        run.after(secs(3600));
        for signal in 0..signals {
            run.reads(signal, Healthy);
        }
        assert_eq!(run.says(), stands());
        run
    }

    fn after(&mut self, time: Duration) -> &mut Self {
        self.now += time;
        self
    }

    fn reads(&mut self, signal: usize, health: Health) -> &mut Self {
        self.judge.read(signal, self.now, Reading { health, since: None });
        self
    }

    fn reads_since(&mut self, signal: usize, health: Health, ago: Duration) -> &mut Self {
        let since = self.now.checked_sub(ago);
        self.judge.read(signal, self.now, Reading { health, since });
        self
    }

    fn judges(&mut self) -> Verdict {
        let is_correlated = self.is_correlated;
        self.judge.judge(self.now, |_| is_correlated)
    }

    /// What follows but for when to look again.
    fn says(&mut self) -> Verdict {
        Verdict { next: None, ..self.judges() }
    }

    /// What the first signal says, again and again for so long.
    fn goes_on(&mut self, health: Health, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.after(millis(250)).reads(0, health);
        }
    }
}

fn stands() -> Verdict {
    Verdict::default()
}

fn looks() -> Verdict {
    Verdict { candidacy: Candidacy::Looks, ..Verdict::default() }
}

fn resigns(signal: usize) -> Verdict {
    Verdict { resign: Some(signal), ..looks() }
}

#[test]
fn whoever_has_no_signals_stands_and_stays() {
    let mut run = Run::new(0);
    assert_eq!(run.judges(), stands());
    assert_eq!(run.judge.term_started(run.now), None);
    assert_eq!(run.after(secs(9999)).judges(), stands());
}

#[test]
fn a_leader_bears_it_for_a_while_and_then_leaves() {
    let mut run = Run::leads(2);
    run.reads(1, Unhealthy);
    assert_eq!(run.judges().next, Some(run.now + secs(2)), "then it is to be looked at again");
    assert_eq!(run.after(millis(1_999)).says(), looks());
    assert_eq!(run.after(millis(1)).says(), resigns(1));
    run.judge.leaves(run.now, true);
    assert_eq!(run.after(secs(9)).says(), looks(), "once");
}

#[test]
fn how_long_it_has_been_so_is_the_signals_to_say_but_not_before_it_was_seen_to_be_well() {
    let mut run = Run::leads(1);
    run.after(secs(1)).reads_since(0, Unhealthy, millis(900));
    assert_eq!(run.after(millis(1_100)).says(), resigns(0));
    let mut run = Run::leads(1);
    run.after(secs(1)).reads_since(0, Unhealthy, secs(60));
    assert_eq!(run.after(millis(999)).says(), looks());
    assert_eq!(run.after(millis(1)).says(), resigns(0));
}

#[test]
fn what_is_half_well_is_neither_a_beginning_nor_an_end() {
    let mut run = Run::leads(1);
    run.reads(0, Degraded);
    assert_eq!(run.after(secs(60)).says(), looks());
    run.reads(0, Unhealthy).after(secs(1)).reads(0, Degraded);
    assert_eq!(run.after(millis(999)).says(), looks());
    assert_eq!(
        run.after(millis(1)).says(),
        resigns(0),
        "a breaker that is half-open is not well yet"
    );
    run.reads(0, Healthy).reads(0, Degraded);
    assert_eq!(run.after(secs(60)).says(), looks(), "it was well in between");
}

#[test]
fn while_nobody_knows_the_time_stands_still() {
    let mut run = Run::leads(1);
    run.reads(0, Unknown);
    assert_eq!(run.after(secs(60)).says(), looks());
    run.reads(0, Unhealthy).after(millis(1_500)).reads(0, Unknown);
    let verdict = run.judges();
    assert_eq!((verdict.resign, verdict.next), (None, None));
    assert_eq!(run.after(secs(60)).says(), looks());
    run.reads(0, Unhealthy);
    assert_eq!(run.after(millis(499)).says(), looks());
    assert_eq!(run.after(millis(1)).says(), resigns(0));
}

#[test]
fn what_is_ill_half_of_the_time_is_ill() {
    let mut run = Run::leads(1);
    let start = run.now;
    let left = loop {
        run.goes_on(Unhealthy, millis(1_750));
        run.goes_on(Healthy, millis(1_250));
        if run.says().resign.is_some() {
            break run.now - start;
        }
        assert!(run.now - start < secs(120), "it does not find out");
    };
    assert!(secs(50) <= left, "not by the first turns: {left:?}");
    run.goes_on(Healthy, secs(6));
    assert_eq!(run.says().candidacy, Candidacy::Looks);
    run.goes_on(Healthy, secs(20));
    assert_eq!(run.says(), stands(), "and it is forgotten");
    let mut less = Run::leads(1);
    for _ in 0..100 {
        less.goes_on(Unhealthy, millis(1_500));
        less.goes_on(Healthy, secs(2));
        assert_eq!(less.says().resign, None, "half is the limit");
    }
}

#[test]
fn an_outage_that_is_over_is_over() {
    let mut run = Run::new(1);
    run.goes_on(Healthy, secs(60));
    for _ in 0..3 {
        run.goes_on(Unhealthy, secs(20));
        run.goes_on(Degraded, secs(1));
    }
    run.goes_on(Healthy, millis(5_250));
    assert_eq!(run.says(), stands());
}

#[test]
fn a_young_leader_stays() {
    let mut run = Run::new(1);
    run.reads(0, Healthy).after(secs(5)).reads(0, Healthy);
    assert_eq!(run.judge.term_started(run.now), None);
    let started = run.now;
    run.reads(0, Unhealthy).after(secs(29)).reads(0, Unhealthy);
    let verdict = run.judges();
    assert_eq!((verdict.resign, verdict.next), (None, Some(started + secs(30))));
    assert_eq!(run.after(secs(1)).says(), resigns(0));
}

#[test]
fn whoever_has_left_too_often_stays_until_that_is_long_ago() {
    let mut run = Run::leads(1);
    let first = run.now;
    for _ in 0..3 {
        run.goes_on(Unhealthy, millis(2_250));
        assert_eq!(run.says(), resigns(0));
        run.judge.leaves(run.now, true);
        run.judge.term_ended();
        run.goes_on(Healthy, secs(6));
        run.judge.term_started(run.now);
        run.goes_on(Healthy, secs(60));
    }
    run.goes_on(Unhealthy, millis(2_250));
    let stays = Verdict { degraded: Some(DegradedBy::ResignBudget), ..looks() };
    assert_eq!(run.says(), stays);
    let again = run.judges().next.unwrap();
    assert_eq!(again, first + millis(2_250) + secs(600));
    run.now = again;
    assert_eq!(run.reads(0, Unhealthy).says().resign, Some(0));
}

#[test]
fn to_leave_for_another_reason_costs_nothing() {
    let mut run = Run::leads(1);
    for _ in 0..9 {
        run.judge.leaves(run.now, false);
        run.judge.term_ended();
        run.judge.term_started(run.now);
    }
    run.after(secs(30)).reads(0, Unhealthy);
    assert_eq!(run.after(secs(2)).says(), resigns(0));
}

#[test]
fn a_leader_whose_illness_is_everybodys_stays_until_it_is_over() {
    let mut run = Run::leads(2);
    run.is_correlated = true;
    run.goes_on(Unhealthy, millis(2_250));
    let stays = Verdict { degraded: Some(DegradedBy::CorrelatedFailure), ..looks() };
    assert_eq!(run.says(), Verdict { correlated: Some(0), ..stays.clone() });
    run.is_correlated = false;
    assert_eq!(run.after(secs(9999)).reads(0, Unhealthy).says(), stays, "it is told once");
    run.reads(1, Unhealthy);
    let leaves = Verdict { resign: Some(1), ..stays };
    assert_eq!(run.after(secs(2)).says(), leaves, "for something else it does");
    run.reads(1, Healthy).reads(0, Healthy);
    assert_eq!(run.after(millis(4_999)).says().degraded, Some(DegradedBy::CorrelatedFailure));
    assert_eq!(run.after(millis(1)).says(), stands(), "it is over");
    run.reads(0, Unhealthy);
    assert_eq!(run.after(secs(2)).says(), resigns(0), "and this is another");
}

#[test]
fn whoever_is_not_known_to_be_well_does_not_stand() {
    let mut run = Run::new(2);
    assert_eq!(run.judges(), looks());
    run.reads(0, Healthy);
    assert_eq!(run.after(secs(60)).says(), looks(), "nobody knows of the other");
    for health in [Unknown, Degraded, Unhealthy] {
        run.reads(1, health);
        assert_eq!(run.after(secs(60)).says(), looks(), "{health}");
    }
    run.reads(1, Healthy);
    assert_eq!(run.judges().next, Some(run.now + secs(5)));
    assert_eq!(run.after(millis(4_999)).says(), looks());
    assert_eq!(run.after(millis(1)).says(), stands());
    run.reads(0, Unknown);
    assert_eq!(run.says(), looks(), "at once");
}

#[test]
fn who_was_well_before_anybody_looked_stands_at_once() {
    let mut run = Run::new(1);
    assert_eq!(run.reads_since(0, Healthy, secs(5)).says(), stands());
}

#[test]
fn if_nobody_leads_for_long_whoever_there_is_does() {
    let mut run = Run::new(1);
    run.reads(0, Unhealthy);
    run.judge.saw(run.now, true);
    run.after(secs(29));
    run.judge.saw(run.now, true);
    assert_eq!(run.judges().next, Some(run.now + secs(1)));
    run.judge.saw(run.now, false);
    assert_eq!(run.after(secs(9)).says(), looks(), "somebody led in between");
    run.judge.saw(run.now, true);
    assert_eq!(run.after(secs(30)).says().candidacy, Candidacy::LastResort);
    assert_eq!(run.judge.term_started(run.now), Some(DegradedBy::LastResort));
    let stays = Verdict { degraded: Some(DegradedBy::LastResort), ..looks() };
    assert_eq!(run.after(secs(9999)).reads(0, Unhealthy).says(), stays);
    run.reads(0, Healthy);
    assert_eq!(run.after(secs(5)).says(), stands());
    run.reads(0, Unhealthy);
    assert_eq!(run.after(secs(2)).says(), resigns(0));
}

#[test]
fn times_beyond_all_time_never_come() {
    let rules = Rules {
        resign_after: Duration::MAX,
        min_term: Duration::MAX,
        eligible_after: Duration::MAX,
        last_resort_after: Duration::MAX,
        budget_window: Duration::MAX,
        budget: 1,
    };
    let mut run = Run { judge: Judge::new(rules, 1), ..Run::new(1) };
    run.reads(0, Healthy);
    run.judge.saw(run.now, true);
    assert_eq!(run.after(secs(9999)).says(), looks());
    run.judge.term_started(run.now);
    run.judge.leaves(run.now, true);
    run.judge.term_ended();
    run.judge.term_started(run.now);
    run.reads(0, Unhealthy);
    assert_eq!(run.after(secs(9999)).judges().next, None);
    let _ = run.start;
}

// === A naive model: it keeps everything, and adds it up anew each time ===

/// In tenths of a second.
type Tick = u64;

#[derive(Clone, Copy, Debug)]
enum Input {
    Read { signal: usize, health: Health, since: Option<Tick> },
    Wait(Tick),
    Saw(bool),
    Starts,
    Leaves(bool),
    Ends,
    Correlated(bool),
}

/// What a signal was from then on.
type Spans = Vec<(Tick, Health)>;

#[derive(Default)]
struct Model {
    now: Tick,
    said: [Spans; 2],
    counted: [Spans; 2],
    /// When each was looked at last.
    looked: [Tick; 2],
    term: Option<ModelTerm>,
    left: Vec<Tick>,
    vacant: Option<Tick>,
    is_correlated: bool,
}

struct ModelTerm {
    started: Tick,
    is_leaving: bool,
    degraded: Option<DegradedBy>,
    excused: [bool; 2],
}

/// For how long it was one of those after that many spans.
fn time_in(spans: &[(Tick, Health)], now: Tick, from: Tick, of: &[Health]) -> Tick {
    let ends = spans.iter().skip(1).map(|(at, _)| *at).chain([now]);
    let spans = spans.iter().zip(ends).filter(|((_, health), _)| of.contains(health));
    spans.map(|((at, _), end)| end.saturating_sub((*at).max(from))).sum()
}

impl Model {
    fn read(&mut self, signal: usize, health: Health, since: Option<Tick>) {
        let now = self.now;
        let since = since.map_or(now, |ago| now - ago);
        let before = self.said[signal].last().map(|(_, health)| *health);
        let turned = match before {
            None => since,
            Some(before) if before == health => now,
            Some(_) => since.max(self.looked[signal]),
        };
        self.said[signal].push((turned, health));
        let ill = time_in(&self.said[signal], now, now - 600, &[Unhealthy]);
        let flaps = ill >= 300 && self.falls(signal) >= 2;
        let counts = if flaps && health != Unknown { Unhealthy } else { health };
        let was = self.counted[signal].last().map(|(_, health)| *health);
        let counted = match was {
            Some(was) if was == counts || counts != health => now,
            _ => turned,
        };
        self.counted[signal].push((counted, counts));
        self.looked[signal] = now;
    }

    /// How often it became unhealthy in the last minute after it had been healthy.
    fn falls(&self, signal: usize) -> usize {
        let spans = &self.said[signal];
        let (mut was_healthy, mut falls) = (false, 0);
        for (n, (at, health)) in spans.iter().enumerate() {
            let end = spans.get(n + 1).map_or(self.now, |(at, _)| *at);
            was_healthy |= *health == Healthy;
            if *health == Unhealthy && *at < end {
                falls += usize::from(was_healthy && self.now - 600 < *at);
                was_healthy = false;
            }
        }
        falls
    }

    fn health(&self, signal: usize) -> Health {
        self.counted[signal].last().map_or(Unknown, |(_, health)| *health)
    }

    /// For how long it has been ill, if it is.
    fn ill(&self, signal: usize) -> Option<Tick> {
        let spans = &self.counted[signal];
        let well = spans.iter().rposition(|(_, health)| *health == Healthy).map_or(0, |n| n + 1);
        let began = spans[well..].iter().position(|(_, health)| *health == Unhealthy)?;
        Some(time_in(&spans[well + began..], self.now, 0, &[Unhealthy, Degraded]))
    }

    fn well(&self, signal: usize) -> bool {
        let spans = &self.counted[signal];
        let first = spans.iter().rposition(|(_, health)| *health != Healthy).map_or(0, |n| n + 1);
        spans.get(first).is_some_and(|(at, _)| self.now - at >= 50)
    }

    fn is_well(&self) -> bool {
        self.well(0) && self.well(1)
    }

    fn starts(&mut self) {
        let excused = [0, 1].map(|n| !self.is_well() && self.health(n) != Healthy);
        let degraded = (!self.is_well()).then_some(DegradedBy::LastResort);
        let started = self.now;
        self.vacant = None;
        self.term = Some(ModelTerm { started, is_leaving: false, degraded, excused });
    }

    fn verdict(&mut self) -> Verdict {
        let is_last_resort = self.vacant.is_some_and(|at| self.now - at >= 300);
        let candidacy = match (self.is_well(), is_last_resort) {
            (_, true) => Candidacy::LastResort,
            (true, _) => Candidacy::Stands,
            _ => Candidacy::Looks,
        };
        let mut verdict = Verdict { candidacy, ..Verdict::default() };
        let (now, is_well) = (self.now, self.is_well());
        let ill = [0, 1].map(|n| self.health(n) != Unknown && self.ill(n).is_some_and(|t| t >= 20));
        let lately = self.left.iter().filter(|at| now - **at < 6_000).count();
        let Some(term) = &mut self.term else { return verdict };
        if is_well {
            (term.degraded, term.excused) = (None, [false; 2]);
        }
        for n in [0, 1] {
            let may = !term.is_leaving && !term.excused[n] && now - term.started >= 300;
            if !ill[n] || !may || verdict.resign.is_some() {
                continue;
            }
            if self.is_correlated {
                term.excused[n] = true;
                term.degraded = term.degraded.or(Some(DegradedBy::CorrelatedFailure));
                verdict.correlated = verdict.correlated.or(Some(n));
            } else if lately >= 3 {
                term.degraded = term.degraded.or(Some(DegradedBy::ResignBudget));
            } else {
                verdict.resign = Some(n);
            }
        }
        verdict.degraded = term.degraded;
        verdict
    }
}

fn inputs() -> impl Strategy<Value = Vec<Input>> {
    let health = prop_oneof![
        3 => Just(Healthy),
        1 => Just(Degraded),
        3 => Just(Unhealthy),
        1 => Just(Unknown),
    ];
    let since = proptest::option::of(0_u64..40);
    let read = (0_usize..2, health, since).prop_map(|(signal, health, since)| Input::Read {
        signal,
        health,
        since,
    });
    let input = prop_oneof![
        12 => read,
        9 => (0_u64..30).prop_map(Input::Wait),
        1 => (0_u64..400).prop_map(Input::Wait),
        1 => any::<bool>().prop_map(Input::Saw),
        1 => Just(Input::Starts),
        1 => any::<bool>().prop_map(Input::Leaves),
        1 => Just(Input::Ends),
        1 => any::<bool>().prop_map(Input::Correlated),
    ];
    proptest::collection::vec(input, 0..300)
}

/// Whether a judge says what the model does, each time, and nothing new before it said so.
fn follows(inputs: Vec<Input>) -> Result<(), TestCaseError> {
    // From where on there is room for what was before.
    let mut model = Model { now: 10_000, ..Model::default() };
    let mut run = Run::new(2);
    for input in inputs {
        let mut said = None;
        match input {
            Input::Read { signal, health, since } => {
                model.read(signal, health, since);
                let ago = since.map(|ago| millis(100 * ago));
                let since = ago.map(|ago| run.now.checked_sub(ago).expect("the clock is older"));
                run.judge.read(signal, run.now, Reading { health, since });
            }
            Input::Wait(ticks) => {
                let before = run.judges();
                model.now += ticks;
                run.after(millis(100 * ticks));
                let is_later = before.next.is_some_and(|next| next <= run.now);
                let after = run.says();
                let told = Verdict { next: None, ..before };
                prop_assert!(is_later || after == told, "{after:?} and not {told:?}, untold");
                said = Some(after);
            }
            Input::Saw(is_vacant) => {
                model.vacant = is_vacant.then(|| model.vacant.unwrap_or(model.now));
                run.judge.saw(run.now, is_vacant);
            }
            Input::Starts if model.term.is_none() => {
                model.starts();
                run.judge.term_started(run.now);
            }
            Input::Leaves(for_signal) => {
                if for_signal {
                    model.left.push(model.now);
                }
                if let Some(term) = &mut model.term {
                    term.is_leaving = true;
                }
                run.judge.leaves(run.now, for_signal);
            }
            Input::Ends => {
                model.term = None;
                run.judge.term_ended();
            }
            Input::Correlated(is) => (model.is_correlated, run.is_correlated) = (is, is),
            Input::Starts => {}
        }
        prop_assert_eq!(said.unwrap_or_else(|| run.says()), model.verdict());
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_naive_model_knows_as_much(inputs in inputs()) {
        follows(inputs)?;
    }
}

#[test]
fn the_model_finds_what_is_planted() {
    for fault in [
        Plant::UnknownIsUnhealthy,
        Plant::NoHold,
        Plant::NoMinTerm,
        Plant::NoBudget,
        Plant::AnyoneStands,
        Plant::NoLastResort,
    ] {
        crate::planted::plant(Some(fault));
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let found = runner.run(&inputs(), follows);
        crate::planted::plant(None);
        assert!(found.is_err(), "{fault:?}");
    }
}
