//! What happened, and what must not have.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use tokio::time::Instant;

use buttress_core::Health;

use crate::{
    Called, FencingToken, LeaseConfig, Operation, ResignSettings,
    testing::history::{self, Law},
};

/// A process, from its start to its end. One that is started anew is another.
pub(super) type Who = usize;

#[derive(Clone, Debug)]
pub(super) enum Fact {
    /// It leads with that token, and believes that it may until then unless it is renewed.
    Believes {
        fence: FencingToken,
        until: Instant,
    },
    /// It leads no more. Whether the store said so, and whether that is true, if it is what it says.
    Ended {
        fence: FencingToken,
        lost: Option<bool>,
    },
    Released {
        fence: FencingToken,
    },
    /// The process is no more.
    Gone,
    /// A request was let in, and has left.
    Admitted {
        fence: FencingToken,
    },
    Left {
        fence: FencingToken,
    },
    /// A resource was written to.
    Wrote {
        fence: FencingToken,
        accepted: bool,
    },
    WorkBegan {
        fence: FencingToken,
    },
    WorkGone {
        fence: FencingToken,
    },
    /// Its dependency is so from now on.
    Says(Health),
    /// Its leader leaves for that.
    Resigns {
        fence: FencingToken,
    },
    /// Its elector gets no time, or neither does all else, until then.
    Stopped {
        until: Instant,
    },
}

#[derive(Debug)]
pub(super) struct History {
    pub(super) config: LeaseConfig,
    /// Whether the store forgot everything now and then: two leaders are then nobody's fault.
    pub(super) has_amnesia: bool,
    /// Whether its tokens began anew then: nobody leads with one that was there before.
    pub(super) begins_anew: bool,
    /// Whether the store wakes those who wait: they may well look at the same time then.
    pub(super) wakes: bool,
    pub(super) start: Instant,
    pub(super) facts: Vec<(Instant, Who, Fact)>,
    pub(super) calls: BTreeMap<Who, Vec<Called>>,
    /// How many led at the end, when nothing had failed for long enough.
    pub(super) leaders_at_last: usize,
    /// Where leaders leave by themselves: what they keep to.
    pub(super) promises: Option<Promises>,
}

/// What a policy promises.
#[derive(Debug)]
pub(super) struct Promises {
    pub(super) policy: ResignSettings,
    pub(super) last_resort: Duration,
    /// Until when it holds.
    pub(super) end: Instant,
    /// Whether some fall ill so often that they count as ill while they are not.
    pub(super) flaps: bool,
}

type Term = history::Term<Instant>;

/// A timer may be late by so much.
const TICK: Duration = Duration::from_millis(3);

impl History {
    pub(super) fn terms(&self) -> usize {
        self.seen().terms().len()
    }

    /// All of it as text.
    pub(super) fn story(&self) -> String {
        self.facts.iter().fold(String::new(), |mut story, (at, who, fact)| {
            let at = at.duration_since(self.start);
            let fact = match fact {
                Fact::Believes { fence, until } => {
                    format!("believes {fence} until {:?}", until.duration_since(self.start))
                }
                Fact::Stopped { .. } => "stopped".to_owned(),
                fact => format!("{fact:?}"),
            };
            let _ = writeln!(story, "{at:?} {who} {fact}");
            story
        })
    }

    /// What an all-seeing witness has of it.
    fn seen(&self) -> history::History<Instant> {
        let mut seen = history::History::default();
        for (at, who, fact) in &self.facts {
            let fact = match *fact {
                Fact::Believes { fence, until } => history::Fact::Believes { fence, until },
                Fact::Ended { fence, .. } => history::Fact::Ended { fence },
                Fact::Gone => history::Fact::Gone,
                Fact::Admitted { fence } => history::Fact::Admitted { fence },
                Fact::Wrote { fence, accepted } => history::Fact::Wrote { fence, accepted },
                _ => continue,
            };
            seen.add(*at, *who, fact);
        }
        seen
    }

