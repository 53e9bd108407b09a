//! What happens to the connection, and what is known of the call then.

use std::{collections::BTreeSet, task::Poll, time::Duration};

use buttress_leadership::{
    AcquireOutcome, AcquireRequest, Identity, LeaseName, LeaseStore, ReleaseRequest, RenewOutcome,
    RenewRequest, StoreError,
};
use buttress_lease_etcd::EtcdStore;
use buttress_servers::{Proxy, Server, Way, soon, until};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use tokio::{
    net::TcpListener,
    time::{sleep, timeout},
};

use crate::server::{TTL, acquire, acquired, hand, lease, leases, open, options, place, told};

/// A store with a network between it and its server.
struct Far {
    proxy: Proxy,
    server: Server,
    store: EtcdStore,
    near: EtcdStore,
    me: Identity,
}

async fn far() -> Far {
    let server = Server::etcd().await;
    let proxy = Proxy::to(server.addr()).await;
    let store = options(proxy.addr()).open().await.unwrap();
    let near = open(&server).await;
    Far { proxy, server, store, near, me: Identity::generate() }
}

impl Far {
    #[track_caller]
    fn told(&self, error: &StoreError, operation: &str) -> (&'static str, String) {
        told(error, &place(self.proxy.addr()), operation)
    }
}

