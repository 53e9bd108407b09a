use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use buttress_core::{
    BoxError, Context as Ambient, Deadline, ErrorsAsFailures, Observe, Reason, Rejected,
    ready::Call,
};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::{Acquire, NAME, Slot, acquire::Place, bulkhead::Decision};

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
        state: State<S::Future, Queued<S, Req>>,
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

pin_project! {
    /// Waits for a slot, then for the inner service's readiness, then for its answer: all in the context
    /// that the request came in.
    struct Queued<S, Req>
    where
        S: Service<Req>,
    {
        #[pin]
        call: Call<S, Req>,
        acquire: Acquire,
        slot: Option<Slot>,
        ambient: Ambient,
        is_polled: bool,
    }
}

// === impl ResponseFuture ===

impl<S, Req, O> ResponseFuture<S, Req, O>
where
    S: Service<Req>,
{
    #[inline]
    pub(crate) fn called(future: S::Future, slot: Slot, observe: O) -> Self {
        Self { state: State::Called { future, slot: Some(slot) }, observe }
    }

    #[cold]
    pub(crate) fn queued(call: Call<S, Req>, place: Place, observe: O) -> Self {
        let queued = Queued {
            call,
            acquire: Acquire::new(Decision::Wait(place)),
            slot: None,
            ambient: Ambient::current(),
            is_polled: false,
        };
        Self { state: State::Queued { queued: Box::pin(queued) }, observe }
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
            StateProj::Refused { reason } => {
                return Poll::Ready(Err(Rejected::new(*reason, NAME).into()));
            }
        };
        Poll::Ready(this.observe.observe(result.map_err(Into::into), slot))
    }
}

/// Polls `future` with the slot in hand, so that a panic of it gives the slot back as it unwinds, and not
/// when somebody drops what is left.
#[inline]
fn poll_holding<F: Future>(
    slot: &mut Option<Slot>,
    future: Pin<&mut F>,
    cx: &mut Context<'_>,
) -> Poll<(F::Output, Slot)> {
    let held = slot.take().expect("`ResponseFuture` is not polled after it was ready");
    match future.poll(cx) {
        Poll::Ready(output) => Poll::Ready((output, held)),
        Poll::Pending => {
            *slot = Some(held);
            Poll::Pending
        }
    }
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

// === impl Queued ===

impl<S, Req> Future for Queued<S, Req>
where
    S: Service<Req>,
{
    type Output = Result<(Result<S::Response, S::Error>, Slot), Rejected>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if !std::mem::replace(this.is_polled, true) {
            // A `Buffer` makes the call elsewhere than where its future is polled.
            let deadline = Deadline::earlier(this.ambient.deadline(), Deadline::current());
            *this.ambient = this.ambient.with_deadline(deadline);
        }
        this.ambient.within(|| {
            if !this.call.is_sent() && this.slot.is_none() {
                *this.slot = Some(ready!(Pin::new(this.acquire).poll(cx))?);
            }
            poll_holding(this.slot, this.call, cx).map(Ok)
        })
    }
}
