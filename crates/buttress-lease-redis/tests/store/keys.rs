//! Keys and rights that are others than they should be, and who may not come in at all.

use buttress_leadership::{Identity, LeaseStore, RenewOutcome, RenewRequest, StoreError};
use buttress_lease_redis::{RedisOptions, RedisStore};
use buttress_servers::Server;

use crate::server::{Hand, TTL, acquire, acquired, lease, open, place, told};

fn fatal(server: &Server, error: &StoreError, operation: &str) -> String {
    let (kind, text) = told(error, &place(server.addr()), operation);
    assert_eq!(kind, "fatal", "{text}");
    text
}

#[tokio::test]
async fn what_stands_in_a_key_and_cannot_be_is_an_error_and_no_lease() {
    let server = Server::redis().await;
    let (store, me) = (open(&server).await, Identity::generate());
    let hand = Hand::at(&server).await;
    for (wrong, why) in [
        ("HSET buttress:{a}:fence fence many", "no lease of ours"),
        ("HSET buttress:{a}:fence fence 99999999999999999", "no lease of ours"),
        ("HSET buttress:{a}:fence fence -7", "no lease of ours"),
        ("HSET buttress:{a}:fence fence 0", "a token that is none"),
        ("HDEL buttress:{a}:fence revision", "no lease of ours"),
        ("HDEL buttress:{a}:lease expires_us", "no lease of ours"),
        ("HSET buttress:{a}:lease expires_us never", "no lease of ours"),
        ("HSET buttress:{a}:lease ttl_ms 1e3", "no lease of ours"),
        ("HSET buttress:{a}:lease holder \n", "a holder that is none"),
        ("SET buttress:{a}:lease me", "WRONGTYPE"),
        ("SET buttress:{a}:fence 7", "WRONGTYPE"),
    ] {
        hand.tell("FLUSHALL").await;
        acquired(&store, &me).await;
        hand.tell(wrong).await;
        for error in [
            acquire(&store, &Identity::generate()).await.map(drop).unwrap_err(),
            acquire(&store, &me).await.map(drop).unwrap_err(),
        ] {
            let text = fatal(&server, &error, "acquire");
            assert!(text.contains(why), "{wrong}: {text}");
        }
    }
    // There is none that is greater.
    hand.tell("FLUSHALL").await;
    hand.tell("HSET buttress:{a}:fence fence 9007199254740991 revision 1").await;
    let text = fatal(&server, &acquire(&store, &me).await.unwrap_err(), "acquire");
    assert!(text.contains("no greater token"), "{text}");
}

#[tokio::test]
async fn a_lease_that_is_taken_away_by_hand_is_lost_and_its_token_is_kept() {
    let server = Server::redis().await;
    let (store, hand) = (open(&server).await, Hand::at(&server).await);
    let (me, you) = (Identity::generate(), Identity::generate());
    for half in ["lease", "fence"] {
        let mine = acquired(&store, &me).await;
        hand.tell(&format!("DEL buttress:{{a}}:{half}")).await;
        let renewed = store.renew(RenewRequest::new(lease(), &me, mine.fence, TTL)).await.unwrap();
        let RenewOutcome::Lost(seen) = renewed else { panic!("what is gone was renewed") };
        assert_eq!(seen.map(|seen| seen.fence), (half == "lease").then_some(mine.fence));
        let yours = acquired(&store, &you).await;
        assert!(yours.fence > mine.fence);
        hand.tell("DEL buttress:{a}:lease").await;
    }
}

#[tokio::test]
async fn who_may_not_come_in_is_told_so_and_nobody_is_told_the_password() {
    let server = Server::redis().await;
    let hand = Hand::at(&server).await;
    hand.tell("ACL SETUSER who on >correct-horse ~* &* +@all").await;
    let open = async |user: &str, why: &str| {
        let url = format!("redis://{user}{}", server.addr());
        let options = RedisOptions::parse(&url).unwrap();
        let shown = format!("{options:?}");
        let store = options.open_later();
        let error = store.inspect(lease()).await.unwrap_err();
        for text in [format!("{error:?}"), error.to_string(), format!("{store:?}"), shown] {
            assert!(!text.contains("battery"), "{text}");
        }
        let text = fatal(&server, &error, "inspect");
        assert!(text.contains(why), "{text}");
    };
    open("who:battery-staple@", "authentication failed").await;
    open("nobody:battery-staple@", "authentication failed").await;
    hand.tell("ACL SETUSER default off").await;
    open("", "NOAUTH").await;
    let url = format!("redis://who:correct-horse@{}/99", server.addr());
    let error = RedisStore::open(&url).await.unwrap_err();
    let (kind, text) = told(&error, &format!("{}/99", server.addr()), "open");
    assert!(kind == "fatal" && text.contains("DB index"), "{text}");
    RedisStore::open(&url.replace("/99", "/9")).await.unwrap();
}

/// All that the docs say is needed, and less than that.
#[tokio::test]
async fn who_has_not_all_rights_is_told_so() {
    let server = Server::redis().await;
    let hand = Hand::at(&server).await;
    let all = "ACL SETUSER who on >a ~buttress:* &buttress:* +eval +info +time +hmget +hset +del \
               +persist +pexpireat +publish +subscribe";
    hand.tell(&all.split_whitespace().collect::<Vec<_>>().join(" ")).await;
    let url = format!("redis://who:a@{}", server.addr());
    let store = RedisOptions::parse(&url).unwrap().keeps_all(true).open().await.unwrap();
    let me = Identity::generate();
    let mine = acquired(&store, &me).await;
    let release = buttress_leadership::ReleaseRequest::new(lease(), &me, mine.fence);
    store.renew(RenewRequest::new(lease(), &me, mine.fence, TTL)).await.unwrap();
    let mut changes = store.changes(lease());
    buttress_servers::soon(futures_util::StreamExt::next(&mut changes)).await.unwrap();
    store.release(release).await.unwrap();
    hand.tell("ACL SETUSER who -hset").await;
    let text = fatal(&server, &acquire(&store, &me).await.unwrap_err(), "acquire");
    assert!(text.contains("can't run this command"), "{text}");
    hand.tell("ACL SETUSER who -info").await;
    let text = fatal(&server, &RedisStore::open(&url).await.unwrap_err(), "open");
    assert!(text.contains("NOPERM") && text.contains("info"), "{text}");
}

#[tokio::test]
async fn what_is_no_url_is_refused_and_not_repeated() {
    for garbage in [
        "",
        "hunter2",
        "redis://a:hunter2@host:port/0",
        "redi://a:hunter2@host",
        "redis://a:hunter2@host/hunter2",
        "redis://a:hunter2@host?protocol=hunter2",
        "redis://:hunter2@",
        "rediss://a:hunter2@host",
        "valkeys://a:hunter2@host",
    ] {
        let error = RedisStore::open(garbage).await.unwrap_err();
        assert!(error.is_fatal(), "{garbage}: {error}");
        for text in [error.to_string(), format!("{error:?}")] {
            assert!(!text.contains("hunter2"), "{text}");
            assert_eq!(
                text.contains("`RedisOptions::tls`"),
                garbage.contains("s://a:hunter2@host") && !garbage.starts_with("redis:"),
                "{text}"
            );
        }
    }
}
