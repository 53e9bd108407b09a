//! Tables and rights that are others than they should be, and who may not come in at all.

use std::time::Duration;

use buttress_leadership::{
    AcquireOutcome, Identity, LeaseStore, RenewOutcome, RenewRequest, StoreError,
};
use buttress_lease_postgres::{PostgresOptions, PostgresStore};

use crate::server::{Database, TTL, acquire, acquired, lease, shared, told};

async fn refused(database: &Database) -> String {
    fatal(database, database.options().open().await.unwrap_err(), "open").await
}

async fn fatal(database: &Database, error: StoreError, operation: &str) -> String {
    let (kind, text) = told(&error, &database.place(shared().await.addr()), operation);
    assert_eq!(kind, "fatal", "{text}");
    text
}

#[tokio::test]
async fn what_is_not_there_is_made_only_on_request_and_by_many_at_the_same_time() {
    let database = Database::new().await;
    let text = refused(&database).await;
    assert!(text.contains("no table `buttress_leases`"), "{text}");
    let all = (0..8).map(|_| database.options().create_table(true).open());
    for opened in futures_util::future::join_all(all).await {
        opened.unwrap();
    }
    database.options().open().await.unwrap();
}

#[tokio::test]
async fn a_table_that_is_another_one_is_refused_by_what_differs() {
    let right = "CREATE TABLE buttress_leases (name text PRIMARY KEY, holder text, fence bigint, revision bigint, \
        ttl_ms bigint, acquired_at timestamptz, renewed_at timestamptz, expires_at timestamptz, payload bytea, \
        memo bytea)";
    let cases = [
        ("fence bigint", "fence text", "`fence` of `buttress_leases` is text, not bigint"),
        ("payload bytea", "payload jsonb", "`payload` of `buttress_leases` is jsonb, not bytea"),
        (", memo bytea", "", "no column `memo`"),
        (" PRIMARY KEY", "", "primary key"),
        (
            "text PRIMARY KEY, holder text",
            "text, holder text, PRIMARY KEY (name, holder)",
            "primary key",
        ),
        ("CREATE TABLE", "CREATE UNLOGGED TABLE", "does not outlive a crash"),
        ("CREATE TABLE buttress_leases (", "CREATE TABLE other (", "no table `buttress_leases`"),
    ];
    let database = Database::new().await;
    let hand = database.hand().await;
    for (from, to, why) in cases {
        let other = right.replace(from, to);
        assert_ne!(other, right);
        hand.batch_execute(&format!("DROP TABLE IF EXISTS buttress_leases; {other}"))
            .await
            .unwrap();
        let text = refused(&database).await;
        assert!(text.contains(why), "{text}");
    }
    hand.batch_execute("CREATE VIEW buttress_leases AS SELECT * FROM other").await.unwrap();
    let text = refused(&database).await;
    assert!(text.contains("is a view"), "{text}");
    hand.batch_execute("DROP VIEW buttress_leases").await.unwrap();
    hand.batch_execute(right).await.unwrap();
    database.options().open().await.unwrap();
}

#[tokio::test]
async fn a_database_that_is_not_in_utf8_is_refused() {
    let database =
        Database::on(shared().await, "ENCODING LATIN1 LOCALE 'C' TEMPLATE template0").await;
    let made = database.options().create_table(true).open().await.unwrap_err();
    let text = fatal(&database, made, "open").await;
    assert!(text.contains("LATIN1"), "{text}");
}

