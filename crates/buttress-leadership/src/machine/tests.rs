use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::{LeaseName, StoreTime};

const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

const WORK: Running = Running { work: true, requests: false };
const STILL: Running = Running { work: false, requests: false };

fn config() -> LeaseConfig {
    LeaseConfig::new(LeaseName::new("a").unwrap())
}

/// A machine, and where time has come to.
struct Run {
    machine: Machine,
    me: Identity,
    start: BootTime,
    now: BootTime,
}

impl Run {
    fn new(config: &LeaseConfig) -> Self {
        let start = BootTime::from_nanos(1_000_000_000_000);
        let machine = Machine::new(config, false, start);
        Self { machine, me: config.identity.clone(), start, now: start }
    }

    /// The next step at that time, with chance at its least.
    fn at(&mut self, time: Duration, running: Running) -> Step {
        self.now = self.start + time;
        self.machine.advance(self.now, &mut || 0.0, running)
    }

    /// Does what is to be done, which is that.
    fn begins(&mut self, time: Duration, op: Op, running: Running) {
        assert_eq!(self.at(time, running), Step::Call(op));
        self.machine.began(op, self.now);
    }

    fn answers(&mut self, time: Duration, answer: Answer) -> Vec<Effect> {
        self.at(time, STILL);
        self.machine.answer(self.now, &mut || 0.0, answer);
        self.effects()
    }

    fn effects(&mut self) -> Vec<Effect> {
        let effects = self.machine.effects();
        effects.into_iter().filter(|effect| !matches!(effect, Effect::Leader(_))).collect()
    }

    fn time(&self, time: Duration) -> BootTime {
        self.start + time
    }
}

fn fence(n: u64) -> FencingToken {
    FencingToken::new(n).unwrap()
}

fn record(holder: &Identity, n: u64, ttl: Duration) -> LeaseRecord {
    let name = LeaseName::new("a").unwrap();
    let mut record = LeaseRecord::vacant(name, fence(n), StoreTime::from_nanos(7));
    record.holder = Some(holder.clone());
    record.granted_ttl = ttl;
    record.expires_at = StoreTime::from_nanos(7 + u64::try_from(ttl.as_nanos()).unwrap());
    record
}

/// One that leads from the beginning, with the first token.
fn leads(config: &LeaseConfig) -> Run {
    let mut run = Run::new(config);
    run.begins(secs(0), Op::Acquire, STILL);
    let mine = record(&run.me, 1, secs(15));
    let effects = run.answers(millis(100), Answer::Acquired(mine));
    assert_eq!(effects, [Effect::Start { fence: fence(1), valid_until: run.time(secs(12)) }]);
    run
}

#[test]
fn a_leader_renews_from_send_to_send_and_retries_until_its_time_is_up() {
    let mut run = leads(&config());
    assert_eq!(run.at(millis(100), WORK), Step::Wait(Some(run.time(secs(5)))));
    run.begins(secs(5), Op::Renew(fence(1)), WORK);
    assert_eq!(run.at(secs(6), WORK), Step::Wait(Some(run.time(millis(7_500)))));
    // It takes too long, and is tried again after a retry period.
    assert_eq!(run.at(millis(7_500), WORK), Step::Wait(Some(run.time(millis(8_500)))));
    assert_eq!(run.effects(), [Effect::Abandon { op: Op::Renew(fence(1)) }]);
    run.begins(millis(8_500), Op::Renew(fence(1)), WORK);
    let mine = record(&run.me, 1, secs(15));
    let effects = run.answers(millis(10_900), Answer::Renewed(mine));
    let valid_until = run.time(millis(8_500) + secs(12));
    assert_eq!(effects, [Effect::Extend { fence: fence(1), valid_until }]);
    assert_eq!(run.at(secs(11), WORK), Step::Wait(Some(run.time(millis(13_500)))));
}

