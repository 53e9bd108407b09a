use std::time::Duration;

use buttress_leadership::{Elector, FencingToken, Leadership, LeaseClock, LeaseConfig, LeaseName};
use buttress_lease_sqlite::{SqliteOptions, SqliteStore};
use tokio::time::timeout;

use crate::folder::{Folder, PATIENT};

/// An elector over that file, as each process has one. It looks often, so that nobody waits for long.
async fn candidate(folder: &Folder, clock: &LeaseClock) -> Elector<SqliteStore> {
    let options = SqliteOptions::new(folder.file("leases.db")).create(true).clock(clock.clone());
    let store = options.open().await.unwrap();
    let config = LeaseConfig::new(LeaseName::new("a").unwrap())
        .retry_period(Duration::from_millis(20))
        .drain(PATIENT, Duration::ZERO);
    Elector::with_clock(store, config, clock.clone()).unwrap()
}

/// Waits until it leads.
async fn leads(leadership: &Leadership) -> FencingToken {
    let mut watch = leadership.watch();
    let leads = watch.wait_for(|standing| standing.term.is_some());
    let standing = timeout(PATIENT, leads).await.expect("it leads at last").unwrap();
    standing.term.unwrap()
}

/// Waits until it has seen the other one lead.
async fn sees(leadership: &Leadership, leader: &Leadership) {
    let mut watch = leadership.watch();
    let sees = watch.wait_for(|standing| {
        standing.leader.as_ref().is_some_and(|seen| seen.identity == *leader.identity())
    });
    timeout(PATIENT, sees).await.expect("it looks at last").unwrap();
}

#[tokio::test]
async fn whoever_resigns_is_followed_by_another_as_soon_as_its_work_has_ended() {
    let (folder, clock) = (Folder::new(), LeaseClock::simulated());
    let one = candidate(&folder, &clock).await.lead(|term| async move {
        term.cancelled().await;
        assert!(term.check(Duration::ZERO).is_ok(), "the lease is held for it");
    });
    let first = one.leadership();
    let one = one.spawn();
    let fence = leads(&first).await;
    let other = candidate(&folder, &clock).await.spawn();
    sees(other.leadership(), &first).await;
    assert!(first.is_leader() && !other.leadership().is_leader());

    first.resign();
    assert!(leads(other.leadership()).await > fence);
    assert!(!first.is_leader() && other.leadership().is_leader());
    assert_eq!(first.metrics().store.release.calls, 1);
    one.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn whoever_is_dropped_is_followed_by_another_once_its_lease_is_over() {
    let (folder, clock) = (Folder::new(), LeaseClock::simulated());
    let one = candidate(&folder, &clock).await.spawn();
    let first = one.leadership().clone();
    let fence = leads(&first).await;
    let other = candidate(&folder, &clock).await.spawn();
    sees(other.leadership(), &first).await;
    drop(one);
    assert!(!first.is_leader() && !other.leadership().is_leader());

    // For the file, the whole lease has gone by.
    clock.suspend(LeaseConfig::DEFAULT_LEASE_DURATION);
    assert!(leads(other.leadership()).await > fence);
    assert_eq!(first.metrics().store.release.calls, 0, "nobody gave it back");
    other.stop().await;
}

#[tokio::test]
async fn an_elector_on_a_thread_of_its_own_hands_over_to_one_beside_it() {
    let (folder, clock) = (Folder::new(), LeaseClock::system());
    let one = candidate(&folder, &clock).await.spawn_isolated().unwrap();
    let first = one.leadership().clone();
    let fence = leads(&first).await;
    let other = candidate(&folder, &clock).await.spawn_isolated().unwrap();
    sees(other.leadership(), &first).await;
    one.stop().await;
    assert!(leads(other.leadership()).await > fence);
    other.stop().await;
}
