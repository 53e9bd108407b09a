//! A cluster, whose leader is not the one that is elected here.

use std::time::Duration;

use buttress_leadership::{AcquireOutcome, Identity, LeaseStore, RenewOutcome, RenewRequest};
use buttress_lease_etcd::{EtcdOptions, EtcdStore, etcd_client::Client};
use buttress_servers::{Server, soon, until};
use futures_util::FutureExt;
use tokio::time::timeout;

use crate::{
    election::{Candidate, short},
    server::{TTL, acquire, acquired, hand, lease, leases, open, options, place, told},
};

fn all(members: &[Server; 3]) -> String {
    members.each_ref().map(|member| member.addr().to_string()).join(",")
}

/// Who leads the cluster, by what that member says. Waits until it says so.
async fn leader(of: &Client) -> (bool, u64) {
    let mut told = (false, 0);
    until("the cluster has a leader", async || {
        let status = of.maintenance_client().status().await;
        if let Ok(status) = status {
            let member = status.header().map(|header| header.member_id());
            told = (member == Some(status.leader()), status.leader());
        }
        told.1 != 0
    })
    .await;
    told
}

/// Those three, the leader first.
async fn in_order(members: [Server; 3]) -> [Server; 3] {
    let mut members = members;
    for nth in 0..3 {
        if leader(&hand(&members[nth]).await).await.0 {
            members.swap(0, nth);
            return members;
        }
    }
    panic!("nobody says that it leads");
}

/// The lease of etcd that the key goes with, and how many seconds of it are left. None if there is no key.
async fn held(by: &Client, key: &str) -> Option<(i64, i64)> {
    let got = by.kv_client().get(key, None).await.ok()?;
    let id = got.kvs().first()?.lease();
    Some((id, by.lease_client().time_to_live(id, None).await.ok()?.ttl()))
}

// etcd-io/etcd#9395, #13294: leases begin anew with the cluster's new leader. etcd-io/etcd#12528, #15247: the former
// one ends them too early as it comes to itself.
#[tokio::test]
async fn when_the_clusters_leader_stands_still_somebody_leads_again_and_never_two_but_by_its_fault()
{
    let members = in_order(Server::etcd_cluster().await).await;
    let store = || EtcdOptions::parse(&all(&members)).unwrap().open();
    let stores = [store().await.unwrap(), store().await.unwrap()];
    let (key, by) = (stores[0].key(lease()), hand(&members[1]).await);
    let [one, other] = stores.map(|of| Candidate::stands(of, short()));
    let leads = || [&one, &other].map(|candidate| candidate.leadership.is_leader());
    let renewals =
        || [&one, &other].map(|of| of.leadership.metrics().renewals_accepted).iter().sum::<u64>();
    until("one leads", async || leads() != [false; 2]).await;
    members[0].pause();
    let before = renewals();
    until("somebody leads, and goes on", async || {
        assert_ne!(leads(), [true; 2], "two lead");
        leads() != [false; 2] && renewals() >= before + 4
    })
    .await;
    let mut seen = Vec::new();
    seen.extend(held(&by, &key).await);
    members[0].resume();
    let before = renewals();
    until("one leads, and goes on", async || {
        if leads() == [true; 2] {
            let (now, _) = held(&by, &key).await.expect("the second holds it");
            let ended = seen.iter().rev().find(|(id, _)| *id != now).expect("the first held one");
            assert!(ended.1 >= 2, "two lead, and etcd has not ended a lease before its time");
            // It is lost with the next renewal.
            until("one leads", async || leads() != [true; 2]).await;
        }
        seen.extend(held(&by, &key).await);
        leads() != [false; 2] && renewals() >= before + 8
    })
    .await;
    one.task.stop().await;
    other.task.stop().await;
}