    /// What is wrong with it.
    pub(super) fn check(&self) -> Vec<String> {
        let seen = self.seen();
        let terms = seen.terms();
        let laws = Law::ALL.into_iter().filter_map(|law| match law {
            Law::OneLeader if self.has_amnesia => None,
            Law::TokensGrow if self.has_amnesia => Some(Law::TokensGrowForEach),
            law => Some(law),
        });
        let mut wrong: Vec<_> = laws.flat_map(|law| seen.breaches(law)).collect();
        wrong.extend(self.work(&terms));
        wrong.extend(self.losses());
        wrong.extend(self.ends(&terms));
        wrong.extend(self.releases());
        wrong.extend(self.pace());
        wrong.extend(self.jitter());
        if let Some(promises) = &self.promises {
            wrong.extend(self.resignations(promises, &terms));
            wrong.extend(self.candidacies(promises, &terms));
            wrong.extend(self.vacancies(promises));
        }
        if self.leaders_at_last != 1 && !(self.begins_anew && self.leaders_at_last == 0) {
            wrong.push(format!("P7: {} lead although all is well", self.leaders_at_last));
        }
        wrong
    }

    /// The work of a term is gone soon after it, and before the next one's begins.
    fn work(&self, terms: &[Term]) -> Vec<String> {
        let mut working = BTreeMap::<Who, FencingToken>::new();
        let mut wrong = Vec::new();
        for (at, who, fact) in &self.facts {
            match fact {
                Fact::WorkBegan { fence } => {
                    if let Some(other) = working.insert(*who, *fence) {
                        wrong.push(format!("P5: {who} works for {fence} and {other}"));
                    }
                }
                Fact::WorkGone { fence } => {
                    working.remove(who);
                    let of = |term: &&Term| term.who == *who && term.fence == *fence;
                    let ended = terms.iter().find(of).and_then(|term| term.ended);
                    // A process that stands still as a whole drops nothing.
                    if let Some(ended) = ended
                        && ended + TICK < *at
                        && !self.stands_still(*who, ended, *at)
                    {
                        let late = *at - ended;
                        wrong.push(format!("work: {who} works for {fence} for {late:?} too long"));
                    }
                }
                _ => {}
            }
        }
        wrong
    }

    fn stands_still(&self, who: Who, from: Instant, to: Instant) -> bool {
        self.facts.iter().any(|(at, of, fact)| {
            matches!(fact, Fact::Stopped { until } if *of == who && *at <= to && from <= *until + TICK)
        })
    }

    /// Nothing is lost but what the store says is.
    fn losses(&self) -> Vec<String> {
        let false_alarm = |(_, who, fact): &(_, Who, Fact)| match fact {
            Fact::Ended { fence, lost: Some(false) } => {
                Some(format!("lost: {who} gave up {fence}, which it had"))
            }
            _ => None,
        };
        self.facts.iter().filter_map(false_alarm).collect()
    }

    /// A term is told to have ended by the time that it is not valid any more.
    fn ends(&self, terms: &[Term]) -> Vec<String> {
        let late = |term: &Term| {
            let until = term.until;
            let ended = term.ended?;
            // Clocks that run wrong make timers late by so much more.
            let late = ended.checked_duration_since(until)?;
            let borne = self.config.retry_period.mul_f64(0.3) + 2 * TICK;
            (borne < late && !self.stands_still(term.who, until, ended)).then(|| {
                format!("ended in time: {} did not with {}, by {late:?}", term.who, term.fence)
            })
        };
        terms.iter().filter_map(late).collect()
    }

    /// What is given back is not used, and P6: until the cool-down is over nothing is asked that could take or
    /// change the lease.
    fn releases(&self) -> Vec<String> {
        let mut inside = BTreeMap::<(Who, FencingToken), i64>::new();
        let mut wrong = Vec::new();
        for (at, who, fact) in &self.facts {
            match fact {
                Fact::Admitted { fence } => *inside.entry((*who, *fence)).or_default() += 1,
                Fact::Left { fence } => *inside.entry((*who, *fence)).or_default() -= 1,
                Fact::Released { fence } => {
                    let left = inside.get(&(*who, *fence)).copied().unwrap_or_default();
                    if left > 0 {
                        wrong.push(format!("drained: {who} gave {fence} back with {left} inside"));
                    }
                    let calls = self.calls.get(who).map(Vec::as_slice).unwrap_or_default();
                    let mut after = calls[calls.partition_point(|call| call.at <= *at)..].iter();
                    let next = after.find(|call| call.operation != Operation::Inspect);
                    let cool =
                        self.config.retry_period.mul_f64(1.0 - world_skew(&self.config)) - TICK;
                    if let Some(next) = next
                        && next.at < *at + cool
                    {
                        let after = next.at - *at;
                        let what = next.operation;
                        wrong.push(format!("P6: {who} asks to {what:?} {after:?} after a release"));
                    }
                    if next.is_some_and(|next| next.operation == Operation::Renew) {
                        wrong.push(format!("P6: {who} renews what it gave back"));
                    }
                }
                _ => {}
            }
        }
        wrong
    }

