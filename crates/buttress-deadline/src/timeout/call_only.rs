use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use buttress_core::{BoxError, Deadline, IntoBoxError, Limit, edge, timer::Alarm};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    bound::Bound,
    bounded::{Sent, poll_bounded},
};

/// Gives each call so much time, and leaves readiness to the inner service.
///
/// Made by [`TimeoutLayer::call_only`](super::TimeoutLayer::call_only).
///
/// # Panics
///
/// A call that has to wait for a bounded time panics outside of a tokio runtime with timers.
///
/// # Differences from `TimeoutLayer`
///
/// The service need not be [`Clone`], and is ready when the inner one is. **The wait for that is not
/// limited**: a service that never becomes ready is waited for without an end, unless a
/// [`DeadlineLayer`](crate::DeadlineLayer) or a `TimeoutLayer` is above.
///
/// # Examples
///
/// ```
/// use buttress_deadline::TimeoutLayer;
/// use std::{convert::Infallible, future, time::Duration};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let silent = service_fn(|()| future::pending::<Result<(), Infallible>>());
/// let client = TimeoutLayer::call_only(Duration::from_millis(250)).layer(silent);
/// let error = client.oneshot(()).await.unwrap_err();
/// assert_eq!(error.to_string(), "attempt timed out: no answer within 250ms");
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct CallTimeoutLayer {
    limit: Duration,
}

/// Gives each call so much time. See [`CallTimeoutLayer`].
// Not `Copy`, whatever the inner one is: a copy in silence would take its readiness along.
#[derive(Clone, Debug)]
pub struct CallTimeout<S> {
    inner: S,
    limit: Duration,
}

pin_project! {
    /// The answer of a [`CallTimeout`], within the limit.
    #[must_use = "futures do nothing unless polled"]
    pub struct CallFuture<F> {
        #[pin]
        call: Sent<F>,
        #[pin]
        alarm: Alarm,
        bound: Bound,
    }
}

// === impl CallTimeoutLayer ===

impl CallTimeoutLayer {
    /// Whoever calls this has seen that the limit is not zero.
    pub(super) const fn unchecked(limit: Duration) -> Self {
        Self { limit }
    }
}

impl<S> Layer<S> for CallTimeoutLayer {
    type Service = CallTimeout<S>;

    fn layer(&self, inner: S) -> Self::Service {
        CallTimeout { inner, limit: self.limit }
    }
}

// === impl CallTimeout ===

impl<S, Req> Service<Req> for CallTimeout<S>
where
    S: Service<Req>,
    S::Error: IntoBoxError,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = CallFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let bound = Bound::start(self.limit, Limit::Attempt);
        if bound.is_refused() {
            return CallFuture { call: Sent::Over, alarm: Alarm::default(), bound };
        }
        Deadline::within_attempt(bound.until(), || {
            edge::within_call(None, || CallFuture::sent(&mut self.inner, request, bound))
        })
    }
}

// === impl CallFuture ===

impl<F> CallFuture<F> {
    fn sent<S, Req>(service: &mut S, request: Req, bound: Bound) -> Self
    where
        S: Service<Req, Future = F>,
    {
        let call = Sent::Running { future: service.call(request) };
        Self { call, alarm: Alarm::default(), bound }
    }
}

impl<F, T, E> Future for CallFuture<F>
where
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
{
    type Output = Result<T, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let until = this.bound.settle();
        Deadline::within_attempt(until, || {
            poll_bounded(this.call, this.alarm, this.bound, "timeout", cx)
        })
    }
}

impl<F> fmt::Debug for CallFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallFuture").finish_non_exhaustive()
    }
}
