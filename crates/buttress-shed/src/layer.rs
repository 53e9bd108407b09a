use std::fmt;

use buttress_core::ErrorsAsFailures;
use tower_layer::Layer;

use crate::{Priority, Shed, ShedService};

/// Admits requests to a service, and refuses what it cannot serve in time.
///
/// All services made with it share the [`Shed`], and so do those of its clones and of every other layer
/// around a clone of the shed.
///
/// # Panics
///
/// A request that has to wait for a bounded time panics outside of a tokio runtime with timers.
#[derive(Clone)]
pub struct ShedLayer<P = Priority, O = ErrorsAsFailures> {
    shed: Shed,
    prioritize: P,
    observe: O,
}

impl ShedLayer {
    /// Every request is [`Priority::Critical`], and has its place until the head of its answer is there.
    #[must_use]
    pub const fn new(shed: Shed) -> Self {
        Self { shed, prioritize: Priority::Critical, observe: ErrorsAsFailures }
    }
}

impl<P, O> ShedLayer<P, O> {
    /// Sets which requests matter more than others: a [`Priority`] for all, a closure, or any
    /// [`Prioritize`](crate::Prioritize).
    #[must_use]
    pub fn prioritize<Q>(self, prioritize: Q) -> ShedLayer<Q, O> {
        ShedLayer { shed: self.shed, prioritize, observe: self.observe }
    }

    /// Holds the place until `observe` says that the request has ended.
    ///
    /// `AtEnd` of `buttress-http` moves it into the response's body, and gives it back when that has
    /// ended or is dropped. Where bodies are long, as in downloads and streams, a place that is given back
    /// at the head limits next to nothing.
    #[must_use]
    pub fn until<Q>(self, observe: Q) -> ShedLayer<P, Q> {
        ShedLayer { shed: self.shed, prioritize: self.prioritize, observe }
    }
}

// By hand: priorities come from closures, as a rule, which are not `Debug`.
impl<P, O> fmt::Debug for ShedLayer<P, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShedLayer").field("shed", &self.shed).finish_non_exhaustive()
    }
}

impl<S, P: Clone, O: Clone> Layer<S> for ShedLayer<P, O> {
    type Service = ShedService<S, P, O>;

    fn layer(&self, inner: S) -> Self::Service {
        let (prioritize, observe) = (self.prioritize.clone(), self.observe.clone());
        ShedService::new(inner, self.shed.clone(), prioritize, observe)
    }
}
