//! Leases in Redis or Valkey: one leader among many processes, with the cache that is there anyway.
//!
//! **Read [what it does not bear](#what-it-does-not-bear) first.** Redis answers before what it has answered is safe,
//! unless it is told otherwise, and then a lease may be forgotten while its holder believes in it. If there is a
//! database, keep leases there.
//!
//! Where there is not, [`RedisStore`] keeps the leases of `buttress-leadership` by all rules of
//! [`LeaseStore`](buttress_leadership::LeaseStore), for as long as the server remembers them. Each call is one script,
//! which is one step. And it has what the usual locks in Redis have not: a **fencing token** with each term, greater
//! than every one before, even if the server has forgotten everything in between. Whoever has the resource check it
//! refuses a leader that is none any more, whatever happened to the lease.
//!
//! ```no_run
//! use buttress_leadership::{Elector, LeaseConfig, LeaseName};
//! use buttress_lease_redis::RedisStore;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let store = RedisStore::open("redis://cache.internal").await?;
//! let elector = Elector::new(store, LeaseConfig::new(LeaseName::new("billing/nightly")?))?;
//! let leadership = elector.leadership();
//! # Ok(())
//! # }
//! ```
//!
//! # What it does not bear
//!
//! - **A server that forgets**: one that starts without its data, restores an old snapshot, or is emptied
//!   (`FLUSHALL`); a replica that is promoted before it has got all writes; a failover of Sentinel, a cluster or a
//!   service. The leader learns of it with its next renewal, and its term ends. Until then a second one may lead.
//!   After a *start* that is prevented: nobody takes a lease before the server has run for as long as the lease is,
//!   which is to be the same for all ([`keeps_all`](RedisOptions::keeps_all) says that this is not needed). After the
//!   others it is not.
//! - **Servers that evict.** With `maxmemory` and another policy than `noeviction` they are refused when it connects.
//! - **Replicas** are refused: what they show is old.
//!
//! What holds then, too: the token of the next term is greater. It is the server's time in microseconds, or one more
//! than the last one if that is more. Only a server that does not know of the last one *and* whose clock is behind it,
//! set back or another server's, gives one that is less. Whoever checks tokens refuses that one until the clock is
//! there: stuck, and not split.
//!
//! More servers (Redlock) make it no safer without a token, and have none. For them there is nothing here.
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
//! after a restart of everything, a whole lease. So they do before the first lease at all, since how long the server
//! has run counts by their clocks as well, unless it [keeps all](RedisOptions::keeps_all). The times of a
//! [record](buttress_leadership::LeaseRecord) are the observer's then: when it first saw the term, and the latest
//! renewal. All who share a lease are to have the same.
//!
//! [`Expiry::Server`]: buttress_leadership::Expiry::Server
//! [`Expiry::Observed`]: buttress_leadership::Expiry::Observed
//!
//! # The keys
//!
//! A lease has two, in one slot of a cluster: `buttress:{name}:lease`, which goes with its end, and
//! `buttress:{name}:fence`, which stays. (In a name, `%` and `}` are written `%25` and `%7D`.) To take a lease away by
//! hand, and wake those who wait for it:
//!
//! ```text
//! DEL buttress:{billing/nightly}:lease
//! PUBLISH buttress:{billing/nightly}:released ""
//! ```
//!
//! A user needs `EVAL`, `INFO`, `TIME`, `HMGET`, `HSET`, `DEL`, `PERSIST`, `PEXPIREAT`, `PUBLISH` and `SUBSCRIBE`, the
//! keys `~buttress:*` and the channels `&buttress:*`.
//!
//! It wants Redis 6 or later, or Valkey, and uses nothing that Valkey has not: but it is tested on Redis 7 only. In a
//! cluster, connect to the server that has the slot: nobody is redirected.
//!
//! # The connection
//!
//! Each store has one of its own: what shares the work's pool waits for the work just when that is stuck. It is
//! made with the first call, and again after one that has failed: a lease does not depend on it. Candidates have
//! a second one, on which the server wakes them when a lease is released. That is a hint and no more: what is published
//! while nobody listens is lost, and they look by themselves too.
//!
//! Nothing is spawned: a connection is served by whoever waits for its answer. It belongs to the runtime that it is
//! made on: for an elector [on a thread of its own](buttress_leadership::Elector::spawn_isolated), have it made
//! there, by [`open_later`](RedisOptions::open_later).

mod connect;
mod error;
mod line;
mod listen;
mod run;
mod scripts;
mod store;

pub use redis;

pub use self::{
    error::RedisError,
    store::{RedisOptions, RedisStore},
};
