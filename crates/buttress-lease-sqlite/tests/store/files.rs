use std::{error::Error, fs, path::Path, time::Duration};

use buttress_leadership::{
    AcquireOutcome, AcquireRequest, FencingToken, Identity, LeaseName, LeaseRecord, LeaseStore,
    ReleaseRequest, RenewOutcome, RenewRequest, StoreError,
};
use buttress_lease_sqlite::{SqliteError, SqliteOptions, SqliteStore};
use bytes::Bytes;
use rusqlite::Connection;

use crate::folder::{Folder, PATIENT};

const TTL: Duration = Duration::from_secs(600);

fn lease() -> LeaseName {
    LeaseName::new("a").unwrap()
}

async fn acquire(store: &SqliteStore, who: &Identity) -> Result<AcquireOutcome, StoreError> {
    store.acquire(AcquireRequest::new(&lease(), who, TTL, &Bytes::new())).await
}

async fn acquired(store: &SqliteStore, who: &Identity) -> LeaseRecord {
    match acquire(store, who).await.unwrap() {
        AcquireOutcome::Acquired(record) => record,
        AcquireOutcome::Held(record) => panic!("held: {record:?}"),
    }
}

/// The error's kind, and that it names the file and the call.
#[track_caller]
fn told(error: &StoreError, path: &Path, operation: &str) -> (&'static str, String) {
    let cause: &SqliteError = error.source().unwrap().downcast_ref().unwrap();
    assert_eq!((cause.path(), cause.operation()), (path, operation));
    let text = error.to_string();
    assert!(text.contains(&*path.to_string_lossy()) && text.contains(operation), "{text}");
    let kind = match error {
        StoreError::NotApplied(_) => "not applied",
        StoreError::Ambiguous(_) => "ambiguous",
        StoreError::Fatal(_) => "fatal",
    };
    (kind, text)
}

async fn refused(path: &Path) -> String {
    let error = SqliteStore::open(path).await.unwrap_err();
    let (kind, text) = told(&error, path, "open");
    assert_eq!(kind, "fatal", "{text}");
    text
}

#[tokio::test]
async fn what_is_not_there_is_made_only_on_request() {
    let folder = Folder::new();
    let path = folder.file("leases.db");
    let text = refused(&path).await;
    assert!(text.contains("No such file") && text.contains("`open_or_create`"), "{text}");
    assert!(!path.exists(), "to open it made it");
    drop(Connection::open(&path).unwrap());
    let text = refused(&path).await;
    assert!(text.contains("no table `buttress_leases`"), "{text}");
    SqliteStore::open_or_create(&path).await.unwrap();
    SqliteStore::open_or_create(&path).await.unwrap();
    SqliteStore::open(&path).await.unwrap();
    // No folder is made, and what is no file to SQLite is refused.
    let deep = folder.file("no/such/folder.db");
    let error = SqliteStore::open_or_create(&deep).await.unwrap_err();
    assert_eq!(told(&error, &deep, "open").0, "fatal");
    for path in [":memory:", ""] {
        let error = SqliteStore::open_or_create(path).await.unwrap_err();
        assert_eq!(told(&error, Path::new(path), "open").0, "fatal");
    }
}

#[tokio::test]
async fn what_is_no_database_is_refused_and_left_as_it_is() {
    let folder = Folder::new();
    let (path, text) = (folder.file("notes.txt"), "a file that is no database at all".repeat(99));
    fs::write(&path, &text).unwrap();
    let said = refused(&path).await;
    assert!(said.contains("not a database"), "{said}");
    let error = SqliteStore::open_or_create(&path).await.unwrap_err();
    assert_eq!(told(&error, &path, "open").0, "fatal");
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
    let error = SqliteStore::open_or_create(folder.path()).await.unwrap_err();
    assert_eq!(told(&error, folder.path(), "open").0, "fatal", "a folder");
}

#[tokio::test]
async fn a_table_that_is_another_one_is_refused_by_what_differs() {
    let folder = Folder::new();
    let right = "name TEXT NOT NULL PRIMARY KEY, holder TEXT, fence INTEGER, revision INTEGER, boot TEXT, \
         acquired_ns INTEGER, renewed_ns INTEGER, expires_ns INTEGER, payload BLOB, memo BLOB";
    let cases = [
        ("fence INTEGER", "fence TEXT", "`fence` of `buttress_leases` is TEXT, not INTEGER"),
        (", memo BLOB", "", "no column `memo`"),
        (" PRIMARY KEY", "", "primary key"),
    ];
    for (nth, (from, to, why)) in cases.into_iter().enumerate() {
        let path = folder.file(&format!("{nth}.db"));
        let columns = right.replace(from, to);
        let db = Connection::open(&path).unwrap();
        db.execute_batch(&format!("CREATE TABLE buttress_leases ({columns})")).unwrap();
        let text = refused(&path).await;
        assert!(text.contains(why), "{text}");
        let error = SqliteStore::open_or_create(&path).await.unwrap_err();
        assert_eq!(told(&error, &path, "open").0, "fatal");
    }
}

