//! What happens to the connection, and what is known of the call then.

use std::{task::Poll, time::Duration};

use buttress_leadership::{
    AcquireOutcome, Identity, LeaseRecord, LeaseStore, ReleaseRequest, RenewOutcome, RenewRequest,
};
use buttress_lease_kubernetes::{
    KubernetesOptions, KubernetesStore,
    kube::{Client, Config},
};
use buttress_servers::{FakeKubernetes, Lie, Proxy, Way, soon, until};
use futures_util::{FutureExt, StreamExt};
use tokio::time::timeout;

use crate::server::{TTL, acquire, acquired, config, lease, open, options, told};

/// A store with a network between it and its server.
struct Far {
    server: FakeKubernetes,
    proxy: Proxy,
    store: KubernetesStore,
    me: Identity,
}

async fn far() -> Far {
    let server = FakeKubernetes::new().await;
    let proxy = Proxy::to(server.addr()).await;
    let store = options(proxy.addr()).open().await.unwrap();
    Far { server, proxy, store, me: Identity::generate() }
}

impl Far {
    /// By another way.
    async fn found(&self) -> Option<LeaseRecord> {
        open(&self.server).await.inspect(lease()).await.unwrap()
    }

    async fn revision(&self) -> u64 {
        self.found().await.map_or(0, |record| record.revision)
    }

    /// What was asked, without where.
    fn methods(&self) -> Vec<String> {
        self.server.asked().into_iter().map(|asked| asked.method).collect()
    }
}

#[tokio::test]
async fn a_renewal_is_one_write_and_says_who_asks() {
    let far = far().await;
    let mine = acquired(&far.store, &far.me).await;
    assert_eq!(far.methods(), ["GET", "GET", "POST", "PUT"], "open, look, make, take");
    let renew = RenewRequest::new(lease(), &far.me, mine.fence, TTL);
    far.store.renew(renew).await.unwrap();
    let asked = far.server.asked();
    assert_eq!(asked.len(), 1, "{asked:?}");
    assert_eq!(asked[0].method, "PUT");
    assert!(asked[0].agent.ends_with("/leader-election"), "{asked:?}");
    far.store.release(ReleaseRequest::new(lease(), &far.me, mine.fence)).await.unwrap();
    assert_eq!(far.methods(), ["PUT"]);
}

#[tokio::test]
async fn a_lease_does_not_go_with_its_connection() {
    let far = far().await;
    let mine = acquired(&far.store, &far.me).await;
    let renew = RenewRequest::new(lease(), &far.me, mine.fence, TTL);
    for _ in 0..3 {
        far.proxy.cut();
        // The first may be sent before it is seen that the connection is dead.
        let mut renewed = far.store.renew(renew).await;
        if renewed.is_err() {
            renewed = far.store.renew(renew).await;
        }
        let renewed = renewed.unwrap();
        assert!(matches!(renewed, RenewOutcome::Renewed(record) if record.fence == mine.fence));
    }
}

#[tokio::test]
async fn what_was_sent_and_not_answered_is_ambiguous_whether_or_not_it_was_done() {
    let far = far().await;
    let mine = acquired(&far.store, &far.me).await;
    let renew = RenewRequest::new(lease(), &far.me, mine.fence, TTL);
    far.proxy.set_there(Way::Reset);
    let error = far.store.renew(renew).await.unwrap_err();
    assert_eq!(told(&error, far.proxy.addr(), "renew").0, "ambiguous");
    assert_eq!(far.revision().await, mine.revision, "it did not arrive");

    far.proxy.set_both(Way::Open);
    far.store.renew(renew).await.unwrap();
    let before = far.revision().await;
    far.proxy.set_back(Way::Reset);
    let error = far.store.renew(renew).await.unwrap_err();
    assert_eq!(told(&error, far.proxy.addr(), "renew").0, "ambiguous");
    until("it arrived", async || before < far.revision().await).await;

    // A question has no effect.
    let error = far.store.inspect(lease()).await.unwrap_err();
    assert_eq!(told(&error, far.proxy.addr(), "inspect").0, "not applied");
    far.proxy.set_both(Way::Open);
    assert!(matches!(far.store.renew(renew).await.unwrap(), RenewOutcome::Renewed(_)));
}

