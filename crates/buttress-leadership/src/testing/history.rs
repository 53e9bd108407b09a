//! Whether an election that was watched went as elections are promised to: for those who break things.
//!
//! Kill the leader, stop it, cut it off, restart the store: what a lease is worth shows then. Whoever does so writes
//! down what each process believed and what was written, by one clock that all of them share, and asks the
//! [`History`] afterwards. It knows nothing of electors and stores: it sees what an all-seeing witness would.
//!
//! On one Linux machine the [system's clock](crate::LeaseClock::system) is such a clock, for all its processes. Under
//! tokio's paused clock it is `Instant`.
//!
//! # Examples
//!
//! ```
//! use buttress_leadership::{BootTime, FencingToken, testing::history::{Fact, History, Law}};
//!
//! let at = |second: u64| BootTime::from_nanos(second * 1_000_000_000);
//! let [old, new] = [33, 34].map(|number| FencingToken::new(number).unwrap());
//! let mut history = History::default();
//! history.add(at(1), 0, Fact::Believes { fence: old, until: at(13) });
//! // It is stopped in the middle of a write, for longer than its lease, and another one leads.
//! history.add(at(17), 1, Fact::Believes { fence: new, until: at(29) });
//! history.add(at(18), 1, Fact::Wrote { fence: new, accepted: true });
//! history.add(at(20), 0, Fact::Wrote { fence: old, accepted: false });
//! assert_eq!(Law::ALL.map(|law| history.breaches(law).len()), [0; 5]);
//!
//! history.add(at(21), 0, Fact::Wrote { fence: old, accepted: true });
//! assert_eq!(
//!     history.breaches(Law::WritesInOrder),
//!     ["P3: 0 wrote with 33 after 34 had been here"]
//! );
//! ```

use std::{collections::BTreeMap, fmt, ops::Sub, time::Duration};

use crate::FencingToken;

/// What happened, in the order in which it did.
///
/// A process is a number, from its start to its end: one that is started anew is another.
#[derive(Clone, Debug)]
pub struct History<At> {
    facts: Vec<(At, usize, Fact<At>)>,
}

/// What a process did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fact<At> {
    /// It leads with that token, and believes that it may until then unless it is renewed: what
    /// [`TermStarted`](crate::Event::TermStarted) and [`Renewed`](crate::Event::Renewed) tell.
    Believes {
        /// The term's token.
        fence: FencingToken,
        /// Until when.
        until: At,
    },
    /// It leads no more: [`TermEnded`](crate::Event::TermEnded).
    Ended {
        /// The term's token.
        fence: FencingToken,
    },
    /// The process is no more.
    Gone,
    /// A request was let in. Where others may stop the process, the instant is one from before it asked.
    Admitted {
        /// The token of the term that let it in.
        fence: FencingToken,
    },
    /// A resource was written to, as that resource has it.
    Wrote {
        /// The token that came along.
        fence: FencingToken,
        /// Whether it took the write.
        accepted: bool,
    },
}

/// What is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Law {
    /// P1: nobody believes to lead while another one does.
    OneLeader,
    /// P2: tokens grow from term to term.
    TokensGrow,
    /// P3: what a resource takes has tokens that do not fall, and what it refuses is old.
    WritesInOrder,
    /// P4: a request is let in by a term of its process, while that is valid.
    AdmittedInTerm,
    /// P5: terms of a process begin and end once, one after the other.
    TermsAlternate,
    /// P2 where the store has forgotten its tokens: they grow for each process. It is none of [`ALL`](Self::ALL).
    TokensGrowForEach,
}

/// A term, as it was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Term<At> {
    /// Whose it was.
    pub who: usize,
    /// Its token.
    pub fence: FencingToken,
    /// When it began.
    pub start: At,
    /// Until when it was believed in, had it not ended before.
    pub until: At,
    /// When it was told to have ended, or its process did.
    pub ended: Option<At>,
}

/// A time for which two believed to lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Overlap<At> {
    /// The term that was.
    pub former: Term<At>,
    /// The term that began too early.
    pub latter: Term<At>,
}

// === impl History ===

