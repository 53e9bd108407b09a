use std::{path::Path, time::Duration};

use buttress_leadership::{
    LeaseClock,
    testing::{self, Subject},
};
use buttress_lease_sqlite::{SqliteOptions, SqliteStore};
use rusqlite::Connection;

use crate::folder::{Folder, PATIENT};

/// Two ways to one file, as two processes have, by a clock that jumps.
struct Pair {
    one: SqliteStore,
    other: SqliteStore,
    clock: LeaseClock,
}

impl Subject for Pair {
    type Store = SqliteStore;

    fn store(&self) -> &SqliteStore {
        &self.one
    }

    fn another_way(&self) -> &SqliteStore {
        &self.other
    }

    async fn pass(&self, time: Duration) {
        self.clock.suspend(time);
    }

    /// Each is a write to the disk, several times.
    fn rounds(&self) -> usize {
        40
    }

    /// The clock runs on while disks are slow. What it is told to jump is a minute and more.
    fn ttl(&self) -> Duration {
        Duration::from_secs(600)
    }
}

async fn pair(path: &Path) -> Pair {
    let clock = LeaseClock::simulated();
    let open =
        || SqliteOptions::new(path).create(true).busy_timeout(PATIENT).clock(clock.clone()).open();
    Pair { one: open().await.unwrap(), other: open().await.unwrap(), clock: clock.clone() }
}

#[tokio::test]
async fn it_keeps_to_the_rules() {
    let folder = Folder::new();
    testing::conformance(&pair(&folder.file("leases.db")).await).await.assert();
}

#[tokio::test]
async fn it_keeps_to_the_rules_in_a_file_in_wal_mode() {
    let (folder, mode) = (Folder::new(), "PRAGMA journal_mode = WAL");
    let path = folder.file("leases.db");
    let db = Connection::open(&path).unwrap();
    let mode_is: String = db.query_row(mode, [], |row| row.get(0)).unwrap();
    assert_eq!(mode_is, "wal");
    testing::conformance(&pair(&path).await).await.assert();
    let mode_is: String = db.query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
    assert_eq!(mode_is, "wal", "it stays in it");
}
