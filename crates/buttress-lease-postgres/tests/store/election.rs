//! Electors over the store.

use std::time::Duration;

use buttress_leadership::{Elector, LeaseConfig};
use buttress_lease_postgres::tokio_postgres::{self, NoTls, error::SqlState};
use buttress_servers::{standing_still_until, until};

use crate::server::{Database, lease, shared};

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

// controller-runtime#3092, karpenter#2100: renewals that wait for what the work waits for.
#[tokio::test]
async fn a_term_goes_on_while_the_application_has_every_connection_and_waits_on_each() {
    let database = Database::on(shared().await, "CONNECTION LIMIT 8").await;
    let elector = Elector::new(database.store().await, config()).unwrap();
    let leadership = elector.leadership();
    let running = elector.spawn();
    until("it leads", async || leadership.is_leader()).await;
    // Who is no superuser is held to the limit.
    let role = format!("app_{}", database.name);
    let create = format!("CREATE ROLE {role} LOGIN PASSWORD 'word'");
    database.hand().await.batch_execute(&create).await.unwrap();
    let url = database.url(&format!("{role}:word"), shared().await.addr());
    let mut pool = Vec::new();
    let full = loop {
        match tokio_postgres::connect(&url, NoTls).await {
            Ok((client, connection)) => {
                tokio::spawn(connection);
                let waits = async move { client.batch_execute("SELECT pg_sleep(600)").await };
                pool.push(tokio::spawn(waits));
            }
            Err(error) => break error,
        }
    };
    assert_eq!(full.code(), Some(&SqlState::TOO_MANY_CONNECTIONS), "{full}");
    let before = leadership.metrics();
    let renewed = async || leadership.metrics().renewals_accepted >= before.renewals_accepted + 5;
    until("it is renewed", renewed).await;
    assert!(pool.iter().all(|waits| !waits.is_finished()), "all of it waits");
    assert_eq!(leadership.metrics().renewals_failed, before.renewals_failed);
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
    standing_still_until("it renews twice", || {
        leadership.metrics().renewals_accepted >= before.renewals_accepted + 2
    });
    // One that was made here would have to be given up first.
    assert_eq!(leadership.metrics().renewals_failed, before.renewals_failed);
    running.stop().await;
}
