//! Leases in the API of Kubernetes: one leader among many pods, with what every cluster has.
//!
//! Who runs in a cluster need not run a database to have a leader. [`KubernetesStore`] keeps the leases of
//! `buttress-leadership` in objects of `coordination.k8s.io/v1`, one a lease, by all rules of
//! [`LeaseStore`](buttress_leadership::LeaseStore). Each change is one `PUT` with the `resourceVersion` of what was read:
//! the server refuses it if anybody has written since.
//!
//! They are the leases that `kubectl get leases` shows, and those of client-go: its candidates and ours may want the
//! [same one](#beside-client-go). What it has not is a **fencing token** with each term, greater than every one before.
//!
//! ```no_run
//! use buttress_leadership::{Elector, LeaseConfig, LeaseName};
//! use buttress_lease_kubernetes::KubernetesStore;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let store = KubernetesStore::open().await?;
//! let elector = Elector::new(store, LeaseConfig::new(LeaseName::new("billing-nightly")?))?;
//! let leadership = elector.leadership();
//! # Ok(())
//! # }
//! ```
//!
//! Two choices are the application's, in its own `Cargo.toml`: for which version of Kubernetes, and by whose TLS. Without
//! the first nothing compiles, and without the second only `http://` is spoken:
//!
//! ```toml
//! k8s-openapi = { version = "0.29", features = ["latest"] }
//! kube = { version = "5", default-features = false, features = ["ring", "rustls-tls"] }
//! ```
//!
//! # Whose clock
//!
//! Each candidate's own ([`Expiry::Observed`]): it takes the lease once it has seen no renewal for as long as the *object*
//! says that it is (`leaseDurationSeconds`), by a clock that nobody sets. It takes it only from the very state that it has
//! seen, so that a renewal which it has missed makes it start over. What it costs: after a leader has died, candidates that
//! were there before wait up to one look longer, and those that come later, and all after a restart of everything, a whole
//! lease. Leases are whole seconds. The times in the object are for people, and those of a
//! [record](buttress_leadership::LeaseRecord) are the observer's.
//!
//! A renewal is a new `renewTime`, and nothing else is one: who edits labels all day keeps no dead leader's lease alive,
//! nor does it cost a living one its term. Ours is always later than the one before, by a microsecond if the clock has been
//! set back, so that none goes unseen.
//!
//! [`Expiry::Observed`]: buttress_leadership::Expiry::Observed
//!
//! # The token
//!
//! It is the `resourceVersion` that the term was written over. It stands in the same write, in the annotation
//! `buttress/term`, so that everybody reads the same, and who loses the answer finds it. It is greater than every one
//! before:
//!
//! - The numbers are of the server's storage, which counts every write of the cluster and goes on counting where an object
//!   is deleted and made again.
//! - A term's token is less than the number of its own first write. Who comes next writes over that or something later.
//! - No object, no number: the first who wants a lease makes it with no holder, and then takes it.
//!
//! `leaseTransitions` is no token: it begins at zero again in an object that was deleted, and others set it.
//!
//! # The object
//!
//! | | |
//! |---|---|
//! | `holderIdentity` | who leads; empty after a release |
//! | `leaseDurationSeconds` | for how long; 1 after a release, as 0 is refused |
//! | `acquireTime`, `renewTime`, `leaseTransitions` | for people, and for client-go |
//! | `buttress/term` | the token, when that term began (in microseconds), and whose it is |
//! | `buttress/payload` | what the leader says of itself, as its address: what is not plain is `%` and two digits |
//! | `buttress/memo` | what leaders leave for those who come after them, written the same way |
//!
//! A name is one that Kubernetes takes: letters in lower case, digits, `-` and `.`. Others are refused, and not rewritten:
//! what you look for with `kubectl` is what you have written. To take a lease away by hand, and wake those who wait for it:
//!
//! ```text
//! kubectl patch lease billing-nightly --type merge -p '{"spec":{"holderIdentity":""}}'
//! ```
//!
//! Or delete it. The rights that it needs, as a `Role`:
//!
//! ```yaml
//! rules:
//!   - apiGroups: ["coordination.k8s.io"]
//!     resources: ["leases"]
//!     verbs: ["get", "create", "update", "watch"]
//! ```
//!
//! # Beside client-go
//!
//! Candidates of client-go (of controllers in Go, and of Kubernetes itself) understand what is written here, and the other
//! way round: one at a time leads, also in the middle of moving from one to the other. But they check no validity before
//! they act, and have no token. A term of theirs has a number here that is between those of the terms before and after,
//! and may be another one for another process. Who checks tokens learns nothing of such a leader: it sends none.
//!
//! # The connection
//!
//! The store has a client of its own: what shares the work's waits for the work just when that is stuck. It is made with
//! the first call, and again after one that was not answered, so that no call waits for a dead connection a second time.
//! Whoever wants another one brings it to [`KubernetesOptions::new`]. Candidates watch on one more, where the server wakes
//! them when a lease is released. That is a hint and no more: it may end, or have forgotten what was, and is asked anew.
//!
//! The client has tasks. They belong to the runtime that it is made on: for an elector [on a thread of its
//! own](buttress_leadership::Elector::spawn_isolated), have it made there, by
//! [`open_later`](KubernetesOptions::open_later).
//!
//! # What it does not bear
//!
//! - **A cluster that is restored** from a snapshot counts from there, and may give numbers again that it had given since.
//!   A candidate that has seen greater tokens takes one that is greater than those. One that has been started since knows
//!   of none: who checks tokens refuses its work, stuck and not split. Where that matters, restore etcd with
//!   `--bump-revision`.
//! - **Another cluster** counts from elsewhere. An object that is moved with its annotations takes its token along, and the
//!   next one is greater; one that is made anew has no token to begin with.
//! - **Who edits holder, times or annotations by hand** decides who leads. What cannot be read is an error, and then nobody
//!   does.

mod connect;
mod error;
mod listen;
mod object;
mod store;
mod text;

pub use kube;

pub use self::{
    error::KubernetesError,
    store::{KubernetesOptions, KubernetesStore},
};
