use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use buttress_core::{BoxError, Deadline, ready::Call};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::bounded::Bounded;

pin_project! {
    /// The answer of a [`TimeoutService`](super::TimeoutService), within the limit.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, Req>
    where
        S: Service<Req>,
    {
        #[pin]
        call: Bounded<Call<S, Req>>,
    }
}

impl<S, Req> ResponseFuture<S, Req>
where
    S: Service<Req>,
{
    pub(super) const fn new(call: Bounded<Call<S, Req>>) -> Self {
        Self { call }
    }
}

impl<S, Req> Future for ResponseFuture<S, Req>
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
{
    type Output = Result<S::Response, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut call = self.project().call;
        let until = call.as_mut().settle();
        Deadline::within_attempt(until, || call.poll("timeout", cx))
    }
}

impl<S, Req> fmt::Debug for ResponseFuture<S, Req>
where
    S: Service<Req>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
