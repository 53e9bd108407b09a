use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use buttress_core::{BoxError, Class, Observe, Permit, Rejected};
use pin_project_lite::pin_project;

use crate::Admission;

pin_project! {
    /// The answer of a [`BreakerService`](crate::BreakerService).
    ///
    /// # Cancel safety
    ///
    /// Dropped, it says to the breaker that nothing was learned; at or after the request's deadline, or
    /// once the call was slow, that the callee was too slow. A panic of the inner service, in its `call` or
    /// when its future is polled, is a failure, and is said before it goes on.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<F, O> {
        #[pin]
        state: State<F>,
        observe: O,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F> {
        Called { #[pin] future: F, permit: Option<Admission> },
        Refused { rejected: Rejected },
    }
}

/// Reports a failure if what runs while it is there panics.
///
/// Told from a drop that only happens while *something else* unwinds: that teaches nothing of the callee.
pub(crate) struct OnUnwind<'a>(&'a mut Option<Admission>);

/// The call was made.
pub(crate) const fn called<F, O>(
    future: F,
    permit: Option<Admission>,
    observe: O,
) -> ResponseFuture<F, O> {
    ResponseFuture { state: State::Called { future, permit }, observe }
}

/// The call was not made.
pub(crate) const fn refused<F, O>(rejected: Rejected, observe: O) -> ResponseFuture<F, O> {
    ResponseFuture { state: State::Refused { rejected }, observe }
}

// === impl ResponseFuture ===

impl<F, O, Res, E> Future for ResponseFuture<F, O>
where
    F: Future<Output = Result<Res, E>>,
    E: Into<BoxError>,
    O: Observe<Res>,
{
    type Output = Result<O::Response<Admission>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        match this.state.project() {
            StateProj::Called { future, permit } => {
                let unwinding = OnUnwind::new(permit);
                let polled = future.poll(cx);
                unwinding.disarm();
                let Poll::Ready(result) = polled else {
                    if let Some(permit) = permit {
                        permit.look_for_deadline();
                    }
                    return Poll::Pending;
                };
                let permit = permit.take().expect("polled after it was ready");
                Poll::Ready(this.observe.observe(result.map_err(Into::into), permit))
            }
            StateProj::Refused { rejected } => Poll::Ready(Err(Box::new(*rejected))),
        }
    }
}

// By hand: what `async` blocks and closures make is not `Debug`.
impl<F, O> fmt::Debug for ResponseFuture<F, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut response = f.debug_struct("ResponseFuture");
        match &self.state {
            State::Called { permit, .. } => response.field("permit", permit),
            State::Refused { rejected } => response.field("rejected", rejected),
        };
        response.finish_non_exhaustive()
    }
}

// === impl OnUnwind ===

impl<'a> OnUnwind<'a> {
    pub(crate) const fn new(permit: &'a mut Option<Admission>) -> Self {
        Self(permit)
    }

    /// Nothing panicked.
    pub(crate) fn disarm(self) {
        std::mem::forget(self);
    }
}

impl Drop for OnUnwind<'_> {
    fn drop(&mut self) {
        if let Some(permit) = self.0.take() {
            permit.report(Class::Fatal);
        }
    }
}
