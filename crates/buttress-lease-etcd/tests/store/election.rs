//! Electors over the store.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use buttress_leadership::{Elector, ElectorTask, Event, Leadership, LeaseConfig, TermEnd};
use buttress_lease_etcd::EtcdStore;
use buttress_servers::{Proxy, Server, Way, standing_still_until, until};

use crate::server::{hand, lease, leases, open, options};

/// Leases that are long for any machine, and renewed often.
fn config() -> LeaseConfig {
    LeaseConfig::new(lease().clone())
        .lease_duration(Duration::from_secs(30))
        .renew_interval(Duration::from_millis(200))
        .retry_period(Duration::from_millis(100))
}

/// Leases that end while a test waits.
pub(crate) fn short() -> LeaseConfig {
    LeaseConfig::new(lease().clone())
        .lease_duration(Duration::from_secs(4))
        .renew_interval(Duration::from_secs(1))
        .operation_timeout(Duration::from_millis(700))
        .retry_period(Duration::from_millis(200))
        .cooldown(Duration::from_secs(1), Duration::from_secs(1))
}

/// One who stands for election, and how its terms ended.
pub(crate) struct Candidate {
    pub(crate) leadership: Leadership,
    pub(crate) task: ElectorTask,
    told: Arc<Mutex<Vec<Event>>>,
}

impl Candidate {
    pub(crate) fn stands(store: EtcdStore, config: LeaseConfig) -> Self {
        let told = Arc::<Mutex<Vec<Event>>>::default();
        let tell = Arc::clone(&told);
        let elector = Elector::new(store, config).unwrap();
        let elector = elector.observe(move |event| tell.lock().unwrap().push(event.clone()));
        Self { leadership: elector.leadership(), task: elector.spawn(), told }
    }

    pub(crate) async fn leads(&self) {
        until("it leads", async || self.leadership.is_leader()).await;
    }

    pub(crate) fn ends(&self) -> Vec<TermEnd> {
        let told = self.told.lock().unwrap();
        let ends = told.iter().filter_map(|event| match event {
            Event::TermEnded { end, .. } => Some(end.clone()),
            _ => None,
        });
        ends.collect()
    }
}

#[tokio::test]
async fn a_term_goes_on_while_its_connections_are_killed() {
    let server = Server::etcd().await;
    let proxy = Proxy::to(server.addr()).await;
    let one = Candidate::stands(options(proxy.addr()).open().await.unwrap(), config());
    one.leads().await;
    let (leadership, fence) = (&one.leadership, one.leadership.fence());
    for _ in 0..5 {
        let before = leadership.metrics().renewals_accepted;
        proxy.cut();
        until("it renews again", async || leadership.metrics().renewals_accepted >= before + 2)
            .await;
    }
    assert_eq!((leadership.fence(), leadership.metrics().terms_started), (fence, 1));
    one.task.stop().await;
}

#[tokio::test]
async fn a_term_goes_on_over_a_restart_of_the_server() {
    let mut server = Server::etcd().await;
    let one = Candidate::stands(open(&server).await, config());
    one.leads().await;
    let (leadership, fence) = (&one.leadership, one.leadership.fence());
    server.kill();
    server.start().await;
    let before = leadership.metrics().renewals_accepted;
    until("it renews again", async || leadership.metrics().renewals_accepted >= before + 2).await;
    assert_eq!((leadership.fence(), leadership.metrics().terms_started), (fence, 1));
    one.task.stop().await;
}

#[tokio::test]
async fn a_leader_that_stops_is_followed_at_once() {
    let server = Server::etcd().await;
    let first = Candidate::stands(open(&server).await, config());
    first.leads().await;
    let token = first.leadership.fence().unwrap();
    let second = Candidate::stands(open(&server).await, config());
    until("the second knows", async || second.leadership.leader().is_some()).await;
    first.task.stop().await;
    second.leads().await;
    assert!(second.leadership.fence().unwrap() > token);
    second.task.stop().await;
    let left = leases(&hand(&server).await).await;
    assert!(left.is_empty(), "whoever gives it back leaves nothing: {left:?}");
}