#[test]
fn a_call_is_given_no_longer_than_the_term_has() {
    let mut run = leads(&config());
    run.begins(secs(11), Op::Renew(fence(1)), WORK);
    assert_eq!(run.at(millis(11_900), WORK), Step::Wait(Some(run.time(secs(12)))));
    run.at(secs(12), WORK);
    let end = TermEnd::ExpiredLocally;
    let ends = Effect::End { fence: fence(1), end };
    assert_eq!(run.effects(), [Effect::Abandon { op: Op::Renew(fence(1)) }, ends]);
}

#[test]
fn what_comes_when_the_term_is_over_does_not_bring_it_back() {
    let mut run = leads(&config());
    run.begins(secs(10), Op::Renew(fence(1)), WORK);
    // Nobody looked at the time in between.
    run.now = run.time(secs(12));
    let mine = record(&run.me, 1, secs(15));
    run.machine.answer(run.now, &mut || 0.0, Answer::Renewed(mine));
    assert_eq!(run.effects(), []);
    run.at(secs(12), WORK);
    assert!(matches!(run.effects()[..], [Effect::End { .. }]));
}

#[test]
fn nobody_asks_for_a_lease_while_work_of_the_last_one_runs() {
    let mut run = leads(&config());
    run.at(secs(12), WORK);
    assert_eq!(run.at(secs(60), WORK), Step::Wait(None));
    assert_eq!(run.at(secs(61), STILL), Step::Call(Op::Acquire));
    crate::planted::plant(Some(Plant::CampaignWhileWorking));
    assert_eq!(run.at(secs(62), WORK), Step::Call(Op::Acquire), "the fault that this finds");
    crate::planted::plant(None);
}

#[test]
fn work_that_stands_still_is_not_waited_for_whatever_its_leader_leaves_for() {
    for reason in
        [ResignReason::Operator, ResignReason::Shutdown, ResignReason::Unhealthy("database".into())]
    {
        let mut run = leads(&config().drain(Duration::MAX, secs(1)));
        match reason {
            ResignReason::Shutdown => run.machine.stop(run.now),
            _ => run.machine.resign(run.now, reason.clone()),
        }
        run.at(secs(4), WORK);
        assert_eq!(run.effects(), [Effect::Close { fence: fence(1), reason: reason.clone() }]);
        run.machine.stuck(true);
        assert_eq!(run.at(millis(4_100), WORK), Step::Wait(Some(run.time(secs(5)))));
        assert_eq!(run.effects(), [Effect::Cancel]);
        run.begins(secs(5), Op::Renew(fence(1)), WORK);
        // Its grace is over, and from here on the lease is not renewed.
        run.at(millis(5_100), WORK);
        let end = TermEnd::Resigned(reason);
        assert_eq!(run.effects(), [Effect::End { fence: fence(1), end }]);
        run.machine.answer(run.now, &mut || 0.0, Answer::Failed(Failure::NotApplied));
        assert_eq!(run.at(secs(6), WORK), Step::Wait(Some(run.time(secs(15)))));
    }
}

#[test]
fn whatever_passes_the_check_a_runtime_that_stands_still_is_held_on_to_for_no_longer_than_a_lease()
{
    let mut graces =
        [3_600, 60, 16, 15].map(|grace| config().drain(Duration::MAX, secs(grace))).into_iter();
    let longest = graces.find(|config| config.check().is_ok()).unwrap();
    let mut run = leads(&longest);
    run.machine.resign(run.now, ResignReason::StuckRuntime);
    run.machine.stuck(true);
    let stood_still = run.now;
    let mut renewed = run.now;
    while matches!(run.machine.phase, Phase::Leaving(..)) {
        match run.machine.advance(run.now, &mut || 0.0, WORK) {
            Step::Call(Op::Renew(fence)) => {
                run.machine.began(Op::Renew(fence), run.now);
                let mine = record(&run.me, 1, secs(15));
                run.machine.answer(run.now, &mut || 0.0, Answer::Renewed(mine));
                renewed = run.now;
            }
            Step::Wait(Some(until)) => {
                assert!(run.now < until, "or it would never wait");
                run.now = until;
            }
            step => panic!("{step:?}"),
        }
    }
    assert!(renewed - stood_still <= secs(15), "{:?}", renewed - stood_still);
    assert_eq!(run.machine.state(), State::CoolDown, "it holds, and renews no more");
}

