//! The resilience stack for tower.
//!
//! A remote call can succeed, fail, hang, succeed with the answer lost, or half succeed, and its caller
//! cannot tell which. Each pattern here handles one part of that; this crate is all of them, in the order
//! in which they work together. [`Standard`] is that order in one line, with settings that are checked
//! as a whole:
//!
#![cfg_attr(feature = "standard", doc = "```")]
#![cfg_attr(not(feature = "standard"), doc = "```ignore")]
//! use std::time::Duration;
//!
//! use buttress::{Cause, Standard};
//! use tower::{Layer, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), buttress::BoxError> {
//! let price = service_fn(|item: u64| async move { Ok::<_, std::io::Error>(Some(item * 2)) });
//!
//! let stack = Standard::generic()
//!     .total(Duration::from_secs(2))
//!     .attempt(Duration::from_millis(500))
//!     .fallback(|_: &Cause<Option<u64>>| None) // no price today
//!     .build()?;
//! assert_eq!(stack.layer(price).oneshot(21).await?, Some(42));
//! # Ok(())
//! # }
//! ```
//!
//! and spelled out, it is this:
//!
#![cfg_attr(feature = "standard", doc = "```")]
#![cfg_attr(not(feature = "standard"), doc = "```ignore")]
//! # use std::time::Duration;
//! use buttress::{
//!     Backoff, Breaker, BreakerLayer, BreakerSettings, Budget, Bulkhead, BulkheadLayer, Cause,
//!     DeadlineLayer, FallbackLayer, RetryLayer, TimeoutLayer,
//! };
//! use tower::{ServiceBuilder, ServiceExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), buttress::BoxError> {
//! # let price = tower::service_fn(|item: u64| async move { Ok::<_, std::io::Error>(Some(item * 2)) });
//! let breaker = Breaker::new(BreakerSettings::default().slow_call(Duration::from_millis(250)))?;
//!
//! let client = ServiceBuilder::new()
//!     .layer(FallbackLayer::respond_with(|_: &Cause<Option<u64>>| None))
//!     .layer(BulkheadLayer::new(Bulkhead::default()))
//!     .layer(DeadlineLayer::new(Duration::from_secs(2)))
//!     .layer(RetryLayer::new(Backoff::default(), Budget::default()))
//!     .layer(BreakerLayer::new(breaker))
//!     .layer(TimeoutLayer::new(Duration::from_millis(500)))
//!     .service(price);
//! assert_eq!(client.oneshot(21).await?, Some(42));
//! # Ok(())
//! # }
//! ```
//!
//! For HTTP clients there is `Standard::http`: statuses, `Retry-After`, which requests may be sent twice,
//! and a breaker for each host. The README wraps one of hyper's. For gRPC there is `Standard::grpc`, whose
//! breaker waits for the trailers.
//!
//! # Order
//!
//! A layer sees what the layers inside it answer, and nothing of those outside. So the order is the
//! meaning. This one, outermost first, is that of .NET's standard resilience handler, with a fallback
//! outside it:
//!
//! ```text
//! Fallback > Bulkhead > Deadline (total) > Retry > Breaker > Timeout (attempt) > service
//! ```
//!
//! | layer | asks | stands there because | elsewhere |
//! |---|---|---|---|
//! | fallback | what if there is no answer? | it sees every way to have none | inside the retry it would answer for an attempt, and hide that there are more |
//! | bulkhead | is there room to ask? | a request counts once, with all its attempts and the waits between them | inside the retry a request that waits to be repeated gives up its place, and the crowd behind it grows |
//! | deadline | how long is an answer worth having? | it ends attempts *and* the waits between them | inside the retry it is one more attempt timeout, and three of them take three times as long |
//! | retry | may it be asked again? | each attempt asks the breaker anew | inside the breaker three failures look like one, and an open breaker cannot stop a repeat |
//! | breaker | is it worth asking? | it sees each attempt's end, timeouts among them | inside the timeout a hanging service is never counted: the breaker's call is dropped before it can report |
//! | timeout | how long may one attempt take? | next to the service, it cuts one attempt and no more | outside the retry it is a deadline |
//!
//! What follows from it: an open breaker, a full bulkhead or a passed deadline is answered at once, and is
//! never repeated; a request makes at most three attempts, also when two stacks are nested; nothing
//! starts that the deadline has no room for.
//!
//! # Parts
//!
//! Each pattern is a crate of its own, behind a feature of this one. What is used most is here under its own
//! name, all of it in the module of the pattern's name, as in [`retry::Token`]. What a service wrapped by them answers is the service's own response, and a
//! [`BoxError`]; [`find`] looks inside. Ours are two: [`Rejected`] means that the callee never saw the
//! request, and [`Elapsed`] that the outcome is unknown.
//!
//! | feature | brings | on by default |
//! |---|---|---|
//! | `standard` | [`Standard`], and the six patterns of a client | yes |
//! | `http` | [`http`](crate::http): classes, bodies, adapters for HTTP, hyper's among them | yes |
//! | `reqwest`, `tonic` | the adapters for reqwest and for tonic's channel, and their errors | no |
//! | `breaker`, `bulkhead`, `deadline`, `fallback`, `retry` | each pattern alone | by `standard` |
//! | `leadership` | [`LeadershipLayer`], and the [`Elector`] of one leader among many processes | no |
//! | `lease-etcd` | [`lease_etcd`]: leases in etcd. Its build wants `protoc` | no |
//! | `lease-kubernetes` | [`lease_kubernetes`]: leases in the API of Kubernetes | no |
//! | `lease-postgres` | [`lease_postgres`]: leases in a table, with the database that is there anyway | no |
//! | `lease-redis` | [`lease_redis`]: leases in Redis or Valkey, which may forget them | no |
//! | `lease-sqlite` | [`lease_sqlite`]: leases in a file, for the processes of one host | no |
//! | `shed` | [`ShedLayer`], admission for servers; with `deadline` and `http`, `ServerStandard` | no |
//! | `serde` | settings from files, with durations as `"250ms"` | no |

