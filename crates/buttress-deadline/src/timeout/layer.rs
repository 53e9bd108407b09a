use std::{marker::PhantomData, time::Duration};

use buttress_core::{
    InvalidSetting,
    timer::{Alarm, RareAlarm},
};
use tower_layer::Layer;

use super::{CallTimeoutLayer, TimeoutService};
use crate::bound::{assert_more_than_zero, more_than_zero};

/// Gives each attempt so much time.
///
/// It belongs beneath the retry. The limit starts at `call`, and includes the wait for the inner
/// service's readiness. Where less is left of the request's deadline, the attempt gets that; the deadline
/// itself stays as it is. Whoever tells the callee how long to work finds the attempt's end in
/// [`Deadline::of_attempt`](crate::Deadline::of_attempt).
///
/// # Errors
///
/// The service answers [`Elapsed`] of [`Limit::Attempt`], which says whether the request was
/// [sent](crate::Elapsed::sent). Where it was the request's deadline that ended the attempt, it answers
/// what a [`DeadlineLayer`] would: [`Rejected`] if nothing was sent, else `Elapsed` of [`Limit::Total`].
/// If a `DeadlineLayer` in the same task is above, that one answers.
///
/// # Panics
///
/// A call that has to wait for a bounded time panics outside of a tokio runtime with timers.
///
/// # Cancel safety
///
/// The inner future is dropped in the same poll in which the time is up. Nothing goes on in secret.
///
/// # Differences from tower's `Timeout`
///
/// The wait for readiness counts, the deadline counts, the timer is armed only once the inner future is
/// pending, one timer serves all limits of a stack, and an inner future that is always busy cannot put
/// it off.
///
/// # Examples
///
/// ```
/// use buttress_deadline::{Elapsed, Limit, TimeoutLayer};
/// use std::{convert::Infallible, future, time::Duration};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let silent = service_fn(|()| future::pending::<Result<(), Infallible>>());
/// let client = TimeoutLayer::new(Duration::from_secs(10)).layer(silent);
/// let error = client.oneshot(()).await.unwrap_err();
/// assert_eq!(error.downcast_ref::<Elapsed>().unwrap().which(), Limit::Attempt);
/// # }
/// ```
///
/// [`DeadlineLayer`]: crate::DeadlineLayer
/// [`Elapsed`]: crate::Elapsed
/// [`Limit::Attempt`]: crate::Limit::Attempt
/// [`Limit::Total`]: crate::Limit::Total
/// [`Rejected`]: crate::Rejected
#[derive(Debug)]
pub struct TimeoutLayer<T = Alarm> {
    limit: Duration,
    _timer: PhantomData<fn() -> T>,
}

impl TimeoutLayer {
    /// `limit` is the time for one attempt; [`Duration::MAX`] leaves it with what the request has.
    ///
    /// # Panics
    ///
    /// If `limit` is zero: every attempt would fail. [`try_new`](Self::try_new) says so in an error.
    #[must_use]
    #[track_caller]
    pub const fn new(limit: Duration) -> Self {
        Self::unchecked(assert_more_than_zero(limit))
    }

    /// The same, for a `limit` that comes from elsewhere.
    ///
    /// # Errors
    ///
    /// If `limit` is zero.
    pub fn try_new(limit: Duration) -> Result<Self, InvalidSetting> {
        Ok(Self::unchecked(more_than_zero("limit", limit)?))
    }

    /// Limits the call alone: another layer, for services that cannot be cloned, or whose readiness must
    /// stay theirs, as that of a service under a balancer.
    ///
    /// # Panics
    ///
    /// If `limit` is zero, as [`new`](Self::new) does.
    #[must_use]
    #[track_caller]
    pub const fn call_only(limit: Duration) -> CallTimeoutLayer {
        CallTimeoutLayer::unchecked(assert_more_than_zero(limit))
    }

    /// The same, for a `limit` that comes from elsewhere.
    ///
    /// # Errors
    ///
    /// If `limit` is zero.
    pub fn try_call_only(limit: Duration) -> Result<CallTimeoutLayer, InvalidSetting> {
        Ok(CallTimeoutLayer::unchecked(more_than_zero("limit", limit)?))
    }

    /// The same for beneath a [`DeadlineLayer`](crate::DeadlineLayer), whose timer it borrows: then its calls keep no
    /// room for one of their own, which is most of their size.
    ///
    /// Nothing else differs. Where there is none to borrow after all, a call that is pending takes one from the heap.
    #[must_use]
    pub const fn beneath_deadline(self) -> TimeoutLayer<RareAlarm> {
        TimeoutLayer::unchecked(self.limit)
    }
}

impl<T> TimeoutLayer<T> {
    const fn unchecked(limit: Duration) -> Self {
        Self { limit, _timer: PhantomData }
    }
}

impl<S, T> Layer<S> for TimeoutLayer<T> {
    type Service = TimeoutService<S, T>;

    fn layer(&self, inner: S) -> Self::Service {
        TimeoutService::new(inner, self.limit)
    }
}

// By hand, as a derive would ask it of the timer.
impl<T> Clone for TimeoutLayer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for TimeoutLayer<T> {}
