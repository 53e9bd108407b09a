//! Leases in etcd: one leader among many processes, with the store that was made for it.
//!
//! etcd answers when a majority of its members has written what it answers, and ends leases by a clock that nobody
//! sets. [`EtcdStore`] keeps the leases of `buttress-leadership` there, by all rules of
//! [`LeaseStore`](buttress_leadership::LeaseStore): a key and a lease of etcd for each term, and each change one
//! transaction.
//!
//! It is not etcd's own election (`v3election`, or `concurrency` of its client for Go). That may answer that one leads
//! whose lease is over and whose key is gone, and it never says until when one does.
//!
//! ```no_run
//! use buttress_leadership::{Elector, LeaseConfig, LeaseName};
//! use buttress_lease_etcd::EtcdStore;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let store = EtcdStore::open("etcd-0.etcd:2379,etcd-1.etcd:2379,etcd-2.etcd:2379").await?;
//! let elector = Elector::new(store, LeaseConfig::new(LeaseName::new("billing/nightly")?))?;
//! let leadership = elector.leadership();
//! # Ok(())
//! # }
//! ```
//!
//! **To build it there has to be `protoc`**, with the files that all others import: Debian has them as
//! `protobuf-compiler` and `libprotobuf-dev`. Its client, `etcd-client`, compiles etcd's protocol with it.
//!
//! # Whose clock
//!
//! A lease ends by a clock of the cluster's leader, which nobody can set, and which tells no time: so the times of a
//! [record](buttress_leadership::LeaseRecord) are of the process that has asked, and how much is left is known to a
//! second.
//!
//! A lease is as long as it says, **or longer**. After the cluster has chosen another leader, it begins anew: whoever
//! waits for the lease of one that has died waits for up to twice as long then, and for the cluster's own election.
//! Leases are of two seconds at least, or of one and a half times the members' election timeout if that is more, in
//! whole seconds: what is shorter becomes as long as that, and what is between the next whole one.
//!
//! # What a renewal proves
//!
//! etcd keeps a lease alive without looking at the key, which somebody may have deleted, and the member that says so
//! may be a leader of the cluster that is none any more, and does not know: one that stood still for a while.
//! So each renewal also reads the key, which a majority has to agree to. The lease is renewed if the key is still that
//! of the term, *and* if who has kept the lease alive leads the cluster by the same term as who has read the key.
//! Nothing is written for it.
//!
//! # What it does not bear
//!
//! - **Members that end leases too early.** One that stood still, comes to itself, and takes itself for the cluster's
//!   leader may end leases that another one has renewed meanwhile
//!   ([etcd#15247](https://github.com/etcd-io/etcd/issues/15247); mended in 3.4.31 and 3.5.13). The leader learns of it with its next renewal, and its term ends. Until then a second one may lead, whom
//!   its token tells apart.
//! - **A cluster that forgets everything** begins anew with its revisions, and so with its tokens.
//! - **A restored snapshot** takes revisions back, and so tokens, unless it is restored with `--bump-revision`.
//!   Whoever checks tokens refuses new leaders then: stuck, and not split.
//!
//! # The keys
//!
//! A lease has three: `buttress/lease/{name}`, which is there while it is held and goes with its end,
//! `buttress/fence/{name}` and `buttress/memo/{name}`, which stay. The revision that the first is created at is the
//! token: what is kept in the same etcd can be written in a transaction that compares it. [`EtcdStore::key`] names it.
//! To take a lease away by hand, and wake those who wait for it:
//!
//! ```text
//! etcdctl del buttress/lease/billing/nightly
//! ```
//!
//! A user needs to read and write the prefix `buttress/`. It is tested on etcd 3.4, and uses nothing that later ones
//! have not.
//!
//! # The connection
//!
//! Each store has one of its own, to one member: what shares the work's pool waits for the work just when that is
//! stuck. It is made with the first call, and again after one that has failed, to the next member: a lease does not
//! depend on it. A member that knows of no leader is left at once. Candidates have a second one, on which the server
//! wakes them when the key is gone. That is a hint and no more: they look by themselves too.
//!
//! Nothing is spawned: a connection is served by whoever waits for its answer. It belongs to the runtime that it is
//! made on, and is made anew on another one: for an elector [on a thread of its
//! own](buttress_leadership::Elector::spawn_isolated), have it made there, by [`open_later`](EtcdOptions::open_later).

mod connect;
mod error;
mod keys;
mod line;
mod listen;
mod store;
mod times;

pub use etcd_client;
/// What gRPC calls errors. See [`EtcdError::code`].
pub use tonic::Code;

pub use self::{
    error::EtcdError,
    store::{EtcdOptions, EtcdStore},
};