// patroni/patroni#2787
#[test]
fn a_lease_that_was_led_with_is_not_led_with_again() {
    let mut run = leads(&config());
    run.at(secs(12), STILL);
    run.effects();
    run.begins(secs(13), Op::Acquire, STILL);
    let mine = record(&run.me, 1, secs(15));
    assert_eq!(run.answers(secs(13), Answer::Held(mine)), []);
    run.begins(secs(14), Op::Release(fence(1)), STILL);
    let effects = run.answers(secs(14), Answer::Released);
    assert_eq!(effects, [Effect::Released { fence: fence(1) }]);
    assert_eq!(run.at(secs(15), STILL), Step::Call(Op::Acquire));
}

#[test]
fn a_lease_that_was_won_unheard_counts_from_the_first_try_and_has_no_more_than_is_left() {
    for (left, valid) in [(secs(15), secs(12)), (secs(9), millis(2_200 + 6_000))] {
        let mut run = Run::new(&config());
        for at in [secs(0), millis(1_100)] {
            run.begins(at, Op::Acquire, STILL);
            run.answers(at + millis(100), Answer::Failed(Failure::Ambiguous));
        }
        run.begins(millis(2_200), Op::Acquire, STILL);
        let mut mine = record(&run.me, 1, secs(15));
        mine.store_now = StoreTime::from_nanos(mine.expires_at.as_nanos() - left.as_nanos() as u64);
        let effects = run.answers(millis(2_300), Answer::Held(mine));
        assert_eq!(effects, [Effect::Start { fence: fence(1), valid_until: run.time(valid) }]);
    }
}

#[test]
fn what_has_our_name_and_was_not_asked_for_is_another_electors() {
    for looks in [false, true] {
        let mut run = Run::new(&config());
        let namesakes = record(&run.me, 7, secs(15));
        for at in [0, 2, 4] {
            let effects = if looks {
                run.machine.candidacy(run.now, Candidacy::Looks);
                run.begins(secs(at), Op::Inspect, STILL);
                run.answers(secs(at), Answer::Inspected(Some(namesakes.clone())))
            } else {
                run.begins(secs(at), Op::Acquire, STILL);
                run.answers(secs(at), Answer::Held(namesakes.clone()))
            };
            let told: &[_] = if at == 0 { &[Effect::Namesake { fence: fence(7) }] } else { &[] };
            assert_eq!(effects, told);
        }
        // It is not taken for what was asked for in between, either.
        run.machine.candidacy(run.now, Candidacy::Stands);
        run.begins(secs(6), Op::Acquire, STILL);
        run.answers(secs(6), Answer::Failed(Failure::Ambiguous));
        run.begins(secs(8), Op::Acquire, STILL);
        assert_eq!(run.answers(secs(8), Answer::Held(namesakes)), []);
        run.begins(secs(10), Op::Acquire, STILL);
        let mine = record(&run.me, 8, secs(15));
        let start = Effect::Start { fence: fence(8), valid_until: run.time(secs(18)) };
        assert_eq!(run.answers(secs(10), Answer::Held(mine)), [start], "this is");
    }
}

#[test]
fn what_one_gives_back_itself_does_not_call_it_back() {
    let mut run = leads(&config());
    run.at(secs(12), STILL);
    run.begins(secs(13), Op::Acquire, STILL);
    let old = record(&run.me, 1, secs(15));
    run.answers(millis(13_100), Answer::Acquired(old));
    run.begins(secs(14), Op::Release(fence(1)), STILL);
    run.answers(millis(14_100), Answer::Released);
    // The store tells of it, to whoever waits.
    run.machine.changed(run.time(millis(14_100)));
    assert_eq!(run.at(millis(14_100), STILL), Step::Wait(Some(run.time(millis(19_100)))));
}

