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

    /// The strikes after which nobody led for longer than is [allowed](Arena::allows).
    pub fn late(&self) -> impl Iterator<Item = &Strike> {
        self.strikes
            .iter()
            .filter(|strike| self.arena.allows(strike.kind) + SLACK < strike.back_after)
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

/// From when to when a lease may have been ended whose holder could not know.
fn leases_ended(arena: Arena, lines: &[Line]) -> Vec<(BootTime, BootTime)> {
    let (mut broken, mut since) = (None, BootTime::default());
    let mut ended = Vec::new();
    for line in lines {
        let at = BootTime::from_nanos(line.at);
        match line.what {
            What::Breaks { kind, .. } => {
                (broken, since) = (Some(kind), at);
                if arena.ends_leases(kind) {
                    ended.push((at, at));
                }
            }
            // A clock that is set right is set once more.
            What::Heals => {
                let is_set = |kind: Kind| kind.sets_clock() && arena.ends_leases(kind);
                ended.extend(broken.filter(|kind| is_set(*kind)).map(|_| (at, at)));
            }
            // One that led before, and stood still, may end leases that others have renewed (etcd-io/etcd#15247).
            What::Elected => ended.push((since, at)),
            _ => {}
        }
    }
    ended
}

/// Whether it came of that, and the former leader knew after two renewals.
fn is_excused(overlap: &Overlap<BootTime>, ended: &[(BootTime, BootTime)]) -> bool {
    let config = config();
    let knows_within = 2 * (config.renew_interval + config.operation_timeout);
    let Overlap { former, latter, .. } = overlap;
    ended.iter().any(|(from, to)| {
        let is_of_it = former.start <= *to && *from <= latter.start;
        let ended = latter.start.min(*to).max(*from);
        is_of_it && former.end() <= ended + knows_within
    })
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

#[cfg(test)]
mod tests {
    use buttress_leadership::FencingToken;

    use super::*;

    /// Tenths of a second.
    fn at(tenths: u64) -> u64 {
        tenths * 100_000_000
    }

    fn line(tenths: u64, who: &str, what: What) -> Line {
        Line { at: at(tenths), who: who.to_owned(), what }
    }

    fn believes(tenths: u64, who: &str, number: u64, until: u64) -> Line {
        let fence = FencingToken::new(number).unwrap();
        line(tenths, who, What::Believes { fence, until: at(until) })
    }

    fn breaks(tenths: u64, kind: Kind) -> Line {
        line(tenths, "nemesis", What::Breaks { kind, hits_leader: true })
    }

    fn heals(tenths: u64) -> Line {
        line(tenths, "nemesis", What::Heals)
    }

    fn ended(tenths: u64, who: &str, number: u64) -> Line {
        let fence = FencingToken::new(number).unwrap();
        line(tenths, who, What::Ended { fence, how: "lost".to_owned() })
    }

    fn judged(arena: Arena, lines: &[Line]) -> Verdict {
        let (faults, leadctl) = (Vec::new(), PathBuf::new());
        let lasts = Duration::ZERO;
        Verdict::of(&Run { arena, faults, lasts, seed: 0, leadctl, plant: None }, lines)
    }

    /// B leads from 12 on, and A until it hears of that.
    fn two_leaders(kind: Kind, a_knows: u64) -> Vec<Line> {
        vec![
            believes(5, "A", 1, 30),
            breaks(10, kind),
            believes(12, "B", 2, 40),
            ended(a_knows, "A", 1),
            heals(25),
        ]
    }

    #[test]
    fn two_leaders_are_excused_if_their_lease_was_ended_from_outside_and_the_first_knew_soon() {
        let removed = judged(Arena::Redis, &two_leaders(Kind::Removal, 15));
        assert_eq!(
            (removed.overlaps, &removed.excused[..]),
            (0, &[Duration::from_millis(300)][..])
        );
        assert!(removed.is_sound());
        for (arena, kind, a_knows) in [
            (Arena::Redis, Kind::Removal, 30),
            (Arena::Redis, Kind::ClockAhead, 15),
            (Arena::Redis, Kind::Partition, 15),
            (Arena::Etcd, Kind::MemberPause, 15),
        ] {
            let verdict = judged(arena, &two_leaders(kind, a_knows));
            assert_eq!(verdict.overlaps, 1, "{arena:?} {kind:?}");
            assert!(verdict.breaches[0].starts_with("P1"), "{:?}", verdict.breaches);
        }
        let by_clock = judged(Arena::RedisServer, &two_leaders(Kind::ClockAhead, 15));
        assert!(by_clock.is_sound());
        let mut elected = two_leaders(Kind::MemberPause, 15);
        elected.push(line(26, "nemesis", What::Elected));
        assert!(judged(Arena::Etcd, &elected).is_sound());
    }

    #[test]
    fn what_overlaps_before_anything_was_broken_is_not_excused_by_what_comes_later() {
        let lines = [
            believes(5, "A", 1, 30),
            believes(8, "B", 2, 40),
            breaks(10, Kind::Removal),
            ended(12, "A", 1),
        ];
        assert_eq!(judged(Arena::Redis, &lines).overlaps, 1);
    }

    #[test]
    fn nobody_leads_from_when_the_leader_closes_its_gate_or_is_gone_until_the_next_one_does() {
        let fence = FencingToken::new(1).unwrap();
        let leaves = What::Leaves { fence, why: "operator".to_owned() };
        let lines = [
            believes(0, "A", 1, 100),
            breaks(10, Kind::Resignation),
            line(11, "A", leaves),
            ended(13, "A", 1),
            heals(14),
            believes(15, "B", 2, 100),
            breaks(20, Kind::Crash),
            line(20, "B", What::Gone),
            heals(22),
            believes(42, "A", 3, 90),
            breaks(50, Kind::StoreCut),
            heals(95),
            believes(120, "A", 4, 200),
        ];
        let verdict = judged(Arena::Redis, &lines);
        let times = verdict.strikes.iter().map(|strike| (strike.without, strike.back_after));
        let tenths = |n: u64| Duration::from_millis(n * 100);
        // From when it was broken, or was well again where nobody could have led before.
        let expected = [(tenths(4), tenths(5)), (tenths(22), tenths(22)), (tenths(30), tenths(25))];
        assert_eq!(times.collect::<Vec<_>>(), expected);
        assert!(!verdict.is_late());
        let late = [&lines[..12], &[believes(130, "A", 4, 200)]].concat();
        let late = judged(Arena::Redis, &late);
        assert_eq!(late.late().map(|strike| strike.kind).collect::<Vec<_>>(), [Kind::StoreCut]);
    }

    #[test]
    fn a_stale_write_that_was_taken_is_counted_as_one_and_is_a_breach() {
        let wrote = |tenths, number, accepted| {
            let fence = FencingToken::new(number).unwrap();
            line(tenths, "A", What::Wrote { fence, accepted })
        };
        let lines = [wrote(1, 1, true), wrote(2, 2, true), wrote(3, 1, false), wrote(4, 1, true)];
        let verdict = judged(Arena::Redis, &lines);
        assert_eq!((verdict.taken, verdict.stale_refused, verdict.stale_taken), (2, 1, 1));
        assert!(!verdict.is_sound());
    }
}