// leoflow#1199, prom-analytics-proxy#587: locks that go with their connection.
#[tokio::test]
async fn a_lease_does_not_go_with_its_connection() {
    let far = far().await;
    let mine = acquired(&far.store, &far.me).await;
    let renew = RenewRequest::new(lease(), &far.me, mine.fence, TTL);
    for _ in 0..3 {
        far.proxy.cut();
        // It may not have heard of it yet.
        until("it renews again", async || match far.store.renew(renew).await {
            Ok(RenewOutcome::Renewed(record)) => record.fence == mine.fence,
            Ok(lost) => panic!("{lost:?}"),
            Err(error) => {
                assert!(!error.is_fatal(), "{error}");
                false
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_connection_that_is_known_to_have_ended_is_not_asked() {
    let mut server = Server::etcd().await;
    let (store, me) = (open(&server).await, Identity::generate());
    let mine = acquired(&store, &me).await;
    let renew = RenewRequest::new(lease(), &me, mine.fence, TTL);
    for _ in 0..3 {
        // It has said that it ends before it is gone.
        server.stop().await;
        server.start().await;
        let renewed = store.renew(renew).await.unwrap();
        assert!(matches!(renewed, RenewOutcome::Renewed(record) if record.fence == mine.fence));
    }
}

#[tokio::test]
async fn a_renewal_that_was_sent_and_not_answered_is_ambiguous() {
    let far = far().await;
    let mine = acquired(&far.store, &far.me).await;
    let renew = RenewRequest::new(lease(), &far.me, mine.fence, TTL);
    for way in [Way::Reset, Way::Open] {
        far.store.renew(renew).await.unwrap();
        far.proxy.set_there(way);
        far.proxy.set_back(Way::Reset);
        let error = far.store.renew(renew).await.unwrap_err();
        assert_eq!(far.told(&error, "renew").0, "ambiguous");
        far.proxy.set_both(Way::Open);
    }
    // A question has no effect.
    far.store.inspect(lease()).await.unwrap();
    far.proxy.set_back(Way::Reset);
    let error = far.store.inspect(lease()).await.unwrap_err();
    assert_eq!(far.told(&error, "inspect").0, "not applied");
}

#[tokio::test]
async fn an_acquisition_whose_answer_was_lost_is_not_denied_and_found_by_its_identity() {
    let far = far().await;
    let mut told = BTreeSet::new();
    for polls in 1.. {
        far.store.inspect(lease()).await.unwrap();
        let name = LeaseName::new(format!("a{polls}")).unwrap();
        let payload = Bytes::new();
        let request = AcquireRequest::new(&name, &far.me, TTL, &payload);
        let mut asked = Box::pin(far.store.acquire(request));
        let mut done = None;
        for poll in 1..=polls {
            done = done.or_else(|| asked.as_mut().now_or_never());
            if poll == polls {
                far.proxy.set_back(Way::Blackhole);
            }
            sleep(Duration::from_millis(20)).await;
        }
        if done.is_some() {
            break;
        }
        far.proxy.set_back(Way::Reset);
        let answered = soon(asked).await;
        far.proxy.set_back(Way::Open);
        // It may have been there already.
        let Err(error) = answered else { continue };
        let (kind, text) = far.told(&error, "acquire");
        let found = far.near.inspect(&name).await.unwrap();
        let is_there = found.is_some_and(|found| found.is_held_by(&far.me));
        assert!(!is_there || kind == "ambiguous", "after {polls} polls: {text}");
        told.insert((kind, is_there));
    }
    let all = [("ambiguous", true), ("not applied", false)];
    assert!(all.iter().all(|one| told.contains(one)), "{told:?}");
}

#[tokio::test]
async fn a_call_that_hangs_is_dropped_with_its_connection_and_the_next_one_is_answered() {
    let far = far().await;
    let mine = acquired(&far.store, &far.me).await;
    let renew = RenewRequest::new(lease(), &far.me, mine.fence, TTL);
    far.store.renew(renew).await.unwrap();
    far.proxy.set_back(Way::Blackhole);
    let hangs = timeout(Duration::from_millis(200), far.store.renew(renew)).await;
    assert!(hangs.is_err(), "nobody was told");
    far.proxy.strand();
    far.proxy.set_back(Way::Open);
    let next = soon(far.store.renew(renew)).await;
    assert!(matches!(next.unwrap(), RenewOutcome::Renewed(_)));
}

#[tokio::test]
async fn what_an_earlier_call_is_answered_late_answers_no_later_one() {
    let far = far().await;
    let mine = acquired(&far.store, &far.me).await;
    let renew = RenewRequest::new(lease(), &far.me, mine.fence, TTL);
    far.store.renew(renew).await.unwrap();
    far.proxy.set_back(Way::Blackhole);
    let hangs = timeout(Duration::from_millis(200), far.store.renew(renew)).await;
    assert!(hangs.is_err(), "nobody was told");
    // That one was kept alive. It is not any more.
    let hand = hand(&far.server).await;
    let (id, _) = leases(&hand).await[0];
    hand.lease_client().revoke(id).await.unwrap();
    far.proxy.set_back(Way::Open);
    let next = soon(far.store.renew(renew)).await.unwrap();
    assert!(matches!(next, RenewOutcome::Lost(_)), "{next:?}");
}

#[tokio::test]
async fn a_change_that_comes_between_looking_and_changing_is_not_undone() {
    let server = Server::etcd().await;
    let (one, other, me) = (open(&server).await, open(&server).await, Identity::generate());
    let mine = acquired(&one, &me).await;
    let renew = RenewRequest::new(lease(), &me, mine.fence, TTL);
    let [old, new] = [Bytes::from_static(b"old"), Bytes::from_static(b"new")];
    let changes =
        [(renew.payload(&old), renew.payload(&new)), (renew.memo(&old), renew.memo(&new))];
    for (older, newer) in changes {
        let mut refused = 0;
        for polls in 1.. {
            let mut changing = Box::pin(one.renew(older));
            let mut done = None;
            for _ in 0..polls {
                done = done.or_else(|| changing.as_mut().now_or_never());
                sleep(Duration::from_millis(5)).await;
            }
            if done.is_some() {
                break;
            }
            let renewed = other.renew(newer).await.unwrap();
            assert!(matches!(renewed, RenewOutcome::Renewed(_)), "{renewed:?}");
            let Err(error) = changing.await else { continue };
            refused += 1;
            let (kind, text) = told(&error, &place(server.addr()), "renew");
            assert_eq!(kind, "ambiguous", "{text}");
            let seen = other.inspect(lease()).await.unwrap().unwrap();
            let is_new = if newer.memo.is_some() { seen.memo == new } else { seen.payload == new };
            assert!(is_new, "{seen:?}");
        }
        assert!(refused >= 1, "nothing came between");
    }
}

#[tokio::test]
async fn a_server_that_is_down_has_done_nothing_and_is_found_again() {
    let mut server = Server::etcd().await;
    let (store, me) = (open(&server).await, Identity::generate());
    let mine = acquired(&store, &me).await;
    let renew = RenewRequest::new(lease(), &me, mine.fence, TTL);
    server.stop().await;
    let place = place(server.addr());
    // The first may have been sent before it was seen that nobody listens.
    let _ = store.renew(renew).await.unwrap_err();
    let (kind, text) = told(&store.renew(renew).await.unwrap_err(), &place, "renew");
    assert_eq!(kind, "not applied", "{text}");
    assert!(text.contains("refused"), "{text}");
    let (kind, _) = told(&options(server.addr()).open().await.unwrap_err(), &place, "open");
    assert_eq!(kind, "not applied");
    // One that is opened later begins while its server is down.
    let later = options(server.addr()).open_later();
    assert_eq!(
        told(&later.inspect(lease()).await.unwrap_err(), &place, "inspect").0,
        "not applied"
    );
    server.start().await;
    assert!(later.inspect(lease()).await.unwrap().unwrap().is_held_by(&me));
    assert!(matches!(store.renew(renew).await.unwrap(), RenewOutcome::Renewed(_)));
}

#[tokio::test]
async fn a_server_that_stands_still_lets_nobody_wait_for_its_connection() {
    let far = far().await;
    far.server.pause();
    let error = options(far.proxy.addr()).open().await.unwrap_err();
    let (kind, text) = far.told(&error, "open");
    assert_eq!(kind, "not applied", "{text}");
    assert!(text.contains("does not answer"), "{text}");
    far.server.resume();
    options(far.proxy.addr()).open().await.unwrap();
}

#[tokio::test]
async fn what_does_not_speak_the_protocol_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let web = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let page = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
            let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, page).await;
        }
    });
    let error = soon(options(addr).user("a", "secret").open()).await.unwrap_err();
    let (kind, text) = told(&error, &place(addr), "open");
    assert_ne!(kind, "ambiguous", "{text}");
    assert!(!text.contains("secret"), "{text}");
    web.abort();
}

