//! Whether a run went as elections are promised to, and how long it took.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use buttress_leadership::{
    BootTime,
    testing::history::{Fact, History, Law, Overlap, Term},
};

use crate::{
    arena::Arena,
    candidate::config,
    faults::Kind,
    history::{Line, What},
    run::Run,
};

/// What came of a run.
#[derive(Debug)]
pub struct Verdict {
    /// Where it was.
    pub arena: Arena,
    /// Where chance began.
    pub seed: u64,
    /// What was broken, in order.
    pub strikes: Vec<Strike>,
    /// How many terms there were.
    pub terms: usize,
    /// How often two believed to lead at once, and ought not to.
    pub overlaps: usize,
    /// For how long two did, each time that a lease was [ended](Arena::ends_leases) whose holder
    /// could not know.
    pub excused: Vec<Duration>,
    /// How many writes the register took, of those that were not stale.
    pub taken: usize,
    /// How many stale ones it took.
    pub stale_taken: usize,
    /// And refused.
    pub stale_refused: usize,
    /// How often the store went back, and whoever saw it did not lead.
    pub went_back: usize,
    /// Where a law was broken.
    pub breaches: Vec<String>,
    /// Where the history is, if somebody is to look at it.
    pub history: Option<PathBuf>,
}

/// Something that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strike {
    /// What.
    pub kind: Kind,
    /// Whether it was the leader's, or everybody's.
    pub hits_leader: bool,
    /// How long nobody led at a stretch, before the next strike.
    pub without: Duration,
    /// How long after anybody could, somebody led for good: until the next strike.
    pub back_after: Duration,
}

/// P7: a lease and 2.4 retry periods after anybody can lead, somebody does.
#[must_use]
pub fn allowed() -> Duration {
    let config = config();
    config.lease_duration + config.retry_period.mul_f64(2.4)
}

/// What a machine that has other things to do adds to that: two calls, the start of a process, and its turns.
pub const SLACK: Duration = Duration::from_millis(500);

// === impl Verdict ===

impl Verdict {
    /// Judges the lines of a run, which are in order.
    #[must_use]
    pub fn of(run: &Run, lines: &[Line]) -> Self {
        let history = history(lines);
        let ended = leases_ended(run.arena, lines);
        let (excused, two_leaders): (Vec<_>, Vec<_>) =
            history.overlaps().into_iter().partition(|overlap| is_excused(overlap, &ended));
        let laws = Law::ALL.into_iter().filter(|law| *law != Law::OneLeader);
        let mut breaches: Vec<_> = two_leaders.iter().map(ToString::to_string).collect();
        breaches.extend(laws.flat_map(|law| history.breaches(law)));
        let count =
            |is_it: fn(&What) -> bool| lines.iter().filter(|line| is_it(&line.what)).count();
        let accepted = count(|what| matches!(what, What::Wrote { accepted: true, .. }));
        let stale_taken = history.breaches(Law::WritesInOrder).len();
        Self {
            arena: run.arena,
            seed: run.seed,
            strikes: strikes(lines, &history.terms()),
            terms: history.terms().len(),
            overlaps: two_leaders.len(),
            excused: excused.iter().map(Overlap::time).collect(),
            taken: accepted - stale_taken.min(accepted),
            stale_taken,
            stale_refused: count(|what| matches!(what, What::Wrote { accepted: false, .. })),
            went_back: count(|what| matches!(what, What::WentBack { .. })),
            breaches,
            history: None,
        }
    }

    /// Whether no law was broken.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.breaches.is_empty()
    }

    /// Whether somebody led too late, if once.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.late().next().is_some()
    }

    /// The strikes after which nobody led for longer than is [allowed].
    pub fn late(&self) -> impl Iterator<Item = &Strike> {
        self.strikes.iter().filter(|strike| allowed() + SLACK < strike.back_after)
    }
}

