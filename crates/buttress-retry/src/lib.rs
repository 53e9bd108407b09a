//! Budgeted, jittered, deadline-aware retries for tower services.
//!
//! Most failures of a remote call pass: a packet is lost, a process restarts, a leader is elected. To ask
//! again mends them. But whoever asks again adds load, and does so exactly when the callee has none to
//! spare. Three attempts a request are three times the load in an outage; three at each of four hops are
//! 81. Clients that failed together come back together, and what had just recovered falls again. So this
//! retry is bounded in each direction:
//!
//! - [`RetryLayer`]: few **attempts**, and only of what may be sent twice or was never sent;
//! - [`Backoff`]: waits that double up to a cap, each drawn anew (**full jitter**);
//! - [`Budget`]: a share of the *successes*, over all requests of a client, that repeats may add;
//! - the request's **deadline**: no wait and no attempt that it has no room for;
//! - **one retry is in charge**: a retry beneath another makes one attempt, so layers do not multiply.
//!
//! # Examples
//!
//! ```
//! use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
//!
//! use buttress_retry::{Backoff, Budget, RetryLayer};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//!
//! static CALLS: AtomicU32 = AtomicU32::new(0);
//!
//! async fn flaky(request: &'static str) -> Result<usize, &'static str> {
//!     match CALLS.fetch_add(1, Relaxed) {
//!         0 | 1 => Err("connection reset"),
//!         _ => Ok(request.len()),
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! // One budget for all that goes to one callee.
//! let budget = Budget::default();
//! let mut client = ServiceBuilder::new()
//!     .layer(RetryLayer::new(Backoff::default(), budget.clone()))
//!     .service(service_fn(flaky));
//!
//! assert_eq!(client.ready().await.unwrap().call("ping").await.unwrap(), 4);
//! assert_eq!(budget.stats().granted, 2);
//! # }
//! ```
//!
//! # Events
//!
//! With the target `buttress_retry`, and outside any lock. A success on the first attempt emits nothing.
//!
//! `attempt` is the number of the attempt that failed, or 0 where the retry is not in charge of the request.
//!
//! | level | message | fields |
//! |---|---|---|
//! | `trace` | `repeating` | `attempt`, `class`, `wait` |
//! | `trace` | `not repeated` | `attempt`, `class`, `reason`: `attempts`, `unsafe`, `not kept`, `no copy`, `retry after`, `deadline` |
//! | `debug` | `not repeated` | `attempt`, `class`, `reason`: `budget` |

mod backoff;
mod before;
mod budget;
mod future;
mod layer;
mod machine;
mod service;
mod settings;
mod spare;
mod sync;

pub use self::{
    backoff::Backoff,
    before::Attempted,
    budget::{Budget, BudgetSettings, BudgetStats, Token},
    future::ResponseFuture,
    layer::RetryLayer,
    service::RetryService,
    settings::RetrySettings,
};