#[tokio::test]
async fn an_acquisition_whose_answer_was_lost_is_found_by_its_identity_with_its_token() {
    let far = far().await;
    let mine = acquired(&far.store, &far.me).await;
    far.store.release(ReleaseRequest::new(lease(), &far.me, mine.fence)).await.unwrap();
    far.server.pause_writes();
    let mut asked = Box::pin(acquire(&far.store, &far.me));
    until("it is about to write", async || {
        assert!(asked.as_mut().now_or_never().is_none());
        far.server.waiting() == 1
    })
    .await;
    far.proxy.set_back(Way::Reset);
    far.server.resume();
    assert_eq!(told(&asked.await.unwrap_err(), far.proxy.addr(), "acquire").0, "ambiguous");
    far.proxy.set_back(Way::Open);
    // Somebody edits the object before anybody has read it.
    far.server.edit("a", |lease| lease["metadata"]["labels"] = [("a", "b")].into_iter().collect());
    let AcquireOutcome::Held(seen) = acquire(&far.store, &far.me).await.unwrap() else {
        panic!("it was acquired twice");
    };
    assert!(seen.is_held_by(&far.me) && mine.fence < seen.fence);
    assert_eq!(far.found().await.unwrap().fence, seen.fence, "all read the same");
    let renew = RenewRequest::new(lease(), &far.me, seen.fence, TTL);
    assert!(matches!(far.store.renew(renew).await.unwrap(), RenewOutcome::Renewed(_)));
}

// kubernetes#125530: connections that are dead, and are used for half a minute.
#[tokio::test]
async fn a_call_that_hangs_is_dropped_with_its_connection_and_the_next_one_is_answered() {
    let far = far().await;
    let mine = acquired(&far.store, &far.me).await;
    let renew = RenewRequest::new(lease(), &far.me, mine.fence, TTL);
    far.proxy.set_back(Way::Blackhole);
    let mut hangs = Box::pin(far.store.renew(renew));
    until("it was done", async || {
        assert!(hangs.as_mut().now_or_never().is_none(), "nobody was told");
        far.revision().await == mine.revision + 1
    })
    .await;
    far.proxy.strand();
    far.proxy.set_back(Way::Open);
    drop(hangs);
    let next = soon(far.store.renew(renew)).await;
    assert!(matches!(next.unwrap(), RenewOutcome::Renewed(_)));
}

/// An answer that is older than another one would show a former state as if it were new.
#[tokio::test]
async fn calls_go_one_after_the_other() {
    let server = FakeKubernetes::new().await;
    let (store, me) = (open(&server).await, Identity::generate());
    acquired(&store, &me).await;
    server.pause();
    let mut first = Box::pin(store.inspect(lease()));
    until("the first is asked", async || {
        assert!(first.as_mut().now_or_never().is_none());
        server.waiting() == 1
    })
    .await;
    let mut second = Box::pin(store.inspect(lease()));
    // As long as nothing is said, it would have been sent.
    assert!(timeout(Duration::from_millis(200), second.as_mut()).await.is_err());
    assert_eq!(server.waiting(), 1);
    drop(first);
    server.resume();
    assert!(soon(second).await.unwrap().unwrap().is_held_by(&me));
}

