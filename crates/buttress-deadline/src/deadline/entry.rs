use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use buttress_core::{Deadline, InvalidSetting, edge};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::bound::{assert_more_than_zero, more_than_zero};

/// Fixes the deadline of each request where it enters, and leaves it to others to enforce it.
///
/// A [`DeadlineLayer`](super::DeadlineLayer) counts from its own `call`. Where a queue stands above it, as
/// that of a bulkhead does in the usual order, a request may wait there for a minute and have all of its
/// thirty seconds left. With this layer above the queue the wait counts: queues obey the deadline that
/// they find, and the `DeadlineLayer` beneath takes the earlier of two instants.
///
/// It is a layer of its own, and not a setting, because it asks for less: it needs no clone of the inner
/// service, makes no errors, and its readiness is the inner service's.
///
/// # Examples
///
/// ```
/// use buttress_deadline::{EntryLayer, DeadlineLayer};
/// use std::{convert::Infallible, time::Duration};
/// use tower::{ServiceBuilder, service_fn};
///
/// let total = Duration::from_secs(30);
/// let client = ServiceBuilder::new()
///     .layer(EntryLayer::new(total))
///     // A bulkhead with a queue stands here.
///     .layer(DeadlineLayer::new(total))
///     .service(service_fn(async |()| Ok::<_, Infallible>(())));
/// # let _ = client;
/// ```
#[derive(Clone, Copy, Debug)]
pub struct EntryLayer {
    total: Duration,
    is_above_ours: bool,
}

/// Fixes the deadline of each request. See [`EntryLayer`].
// Not `Copy`, whatever the inner one is: a copy in silence would take its readiness along.
#[derive(Clone, Debug)]
pub struct EntryService<S> {
    inner: S,
    layer: EntryLayer,
}

pin_project! {
    /// The answer of a [`EntryService`], which is the inner service's own.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct EntryFuture<F> {
        #[pin]
        inner: F,
        until: Option<Deadline>,
        // Whether the deadline that the request came with has been looked for where it would be.
        is_settled: bool,
    }
}

// === impl EntryLayer ===

impl EntryLayer {
    /// `total` is the time for a request in all; [`Duration::MAX`] leaves it with the deadline that it
    /// came with, if any.
    ///
    /// # Panics
    ///
    /// If `total` is zero: every request would be late. [`try_new`](Self::try_new) says so in an error.
    #[must_use]
    #[track_caller]
    pub const fn new(total: Duration) -> Self {
        Self { total: assert_more_than_zero(total), is_above_ours: false }
    }

    /// The same, for a `total` that comes from elsewhere.
    ///
    /// # Errors
    ///
    /// If `total` is zero.
    pub fn try_new(total: Duration) -> Result<Self, InvalidSetting> {
        Ok(Self { total: more_than_zero("total", total)?, is_above_ours: false })
    }

    /// The same where all beneath is ours, down to the service itself: they all take its look at the clock for theirs.
    ///
    /// Anybody else's layer may work before it calls on, and that would be counted as the callee's time.
    #[doc(hidden)]
    #[must_use]
    pub const fn above_ours(self) -> Self {
        Self { is_above_ours: true, ..self }
    }
}

impl<S> Layer<S> for EntryLayer {
    type Service = EntryService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        EntryService { inner, layer: *self }
    }
}

// === impl EntryService ===

impl<S, Req> Service<Req> for EntryService<S>
where
    S: Service<Req>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = EntryFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    // A frame of its own, as `EntryFuture::sent` wants it.
    #[inline(never)]
    fn call(&mut self, request: Req) -> Self::Future {
        let EntryLayer { total, is_above_ours } = self.layer;
        let now = edge::called();
        let inherited = Deadline::current();
        let until = Deadline::earlier(inherited, Deadline::from_now(now, total));
        let is_settled = inherited.is_some();
        Deadline::within(until, || {
            edge::within_call(is_above_ours.then_some(now), || {
                EntryFuture::sent(&mut self.inner, request, until, is_settled)
            })
        })
    }
}

// === impl EntryFuture ===

impl<F> EntryFuture<F> {
    // A frame with nothing to clean up makes the inner future where it stays. Any other makes it aside and copies it.
    fn sent<S, Req>(inner: &mut S, request: Req, until: Option<Deadline>, is_settled: bool) -> Self
    where
        S: Service<Req, Future = F>,
    {
        Self { inner: inner.call(request), until, is_settled }
    }
}

impl<F: Future> Future for EntryFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        if !*this.is_settled {
            // A buffer above called in its own task: only here the request's deadline can be seen.
            *this.until = Deadline::earlier(*this.until, Deadline::current());
            *this.is_settled = true;
        }
        Deadline::within(*this.until, || this.inner.poll(cx))
    }
}
