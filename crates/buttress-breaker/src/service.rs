use std::{
    fmt,
    task::{Context, Poll, ready},
};

use buttress_core::{BoxError, ErrorsAsFailures, IntoBoxError, Observe};
use tower_service::Service;

use crate::{Admission, Breaker, ResponseFuture, Select, moment::Moment};

/// A service that asks a breaker before each call. See [`BreakerLayer`](crate::BreakerLayer).
///
/// It is ready when the inner service is, or when the breaker would refuse anyway. Refusals come from the
/// future of `call`, never from `poll_ready`. But the time after which to try again counts from the readiness, if
/// that was the breaker's alone: the refusal was decided then.
pub struct BreakerService<S, B, O = ErrorsAsFailures> {
    inner: S,
    breaker: B,
    observe: O,
    readiness: Readiness,
}

/// What stands behind the last readiness: nothing, the inner service, or the breaker alone.
///
/// In one word, as services are cloned into futures.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Readiness(Moment);

// === impl BreakerService ===

impl<S, B, O> BreakerService<S, B, O> {
    pub(crate) const fn new(inner: S, breaker: B, observe: O) -> Self {
        Self { inner, breaker, observe, readiness: Readiness::UNKNOWN }
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
        if let Some(now) = self.breaker.only().and_then(Breaker::refuses) {
            // An inner service that is ready already is called if the breaker lets the call through after
            // all.
            if self.readiness != Readiness::INNER {
                self.readiness = Readiness::refusing(now);
            }
            return Poll::Ready(Ok(()));
        }
        // ## _ => Inner
        // One that was ready is asked again: what it said may not hold any more, as when it has failed
        // since. While it is pending a promise to refuse holds on, one to call it does not.
        if self.readiness == Readiness::INNER {
            self.readiness = Readiness::UNKNOWN;
        }
        ready!(self.inner.poll_ready(cx)).map_err(Into::into)?;
        self.readiness = Readiness::INNER;
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn call(&mut self, request: Req) -> Self::Future {
        let refused = self.readiness.refused_at();
        // Who is refused needs no handle of its own, if there is one at hand.
        let entered = match self.breaker.only() {
            Some(breaker) => breaker.enter(refused).map(|ticket| breaker.clone().admission(ticket)),
            None => {
                let breaker = self.breaker.select(&request);
                breaker.enter(refused).map(|ticket| breaker.admission(ticket))
            }
        };
        let observe = self.observe.clone();
        match entered {
            Ok(permit) => {
                self.readiness = Readiness::UNKNOWN;
                ResponseFuture::called(permit, observe, || self.inner.call(request))
            }
            Err(refused) => ResponseFuture::refused(refused, observe),
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

// === impl Readiness ===

impl Readiness {
    /// Whoever calls now breaks the contract, and the inner service will say so.
    const UNKNOWN: Self = Self(Moment::NEVER);
    /// The inner service is ready for one call. It stays so if that call is refused.
    const INNER: Self = Self(Moment::at(u64::MAX - 1));

    /// The breaker refuses a call that asks at `now`, and so the one that comes. The inner service was not
    /// asked, and must not be called before it is.
    fn refusing(now: Moment) -> Self {
        Self(now)
    }

    /// When that was.
    #[inline]
    fn refused_at(self) -> Option<Moment> {
        (self != Self::UNKNOWN && self != Self::INNER).then_some(self.0)
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::UNKNOWN => "Unknown",
            Self::INNER => "Inner",
            _ => "Refusing",
        })
    }
}