#[tokio::test]
async fn a_server_that_is_down_has_done_nothing_and_is_found_again() {
    let mut server = FakeKubernetes::new().await;
    let (store, me) = (open(&server).await, Identity::generate());
    let mine = acquired(&store, &me).await;
    let renew = RenewRequest::new(lease(), &me, mine.fence, TTL);
    server.kill();
    // The first may have been sent before it was seen that nobody listens.
    let _ = store.renew(renew).await.unwrap_err();
    let (kind, text) = told(&store.renew(renew).await.unwrap_err(), server.addr(), "renew");
    assert_eq!(kind, "not applied", "{text}");
    assert!(text.contains("refused"), "{text}");
    let error = options(server.addr()).open().await.unwrap_err();
    assert_eq!(told(&error, server.addr(), "open").0, "not applied");
    // One that is opened later begins while its server is down.
    let later = options(server.addr()).open_later();
    let error = later.inspect(lease()).await.unwrap_err();
    assert_eq!(told(&error, server.addr(), "inspect").0, "not applied");
    server.start().await;
    assert!(later.inspect(lease()).await.unwrap().unwrap().is_held_by(&me));
    assert!(matches!(store.renew(renew).await.unwrap(), RenewOutcome::Renewed(_)));
}

#[tokio::test]
async fn what_a_server_says_instead_of_an_answer_tells_whether_it_was_done() {
    let server = FakeKubernetes::new().await;
    let (store, me) = (open(&server).await, Identity::generate());
    let mine = acquired(&store, &me).await;
    let renew = RenewRequest::new(lease(), &me, mine.fence, TTL);
    let revision = || server.lease("a").unwrap()["metadata"]["resourceVersion"].clone();
    for (lie, kind, is_done) in [
        (Lie::Before(400), "fatal", false),
        (Lie::Before(401), "fatal", false),
        (Lie::Before(403), "fatal", false),
        (Lie::Before(408), "ambiguous", false),
        (Lie::Before(422), "fatal", false),
        (Lie::Before(429), "not applied", false),
        (Lie::Before(500), "ambiguous", false),
        (Lie::Before(503), "ambiguous", false),
        (Lie::After(500), "ambiguous", true),
        (Lie::After(504), "ambiguous", true),
        (Lie::Text("<html>".to_owned()), "ambiguous", true),
        (Lie::Text("{}".to_owned()), "ambiguous", true),
    ] {
        let before = revision();
        server.lie("PUT", lie.clone());
        let _ = server.asked();
        let error = store.renew(renew).await.unwrap_err();
        assert_eq!(server.asked().len(), 1, "one call is one attempt");
        let (is, text) = told(&error, server.addr(), "renew");
        assert_eq!((is, revision() != before), (kind, is_done), "{lie:?}: {text}");
        server.tell_the_truth();
        let renewed = store.renew(renew).await.unwrap();
        assert!(matches!(renewed, RenewOutcome::Renewed(record) if record.fence == mine.fence));
    }
    for (lie, kind) in [
        (Lie::Before(429), "not applied"),
        (Lie::Before(503), "not applied"),
        (Lie::Before(403), "fatal"),
        // From somebody else than the API server: it is not said that there is no lease.
        (Lie::Before(404), "fatal"),
        (Lie::Text("<html>".to_owned()), "fatal"),
    ] {
        server.lie("GET", lie.clone());
        for operation in ["inspect", "acquire"] {
            let error = match operation {
                "inspect" => store.inspect(lease()).await.unwrap_err(),
                _ => acquire(&store, &me).await.unwrap_err(),
            };
            let (is, text) = told(&error, server.addr(), operation);
            assert_eq!(is, kind, "{lie:?}: {text}");
        }
    }
}

/// As one does that a policy of the cluster has in hand.
#[tokio::test]
async fn a_server_that_takes_notes_away_makes_no_leader() {
    let server = FakeKubernetes::new().await;
    let (store, me) = (open(&server).await, Identity::generate());
    let mine = acquired(&store, &me).await;
    store.release(ReleaseRequest::new(lease(), &me, mine.fence)).await.unwrap();
    let mut kept = server.lease("a").unwrap();
    kept["spec"]["holderIdentity"] = me.as_str().into();
    kept["metadata"]["annotations"] = serde_json::Value::Null;
    server.lie("PUT", Lie::Text(kept.to_string()));
    let error = acquire(&store, &me).await.unwrap_err();
    let (kind, text) = told(&error, server.addr(), "acquire");
    assert_eq!(kind, "fatal", "{text}");
    assert!(text.contains("has not kept"), "{text}");
}

