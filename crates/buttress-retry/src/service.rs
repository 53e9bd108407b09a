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

use crate::{ResponseFuture, future::within, layer::Policy};

/// Sends requests again that failed. See [`RetryLayer`](crate::RetryLayer).
///
/// # Panics
///
/// Its futures panic if they have to wait outside of a tokio runtime with timers.
pub struct RetryService<S, C = ErrorsAsFailures, R = CloneReplay> {
    inner: Ready<S>,
    policy: Arc<Policy<C, R>>,
}

impl<S, C, R> RetryService<S, C, R> {
    pub(crate) fn new(inner: S, policy: Arc<Policy<C, R>>) -> Self {
        Self { inner: Ready::new(inner), policy }
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
        let policy = self.policy.clone();
        let context = buttress_core::Context::current();
        let nested = context.attempt() > 0 && !policy.independent;
        let (request, kept) = if nested || policy.schedule.attempts == 1 {
            (policy.replay.once(request), None)
        } else {
            policy.replay.keep(request)
        };
        // Not in charge, there is no number of ours, and the context keeps the one it has.
        let attempt = u32::from(kept.is_some());
        let sent = within(attempt, || self.inner.call_ready(request));
        // One for later attempts, or to be waited for.
        let spare = (kept.is_some() || sent.is_err()).then(|| self.inner.inner().clone());
        ResponseFuture::new(policy, !nested, attempt, spare, kept, context.deadline(), sent)
    }
}

impl<S: Clone, C, R> Clone for RetryService<S, C, R> {
    /// The clone has not been polled ready.
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), policy: self.policy.clone() }
    }
}

impl<S: fmt::Debug, C, R> fmt::Debug for RetryService<S, C, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryService")
            .field("inner", self.inner.inner())
            .field("policy", &self.policy)
            .finish()
    }
}
