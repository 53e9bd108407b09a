use std::{
    fmt,
    task::{Context, Poll},
};

use buttress_core::{BoxError, Classify, ErrorsAsFailures, IntoBoxError, Mark};
use tower_service::Service;

use crate::{Answer, ByClass, ResponseFuture, When, future::State, layer::Policy};

/// Answers where the inner service did not. See [`FallbackLayer`](crate::FallbackLayer).
// Not `Copy`, whatever the inner one is: a copy in silence would take its readiness along.
#[derive(Clone)]
pub struct FallbackService<S, A, C = ErrorsAsFailures, W = ByClass> {
    inner: S,
    policy: Policy<A, C, W>,
}

impl<S, A, C, W> FallbackService<S, A, C, W> {
    pub(crate) const fn new(inner: S, policy: Policy<A, C, W>) -> Self {
        Self { inner, policy }
    }
}

impl<S, Req, A, C, W> Service<Req> for FallbackService<S, A, C, W>
where
    S: Service<Req>,
    S::Error: IntoBoxError,
    A: Answer<Req, S::Response> + Clone,
    C: Classify<S::Response> + Mark<S::Response> + Clone,
    W: When<S::Response> + Clone,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = ResponseFuture<S, Req, A, C, W>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: Req) -> Self::Future {
        let (kept, policy) = (self.policy.answer.keep(&request), self.policy.clone());
        // The inner call comes last: its future is then built where it stays.
        ResponseFuture { policy, state: State::Asking { kept, future: self.inner.call(request) } }
    }
}

// By hand: answer, classifier and predicate are closures, as a rule, which are not `Debug`.
impl<S: fmt::Debug, A, C, W> fmt::Debug for FallbackService<S, A, C, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FallbackService").field("inner", &self.inner).finish_non_exhaustive()
    }
}
