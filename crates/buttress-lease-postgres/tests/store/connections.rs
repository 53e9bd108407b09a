//! What happens to the connection, and what is known of the call then.

use std::{task::Poll, time::Duration};

use buttress_leadership::{
    AcquireOutcome, Identity, LeaseStore, ReleaseRequest, RenewOutcome, RenewRequest, StoreError,
};
use buttress_lease_postgres::PostgresStore;
use buttress_servers::{Proxy, Server, Way, soon, until};
use futures_util::{FutureExt, StreamExt};
use tokio::{net::TcpListener, time::timeout};

use crate::server::{Database, TTL, acquire, acquired, lease, shared, told};

/// A store with a network between it and its server.
struct Far {
    proxy: Proxy,
    database: Database,
    store: PostgresStore,
    me: Identity,
}

async fn far() -> Far {
    let proxy = Proxy::to(shared().await.addr()).await;
    let database = Database::new().await;
    let store = database.options_by(proxy.addr()).create_table(true).open().await.unwrap();
    Far { proxy, database, store, me: Identity::generate() }
}

impl Far {
    #[track_caller]
    fn told(&self, error: &StoreError, operation: &str) -> (&'static str, String) {
        told(error, &self.database.place(self.proxy.addr()), operation)
    }

    async fn revision(&self) -> u64 {
        let near = self.database.store().await;
        near.inspect(lease()).await.unwrap().map_or(0, |record| record.revision)
    }
}

// leoflow#1199, prom-analytics-proxy#587: locks that go with their connection.
#[tokio::test]
async fn a_lease_does_not_go_with_its_connection() {
    let database = Database::new().await;
    let (store, me) = (database.store().await, Identity::generate());
    let mine = acquired(&store, &me).await;
    let renew = RenewRequest::new(lease(), &me, mine.fence, TTL);
    let hand = database.hand().await;
    for _ in 0..3 {
        // It is answered when they are gone.
        let ended = hand
            .query(
                "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity
                WHERE datname = current_database() AND application_name = 'buttress-lease'",
                &[],
            )
            .await
            .unwrap();
        assert_eq!(ended.len(), 1, "it has one connection");
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
    // It looks first, which needs no lock, and then writes.
    let hand = far.database.hand().await;
    hand.batch_execute("BEGIN; LOCK TABLE buttress_leases IN SHARE MODE").await.unwrap();
    let mut asked = Box::pin(acquire(&far.store, &far.me));
    until("it waits for the lock", async || {
        let waits =
            "SELECT FROM pg_locks WHERE relation = 'buttress_leases'::regclass AND NOT granted";
        assert!(asked.as_mut().now_or_never().is_none());
        hand.query(waits, &[]).await.unwrap().len() == 1
    })
    .await;
    far.proxy.set_back(Way::Reset);
    hand.batch_execute("COMMIT").await.unwrap();
    assert_eq!(far.told(&asked.await.unwrap_err(), "acquire").0, "ambiguous");
    far.proxy.set_back(Way::Open);
    let AcquireOutcome::Held(seen) = acquire(&far.store, &far.me).await.unwrap() else {
        panic!("it was acquired twice");
    };
    assert!(seen.is_held_by(&far.me) && seen.fence.get() == 1);
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
    let mut server = Server::postgres().await;
    let database = Database::on(&server, "").await;
    let (store, me) = (database.store().await, Identity::generate());
    let mine = acquired(&store, &me).await;
    let renew = RenewRequest::new(lease(), &me, mine.fence, TTL);
    server.stop().await;
    let place = database.place(server.addr());
    // The first may have been sent before it was seen that nobody listens.
    let _ = store.renew(renew).await.unwrap_err();
    let (kind, text) = told(&store.renew(renew).await.unwrap_err(), &place, "renew");
    assert_eq!(kind, "not applied", "{text}");
    assert!(text.contains("refused"), "{text}");
    let (kind, _) = told(&database.options().open().await.unwrap_err(), &place, "open");
    assert_eq!(kind, "not applied");
    // One that is opened later begins while its server is down.
    let later = database.options().open_later();
    assert_eq!(
        told(&later.inspect(lease()).await.unwrap_err(), &place, "inspect").0,
        "not applied"
    );
    server.start().await;
    assert!(later.inspect(lease()).await.unwrap().unwrap().is_held_by(&me));
    assert!(matches!(store.renew(renew).await.unwrap(), RenewOutcome::Renewed(_)));
}

#[tokio::test]
async fn a_server_that_is_a_replica_now_is_left_for_one_that_can_write() {
    let server = Server::postgres().await;
    let database = Database::on(&server, "").await;
    let (store, me) = (database.store().await, Identity::generate());
    let mine = acquired(&store, &me).await;
    let renew = RenewRequest::new(lease(), &me, mine.fence, TTL);
    let hand = database.hand().await;
    hand.batch_execute("ALTER SYSTEM SET default_transaction_read_only = on").await.unwrap();
    hand.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    let place = database.place(server.addr());
    // It hears of its settings before the next statement, or after.
    let mut error = None;
    until("it cannot write", async || {
        error = store.renew(renew).await.err();
        error.is_some()
    })
    .await;
    let (kind, text) = told(&error.unwrap(), &place, "renew");
    assert_eq!(kind, "not applied", "{text}");
    assert!(text.contains("25006"), "{text}");
    let (kind, text) = told(&store.inspect(lease()).await.unwrap_err(), &place, "inspect");
    assert_eq!(kind, "not applied", "{text}");
    assert!(text.contains("does not allow writes"), "what it shows is old: {text}");
    hand.batch_execute("SET default_transaction_read_only = off").await.unwrap();
    hand.batch_execute("ALTER SYSTEM RESET default_transaction_read_only").await.unwrap();
    hand.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    until("it can write", async || store.renew(renew).await.is_ok()).await;
}

#[tokio::test]
async fn what_does_not_speak_the_protocol_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let web = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let page = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n";
            tokio::io::AsyncWriteExt::write_all(&mut stream, page).await.unwrap();
        }
    });
    let error = PostgresStore::open(&format!("postgres://a:secret@{addr}/b")).await.unwrap_err();
    let (kind, text) = told(&error, &format!("{addr}/b"), "open");
    assert_ne!(kind, "ambiguous", "{text}");
    assert!(!text.contains("secret"), "{text}");
    web.abort();
}