#[test]
fn what_was_asked_for_before_the_clocks_disagreed_is_of_no_use() {
    for is_heard in [true, false] {
        let mut run = Run::new(&config());
        run.begins(secs(0), Op::Acquire, STILL);
        if !is_heard {
            run.answers(millis(10), Answer::Failed(Failure::Ambiguous));
        }
        // This machine was frozen, and no clock of it has counted that.
        run.machine.anomaly(run.now, &mut || 0.0);
        let mine = record(&run.me, 1, secs(15));
        if is_heard {
            assert_eq!(run.answers(millis(20), Answer::Acquired(mine)), []);
        } else {
            run.begins(millis(1_010), Op::Acquire, STILL);
            assert_eq!(run.answers(millis(1_020), Answer::Held(mine)), []);
        }
        assert_eq!(run.at(secs(3), STILL), Step::Call(Op::Release(fence(1))));
    }
}

#[test]
fn one_that_may_not_stand_does_not() {
    let mut run = Run::new(&config());
    run.machine.candidacy(run.now, Candidacy::Looks);
    run.begins(secs(9), Op::Inspect, STILL);
    run.answers(secs(9), Answer::Inspected(None));
    run.machine.candidacy(run.now, Candidacy::Stands);
    run.begins(millis(9_800), Op::Acquire, STILL);
    run.machine.candidacy(run.now, Candidacy::Looks);
    let mine = record(&run.me, 1, secs(15));
    assert_eq!(run.answers(secs(10), Answer::Acquired(mine)), [], "not any more");
    assert_eq!(run.at(secs(11), STILL), Step::Call(Op::Release(fence(1))));
}

#[test]
fn one_that_cools_down_looks_who_leads_and_does_no_more() {
    let mut run = leads(&config());
    run.machine.resign(run.now, ResignReason::Operator);
    run.begins(secs(1), Op::Release(fence(1)), STILL);
    run.answers(secs(1), Answer::Released);
    let other = Identity::generate();
    let until = run.machine.cools_until().unwrap();
    assert_eq!(until, run.time(secs(1 + 24)));
    for at in 2..25 {
        run.begins(secs(at), Op::Inspect, STILL);
        run.answers(secs(at), Answer::Inspected(Some(record(&other, 2, secs(15)))));
        assert_eq!(run.machine.seen.as_ref().map(|leader| &leader.identity), Some(&other));
        assert_eq!(run.machine.state(), State::CoolDown);
    }
    run.begins(secs(25), Op::Acquire, STILL);
}

#[test]
fn what_a_release_did_not_reach_is_led_with_by_nobody() {
    let mut run = leads(&config());
    run.machine.resign(run.now, ResignReason::Operator);
    for at in 1..=3 {
        run.begins(secs(at), Op::Release(fence(1)), STILL);
        run.answers(secs(at), Answer::Failed(Failure::NotApplied));
    }
    run.begins(secs(4), Op::Inspect, STILL);
    let mine = record(&run.me, 1, secs(15));
    run.answers(secs(4), Answer::Inspected(Some(mine)));
    assert_eq!((run.machine.state(), &run.machine.seen), (State::CoolDown, &None));
}

#[test]
fn where_the_store_names_us_nobody_else_leads() {
    let mut run = Run::new(&config());
    run.machine.candidacy(run.now, Candidacy::Looks);
    run.begins(secs(1), Op::Inspect, STILL);
    run.answers(secs(1), Answer::Inspected(Some(record(&Identity::generate(), 1, secs(15)))));
    assert!(run.machine.seen.is_some());
    run.begins(secs(2), Op::Inspect, STILL);
    let mine = record(&run.me, 2, secs(15));
    run.answers(secs(2), Answer::Inspected(Some(mine)));
    assert_eq!(run.machine.seen, None);
}

