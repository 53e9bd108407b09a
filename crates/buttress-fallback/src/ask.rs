use std::{
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Poll, ready},
};

use buttress_core::{BoxError, CloneService, Context, IntoBoxError, Scope, ready::Call};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::{Answer, Cause};

/// Answers with what another service says. See [`FallbackLayer::service`](crate::FallbackLayer::service).
///
/// The service is cloned only when it is asked: clones of this share it, and a call that needs no fallback
/// costs it nothing. The lock is held for the time of a clone.
pub struct Ask<K, S> {
    keep: K,
    service: Arc<Mutex<S>>,
}

pin_project! {
    /// The answer of another service: waits until it is ready, and calls it.
    #[must_use = "futures do nothing unless polled"]
    pub struct AskFuture<S, Req>
    where
        S: Service<Req>,
    {
        #[pin]
        call: Scope<Call<S, Req>>,
    }
}

// === impl Ask ===

impl<K, S> Ask<K, S> {
    /// Calls `service` with what `keep` makes of the request when it enters.
    pub fn new<Req, Sent>(keep: K, service: S) -> Self
    where
        K: Fn(&Req) -> Sent,
    {
        Self { keep, service: Arc::new(Mutex::new(service)) }
    }
}

impl<K, S, Req, Res, Sent> Answer<Req, Res> for Ask<K, S>
where
    K: Fn(&Req) -> Sent,
    S: Service<Sent, Response = Res> + CloneService,
    S::Error: IntoBoxError,
{
    type Kept = (Sent, Context);
    type Future = AskFuture<S, Sent>;

    fn keep(&self, request: &Req) -> Option<Self::Kept> {
        Some(((self.keep)(request), Context::current()))
    }

    fn answer(&self, (request, entered): Self::Kept, _: &Cause<Res>) -> Self::Future {
        // A clone that panicked left the service as it was.
        let service = self.service.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // A buffer above calls in a task of its own, where there is no context. But this is a poll, and
        // polls come from where the request is.
        let context = if entered == Context::default() { Context::current() } else { entered };
        AskFuture { call: context.scope(Call::new(service, request)) }
    }
}

impl<K: Clone, S> Clone for Ask<K, S> {
    fn clone(&self) -> Self {
        Self { keep: self.keep.clone(), service: self.service.clone() }
    }
}

impl<K, S> fmt::Debug for Ask<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ask").finish_non_exhaustive()
    }
}

// === impl AskFuture ===

impl<S, Req> Future for AskFuture<S, Req>
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
{
    type Output = Result<S::Response, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(self.project().call.poll(cx));
        Poll::Ready(answer.map_err(Into::into))
    }
}

impl<S, Req> fmt::Debug for AskFuture<S, Req>
where
    S: Service<Req>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AskFuture").finish_non_exhaustive()
    }
}