#[tokio::test]
async fn what_stands_in_a_row_and_cannot_be_is_an_error_and_no_lease() {
    let folder = Folder::new();
    let path = folder.file("leases.db");
    let store = SqliteStore::open_or_create(&path).await.unwrap();
    let me = Identity::generate();
    let db = Connection::open(&path).unwrap();
    for wrong in ["holder = ''", "holder = char(10)", "fence = 9223372036854775807, holder = NULL"]
    {
        db.execute_batch("DROP TABLE buttress_leases").unwrap();
        SqliteStore::open_or_create(&path).await.unwrap();
        acquired(&store, &me).await;
        db.execute_batch(&format!("UPDATE buttress_leases SET {wrong}")).unwrap();
        let error = acquire(&store, &me).await.unwrap_err();
        assert_eq!(told(&error, &path, "acquire").0, "fatal", "{wrong}");
    }
    // And the table may go while it is open.
    db.execute_batch("DROP TABLE buttress_leases").unwrap();
    let error = store.inspect(&lease()).await.unwrap_err();
    assert_eq!(told(&error, &path, "inspect").0, "fatal");
}

#[tokio::test]
async fn who_deletes_a_lease_by_hand_is_told_what_to_do_instead() {
    let folder = Folder::new();
    let path = folder.file("leases.db");
    let store = SqliteStore::open_or_create(&path).await.unwrap();
    let (me, you) = (Identity::generate(), Identity::generate());
    let mine = acquired(&store, &me).await;
    let db = Connection::open(&path).unwrap();
    let error = db.execute_batch("DELETE FROM buttress_leases").unwrap_err().to_string();
    assert!(error.contains("set its holder to NULL"), "{error}");
    db.execute_batch("UPDATE buttress_leases SET holder = NULL").unwrap();
    let renewed = store.renew(RenewRequest::new(&lease(), &me, mine.fence, TTL)).await.unwrap();
    assert!(matches!(renewed, RenewOutcome::Lost(Some(_))));
    assert!(acquired(&store, &you).await.fence > mine.fence);
}

const LIFT: &str = include_str!("../../../../docs/recipes/lift.sql");

#[tokio::test]
async fn who_lifts_a_token_by_hand_ends_the_term_and_the_next_is_above_and_none_falls() {
    let folder = Folder::new();
    let path = folder.file("leases.db");
    let store = SqliteStore::open_or_create(&path).await.unwrap();
    let (me, you) = (Identity::generate(), Identity::generate());
    let mine = acquired(&store, &me).await;
    let db = Connection::open(&path).unwrap();
    let lift = |to: i64| db.execute(LIFT, (to, lease().as_str())).unwrap();
    assert_eq!(lift(11), 1);
    let renewed = store.renew(RenewRequest::new(&lease(), &me, mine.fence, TTL)).await.unwrap();
    assert!(matches!(renewed, RenewOutcome::Lost(Some(_))));
    assert_eq!(acquired(&store, &you).await.fence.get(), 12);
    assert_eq!(lift(12), 0, "a term that is above goes on");
}

#[tokio::test]
async fn a_lease_from_before_the_host_was_started_is_over_and_its_token_is_not() {
    let folder = Folder::new();
    let path = folder.file("leases.db");
    let store = SqliteStore::open_or_create(&path).await.unwrap();
    let (me, you) = (Identity::generate(), Identity::generate());
    let mine = acquired(&store, &me).await;
    let db = Connection::open(&path).unwrap();
    db.execute_batch("UPDATE buttress_leases SET boot = 'an earlier one'").unwrap();
    let seen = store.inspect(&lease()).await.unwrap().unwrap();
    assert!(seen.is_expired() && seen.leader().is_none() && seen.fence == mine.fence);
    let renewed = store.renew(RenewRequest::new(&lease(), &me, mine.fence, TTL)).await.unwrap();
    assert!(matches!(renewed, RenewOutcome::Lost(Some(_))));
    assert!(acquired(&store, &you).await.fence > mine.fence);
}