/// As the checker has it.
fn history(lines: &[Line]) -> History<BootTime> {
    let mut history = History::default();
    let mut names = BTreeMap::new();
    for Line { at, who, what } in lines {
        let next = names.len();
        let who = *names.entry(who).or_insert(next);
        let fact = match *what {
            What::Believes { fence, until } => {
                Fact::Believes { fence, until: BootTime::from_nanos(until) }
            }
            What::Ended { fence, .. } => Fact::Ended { fence },
            What::Gone => Fact::Gone,
            What::Admitted { fence } => Fact::Admitted { fence },
            What::Wrote { fence, accepted } => Fact::Wrote { fence, accepted },
            _ => continue,
        };
        history.add(BootTime::from_nanos(*at), who, fact);
    }
    history
}

/// When a lease was ended whose holder could not know.
fn leases_ended(arena: Arena, lines: &[Line]) -> Vec<BootTime> {
    let mut broken = None;
    let mut ended = Vec::new();
    for line in lines {
        match line.what {
            What::Breaks { kind, .. } => broken = Some(kind),
            // A clock that is set right is set once more.
            What::Heals if broken.is_some_and(Kind::sets_clock) => {}
            _ => continue,
        }
        if broken.is_some_and(|kind| arena.ends_leases(kind)) {
            ended.push(BootTime::from_nanos(line.at));
        }
    }
    ended
}

/// Whether it came of that, and the former leader knew after two renewals.
fn is_excused(overlap: &Overlap<BootTime>, ended: &[BootTime]) -> bool {
    let config = config();
    let knows_within = 2 * (config.renew_interval + config.operation_timeout);
    let Overlap { former, latter, .. } = overlap;
    ended
        .iter()
        .any(|at| former.start <= *at && *at <= latter.start && former.end() <= *at + knows_within)
}

/// The times for which nobody led, in order.
fn vacancies(lines: &[Line], terms: &[Term<BootTime>]) -> Vec<(BootTime, BootTime)> {
    // Who leaves has closed its gate, and believes still.
    let closed = |term: &Term<BootTime>| {
        let leaves = lines.iter().find(|line| {
            matches!(line.what, What::Leaves { fence, .. } if fence == term.fence)
                && term.start.as_nanos() <= line.at
        });
        leaves.map_or(term.end(), |line| term.end().min(BootTime::from_nanos(line.at)))
    };
    let mut reigns: Vec<_> = terms.iter().map(|term| (term.start, closed(term))).collect();
    reigns.sort();
    let mut vacancies = Vec::new();
    let mut led_until = None;
    for (start, end) in reigns {
        if let Some(led_until) = led_until.filter(|led_until| *led_until < start) {
            vacancies.push((led_until, start));
        }
        led_until = led_until.max(Some(end));
    }
    vacancies
}

fn strikes(lines: &[Line], terms: &[Term<BootTime>]) -> Vec<Strike> {
    let vacancies = vacancies(lines, terms);
    let mut strikes = Vec::new();
    let all: Vec<_> = lines
        .iter()
        .filter_map(|line| match line.what {
            What::Breaks { kind, hits_leader } => Some((line.at, kind, hits_leader)),
            _ => None,
        })
        .collect();
    for (n, (at, kind, hits_leader)) in all.iter().enumerate() {
        let begins = BootTime::from_nanos(*at);
        let next = all.get(n + 1).map_or(u64::MAX, |(next, ..)| *next);
        let next = BootTime::from_nanos(next);
        let healed = lines.iter().find(|line| line.what == What::Heals && *at <= line.at);
        let healed = healed.map_or(begins, |line| BootTime::from_nanos(line.at));
        let free = if kind.leaves_others_free() { begins } else { healed };
        let of_it = vacancies.iter().filter(|(from, _)| begins <= *from && *from < next);
        strikes.push(Strike {
            kind: *kind,
            hits_leader: *hits_leader,
            without: of_it.clone().map(|(from, to)| to.since(*from)).max().unwrap_or_default(),
            back_after: of_it.map(|(_, to)| to.since(free)).max().unwrap_or_default(),
        });
    }
    strikes
}
