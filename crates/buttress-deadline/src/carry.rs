//! What a request has with it, carried through a `Buffer`.
//!
//! The [context](Context) of a request is known wherever its future is polled. tower's `Buffer` calls the
//! service beneath it in a task of its own, and so do others that put a channel between: `call` sees
//! neither the deadline nor who is in charge of repeating. Our layers look again in their first poll. What
//! is decided in `call` is decided without it all the same: an outgoing request bears no deadline, a queue
//! takes in what is late already.
//!
//! [`CarryLayer`] stands above the `Buffer` and puts the context beside the request; [`ResumeLayer`] stands
//! beneath, and calls and polls in it. It costs 40 bytes a request, and works for every type of request.
//!
//! ```
//! use buttress_deadline::{CarryLayer, Deadline, DeadlineLayer, ResumeLayer};
//! use std::{convert::Infallible, time::Duration};
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let service = ServiceBuilder::new()
//!     .layer(DeadlineLayer::new(Duration::from_secs(30)))
//!     .layer(CarryLayer)
//!     .buffer(16)
//!     .layer(ResumeLayer)
//!     .service(service_fn(|name: &'static str| {
//!         let known = Deadline::current().is_some(); // in `call`
//!         async move { Ok::<_, Infallible>((name, known)) }
//!     }));
//! assert_eq!(service.oneshot("orders").await.unwrap(), ("orders", true));
//! # }
//! ```

use std::{
    pin::Pin,
    task::{self, Poll},
};

use buttress_core::Context;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

/// A request, and the context that it came in.
#[derive(Clone, Debug)]
pub struct Carried<Req> {
    context: Context,
    request: Req,
}

/// Puts the context beside each request, for a [`ResumeLayer`] beneath. See [this module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct CarryLayer;

/// Puts the context beside each request. See [`CarryLayer`].
// Not `Copy`, whatever the inner one is: a copy in silence would take its readiness along.
#[derive(Clone, Debug)]
pub struct Carry<S> {
    inner: S,
}

/// Calls and polls in the context that a [`CarryLayer`] above put beside the request. See
/// [this module](self).
#[derive(Clone, Copy, Debug, Default)]
pub struct ResumeLayer;

/// Calls and polls in the context that was carried. See [`ResumeLayer`].
// Not `Copy`, whatever the inner one is: a copy in silence would take its readiness along.
#[derive(Clone, Debug)]
pub struct Resume<S> {
    inner: S,
}

pin_project! {
    /// The answer of a [`Resume`], which is the inner service's own.
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct ResumeFuture<F> {
        #[pin]
        inner: F,
        context: Context,
        is_polled: bool,
    }
}

// === impl Carried ===

impl<Req> Carried<Req> {
    /// The context that the request came in.
    pub const fn context(&self) -> Context {
        self.context
    }

    /// The request.
    pub const fn request(&self) -> &Req {
        &self.request
    }
}

// === impl CarryLayer ===

impl<S> Layer<S> for CarryLayer {
    type Service = Carry<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Carry { inner }
    }
}

// === impl Carry ===

impl<S, Req> Service<Req> for Carry<S>
where
    S: Service<Carried<Req>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        self.inner.call(Carried { context: Context::current(), request })
    }
}

// === impl ResumeLayer ===

impl<S> Layer<S> for ResumeLayer {
    type Service = Resume<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Resume { inner }
    }
}

// === impl Resume ===

impl<S, Req> Service<Carried<Req>> for Resume<S>
where
    S: Service<Req>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = ResumeFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, Carried { context, request }: Carried<Req>) -> Self::Future {
        let inner = context.within(|| self.inner.call(request));
        ResumeFuture { inner, context, is_polled: false }
    }
}

// === impl ResumeFuture ===

impl<F: Future> Future for ResumeFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        if !std::mem::replace(this.is_polled, true) {
            // Another buffer above may have called the `Carry`, where not all was known. Whoever polls may know
            // what is missing.
            let (carried, current) = (*this.context, Context::current());
            let attempt = if carried.attempt() == 0 { current } else { carried }.attempt();
            *this.context = carried
                .with_deadline(carried.deadline().or(current.deadline()))
                .with_attempt_deadline(carried.attempt_deadline().or(current.attempt_deadline()))
                .with_attempt(attempt)
                .with_fence(carried.fence().or(current.fence()));
        }
        this.context.within(|| this.inner.poll(cx))
    }
}