#[tokio::test]
async fn a_member_that_is_down_or_stands_still_is_left_for_the_next_one() {
    let mut members = in_order(Server::etcd_cluster().await).await;
    let (me, endpoints) = (Identity::generate(), all(&members));
    let store = EtcdStore::open(&endpoints).await.unwrap();
    let mine = acquired(&store, &me).await;
    let renew = RenewRequest::new(lease(), &me, mine.fence, TTL);
    // It is connected to the first, and goes on to the next one each time.
    let renews = async || {
        until("it renews by another one", async || {
            let limit = Duration::from_millis(700);
            let renewed = timeout(limit, store.renew(renew)).await;
            renewed.is_ok_and(|renewed| matches!(renewed, Ok(RenewOutcome::Renewed(_))))
        })
        .await;
    };
    renews().await;
    members[0].kill();
    renews().await;
    members[0].start().await;
    members[1].pause();
    renews().await;
    members[1].resume();
    members[2].kill();
    renews().await;
    // Of several it says which one it was that failed last.
    drop(members);
    let _ = soon(store.inspect(lease())).await.unwrap_err();
    let error = store.inspect(lease()).await.unwrap_err();
    let (kind, text) = told(&error, &endpoints, "inspect");
    assert_eq!(kind, "not applied", "{text}");
    assert!(text.contains("refused") && text.matches("127.0.0.1").count() == 4, "{text}");
}

#[tokio::test]
async fn who_knows_of_no_leader_of_the_cluster_is_not_asked() {
    let mut members = Server::etcd_cluster().await;
    let (me, store) = (Identity::generate(), open(&members[0]).await);
    let mine = acquired(&store, &me).await;
    members[1].kill();
    members[2].kill();
    let at = place(members[0].addr());
    let mut said = String::new();
    until("it knows of none", async || {
        let opened = soon(options(members[0].addr()).open()).await;
        said = opened.err().map(|error| told(&error, &at, "open").1).unwrap_or_default();
        said.contains("no leader")
    })
    .await;
    assert!(said.contains("not applied"), "{said}");
    // Who has been connected to it before is told, too, and shown nothing that is old.
    let renew = RenewRequest::new(lease(), &me, mine.fence, TTL);
    let error = soon(store.renew(renew)).await.unwrap_err();
    assert!(error.to_string().contains("no leader"), "{error}");
    assert!(soon(store.inspect(lease())).await.is_err());
    members[1].start().await;
    until("it renews", async || store.renew(renew).await.is_ok()).await;
}

/// So much of the lease is left, by what that member says of the only one that there is.
async fn left(by: &Client) -> Duration {
    let (id, _) = leases(by).await.swap_remove(0);
    let is = by.lease_client().time_to_live(id, None).await.unwrap();
    Duration::from_secs(u64::try_from(is.ttl()).unwrap())
}

/// It has stood still, comes to itself, and answers what it was asked meanwhile before it hears that another one
/// leads. What it keeps alive, nobody else does.
#[tokio::test]
async fn the_word_of_a_leader_that_was_deposed_renews_nothing() {
    let mut members = in_order(Server::etcd_cluster().await).await;
    let me = Identity::generate();
    let store = open(&members[0]).await;
    let mine = acquired(&store, &me).await;
    let renew = RenewRequest::new(lease(), &me, mine.fence, TTL);
    // It may hear of the other first. It mostly does not more than once or twice.
    let mut has_disagreed = false;
    for _ in 0..20 {
        soon(async { while store.renew(renew).await.is_err() {} }).await;
        let other = hand(&members[1]).await;
        let was = leader(&other).await.1;
        members[0].pause();
        until("another one leads", async || leader(&other).await.1 != was).await;
        // Longer than anybody's reckoning.
        until("it is older", async || left(&other).await <= TTL - Duration::from_secs(4)).await;
        let mut asked = Box::pin(store.renew(renew));
        assert!(asked.as_mut().now_or_never().is_none());
        members[0].resume();
        match soon(asked).await {
            Ok(RenewOutcome::Renewed(_)) => {
                assert!(left(&other).await > TTL - Duration::from_secs(3), "nobody has renewed it");
            }
            Ok(RenewOutcome::Lost(seen)) => panic!("nobody has it: {seen:?}"),
            Err(error) => {
                let (kind, text) = told(&error, &place(members[0].addr()), "renew");
                assert_eq!(kind, "ambiguous", "{text}");
                has_disagreed |= text.contains("another leader since");
            }
        }
        if has_disagreed {
            break;
        }
        members = in_order(members).await;
    }
    let outcome = acquire(&store, &Identity::generate()).await.unwrap();
    assert!(matches!(outcome, AcquireOutcome::Held(_)));
    assert!(has_disagreed, "it was never asked before it had heard");
}
