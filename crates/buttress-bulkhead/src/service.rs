use std::{
    fmt,
    task::{Context, Poll},
};

use buttress_core::{BoxError, CloneService, ErrorsAsFailures, IntoBoxError, Observe};
use tower_service::Service;

use crate::{Acquire, Bulkhead, ResponseFuture, Slot, bulkhead::Decision};

/// A service that no more calls are let into than a [`Bulkhead`] has slots.
///
/// Its readiness is the inner service's, and no more: the slot is taken in `call`. If one is free, the
/// instance that was polled ready is called at once. A call that has to wait takes a fresh clone with it
/// (hence `S: Clone`) which is readied once the slot is there: so nobody reserves anything of the inner
/// service while waiting, and neither does the service that stays behind. If it is
/// not ready by the request's deadline, the slot goes back and nothing is sent. Where an inner service
/// cannot be cloned, ask the [`Bulkhead`] for a slot yourself.
///
/// A call that is refused leaves the inner service ready for the next.
#[derive(Clone)]
pub struct BulkheadService<S, O = ErrorsAsFailures> {
    inner: S,
    bulkhead: Bulkhead,
    observe: O,
}

impl<S, O> BulkheadService<S, O> {
    pub(crate) const fn new(inner: S, bulkhead: Bulkhead, observe: O) -> Self {
        Self { inner, bulkhead, observe }
    }

    /// The bulkhead that it shares with others.
    pub const fn bulkhead(&self) -> &Bulkhead {
        &self.bulkhead
    }
}

impl<S, O, Req> Service<Req> for BulkheadService<S, O>
where
    S: Service<Req> + CloneService,
    S::Error: IntoBoxError,
    O: Observe<S::Response> + Clone,
{
    type Response = O::Response<Slot>;
    type Error = BoxError;
    type Future = ResponseFuture<S, Req, O>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    // Inlined into what makes the future of another layer, it would make its own aside.
    #[inline(never)]
    fn call(&mut self, request: Req) -> Self::Future {
        match self.bulkhead.take() {
            Some(slot) => ResponseFuture::call(slot, &mut self.inner, request, &self.observe),
            None if self.bulkhead.has_queue() => self.queue_up(request),
            None => ResponseFuture::refused(self.bulkhead.refuse(), self.observe.clone()),
        }
    }
}

impl<S, O> BulkheadService<S, O> {
    /// There was no slot at once.
    #[cold]
    #[inline(never)]
    fn queue_up<Req>(&mut self, request: Req) -> ResponseFuture<S, Req, O>
    where
        S: Service<Req> + CloneService,
        O: Clone,
    {
        match self.bulkhead.queue_up() {
            Decision::Admit(slot) => {
                ResponseFuture::call(slot, &mut self.inner, request, &self.observe)
            }
            Decision::Wait(place) => {
                // The readied instance goes, with whatever it has reserved. One waits, one stays.
                let fresh = self.inner.clone();
                self.inner = fresh.clone();
                let observe = self.observe.clone();
                ResponseFuture::queued(fresh, request, Acquire::waiting(place), observe)
            }
            Decision::Refuse(reason) => ResponseFuture::refused(reason, self.observe.clone()),
        }
    }
}

// By hand: what observes is often a closure, which is not `Debug`.
impl<S: fmt::Debug, O> fmt::Debug for BulkheadService<S, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BulkheadService")
            .field("inner", &self.inner)
            .field("bulkhead", &self.bulkhead)
            .finish_non_exhaustive()
    }
}
