use std::time::Duration;

use buttress_core::InvalidSetting;
use tower_layer::Layer;

use super::ConnectTimeout;
use crate::bound::{assert_more_than_zero, more_than_zero};

/// Gives each connection so much time to come about.
///
/// It goes around a client's *connector*, the service that makes connections, and not around the client. What
/// the connector does is what counts: the name's resolution, TCP's handshake, and that of TLS where the
/// connector does it. HTTP/2's preface comes later, and is the attempt's time.
///
/// A connection may serve other requests than the one that asked for it: clients share what is being made, and
/// finish it in the background. So the connector is called and polled in [no request's
/// context](buttress_core::Context::detached). It has this limit and a timer of its own, and knows nothing of
/// the deadline, the attempt or the timer of whoever polls it. A request that ends first lets go of
/// the connector's future as it always did; what becomes of the connection is the client's decision.
///
/// Readiness is the connector's own, and is not limited.
///
/// # Errors
///
/// The service answers [`Elapsed`] of [`Limit::Connect`], which says that nothing was
/// [sent](crate::Elapsed::sent). hyper-util, reqwest and tonic put it beneath an error of their own.
///
/// # Panics
///
/// A connection that has to be waited for panics outside of a tokio runtime with timers.
///
/// # Cancel safety
///
/// The connector's future is dropped in the same poll in which the time is up. Nothing goes on in secret.
///
/// # Differences from `TimeoutLayer`
///
/// [`TimeoutLayer`](crate::TimeoutLayer) serves one request: it obeys the request's deadline, says that the
/// request may have been sent, and borrows the request's timer. This one does none of that. Its futures are
/// [`Unpin`] where the connector's are, as hyper-util demands; for that, its timer is on the heap, once for
/// each connection that is not there at once.
///
/// # Examples
///
/// ```
/// use buttress_deadline::{ConnectTimeoutLayer, Elapsed, Limit};
/// use std::{convert::Infallible, future};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let nobody_there = service_fn(|_: &str| future::pending::<Result<(), Infallible>>());
/// let connector = ConnectTimeoutLayer::default().layer(nobody_there);
/// let error = connector.oneshot("example.com:443").await.unwrap_err();
/// assert_eq!(error.downcast_ref::<Elapsed>().unwrap().which(), Limit::Connect);
/// assert_eq!(error.to_string(), "connect timed out: no connection within 1s");
/// # }
/// ```
///
/// [`Elapsed`]: crate::Elapsed
/// [`Limit::Connect`]: crate::Limit::Connect
#[derive(Clone, Copy, Debug)]
pub struct ConnectTimeoutLayer {
    limit: Duration,
}

impl ConnectTimeoutLayer {
    /// `limit` is the time for one connection; [`Duration::MAX`] leaves it with the system's, which is
    /// minutes.
    ///
    /// # Panics
    ///
    /// If `limit` is zero: every connection would fail. [`try_new`](Self::try_new) says so in an error.
    #[must_use]
    #[track_caller]
    pub const fn new(limit: Duration) -> Self {
        Self { limit: assert_more_than_zero(limit) }
    }

    /// The same, for a `limit` that comes from elsewhere.
    ///
    /// # Errors
    ///
    /// If `limit` is zero.
    pub fn try_new(limit: Duration) -> Result<Self, InvalidSetting> {
        Ok(Self { limit: more_than_zero("limit", limit)? })
    }
}

impl Default for ConnectTimeoutLayer {
    /// One second: TCP and TLS 1.2 take three round trips, of 300 ms to the far end of the world. A first packet
    /// that was lost is sent again after one second, so who takes longer than that has lost one.
    fn default() -> Self {
        Self::new(Duration::from_secs(1))
    }
}

impl<S> Layer<S> for ConnectTimeoutLayer {
    type Service = ConnectTimeout<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ConnectTimeout::new(inner, self.limit)
    }
}