    /// P9: one call in 0.8 of a retry period, whatever fails. A release need not wait.
    fn pace(&self) -> Vec<String> {
        let least = self.config.retry_period.mul_f64(0.8 * (1.0 - world_skew(&self.config))) - TICK;
        let mut wrong = Vec::new();
        for (who, calls) in &self.calls {
            for pair in calls.windows(2) {
                let gap = pair[1].at - pair[0].at;
                if gap < least && pair[1].operation != Operation::Release {
                    let what = (pair[0].operation, pair[1].operation);
                    wrong.push(format!("P9: {who} asks twice in {gap:?}: {what:?}"));
                }
            }
        }
        wrong
    }

    /// Those who wait do not look in step: of the gaps that are little more than a retry period, most would
    /// be alike.
    fn jitter(&self) -> Vec<String> {
        let retry = self.config.retry_period;
        let mut wrong = Vec::new();
        for (who, calls) in self.calls.iter().filter(|_| !self.wakes) {
            let looks = calls
                .windows(2)
                .filter(|pair| pair.iter().all(|call| call.operation == Operation::Acquire));
            let gaps = looks.map(|pair| pair[1].at - pair[0].at);
            let mut gaps: Vec<_> = gaps.filter(|gap| *gap < retry.mul_f64(1.3)).collect();
            gaps.sort();
            let alike = |from: &Duration| {
                gaps.iter().filter(|gap| (*from..*from + retry.mul_f64(0.07)).contains(gap)).count()
            };
            let most = gaps.iter().map(alike).max().unwrap_or_default();
            if gaps.len() > 80 && gaps.len() * 3 < most * 4 {
                wrong.push(format!("jitter: {who} looks {most} of {} times in step", gaps.len()));
            }
        }
        wrong
    }
}

/// P8: leaders leave and come by the rules, so that they are no more changed than is of use.
impl History {
    /// When leaders left for their signals, which, and by which token.
    pub(super) fn resigned(&self) -> Vec<(Instant, Who, FencingToken)> {
        let resigns = self.facts.iter().filter_map(|(at, who, fact)| match fact {
            Fact::Resigns { fence } => Some((*at, *who, *fence)),
            _ => None,
        });
        resigns.collect()
    }

    /// Who led from when to when, in order.
    pub(super) fn reigns(&self, end: Instant) -> Vec<(Who, Instant, Instant)> {
        let terms = self.seen().terms().into_iter();
        terms.map(|term| (term.who, term.start, term.ended.unwrap_or(end))).collect()
    }

    /// For how long nobody led, each time.
    pub(super) fn vacant(&self, from: Instant, end: Instant) -> Vec<Duration> {
        let mut led_until = from;
        let mut vacant = Vec::new();
        for (_, start, ended) in self.reigns(end) {
            let (start, ended) = (start.clamp(from, end), ended.clamp(from, end));
            vacant.push(start.saturating_duration_since(led_until));
            led_until = led_until.max(ended);
        }
        vacant.push(end.saturating_duration_since(led_until));
        vacant
    }

    /// What a process's dependency was, up to then.
    fn says(&self, of: Who, until: Instant) -> Vec<(Instant, Health)> {
        let says = self.facts.iter().filter_map(|(at, who, fact)| match fact {
            Fact::Says(health) if *who == of && *at <= until => Some((*at, *health)),
            _ => None,
        });
        says.collect()
    }