#[test]
fn one_that_only_looks_looks_no_more_often_than_it_would_ask() {
    let mut run = Run::new(&config());
    for at in 0..60 {
        run.machine.candidacy(run.now, Candidacy::Looks);
        run.begins(secs(at), Op::Inspect, STILL);
        run.answers(secs(at), Answer::Inspected(None));
        for after in [100, 500, 900] {
            run.machine.candidacy(run.now, Candidacy::Looks);
            let next = Step::Wait(Some(run.time(secs(at + 1))));
            assert_eq!(run.at(secs(at) + millis(after), STILL), next);
        }
    }
}

/// How a term ends that lasts so long.
#[derive(Clone, Copy, Debug)]
enum Ends {
    Returns,
    Resigns,
    IsLost,
}

impl Run {
    /// Does all that is to be done until then, to a store that says yes to all. What is to be told of it may wait.
    fn goes_on(&mut self, until: BootTime, unit: f64, fences: &mut u64) {
        loop {
            match self.machine.advance(self.now, &mut || unit, STILL) {
                Step::Call(op) => {
                    self.machine.began(op, self.now);
                    let mut mine = |next: u64| {
                        *fences += next;
                        record(&self.me, *fences, secs(15))
                    };
                    let answer = match op {
                        Op::Acquire => Answer::Acquired(mine(1)),
                        Op::Renew(_) => Answer::Renewed(mine(0)),
                        Op::Release(_) => Answer::Released,
                        Op::Inspect => Answer::Inspected(None),
                    };
                    self.machine.answer(self.now, &mut || unit, answer);
                }
                Step::Wait(next) if self.now < until => {
                    self.now = next.map_or(until, |next| next.min(until));
                }
                Step::Wait(_) => return,
                Step::Stop => unreachable!("nobody has stopped it"),
            }
        }
    }
}

/// For how long one stays away after each of those terms.
fn stays_away(config: &LeaseConfig, unit: f64, terms: &[(Duration, Ends)]) -> Vec<Duration> {
    let (mut run, mut fences) = (Run::new(config), 0);
    let mut away = Vec::new();
    for (length, ends) in terms {
        while !matches!(run.machine.phase, Phase::Leading(_)) {
            run.goes_on(run.now + millis(1), unit, &mut fences);
        }
        run.goes_on(run.now + *length, unit, &mut fences);
        match ends {
            Ends::Returns => run.machine.resign(run.now, ResignReason::WorkReturned),
            Ends::Resigns => run.machine.resign(run.now, ResignReason::Operator),
            Ends::IsLost => run.machine.end(run.now, &mut || unit, TermEnd::Lost { by: None }),
        }
        run.goes_on(run.now, unit, &mut fences);
        away.push(run.machine.cools_until().map_or(Duration::ZERO, |until| until - run.now));
    }
    away
}

#[test]
fn work_that_returns_at_once_is_begun_less_and_less_often_until_a_term_lasts() {
    let (short, long) = ((millis(100), Ends::Returns), (secs(15), Ends::Returns));
    let mut terms = vec![short; 11];
    terms.extend([long, short, short, (secs(15), Ends::IsLost), short]);
    let expected = [2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600, 2, 2, 4, 0, 2].map(secs);
    assert_eq!(stays_away(&config(), 0.0, &terms), expected);
}

fn some_time() -> impl Strategy<Value = Duration> {
    prop_oneof![
        Just(Duration::ZERO),
        (0_u64..100_000).prop_map(millis),
        any::<u64>().prop_map(secs),
        Just(Duration::MAX),
    ]
}