impl<At> Default for History<At> {
    fn default() -> Self {
        Self { facts: Vec::new() }
    }
}

impl<At: Copy + Ord + Sub<Output = Duration>> History<At> {
    /// That process did so then, which is not before what was added last.
    pub fn add(&mut self, at: At, who: usize, fact: Fact<At>) {
        self.facts.push((at, who, fact));
    }

    /// All terms, in the order in which they began.
    #[must_use]
    pub fn terms(&self) -> Vec<Term<At>> {
        let mut terms = Vec::<Term<At>>::new();
        for &(at, who, fact) in &self.facts {
            let last = terms.iter_mut().rev().find(|term| term.who == who);
            match (fact, last) {
                (Fact::Believes { fence, until }, Some(term))
                    if term.fence == fence && term.ended.is_none() =>
                {
                    term.until = term.until.max(until);
                }
                (Fact::Believes { fence, until }, _) => {
                    terms.push(Term { who, fence, start: at, until, ended: None });
                }
                (Fact::Ended { .. } | Fact::Gone, Some(term)) => {
                    term.ended.get_or_insert(at);
                }
                _ => {}
            }
        }
        terms
    }

    /// Each time that two believed to lead at once.
    #[must_use]
    pub fn overlaps(&self) -> Vec<Overlap<At>> {
        let mut all = self.terms();
        all.sort_by_key(|term| term.start);
        let mut overlaps = Vec::new();
        let mut longest: Option<Term<At>> = None;
        for term in all {
            if let Some(former) = longest
                && former.who != term.who
                && term.start < former.end().min(term.end())
            {
                overlaps.push(Overlap { former, latter: term });
            }
            if longest.is_none_or(|other| other.end() < term.end()) {
                longest = Some(term);
            }
        }
        overlaps
    }

    /// Where that law was broken, a line each. Nothing where it holds.
    #[must_use]
    pub fn breaches(&self, law: Law) -> Vec<String> {
        match law {
            Law::OneLeader => self.overlaps().iter().map(ToString::to_string).collect(),
            Law::TokensGrow => self.tokens(|_| 0),
            Law::TokensGrowForEach => self.tokens(|who| who),
            Law::WritesInOrder => self.writes(),
            Law::AdmittedInTerm => self.requests(),
            Law::TermsAlternate => self.events(),
        }
    }

    fn tokens(&self, among: impl Fn(usize) -> usize) -> Vec<String> {
        let mut highest = BTreeMap::new();
        let mut wrong = Vec::new();
        // One that was told of when it was over, as by a process that stood still meanwhile, began nobody knows when.
        for Term { who, fence, .. } in
            self.terms().into_iter().filter(|term| term.start < term.end())
        {
            let before = highest.entry(among(who)).or_insert(None);
            if let Some(before) = before.filter(|before| fence <= *before) {
                wrong.push(format!("P2: {who} leads with {fence} after {before}"));
            }
            *before = (*before).max(Some(fence));
        }
        wrong
    }

    fn writes(&self) -> Vec<String> {
        let mut highest = None;
        let mut wrong = Vec::new();
        for (_, who, fact) in &self.facts {
            let Fact::Wrote { fence, accepted } = *fact else { continue };
            match highest.filter(|highest| fence < *highest) {
                Some(highest) if accepted => {
                    wrong.push(format!(
                        "P3: {who} wrote with {fence} after {highest} had been here"
                    ));
                }
                None if !accepted => {
                    wrong.push(format!("P3: {who} was refused with {fence}, which is not old"));
                }
                _ => {}
            }
            highest = highest.max(Some(fence));
        }
        wrong
    }

    fn requests(&self) -> Vec<String> {
        let terms = self.terms();
        let mut wrong = Vec::new();
        for (at, who, fact) in &self.facts {
            let Fact::Admitted { fence } = *fact else { continue };
            let of = |term: &&Term<At>| term.who == *who && term.fence == fence;
            match terms.iter().find(of) {
                Some(term) if term.is_valid(*at) => {}
                Some(term) if term.end() <= *at => {
                    let late = *at - term.end();
                    wrong.push(format!("P4: {who} let somebody in by {fence}, {late:?} too late"));
                }
                _ => wrong.push(format!("P4: {who} let somebody in by {fence}, and did not lead")),
            }
        }
        wrong
    }

