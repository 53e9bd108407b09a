//! Readiness that counts against a limit.
//!
//! A limit that starts in `call` says nothing of the time before it: a service behind a full queue is
//! waited for in `poll_ready`, for ever. A limit in `poll_ready` has no request to end, and may not fail:
//! an error of readiness is final. So the layers that limit or repeat a call are **ready at once**. Where
//! the inner service is ready too, that very instance is called. Where it is not, a clone of it moves
//! into the response future, which waits for its readiness and then calls it, both under one limit.
//! [`Ready`] is the service's half of that, [`Call`] the future's.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tower_service::Service;

/// A service that is ready at once.
///
/// [`Clone`] forgets readiness: it belongs to the instance that was polled.
#[derive(Debug)]
pub struct Ready<S> {
    inner: S,
    is_ready: bool,
}

pin_project! {
    /// The future of [`Ready::call`]: waits for readiness where there was none, then for the answer.
    #[must_use = "futures do nothing unless polled"]
    pub struct Call<S, Req>
    where
        S: Service<Req>,
    {
        #[pin]
        state: State<S, Req, S::Future>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, Req, F> {
        Waiting { service: S, request: Option<Req> },
        Called { #[pin] future: F },
    }
}

// === impl Ready ===

impl<S> Ready<S> {
    /// Wraps a service that has not been polled.
    pub const fn new(inner: S) -> Self {
        Self { inner, is_ready: false }
    }

    /// The inner service. A clone of it starts without readiness.
    pub const fn inner(&self) -> &S {
        &self.inner
    }

    /// Ready at once, whether the inner service is or not.
    ///
    /// An inner service that is pending is replaced by a clone, so that nothing of ours keeps a place in
    /// a queue that nobody waits in.
    ///
    /// # Errors
    ///
    /// The inner service's own, which is final.
    pub fn poll_ready<Req>(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>>
    where
        S: Service<Req> + Clone,
    {
        self.is_ready = match self.inner.poll_ready(cx) {
            Poll::Ready(Ok(())) => true,
            Poll::Ready(Err(error)) => {
                self.is_ready = false;
                return Poll::Ready(Err(error));
            }
            Poll::Pending => {
                self.inner = self.inner.clone();
                false
            }
        };
        Poll::Ready(Ok(()))
    }

    /// Calls the inner service if it was polled ready, and gives the request back if not.
    ///
    /// # Errors
    ///
    /// The request, untouched.
    pub fn call_ready<Req>(&mut self, request: Req) -> Result<S::Future, Req>
    where
        S: Service<Req>,
    {
        if std::mem::take(&mut self.is_ready) { Ok(self.inner.call(request)) } else { Err(request) }
    }

    /// Calls the inner service, once it is ready.
    pub fn call<Req>(&mut self, request: Req) -> Call<S, Req>
    where
        S: Service<Req> + Clone,
    {
        let state = match self.call_ready(request) {
            Ok(future) => State::Called { future },
            Err(request) => State::Waiting { service: self.inner.clone(), request: Some(request) },
        };
        Call { state }
    }
}

impl<S: Clone> Clone for Ready<S> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone())
    }
}

// === impl Call ===

impl<S, Req> Call<S, Req>
where
    S: Service<Req>,
{
    /// Whether the request was handed to the service. If not, nothing was sent.
    pub fn is_sent(&self) -> bool {
        matches!(self.state, State::Called { .. })
    }
}

impl<S, Req> Future for Call<S, Req>
where
    S: Service<Req>,
{
    type Output = Result<S::Response, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            match state.as_mut().project() {
                // ## Waiting => Called
                StateProj::Waiting { service, request } => {
                    ready!(service.poll_ready(cx))?;
                    let request = request.take().expect("polled after it was ready");
                    let future = service.call(request);
                    state.set(State::Called { future });
                }
                StateProj::Called { future } => return future.poll(cx),
            }
        }
    }
}

impl<S, Req> fmt::Debug for Call<S, Req>
where
    S: Service<Req>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("is_sent", &self.is_sent()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        future,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::Relaxed},
        },
        time::Duration,
    };

    use tokio::time::{sleep, timeout};
    use tower::{ServiceExt, limit::ConcurrencyLimit, service_fn};

    use super::*;

    type Limited = ConcurrencyLimit<tower::util::BoxCloneService<u64, u64, Infallible>>;

    /// One place; a call takes as many seconds as it is asked for.
    fn one_place() -> Limited {
        let slow = service_fn(|seconds| async move {
            sleep(Duration::from_secs(seconds)).await;
            Ok(seconds)
        });
        ConcurrencyLimit::new(tower::util::BoxCloneService::new(slow), 1)
    }

    async fn poll_ready(service: &mut Ready<Limited>) {
        future::poll_fn(|cx| service.poll_ready(cx)).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn ready_while_the_inner_service_is_not_and_called_when_it_is() {
        let mut service = Ready::new(one_place());
        poll_ready(&mut service).await;
        let first = service.call(10);
        assert!(first.is_sent());
        poll_ready(&mut service).await;
        let second = service.call(1);
        assert!(!second.is_sent());
        assert_eq!(tokio::join!(first, second), (Ok(10), Ok(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn idle_and_not_ready_it_keeps_no_place_in_a_queue() {
        let mut limited = one_place();
        let running = limited.ready().await.unwrap().call(10);
        let mut idle = Ready::new(limited.clone());
        poll_ready(&mut idle).await;
        let next = async { limited.ready().await.unwrap().call(1).await };
        let (_, next) = tokio::join!(running, timeout(Duration::from_secs(60), next));
        assert_eq!(next, Ok(Ok(1)), "the freed place must not go to an idle service");
    }

    #[tokio::test(start_paused = true)]
    async fn a_clone_starts_without_readiness() {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let mut service = Ready::new(service_fn(move |()| {
            counted.fetch_add(1, Relaxed);
            future::ready(Ok::<_, Infallible>(()))
        }));
        future::poll_fn(|cx| service.poll_ready(cx)).await.unwrap();
        let unsent = service.clone().call(());
        assert!(!unsent.is_sent() && calls.load(Relaxed) == 0);
        unsent.await.unwrap();
        assert!(service.call(()).is_sent());
    }
}
