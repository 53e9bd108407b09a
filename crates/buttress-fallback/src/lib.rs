//! What if there is no answer? [`FallbackLayer`] for tower services: another answer, marked as one.
//!
//! Behind every limit stands somebody who still needs a page. A shop can show a product without the panel
//! of recommendations; without a fallback it shows an error, because one callee of ten was down. So
//! say for each callee whether it is needed: a failed payment must surface, a missing panel must not. For
//! those that are not needed, this layer stands outermost and turns "no answer" into the next best one.
//!
//! Fallbacks go wrong in their own ways, and this one is built against them:
//!
//! - It hides what should be seen. By default it answers only for refusals of our own layers, for time that
//!   ran out and for failures of the callee, never for the caller's mistakes: a 404 stays a 404. And its
//!   answers are [marked](buttress_core::Mark) where the protocol has a place for it.
//! - It fails too, and hides why. Then both errors are in the chain, and
//!   [`find`](buttress_core::find) finds either.
//! - It was never tried. A [`Cause`] can be made by hand, so that a test can call the function that
//!   answers.
//!
//! ```
//! use buttress_core::{Reason, Rejected};
//! use buttress_fallback::{Cause, FallbackLayer};
//! use tower::{Layer, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let refuses = service_fn(async |_user: u64| {
//!     Err::<Vec<&str>, _>(Rejected::new(Reason::CircuitOpen, "breaker"))
//! });
//! let panel = FallbackLayer::value(|| vec!["the", "popular", "ones"]).layer(refuses);
//! assert_eq!(panel.oneshot(7).await.unwrap(), ["the", "popular", "ones"]);
//! # }
//! ```
//!
//! # Events
//!
//! Both are of level `debug`, with the fields `class` and `reason` of the cause: `answered by fallback`, and
//! `fallback failed`.

mod answer;
mod ask;
mod cause;
mod error;
mod future;
mod layer;
mod service;
mod when;

pub use self::{
    answer::{Answer, Keep, NoFallback, Respond, TryRespond, Value},
    ask::{Ask, AskFuture},
    cause::Cause,
    error::FailedResponse,
    future::ResponseFuture,
    layer::FallbackLayer,
    service::FallbackService,
    when::{ByClass, When},
};