    fn events(&self) -> Vec<String> {
        let mut running = BTreeMap::<usize, Option<FencingToken>>::new();
        let mut wrong = Vec::new();
        for (_, who, fact) in &self.facts {
            let now = running.entry(*who).or_default();
            match (*fact, *now) {
                (Fact::Believes { fence, .. }, None) => *now = Some(fence),
                (Fact::Believes { fence, .. }, Some(term)) if term == fence => {}
                (Fact::Ended { fence }, Some(term)) if term == fence => *now = None,
                (Fact::Believes { fence, .. }, Some(term)) => {
                    wrong.push(format!("P5: {who} leads with {fence}, and with {term} still"));
                }
                (Fact::Ended { fence }, term) => {
                    let term = term.map_or_else(|| "nothing".to_owned(), |term| term.to_string());
                    wrong.push(format!("P5: {who} ended {fence}, and led with {term}"));
                }
                _ => {}
            }
        }
        wrong
    }
}

// === impl Law ===

impl Law {
    /// What is promised while the store keeps what it has said.
    pub const ALL: [Self; 5] = [
        Self::OneLeader,
        Self::TokensGrow,
        Self::WritesInOrder,
        Self::AdmittedInTerm,
        Self::TermsAlternate,
    ];
}

// === impl Term ===

impl<At: Copy + Ord> Term<At> {
    /// When it was over: it ended, or could be believed in no more.
    #[must_use]
    pub fn end(&self) -> At {
        self.ended.map_or(self.until, |ended| ended.min(self.until))
    }

    fn is_valid(&self, at: At) -> bool {
        self.start <= at && at < self.until && self.ended.is_none_or(|ended| at <= ended)
    }
}

// === impl Overlap ===

impl<At: Copy + Ord + Sub<Output = Duration>> Overlap<At> {
    /// For how long.
    #[must_use]
    pub fn time(&self) -> Duration {
        self.former.end().min(self.latter.end()) - self.latter.start
    }
}

