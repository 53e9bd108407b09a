//! What happened, as somebody who sees everything has it: who believed to lead and when, what was written, what was
//! answered.

use std::time::Duration;

use buttress::leadership::BootTime;

use crate::said::What;

/// Candidates, by number. They are shown as letters.
pub(crate) const CANDIDATES: usize = 3;

pub(crate) fn name(candidate: usize) -> char {
    (b'A' + candidate as u8) as char
}

/// All times are of the clock that the processes of a machine share.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// When it began.
    pub(crate) origin: BootTime,
    /// In the order in which they were heard of.
    pub(crate) terms: Vec<Term>,
    pub(crate) faults: Vec<Fault>,
    /// How many writes were asked for.
    pub(crate) asked: usize,
    /// What came of them.
    pub(crate) answers: Vec<Answer>,
    /// What the ledger took, in its order.
    pub(crate) written: Vec<Write>,
    /// What it refused for its fence.
    pub(crate) refused: Vec<Refused>,
    /// Lines for the reader.
    pub(crate) log: Vec<String>,
}

/// One candidate's time as a leader, by what it says: a moment after its gate was opened and closed.
#[derive(Clone, Debug)]
pub(crate) struct Term {
    pub(crate) candidate: usize,
    pub(crate) fence: u64,
    pub(crate) from: BootTime,
    /// When it was last renewed, or began, as its leader said.
    pub(crate) renewed: BootTime,
    /// Until when its leader believes in it, unless the gate was closed before.
    pub(crate) valid_until: BootTime,
    pub(crate) closed: Option<BootTime>,
    pub(crate) end: Option<String>,
}

/// What was done to a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The ledger hangs for it, and for nobody else.
    Cut,
    /// It was killed.
    Killed,
    /// It was stopped.
    Stopped,
}

/// A fault, from `at` until it was made good again.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: Kind,
    pub(crate) candidate: usize,
    pub(crate) fence: u64,
    pub(crate) at: BootTime,
    pub(crate) healed: Option<BootTime>,
}

/// What came of a write that was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) came: BootTime,
    /// The fence with which it was written, if it was.
    pub(crate) fence: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    pub(crate) at: BootTime,
    pub(crate) fence: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused {
    pub(crate) at: BootTime,
    pub(crate) fence: u64,
    /// Who tried.
    pub(crate) candidate: usize,
    /// The greatest fence that the ledger had seen.
    pub(crate) highest: u64,
}

// === impl History ===

impl History {
    pub(crate) fn new(origin: BootTime) -> Self {
        Self { origin, ..Self::default() }
    }

    /// Takes in what a candidate says.
    pub(crate) fn hear(&mut self, candidate: usize, at: BootTime, what: What) {
        let who = name(candidate);
        match what {
            What::Listens(_) => {}
            What::Started { fence, until } => {
                self.note(at, format_args!("{who} leads, with fence {fence}"));
                self.terms.push(Term {
                    candidate,
                    fence,
                    from: at,
                    renewed: at,
                    valid_until: until,
                    closed: None,
                    end: None,
                });
            }
            What::Renewed { fence, until } => {
                if let Some(term) = self.term(candidate, fence) {
                    term.renewed = at;
                    term.valid_until = term.valid_until.max(until);
                }
            }
            What::Resigns { fence, why } => {
                self.note(at, format_args!("{who} resigns: {why}"));
                if let Some(term) = self.term(candidate, fence) {
                    term.closed = Some(at);
                }
            }
            What::Ended { fence, how } => {
                self.note(at, format_args!("{who}'s term {fence} is over: {how}"));
                if let Some(term) = self.term(candidate, fence) {
                    term.closed.get_or_insert(at);
                    term.end = Some(how);
                }
            }
        }
    }

    /// A fault begins.
    pub(crate) fn strike(&mut self, fault: Fault) {
        let who = name(fault.candidate);
        let what = match fault.kind {
            Kind::Cut => format!("the ledger hangs for {who}, and for nobody else"),
            Kind::Killed => format!("SIGKILL to {who}"),
            Kind::Stopped => format!("SIGSTOP to {who}"),
        };
        self.note(fault.at, format_args!("fault {}: {what}", self.faults.len() + 1));
        self.faults.push(fault);
    }

