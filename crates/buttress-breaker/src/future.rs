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
        // The permit is taken out when the answer is there. It has bits to spare that tell all of this apart.
        Called { #[pin] future: F, permit: Option<Admission> },
        // As the error that it is: it takes a word, where all else of it would have to be told apart from a permit.
        Refused { rejected: Option<Box<Rejected>> },
    }
}

/// Reports a failure if what runs while it is there panics.
///
/// Told from a drop that only happens while *something else* unwinds: that teaches nothing of the callee.
struct OnUnwind<'a>(&'a mut Option<Admission>);

// === impl ResponseFuture ===

impl<F, O> ResponseFuture<F, O> {
    /// Makes the call. If it panics, that is a failure.
    #[inline]
    pub(crate) fn called(permit: Admission, observe: O, call: impl FnOnce() -> F) -> Self {
        let mut permit = Some(permit);
        let unwinding = OnUnwind(&mut permit);
        Self::called_with(unwinding.0, observe, call)
    }

    /// Apart: the frame that calls has nothing to clean up if that panics, and so makes the future where it stays.
    #[inline]
    fn called_with(permit: &mut Option<Admission>, observe: O, call: impl FnOnce() -> F) -> Self {
        Self { state: State::Called { future: call(), permit: permit.take() }, observe }
    }

    /// The call was not made.
    #[inline]
    pub(crate) const fn refused(rejected: Box<Rejected>, observe: O) -> Self {
        Self { state: State::Refused { rejected: Some(rejected) }, observe }
    }
}

impl<F, O, Res, E> Future for ResponseFuture<F, O>
where
    F: Future<Output = Result<Res, E>>,
    E: Into<BoxError>,
    O: Observe<Res>,
{
    type Output = Result<O::Response<Admission>, BoxError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        match this.state.project() {
            StateProj::Called { future, permit } => {
                let unwinding = OnUnwind(permit);
                let polled = future.poll(cx);
                unwinding.disarm();
                match polled {
                    Poll::Ready(Ok(response)) => {
                        Poll::Ready(this.observe.observe(Ok(response), taken(permit)))
                    }
                    Poll::Ready(Err(error)) => {
                        Poll::Ready(failed(this.observe, error.into(), permit))
                    }
                    Poll::Pending => {
                        if let Some(permit) = permit {
                            permit.look_for_deadline();
                        }
                        Poll::Pending
                    }
                }
            }
            StateProj::Refused { rejected } => {
                let rejected = rejected.take().expect("polled after it was ready");
                Poll::Ready(Err(rejected))
            }
        }
    }
}

#[inline]
fn taken(permit: &mut Option<Admission>) -> Admission {
    permit.take().expect("polled after it was ready")
}

/// Apart, as to ask an error what it is may panic: without it the permit of an answer stays in registers.
#[inline(never)]
fn failed<Res, O: Observe<Res>>(
    observe: &O,
    error: BoxError,
    permit: &mut Option<Admission>,
) -> Result<O::Response<Admission>, BoxError> {
    observe.observe(Err(error), taken(permit))
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

impl OnUnwind<'_> {
    /// Nothing panicked.
    #[inline]
    fn disarm(self) {
        std::mem::forget(self);
    }
}

impl Drop for OnUnwind<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(permit) = self.0.take() {
            permit.report(Class::Fatal);
        }
    }
}
