use std::fmt;

use buttress_core::ErrorsAsFailures;
use tower_layer::Layer;

use crate::{Bulkhead, BulkheadService};

/// Lets no more calls in than its [`Bulkhead`] has slots.
///
/// All services made with it share the bulkhead, and so do those of its clones and of every other layer
/// around a clone of the bulkhead.
///
/// # Panics
///
/// A call that has to wait for a bounded time panics outside of a tokio runtime with timers.
#[derive(Clone)]
pub struct BulkheadLayer<O = ErrorsAsFailures> {
    bulkhead: Bulkhead,
    observe: O,
}

impl BulkheadLayer {
    /// Each call holds a slot of `bulkhead` until the head of its answer is there.
    #[must_use]
    pub const fn new(bulkhead: Bulkhead) -> Self {
        Self { bulkhead, observe: ErrorsAsFailures }
    }
}

impl<O> BulkheadLayer<O> {
    /// Holds the slot until `observe` says that the call has ended.
    ///
    /// `AtEnd(WholeBody)` of `buttress-http` moves it into the response's body, and gives it back when
    /// that has ended or is dropped. Where bodies are long, as in downloads and streams, a slot that is given back
    /// at the head bounds next to nothing.
    #[must_use]
    pub fn until<P>(self, observe: P) -> BulkheadLayer<P> {
        BulkheadLayer { bulkhead: self.bulkhead, observe }
    }
}

// By hand: what observes is often a closure, which is not `Debug`.
impl<O> fmt::Debug for BulkheadLayer<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BulkheadLayer").field("bulkhead", &self.bulkhead).finish_non_exhaustive()
    }
}

impl<S, O: Clone> Layer<S> for BulkheadLayer<O> {
    type Service = BulkheadService<S, O>;

    fn layer(&self, inner: S) -> Self::Service {
        BulkheadService::new(inner, self.bulkhead.clone(), self.observe.clone())
    }
}
