use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use buttress_core::{
    BoxError, Classify, CloneReplay, CloneService, Discard, ErrorsAsFailures, IntoBoxError, Replay,
    ready::Ready,
};
use tower_service::Service;

use crate::{
    ResponseFuture,
    future::{First, within},
    layer::Policy,
    spare::Spare,
};

/// Sends requests again that failed. See [`RetryLayer`](crate::RetryLayer).
///
/// # Panics
///
/// Its futures panic if they have to wait outside of a tokio runtime with timers.
pub struct RetryService<S, C = ErrorsAsFailures, R = CloneReplay> {
    inner: Ready<S>,
    shared: Arc<Shared<S, C, R>>,
}

/// What all clones of a service and all calls of them have in common.
pub(crate) struct Shared<S, C, R> {
    pub(crate) policy: Policy<C, R>,
    pub(crate) spare: Spare<S>,
}

impl<S, C, R> RetryService<S, C, R> {
    pub(crate) fn new(inner: S, policy: Policy<C, R>) -> Self {
        let shared = Arc::new(Shared { policy, spare: Spare::new() });
        Self { inner: Ready::new(inner), shared }
    }
}

impl<S, Req, C, R> Service<Req> for RetryService<S, C, R>
where
    S: Service<R::Sent> + CloneService,
    S::Error: IntoBoxError,
    C: Classify<S::Response>,
    R: Replay<Req> + Discard<S::Response>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = ResponseFuture<S, Req, C, R>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let Self { inner, shared } = self;
        let Shared { policy, spare } = &**shared;
        let context = buttress_core::Context::current();
        let nested = context.attempt() > 0 && !policy.independent;
        let (request, mut kept) = if nested || policy.schedule.attempts == 1 {
            (policy.replay.once(request), None)
        } else {
            policy.replay.keep(request)
        };
        if kept.is_some() {
            spare.keep(inner.inner());
        }
        // Not in charge, there is no number of ours, and the context keeps the one it has.
        let attempt = u32::from(kept.is_some());
        let first = First { counts: !nested, attempt, deadline: context.deadline() };
        let mut shared = Some(shared.clone());
        let Some(service) = inner.take_ready() else {
            let fresh = inner.inner().clone();
            return ResponseFuture::unsent(shared, kept, first, fresh, request);
        };
        within(attempt, || ResponseFuture::sent(&mut shared, &mut kept, first, service, request))
    }
}

impl<S: Clone, C, R> Clone for RetryService<S, C, R> {
    /// The clone has not been polled ready.
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), shared: self.shared.clone() }
    }
}

impl<S: fmt::Debug, C, R> fmt::Debug for RetryService<S, C, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryService")
            .field("inner", self.inner.inner())
            .field("policy", &self.shared.policy)
            .finish()
    }
}
