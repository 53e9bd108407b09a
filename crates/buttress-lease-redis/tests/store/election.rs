//! Electors over the store.

use std::time::Duration;

use buttress_leadership::{Elector, LeaseConfig};
use buttress_servers::{Server, standing_still_until, until};

use crate::server::{Hand, lease, open, options};

/// Leases that are long for any machine, and renewed often.
fn config() -> LeaseConfig {
    LeaseConfig::new(lease().clone())
        .lease_duration(Duration::from_secs(30))
        .renew_interval(Duration::from_millis(200))
        .retry_period(Duration::from_millis(100))
}

#[tokio::test]
async fn a_term_goes_on_while_its_connections_are_killed() {
    let server = Server::redis().await;
    let elector = Elector::new(open(&server).await, config()).unwrap();
    let leadership = elector.leadership();
    let running = elector.spawn();
    until("it leads", async || leadership.is_leader()).await;
    let fence = leadership.fence();
    let hand = Hand::at(&server).await;
    for _ in 0..5 {
        let before = leadership.metrics().renewals_accepted;
        hand.tell("CLIENT KILL TYPE normal SKIPME yes").await;
        until("it renews again", async || leadership.metrics().renewals_accepted >= before + 2)
            .await;
    }
    assert_eq!((leadership.fence(), leadership.metrics().terms_started), (fence, 1));
    running.stop().await;
}

#[tokio::test]
async fn a_leader_that_stops_is_followed_at_once() {
    let server = Server::redis().await;
    let first = Elector::new(open(&server).await, config()).unwrap();
    let leadership = first.leadership();
    let first = first.spawn();
    until("the first leads", async || leadership.is_leader()).await;
    let token = leadership.fence().unwrap();
    let second = Elector::new(open(&server).await, config()).unwrap();
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
    let server = Server::redis().await;
    let store = options(server.addr()).open_later();
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
