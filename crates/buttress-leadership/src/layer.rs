use std::{fmt, time::Duration};

use buttress_core::{ErrorsAsFailures, InvalidSetting, LeaseId};
use tower_layer::Layer;

use crate::{Leadership, LeadershipService};

/// Lets requests in only while this process leads.
///
/// It belongs inside retries and queues, so that each attempt passes it when it is made, and outside the
/// breaker and the timeouts of what the leader calls.
///
/// It is checked in `call`, and again whenever the call is polled: what waited in between, or whose process
/// stood still, is not begun or goes no further. Readiness is the inner service's, and says nothing of
/// leadership, which may be gone by the time of the call.
///
/// A request that is let in takes the term along: whoever writes for it, however far from here, finds the token to
/// send by [`Fence::current`](crate::Fence::current) and the lease's [id](crate::LeaseName::id).
///
/// A request that is refused fails with [`Rejected`](buttress_core::Rejected) for
/// [`NotLeader`](buttress_core::Reason::NotLeader), and no retry of ours repeats it; who leads is for
/// [`Leadership::leader`] to say. One whose term is over while it is under way fails with [`TermOver`](crate::TermOver).
///
/// # Examples
///
/// ```
/// use buttress_leadership::{Elector, Fence, LeadershipLayer, LeaseConfig, LeaseName, MemoryStore};
/// use std::time::Duration;
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let orders = LeaseName::new("orders")?;
/// let elector = Elector::new(MemoryStore::new(), LeaseConfig::new(orders.clone()))?;
/// let leadership = elector.leadership();
/// let layer = LeadershipLayer::new(leadership.clone()).min_remaining(Duration::from_secs(2))?;
/// let write = ServiceBuilder::new()
///     .layer(layer)
///     .service(service_fn(move |_row: u32| {
///         let token = Fence::current(orders.id());
///         async move { Ok::<_, std::io::Error>(token.map(|token| token.get())) }
///     }));
/// assert!(write.clone().oneshot(7).await.is_err(), "too early");
/// let _running = elector.spawn();
/// leadership.watch().wait_for(|standing| standing.term.is_some()).await?;
/// assert_eq!(write.oneshot(7).await?, Some(1), "in the first term");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LeadershipLayer<O = ErrorsAsFailures> {
    gate: Gatekeeper,
    observe: O,
}

/// What becomes of a call whose term is over before it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnExpiry {
    /// It is dropped, and fails with [`TermOver`](crate::TermOver). What it has sent by then is sent: only a
    /// token keeps it from being done.
    #[default]
    Cancel,
    /// It runs on beside the next leader, and is counted as
    /// [`expired_in_flight`](crate::RequestMetrics::expired_in_flight). For calls that only read, or whose
    /// resource checks tokens.
    LetRun,
}

/// What becomes of a request while the leader is [degraded](crate::ResignPolicy#a-degraded-term).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnDegraded {
    /// It is let in, and sees how far it comes: a leader that does part of its job is better than none.
    #[default]
    Serve,
    /// It is refused, with [`Degraded`](buttress_core::Reason::Degraded): what the leader needs is ill, and
    /// nobody else leads who could be asked. For requests that would only wait for what does not come.
    Shed,
}

/// Who is let in, and for how long.
#[derive(Clone, Debug)]
pub(crate) struct Gatekeeper {
    pub(crate) leadership: Leadership,
    pub(crate) lease: LeaseId,
    pub(crate) min_remaining: Duration,
    pub(crate) on_expiry: OnExpiry,
    pub(crate) on_degraded: OnDegraded,
}

impl LeadershipLayer {
    /// Lets in while this process leads by that election.
    #[must_use]
    pub fn new(leadership: Leadership) -> Self {
        let lease = leadership.name().id();
        let (min_remaining, on_expiry) = (Duration::ZERO, OnExpiry::Cancel);
        let on_degraded = OnDegraded::Serve;
        Self {
            gate: Gatekeeper { leadership, lease, min_remaining, on_expiry, on_degraded },
            observe: ErrorsAsFailures,
        }
    }
}

impl<O> LeadershipLayer<O> {
    /// Lets in only if the term is valid for longer than that still: as long as a call takes. What begins
    /// just before a term ends, ends after it.
    ///
    /// # Errors
    ///
    /// Names `min_remaining` if nobody would be let in just before a renewal.
    pub fn min_remaining(mut self, min: Duration) -> Result<Self, InvalidSetting> {
        self.gate.leadership.check_min_remaining(min)?;
        self.gate.min_remaining = min;
        Ok(self)
    }

    /// Sets what becomes of a call whose term is over before it is.
    #[must_use]
    pub const fn on_expiry(mut self, then: OnExpiry) -> Self {
        self.gate.on_expiry = then;
        self
    }

    /// Sets what becomes of a request while the leader is degraded.
    #[must_use]
    pub const fn on_degraded(mut self, then: OnDegraded) -> Self {
        self.gate.on_degraded = then;
        self
    }

    /// Holds the place in the term until `observe` says that the call has ended. A lease is not given back
    /// before.
    ///
    /// `AtEnd(WholeBody)` of `buttress-http` moves it into the response's body.
    #[must_use]
    pub fn until<P>(self, observe: P) -> LeadershipLayer<P> {
        LeadershipLayer { gate: self.gate, observe }
    }
}

// By hand: what observes is often a closure, which is not `Debug`.
impl<O> fmt::Debug for LeadershipLayer<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeadershipLayer").field("gate", &self.gate).finish_non_exhaustive()
    }
}

impl<S, O: Clone> Layer<S> for LeadershipLayer<O> {
    type Service = LeadershipService<S, O>;

    fn layer(&self, inner: S) -> Self::Service {
        LeadershipService::new(inner, self.gate.clone(), self.observe.clone())
    }
}