proptest! {
    #[test]
    fn whatever_passes_the_check_can_leave_and_stays_away_for_as_long_as_it_says(
        [drain, grace, first, max, probe] in [(); 5].map(|()| some_time()),
        works in any::<bool>(),
        unit in 0.0_f64..1.0,
    ) {
        let (first, max, probe) = (first.min(max), first.max(max), probe.max(millis(100)));
        let grace = grace.min(secs(15));
        let config = config().drain(drain, grace).cooldown(first, max).probe_deadline(probe);
        prop_assert_eq!(config.check(), Ok(()));
        let mut run = leads(&config);
        run.machine.resign(run.now, ResignReason::Operator);
        run.machine.stuck(works);
        let running = if works { WORK } else { STILL };
        // Until it has given the lease back, or its lease has ended.
        while run.machine.cools_until().is_none() {
            let step = run.machine.advance(run.now, &mut || unit, running);
            if run.machine.state() == State::Follower {
                return Ok(()); // Its lease was over before it could leave.
            }
            match step {
                _ if run.machine.cools_until().is_some() => {}
                Step::Call(op) => {
                    run.machine.began(op, run.now);
                    let answer = match op {
                        Op::Release(_) => Answer::Released,
                        _ => Answer::Failed(Failure::NotApplied),
                    };
                    run.machine.answer(run.now, &mut || unit, answer);
                }
                Step::Wait(until) => {
                    let until = until.expect("the lease ends");
                    prop_assert!(run.now < until, "or it would never wait");
                    run.now = until;
                }
                Step::Stop => unreachable!("nobody has stopped it"),
            }
        }
        let until = run.machine.cools_until().unwrap();
        let first = first.as_secs_f64();
        let away = (until - run.now).as_secs_f64();
        let reach = (BootTime::from_nanos(u64::MAX) - run.now).as_secs_f64();
        let within = |share: f64| (first * share).max(1.0).min(reach);
        prop_assert!(within(0.8) * 0.999 <= away && away <= within(1.2) * 1.001, "{away} of {first}");
    }
}

proptest! {
    #[test]
    fn who_comes_back_when_is_what_its_terms_were_like(
        terms in proptest::collection::vec(
            (prop_oneof![3 => 0_u64..15, 2 => 15_u64..60, 1 => 60_u64..100], prop_oneof![
                4 => Just(Ends::Returns),
                2 => Just(Ends::Resigns),
                1 => Just(Ends::IsLost),
            ]),
            1..12,
        ),
    ) {
        let config = config().cooldown(secs(7), secs(60));
        let terms: Vec<_> = terms.into_iter().map(|(length, ends)| (secs(length), ends)).collect();
        let away = stays_away(&config, 0.5, &terms);
        for (n, (_, ends)) in terms.iter().enumerate() {
            // Those that count: since the last one that lasted, this one among them.
            let since = |least| {
                let lasted = terms[..=n].iter().rposition(|(length, _)| secs(least) <= *length);
                &terms[lasted.unwrap_or(0)..n]
            };
            let lasted = |least: u64| move |(length, _): &&(Duration, Ends)| *length < secs(least);
            let (base, times) = match ends {
                Ends::Returns => {
                    let short = since(15).iter().filter(lasted(15));
                    (2.2, short.filter(|(_, ends)| matches!(ends, Ends::Returns)).count())
                }
                Ends::Resigns => {
                    let left = since(60).iter();
                    (7.0, left.filter(|(_, ends)| matches!(ends, Ends::Resigns)).count())
                }
                Ends::IsLost => (0.0, 0),
            };
            let expected = (base * 2_f64.powi(times as i32)).min(60.0);
            prop_assert!((away[n].as_secs_f64() - expected).abs() < 0.001, "{n}: {away:?}");
        }
    }
}

/// What a naive model knows: what was begun, and how long the term is valid by all that was heard.
#[derive(Debug, Default)]
struct Model {
    call: Option<(Op, BootTime)>,
    term: Option<(FencingToken, BootTime)>,
    is_closed: bool,
    last: Option<BootTime>,
    has_stopped: bool,
    /// The store has just said no.
    is_no: bool,
}

