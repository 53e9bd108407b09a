use std::time::Duration;

use buttress_core::InvalidSetting;
use tower_layer::Layer;

use super::DeadlineService;
use crate::bound::{assert_more_than_zero, more_than_zero};

/// Gives each request so much time in all.
///
/// It belongs above the retry, so that all attempts and the waits between them share the time. The
/// deadline is the earlier of `total` from `call` on and the one that the request came with.
///
/// # Errors
///
/// The service answers [`Rejected`] with [`Reason::DeadlineExceeded`] if nothing was sent (the deadline
/// had passed, or passed while the inner service was not ready), and else [`Elapsed`] of
/// [`Limit::Total`], whose limit is `total`, or what was left of the request's own deadline where that
/// was less. An answer that is there when the time is up is passed on.
///
/// # Panics
///
/// A call that has to wait for a bounded time panics outside of a tokio runtime with timers.
///
/// # Cancel safety
///
/// The inner future is dropped in the same poll in which the time is up. Nothing goes on in secret.
///
/// # Examples
///
/// ```
/// use buttress_deadline::{Deadline, DeadlineLayer, Elapsed};
/// use std::{convert::Infallible, future, time::Duration};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let silent = service_fn(|()| async {
///     assert!(Deadline::current().is_some());
///     future::pending::<Result<(), Infallible>>().await
/// });
/// let client = DeadlineLayer::new(Duration::from_secs(30)).layer(silent);
/// let error = client.oneshot(()).await.unwrap_err();
/// assert_eq!(error.to_string(), "request timed out: no answer within 30s");
/// assert!(error.downcast_ref::<Elapsed>().unwrap().sent());
/// # }
/// ```
///
/// [`Rejected`]: crate::Rejected
/// [`Reason::DeadlineExceeded`]: crate::Reason::DeadlineExceeded
/// [`Elapsed`]: crate::Elapsed
/// [`Limit::Total`]: crate::Limit::Total
#[derive(Clone, Copy, Debug)]
pub struct DeadlineLayer {
    total: Duration,
}

impl DeadlineLayer {
    /// `total` is the time for a request in all; [`Duration::MAX`] is never.
    ///
    /// # Panics
    ///
    /// If `total` is zero: every request would be refused. [`try_new`](Self::try_new) says so in an error.
    #[must_use]
    #[track_caller]
    pub const fn new(total: Duration) -> Self {
        Self { total: assert_more_than_zero(total) }
    }

    /// The same, for a `total` that comes from elsewhere.
    ///
    /// # Errors
    ///
    /// If `total` is zero.
    pub fn try_new(total: Duration) -> Result<Self, InvalidSetting> {
        Ok(Self { total: more_than_zero("total", total)? })
    }
}

impl<S> Layer<S> for DeadlineLayer {
    type Service = DeadlineService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        DeadlineService::new(inner, self.total)
    }
}
