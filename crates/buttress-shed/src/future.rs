use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use buttress_core::{
    BoxError, Context as Ambient, ErrorsAsFailures, Observe, Rejected,
    ready::{Queued, poll_holding},
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
        state: State<S::Future, Queued<S, Req, Waiter, Permit>>,
        observe: O,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, Q> {
        // The permit is gone once the answer is there. It is dropped after the future: what it stands for
        // must have ended when it goes to the next.
        Called { #[pin] future: F, permit: Option<Permit>, ambient: Ambient, is_polled: bool },
        // To wait is rare, and what waits is large: a service and a request. On the heap it costs those who
        // wait an allocation, and all others nothing.
        Queued { queued: Pin<Box<Q>> },
        Refused { rejected: Rejected },
    }
}

impl<S, Req, O> ResponseFuture<S, Req, O>
where
    S: Service<Req>,
{
    /// Calls `inner`, which has the permit from here on. If that panics, it is dropped.
    #[inline]
    pub(crate) fn call(
        permit: Permit,
        ambient: Ambient,
        inner: &mut S,
        request: Req,
        observe: &O,
    ) -> Self
    where
        O: Clone,
    {
        // Two functions: where nothing has to be dropped if the call panics, its future is built where it stays,
        // and not moved there.
        ambient.within(|| Self::call_with(&mut Some(permit), ambient, inner, request, observe))
    }

    fn call_with(
        permit: &mut Option<Permit>,
        ambient: Ambient,
        inner: &mut S,
        request: Req,
        observe: &O,
    ) -> Self
    where
        O: Clone,
    {
        let observe = observe.clone();
        let future = inner.call(request);
        let permit = permit.take();
        Self { state: State::Called { future, permit, ambient, is_polled: false }, observe }
    }

    /// The instance is a fresh one. The call will run in the context of the moment.
    #[cold]
    pub(crate) fn queued(inner: S, request: Req, waiter: Waiter, observe: O) -> Self {
        let queued = Box::pin(Queued::new(NAME, waiter, inner, request));
        Self { state: State::Queued { queued }, observe }
    }

    pub(crate) fn refused(rejected: Rejected, observe: O) -> Self {
        Self { state: State::Refused { rejected }, observe }
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
        let (result, permit) = match this.state.project() {
            StateProj::Called { future, permit, ambient, is_polled } => {
                if !std::mem::replace(is_polled, true) {
                    // A `Buffer` makes the call elsewhere than where its future is polled, and there is no
                    // deadline.
                    *ambient = ambient.bounded_by_current();
                    if let Some(permit) = permit {
                        permit.set_deadline(ambient.deadline());
                    }
                }
                ready!(ambient.within(|| poll_holding(permit, future, cx)))
            }
            StateProj::Queued { queued } => ready!(queued.as_mut().poll(cx))?,
            StateProj::Refused { rejected } => return Poll::Ready(Err(refusal(*rejected))),
        };
        // One by one: so little is left of what looks at an answer, once it is known to be one.
        Poll::Ready(match result {
            Ok(response) => this.observe.observe(Ok(response), permit),
            Err(error) => failed(this.observe, error.into(), permit),
        })
    }
}

#[cold]
#[inline(never)]
fn failed<O, Res>(
    observe: &O,
    error: BoxError,
    permit: Permit,
) -> Result<O::Response<Permit>, BoxError>
where
    O: Observe<Res>,
{
    observe.observe(Err(error), permit)
}

#[cold]
#[inline(never)]
fn refusal(rejected: Rejected) -> BoxError {
    rejected.into()
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