#[tokio::test]
async fn who_may_not_come_in_is_told_so_and_nobody_is_told_the_password() {
    let database = Database::new().await;
    let addr = shared().await.addr();
    let hand = database.hand().await;
    let role = "CREATE ROLE {} LOGIN PASSWORD 'correct-horse'";
    let who = format!("who_{}", addr.port());
    hand.batch_execute(&role.replace("{}", &who)).await.unwrap();
    database.store().await;
    let open = async |url: String| {
        let options = PostgresOptions::parse(&url).unwrap();
        let shown = format!("{options:?}");
        let store = options.open_later();
        let error = store.inspect(lease()).await.unwrap_err();
        for text in [format!("{error:?}"), error.to_string(), format!("{store:?}"), shown] {
            assert!(!text.contains("battery"), "{text}");
        }
        fatal(&database, error, "inspect").await
    };
    let text = open(database.url(&format!("{who}:battery-staple"), addr)).await;
    assert!(text.contains("password authentication failed") && text.contains("28P01"), "{text}");
    let text = open(database.url(&who, addr)).await;
    assert!(text.contains("password missing"), "{text}");
    let nowhere = format!("postgres://postgres:battery@{addr}/nowhere");
    let text = PostgresStore::open(&nowhere).await.unwrap_err().to_string();
    assert!(text.contains("\"nowhere\" does not exist") && !text.contains("battery"), "{text}");
    let text = open(database.url("postgres:battery", addr) + "?sslmode=require").await;
    assert!(text.contains("TLS"), "{text}");
}

#[tokio::test]
async fn who_has_not_all_rights_is_told_before_the_first_election() {
    let database = Database::new().await;
    let addr = shared().await.addr();
    database.store().await;
    let hand = database.hand().await;
    let who = format!("reader_{}", addr.port());
    hand.batch_execute(&format!(
        "CREATE ROLE {who} LOGIN PASSWORD 'a'; GRANT SELECT, UPDATE ON buttress_leases TO {who}"
    ))
    .await
    .unwrap();
    let url = database.url(&format!("{who}:a"), addr);
    let open = || PostgresStore::open(&url);
    let text = fatal(&database, open().await.unwrap_err(), "open").await;
    assert!(text.contains("no right to SELECT, INSERT and UPDATE"), "{text}");
    hand.batch_execute(&format!("GRANT INSERT ON buttress_leases TO {who}")).await.unwrap();
    let store = open().await.unwrap();
    let (me, you) = (Identity::generate(), Identity::generate());
    let mine = acquired(&store, &me).await;
    hand.batch_execute(&format!("REVOKE UPDATE ON buttress_leases FROM {who}")).await.unwrap();
    let renewed = store.renew(RenewRequest::new(lease(), &me, mine.fence, TTL)).await;
    let text = fatal(&database, renewed.unwrap_err(), "renew").await;
    assert!(text.contains("permission denied"), "{text}");
    assert!(matches!(acquire(&store, &you).await.unwrap(), AcquireOutcome::Held(_)));
}

