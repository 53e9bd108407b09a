//! Keys that are none, who may not read them, and settings that do not fit.

use std::time::Duration;

use buttress_leadership::{
    AcquireOutcome, AcquireRequest, Elector, Identity, LeaseConfig, LeaseName, LeaseStore,
    ReleaseRequest, RenewOutcome, RenewRequest,
};
use buttress_lease_etcd::{
    EtcdOptions, EtcdStore,
    etcd_client::{Client, Compare, CompareOp, ConnectOptions, Permission, PutOptions, Txn, TxnOp},
};
use buttress_servers::{Server, until};
use bytes::Bytes;

use crate::server::{TTL, acquire, acquired, hand, lease, open, options, place, told};

/// It is fatal, and says where and at what.
#[track_caller]
fn fatal(server: &Server, error: &buttress_leadership::StoreError, operation: &str) -> String {
    let (kind, text) = told(error, &place(server.addr()), operation);
    assert_eq!(kind, "fatal", "{text}");
    text
}

#[tokio::test]
async fn what_stands_in_a_key_and_cannot_be_is_an_error_and_no_lease() {
    let server = Server::etcd().await;
    let (store, hand) = (open(&server).await, hand(&server).await);
    let key = store.key(lease());
    let me = Identity::generate();
    let mine = acquired(&store, &me).await;
    let with_lease = PutOptions::new().with_ignore_lease();
    let wrongs: [&[u8]; 6] = [b"", b"\n", b"me", b"\xff\n", b"a\tb\n", b"{\"holder\":\"me\"}"];
    for wrong in wrongs {
        hand.kv_client().put(key.as_str(), wrong, Some(with_lease.clone())).await.unwrap();
        let text = fatal(&server, &acquire(&store, &me).await.unwrap_err(), "acquire");
        assert!(text.contains(&format!("the key `{key}` names no holder")), "{text}");
        fatal(&server, &store.inspect(lease()).await.unwrap_err(), "inspect");
    }
    let renew = RenewRequest::new(lease(), &me, mine.fence, TTL);
    fatal(&server, &store.renew(renew).await.unwrap_err(), "renew");
    let release = ReleaseRequest::new(lease(), &me, mine.fence);
    fatal(&server, &store.release(release).await.unwrap_err(), "release");
    // One that nobody would ever end.
    hand.kv_client().put(key.as_str(), "me\n", None).await.unwrap();
    let text = fatal(&server, &acquire(&store, &me).await.unwrap_err(), "acquire");
    assert!(text.contains("bound to no lease"), "{text}");
    hand.kv_client().delete(key.as_str(), None).await.unwrap();
    assert!(acquired(&store, &me).await.fence > mine.fence);
}

#[tokio::test]
async fn a_key_that_is_in_other_hands_is_lost() {
    let server = Server::etcd().await;
    let (store, hand) = (open(&server).await, hand(&server).await);
    let (me, you) = (Identity::generate(), Identity::generate());
    let mine = acquired(&store, &me).await;
    let renew = RenewRequest::new(lease(), &me, mine.fence, TTL);
    store.renew(renew).await.unwrap();
    let with_lease = PutOptions::new().with_ignore_lease();
    let key = store.key(lease());
    hand.kv_client().put(key, format!("{you}\n"), Some(with_lease)).await.unwrap();
    let RenewOutcome::Lost(Some(seen)) = store.renew(renew).await.unwrap() else {
        panic!("it says another name, and is renewed");
    };
    assert!(seen.is_held_by(&you));
}

#[tokio::test]
async fn who_may_not_come_in_is_told_so_and_nobody_is_told_the_password() {
    let server = Server::etcd().await;
    let hand = hand(&server).await;
    let mut auth = hand.auth_client();
    auth.user_add("root", "correct-horse", None).await.unwrap();
    auth.user_grant_role("root", "root").await.unwrap();
    auth.auth_enable().await.unwrap();
    let refused = async |options: EtcdOptions, why: &str| {
        let shown = format!("{options:?}");
        let store = options.open_later();
        let error = store.inspect(lease()).await.unwrap_err();
        for text in [format!("{error:?}"), error.to_string(), format!("{store:?}"), shown] {
            assert!(!text.contains("battery"), "{text}");
        }
        let text = fatal(&server, &error, "inspect");
        assert!(text.contains(why), "{text}");
    };
    refused(options(server.addr()).user("root", "battery-staple"), "authentication failed").await;
    refused(options(server.addr()).user("nobody", "battery-staple"), "authentication failed").await;
    refused(options(server.addr()), "user name is empty").await;
    let store = options(server.addr()).user("root", "correct-horse").open().await.unwrap();
    acquired(&store, &Identity::generate()).await;
}