/// The tasks of its client have gone with their runtime.
#[tokio::test]
async fn a_store_that_was_opened_elsewhere_connects_anew() {
    let server = FakeKubernetes::new().await;
    let addr = server.addr();
    let elsewhere = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(options(addr).open()).unwrap()
    });
    let store = elsewhere.join().unwrap();
    let (kind, text) = told(&store.inspect(lease()).await.unwrap_err(), addr, "inspect");
    assert_eq!(kind, "not applied", "{text}");
    assert_eq!(store.inspect(lease()).await.unwrap(), None);
}

/// A conflict is an answer. One that never ends is none.
#[tokio::test]
async fn who_is_never_quick_enough_gives_up_and_has_done_nothing() {
    let server = FakeKubernetes::new().await;
    let (store, me) = (open(&server).await, Identity::generate());
    let mine = acquired(&store, &me).await;
    server.lie("PUT", Lie::Before(409));
    let renew = RenewRequest::new(lease(), &me, mine.fence, TTL);
    let (kind, text) = told(&store.renew(renew).await.unwrap_err(), server.addr(), "renew");
    assert_eq!(kind, "not applied", "{text}");
    assert!(text.contains("all the time"), "{text}");
    let asked = server.asked();
    assert!(asked.len() < 24, "{} requests", asked.len());
}

/// It may have a client that repeats by itself: then the second time is a conflict with the first.
#[tokio::test]
async fn a_client_that_repeats_what_was_done_finds_it_done() {
    let server = FakeKubernetes::new().await;
    let mut config = config(server.addr());
    config.default_retry = true;
    let store = KubernetesOptions::new(Client::try_from(config).unwrap()).open().await.unwrap();
    assert_eq!(store.namespace(), "default");
    let me = Identity::generate();
    let mine = acquired(&store, &me).await;
    store.release(ReleaseRequest::new(lease(), &me, mine.fence)).await.unwrap();
    for operation in ["acquire", "renew", "release"] {
        let call = async {
            match operation {
                "acquire" => match acquire(&store, &me).await.unwrap() {
                    AcquireOutcome::Held(seen) => assert!(seen.is_held_by(&me), "{seen:?}"),
                    AcquireOutcome::Acquired(_) => panic!("it was told of a conflict"),
                },
                "renew" => {
                    let fence = store.inspect(lease()).await.unwrap().unwrap().fence;
                    let renew = RenewRequest::new(lease(), &me, fence, TTL);
                    let renewed = store.renew(renew).await.unwrap();
                    assert!(matches!(renewed, RenewOutcome::Renewed(_)), "{renewed:?}");
                }
                _ => {
                    let fence = store.inspect(lease()).await.unwrap().unwrap().fence;
                    store.release(ReleaseRequest::new(lease(), &me, fence)).await.unwrap();
                }
            }
        };
        let _ = server.asked();
        server.lie("PUT", Lie::After(504));
        let truth = until("it was done once", async || {
            server.asked().iter().any(|asked| asked.method == "PUT")
        });
        let truth = async {
            truth.await;
            server.tell_the_truth();
        };
        futures_util::future::join(soon(call), truth).await;
    }
    assert_eq!(server.lease("a").unwrap()["spec"]["holderIdentity"], "");
}

