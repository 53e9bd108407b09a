use std::{
    fmt,
    task::{Context, Poll, ready},
};

use buttress_core::{BoxError, ErrorsAsFailures, IntoBoxError, Observe};
use tower_service::Service;

use crate::{Admission, Breaker, ResponseFuture, Select};

/// A service that asks a breaker before each call. See [`BreakerLayer`](crate::BreakerLayer).
///
/// It is ready when the inner service is, or when the breaker would refuse anyway. Refusals come from the
/// future of `call`, never from `poll_ready`.
pub struct BreakerService<S, B, O = ErrorsAsFailures> {
    inner: S,
    breaker: B,
    observe: O,
    readiness: Readiness,
}

/// What stands behind the last readiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readiness {
    /// Nothing. Whoever calls now breaks the contract, and the inner service will say so.
    Unknown,
    /// The inner service is ready for one call. It stays so if that call is refused.
    Inner,
    /// The breaker refuses the call that comes. The inner service was not asked, and must not be called before it is.
    Refusing,
}

// === impl BreakerService ===

impl<S, B, O> BreakerService<S, B, O> {
    pub(crate) const fn new(inner: S, breaker: B, observe: O) -> Self {
        Self { inner, breaker, observe, readiness: Readiness::Unknown }
    }

    /// The breaker, or what selects it.
    pub const fn breaker(&self) -> &B {
        &self.breaker
    }
}

impl<S, B, O, Req> Service<Req> for BreakerService<S, B, O>
where
    S: Service<Req>,
    S::Error: IntoBoxError,
    B: Select<Req>,
    O: Observe<S::Response> + Clone,
{
    type Response = O::Response<Admission>;
    type Error = BoxError;
    type Future = ResponseFuture<S::Future, O>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // ## Unknown => Refusing
        if self.breaker.only().is_some_and(Breaker::refuses) {
            // An inner service that is ready already is called if the breaker lets the call through after
            // all.
            if self.readiness != Readiness::Inner {
                self.readiness = Readiness::Refusing;
            }
            return Poll::Ready(Ok(()));
        }
        // ## _ => Inner
        // One that was ready is asked again: what it said may not hold any more, as when it has failed
        // since. While it is pending a promise to refuse holds on, one to call it does not.
        if self.readiness == Readiness::Inner {
            self.readiness = Readiness::Unknown;
        }
        ready!(self.inner.poll_ready(cx)).map_err(Into::into)?;
        self.readiness = Readiness::Inner;
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn call(&mut self, request: Req) -> Self::Future {
        let is_refused = self.readiness == Readiness::Refusing;
        let observe = self.observe.clone();
        // Who is refused needs no handle of its own, if there is one at hand.
        let entered = match self.breaker.only() {
            Some(breaker) => match breaker.enter(is_refused) {
                Ok(ticket) => Ok(breaker.clone().admission(ticket)),
                Err(refused) => Err(breaker.rejected(refused)),
            },
            None => {
                let breaker = self.breaker.select(&request);
                match breaker.enter(is_refused) {
                    Ok(ticket) => Ok(breaker.admission(ticket)),
                    Err(refused) => Err(breaker.rejected(refused)),
                }
            }
        };
        match entered {
            Ok(permit) => {
                self.readiness = Readiness::Unknown;
                ResponseFuture::called(permit, observe, || self.inner.call(request))
            }
            Err(rejected) => ResponseFuture::refused(rejected, observe),
        }
    }
}

impl<S, B, O> Clone for BreakerService<S, B, O>
where
    S: Clone,
    B: Clone,
    O: Clone,
{
    /// The clone has not been polled ready.
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), self.breaker.clone(), self.observe.clone())
    }
}

// By hand: classifiers are often closures, which are not `Debug`.
impl<S, B, O> fmt::Debug for BreakerService<S, B, O>
where
    S: fmt::Debug,
    B: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BreakerService")
            .field("inner", &self.inner)
            .field("breaker", &self.breaker)
            .field("readiness", &self.readiness)
            .finish_non_exhaustive()
    }
}