    /// It is made good.
    pub(crate) fn heal(&mut self, fault: &Fault, at: BootTime) {
        let who = name(fault.candidate);
        let what = match fault.kind {
            Kind::Cut => format!("the ledger answers {who}"),
            Kind::Killed => format!("{who} is started again"),
            Kind::Stopped => format!("SIGCONT to {who}"),
        };
        self.note(at, format_args!("{what}"));
        let faults = &mut self.faults;
        if let Some(fault) = faults.iter_mut().find(|known| known.fence == fault.fence) {
            fault.healed = Some(at);
        }
    }

    /// The ledger did not take a write. It is told of the first of a term.
    pub(crate) fn refuse(&mut self, refused: Refused) {
        let Refused { at, fence, candidate, highest } = refused;
        if !self.refused.iter().any(|known| known.fence == fence) {
            let who = name(candidate);
            self.note(
                at,
                format_args!(
                    "the ledger refuses {who}'s writes with fence {fence}: {highest} was here"
                ),
            );
        }
        self.refused.push(refused);
    }

    /// Has the reader told of it.
    pub(crate) fn note(&mut self, at: BootTime, line: std::fmt::Arguments<'_>) {
        let time = at.since(self.origin).as_secs_f64();
        self.log.push(format!("{time:>5.1} s  {line}"));
    }

    fn term(&mut self, candidate: usize, fence: u64) -> Option<&mut Term> {
        self.terms.iter_mut().rev().find(|term| (term.candidate, term.fence) == (candidate, fence))
    }

    /// Writes that were asked for and have no answer yet.
    pub(crate) fn under_way(&self) -> usize {
        self.asked - self.answers.len()
    }

    /// Who believes to lead at `now`, if anybody does.
    pub(crate) fn leading(&self, now: BootTime) -> Option<&Term> {
        self.terms.iter().rev().find(|term| term.from <= now && now < term.until())
    }

    /// The first term that began after the fault, with another leader.
    pub(crate) fn successor(&self, fault: &Fault) -> Option<&Term> {
        self.terms
            .iter()
            .filter(|term| term.fence > fault.fence && term.candidate != fault.candidate)
            .min_by_key(|term| term.fence)
    }

    /// For how long nobody led: from when the leader did not any more, be it dead, stopped, or gone by itself.
    pub(crate) fn without_leader(&self, fault: &Fault) -> Option<Duration> {
        let left = self.terms.iter().find(|term| term.fence == fault.fence)?.until();
        let from = if fault.kind == Kind::Cut { left } else { fault.at };
        Some(self.successor(fault)?.from.since(from))
    }

    /// From the fault on, until a write was answered that a later leader has made.
    pub(crate) fn without_write(&self, fault: &Fault) -> Option<Duration> {
        let later = |answer: &&Answer| answer.fence.is_some_and(|fence| fence > fault.fence);
        let first = self.answers.iter().filter(later).map(|answer| answer.came).min()?;
        Some(first.since(fault.at))
    }

    /// Pairs of terms in both of which somebody believed to lead at one instant.
    pub(crate) fn overlaps(&self) -> Vec<(u64, u64)> {
        let mut overlaps = Vec::new();
        for (n, one) in self.terms.iter().enumerate() {
            for other in &self.terms[n + 1..] {
                if one.from.max(other.from) < one.until().min(other.until()) {
                    overlaps.push((one.fence, other.fence));
                }
            }
        }
        overlaps
    }

    /// How often the ledger took a write with a smaller fence than the one before.
    pub(crate) fn decreases(&self) -> usize {
        self.written.windows(2).filter(|pair| pair[1].fence < pair[0].fence).count()
    }

