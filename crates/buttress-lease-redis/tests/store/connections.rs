//! What happens to the connection, and what is known of the call then.

use std::{task::Poll, time::Duration};

use buttress_leadership::{
    AcquireOutcome, Identity, LeaseStore, ReleaseRequest, RenewOutcome, RenewRequest, StoreError,
};
use buttress_lease_redis::RedisStore;
use buttress_servers::{Proxy, Server, Way, soon, until};
use futures_util::{FutureExt, StreamExt};
use tokio::{net::TcpListener, time::timeout};

use crate::server::{Hand, TTL, acquire, acquired, lease, open, options, place, told};

/// A store with a network between it and its server.
struct Far {
    proxy: Proxy,
    server: Server,
    store: RedisStore,
    near: RedisStore,
    me: Identity,
}

async fn far() -> Far {
    let server = Server::redis().await;
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

    async fn revision(&self) -> u64 {
        self.near.inspect(lease()).await.unwrap().map_or(0, |record| record.revision)
    }
}

// leoflow#1199, prom-analytics-proxy#587: locks that go with their connection.
#[tokio::test]
async fn a_lease_does_not_go_with_its_connection() {
    let server = Server::redis().await;
    let (store, me) = (open(&server).await, Identity::generate());
    let mine = acquired(&store, &me).await;
    let renew = RenewRequest::new(lease(), &me, mine.fence, TTL);
    let hand = Hand::at(&server).await;
    for _ in 0..3 {
        let ended: usize = hand.ask("CLIENT KILL TYPE normal SKIPME yes").await.unwrap();
        assert_eq!(ended, 1, "it has one connection");
        until("it is gone", async || hand.others().await == 0).await;
        // That it is dead is seen before anything is sent by it: so it is known that nothing was.
        let renewed = store.renew(renew).await.unwrap();
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
    assert_eq!(far.told(&error, "renew").0, "ambiguous");
    assert_eq!(far.revision().await, mine.revision, "it did not arrive");

    far.proxy.set_both(Way::Open);
    far.store.inspect(lease()).await.unwrap();
    far.proxy.set_back(Way::Reset);
    let error = far.store.renew(renew).await.unwrap_err();
    assert_eq!(far.told(&error, "renew").0, "ambiguous");
    until("it arrived", async || far.revision().await == mine.revision + 1).await;

    // A question has no effect.
    far.proxy.set_both(Way::Open);
    far.store.inspect(lease()).await.unwrap();
    far.proxy.set_back(Way::Reset);
    let error = far.store.inspect(lease()).await.unwrap_err();
    assert_eq!(far.told(&error, "inspect").0, "not applied");
}

#[tokio::test]
async fn an_acquisition_whose_answer_was_lost_is_found_by_its_identity() {
    let far = far().await;
    far.proxy.set_back(Way::Reset);
    let error = acquire(&far.store, &far.me).await.unwrap_err();
    assert_eq!(far.told(&error, "acquire").0, "ambiguous");
    far.proxy.set_back(Way::Open);
    until("it arrived", async || far.revision().await == 1).await;
    let AcquireOutcome::Held(seen) = acquire(&far.store, &far.me).await.unwrap() else {
        panic!("it was acquired twice");
    };
    assert!(seen.is_held_by(&far.me));
}

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

#[tokio::test]
async fn a_server_that_is_down_has_done_nothing_and_is_found_again() {
    let mut server = Server::redis().await;
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
async fn whichever_protocol_is_spoken_and_over_whatever_it_is_the_same_lease() {
    let server = Server::redis().await;
    let addr = server.addr();
    let folder = std::env::temp_dir().join(format!("buttress-socket-{}", addr.port()));
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("redis");
    let socket = tokio::net::UnixListener::bind(&path).unwrap();
    let relay = tokio::spawn(async move {
        let (mut there, _) = socket.accept().await.unwrap();
        let mut on = tokio::net::TcpStream::connect(addr).await.unwrap();
        let _ = tokio::io::copy_bidirectional(&mut there, &mut on).await;
    });
    let (me, near) = (Identity::generate(), open(&server).await);
    let mine = acquired(&near, &me).await;
    let renew = RenewRequest::new(lease(), &me, mine.fence, TTL);
    for (nth, url) in
        [format!("redis://{addr}?protocol=resp3"), format!("redis+unix://{}", path.display())]
            .iter()
            .enumerate()
    {
        let store = RedisStore::open(url).await.unwrap();
        let RenewOutcome::Renewed(record) = store.renew(renew).await.unwrap() else {
            panic!("{url}: it is another one");
        };
        assert_eq!(record.revision, mine.revision + 1 + nth as u64);
        let seen = near.inspect(lease()).await.unwrap().unwrap();
        assert_eq!((seen.holder, seen.revision), (record.holder, record.revision));
    }
    relay.abort();
    std::fs::remove_dir_all(folder).unwrap();
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
    let error = RedisStore::open(&format!("redis://a:secret@{addr}")).await.unwrap_err();
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
        far.near.renew(RenewRequest::new(lease(), &far.me, mine.fence, TTL)).await.unwrap();
        let quiet =
            std::future::poll_fn(|cx| Poll::Ready(changes.poll_next_unpin(cx).is_pending()));
        assert!(quiet.await, "neither of the two is a release");
        far.near.release(ReleaseRequest::new(lease(), &far.me, mine.fence)).await.unwrap();
        soon(changes.next()).await.unwrap();
    }
}

#[tokio::test]
async fn who_is_not_to_be_woken_has_one_connection() {
    let server = Server::redis().await;
    let hand = Hand::at(&server).await;
    for (is_woken, connections) in [(true, 2), (false, 1)] {
        let store = options(server.addr()).wake(is_woken).open().await.unwrap();
        assert_eq!(store.capabilities().watch, is_woken);
        let mut changes = store.changes(lease());
        if is_woken {
            soon(changes.next()).await.unwrap();
        } else {
            // As long as nothing is said, it has been polled.
            assert!(timeout(Duration::from_millis(200), changes.next()).await.is_err());
        }
        assert_eq!(hand.others().await, connections);
        drop((store, changes));
        until("they are gone", async || hand.others().await == 0).await;
    }
}
