//! Limits in time for tower services: [`DeadlineLayer`] for a request in all, [`TimeoutLayer`] for one
//! attempt.
//!
//! A call without a limit waits for as long as the callee likes, and holds its task, its connection and
//! its place in every queue meanwhile: that is how one slow dependency becomes an outage of its
//! callers. One limit is not enough, for two questions are asked:
//!
//! - How long is an answer worth having? That is the request's **deadline**: one instant, fixed when the
//!   request enters, which covers every attempt, every wait between them and every queue. It travels with
//!   the request ([`Deadline::current`]), so that outgoing calls inherit it and nothing beneath starts
//!   what can no longer be used.
//! - How long may one attempt take? That is the **timeout**, and when it is over another attempt may
//!   follow.
//!
//! Errors tell the two apart, and tell whether the request was sent:
//!
//! | time ran out | [`DeadlineLayer`] | [`TimeoutLayer`] |
//! |---|---|---|
//! | before `call` | [`Rejected`] | `Rejected`, by the deadline |
//! | while the service was not ready | `Rejected` | [`Elapsed`] of [`Limit::Attempt`], not [sent] |
//! | while an answer was waited for | `Elapsed` of [`Limit::Total`] | `Elapsed` of `Limit::Attempt` |
//!
//! A `TimeoutLayer` obeys the deadline also where nobody above it does. Where that is what ended the
//! attempt, its errors are those of a `DeadlineLayer`.
//!
//! **Waiting for readiness counts.** Both layers are ready at once, so that a service which is not has
//! them wait in the response future, under the limit. That takes an inner service that is [`Clone`];
//! [`TimeoutLayer::call_only`] does without, and limits the call alone.
//!
//! ```
//! use buttress_deadline::{DeadlineLayer, TimeoutLayer};
//! use std::time::Duration;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let client = ServiceBuilder::new()
//!     .layer(DeadlineLayer::new(Duration::from_secs(30)))
//!     // A retry stands here.
//!     .layer(TimeoutLayer::new(Duration::from_secs(10)))
//!     .service(service_fn(|name: &'static str| async move {
//!         Ok::<_, std::io::Error>(format!("hello, {name}"))
//!     }));
//! assert_eq!(client.oneshot("world").await.unwrap(), "hello, world");
//! # }
//! ```
//!
//! A connection is no request: it has a limit of its own, [`ConnectTimeoutLayer`], around the client's connector.
//!
//! A `Buffer` calls in a task of its own, where none of this is known: [`carry`] takes it there.
//!
//! # Events
//!
//! Both are of level `debug`, with the name of the `layer` (`deadline`, `timeout` or `connect`): `refused` (field
//! `reason`), and `time ran out` (fields `which`, `limit` and `sent`).
//!
//! [sent]: Elapsed::sent

mod bound;
mod bounded;

pub mod carry;
pub mod connect;
pub mod deadline;
pub mod timeout;

pub use self::{
    carry::{Carried, Carry, CarryLayer, Resume, ResumeLayer},
    connect::{ConnectFuture, ConnectTimeout, ConnectTimeoutLayer},
    deadline::{DeadlineLayer, DeadlineService, EntryLayer, EntryService},
    timeout::{CallTimeout, CallTimeoutLayer, TimeoutLayer, TimeoutService},
};
pub use buttress_core::{Deadline, Elapsed, Limit, Reason, Rejected};
