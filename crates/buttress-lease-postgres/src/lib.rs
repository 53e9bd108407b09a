//! Leases in a PostgreSQL table: one leader among many processes, with the database that is there anyway.
//!
//! Who has a database need not run etcd to have a leader. [`PostgresStore`] keeps the leases of
//! `buttress-leadership` in one table, a row a lease, by all rules of
//! [`LeaseStore`](buttress_leadership::LeaseStore). Each change is one statement on one row.
//!
//! It is no session lock (`pg_advisory_lock`). Such a lock is bound to a connection: it is lost when a pool
//! or a proxy closes that, kept by one that hangs, and it has no token.
//!
//! ```no_run
//! use buttress_leadership::{Elector, LeaseConfig, LeaseName};
//! use buttress_lease_postgres::PostgresStore;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let store = PostgresStore::open_or_create("postgres://billing@db.internal/billing").await?;
//! let elector = Elector::new(store, LeaseConfig::new(LeaseName::new("billing/nightly")?))?;
//! let leadership = elector.leadership();
//! # Ok(())
//! # }
//! ```
//!
//! # Whose clock
//!
//! [`Expiry::Server`] is what you have unless you ask: a lease ends by the server's clock. That is its **wall
//! clock**, and who sets it forward by more than the lease ends each lease at once: for as long as the old
//! leader believes in its own, two lead, whom only their tokens tell apart.
//!
//! With [`Expiry::Observed`] no clock is set against another: a candidate takes the lease once it has seen no
//! renewal for as long as it is long, by its own clock, which nobody sets. It takes it only from the very state
//! that it has seen, so that a renewal which it has missed makes it start over. What it costs: after a leader
//! has died, candidates that were there before wait up to one look longer, and those that come later, and all
//! after a restart of everything, a whole lease. The times of a [record](buttress_leadership::LeaseRecord) are
//! the observer's then: when it first saw the term, and the latest renewal. All who share a table are to have
//! the same.
//!
//! [`Expiry::Server`]: buttress_leadership::Expiry::Server
//! [`Expiry::Observed`]: buttress_leadership::Expiry::Observed
//!
//! # The table
//!
//! [`create_table`](PostgresOptions::create_table) makes `buttress_leases`, in the first schema of the
//! connection's `search_path`, and needs the rights to. To use it needs `SELECT`, `INSERT` and `UPDATE`. Rows
//! are never deleted, since the token lives in them, and a trigger refuses to. To take a lease away by hand,
//! and wake those who wait for it:
//!
//! ```sql
//! UPDATE buttress_leases SET holder = NULL, revision = revision + 1 WHERE name = 'billing/nightly';
//! SELECT pg_notify('buttress_leases', 'billing/nightly');
//! ```
//!
//! # The connection
//!
//! Each store has one of its own: what shares the work's pool waits for the work just when that is stuck. It is
//! made with the first call, and again after one that has failed: a lease does not depend on it. Candidates have
//! a second one, on which the server wakes them when a lease is released.
//!
//! Nothing is spawned: a connection is served by whoever waits for its answer. It belongs to the runtime that it is
//! made on: for an elector [on a thread of its own](buttress_leadership::Elector::spawn_isolated), have it made
//! there, by [`open_later`](PostgresOptions::open_later).
//!
//! # What it does not bear
//!
//! - **A server that forgets.** One that takes over from another without having got all of its writes
//!   (asynchronous replication) may not know of a lease, and gives its token again. Where tokens matter beyond
//!   the leases, have it replicate synchronously. `synchronous_commit = off` is set right by the store, for
//!   itself, and an `UNLOGGED` table is refused.
//! - **Replicas.** They are refused: what they show is old.
//! - **A pooler that changes connections between transactions** (PgBouncer in `transaction` mode) loses the
//!   statement timeout and the wake-ups. Connect around it.

mod connect;
mod error;
mod line;
mod listen;
mod store;
mod table;

pub use tokio_postgres;

pub use self::{
    error::PostgresError,
    store::{PostgresOptions, PostgresStore},
};
