//! A bounded number of calls in flight, so that one slow dependency cannot take all that others need.
//!
//! A service calls a slow dependency and a healthy one. The slow one slows down further, and every task,
//! connection and byte of memory ends up waiting for it: now calls to the healthy one fail, too. A bulkhead
//! gives each dependency a share of its own. Whoever finds it used up is told so at once, or waits in a
//! short queue.
//!
//! ```
//! use buttress_bulkhead::{Bulkhead, BulkheadLayer, BulkheadSettings};
//! use std::time::Duration;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! // 10 in flight; 5 more wait, none longer than 100 ms.
//! let payments = Bulkhead::new(
//!     BulkheadSettings::new(10).max_waiting(5).max_wait(Duration::from_millis(100)),
//! )?;
//! let pay = ServiceBuilder::new()
//!     .layer(BulkheadLayer::new(payments.clone()))
//!     .service(service_fn(|cents: u64| async move { Ok::<_, std::io::Error>(cents) }));
//! assert_eq!(pay.oneshot(250).await?, 250);
//! assert_eq!(payments.stats().finished, 1);
//! # Ok(())
//! # }
//! ```
//!
//! The [`Bulkhead`] is the state, and you make it: clone it into as many layers as there are routes and
//! connections. [`BulkheadLayer::until`] holds the slot to the end of a response's body.
//!
//! # Guarantees
//!
//! - Never more slots are out than the limit of the moment, whatever threads, drops and panics do. (After
//!   the limit was lowered, nobody is admitted until it holds again.)
//! - The queue is first come, first served. Nobody overtakes it, and nobody who left it gets a slot.
//! - What had to wait is not sent after its deadline, whether the slot was long in coming or the inner
//!   service long in getting ready.
//! - Readiness reserves nothing: a thousand ready and idle clones leave every slot free.
//! - A slot comes back with the answer, with the drop of the future, or as a panic unwinds.
//! - No timer and no allocation of its own unless a call has to wait; a refusal allocates its error.
//!
//! # Differences from `tower::limit::ConcurrencyLimit`
//!
//! tower's takes the slot in `poll_ready`, and an idle clone keeps what it took. Under `LoadShed` a
//! handful of idle connections then make a limit that refuses everything, with nothing in flight. It has
//! no bound on how many wait nor on how long, and gives the slot back when the response future is
//! dropped. This one decides in `call`.
//!
//! # Events
//!
//! With the target `buttress_bulkhead`, at `debug`: `bulkhead is full` (field `limit`), and `waited in vain`
//! (fields `limit`, and `why`: `TimedOut` or `Expired`). Nothing is said of calls that are admitted.

mod acquire;
mod bulkhead;
mod counts;
mod future;
mod layer;
#[cfg(all(test, buttress_loom))]
mod loom;
mod machine;
mod service;
mod settings;
mod slot;
mod sync;

pub use self::{
    acquire::Acquire,
    bulkhead::{Bulkhead, BulkheadStats},
    future::ResponseFuture,
    layer::BulkheadLayer,
    service::BulkheadService,
    settings::BulkheadSettings,
    slot::Slot,
};

/// What refusals call this layer.
const NAME: &str = "bulkhead";