#[tokio::test]
async fn a_release_wakes_whoever_listens_also_on_a_new_connection() {
    let far = far().await;
    let mut changes = far.store.changes(lease());
    // To begin with, what was missed may have been a release.
    soon(changes.next()).await.unwrap();
    for is_cut in [false, true] {
        if is_cut {
            far.proxy.cut();
            soon(changes.next()).await.unwrap();
        }
        let mine = acquired(&far.near, &far.me).await;
        let payload = Bytes::from_static(b"here");
        let renew = RenewRequest::new(lease(), &far.me, mine.fence, TTL).payload(&payload);
        far.near.renew(renew).await.unwrap();
        let quiet =
            std::future::poll_fn(|cx| Poll::Ready(changes.poll_next_unpin(cx).is_pending()));
        assert!(quiet.await, "neither of the two is a release");
        far.near.release(ReleaseRequest::new(lease(), &far.me, mine.fence)).await.unwrap();
        soon(changes.next()).await.unwrap();
    }
    // Nor need it be one.
    acquired(&far.near, &far.me).await;
    let hand = hand(&far.server).await;
    let (id, _) = leases(&hand).await[0];
    hand.lease_client().revoke(id).await.unwrap();
    soon(changes.next()).await.unwrap();
}

#[tokio::test]
async fn who_listens_on_a_dead_connection_finds_out() {
    let far = far().await;
    let mut changes = far.store.changes(lease());
    soon(changes.next()).await.unwrap();
    far.proxy.strand();
    soon(changes.next()).await.unwrap();
    let mine = acquired(&far.near, &far.me).await;
    far.near.release(ReleaseRequest::new(lease(), &far.me, mine.fence)).await.unwrap();
    soon(changes.next()).await.unwrap();
}

