use buttress_core::edge;
use proptest::{collection::vec, option, prelude::*, test_runner::Config};

use super::*;

const ALL: [Priority; 4] =
    [Priority::Sheddable, Priority::SheddablePlus, Priority::Critical, Priority::CriticalPlus];

/// One step of a history. What it is done to is chosen among those that are there.
#[derive(Clone, Copy, Debug)]
enum Step {
    Pass(u64),
    Limit(usize),
    Arrive { priority: usize, deadline: Option<u64>, waits: bool },
    Leave(usize),
    Expire(usize),
    SetDeadline(usize, u64),
    Start(usize),
    Forgo(usize),
    End(usize, bool),
}

impl Step {
    /// Made of a number, since proptest takes a hundred times as long to make one of strategies.
    fn of(bits: u64) -> Self {
        let [kind, who, a, b, ..] = bits.to_be_bytes();
        let (who, a, b) = (usize::from(who), usize::from(a), u64::from(b));
        match kind % 36 {
            0..=5 => Self::Pass(b % 40),
            6 => Self::Pass(700 + b * 2),
            7 => Self::Limit(1 + a % 4),
            8..=17 => Self::Arrive {
                priority: who % 4,
                deadline: (a % 10 < 3).then_some(b % 120),
                waits: a / 10 % 10 > 0,
            },
            18 => Self::Leave(who),
            19 => Self::Expire(who),
            20 => Self::SetDeadline(who, b % 120),
            21..=26 => Self::Start(who),
            27 => Self::Forgo(who),
            _ => Self::End(who, a % 5 > 0),
        }
    }
}

fn settings() -> impl Strategy<Value = ShedSettings> {
    (1_u64..70, 1_u64..120, option::weighted(0.5, 0_usize..6)).prop_map(
        |(target, interval, max)| {
            let mut settings = ShedSettings::default().target(ms(target)).interval(ms(interval));
            settings.max_queue = max;
            settings
        },
    )
}

/// The rules as they are told, with no thought of speed: one list of all who wait, looked through from
/// end to end, and the age limit that belongs to the mode of the moment.
struct Model {
    settings: ShedSettings,
    limit: usize,
    waiting: Vec<Told>,
    since: Option<Instant>,
    granted: Vec<Told>,
    running: Vec<(Told, Instant)>,
    samples: Vec<(Instant, Duration)>,
    counts: Counts,
}

#[derive(Clone, Copy, Debug)]
struct Told {
    id: u64,
    priority: Priority,
    came: Instant,
    deadline: Option<Instant>,
    ticket: Option<Ticket>,
}

impl Model {
    fn is_overloaded(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now - since > self.settings.interval)
    }

    fn estimate(&self, now: Instant) -> Duration {
        let mut recent: Vec<Duration> = Vec::new();
        let mut after = now;
        for (at, latency) in self.samples.iter().rev() {
            if after - *at > Duration::from_secs(1) {
                break;
            }
            after = *at;
            recent.insert(0, *latency);
        }
        recent.truncate(recent.len() / 8 * 8);
        let mut last = recent.split_off(recent.len().saturating_sub(64));
        last.sort();
        last.get(last.len().saturating_sub(1) / 2).copied().unwrap_or_default()
    }

    fn is_too_late(&self, now: Instant, deadline: Option<Instant>) -> bool {
        deadline.is_some_and(|deadline| deadline <= now || now + self.estimate(now) > deadline)
    }

    fn refuse(&mut self, told: &Told, now: Instant) -> Reason {
        if told.deadline.is_some_and(|deadline| deadline <= now) {
            self.counts.expired += 1;
            Reason::DeadlineExceeded
        } else {
            self.counts.overloaded += 1;
            Reason::Overloaded
        }
    }

    fn empty(&mut self) {
        if self.waiting.is_empty() {
            self.since = None;
        }
    }

    fn settle(&mut self, now: Instant) -> Decided<u64> {
        let mut decided = Vec::new();
        let (target, interval) = (self.settings.target, self.settings.interval);
        let overloaded = self.is_overloaded(now);
        let age = if overloaded { 2 * target } else { interval.max(2 * target) };
        let (mut old, kept): (Vec<_>, _) =
            self.waiting.iter().copied().partition(|told| now - told.came > age);
        old.sort_by_key(|told| (told.priority, told.id));
        for told in old {
            let reason = self.refuse(&told, now);
            decided.push((told.id, Outcome::Refused(reason)));
        }
        self.waiting = kept;
        while self.granted.len() + self.running.len() < self.limit {
            let Some(highest) = self.waiting.iter().map(|told| told.priority).max() else { break };
            let mut equals =
                (0..self.waiting.len()).filter(|at| self.waiting[*at].priority == highest);
            let at = if overloaded { equals.next_back() } else { equals.next() };
            let told = self.waiting.remove(at.unwrap());
            if self.is_too_late(now, told.deadline) {
                self.counts.expired += 1;
                decided.push((told.id, Outcome::Refused(Reason::DeadlineExceeded)));
            } else {
                self.granted.push(told);
                decided.push((told.id, Outcome::Granted));
            }
        }
        self.empty();
        decided
    }

    /// Whether somebody of that priority may wait, and whom that costs their place.
    fn make_room(&mut self, now: Instant, priority: Priority) -> Result<Option<u64>, Reason> {
        let room = self.settings.max_queue.unwrap_or((4 * self.limit).max(4));
        if self.waiting.len() < room {
            return Ok(None);
        }
        let equals_go = self.is_overloaded(now);
        let goes = self
            .waiting
            .iter()
            .filter(|told| told.priority < priority || equals_go && told.priority == priority)
            .min_by_key(|told| (told.priority, told.id))
            .copied();
        self.counts.overloaded += 1;
        let goes = goes.ok_or(Reason::Overloaded)?;
        self.waiting.retain(|told| told.id != goes.id);
        Ok(Some(goes.id))
    }
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn pick<T>(from: &[T], who: usize) -> Option<usize> {
    who.checked_rem(from.len())
}