/// All that the docs say is needed, and less than that.
#[tokio::test]
async fn who_has_not_all_rights_is_told_so_and_who_is_forgotten_says_it_again() {
    let mut server = Server::etcd().await;
    let anybody = hand(&server).await;
    let mut auth = anybody.auth_client();
    for name in ["root", "who"] {
        auth.user_add(name, "a", None).await.unwrap();
        auth.role_add(name).await.unwrap();
        auth.user_grant_role(name, name).await.unwrap();
    }
    let all = Permission::read_write("buttress/").with_prefix();
    auth.role_grant_permission("who", all).await.unwrap();
    auth.auth_enable().await.unwrap();
    let options = || options(server.addr()).user("who", "a");
    let (store, me) = (options().open().await.unwrap(), Identity::generate());
    let mine = acquired(&store, &me).await;
    let memo = Bytes::from_static(b"memo");
    let renew = RenewRequest::new(lease(), &me, mine.fence, TTL);
    store.renew(renew.memo(&memo)).await.unwrap();
    assert!(store.inspect(lease()).await.unwrap().unwrap().is_held_by(&me));
    assert!(matches!(acquire(&store, &me).await.unwrap(), AcquireOutcome::Held(_)));
    let mut changes = store.changes(lease());
    buttress_servers::soon(futures_util::StreamExt::next(&mut changes)).await.unwrap();
    store.release(ReleaseRequest::new(lease(), &me, mine.fence)).await.unwrap();
    buttress_servers::soon(futures_util::StreamExt::next(&mut changes)).await.unwrap();
    let elsewhere = options().prefix("elsewhere/").open().await.unwrap();
    let text = fatal(&server, &acquire(&elsewhere, &me).await.unwrap_err(), "acquire");
    assert!(text.contains("permission denied"), "{text}");

    let mine = acquired(&store, &me).await;
    let renew = RenewRequest::new(lease(), &me, mine.fence, TTL);
    let as_root = Some(ConnectOptions::new().with_user("root", "a"));
    let root = Client::connect([server.url()], as_root).await.unwrap();
    // The same as before: but who has come in by it has to come again.
    root.auth_client().user_change_password("who", "a").await.unwrap();
    until("it renews", async || {
        store.renew(renew).await.inspect_err(|error| assert!(!error.is_fatal(), "{error}")).is_ok()
    })
    .await;
    // And so everybody has to.
    server.stop().await;
    server.start().await;
    until("it renews", async || {
        store.renew(renew).await.inspect_err(|error| assert!(!error.is_fatal(), "{error}")).is_ok()
    })
    .await;
}

