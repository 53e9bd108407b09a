//! Elections over a store that fails, with clocks that run wrong, in processes that are stopped, killed and
//! started anew: by chance, and each time alike for a seed. What happened is written down, and
//! [checked](history) when it is over.
//!
//! The check is no decoration: every fault that can be [planted](crate::planted) is found by it.

mod history;
mod illness;
mod world;

use std::{env, time::Duration};

use self::{
    history::History,
    illness::{Illness, illness},
    world::{Plan, episode},
};
use crate::planted::{Plant, plant};

/// Runs until there were so many terms, from that seed on, and says how many there were and what was wrong.
fn run(seed: u64, terms: usize, plan: Plan, tell: impl Fn(usize)) -> (usize, Vec<String>) {
    let (mut seed, mut count, mut wrong) = (seed, 0, Vec::new());
    while count < terms && wrong.is_empty() {
        let history = episode(seed, plan);
        count += history.terms();
        tell(count);
        wrong = history.check();
        wrong.iter_mut().for_each(|what| *what = format!("seed {seed}: {what}"));
        seed += 1;
    }
    (count, wrong)
}

/// Set to a number of terms for more than the short form, and to where its seeds begin.
fn set(variable: &str, default: usize) -> usize {
    env::var(variable).ok().map_or(default, |text| text.parse().expect("it is a number"))
}

/// Nothing is wrong in so many terms. Each tenth is told, in words that `cargo xtask simulate` reads.
fn all_is_well(terms: usize, plan: Plan) {
    let told = std::cell::Cell::new(0);
    let tell = |count: usize| {
        if told.replace(count * 10 / terms) < count * 10 / terms {
            println!("{plan:?}: {count} of {terms} terms");
        }
    };
    let (_, wrong) = run(set("BUTTRESS_SEED", 1) as u64, terms, plan, tell);
    assert_eq!(wrong, [""; 0]);
}

// kubernetes/kubernetes#67651, noobaa/noobaa-core#9765, apache/curator#964, patroni/patroni#3194,
// kubernetes/client-go#1187
#[test]
fn whatever_fails_there_are_no_two_leaders() {
    all_is_well(set("BUTTRESS_TERMS", 10_000), Plan::Weather);
}

// kubernetes/kubernetes#67651
#[test]
fn of_two_hundred_that_want_to_lead_one_does() {
    all_is_well((set("BUTTRESS_TERMS", 10_000) / 500).max(1), Plan::Crowd);
}

#[test]
fn a_store_that_forgets_everything_is_seen_through_by_each_process() {
    all_is_well((set("BUTTRESS_TERMS", 10_000) / 10).max(1), Plan::Amnesia);
}

#[test]
fn nobody_leads_with_a_token_that_was_there_before() {
    all_is_well((set("BUTTRESS_TERMS", 10_000) / 10).max(1), Plan::Rollback);
}

#[test]
fn a_seed_tells_the_same_story_each_time() {
    let one = episode(7, Plan::Weather);
    let other = episode(7, Plan::Weather);
    assert!(one.terms() > 10);
    assert_eq!(one.story(), other.story());
    assert_ne!(one.story(), episode(8, Plan::Weather).story());
}

/// Some stories of that length, each of which keeps to the rules and is then looked at.
fn stories(what: Illness, secs: u64, mut look: impl FnMut(&History)) {
    let first = set("BUTTRESS_SEED", 1) as u64;
    for seed in first..first + set("BUTTRESS_STORIES", 8) as u64 {
        let history = illness(seed, what, Duration::from_secs(secs));
        assert_eq!(history.check(), [""; 0], "seed {seed}");
        look(&history);
    }
}

#[test]
fn what_all_have_costs_two_changes_at_most() {
    stories(Illness::Shared, 600, |history| {
        let (from, to) = (history.start + secs(60), history.start + secs(600));
        let reigns = history.reigns(to);
        let changes = reigns.iter().filter(|(_, start, _)| from <= *start).count();
        let vacant: Duration = history.vacant(from, to).iter().sum();
        println!("{changes} changes, {vacant:?} without a leader, of 120 s");
        assert!(changes <= 2, "{reigns:?}");
        assert!(history.resigned().len() <= 2);
    });
}

#[test]
fn whoever_is_ill_alone_does_not_lead_again() {
    stories(Illness::One, 1200, |history| {
        let resigned = history.resigned();
        let [(at, ill, _)] = resigned[..] else { panic!("{resigned:?}") };
        let reigns = history.reigns(history.start + secs(1200));
        assert!(reigns.iter().all(|(who, start, _)| *who != ill || *start < at), "{reigns:?}");
    });
}