    /// A leader leaves when it has been ill for so long, its term is so old, and it has not left too often;
    /// and not where two others have just left. Then it stays away for a while.
    fn resignations(&self, promises: &Promises, terms: &[Term]) -> Vec<String> {
        let resigned = self.resigned();
        let policy = &promises.policy;
        let mut wrong = Vec::new();
        for (n, (at, who, fence)) in resigned.iter().enumerate() {
            let mut is_wrong = |what: &str| {
                let at = at.duration_since(self.start);
                wrong.push(format!("P8: {who} leaves {fence} at {at:?} {what}"));
            };
            let says = self.says(*who, *at);
            let now = says.last().map(|(_, health)| *health);
            if now == Some(Health::Unknown) {
                is_wrong("and nobody knows why");
            }
            let hold = policy.resign_after.unwrap_or(Duration::from_secs(2));
            if !promises.flaps && ill_for(&says, *at) + TICK < hold {
                is_wrong("too soon");
            }
            let of = terms.iter().position(|term| term.who == *who && term.fence == *fence);
            let Some(of) = of else { continue };
            if terms[of].start + policy.min_term > *at + TICK {
                is_wrong("too young");
            }
            let again = terms[of + 1..].iter().find(|term| term.who == *who);
            let away = self.config.cooldown.mul_f64(0.8);
            if again.is_some_and(|again| again.start + TICK < *at + away) {
                is_wrong("and comes back at once");
            }
            let lately = resigned[..n]
                .iter()
                .filter(|(then, by, _)| by == who && *at < *then + policy.budget_window);
            if lately.count() >= policy.budget as usize {
                is_wrong("too often");
            }
            let mut others = Vec::new();
            let is_correlated = terms[..of].iter().rev().take(7).find_map(|term| {
                if others.contains(&term.who) {
                    return None;
                }
                let for_it =
                    resigned.iter().any(|(_, by, of)| (*by, *of) == (term.who, term.fence));
                let ended = term.ended.expect("another one led since");
                let lately = *at + TICK < ended + policy.correlation_window;
                others.push(term.who);
                let is_it = for_it && lately;
                (!is_it || others.len() == 2).then_some(is_it)
            });
            if is_correlated == Some(true) {
                is_wrong("although two others have just left");
            }
        }
        wrong
    }

    /// Whoever begins to lead has been well for so long, or nobody else has led for long.
    fn candidacies(&self, promises: &Promises, terms: &[Term]) -> Vec<String> {
        let policy = &promises.policy;
        let mut wrong = Vec::new();
        let mut led_until = self.start;
        for term in terms {
            let says = self.says(term.who, term.start);
            let ends = says.iter().skip(1).map(|(at, _)| *at).chain([term.start]);
            // It is looked at now and then: what lies between two looks is not noticed.
            let look = policy.check_every + TICK;
            let mut well_since = None;
            let was_well = says.iter().zip(ends).any(|((at, health), end)| {
                if *health != Health::Healthy {
                    well_since = well_since.filter(|_| end - *at < look);
                    return false;
                }
                let since = *well_since.get_or_insert(*at);
                since + policy.eligible_after <= end + TICK && term.start <= end + look
            });
            if !was_well && term.start + TICK < led_until + promises.last_resort {
                let (who, at) = (term.who, term.start.duration_since(self.start));
                wrong.push(format!("P8: {who} leads at {at:?} and is not well"));
            }
            led_until = term.ended.unwrap_or(promises.end).max(led_until);
        }
        wrong
    }

    /// There is always somebody soon.
    fn vacancies(&self, promises: &Promises) -> Vec<String> {
        let LeaseConfig { cooldown, retry_period: retry, .. } = self.config;
        let most = promises.last_resort + cooldown.mul_f64(1.2) + retry.mul_f64(2.4);
        let vacant = self.vacant(self.start, promises.end).into_iter();
        let long = vacant.filter(|time| most + promises.policy.check_every < *time);
        long.map(|time| format!("P8: nobody leads for {time:?}")).collect()
    }
}

/// For how long it has been ill by then, as a policy counts it.
fn ill_for(says: &[(Instant, Health)], now: Instant) -> Duration {
    let well = says.iter().rposition(|(_, health)| *health == Health::Healthy);
    let mut ill = None;
    let ends = says.iter().skip(1).map(|(at, _)| *at).chain([now]);
    for ((at, health), end) in says.iter().zip(ends).skip(well.map_or(0, |n| n + 1)) {
        match (*health, &mut ill) {
            (Health::Unhealthy, None) => ill = Some(end - *at),
            (Health::Unhealthy | Health::Degraded, Some(ill)) => *ill += end - *at,
            _ => {}
        }
    }
    ill.unwrap_or_default()
}

/// By how much clocks may run wrong so that the margin covers it.
pub(super) fn world_skew(config: &LeaseConfig) -> f64 {
    let (lease, margin) = (config.lease_duration.as_secs_f64(), config.margin().as_secs_f64());
    margin / (2.0 * lease - margin)
}
