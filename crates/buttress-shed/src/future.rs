use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use buttress_core::{
    BoxError, Context as Ambient, Deadline, ErrorsAsFailures, Observe, Reason, Rejected, edge,
    ready::Call, timer::RareAlarm,
};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::{NAME, Permit, admit::Waiter};

pin_project! {
    /// The future of a [`ShedService`](crate::ShedService).
    ///
    /// # Cancel safety
    ///
    /// Dropped, it gives back its place, in flight or in the queue, in that instant.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, Req, O = ErrorsAsFailures>
    where
        S: Service<Req>,
    {
        #[pin]
        state: State<S::Future, Queued<S, Req>>,
        observe: O,
        ambient: Ambient,
        is_polled: bool,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, Q> {
        // The permit is gone once the answer is there. It is dropped after the future: what it stands for
        // must have ended when it goes to the next.
        Called { #[pin] future: F, permit: Option<Permit> },
        // To wait is rare, and what waits is large: a service and a request. On the heap it costs those who
        // wait an allocation, and all others nothing.
        Queued { queued: Pin<Box<Q>> },
        Refused { rejected: Rejected },
    }
}

pin_project! {
    /// Waits for a place, then for the inner service's readiness, then for its answer.
    struct Queued<S, Req>
    where
        S: Service<Req>,
    {
        #[pin]
        call: Call<S, Req>,
        permit: Option<Permit>,
        waiter: Option<Waiter>,
        alarm: RareAlarm,
    }
}

// === impl ResponseFuture ===

impl<S, Req, O> ResponseFuture<S, Req, O>
where
    S: Service<Req>,
{
    #[inline]
    pub(crate) fn called(future: S::Future, permit: Permit, ambient: Ambient, observe: O) -> Self {
        let state = State::Called { future, permit: Some(permit) };
        Self { state, observe, ambient, is_polled: false }
    }

    #[cold]
    pub(crate) fn queued(call: Call<S, Req>, waiter: Waiter, ambient: Ambient, observe: O) -> Self {
        let alarm = RareAlarm::default();
        let queued = Box::pin(Queued { call, permit: None, waiter: Some(waiter), alarm });
        Self { state: State::Queued { queued }, observe, ambient, is_polled: false }
    }

    pub(crate) fn refused(rejected: Rejected, ambient: Ambient, observe: O) -> Self {
        Self { state: State::Refused { rejected }, observe, ambient, is_polled: false }
    }
}

impl<S, Req, O> Future for ResponseFuture<S, Req, O>
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
    O: Observe<S::Response>,
{
    type Output = Result<O::Response<Permit>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let is_first = !std::mem::replace(this.is_polled, true);
        if is_first {
            // A `Buffer` makes the call elsewhere than where its future is polled, and there is no deadline.
            let known = Deadline::earlier(this.ambient.deadline(), Deadline::current());
            *this.ambient = this.ambient.with_deadline(known);
        }
        let ambient = *this.ambient;
        let (result, permit) = match this.state.project() {
            StateProj::Called { future, permit } => {
                if is_first && let Some(permit) = permit {
                    permit.set_deadline(ambient.deadline());
                }
                ready!(ambient.within(|| poll_holding(permit, future, cx)))
            }
            StateProj::Queued { queued } => ready!(ambient.within(|| queued.as_mut().poll(cx)))?,
            StateProj::Refused { rejected } => return Poll::Ready(Err((*rejected).into())),
        };
        Poll::Ready(this.observe.observe(result.map_err(Into::into), permit))
    }
}

/// Polls `future` with the permit in hand, so that a panic of it gives the permit back as it unwinds, and
/// not when somebody drops what is left.
#[inline]
fn poll_holding<F: Future>(
    permit: &mut Option<Permit>,
    future: Pin<&mut F>,
    cx: &mut Context<'_>,
) -> Poll<(F::Output, Permit)> {
    let held = permit.take().expect("`ResponseFuture` is not polled after it was ready");
    match future.poll(cx) {
        Poll::Ready(output) => Poll::Ready((output, held)),
        Poll::Pending => {
            *permit = Some(held);
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
    type Output = Result<(Result<S::Response, S::Error>, Permit), Rejected>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        // ## Waiting => (Admitted | Refused)
        if let Some(waiter) = this.waiter {
            let admitted = ready!(waiter.poll(cx));
            *this.waiter = None;
            *this.permit = Some(admitted?);
        }
        if this.call.is_sent() {
            return poll_holding(this.permit, this.call, cx).map(Ok);
        }
        // ## Admitted => (Sent | Refused): the inner service may take its time to become ready, and nothing
        // is sent after the deadline.
        let deadline = Deadline::current();
        let is_late = || deadline.is_some_and(|deadline| deadline.has_passed(edge::now()));
        if !is_late() {
            let polled = poll_holding(this.permit, this.call.as_mut(), cx).map(Ok);
            let Some(deadline) = deadline.filter(|_| polled.is_pending() && !this.call.is_sent())
            else {
                return polled;
            };
            ready!(this.alarm.poll(deadline.instant(), cx));
        }
        *this.permit = None;
        Poll::Ready(Err(Rejected::new(Reason::DeadlineExceeded, NAME)))
    }
}
