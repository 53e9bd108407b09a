//! Servers that forget, and what their tokens are worth then.

use std::time::Duration;

use buttress_leadership::{
    AcquireOutcome, AcquireRequest, Expiry, Identity, LeaseClock, LeaseStore, ReleaseRequest,
    RenewOutcome, RenewRequest, StoreCapabilities,
};
use buttress_lease_redis::{RedisOptions, redis};
use buttress_servers::{Server, until};
use bytes::Bytes;

use crate::server::{Hand, TTL, acquire, acquired, lease, open, options, place, told};

#[tokio::test]
async fn after_a_flush_the_old_leader_has_lost_and_the_next_token_is_greater() {
    for expiry in [Expiry::Server, Expiry::Observed] {
        let server = Server::redis().await;
        let store = options(server.addr()).expiry(expiry).open().await.unwrap();
        let (me, you) = (Identity::generate(), Identity::generate());
        let mine = acquired(&store, &me).await;
        let renew = RenewRequest::new(lease(), &me, mine.fence, TTL);
        Hand::at(&server).await.tell("FLUSHALL").await;
        assert_eq!(store.renew(renew).await.unwrap(), RenewOutcome::Lost(None));
        let yours = acquired(&store, &you).await;
        assert!(yours.fence > mine.fence);
        let RenewOutcome::Lost(Some(seen)) = store.renew(renew).await.unwrap() else {
            panic!("two lead");
        };
        assert!(seen.is_held_by(&you));
    }
}

#[tokio::test]
async fn after_all_data_is_lost_the_next_token_is_greater() {
    let mut server = Server::redis().await;
    let store = open(&server).await;
    let (me, you) = (Identity::generate(), Identity::generate());
    let mine = acquired(&store, &me).await;
    server.kill();
    server.forget();
    server.start().await;
    let lost = store.renew(RenewRequest::new(lease(), &me, mine.fence, TTL)).await.unwrap();
    assert_eq!(lost, RenewOutcome::Lost(None));
    assert!(acquired(&store, &you).await.fence > mine.fence);
}

#[tokio::test]
async fn tokens_grow_by_one_while_the_clock_is_behind() {
    let server = Server::redis_with_clock().await;
    let store = open(&server).await;
    server.set_ahead(3 * TTL);
    let first = acquired(&store, &Identity::generate()).await.fence.get();
    let hand = Hand::at(&server).await;
    for next in 1..4 {
        server.set_ahead(Duration::ZERO);
        hand.tell("DEL buttress:{a}:lease").await;
        assert_eq!(acquired(&store, &Identity::generate()).await.fence.get(), first + next);
    }
}

#[tokio::test]
async fn a_token_outlives_everything_even_if_somebody_gives_it_an_end() {
    let server = Server::redis().await;
    let (store, hand) = (open(&server).await, Hand::at(&server).await);
    acquired(&store, &Identity::generate()).await;
    hand.tell("EXPIRE buttress:{a}:fence 100").await;
    store.inspect(lease()).await.unwrap();
    assert_eq!(hand.ask::<i64>("TTL buttress:{a}:fence").await.unwrap(), -1);
    let left = hand.ask::<i64>("TTL buttress:{a}:lease").await.unwrap();
    assert!((1..=600).contains(&left), "{left}");
}

/// How long that is, each sees by its own clock.
#[tokio::test]
async fn from_a_server_that_has_just_started_nobody_takes_a_lease_until_what_it_forgot_is_over() {
    for expiry in [Expiry::Server, Expiry::Observed] {
        let mut server = Server::redis().await;
        let clock = LeaseClock::simulated();
        let options =
            || RedisOptions::parse(&server.url()).unwrap().expiry(expiry).clock(clock.clone());
        let store = options().open().await.unwrap();
        let (me, you) = (Identity::generate(), Identity::generate());
        clock.suspend(TTL);
        let mine = acquired(&store, &me).await;
        server.kill();
        server.forget();
        server.start().await;
        let error = acquire(&store, &you).await.unwrap_err();
        let (kind, text) = told(&error, &place(server.addr()), "acquire");
        assert_eq!(kind, "not applied", "{text}");
        assert!(text.contains("may have forgotten a lease"), "{text}");
        // It knows by when the old leader has given up.
        clock.suspend(TTL - Duration::from_secs(1));
        assert!(acquire(&store, &you).await.is_err());
        // Other connections to it make it no younger.
        Hand::at(&server).await.tell("CLIENT KILL TYPE normal SKIPME yes").await;
        clock.suspend(Duration::from_secs(1));
        assert!(acquired(&store, &you).await.fence > mine.fence);
        // And whoever says that it forgets nothing need not wait.
        server.kill();
        server.start().await;
        let sure = RedisOptions::parse(&server.url()).unwrap().expiry(expiry).keeps_all(true);
        let sure = sure.open().await.unwrap();
        let other = buttress_leadership::LeaseName::new("other").unwrap();
        let nothing = Bytes::new();
        let request = AcquireRequest::new(&other, &me, TTL, &nothing);
        assert!(matches!(sure.acquire(request).await.unwrap(), AcquireOutcome::Acquired(_)));
    }
}