#[derive(Clone, Copy, Debug)]
enum Input {
    Wait(u64),
    Answer { yes: bool, granted: u64, failure: Option<Failure> },
    Resign,
    Anomaly,
    Changed,
    Work(bool),
    Stop,
}

fn inputs() -> impl Strategy<Value = Vec<Input>> {
    let failure = prop_oneof![
        Just(Failure::NotApplied),
        Just(Failure::Ambiguous),
        Just(Failure::Fatal),
        Just(Failure::Panicked),
    ];
    let answer = (any::<bool>(), 0_u64..20_000, proptest::option::weighted(0.3, failure))
        .prop_map(|(yes, granted, failure)| Input::Answer { yes, granted, failure });
    let input = prop_oneof![
        8 => (0_u64..6_000).prop_map(Input::Wait),
        8 => answer,
        1 => Just(Input::Resign),
        1 => Just(Input::Anomaly),
        1 => Just(Input::Changed),
        2 => any::<bool>().prop_map(Input::Work),
        1 => prop_oneof![9 => Just(Input::Changed), 1 => Just(Input::Stop)],
    ];
    proptest::collection::vec(input, 0..200)
}

/// Whether a machine does what the model knows.
fn follows(inputs: Vec<Input>, unit: f64) -> Result<(), TestCaseError> {
    let config = config();
    let mut run = Run::new(&config);
    let (mut model, mut running, mut next_fence) = (Model::default(), STILL, 1);
    let mut inputs: VecDeque<_> = inputs.into();
    while let Some(input) = inputs.pop_front() {
        let now = match input {
            Input::Wait(time) => run.now + millis(time),
            _ => run.now,
        };
        run.now = now;
        let mut heard = None;
        match input {
            Input::Answer { yes, granted, failure } => {
                let Some((op, sent)) = model.call else { continue };
                run.machine.advance(now, &mut || unit, running);
                model.check(&run.machine.effects(), now, None)?;
                if model.call.is_none() {
                    continue;
                }
                let ttl = millis(granted);
                let mine = |n| record(&run.me, n, ttl);
                let other = Identity::generate();
                let answer = match (failure, op) {
                    (Some(failure), _) => Answer::Failed(failure),
                    (None, Op::Acquire) if yes => {
                        next_fence += 1;
                        Answer::Acquired(mine(next_fence))
                    }
                    (None, Op::Acquire) => Answer::Held(record(&other, next_fence, ttl)),
                    (None, Op::Inspect) => Answer::Inspected(None),
                    (None, Op::Renew(fence)) if yes => Answer::Renewed(mine(fence.get())),
                    (None, Op::Renew(_)) => Answer::Lost(None),
                    (None, Op::Release(_)) if yes => Answer::Released,
                    (None, Op::Release(_)) => Answer::NotHolder,
                };
                let is_yes = matches!(answer, Answer::Acquired(_) | Answer::Renewed(_));
                heard = is_yes.then(|| sent + ttl.saturating_sub(secs(3)));
                model.is_no = matches!(answer, Answer::Lost(_));
                model.call = None;
                run.machine.answer(now, &mut || unit, answer);
            }
            Input::Wait(_) => {}
            Input::Resign => run.machine.resign(now, ResignReason::Operator),
            Input::Anomaly => {
                run.machine.anomaly(now, &mut || unit);
                if let Some((_, sent)) = &mut model.call {
                    *sent = BootTime::default();
                }
            }
            Input::Changed => run.machine.changed(now),
            Input::Work(runs) => running.work = runs && model.term.is_some(),
            Input::Stop => run.machine.stop(now),
        }
        model.check(&run.machine.effects(), now, heard)?;
        let step = run.machine.advance(now, &mut || unit, running);
        model.check(&run.machine.effects(), now, None)?;
        prop_assert!(model.term.is_none_or(|(_, until)| now < until), "nobody leads too long");
        match step {
            Step::Call(op) => {
                model.begins(op, now, running)?;
                run.machine.began(op, now);
            }
            Step::Wait(Some(until)) => prop_assert!(now < until, "or it would never wait"),
            Step::Wait(None) => {}
            Step::Stop => {
                prop_assert!(model.term.is_none() && model.call.is_none());
                model.has_stopped = true;
            }
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_naive_model_knows_as_much(inputs in inputs(), unit in 0.0_f64..1.0) {
        follows(inputs, unit)?;
    }
}

#[test]
fn the_model_finds_what_is_planted() {
    for fault in [
        Plant::AnchorAtAnswer,
        Plant::NoMargin,
        Plant::EndTwice,
        Plant::NoAnswerIsLoss,
        Plant::RenewAfterRelease,
        Plant::CampaignWhileWorking,
        Plant::NoPause,
        Plant::HangKeepsTerm,
    ] {
        crate::planted::plant(Some(fault));
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let found = runner.run(&(inputs(), 0.0_f64..1.0), |(inputs, unit)| follows(inputs, unit));
        crate::planted::plant(None);
        assert!(found.is_err(), "{fault:?}");
    }
}

impl Model {
    /// Whether that call may be begun.
    fn begins(&mut self, op: Op, now: BootTime, running: Running) -> Result<(), TestCaseError> {
        prop_assert!(self.call.is_none() && !self.has_stopped);
        let term = self.term.map(|(fence, _)| fence);
        match op {
            Op::Acquire => prop_assert!(term.is_none() && !running.work),
            Op::Renew(fence) => prop_assert_eq!(term, Some(fence)),
            Op::Release(_) | Op::Inspect => prop_assert!(term.is_none()),
        }
        if !matches!(op, Op::Release(_))
            && let Some(last) = self.last
        {
            prop_assert!(millis(800) <= now - last, "two calls in {:?}", now - last);
        }
        (self.call, self.last) = (Some((op, now)), Some(now));
        Ok(())
    }

    /// Whether that may have happened, where `heard` is how long a term is valid by what the store has just
    /// said.
    fn check(
        &mut self,
        effects: &[Effect],
        now: BootTime,
        heard: Option<BootTime>,
    ) -> Result<(), TestCaseError> {
        for effect in effects {
            match effect {
                Effect::Start { fence, valid_until } => {
                    prop_assert!(self.term.is_none());
                    prop_assert!(Some(*valid_until) == heard && now < *valid_until);
                    (self.term, self.is_closed) = (Some((*fence, *valid_until)), false);
                }
                Effect::Extend { fence, valid_until } => {
                    let (of, until) = self.term.expect("there is a term");
                    prop_assert!(of == *fence && until < *valid_until && now < until);
                    prop_assert_eq!(Some(*valid_until), heard);
                    self.term = Some((of, *valid_until));
                }
                Effect::Close { fence, .. } => {
                    prop_assert_eq!(self.term.map(|(of, _)| of), Some(*fence));
                    prop_assert!(!std::mem::replace(&mut self.is_closed, true));
                }
                Effect::Cancel => prop_assert!(self.is_closed && self.term.is_some()),
                Effect::End { fence, end } => {
                    prop_assert!(!matches!(end, TermEnd::Lost { .. }) || self.is_no, "{end}");
                    prop_assert_eq!(self.term.take().map(|(of, _)| of), Some(*fence));
                    prop_assert!(self.is_closed || !matches!(end, TermEnd::Resigned(_)));
                }
                Effect::Abandon { op } => {
                    let (of, sent) = self.call.take().expect("there is a call");
                    let is_frozen = sent == BootTime::default();
                    prop_assert!(of == *op && (is_frozen || now - sent <= secs(9)));
                }
                Effect::Released { .. } => prop_assert!(self.term.is_none()),
                Effect::Leader(_)
                | Effect::Regression { .. }
                | Effect::Namesake { .. }
                | Effect::ShortGrant { .. } => {}
            }
        }
        Ok(())
    }
}
