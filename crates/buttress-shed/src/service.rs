use std::{
    fmt,
    task::{Context, Poll},
};

use buttress_core::{
    BoxError, CloneService, Context as Ambient, ErrorsAsFailures, IntoBoxError, Observe, edge,
};
use tower_service::Service;

use crate::{Permit, Prioritize, Priority, ResponseFuture, Shed, shed::Decision};

/// A service that a [`Shed`] admits requests to.
///
/// Its readiness is the inner service's, and no more: who is admitted is decided in `call`. If there is a
/// place, the instance that was polled ready is called at once. A request that has to wait takes a fresh
/// clone with it (hence `S: Clone`) which is readied once it has its place: so nobody reserves anything
/// of the inner service while waiting, and neither does the service that stays behind. Where an inner
/// service cannot be cloned, ask the [`Shed`] for a permit yourself.
///
/// A request that is refused leaves the inner service ready for the next.
///
/// No retry of ours is in charge of what runs within: a server's own clients repeat by themselves, even if
/// whoever sent the request is repeating it.
#[derive(Clone)]
pub struct ShedService<S, P = Priority, O = ErrorsAsFailures> {
    inner: S,
    shed: Shed,
    prioritize: P,
    observe: O,
}

impl<S, P, O> ShedService<S, P, O> {
    pub(crate) const fn new(inner: S, shed: Shed, prioritize: P, observe: O) -> Self {
        Self { inner, shed, prioritize, observe }
    }

    /// The shed that it shares with others.
    pub const fn shed(&self) -> &Shed {
        &self.shed
    }
}

impl<S, P, O, Req> Service<Req> for ShedService<S, P, O>
where
    S: Service<Req> + CloneService,
    S::Error: IntoBoxError,
    P: Prioritize<Req>,
    O: Observe<S::Response> + Clone,
{
    type Response = O::Response<Permit>;
    type Error = BoxError;
    type Future = ResponseFuture<S, Req, O>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    #[inline]
    fn call(&mut self, request: Req) -> Self::Future {
        let ambient = Ambient::current().with_attempt(0);
        let priority = self.prioritize.priority(&request);
        let Self { inner, shed, observe, .. } = self;
        match shed.enter(edge::called(), ambient.deadline()) {
            Ok(permit) => ResponseFuture::call(permit, ambient, inner, request, observe),
            Err(undecided) => {
                let decision = shed.decide(undecided, priority);
                Self::call_if_admitted(decision, ambient, inner, request, observe)
            }
        }
    }
}

impl<S, P, O> ShedService<S, P, O> {
    /// There was no place at once.
    #[cold]
    #[inline(never)]
    fn call_if_admitted<Req>(
        decision: Decision,
        ambient: Ambient,
        inner: &mut S,
        request: Req,
        observe: &O,
    ) -> ResponseFuture<S, Req, O>
    where
        S: Service<Req> + CloneService,
        O: Clone,
    {
        match decision {
            Decision::Admit(permit) => {
                ResponseFuture::call(permit, ambient, inner, request, observe)
            }
            Decision::Wait(waiter) => {
                // The readied instance goes, with whatever it has reserved. One waits, one stays.
                let fresh = inner.clone();
                *inner = fresh.clone();
                let observe = observe.clone();
                ambient.within(|| ResponseFuture::queued(fresh, request, waiter, observe))
            }
            Decision::Refuse(rejected) => ResponseFuture::refused(rejected, observe.clone()),
        }
    }
}

// By hand: priorities come from closures, as a rule, which are not `Debug`.
impl<S: fmt::Debug, P, O> fmt::Debug for ShedService<S, P, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShedService")
            .field("inner", &self.inner)
            .field("shed", &self.shed)
            .finish_non_exhaustive()
    }
}
