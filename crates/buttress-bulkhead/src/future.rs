use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use buttress_core::{
    BoxError, ErrorsAsFailures, Observe, Reason, Rejected,
    ready::{Queued, poll_holding},
};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::{Acquire, NAME, Slot};

pin_project! {
    /// The future of a [`BulkheadService`](crate::BulkheadService).
    ///
    /// # Cancel safety
    ///
    /// Dropped, it gives back its slot, or its place in the queue, in that instant.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, Req, O = ErrorsAsFailures>
    where
        S: Service<Req>,
    {
        #[pin]
        state: State<S::Future, Queued<S, Req, Acquire, Slot>>,
        observe: O,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, Q> {
        // The slot is gone once the answer is there.
        Called { #[pin] future: F, slot: Option<Slot> },
        // To wait is rare, and what waits is large: a service and a request. On the heap it costs those who
        // wait an allocation, and all others nothing.
        Queued { queued: Pin<Box<Q>> },
        Refused { reason: Reason },
    }
}

impl<S, Req, O> ResponseFuture<S, Req, O>
where
    S: Service<Req>,
{
    /// Calls `inner`, which holds the slot from here on. If that panics, it is given back.
    #[inline]
    pub(crate) fn call(slot: Slot, inner: &mut S, request: Req, observe: &O) -> Self
    where
        O: Clone,
    {
        // Two functions: where nothing has to be dropped if the call panics, its future is built where it stays,
        // and not moved there.
        Self::call_with(&mut Some(slot), inner, request, observe)
    }

    fn call_with(slot: &mut Option<Slot>, inner: &mut S, request: Req, observe: &O) -> Self
    where
        O: Clone,
    {
        let observe = observe.clone();
        Self { state: State::Called { future: inner.call(request), slot: slot.take() }, observe }
    }

    /// The instance is a fresh one.
    #[cold]
    pub(crate) fn queued(inner: S, request: Req, acquire: Acquire, observe: O) -> Self {
        let queued = Box::pin(Queued::new(NAME, acquire, inner, request));
        Self { state: State::Queued { queued }, observe }
    }

    pub(crate) fn refused(reason: Reason, observe: O) -> Self {
        Self { state: State::Refused { reason }, observe }
    }
}

impl<S, Req, O> Future for ResponseFuture<S, Req, O>
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
    O: Observe<S::Response>,
{
    type Output = Result<O::Response<Slot>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let (result, slot) = match this.state.project() {
            StateProj::Called { future, slot } => ready!(poll_holding(slot, future, cx)),
            StateProj::Queued { queued } => ready!(queued.as_mut().poll(cx))?,
            StateProj::Refused { reason } => return Poll::Ready(Err(refusal(*reason))),
        };
        // One by one: so little is left of what looks at an answer, once it is known to be one.
        Poll::Ready(match result {
            Ok(response) => this.observe.observe(Ok(response), slot),
            Err(error) => failed(this.observe, error.into(), slot),
        })
    }
}

#[cold]
#[inline(never)]
fn failed<O, Res>(observe: &O, error: BoxError, slot: Slot) -> Result<O::Response<Slot>, BoxError>
where
    O: Observe<Res>,
{
    observe.observe(Err(error), slot)
}

#[cold]
#[inline(never)]
fn refusal(reason: Reason) -> BoxError {
    Rejected::new(reason, NAME).into()
}

impl<S, Req, O> fmt::Debug for ResponseFuture<S, Req, O>
where
    S: Service<Req>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Called { .. } => "called",
            State::Queued { .. } => "queued",
            State::Refused { .. } => "refused",
        };
        f.debug_struct("ResponseFuture").field("state", &state).finish_non_exhaustive()
    }
}
