use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use buttress_core::{
    BoxError, Deadline,
    ready::Call,
    timer::{Alarm, Timer},
};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::{bound::Bound, bounded::poll_bounded};

pin_project! {
    /// The answer of a [`TimeoutService`](super::TimeoutService), within the limit.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, Req, T = Alarm>
    where
        S: Service<Req>,
    {
        #[pin]
        call: Call<S, Req>,
        #[pin]
        timer: T,
        bound: Bound,
    }
}

impl<S, Req, T> ResponseFuture<S, Req, T>
where
    S: Service<Req>,
    T: Timer,
{
    /// Calls a service that was ready.
    // A frame with nothing to clean up makes the inner future where it stays. Any other makes it aside and copies it.
    pub(super) fn sent(service: &mut S, request: Req, bound: Bound) -> Self {
        let call = Call::sent(service.call(request));
        Self { call, timer: T::default(), bound }
    }

    /// Calls a service once it is ready, or none at all.
    pub(super) fn unsent(call: Call<S, Req>, bound: Bound) -> Self {
        Self { call, timer: T::default(), bound }
    }
}

impl<S, Req, T> Future for ResponseFuture<S, Req, T>
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
    T: Timer,
{
    type Output = Result<S::Response, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let until = this.bound.settle();
        Deadline::within_attempt(until, || {
            poll_bounded(this.call, this.timer, this.bound, "timeout", cx)
        })
    }
}

impl<S, Req, T> fmt::Debug for ResponseFuture<S, Req, T>
where
    S: Service<Req>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
