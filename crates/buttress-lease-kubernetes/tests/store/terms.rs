//! What becomes of a term while others write to the object, and the tokens.

use std::time::{Duration, SystemTime};

use buttress_core::edge;
use buttress_leadership::{
    AcquireOutcome, AcquireRequest, FencingToken, Identity, LeaseClock, LeaseStore, ReleaseOutcome,
    ReleaseRequest, RenewOutcome, RenewRequest,
};
use buttress_servers::FakeKubernetes;
use bytes::Bytes;
use serde_json::{Value, json};

use crate::server::{TTL, acquire, acquired, lease, open, options};

static NOTHING: Bytes = Bytes::new();

/// Somebody who has nothing to do with leases.
fn edit(server: &FakeKubernetes, nth: u64) {
    server.edit("a", |lease| lease["metadata"]["labels"]["edited"] = nth.to_string().into());
}

#[tokio::test]
async fn who_edits_labels_costs_no_term_and_keeps_the_labels() {
    let server = FakeKubernetes::new().await;
    let (store, me) = (open(&server).await, Identity::generate());
    let mine = acquired(&store, &me).await;
    let renew = RenewRequest::new(lease(), &me, mine.fence, TTL);
    for nth in 0..3 {
        edit(&server, nth);
        let _ = server.asked();
        let RenewOutcome::Renewed(renewed) = store.renew(renew).await.unwrap() else {
            panic!("a label was worth a term");
        };
        assert_eq!(renewed.fence, mine.fence);
        let asked = server.asked().into_iter().map(|asked| asked.method);
        assert_eq!(asked.collect::<Vec<_>>(), ["PUT", "GET", "PUT"], "it is read once more");
    }
    edit(&server, 3);
    let released = store.release(ReleaseRequest::new(lease(), &me, mine.fence)).await.unwrap();
    assert_eq!(released, ReleaseOutcome::Released);
    assert_eq!(server.lease("a").unwrap()["metadata"]["labels"]["edited"], "3");
}

#[tokio::test]
async fn who_edits_labels_all_day_keeps_no_dead_leaders_lease_alive() {
    let server = FakeKubernetes::new().await;
    let clock = LeaseClock::simulated();
    let store = options(server.addr()).clock(clock.clone()).open().await.unwrap();
    let (me, you) = (Identity::generate(), Identity::generate());
    let mine = acquired(&store, &me).await;
    for nth in 0..3 {
        assert!(matches!(acquire(&store, &you).await.unwrap(), AcquireOutcome::Held(_)));
        clock.suspend(TTL / 3);
        edit(&server, nth);
    }
    let AcquireOutcome::Acquired(yours) = acquire(&store, &you).await.unwrap() else {
        panic!("it is the dead leader's still");
    };
    assert!(mine.fence < yours.fence);
    let renewed = store.renew(RenewRequest::new(lease(), &me, mine.fence, TTL)).await.unwrap();
    assert!(matches!(renewed, RenewOutcome::Lost(Some(seen)) if seen.is_held_by(&you)));
}

#[tokio::test]
async fn a_renewal_between_the_look_and_the_taking_keeps_the_lease() {
    let server = FakeKubernetes::new().await;
    let clock = LeaseClock::simulated();
    let [one, other] = [(); 2].map(|()| options(server.addr()).clock(clock.clone()).open_later());
    let (me, you) = (Identity::generate(), Identity::generate());
    let mine = acquired(&one, &me).await;
    other.inspect(lease()).await.unwrap();
    clock.suspend(TTL);
    // Both are about to write what they have read. Who is let in first is chance; that it is one is not.
    server.write_together(2);
    let renew = RenewRequest::new(lease(), &me, mine.fence, TTL);
    let (renewed, taken) =
        futures_util::future::join(one.renew(renew), acquire(&other, &you)).await;
    server.write_together(1);
    let is_renewed = matches!(renewed.unwrap(), RenewOutcome::Renewed(_));
    let is_taken = matches!(taken.unwrap(), AcquireOutcome::Acquired(_));
    assert!(is_renewed != is_taken, "renewed {is_renewed}, taken {is_taken}");
}

#[tokio::test]
async fn whose_clock_stands_still_or_goes_back_renews_all_the_same() {
    let server = FakeKubernetes::new().await;
    let clock = LeaseClock::simulated();
    let [one, other] = [(); 2].map(|()| options(server.addr()).clock(clock.clone()).open_later());
    let (me, you) = (Identity::generate(), Identity::generate());
    let mine = acquired(&one, &me).await;
    assert!(matches!(acquire(&other, &you).await.unwrap(), AcquireOutcome::Held(_)));
    for _ in 0..4 {
        edge::set_wall(SystemTime::UNIX_EPOCH);
        one.renew(RenewRequest::new(lease(), &me, mine.fence, TTL)).await.unwrap();
        clock.suspend(TTL / 2);
        let held = acquire(&other, &you).await.unwrap();
        assert!(matches!(held, AcquireOutcome::Held(_)), "it was renewed: {held:?}");
    }
    let renewed = &server.lease("a").unwrap()["spec"]["renewTime"];
    assert!(renewed.as_str().unwrap().starts_with("20"), "{renewed}");
}