#[tokio::test]
async fn a_leader_that_dies_is_followed_once_its_lease_is_over() {
    let server = Server::etcd().await;
    let first = Candidate::stands(open(&server).await, short());
    first.leads().await;
    let token = first.leadership.fence().unwrap();
    let second = Candidate::stands(open(&server).await, short());
    until("the second knows", async || second.leadership.leader().is_some()).await;
    drop(first);
    second.leads().await;
    assert!(second.leadership.fence().unwrap() > token);
    second.task.stop().await;
}

/// Its connection is made on its thread, with the first call.
#[tokio::test]
async fn an_elector_on_a_thread_of_its_own_renews_while_this_one_stands_still() {
    let server = Server::etcd().await;
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

// hashicorp/consul#18271
#[tokio::test]
async fn a_leader_that_is_cut_off_stops_before_the_next_one_begins_and_comes_back_after_it() {
    let server = Server::etcd().await;
    let proxy = Proxy::to(server.addr()).await;
    let cut_off = Candidate::stands(options(proxy.addr()).open().await.unwrap(), short());
    cut_off.leads().await;
    let other = Candidate::stands(open(&server).await, short());
    until("the other knows", async || other.leadership.leader().is_some()).await;
    for way in [Way::Blackhole, Way::Reset] {
        proxy.set_both(way);
        until("the other leads", async || {
            let is_first = cut_off.leadership.is_leader();
            assert!(!(is_first && other.leadership.is_leader()), "two lead");
            other.leadership.is_leader()
        })
        .await;
        assert_eq!(cut_off.ends().last(), Some(&TermEnd::ExpiredLocally));
        proxy.set_both(Way::Open);
        until("it knows who leads", async || {
            let leader = cut_off.leadership.leader();
            leader.is_some_and(|leader| leader.identity == *other.leadership.identity())
        })
        .await;
        other.leadership.resign();
        cut_off.leads().await;
    }
    cut_off.task.stop().await;
    other.task.stop().await;
}

// etcd-io/etcd#12528: also if etcd itself has ended it.
#[tokio::test]
async fn what_is_deleted_or_revoked_by_hand_is_lost_within_two_renewals() {
    let server = Server::etcd().await;
    let hand = hand(&server).await;
    let store = open(&server).await;
    let key = store.key(lease());
    let one = Candidate::stands(store, config());
    for is_key in [true, false] {
        one.leads().await;
        let leadership = &one.leadership;
        let (ended, sent) = (one.ends().len(), leadership.metrics().store.renew.calls);
        if is_key {
            hand.kv_client().delete(key.as_str(), None).await.unwrap();
        } else {
            let of_key = leases(&hand).await.into_iter().find(|(_, keys)| keys.contains(&key));
            hand.lease_client().revoke(of_key.unwrap().0).await.unwrap();
        }
        until("it has lost", async || one.ends().len() > ended).await;
        assert!(matches!(one.ends()[ended], TermEnd::Lost { .. }), "{:?}", one.ends());
        assert!(leadership.metrics().store.renew.calls <= sent + 2);
    }
    one.leads().await;
    one.task.stop().await;
}

// kubernetes/kubernetes#125530
#[tokio::test]
async fn a_candidate_whose_connections_are_dead_finds_out_and_leads_all_the_same() {
    let server = Server::etcd().await;
    let proxy = Proxy::to(server.addr()).await;
    let first = Candidate::stands(open(&server).await, short());
    first.leads().await;
    let second = Candidate::stands(options(proxy.addr()).open().await.unwrap(), short());
    until("the second knows", async || second.leadership.leader().is_some()).await;
    proxy.strand();
    first.task.stop().await;
    second.leads().await;
    assert!(second.leadership.metrics().store.acquire.timeouts <= 1, "the first was dropped");
    second.task.stop().await;
}

/// A wake-up, and no look: those are too rare for it.
#[tokio::test]
async fn candidates_are_woken_by_a_key_that_is_gone() {
    let server = Server::etcd().await;
    let rare = || {
        LeaseConfig::new(lease().clone())
            .lease_duration(Duration::from_secs(600))
            .renew_interval(Duration::from_secs(200))
            .retry_period(Duration::from_millis(200))
    };
    let first = Candidate::stands(open(&server).await, rare());
    first.leads().await;
    let second = Candidate::stands(open(&server).await, rare());
    until("the second knows", async || second.leadership.leader().is_some()).await;
    first.task.stop().await;
    second.leads().await;
    second.task.stop().await;
}
