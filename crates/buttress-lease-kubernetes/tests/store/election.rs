//! Electors over the store.

use std::time::Duration;

use buttress_leadership::{Elector, LeaseConfig};
use buttress_servers::{FakeKubernetes, Proxy, Way, standing_still_until, until};
use serde_json::Value;

use crate::server::{lease, open, options};

/// Leases that are long for any machine, and renewed often.
fn config() -> LeaseConfig {
    LeaseConfig::new(lease().clone())
        .lease_duration(Duration::from_secs(30))
        .renew_interval(Duration::from_millis(200))
        .retry_period(Duration::from_millis(100))
}

#[tokio::test]
async fn a_term_goes_on_while_its_connections_are_cut() {
    let server = FakeKubernetes::new().await;
    let proxy = Proxy::to(server.addr()).await;
    let elector = Elector::new(options(proxy.addr()).open_later(), config()).unwrap();
    let leadership = elector.leadership();
    let running = elector.spawn();
    until("it leads", async || leadership.is_leader()).await;
    let fence = leadership.fence();
    for _ in 0..5 {
        let before = leadership.metrics().renewals_accepted;
        proxy.cut();
        until("it renews again", async || leadership.metrics().renewals_accepted >= before + 2)
            .await;
    }
    assert_eq!((leadership.fence(), leadership.metrics().terms_started), (fence, 1));
    running.stop().await;
}

#[tokio::test]
async fn a_term_goes_on_while_others_edit_the_object_and_the_server_starts_anew() {
    let mut server = FakeKubernetes::new().await;
    let elector = Elector::new(open(&server).await, config()).unwrap();
    let leadership = elector.leadership();
    let running = elector.spawn();
    until("it leads", async || leadership.is_leader()).await;
    let fence = leadership.fence();
    for nth in 0..5 {
        let before = leadership.metrics().renewals_accepted;
        server.edit("a", |lease| lease["metadata"]["labels"]["edited"] = nth.to_string().into());
        if nth % 2 == 0 {
            server.kill();
            server.start().await;
        }
        until("it renews again", async || leadership.metrics().renewals_accepted >= before + 2)
            .await;
    }
    assert_eq!((leadership.fence(), leadership.metrics().terms_started), (fence, 1));
    running.stop().await;
}

/// By itself the candidate would look later than the test waits.
#[tokio::test]
async fn a_leader_that_stops_is_followed_by_a_candidate_that_is_woken() {
    let config = || {
        LeaseConfig::new(lease().clone())
            .lease_duration(Duration::from_secs(600))
            .renew_interval(Duration::from_secs(120))
            .retry_period(Duration::from_millis(100))
    };
    let server = FakeKubernetes::new().await;
    let first = Elector::new(open(&server).await, config()).unwrap();
    let leadership = first.leadership();
    let first = first.spawn();
    until("the first leads", async || leadership.is_leader()).await;
    let token = leadership.fence().unwrap();
    let second = Elector::new(open(&server).await, config()).unwrap();
    let leadership = second.leadership();
    let second = second.spawn();
    until("the second knows", async || leadership.leader().is_some()).await;
    until("it watches", async || server.watchers() == 1).await;
    first.stop().await;
    until("the second leads", async || leadership.is_leader()).await;
    assert!(leadership.fence().unwrap() > token);
    second.stop().await;
}

#[tokio::test]
async fn a_lease_that_is_deleted_by_hand_is_lost_within_two_renewals_and_led_again() {
    let server = FakeKubernetes::new().await;
    let elector = Elector::new(open(&server).await, config()).unwrap();
    let leadership = elector.leadership();
    let running = elector.spawn();
    until("it leads", async || leadership.is_leader()).await;
    let token = leadership.fence().unwrap();
    let _ = server.asked();
    server.delete("a");
    until("it leads again", async || leadership.fence().is_some_and(|fence| fence > token)).await;
    assert_eq!(leadership.metrics().terms_started, 2);
    let asked = server.asked();
    let renewals = asked.iter().take_while(|asked| asked.method != "POST");
    let renewals = renewals.filter(|asked| asked.method == "PUT").count();
    assert!(renewals <= 2, "{asked:?}");
    running.stop().await;
}

/// Its gate is shut before somebody else's is open, and it is told nothing.
#[tokio::test]
async fn who_is_cut_off_leads_no_more_when_the_next_one_does() {
    let config = || LeaseConfig::new(lease().clone()).scaled_to(Duration::from_secs(5));
    let server = FakeKubernetes::new().await;
    let proxy = Proxy::to(server.addr()).await;
    let first = Elector::new(options(proxy.addr()).open_later(), config()).unwrap();
    let cut_off = first.leadership();
    let first = first.spawn();
    until("the first leads", async || cut_off.is_leader()).await;
    let token = cut_off.fence().unwrap();
    let second = Elector::new(open(&server).await, config()).unwrap();
    let leadership = second.leadership();
    let second = second.spawn();
    until("the second knows", async || leadership.leader().is_some()).await;
    proxy.set_both(Way::Blackhole);
    until("the second leads", async || {
        let leads = leadership.is_leader();
        assert!(!leads || !cut_off.is_leader(), "two lead");
        leads
    })
    .await;
    assert!(leadership.fence().unwrap() > token);
    proxy.strand();
    proxy.set_both(Way::Open);
    until("the first follows", async || cut_off.leader().is_some()).await;
    assert!(!cut_off.is_leader());
    first.stop().await;
    second.stop().await;
}

#[tokio::test]
async fn what_cannot_be_read_lets_nobody_lead_until_it_is_mended() {
    let server = FakeKubernetes::new().await;
    let elector = Elector::new(open(&server).await, config()).unwrap();
    let first = elector.spawn();
    until("there is an object", async || server.lease("a").is_some()).await;
    first.stop().await;
    server.edit("a", |lease| {
        lease["metadata"]["annotations"]["buttress/term"] = "seven".into();
    });
    let elector = Elector::new(open(&server).await, config()).unwrap();
    let leadership = elector.leadership();
    let running = elector.spawn();
    let _ = server.asked();
    until("it has looked", async || server.asked().iter().any(|asked| asked.method == "GET")).await;
    until("it has looked again", async || server.asked().iter().any(|asked| asked.method == "GET"))
        .await;
    assert!(!leadership.is_leader() && leadership.metrics().terms_started == 0);
    server.edit("a", |lease| lease["metadata"]["annotations"] = Value::Null);
    until("it leads", async || leadership.is_leader()).await;
    running.stop().await;
}

/// Its client is made on its thread, with the first call.
#[tokio::test]
async fn an_elector_on_a_thread_of_its_own_renews_while_this_one_stands_still() {
    let server = FakeKubernetes::new().await;
    let elector = Elector::new(options(server.addr()).open_later(), config()).unwrap();
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