#[tokio::test]
async fn a_row_that_somebody_holds_is_waited_for_and_then_nothing_is_done() {
    let database = Database::new().await;
    let (first, me) = (database.store().await, Identity::generate());
    let mine = acquired(&first, &me).await;
    let store =
        database.options().statement_timeout(Duration::from_millis(50)).open().await.unwrap();
    let hand = database.hand().await;
    hand.batch_execute("BEGIN; SELECT FROM buttress_leases FOR UPDATE").await.unwrap();
    let renew = RenewRequest::new(lease(), &me, mine.fence, TTL);
    let error = soon(store.renew(renew)).await.unwrap_err();
    let (kind, text) = told(&error, &database.place(shared().await.addr()), "renew");
    assert_eq!(kind, "not applied", "{text}");
    assert!(text.contains("statement timeout"), "{text}");
    assert!(store.inspect(lease()).await.unwrap().is_some(), "to look needs no lock");
    hand.batch_execute("ROLLBACK").await.unwrap();
    assert!(matches!(store.renew(renew).await.unwrap(), RenewOutcome::Renewed(_)));
}

#[tokio::test]
async fn nothing_is_waited_for_longer_than_whoever_asks_waits_whatever_is_set() {
    let database = Database::new().await;
    let (first, me) = (database.store().await, Identity::generate());
    let mine = acquired(&first, &me).await;
    let hour = || database.options().statement_timeout(Duration::from_secs(3600));
    let hand = database.hand().await;
    hand.batch_execute("BEGIN; SELECT FROM buttress_leases FOR UPDATE").await.unwrap();
    let renew = RenewRequest::new(lease(), &me, mine.fence, TTL).limit(Duration::from_millis(50));
    // On a connection that was there before the limit was known, and on one that comes later.
    for store in [hour().open().await.unwrap(), hour().open_later()] {
        let error = soon(store.renew(renew)).await.unwrap_err();
        let (kind, text) = told(&error, &database.place(shared().await.addr()), "renew");
        assert_eq!(kind, "not applied", "{text}");
        assert!(text.contains("statement timeout"), "{text}");
    }
    hand.batch_execute("ROLLBACK").await.unwrap();
}

#[tokio::test]
async fn a_release_wakes_whoever_listens_also_on_a_new_connection() {
    let far = far().await;
    let near = far.database.store().await;
    let mut changes = far.store.changes(lease());
    // To begin with, what was missed may have been a release.
    soon(changes.next()).await.unwrap();
    for is_cut in [false, true] {
        if is_cut {
            far.proxy.cut();
            soon(changes.next()).await.unwrap();
        }
        let mine = acquired(&near, &far.me).await;
        near.renew(RenewRequest::new(lease(), &far.me, mine.fence, TTL)).await.unwrap();
        let quiet =
            std::future::poll_fn(|cx| Poll::Ready(changes.poll_next_unpin(cx).is_pending()));
        assert!(quiet.await, "neither of the two is a release");
        near.release(ReleaseRequest::new(lease(), &far.me, mine.fence)).await.unwrap();
        soon(changes.next()).await.unwrap();
    }
}

#[tokio::test]
async fn who_is_not_to_be_woken_has_one_connection() {
    let database = Database::new().await;
    let hand = database.hand().await;
    let all = "SELECT FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'buttress-lease'";
    for (is_woken, connections) in [(true, 2), (false, 1)] {
        let store = database.options().create_table(true).wake(is_woken).open().await.unwrap();
        assert_eq!(store.capabilities().watch, is_woken);
        let mut changes = store.changes(lease());
        if is_woken {
            soon(changes.next()).await.unwrap();
        } else {
            // As long as nothing is said, it has been polled.
            assert!(timeout(Duration::from_millis(200), changes.next()).await.is_err());
        }
        assert_eq!(hand.query(all, &[]).await.unwrap().len(), connections);
        drop((store, changes));
        until("they are gone", async || hand.query(all, &[]).await.unwrap().is_empty()).await;
    }
}