#[tokio::test]
async fn what_is_no_connection_string_is_refused_and_not_repeated() {
    for garbage in [
        "",
        "postgres://a:hunter2@host:port/b",
        "postgre://a:hunter2@host/b",
        "host=a password=hunter2 hunter2 hunter2",
        "host=a hunter2=hunter2",
        "postgres://a:hunter2@host/b?hunter2=hunter2",
        "host=a port=hunter2",
    ] {
        // Nothing at all is a string without a host.
        let error = PostgresStore::open(garbage).await.unwrap_err();
        assert!(error.is_fatal(), "{garbage}: {error}");
        for text in [error.to_string(), format!("{error:?}")] {
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}

#[tokio::test]
async fn a_statement_that_has_no_time_is_refused_and_not_given_all_of_it() {
    let database = Database::new().await;
    for timeout in [Duration::ZERO, Duration::from_nanos(999_999)] {
        let options = database.options().create_table(true).statement_timeout(timeout);
        let error = options.open().await.unwrap_err();
        assert!(fatal(&database, error, "open").await.contains("`statement_timeout`"));
    }
}

#[tokio::test]
async fn what_stands_in_a_row_and_cannot_be_is_an_error_and_no_lease() {
    let database = Database::new().await;
    let (store, me) = (database.store().await, Identity::generate());
    let hand = database.hand().await;
    for wrong in [
        "holder = ''",
        "holder = chr(10)",
        "fence = 9223372036854775807, holder = NULL",
        "expires_at = 'infinity'",
    ] {
        hand.batch_execute("DROP TABLE buttress_leases").await.unwrap();
        database.store().await;
        acquired(&store, &me).await;
        hand.batch_execute(&format!("UPDATE buttress_leases SET {wrong}")).await.unwrap();
        let error = acquire(&store, &me).await.unwrap_err();
        fatal(&database, error, "acquire").await;
    }
    // And the table may go while the store is open.
    hand.batch_execute("DROP TABLE buttress_leases").await.unwrap();
    let text = fatal(&database, store.inspect(lease()).await.unwrap_err(), "inspect").await;
    assert!(text.contains("does not exist"), "{text}");
}

#[tokio::test]
async fn who_deletes_a_lease_by_hand_is_told_what_to_do_instead() {
    let database = Database::new().await;
    let (store, hand) = (database.store().await, database.hand().await);
    let (me, you) = (Identity::generate(), Identity::generate());
    let mine = acquired(&store, &me).await;
    for wrong in ["DELETE FROM buttress_leases", "TRUNCATE buttress_leases"] {
        let error = hand.batch_execute(wrong).await.unwrap_err();
        let error = error.as_db_error().unwrap().message();
        assert!(error.contains("set its holder to NULL"), "{error}");
    }
    hand.batch_execute("UPDATE buttress_leases SET holder = NULL, revision = revision + 1")
        .await
        .unwrap();
    let renewed = store.renew(RenewRequest::new(lease(), &me, mine.fence, TTL)).await.unwrap();
    assert!(matches!(renewed, RenewOutcome::Lost(Some(_))));
    assert!(acquired(&store, &you).await.fence > mine.fence);
}

const LIFT: &str = include_str!("../../../../docs/recipes/lift.sql");

#[tokio::test]
async fn who_lifts_a_token_by_hand_ends_the_term_and_the_next_is_above_and_none_falls() {
    let database = Database::new().await;
    let (store, hand) = (database.store().await, database.hand().await);
    let (me, you) = (Identity::generate(), Identity::generate());
    let mine = acquired(&store, &me).await;
    let name = lease().as_str();
    assert_eq!(hand.execute(LIFT, &[&11_i64, &name]).await.unwrap(), 1);
    let renewed = store.renew(RenewRequest::new(lease(), &me, mine.fence, TTL)).await.unwrap();
    assert!(matches!(renewed, RenewOutcome::Lost(Some(_))));
    assert_eq!(acquired(&store, &you).await.fence.get(), 12);
    let lifted = hand.execute(LIFT, &[&12_i64, &name]).await.unwrap();
    assert_eq!(lifted, 0, "a term that is above goes on");
}

#[tokio::test]
async fn what_is_answered_is_on_the_disk_whatever_the_role_prefers() {
    let database = Database::new().await;
    let hand = database.hand().await;
    let of = database.name.clone();
    hand.batch_execute(&format!(
        "ALTER DATABASE {of} SET synchronous_commit = off;
        ALTER DATABASE {of} SET default_transaction_isolation = 'serializable'"
    ))
    .await
    .unwrap();
    let store = database.store().await;
    hand.batch_execute(
        "CREATE TABLE said (what text);
        CREATE FUNCTION say() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO said VALUES (current_setting('synchronous_commit')), (current_setting('transaction_isolation'));
            RETURN NEW;
        END $$;
        CREATE TRIGGER say BEFORE INSERT ON buttress_leases FOR EACH ROW EXECUTE PROCEDURE say()",
    )
    .await
    .unwrap();
    acquired(&store, &Identity::generate()).await;
    let said = hand.query("SELECT what FROM said", &[]).await.unwrap();
    let said: Vec<String> = said.iter().map(|row| row.get(0)).collect();
    assert_eq!(said, ["on", "read committed"]);
}