#[tokio::test]
async fn who_is_not_to_be_woken_is_not() {
    let server = Server::etcd().await;
    let store = options(server.addr()).wake(false).open().await.unwrap();
    assert!(!store.capabilities().watch);
    let mut changes = store.changes(lease());
    // As long as nothing is said, it has been polled.
    assert!(timeout(Duration::from_millis(200), changes.next()).await.is_err());
}

#[tokio::test]
async fn whatever_is_dropped_leaves_no_lease_of_etcd_that_stays() {
    let server = Server::etcd().await;
    let (store, hand) = (open(&server).await, hand(&server).await);
    let (me, payload, ttl) = (Identity::generate(), Bytes::new(), Duration::from_secs(2));
    let mut most = 0;
    for polls in 1.. {
        let name = LeaseName::new(format!("a{polls}")).unwrap();
        let request = AcquireRequest::new(&name, &me, ttl, &payload);
        let mut asked = Box::pin(store.acquire(request));
        let mut done = None;
        for _ in 0..polls {
            done = done.or_else(|| asked.as_mut().now_or_never());
            sleep(Duration::from_millis(5)).await;
        }
        drop(asked);
        most = most.max(leases(&hand).await.len());
        if done.is_some() {
            break;
        }
    }
    assert!(most >= 1, "none was granted");
    until("all of them have ended", async || leases(&hand).await.is_empty()).await;
}

#[tokio::test]
async fn who_is_refused_leaves_no_lease_of_etcd_behind() {
    let server = Server::etcd().await;
    let (store, hand) = (open(&server).await, hand(&server).await);
    let mine = acquired(&store, &Identity::generate()).await;
    for _ in 0..8 {
        let outcome = acquire(&store, &Identity::generate()).await.unwrap();
        assert!(matches!(outcome, AcquireOutcome::Held(seen) if seen.fence == mine.fence));
    }
    let key = store.key(lease());
    let all: Vec<_> = leases(&hand).await.into_iter().map(|(_, keys)| keys).collect();
    assert_eq!(all, [[key.as_str()]]);

    // Also who has seen that it was free, and was late.
    let name = LeaseName::new("b").unwrap();
    let stores: Vec<_> = futures_util::future::join_all((0..6).map(|_| open(&server))).await;
    let (whos, payload) = ([(); 6].map(|()| Identity::generate()), Bytes::new());
    let asked = stores
        .iter()
        .zip(&whos)
        .map(|(store, who)| store.acquire(AcquireRequest::new(&name, who, TTL, &payload)));
    let won = futures_util::future::join_all(asked)
        .await
        .into_iter()
        .filter(|outcome| matches!(outcome.as_ref().unwrap(), AcquireOutcome::Acquired(_)));
    assert_eq!(won.count(), 1);
    let all: BTreeSet<_> = leases(&hand).await.into_iter().map(|(_, keys)| keys).collect();
    assert_eq!(all, [vec![key], vec![store.key(&name)]].into());
}

/// The timers of its connection have gone with their runtime, and panic.
#[tokio::test]
async fn a_store_that_was_opened_elsewhere_connects_anew() {
    let server = Server::etcd().await;
    let addr = server.addr();
    let elsewhere = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(options(addr).open()).unwrap()
    });
    let store = elsewhere.join().unwrap();
    let me = Identity::generate();
    let mine = acquired(&store, &me).await;
    let renewed = store.renew(RenewRequest::new(lease(), &me, mine.fence, TTL)).await.unwrap();
    assert!(matches!(renewed, RenewOutcome::Renewed(record) if record.fence == mine.fence));
}