impl<At: Copy + Ord + Sub<Output = Duration>> fmt::Display for Overlap<At> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { former, latter } = self;
        write!(
            f,
            "P1: {} leads with {} while {} does with {}, for {:?}",
            latter.who,
            latter.fence,
            former.who,
            former.fence,
            self.time()
        )
    }
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use super::*;
    use crate::BootTime;

    fn at(tenths: u64) -> BootTime {
        BootTime::from_nanos(tenths * 100_000_000)
    }

    fn fence(number: u64) -> FencingToken {
        FencingToken::new(number).unwrap()
    }

    fn believes(number: u64, until: u64) -> Fact<BootTime> {
        Fact::Believes { fence: fence(number), until: at(until) }
    }

    fn ended(number: u64) -> Fact<BootTime> {
        Fact::Ended { fence: fence(number) }
    }

    fn wrote(number: u64, accepted: bool) -> Fact<BootTime> {
        Fact::Wrote { fence: fence(number), accepted }
    }

    fn history(facts: &[(u64, usize, Fact<BootTime>)]) -> History<BootTime> {
        let mut history = History::default();
        facts.iter().for_each(|(tenths, who, fact)| history.add(at(*tenths), *who, *fact));
        history
    }

    /// Which laws it breaks.
    fn broken(facts: &[(u64, usize, Fact<BootTime>)]) -> Vec<Law> {
        let history = history(facts);
        Law::ALL.into_iter().filter(|law| !history.breaches(*law).is_empty()).collect()
    }

    #[test]
    fn a_term_that_begins_as_another_ends_does_not_overlap_it_and_a_moment_earlier_does() {
        assert_eq!(broken(&[(10, 0, believes(1, 20)), (20, 1, believes(2, 30))]), []);
        let early = [(10, 0, believes(1, 20)), (19, 1, believes(2, 30))];
        assert_eq!(broken(&early), [Law::OneLeader]);
        assert_eq!(history(&early).overlaps()[0].time(), Duration::from_millis(100));
    }

    #[test]
    fn a_term_lasts_for_as_long_as_it_was_ever_believed_in_or_until_it_was_told_to_have_ended() {
        let renewed = [(10, 0, believes(1, 20)), (15, 0, believes(1, 30))];
        let next = (25, 1, believes(2, 40));
        assert_eq!(broken(&[renewed[0], next]), []);
        assert_eq!(broken(&[renewed[0], renewed[1], next]), [Law::OneLeader]);
        assert_eq!(broken(&[renewed[0], renewed[1], (25, 0, ended(1)), next]), []);
        assert_eq!(broken(&[renewed[0], renewed[1], (25, 0, Fact::Gone), next]), []);
        // It was stopped, and tells of its end when that is long past.
        assert_eq!(broken(&[renewed[0], next, (90, 0, ended(1))]), []);
    }

    #[test]
    fn a_short_term_within_a_long_one_overlaps_and_does_not_hide_the_next() {
        let facts = [(10, 0, believes(1, 50)), (20, 1, believes(2, 25)), (40, 2, believes(3, 60))];
        let overlaps = history(&facts).overlaps();
        let pairs = overlaps.iter().map(|two| (two.former.fence.get(), two.latter.fence.get()));
        assert_eq!(pairs.collect::<Vec<_>>(), [(1, 2), (1, 3)]);
        assert_eq!(overlaps[0].time(), Duration::from_millis(500));
    }

    #[test]
    fn a_token_that_was_there_before_is_found_and_where_the_store_forgot_if_it_is_the_same_process()
    {
        let again = [(10, 0, believes(7, 20)), (30, 1, believes(7, 40))];
        assert_eq!(broken(&again), [Law::TokensGrow]);
        assert_eq!(history(&again).breaches(Law::TokensGrowForEach), [""; 0]);
        let same = [(10, 0, believes(7, 20)), (20, 0, ended(7)), (30, 0, believes(6, 40))];
        assert_eq!(history(&same).breaches(Law::TokensGrowForEach).len(), 1);
    }

    #[test]
    fn a_stale_write_that_is_taken_is_found_and_so_is_a_fresh_one_that_is_refused() {
        let fine = [(10, 0, wrote(1, true)), (11, 1, wrote(2, true)), (12, 0, wrote(1, false))];
        assert_eq!(broken(&fine), []);
        let stale = [fine[0], fine[1], (12, 0, wrote(1, true))];
        assert_eq!(broken(&stale), [Law::WritesInOrder]);
        for number in [2, 3] {
            let fresh = [fine[0], fine[1], (12, 0, wrote(number, false))];
            assert_eq!(broken(&fresh), [Law::WritesInOrder], "{number}");
        }
    }

    #[test]
    fn who_is_let_in_by_no_term_or_by_one_that_is_over_is_found() {
        let admitted = |number| Fact::Admitted { fence: fence(number) };
        let term = (10, 0, believes(1, 20));
        assert_eq!(broken(&[term, (10, 0, admitted(1)), (19, 0, admitted(1))]), []);
        for wrong in [(20, 0, admitted(1)), (15, 1, admitted(1)), (15, 0, admitted(2))] {
            assert_eq!(broken(&[term, wrong]), [Law::AdmittedInTerm], "{wrong:?}");
        }
        let after_its_end = [term, (12, 0, ended(1)), (13, 0, admitted(1))];
        assert_eq!(broken(&after_its_end), [Law::AdmittedInTerm]);
    }

    #[test]
    fn a_term_that_ends_twice_or_never_began_or_is_not_alone_is_found() {
        let term = (10, 0, believes(1, 20));
        assert_eq!(broken(&[term, (12, 0, ended(1)), (13, 0, believes(2, 30))]), []);
        for wrong in [ended(2), believes(2, 20)] {
            assert!(broken(&[term, (11, 0, wrong)]).contains(&Law::TermsAlternate), "{wrong:?}");
        }
        assert_eq!(broken(&[term, (12, 0, ended(1)), (13, 0, ended(1))]), [Law::TermsAlternate]);
    }
}