/// It may have been with what the call itself has done.
#[tokio::test]
async fn what_a_conflict_was_with_is_not_known_before_it_is_read() {
    let server = FakeKubernetes::new().await;
    let (store, me) = (open(&server).await, Identity::generate());
    let mine = acquired(&store, &me).await;
    store.release(ReleaseRequest::new(lease(), &me, mine.fence)).await.unwrap();
    server.pause_writes();
    let mut asked = Box::pin(acquire(&store, &me));
    until("it is about to write", async || {
        assert!(asked.as_mut().now_or_never().is_none());
        server.waiting() == 1
    })
    .await;
    server.edit("a", |lease| lease["metadata"]["labels"] = [("a", "b")].into_iter().collect());
    server.lie("GET", Lie::Before(503));
    server.resume();
    assert_eq!(told(&asked.await.unwrap_err(), server.addr(), "acquire").0, "ambiguous");
    // And if there is nothing to be known, it was not done.
    assert_eq!(
        told(&acquire(&store, &me).await.unwrap_err(), server.addr(), "acquire").0,
        "not applied"
    );
}

#[tokio::test]
async fn a_release_or_a_deletion_wakes_whoever_watches_also_on_a_new_connection() {
    let mut far = far().await;
    let near = open(&far.server).await;
    let mut changes = far.store.changes(lease());
    for disturbance in ["begun", "none", "cut", "too old", "killed", "deleted"] {
        let mine = acquired(&near, &far.me).await;
        match disturbance {
            "cut" => far.proxy.cut(),
            "too old" => far.server.end_watches(),
            "killed" => {
                far.server.kill();
                far.server.start().await;
            }
            _ => {}
        }
        if !["none", "deleted"].contains(&disturbance) {
            // What was missed may have been a release.
            soon(changes.next()).await.unwrap();
        }
        let renew = RenewRequest::new(lease(), &far.me, mine.fence, TTL);
        until("it is renewed", async || near.renew(renew).await.is_ok()).await;
        let quiet =
            std::future::poll_fn(|cx| Poll::Ready(changes.poll_next_unpin(cx).is_pending()));
        assert!(quiet.await, "neither a term nor a renewal is a release ({disturbance})");
        if disturbance == "deleted" {
            far.server.delete("a");
        } else {
            near.release(ReleaseRequest::new(lease(), &far.me, mine.fence)).await.unwrap();
        }
        soon(changes.next()).await.unwrap();
    }
}

#[tokio::test]
async fn a_server_without_http_before_it_is_an_error_and_no_panic() {
    let addr = "127.0.0.1:8001".parse().unwrap();
    let config = Config::new("127.0.0.1:8001".parse().unwrap());
    let store = KubernetesOptions::of(config).open_later();
    let (kind, text) = told(&store.inspect(lease()).await.unwrap_err(), addr, "inspect");
    assert_eq!(kind, "fatal", "{text}");
    assert!(text.contains("`http://`"), "{text}");
}

#[tokio::test]
async fn a_watch_that_does_not_begin_is_asked_for_anew() {
    let far = far().await;
    far.proxy.set_back(Way::Blackhole);
    let mut changes = far.store.changes(lease());
    until("it is asked for", async || {
        assert_eq!(changes.next().now_or_never(), None);
        far.server.watchers() == 1
    })
    .await;
    far.proxy.strand();
    far.proxy.set_back(Way::Open);
    soon(changes.next()).await.unwrap();
}

#[tokio::test]
async fn who_is_not_to_be_woken_does_not_watch() {
    let server = FakeKubernetes::new().await;
    for (is_woken, watchers) in [(true, 1), (false, 0)] {
        let store = options(server.addr()).wake(is_woken).open().await.unwrap();
        assert_eq!(store.capabilities().watch, is_woken);
        let mut changes = store.changes(lease());
        if is_woken {
            soon(changes.next()).await.unwrap();
        } else {
            // As long as nothing is said, it has been polled.
            assert!(timeout(Duration::from_millis(200), changes.next()).await.is_err());
        }
        assert_eq!(server.watchers(), watchers);
        drop((store, changes));
        until("they are gone", async || server.watchers() == 0).await;
    }
}
