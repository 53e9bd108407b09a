use std::fmt;

use buttress_core::ErrorsAsFailures;
use tower_layer::Layer;

use crate::BreakerService;

/// Puts a [`Breaker`](crate::Breaker) before a service, or [one a key](crate::Breakers).
///
/// The state is in the breaker, and so shared by all services that the layer is applied to.
///
/// By default every error of the service is a failure and every response a success. Say what they
/// mean by [`classify`](Self::classify).
///
/// # Examples
///
/// ```
/// use buttress_breaker::{Breaker, BreakerLayer, State};
/// use buttress_core::{BoxError, Class, Reason, Rejected};
/// use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), BoxError> {
/// let breaker = Breaker::default();
/// let by_status = |result: Result<&u16, &BoxError>| match result {
///     Ok(500..) => Class::Transient { after: None },
///     Ok(400..) => Class::CallerError,
///     Ok(_) => Class::Success,
///     Err(_) => Class::Unreachable,
/// };
/// let mut service = ServiceBuilder::new()
///     .layer(BreakerLayer::new(breaker.clone()).classify(by_status))
///     .service(service_fn(|status: u16| async move { Ok::<_, BoxError>(status) }));
///
/// for status in [200; 10].into_iter().chain([404; 10]).chain([503; 10]) {
///     assert_eq!(service.ready().await?.call(status).await?, status);
/// }
/// assert_eq!(breaker.state(), State::Open); // ten of the twenty that count failed
///
/// let error = service.ready().await?.call(200).await.unwrap_err();
/// assert_eq!(error.downcast_ref().map(Rejected::reason), Some(Reason::CircuitOpen));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct BreakerLayer<B, O = ErrorsAsFailures> {
    breaker: B,
    observe: O,
}

// === impl BreakerLayer ===

impl<B> BreakerLayer<B> {
    /// A layer that asks this breaker, or whichever it selects.
    pub const fn new(breaker: B) -> Self {
        Self { breaker, observe: ErrorsAsFailures }
    }
}

impl<B, O> BreakerLayer<B, O> {
    /// Sets what says how a call ended: a [`Classify`](buttress_core::Classify), as a closure is one, or
    /// another [`Observe`](buttress_core::Observe).
    #[must_use]
    pub fn classify<C>(self, classify: C) -> BreakerLayer<B, C> {
        BreakerLayer { breaker: self.breaker, observe: classify }
    }
}

// By hand: classifiers are often closures, which are not `Debug`.
impl<B: fmt::Debug, O> fmt::Debug for BreakerLayer<B, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BreakerLayer").field("breaker", &self.breaker).finish_non_exhaustive()
    }
}

impl<S, B, O> Layer<S> for BreakerLayer<B, O>
where
    B: Clone,
    O: Clone,
{
    type Service = BreakerService<S, B, O>;

    fn layer(&self, inner: S) -> Self::Service {
        BreakerService::new(inner, self.breaker.clone(), self.observe.clone())
    }
}