    /// Whether it is as it is promised to be.
    pub(crate) fn is_sound(&self) -> bool {
        self.overlaps().is_empty()
            && self.decreases() == 0
            && self.refused.iter().all(|refused| refused.fence < refused.highest)
    }
}

// === impl Term ===

impl Term {
    /// Until when its leader believed to lead, or would have, had it not been killed.
    pub(crate) fn until(&self) -> BootTime {
        self.closed.map_or(self.valid_until, |closed| closed.min(self.valid_until))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn at(tenths: u64) -> BootTime {
        BootTime::from_nanos(tenths * 100_000_000)
    }

    /// Candidates that lead from when until when.
    fn terms(terms: &[(usize, u64, u64)]) -> History {
        let mut history = History::new(at(0));
        for (n, (candidate, from, until)) in terms.iter().enumerate() {
            let (fence, until) = (n as u64 + 1, at(*until));
            history.hear(*candidate, at(*from), What::Started { fence, until });
        }
        history
    }

    #[test]
    fn a_term_that_begins_as_another_ends_does_not_overlap_it_and_a_moment_earlier_does() {
        assert!(terms(&[(0, 10, 20), (1, 20, 30)]).overlaps().is_empty());
        assert_eq!(terms(&[(0, 10, 20), (1, 19, 30)]).overlaps(), [(1, 2)]);
        assert_eq!(terms(&[(0, 10, 40), (1, 19, 30), (2, 35, 50)]).overlaps(), [(1, 2), (1, 3)]);
    }

    #[test]
    fn who_closes_its_gate_believes_no_longer_and_who_says_nothing_believes_to_the_end() {
        let mut history = terms(&[(0, 10, 40)]);
        history.hear(0, at(15), What::Renewed { fence: 1, until: at(45) });
        assert_eq!(history.terms[0].until(), at(45));
        history.hear(0, at(30), What::Resigns { fence: 1, why: String::new() });
        history.hear(0, at(35), What::Ended { fence: 1, how: String::new() });
        assert_eq!(history.terms[0].until(), at(30));
        // Stopped, it says so long after its lease was over.
        let mut history = terms(&[(0, 10, 40)]);
        history.hear(0, at(90), What::Ended { fence: 1, how: String::new() });
        assert_eq!(history.terms[0].until(), at(40));
    }

    #[test]
    fn nobody_leads_from_when_the_leader_is_dead_or_from_when_it_leaves() {
        let mut history = terms(&[(0, 10, 40), (1, 50, 80)]);
        let fault = |kind| Fault { kind, candidate: 0, fence: 1, at: at(20), healed: None };
        let tenths = |n: u64| Some(Duration::from_millis(n * 100));
        assert_eq!(history.without_leader(&fault(Kind::Killed)), tenths(30));
        history.hear(0, at(35), What::Resigns { fence: 1, why: String::new() });
        assert_eq!(history.without_leader(&fault(Kind::Cut)), tenths(15));
        assert_eq!(history.without_write(&fault(Kind::Cut)), None);
        for (came, fence) in [(25, Some(1)), (55, None), (60, Some(2)), (70, Some(2))] {
            history.answers.push(Answer { came: at(came), fence });
        }
        assert_eq!(history.without_write(&fault(Kind::Cut)), tenths(40));
    }

    #[test]
    fn the_reader_is_told_once_of_a_term_whose_writes_are_refused() {
        let mut history = History::new(at(0));
        for fence in [1, 1, 2, 1] {
            history.refuse(Refused { at: at(10), fence, candidate: 0, highest: 3 });
        }
        assert_eq!((history.log.len(), history.refused.len()), (2, 4), "{:?}", history.log);
    }

    #[test]
    fn a_write_with_an_old_fence_among_newer_ones_is_seen() {
        let mut history = History::new(at(0));
        history.written.extend([1, 1, 3, 3].map(|fence| Write { at: at(0), fence }));
        assert!(history.is_sound());
        history.written.extend([2, 3].map(|fence| Write { at: at(0), fence }));
        assert_eq!(history.decreases(), 1);
        assert!(!history.is_sound());
    }
}