#[tokio::test]
async fn a_lock_that_others_hold_is_waited_for_and_then_nothing_is_done() {
    let folder = Folder::new();
    let path = folder.file("leases.db");
    let wait = Duration::from_millis(20);
    let store = SqliteOptions::new(&path).create(true).busy_timeout(wait).open().await.unwrap();
    let me = Identity::generate();
    let db = Connection::open(&path).unwrap();
    db.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = acquire(&store, &me).await.unwrap_err();
    let (kind, text) = told(&error, &path, "acquire");
    assert_eq!(kind, "not applied", "{text}");
    assert!(text.contains("locked"), "{text}");
    assert_eq!(store.inspect(&lease()).await.unwrap(), None, "to look needs no lock");
    db.execute_batch("ROLLBACK").unwrap();
    acquired(&store, &me).await;
}

/// In a rollback journal, who reads keeps a write from ending.
#[tokio::test]
async fn a_write_that_readers_keep_from_ending_is_not_done() {
    let folder = Folder::new();
    let path = folder.file("leases.db");
    let wait = Duration::from_millis(20);
    let store = SqliteOptions::new(&path).create(true).busy_timeout(wait).open().await.unwrap();
    let me = Identity::generate();
    let fence = acquired(&store, &me).await.fence;
    let db = Connection::open(&path).unwrap();
    db.execute_batch("BEGIN").unwrap();
    let _: i64 =
        db.query_row("SELECT count(*) FROM buttress_leases", [], |row| row.get(0)).unwrap();
    let error = store.release(ReleaseRequest::new(&lease(), &me, fence)).await.unwrap_err();
    assert_eq!(told(&error, &path, "release").0, "not applied");
    db.execute_batch("COMMIT").unwrap();
    let seen = store.inspect(&lease()).await.unwrap().unwrap();
    assert!(seen.is_held_by(&me), "it was rolled back");
    store.release(ReleaseRequest::new(&lease(), &me, fence)).await.unwrap();
}

#[tokio::test]
async fn a_file_that_is_gone_is_not_made_again_and_one_in_its_place_is_used() {
    let folder = Folder::new();
    let (path, away) = (folder.file("leases.db"), folder.file("away.db"));
    let store = SqliteStore::open_or_create(&path).await.unwrap();
    let me = Identity::generate();
    let mine = acquired(&store, &me).await;
    fs::rename(&path, &away).unwrap();
    let renew = || async { store.renew(RenewRequest::new(&lease(), &me, mine.fence, TTL)).await };
    let error = renew().await.unwrap_err();
    assert_eq!(told(&error, &path, "renew").0, "fatal");
    assert!(!path.exists());
    let other = SqliteStore::open_or_create(&path).await.unwrap();
    assert_eq!(renew().await.unwrap(), RenewOutcome::Lost(None), "who opens it sees the same");
    let you = Identity::generate();
    assert_eq!(acquired(&other, &you).await.fence, FencingToken::new(1).unwrap());
    fs::rename(&away, &path).unwrap();
    assert!(matches!(renew().await.unwrap(), RenewOutcome::Renewed(_)));
}

#[tokio::test]
async fn a_call_that_nobody_waits_for_any_more_is_not_begun() {
    let folder = Folder::new();
    let path = folder.file("leases.db");
    let store = SqliteOptions::new(&path).create(true).busy_timeout(PATIENT).open().await.unwrap();
    let db = Connection::open(&path).unwrap();
    db.execute_batch("BEGIN IMMEDIATE").unwrap();
    let (me, payload) = (Identity::generate(), Bytes::new());
    let (name, other) = (lease(), LeaseName::new("b").unwrap());
    let waits = store.acquire(AcquireRequest::new(&other, &me, TTL, &payload));
    let dropped = store.acquire(AcquireRequest::new(&name, &me, TTL, &payload));
    let (mut waits, mut dropped) = (Box::pin(waits), Box::pin(dropped));
    std::future::poll_fn(|cx| {
        assert!(waits.as_mut().poll(cx).is_pending() && dropped.as_mut().poll(cx).is_pending());
        std::task::Poll::Ready(())
    })
    .await;
    drop(dropped);
    db.execute_batch("ROLLBACK").unwrap();
    assert!(matches!(waits.await.unwrap(), AcquireOutcome::Acquired(_)));
    assert_eq!(store.inspect(&name).await.unwrap(), None);
}
