//! Electors over the store.

use std::time::Duration;

use buttress_leadership::{Elector, LeaseConfig};
use buttress_servers::until;

use crate::server::{Database, lease};

/// Leases that are long for any machine, and renewed often.
fn config() -> LeaseConfig {
    LeaseConfig::new(lease().clone())
        .lease_duration(Duration::from_secs(30))
        .renew_interval(Duration::from_millis(200))
        .retry_period(Duration::from_millis(100))
}

#[tokio::test]
async fn a_term_goes_on_while_its_connections_are_killed() {
    let database = Database::new().await;
    let elector = Elector::new(database.store().await, config()).unwrap();
    let leadership = elector.leadership();
    let running = elector.spawn();
    until("it leads", async || leadership.is_leader()).await;
    let fence = leadership.fence();
    let hand = database.hand().await;
    for _ in 0..5 {
        let before = leadership.metrics().renewals_accepted;
        hand.batch_execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE datname = current_database() AND application_name = 'buttress-lease'",
        )
        .await
        .unwrap();
        until("it renews again", async || leadership.metrics().renewals_accepted >= before + 2)
            .await;
    }
    assert_eq!((leadership.fence(), leadership.metrics().terms_started), (fence, 1));
    running.stop().await;
}

#[tokio::test]
async fn a_leader_that_stops_is_followed_by_the_next_one() {
    let database = Database::new().await;
    let first = Elector::new(database.store().await, config()).unwrap();
    let leadership = first.leadership();
    let first = first.spawn();
    until("the first leads", async || leadership.is_leader()).await;
    let token = leadership.fence().unwrap();
    let second = Elector::new(database.store().await, config()).unwrap();
    let leadership = second.leadership();
    let second = second.spawn();
    until("the second knows", async || leadership.leader().is_some()).await;
    first.stop().await;
    until("the second leads", async || leadership.is_leader()).await;
    assert!(leadership.fence().unwrap() > token);
    second.stop().await;
}

/// Its connection is made on its thread, with the first call.
#[tokio::test]
async fn an_elector_on_a_thread_of_its_own_renews_while_this_one_stands_still() {
    let database = Database::new().await;
    let store = database.options().create_table(true).open_later();
    let elector = Elector::new(store, config()).unwrap();
    let leadership = elector.leadership();
    let running = elector.spawn_isolated().unwrap();
    until("it leads", async || leadership.is_leader()).await;
    let before = leadership.metrics();
    let is_renewed = (0..3000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        leadership.metrics().renewals_accepted >= before.renewals_accepted + 2
    });
    // One that was made here would have to be given up first.
    assert!(is_renewed && leadership.metrics().renewals_failed == before.renewals_failed);
    running.stop().await;
}