mod check;
#[cfg(all(feature = "deadline", feature = "http", feature = "shed"))]
mod server;
#[cfg(feature = "standard")]
mod standard;

pub use buttress_core::{
    Both, BoxError, Class, Classify, CloneReplay, Context, Deadline, Discard, Elapsed,
    ErrorsAsFailures, Fence, FenceGuard, FenceStore, FencingToken, Health, HealthSignal,
    InvalidSetting, Kept, KeptClone, KeyOf, LeaseId, Limit, Mark, NoReplay, NotAToken, Observe,
    OneHop, Permit, RaiseError, Reading, Reason, Rejected, Repeat, Replay, Scope, StaleFence,
    Substitute, Verdict, edge, find, judge,
};

#[cfg(feature = "breaker")]
pub use buttress_breaker::{
    self as breaker, Breaker, BreakerLayer, BreakerService, BreakerSettings, Breakers, Select,
    State, Window,
};
#[cfg(feature = "bulkhead")]
pub use buttress_bulkhead::{
    self as bulkhead, Bulkhead, BulkheadLayer, BulkheadService, BulkheadSettings,
};
#[cfg(feature = "deadline")]
pub use buttress_deadline::{
    self as deadline, CarryLayer, ConnectTimeout, ConnectTimeoutLayer, DeadlineLayer,
    DeadlineService, EntryLayer, EntryService, ResumeLayer, TimeoutLayer, TimeoutService,
};
#[cfg(feature = "fallback")]
pub use buttress_fallback::{self as fallback, Cause, FallbackLayer, FallbackService, NoFallback};
#[cfg(feature = "http")]
pub use buttress_http as http;
#[cfg(feature = "leadership")]
pub use buttress_leadership::{
    self as leadership, Elector, Identity, LeaderTerm, Leadership, LeadershipLayer,
    LeadershipService, LeaseConfig, LeaseName, LeaseStore, Lock, NotLeading, ResignPolicy,
};
#[cfg(feature = "lease-etcd")]
pub use buttress_lease_etcd as lease_etcd;
#[cfg(feature = "lease-kubernetes")]
pub use buttress_lease_kubernetes as lease_kubernetes;
#[cfg(feature = "lease-postgres")]
pub use buttress_lease_postgres as lease_postgres;
#[cfg(feature = "lease-redis")]
pub use buttress_lease_redis as lease_redis;
#[cfg(feature = "lease-sqlite")]
pub use buttress_lease_sqlite as lease_sqlite;
#[cfg(feature = "retry")]
pub use buttress_retry::{
    self as retry, Backoff, Budget, BudgetSettings, RetryLayer, RetryService, RetrySettings,
};
#[cfg(feature = "shed")]
pub use buttress_shed::{
    self as shed, FixedLimit, Priority, Shed, ShedLayer, ShedService, ShedSettings,
};

pub use self::check::check;
#[cfg(all(feature = "deadline", feature = "http", feature = "shed"))]
pub use self::server::{ServerBuilder, ServerService, ServerStandard};
#[cfg(feature = "standard")]
pub use self::standard::*;

#[cfg(doctest)]
mod chapters;
