//! How often the store is asked: not seldom, and never in a loop.

use std::time::Duration;

use buttress_leadership::{Fault, FaultyStore, MemoryStore, Operation};
use tokio::time::sleep;

use crate::common::*;

/// The shortest time between two calls.
fn shortest(store: &Store) -> Duration {
    let calls = store.calls();
    calls.windows(2).map(|pair| pair[1].at - pair[0].at).min().unwrap()
}

// kubernetes/kubernetes#65666
#[tokio::test(start_paused = true)]
async fn whatever_goes_wrong_there_is_one_call_in_a_retry_period() {
    let faults = [
        Fault::not_applied(),
        Fault::lost_request(),
        Fault::lost_answer(),
        Fault::fatal(),
        Fault::panic(),
        Fault::black_hole(),
        Fault::black_hole_back(),
    ];
    for fault in faults {
        for fails in [None, Some(Operation::Acquire), Some(Operation::Renew)] {
            let store = FaultyStore::new(MemoryStore::new());
            store.plan(move |operation| match fails {
                Some(fails) if fails != operation => Fault::default(),
                _ => fault,
            });
            let _one = Candidate::stands(&store, config());
            sleep(secs(300)).await;
            let shortest = shortest(&store);
            assert!(millis(800) <= shortest, "{fault:?} of {fails:?}: {shortest:?}");
            let calls = store.calls().len();
            assert!(40 <= calls, "{fault:?} of {fails:?}: {calls}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_wakes_without_end_is_asked_no_more_often() {
    let store = FaultyStore::new(MemoryStore::new());
    takes_over(&store, secs(3_600)).await;
    let _one = Candidate::stands(&store, config());
    for _ in 0..3_000 {
        store.inner().evict(&buttress_leadership::LeaseName::new("b").unwrap());
        sleep(millis(20)).await;
    }
    assert!(millis(800) <= shortest(&store));
    assert!(store.calls().len() > 60, "and no more seldom");
}

// kubernetes-client/csharp#842
#[tokio::test(start_paused = true)]
async fn after_an_hour_a_follower_looks_as_often_as_at_first() {
    let store = store();
    takes_over(&store, secs(10_000)).await;
    let _follower = Candidate::stands(&store, config());
    sleep(secs(3_600)).await;
    let looks = begun(&store, Operation::Acquire);
    let gaps: Vec<_> = looks.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.iter().all(|gap| secs(1) <= *gap && *gap <= millis(1_200) + TICK));
    let spread = gaps.iter().max().unwrap().saturating_sub(*gaps.iter().min().unwrap());
    assert!(millis(150) <= spread, "by chance: {spread:?}");
}

#[tokio::test(start_paused = true)]
async fn renewals_come_a_little_sooner_by_chance_and_never_later() {
    let store = store();
    let leader = Candidate::stands(&store, config());
    leader.leads().await;
    sleep(secs(3_600)).await;
    let renewals = begun(&store, Operation::Renew);
    let gaps: Vec<_> = renewals.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(
        gaps.len() > 700 && gaps.iter().all(|gap| millis(4_500) <= *gap && *gap <= secs(5) + TICK)
    );
    let spread = gaps.iter().max().unwrap().saturating_sub(*gaps.iter().min().unwrap());
    assert!(millis(400) <= spread, "{spread:?}");
}
