//! A door for servers: who is served, who waits, and who is told at once that it will not be.
//!
//! A server that accepts more work than it can do puts the rest into a queue. The queue grows, every
//! request waits for longer than its caller does, and all work is done for callers that have left. It goes on
//! after the load has gone, since callers that gave up come again. A shed keeps the queue *short in time*:
//!
//! - no more requests are in flight than its [limit](LimitAlgorithm);
//! - those that find no place wait in its own queue, and for longer than its age limit nobody does;
//! - under overload the newest is served first: its caller is still there;
//! - what matters more is [served first](Priority), and what matters least makes room;
//! - what cannot be answered by its deadline is refused before any work is done for it.
//!
//! ```
//! use buttress_shed::{FixedLimit, Priority, Shed, ShedLayer, ShedSettings};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! // 200 requests a second, 50 ms each, and half as much again.
//! let shed = Shed::new(FixedLimit::new(15)?, ShedSettings::default())?;
//! let by_path = |path: &&str| match *path {
//!     "/prefetch" => Priority::Sheddable,
//!     _ => Priority::Critical,
//! };
//! let server = ServiceBuilder::new()
//!     .layer(ShedLayer::new(shed.clone()).prioritize(by_path))
//!     .service(service_fn(|path: &'static str| async move { Ok::<_, std::io::Error>(path) }));
//! assert_eq!(server.oneshot("/checkout").await?, "/checkout");
//! assert_eq!(shed.stats().finished, 1);
//! # Ok(())
//! # }
//! ```
//!
//! The [`Shed`] is the state, and you make it: clone it into as many layers as there are routes and
//! connections. [`ShedLayer::until`] holds the place to the end of a response's body.
//!
//! # How it decides
//!
//! A request **arrives**. If its deadline has passed, or is nearer than what half of the last 64 calls
//! took, it is refused. If nobody waits and there is a place, it is admitted. Otherwise it waits, if there
//! is room; if not, the oldest of the lowest priority below its own is refused to make room, or, under
//! overload, the oldest of its own.
//!
//! The server is **overloaded** once the queue has not been empty for more than an
//! [interval](ShedSettings::interval). The **age limit** is then twice the [target](ShedSettings::target),
//! and otherwise the greater of that and the interval. Whoever has waited for longer is refused, and
//! learns of it by a timer of its own, a millisecond later at most.
//!
//! A place that comes back goes to the highest priority that waits; in it to the oldest, or, under
//! overload, to the newest.
//!
//! The age limit is that of CoDel (Nichols and Jacobson, *Controlling Queue Delay*, ACM Queue 2012; RFC 8289)
//! in the form that servers use it in, together with adaptive LIFO (Maurer, *Fail at Scale*, ACM Queue 2015).
//! The priorities are those of Google's *Site Reliability Engineering*.
//!
//! How long a call will take is guessed only while calls end: when none has for a second, or fewer than
//! eight are known, only a deadline that has passed refuses. Otherwise a slow spell could shut out
//! those that would show that it is over.
//!
//! # Guarantees
//!
//! - Never more permits are out than the limit of the moment, whatever threads, drops and panics do.
//! - A permit comes back with the answer, with the drop of the future, or as a panic unwinds, and is the
//!   next waiter's in that instant.
//! - Nobody waits for longer than the age limit and a millisecond, whether or not anything else happens.
//! - Nothing is started whose deadline has passed.
//! - Readiness reserves nothing: a thousand ready and idle clones leave every place free.
//! - A waiter is woken when it is decided upon, and not before. Nothing is spawned.
//! - Refusals come from the future of `call`, and never make the service unusable.
//!
//! # Differences from `tower::load_shed` over `tower::limit`
//!
//! tower's limit takes its slot in `poll_ready`, and an idle clone keeps what it took. Under `LoadShed` a
//! handful of idle connections then make a server that refuses everything, with nothing in flight. It
//! knows neither a queue nor priorities nor deadlines: a burst of one too many is an error. This one
//! decides in `call`.
//!
//! # Events
//!
//! All have the target `buttress_shed`.
//!
//! | level | event | fields |
//! |---|---|---|
//! | `info` | `overloaded`, `no longer overloaded` | `limit`, `in_flight`, `waiting` |
//! | `debug` | `refused` | `reason` (`overloaded`, `deadline exceeded`), `priority` |
//!
//! What turns by the clock alone is told with the next request that arrives, ends or leaves. Nothing is said
//! of requests that are admitted.

mod admit;
mod estimate;
mod future;
mod layer;
mod limit;
mod machine;
mod permit;
mod priority;
mod service;
mod settings;
mod shed;
mod slot;

pub use self::{
    admit::Admit,
    future::ResponseFuture,
    layer::ShedLayer,
    limit::{FixedLimit, LimitAlgorithm, Sample},
    permit::Permit,
    priority::{Prioritize, Priority},
    service::ShedService,
    settings::ShedSettings,
    shed::{Shed, ShedStats},
};

/// What refusals call this layer.
const NAME: &str = "shed";
