//! Elections over a store that fails, with clocks that run wrong, in processes that are stopped, killed and
//! started anew: by chance, and each time alike for a seed. What happened is written down, and
//! [checked](history) when it is over.
//!
//! The check is no decoration: every fault that can be [planted](crate::planted) is found by it.

mod history;
mod world;

use std::env;

use self::world::{Plan, episode};
use crate::planted::{Plant, plant};

/// Runs until there were so many terms, from that seed on, and says how many there were and what was wrong.
fn run(seed: u64, terms: usize, plan: Plan) -> (usize, Vec<String>) {
    let (mut seed, mut count, mut wrong) = (seed, 0, Vec::new());
    while count < terms && wrong.is_empty() {
        let history = episode(seed, plan);
        count += history.terms();
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

// kubernetes/kubernetes#67651, noobaa/noobaa-core#9765, apache/curator#964, patroni/patroni#3194,
// kubernetes/client-go#1187
#[test]
fn whatever_fails_there_are_no_two_leaders() {
    let terms = set("BUTTRESS_TERMS", 10_000);
    let (count, wrong) = run(set("BUTTRESS_SEED", 1) as u64, terms, Plan::Weather);
    println!("{count} terms");
    assert_eq!(wrong, [""; 0]);
}

// kubernetes/kubernetes#67651
#[test]
fn of_two_hundred_that_want_to_lead_one_does() {
    let (terms, wrong) = run(1, set("BUTTRESS_TERMS", 10_000) / 500, Plan::Crowd);
    println!("{terms} terms");
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn a_store_that_forgets_everything_is_seen_through_by_each_process() {
    let (_, wrong) = run(1, set("BUTTRESS_TERMS", 10_000) / 10, Plan::Amnesia);
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn a_seed_tells_the_same_story_each_time() {
    let one = episode(7, Plan::Weather);
    let other = episode(7, Plan::Weather);
    assert!(one.terms() > 10);
    assert_eq!(one.story(), other.story());
    assert_ne!(one.story(), episode(8, Plan::Weather).story());
}

#[test]
fn every_planted_fault_is_found() {
    let faults = [
        (Plant::AnchorAtAnswer, Plan::Weather, "P1"),
        (Plant::NoMargin, Plan::Weather, "P1"),
        (Plant::CachedFlag, Plan::Weather, "P4"),
        (Plant::ReleaseBeforeDrain, Plan::Weather, "drained"),
        (Plant::AnyFence, Plan::Amnesia, "P2"),
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
        let (terms, wrong) = run(1, 2_000, plan);
        plant(None);
        let by = wrong.iter().any(|what| what.contains(property));
        let first = wrong.first().map_or("nothing is wrong", String::as_str);
        println!("{fault:?}, after {terms} terms: {first}");
        assert!(by, "{fault:?} is to be found by the property that it breaks, {property}: {first}");
    }
}
