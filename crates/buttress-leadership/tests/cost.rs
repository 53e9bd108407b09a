//! What it costs to ask whether this process leads.

use std::time::Duration;

use allocation_counter::measure;
use buttress_leadership::{Elector, LeaseConfig, LeaseName, MemoryStore};

#[tokio::test]
async fn to_ask_and_to_be_let_in_allocates_nothing() {
    let config = LeaseConfig::new(LeaseName::new("a").unwrap());
    let elector = Elector::new(MemoryStore::new(), config).unwrap();
    let leadership = elector.leadership();
    let _running = elector.spawn();
    leadership.watch().wait_for(|standing| standing.term.is_some()).await.unwrap();
    // The first time a thread reads what others may swap, it gets a place to say so.
    assert!(leadership.is_leader());
    let counted = measure(|| {
        for _ in 0..1_000 {
            let permit = leadership.admit(Duration::from_secs(1)).unwrap();
            assert!(leadership.check().is_ok() && permit.check(Duration::ZERO).is_ok());
        }
    });
    assert_eq!(counted.count_total, 0);
}