/// By its own clock, which is not believed where none is.
#[tokio::test]
async fn a_server_is_as_old_as_it_says_for_those_who_go_by_its_clock() {
    let server = Server::redis_with_clock().await;
    // It looks at its clock ten times a second.
    server.set_ahead(2 * TTL);
    let hand = Hand::at(&server).await;
    until("it is old", async || {
        let said: String = hand.ask("INFO server").await.unwrap();
        let uptime = said.lines().find_map(|line| line.strip_prefix("uptime_in_seconds:"));
        uptime.unwrap().trim().parse::<u64>().unwrap() > TTL.as_secs()
    })
    .await;
    for (expiry, is_old) in [(Expiry::Observed, false), (Expiry::Server, true)] {
        let store = RedisOptions::parse(&server.url()).unwrap().expiry(expiry);
        let taken = acquire(&store.open().await.unwrap(), &Identity::generate()).await;
        assert_eq!(taken.is_ok(), is_old, "{taken:?}");
    }
}

#[tokio::test]
async fn a_server_that_evicts_or_is_a_replica_is_refused() {
    let server = Server::redis().await;
    let hand = Hand::at(&server).await;
    hand.tell("CONFIG SET maxmemory 100mb maxmemory-policy volatile-lru").await;
    let error = options(server.addr()).open().await.unwrap_err();
    let (kind, text) = told(&error, &place(server.addr()), "open");
    assert_eq!(kind, "fatal", "{text}");
    assert!(text.contains("`maxmemory-policy` is volatile-lru"), "{text}");
    hand.tell("CONFIG SET maxmemory-policy noeviction").await;

    let (store, me) = (open(&server).await, Identity::generate());
    let mine = acquired(&store, &me).await;
    let renew = RenewRequest::new(lease(), &me, mine.fence, TTL);
    hand.tell("REPLICAOF 127.0.0.1 1").await;
    let (kind, text) =
        told(&store.inspect(lease()).await.unwrap_err(), &place(server.addr()), "inspect");
    assert_eq!(kind, "not applied", "{text}");
    assert!(text.contains("READONLY"), "what it shows is old: {text}");
    let (kind, text) = told(&store.renew(renew).await.unwrap_err(), &place(server.addr()), "renew");
    assert_eq!(kind, "not applied", "{text}");
    assert!(text.contains("is a slave"), "{text}");
    hand.tell("REPLICAOF NO ONE").await;
    assert!(matches!(store.renew(renew).await.unwrap(), RenewOutcome::Renewed(_)));
}

#[tokio::test]
async fn a_lease_ends_on_time_even_if_somebody_takes_the_end_of_its_key_away() {
    let server = Server::redis_with_clock().await;
    let (store, me) = (open(&server).await, Identity::generate());
    let mine = acquired(&store, &me).await;
    Hand::at(&server).await.tell("PERSIST buttress:{a}:lease").await;
    server.set_ahead(TTL);
    let renewed = store.renew(RenewRequest::new(lease(), &me, mine.fence, TTL)).await.unwrap();
    assert!(matches!(renewed, RenewOutcome::Lost(Some(record)) if record.is_expired()));
    acquired(&store, &Identity::generate()).await;
}

/// Of the work's data it takes no more: a leader that lost its lease then would be one trouble more.
#[tokio::test]
async fn a_server_that_is_full_goes_on_with_leases() {
    let server = Server::redis().await;
    let (store, me) = (open(&server).await, Identity::generate());
    let hand = Hand::at(&server).await;
    let mine = acquired(&store, &me).await;
    hand.tell("CONFIG SET maxmemory 1").await;
    let full = hand.ask::<redis::Value>("SET a b").await.unwrap_err();
    assert_eq!(full.code(), Some("OOM"));
    let renewed = store.renew(RenewRequest::new(lease(), &me, mine.fence, TTL)).await.unwrap();
    assert!(matches!(renewed, RenewOutcome::Renewed(_)));
    store.release(ReleaseRequest::new(lease(), &me, mine.fence)).await.unwrap();
    assert!(acquired(&store, &Identity::generate()).await.fence > mine.fence);
}

#[tokio::test]
async fn what_it_can_do_is_said() {
    let server = Server::redis().await;
    let able: StoreCapabilities = open(&server).await.capabilities();
    assert!(able.watch && able.fence == buttress_leadership::FenceSource::Time);
    assert_eq!(able.server_clock, buttress_leadership::ServerClock::Wall);
}
