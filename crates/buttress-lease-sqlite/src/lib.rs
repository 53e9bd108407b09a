//! Leases in an SQLite file: one leader among the processes of one host, without a server.
//!
//! Three copies of a service on one machine, or one that is replaced by its next version while it still runs,
//! need a leader as much as three machines do, and have no etcd. They have a disk. [`SqliteStore`] keeps the
//! leases of `buttress-leadership` in a file there, by all rules of
//! [`LeaseStore`](buttress_leadership::LeaseStore).
//!
//! ```no_run
//! use buttress_leadership::{Elector, LeaseConfig, LeaseName};
//! use buttress_lease_sqlite::SqliteStore;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let store = SqliteStore::open_or_create("/var/lib/billing/leases.db").await?;
//! let elector = Elector::new(store, LeaseConfig::new(LeaseName::new("billing")?))?;
//! let leadership = elector.leadership();
//! # Ok(())
//! # }
//! ```
//!
//! # One host, and a disk of its own
//!
//! A lease ends by the host's clock that counts from its start, which nobody can set, and which all processes
//! read alike, in containers too. What was written before the host was started last is over: nobody who wrote
//! it is left. So **the file must not be shared between hosts**: another host looks like an earlier start of
//! this one, and both would lead. Locks on network file systems are not to be trusted besides.
//!
//! It works where the host says when it was started, which is Linux; [opening](SqliteOptions::open) is
//! refused elsewhere.
//!
//! # The file
//!
//! One table, `buttress_leases`, with a row a lease. Rows are never deleted, since the token lives in them,
//! and a trigger refuses to. The file may be one that holds other tables, but writers of those make electors
//! wait. To take a lease away by hand:
//!
//! ```sql
//! UPDATE buttress_leases SET holder = NULL, revision = revision + 1 WHERE name = 'billing/nightly';
//! ```
//!
//! If the file is moved away or replaced while it is open, calls fail or go to the new file: never to the one
//! that others do not see any more.
//!
//! # Rollback journal or WAL
//!
//! A file that is made here has SQLite's rollback journal; one that is in WAL mode stays in it and works as
//! well. Leases are a few writes a second, so what WAL is good for, readers beside a writer, is of no use,
//! and one file is easier to keep than three. In both modes a write is on the disk when it is answered
//! (`synchronous` is `EXTRA`): else a crash of the host could take back an election, and give its token
//! again.
//!
//! # What it does not bear
//!
//! A process that is stopped in the middle of a write (SIGSTOP, a debugger) keeps SQLite's lock on the file
//! until it goes on or ends. All calls of the others fail as
//! [busy](buttress_leadership::StoreError::NotApplied) meanwhile. The leader stops in time, and nobody leads:
//! two never do. It is at risk for the milliseconds that a write takes, a few times in each lease.

mod error;
mod host;
mod store;
mod table;
mod worker;

pub use self::{
    error::SqliteError,
    store::{SqliteOptions, SqliteStore},
};