#[tokio::test]
async fn a_lease_is_as_long_as_the_object_says_whatever_the_candidate_would_have() {
    let server = FakeKubernetes::new().await;
    let clock = LeaseClock::simulated();
    let store = options(server.addr()).clock(clock.clone()).open().await.unwrap();
    let (me, you) = (Identity::generate(), Identity::generate());
    let asks = |who, millis| {
        let ttl = Duration::from_millis(millis);
        store.acquire(AcquireRequest::new(lease(), who, ttl, &NOTHING))
    };
    let AcquireOutcome::Acquired(mine) = asks(&me, 599_001).await.unwrap() else { panic!() };
    assert_eq!(mine.granted_ttl, TTL, "whole seconds, and none less");
    clock.suspend(TTL - Duration::from_secs(60));
    let AcquireOutcome::Held(seen) = asks(&you, 1000).await.unwrap() else { panic!("too early") };
    assert_eq!(seen.granted_ttl, TTL);
    clock.suspend(Duration::from_secs(60));
    assert!(matches!(asks(&you, 1000).await.unwrap(), AcquireOutcome::Acquired(_)));
}

#[tokio::test]
async fn a_lease_that_is_deleted_by_hand_is_lost_with_the_next_renewal_and_its_token_does_not_come_again()
 {
    let server = FakeKubernetes::new().await;
    let (store, me) = (open(&server).await, Identity::generate());
    let mut last = 0;
    for _ in 0..3 {
        let mine = acquired(&store, &me).await;
        assert!(last < mine.fence.get());
        last = mine.fence.get();
        server.delete("a");
        let renewed = store.renew(RenewRequest::new(lease(), &me, mine.fence, TTL)).await.unwrap();
        assert_eq!(renewed, RenewOutcome::Lost(None));
        assert_eq!(server.lease("a"), None, "a renewal makes none");
        let released = store.release(ReleaseRequest::new(lease(), &me, mine.fence)).await.unwrap();
        assert_eq!(released, ReleaseOutcome::NotHolder(None));
    }
    // And one that was deleted and made again, by somebody who has it.
    let mine = acquired(&store, &me).await;
    server.delete("a");
    let (other, you) = (open(&server).await, Identity::generate());
    let yours = acquired(&other, &you).await;
    assert!(mine.fence < yours.fence);
    let renewed = store.renew(RenewRequest::new(lease(), &me, mine.fence, TTL)).await.unwrap();
    assert!(matches!(renewed, RenewOutcome::Lost(Some(seen)) if seen.is_held_by(&you)));
}

/// It counts from where it began, and gives numbers again: whoever checks tokens refuses those.
#[tokio::test]
async fn a_server_that_has_forgotten_everything_ends_the_term_with_the_next_renewal() {
    let mut server = FakeKubernetes::new().await;
    let (store, me) = (open(&server).await, Identity::generate());
    let mine = acquired(&store, &me).await;
    let renew = RenewRequest::new(lease(), &me, mine.fence, TTL);
    server.kill();
    server.forget();
    server.start().await;
    // The first may be sent before it is seen that the connection is dead.
    let mut renewed = store.renew(renew).await;
    if renewed.is_err() {
        renewed = store.renew(renew).await;
    }
    assert_eq!(renewed.unwrap(), RenewOutcome::Lost(None));
    // Somebody else's object with the very same number is another one.
    let yours = acquired(&open(&server).await, &Identity::generate()).await;
    assert_eq!((yours.fence, yours.revision), (mine.fence, mine.revision));
    let renewed = store.renew(renew).await.unwrap();
    assert!(matches!(renewed, RenewOutcome::Lost(Some(seen)) if !seen.is_held_by(&me)));
}

#[tokio::test]
async fn a_lease_that_is_taken_away_by_hand_is_free_at_once() {
    let server = FakeKubernetes::new().await;
    let (store, me) = (open(&server).await, Identity::generate());
    let mine = acquired(&store, &me).await;
    server.edit("a", |lease| lease["spec"]["holderIdentity"] = "".into());
    let renewed = store.renew(RenewRequest::new(lease(), &me, mine.fence, TTL)).await.unwrap();
    assert!(matches!(renewed, RenewOutcome::Lost(Some(seen)) if seen.holder.is_none()));
    let yours = acquired(&store, &Identity::generate()).await;
    assert!(mine.fence < yours.fence);
    // And given to somebody who has no token of ours.
    server.edit("a", |lease| lease["spec"]["holderIdentity"] = "by-hand".into());
    let AcquireOutcome::Held(seen) = acquire(&store, &me).await.unwrap() else { panic!("taken") };
    assert!(yours.fence < seen.fence, "it is another term: {seen:?}");
}