#[tokio::test]
async fn what_is_no_endpoint_is_refused_and_not_repeated() {
    for garbage in [
        "",
        ",",
        "http://a:2379,",
        "http://a:hunter2@host:2379",
        "http://host:hunter2",
        "hunter2://host",
        "host/hunter2",
        "http:///hunter2",
    ] {
        let error = EtcdStore::open(garbage).await.unwrap_err();
        assert!(error.is_fatal(), "{garbage}: {error}");
        for text in [error.to_string(), format!("{error:?}")] {
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
    let error = EtcdStore::open("https://host").await.unwrap_err();
    assert!(error.is_fatal() && error.to_string().contains("`EtcdOptions::tls`"), "{error}");
}

#[tokio::test]
async fn a_lease_that_etcd_cannot_keep_is_refused_or_longer() {
    let server = Server::etcd().await;
    let store = open(&server).await;
    let me = Identity::generate();
    for (millis, granted) in [(0, 2), (1, 2), (1_000, 2), (2_000, 2), (2_001, 3), (9_500, 10)] {
        let name = LeaseName::new(format!("of {millis} ms")).unwrap();
        let (ttl, payload) = (Duration::from_millis(millis), Bytes::new());
        let outcome = store.acquire(AcquireRequest::new(&name, &me, ttl, &payload)).await.unwrap();
        let AcquireOutcome::Acquired(record) = outcome else { panic!("{outcome:?}") };
        assert_eq!(record.granted_ttl, Duration::from_secs(granted), "{ttl:?}");
        let renew = RenewRequest::new(&name, &me, record.fence, ttl);
        let RenewOutcome::Renewed(record) = store.renew(renew).await.unwrap() else {
            panic!("it is lost");
        };
        assert_eq!(record.granted_ttl, Duration::from_secs(granted), "{ttl:?}");
    }
    let name = LeaseName::new("of an age").unwrap();
    let payload = Bytes::new();
    let request = AcquireRequest::new(&name, &me, Duration::MAX, &payload);
    let outcome = store.acquire(request).await.unwrap();
    assert!(matches!(outcome, AcquireOutcome::Acquired(_)), "{outcome:?}");
    for (millis, why) in [(1_000, "at least 2s"), (4_500, "a multiple of 1s")] {
        let config = LeaseConfig::new(lease().clone()).scaled_to(Duration::from_millis(millis));
        let error = Elector::new(store.clone(), config).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[tokio::test]
async fn two_prefixes_are_two_leases_and_a_name_is_one_key() {
    let server = Server::etcd().await;
    let (me, you) = (Identity::generate(), Identity::generate());
    let one = open(&server).await;
    let other = options(server.addr()).prefix("").open().await.unwrap();
    acquired(&one, &me).await;
    let yours = acquired(&other, &you).await;
    assert_eq!((&*one.key(lease()), &*other.key(lease())), ("buttress/lease/a", "lease/a"));
    // The memo of the one is not the lease of the other.
    let name = LeaseName::new("memo/a").unwrap();
    assert!(one.inspect(&name).await.unwrap().is_none());
    assert!(other.inspect(lease()).await.unwrap().unwrap().is_held_by(&you));
    assert_eq!(other.inspect(lease()).await.unwrap().unwrap().fence, yours.fence);
}

/// What is kept beside the leases can be compared with them.
#[tokio::test]
async fn a_write_beside_the_lease_is_fenced_by_its_key() {
    let server = Server::etcd().await;
    let (store, hand) = (open(&server).await, hand(&server).await);
    let (me, you) = (Identity::generate(), Identity::generate());
    let key = store.key(lease());
    let write = async |fence: u64| {
        let is_of = Compare::create_revision(key.as_str(), CompareOp::Equal, fence.cast_signed());
        let txn = Txn::new().when([is_of]).and_then([TxnOp::put("orders/7", "paid", None)]);
        hand.kv_client().txn(txn).await.unwrap().succeeded()
    };
    let mine = acquired(&store, &me).await;
    let memo = Bytes::from_static(b"memo");
    let renew = RenewRequest::new(lease(), &me, mine.fence, TTL);
    store.renew(renew.memo(&memo).payload(&memo)).await.unwrap();
    assert!(write(mine.fence.get()).await);
    store.release(ReleaseRequest::new(lease(), &me, mine.fence)).await.unwrap();
    assert!(!write(mine.fence.get()).await, "nobody has it");
    let yours = acquired(&store, &you).await;
    assert!(!write(mine.fence.get()).await && write(yours.fence.get()).await);
}

#[tokio::test]
async fn after_all_data_is_lost_nothing_is_held_and_tokens_begin_anew() {
    let mut server = Server::etcd().await;
    let (store, me) = (open(&server).await, Identity::generate());
    for _ in 0..8 {
        let mine = acquired(&store, &me).await;
        store.release(ReleaseRequest::new(lease(), &me, mine.fence)).await.unwrap();
    }
    let mine = acquired(&store, &me).await;
    server.kill();
    server.forget();
    server.start().await;
    let renew = RenewRequest::new(lease(), &me, mine.fence, TTL);
    let mut lost = None;
    until("it is lost", async || {
        lost = store.renew(renew).await.ok();
        lost.is_some()
    })
    .await;
    assert_eq!(lost, Some(RenewOutcome::Lost(None)));
    assert!(acquired(&store, &Identity::generate()).await.fence < mine.fence);
}