/// Plays a history on both, and compares all that can be seen after each step.
fn play(settings: ShedSettings, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut machine = Machine::new(&settings);
    let mut model = Model {
        settings,
        limit: 2,
        waiting: Vec::new(),
        since: None,
        granted: Vec::new(),
        running: Vec::new(),
        samples: Vec::new(),
        counts: Counts::default(),
    };
    let mut now = edge::now();
    for (id, step) in (0..).zip(steps) {
        let mut decided = Vec::new();
        let mut expected = Vec::new();
        let limit = model.limit;
        match step {
            Step::Pass(millis) => now += ms(millis),
            Step::Limit(limit) => model.limit = limit,
            Step::Arrive { priority, deadline, waits } => {
                let priority = ALL[priority];
                let deadline = deadline.map(|millis| now + ms(millis));
                let due = deadline.map(Deadline::at);
                let mut told = Told { id, priority, came: now, deadline, ticket: None };
                model.counts.arrived += 1;
                expected = model.settle(now);
                // The short way and the long one decide alike.
                let arrived = match id % 2 == 0 && machine.enter(now, limit, due) {
                    true => Some(Ok(())),
                    false => machine.arrive(now, limit, due, &mut decided),
                };
                if model.is_too_late(now, deadline) {
                    model.counts.expired += 1;
                    prop_assert_eq!(arrived, Some(Err(Reason::DeadlineExceeded)));
                } else if model.waiting.is_empty()
                    && model.granted.len() + model.running.len() < limit
                {
                    model.counts.admitted += 1;
                    model.running.push((told, now));
                    prop_assert_eq!(arrived, Some(Ok(())));
                } else if waits {
                    prop_assert_eq!(arrived, None);
                    let ticket = machine.enqueue(now, limit, due, priority, || id, &mut decided);
                    match model.make_room(now, priority) {
                        Ok(gone) => {
                            expected
                                .extend(gone.map(|id| (id, Outcome::Refused(Reason::Overloaded))));
                            told.ticket = Some(ticket.unwrap());
                            model.since.get_or_insert(now);
                            model.waiting.push(told);
                        }
                        Err(reason) => prop_assert_eq!(ticket, Err(reason)),
                    }
                } else {
                    model.counts.overloaded += 1;
                    prop_assert_eq!(arrived, None);
                    machine.turn_away();
                }
            }
            Step::Leave(who) => {
                if let Some(at) = pick(&model.waiting, who) {
                    let told = model.waiting.remove(at);
                    model.counts.abandoned += 1;
                    model.empty();
                    prop_assert!(machine.leave(told.ticket.unwrap()));
                    prop_assert!(!machine.leave(told.ticket.unwrap()), "one leaves once");
                }
            }
            Step::Expire(who) => {
                if let Some(at) = pick(&model.waiting, who) {
                    let told = model.waiting[at];
                    expected = model.settle(now);
                    if model.waiting.iter().any(|other| other.id == told.id) {
                        model.waiting.retain(|other| other.id != told.id);
                        let reason = model.refuse(&told, now);
                        expected.push((told.id, Outcome::Refused(reason)));
                        model.empty();
                    }
                    machine.expire(now, limit, told.ticket.unwrap(), &mut decided);
                }
            }
            Step::SetDeadline(who, millis) => {
                if let Some(at) = pick(&model.waiting, who) {
                    let deadline = now + ms(millis);
                    model.waiting[at].deadline = Some(deadline);
                    machine.set_deadline(model.waiting[at].ticket.unwrap(), Deadline::at(deadline));
                }
            }
            Step::Start(who) => {
                if let Some(at) = pick(&model.granted, who) {
                    let told = model.granted.remove(at);
                    let deadline = told.deadline.map(Deadline::at);
                    let started = machine.start(now, limit, deadline, &mut decided);
                    if told.deadline.is_some_and(|deadline| deadline <= now) {
                        prop_assert_eq!(started, Err(Reason::DeadlineExceeded));
                        model.counts.expired += 1;
                        expected = model.settle(now);
                    } else {
                        prop_assert_eq!(started, Ok(()));
                        model.counts.admitted += 1;
                        model.running.push((told, now));
                    }
                }
            }
            Step::Forgo(who) => {
                if let Some(at) = pick(&model.granted, who) {
                    model.granted.remove(at);
                    model.counts.abandoned += 1;
                    expected = model.settle(now);
                    machine.forgo(now, limit, &mut decided);
                }
            }
            Step::End(who, is_reported) => {
                if let Some(at) = pick(&model.running, who) {
                    let (told, started) = model.running.remove(at);
                    let says = is_reported.then_some(started);
                    let is_late = told.deadline.is_some_and(|deadline| deadline <= now);
                    if is_reported {
                        model.counts.finished += 1;
                        model.samples.push((now, now - started));
                    } else {
                        model.counts.dropped += 1;
                    }
                    model.counts.late += u64::from(is_late);
                    expected = model.settle(now);
                    let ended = Ended { started: says, is_reported, is_late };
                    machine.end(now, limit, ended, &mut decided);
                }
            }
        }
        prop_assert_eq!(decided, expected, "step {}", id);
        prop_assert_eq!(machine.counts(), model.counts);
        prop_assert_eq!(machine.running(), model.running.len());
        prop_assert_eq!(machine.waiting(), model.waiting.len() + model.granted.len());
        prop_assert_eq!(machine.is_overloaded(now), model.is_overloaded(now));
        prop_assert_eq!(machine.estimate.median(now), model.estimate(now));
        let counts = machine.counts();
        let told = counts.admitted + counts.overloaded + counts.expired + counts.abandoned;
        prop_assert_eq!(counts.arrived, told + machine.waiting() as u64);
        prop_assert_eq!(
            counts.admitted,
            counts.finished + counts.dropped + machine.running() as u64
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(Config { cases: 10_000, ..Config::default() })]

    #[test]
    fn it_decides_as_the_rules_say_in_every_history(
        settings in settings(),
        steps in vec(any::<u64>(), 1..120),
    ) {
        play(settings, steps.into_iter().map(Step::of).collect())?;
    }
}

/// A machine with one place, which is taken, and nobody waits.
fn busy(settings: ShedSettings, now: Instant) -> Machine<u64> {
    let mut machine = Machine::new(&settings);
    assert_eq!(machine.arrive(now, 1, None, &mut Vec::new()), Some(Ok(())));
    machine
}

fn wait(machine: &mut Machine<u64>, now: Instant, priority: Priority, id: u64) -> Ticket {
    let mut decided = Vec::new();
    assert_eq!(machine.arrive(now, 1, None, &mut decided), None);
    machine.enqueue(now, 1, None, priority, || id, &mut decided).unwrap()
}

fn end(machine: &mut Machine<u64>, now: Instant) -> Decided<u64> {
    let mut decided = Vec::new();
    let ended = Ended { started: None, is_reported: true, is_late: false };
    machine.end(now, 1, ended, &mut decided);
    decided
}

#[test]
fn a_slow_spell_does_not_shut_out_those_that_would_show_that_it_is_over() {
    let mut now = edge::now();
    let mut machine = Machine::<u64>::new(&ShedSettings::default());
    let mut decided = Vec::new();
    let soon = |now| Some(Deadline::at(now + ms(500)));
    for _ in 0..64 {
        assert_eq!(machine.arrive(now, 100, None, &mut decided), Some(Ok(())));
    }
    let started = now;
    now += ms(5_000);
    let slow = Ended { started: Some(started), is_reported: true, is_late: false };
    (0..63).for_each(|_| machine.end(now, 100, slow, &mut decided));
    let refused = Some(Err(Reason::DeadlineExceeded));
    assert_eq!(machine.arrive(now, 100, soon(now), &mut decided), refused);
    assert_eq!(machine.running(), 1, "one hangs, and so nothing is learned");
    now += ms(1_001);
    assert_eq!(machine.arrive(now, 100, soon(now), &mut decided), Some(Ok(())));
}

#[test]
fn clocks_that_were_read_in_another_order_do_no_harm() {
    let now = edge::now();
    let mut machine = busy(ShedSettings::default(), now + ms(5));
    wait(&mut machine, now + ms(5), Priority::Critical, 1);
    wait(&mut machine, now + ms(4), Priority::Critical, 2);
    assert!(!machine.is_overloaded(now));
    assert_eq!(end(&mut machine, now), [(1, Outcome::Granted)]);
    assert_eq!(machine.start(now, 1, None, &mut Vec::new()), Ok(()));
    assert_eq!(end(&mut machine, now), [(2, Outcome::Granted)]);
}

#[test]
fn the_longest_times_are_never() {
    let now = edge::now();
    let settings = ShedSettings::default().target(Duration::MAX).interval(Duration::MAX);
    let mut machine = busy(settings, now);
    let ticket = wait(&mut machine, now, Priority::Critical, 1);
    assert_eq!(ticket.expires, None);
    let later = now + Duration::from_secs(3_000_000_000);
    assert!(!machine.is_overloaded(later));
    assert_eq!(end(&mut machine, later), [(1, Outcome::Granted)]);
}
