//! In SQLite: threads, each with a connection of its own to one file.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
    time::Duration,
};

use rusqlite::{Connection, Transaction, TransactionBehavior::Immediate, params};

use super::{CHECK, RAISE, ROW, TABLE, WRITERS, assert_fenced, tokens};

/// What the tests keep beside the recipes: the row that they write, and which tokens were let in, in order.
const SCHEMA: &str = "
CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, fence INTEGER NOT NULL);
INSERT INTO accounts VALUES (7, 0, 0);
CREATE TABLE accepted (nth INTEGER PRIMARY KEY AUTOINCREMENT, token INTEGER NOT NULL);
";

/// Of a transaction that is alone in the whole file, SQLite knows no share.
fn check() -> String {
    CHECK.replace("FOR SHARE", "")
}

/// A file of a test's own, which goes with it.
struct File(PathBuf);

impl File {
    fn new() -> Self {
        static FILES: AtomicUsize = AtomicUsize::new(0);
        let nth = FILES.fetch_add(1, Relaxed);
        let name = format!("buttress-fencing-{}-{nth}", std::process::id());
        let file = Self(std::env::temp_dir().join(name));
        file.open().execute_batch(&format!("{SCHEMA}{TABLE}")).unwrap();
        file
    }

    /// A connection of its own, that waits for others as long as it takes.
    fn open(&self) -> Connection {
        let connection = Connection::open(&self.0).unwrap();
        connection.busy_timeout(Duration::from_secs(60)).unwrap();
        connection.pragma_update(None, "synchronous", "off").unwrap();
        connection
    }

    fn accepted(&self) -> Vec<i64> {
        let connection = self.open();
        let mut tokens = connection.prepare("SELECT token FROM accepted ORDER BY nth").unwrap();
        tokens.query_map((), |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Writes under a token, if it is let in.
type Write = fn(&mut Connection, i64) -> rusqlite::Result<bool>;

/// By the fence in the row itself.
fn by_row(connection: &mut Connection, token: i64) -> rusqlite::Result<bool> {
    let transaction = connection.transaction_with_behavior(Immediate)?;
    if transaction.execute(ROW, params![token * 100, token, 7])? == 0 {
        return Ok(false);
    }
    note(transaction, token)
}

/// By the guard's row, which each transaction raises.
fn by_guard(connection: &mut Connection, token: i64) -> rusqlite::Result<bool> {
    let transaction = connection.transaction_with_behavior(Immediate)?;
    if transaction.execute(RAISE, params!["orders", token])? == 0 {
        return Ok(false);
    }
    note(transaction, token)
}

/// By the guard's row, which the term has raised as it began.
fn by_guard_of_the_term(connection: &mut Connection, token: i64) -> rusqlite::Result<bool> {
    if connection.execute(RAISE, params!["orders", token])? == 0 {
        return Ok(false);
    }
    // Whatever else happens meanwhile: here a writer may stand still.
    thread::yield_now();
    let transaction = connection.transaction_with_behavior(Immediate)?;
    if !transaction.prepare(&check())?.exists(params!["orders", token])? {
        return Ok(false);
    }
    note(transaction, token)
}

/// As it is without a fence.
fn unfenced(connection: &mut Connection, token: i64) -> rusqlite::Result<bool> {
    let transaction = connection.transaction_with_behavior(Immediate)?;
    note(transaction, token)
}

/// Notes it, as any write to any table.
fn note(transaction: Transaction<'_>, token: i64) -> rusqlite::Result<bool> {
    transaction.execute("INSERT INTO accepted (token) VALUES (?)", [token])?;
    transaction.commit()?;
    Ok(true)
}

const RECIPES: [Write; 3] = [by_row, by_guard, by_guard_of_the_term];

#[test]
fn a_write_of_a_former_leader_changes_nothing() {
    for write in RECIPES {
        let file = File::new();
        let mut connection = file.open();
        for (token, is_let_in) in [(33, true), (33, true), (34, true), (33, false), (34, true)] {
            assert_eq!(write(&mut connection, token).unwrap(), is_let_in, "{token}");
        }
        assert_eq!(file.accepted(), [33, 33, 34, 34]);
    }
    let file = File::new();
    let mut connection = file.open();
    for token in [34, 33] {
        assert!(unfenced(&mut connection, token).unwrap());
    }
    assert_eq!(file.accepted(), [34, 33], "what happens without");
}

#[test]
fn the_row_has_what_the_newest_leader_wrote() {
    let file = File::new();
    let mut connection = file.open();
    for token in [34, 33] {
        by_row(&mut connection, token).unwrap();
    }
    let row = connection.query_one("SELECT balance, fence FROM accounts", (), |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?))
    });
    assert_eq!(row.unwrap(), (3400, 34));
}

// LDR-02
#[test]
fn however_old_and_new_writers_race_what_is_accepted_never_decreases() {
    for write in RECIPES {
        let file = File::new();
        let refused = thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let mut connection = file.open();
                    let mut is_refused = move |token| !write(&mut connection, token).unwrap();
                    scope.spawn(move || tokens(writer).filter(|token| is_refused(*token)).count())
                })
                .collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).sum()
        });
        assert_fenced(&file.accepted(), refused);
    }
}
