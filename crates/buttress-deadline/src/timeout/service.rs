use std::{
    task::{Context, Poll},
    time::Duration,
};

use buttress_core::{
    BoxError, CloneService, Deadline, IntoBoxError, Limit, edge,
    ready::{Call, Ready},
};
use tower_service::Service;

use super::ResponseFuture;
use crate::bound::Bound;

/// Gives each attempt so much time. See [`TimeoutLayer`](super::TimeoutLayer).
///
/// It is ready at once: where the inner service is not, the response future waits for it, and the time
/// runs.
#[derive(Clone, Debug)]
pub struct TimeoutService<S> {
    inner: Ready<S>,
    limit: Duration,
}

impl<S> TimeoutService<S> {
    pub(super) const fn new(inner: S, limit: Duration) -> Self {
        Self { inner: Ready::new(inner), limit }
    }
}

impl<S, Req> Service<Req> for TimeoutService<S>
where
    S: Service<Req> + CloneService,
    S::Error: IntoBoxError,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = ResponseFuture<S, Req>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        // The clock is read here and not at the first poll: until then the future may wait in a queue.
        let bound = Bound::start(self.limit, Limit::Attempt);
        if bound.had_passed_at_start() {
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
