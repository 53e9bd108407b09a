use std::{
    task::{Context, Poll},
    time::Duration,
};

use buttress_core::{
    BoxError, CloneService, Deadline, IntoBoxError, Limit,
    ready::{Call, Ready},
};
use tower_service::Service;

use super::ResponseFuture;
use crate::bound::Bound;

/// Gives each request so much time in all. See [`DeadlineLayer`](super::DeadlineLayer).
///
/// It is ready at once: where the inner service is not, the response future waits for it, and the time
/// runs.
#[derive(Clone, Debug)]
pub struct DeadlineService<S> {
    inner: Ready<S>,
    total: Duration,
}

impl<S> DeadlineService<S> {
    pub(super) const fn new(inner: S, total: Duration) -> Self {
        Self { inner: Ready::new(inner), total }
    }
}

impl<S, Req> Service<Req> for DeadlineService<S>
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
        let bound = Bound::start(self.total, Limit::Total);
        if bound.is_refused() {
            return ResponseFuture::unsent(Call::over(), bound);
        }
        let Some(service) = self.inner.take_ready() else {
            let call = Call::new(self.inner.inner().clone(), request);
            return ResponseFuture::unsent(call, bound);
        };
        Deadline::within(bound.until(), || ResponseFuture::sent(service, request, bound))
    }
}