/// An object that comes from another cluster, with what we noted there.
#[tokio::test]
async fn a_token_is_greater_than_the_last_one_also_where_numbers_are_less() {
    let server = FakeKubernetes::new().await;
    let (store, me) = (open(&server).await, Identity::generate());
    let mine = acquired(&store, &me).await;
    store.release(ReleaseRequest::new(lease(), &me, mine.fence)).await.unwrap();
    server.edit("a", |lease| {
        let note = &mut lease["metadata"]["annotations"]["buttress/term"];
        let text = note.as_str().unwrap().replace(&mine.fence.to_string(), "9000000");
        *note = text.into();
    });
    for next in [9_000_001, 9_000_002] {
        let next = FencingToken::new(next).unwrap();
        assert_eq!(acquired(&store, &me).await.fence, next);
        store.release(ReleaseRequest::new(lease(), &me, next)).await.unwrap();
    }
    server.edit("a", |lease| {
        lease["metadata"]["annotations"]["buttress/term"] = format!("{} 1 a", u64::MAX).into();
    });
    assert!(acquire(&store, &me).await.unwrap_err().is_fatal(), "there is none after the last");
}

/// A cluster that was restored, from before what a candidate has seen.
#[tokio::test]
async fn a_token_is_greater_than_what_the_candidate_has_seen() {
    let server = FakeKubernetes::new().await;
    let (store, me) = (open(&server).await, Identity::generate());
    let seen = FencingToken::new(9_000_000).unwrap();
    let request = AcquireRequest::new(lease(), &me, TTL, &NOTHING).after(Some(seen));
    let AcquireOutcome::Acquired(mine) = store.acquire(request).await.unwrap() else {
        panic!("nobody has it")
    };
    assert_eq!(mine.fence.get(), 9_000_001);
    store.release(ReleaseRequest::new(lease(), &me, mine.fence)).await.unwrap();
    assert_eq!(acquired(&store, &me).await.fence.get(), 9_000_002, "who comes next knows it, too");
}

// client-go#754: a release with a lease of no time at all, which the server refuses.
#[tokio::test]
async fn a_release_is_let_in_and_says_that_nobody_holds_it() {
    let server = FakeKubernetes::new().await;
    let (store, me) = (open(&server).await, Identity::generate());
    let payload = Bytes::from_static(b"10.0.0.7:8080");
    let request = AcquireRequest::new(lease(), &me, TTL, &payload);
    let AcquireOutcome::Acquired(mine) = store.acquire(request).await.unwrap() else { panic!() };
    let held = server.lease("a").unwrap();
    assert_eq!(held["metadata"]["annotations"]["buttress/payload"], "10.0.0.7:8080");
    assert_eq!(held["spec"]["leaseDurationSeconds"], 600);
    store.release(ReleaseRequest::new(lease(), &me, mine.fence)).await.unwrap();
    let free = server.lease("a").unwrap();
    assert_eq!(free["spec"]["holderIdentity"], "");
    assert_eq!(free["spec"]["leaseDurationSeconds"], 1);
    assert_eq!(free["spec"]["leaseTransitions"], held["spec"]["leaseTransitions"]);
    assert_eq!(free["metadata"]["annotations"]["buttress/payload"], Value::Null);
    // Twice is as once, also for who has forgotten what it wrote.
    let other = open(&server).await;
    let again = other.release(ReleaseRequest::new(lease(), &me, mine.fence)).await.unwrap();
    assert_eq!((again, server.lease("a").unwrap()), (ReleaseOutcome::Released, free));
}

/// What others keep in the object is written again as it is.
#[tokio::test]
async fn an_object_that_is_there_already_is_taken_as_it_is() {
    let server = FakeKubernetes::new().await;
    let (store, me) = (open(&server).await, Identity::generate());
    let mine = acquired(&store, &me).await;
    store.release(ReleaseRequest::new(lease(), &me, mine.fence)).await.unwrap();
    server.edit("a", |lease| {
        lease["metadata"]["annotations"] = json!({ "owner": "billing" });
        lease["spec"] = json!({});
    });
    assert_eq!(store.inspect(lease()).await.unwrap(), None, "nobody ever held it");
    acquired(&store, &me).await;
    assert_eq!(server.lease("a").unwrap()["metadata"]["annotations"]["owner"], "billing");
}
