use std::{
    fmt,
    marker::PhantomData,
    task::{Context, Poll},
    time::Duration,
};

use buttress_core::{
    BoxError, CloneService, Deadline, IntoBoxError, Limit, edge,
    ready::{Call, Ready},
    timer::{Alarm, Timer},
};
use tower_service::Service;

use super::ResponseFuture;
use crate::bound::Bound;

/// Gives each attempt so much time. See [`TimeoutLayer`](super::TimeoutLayer).
///
/// It is ready at once: where the inner service is not, the response future waits for it, and the time
/// runs.
pub struct TimeoutService<S, T = Alarm> {
    inner: Ready<S>,
    limit: Duration,
    _timer: PhantomData<fn() -> T>,
}

impl<S, T> TimeoutService<S, T> {
    pub(super) const fn new(inner: S, limit: Duration) -> Self {
        Self { inner: Ready::new(inner), limit, _timer: PhantomData }
    }
}

impl<S, T, Req> Service<Req> for TimeoutService<S, T>
where
    S: Service<Req> + CloneService,
    S::Error: IntoBoxError,
    T: Timer,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = ResponseFuture<S, Req, T>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        // The clock is read here and not at the first poll: until then the future may wait in a queue.
        let bound = Bound::start(self.limit, Limit::Attempt);
        if bound.is_refused() {
            return ResponseFuture::unsent(Call::over(), bound);
        }
        let Some(service) = self.inner.take_ready() else {
            let call = Call::new(self.inner.inner().clone(), request);
            return ResponseFuture::unsent(call, bound);
        };
        // What lies beneath is the user's own, most often, and may work before it asks for the time.
        Deadline::within_attempt(bound.until(), || {
            edge::within_call(None, || ResponseFuture::sent(service, request, bound))
        })
    }
}

impl<S: Clone, T> Clone for TimeoutService<S, T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), ..*self }
    }
}

impl<S: fmt::Debug, T> fmt::Debug for TimeoutService<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimeoutService")
            .field("inner", &self.inner)
            .field("limit", &self.limit)
            .finish()
    }
}