#[test]
fn whoever_is_ill_half_of_the_time_leaves_and_does_not_lead_again() {
    stories(Illness::Flapping, 1200, |history| {
        let resigned = history.resigned();
        let [(at, ill, _)] = resigned[..] else { panic!("{resigned:?}") };
        assert!(at <= history.start + secs(60 + 60 + 5));
        let reigns = history.reigns(history.start + secs(1200));
        assert!(reigns.iter().all(|(who, start, _)| *who != ill || *start < at), "{reigns:?}");
    });
}

#[test]
fn where_all_are_ill_one_of_them_leads_all_the_same() {
    stories(Illness::All, 600, |history| {
        let reigns = history.reigns(history.start + secs(600));
        let [(_, start, _)] = reigns[..] else { panic!("{reigns:?}") };
        let first = start - history.start;
        assert!(first <= Duration::from_millis(31_300), "two leases, and a look: {first:?}");
    });
}

#[test]
fn work_that_makes_ill_is_handed_on_twice() {
    stories(Illness::Work, 1800, |history| {
        assert_eq!(history.resigned().len(), 2, "then it is known to be the work");
    });
}

#[test]
fn whoever_is_alone_leaves_no_more_often_than_is_of_use() {
    stories(Illness::Alone, 1800, |history| {
        let left = history.resigned();
        assert!(3 < left.len(), "else the budget was not needed");
    });
}

#[test]
fn whatever_falls_ill_and_when_leaders_keep_to_the_rules() {
    let mut left = 0;
    stories(Illness::Chance, 3600, |history| left += history.resigned().len());
    assert!(0 < left);
}

/// Somebody led for less than half a second, and only the token told of it.
#[test]
fn whoever_led_between_two_looks_led_all_the_same() {
    assert_eq!(illness(100_019, Illness::Chance, secs(3600)).check(), [""; 0]);
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn every_fault_of_a_policy_is_found() {
    let faults = [
        (Plant::UnknownIsUnhealthy, Illness::Chance, "nobody knows why"),
        (Plant::NoHold, Illness::One, "too soon"),
        (Plant::NoMinTerm, Illness::Work, "too young"),
        (Plant::NoBudget, Illness::Alone, "too often"),
        (Plant::NoCorrelation, Illness::Work, "two others have just left"),
        (Plant::AnyoneStands, Illness::Shared, "is not well"),
        (Plant::NoLastResort, Illness::All, "nobody leads for"),
    ];
    for (fault, what, by) in faults {
        plant(Some(fault));
        let stories = (1..=10).map(|seed| illness(seed, what, secs(1800)));
        let wrong = stories.map(|history| history.check()).find(|wrong| !wrong.is_empty());
        plant(None);
        let wrong = wrong.unwrap_or_default();
        let first = wrong.first().map_or("nothing is wrong", String::as_str);
        println!("{fault:?}: {first}");
        assert!(wrong.iter().any(|what| what.contains(by)), "{fault:?} is to be found: {first}");
    }
}

#[test]
fn every_planted_fault_is_found() {
    let faults = [
        (Plant::AnchorAtAnswer, Plan::Weather, "P1"),
        (Plant::NoMargin, Plan::Weather, "P1"),
        (Plant::CachedFlag, Plan::Weather, "P4"),
        (Plant::ReleaseBeforeDrain, Plan::Weather, "drained"),
        (Plant::AnyFence, Plan::Rollback, "P2"),
        (Plant::NoAnswerIsLoss, Plan::Weather, "lost"),
        (Plant::NoJitter, Plan::Weather, "jitter"),
        (Plant::EndTwice, Plan::Weather, "P5"),
        (Plant::RenewAfterRelease, Plan::Weather, "P6"),
        (Plant::WorkIsNotDropped, Plan::Weather, "work"),
        (Plant::NoPause, Plan::Weather, "P9"),
        (Plant::HangKeepsTerm, Plan::Weather, "ended in time"),
    ];
    for (fault, plan, property) in faults {
        plant(Some(fault));
        let (terms, wrong) = run(1, 2_000, plan, |_| ());
        plant(None);
        let by = wrong.iter().any(|what| what.contains(property));
        let first = wrong.first().map_or("nothing is wrong", String::as_str);
        println!("{fault:?}, after {terms} terms: {first}");
        assert!(by, "{fault:?} is to be found by the property that it breaks, {property}: {first}");
    }
}
