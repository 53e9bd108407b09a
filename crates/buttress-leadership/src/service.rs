use std::{
    fmt,
    task::{Context, Poll},
};

use buttress_core::{BoxError, ErrorsAsFailures, Fence, IntoBoxError, Observe, Reason, Rejected};
use tower_service::Service;

use crate::{
    Leadership, NAME, OnDegraded, ResponseFuture, TermPermit, layer::Gatekeeper, metrics::count,
};

/// A service that requests get to only while this process leads. See
/// [`LeadershipLayer`](crate::LeadershipLayer).
///
/// A call that is refused leaves the inner service ready for the next.
#[derive(Clone)]
pub struct LeadershipService<S, O = ErrorsAsFailures> {
    inner: S,
    gate: Gatekeeper,
    observe: O,
}

impl<S, O> LeadershipService<S, O> {
    pub(crate) const fn new(inner: S, gate: Gatekeeper, observe: O) -> Self {
        Self { inner, gate, observe }
    }

    /// The election.
    pub const fn leadership(&self) -> &Leadership {
        &self.gate.leadership
    }
}

impl<S, O, Req> Service<Req> for LeadershipService<S, O>
where
    S: Service<Req>,
    S::Error: IntoBoxError,
    O: Observe<S::Response> + Clone,
{
    type Response = O::Response<TermPermit>;
    type Error = BoxError;
    type Future = ResponseFuture<S::Future, O>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let observe = self.observe.clone();
        let leadership = &self.gate.leadership;
        let entered = leadership.enter(self.gate.min_remaining);
        // Asked once it is in: a term is known to be degraded before anybody is let in, and not before it begins.
        if self.gate.on_degraded == OnDegraded::Shed && entered.is_ok() && leadership.is_degraded()
        {
            drop(entered);
            count(&leadership.shared.counters.degraded);
            let rejected = Rejected::new(Reason::Degraded, NAME);
            return ResponseFuture::refused(&"degraded", rejected, observe);
        }
        match leadership.counted(entered) {
            Ok(permit) => {
                let fence = Fence::new(self.gate.lease, permit.fence());
                let future = Fence::within(Some(fence), || self.inner.call(request));
                ResponseFuture::called(future, permit, fence, &self.gate, observe)
            }
            Err(refused) => ResponseFuture::refused(&refused, refused.rejected(), observe),
        }
    }
}

// By hand: what observes is often a closure, which is not `Debug`.
impl<S: fmt::Debug, O> fmt::Debug for LeadershipService<S, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeadershipService")
            .field("inner", &self.inner)
            .field("gate", &self.gate)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use std::{convert::Infallible, sync::Arc, time::Duration};

    use buttress_core::{Context as Ambient, LeaseId};
    use buttress_test::{Subject, contract};
    use tokio::time::sleep;
    use tokio_test::{assert_pending, assert_ready, task};
    use tower::{Layer, ServiceExt, service_fn};

    use super::*;
    use crate::{
        FencingToken, LeadershipLayer, LeaseClock, LeaseConfig, LeaseName, OnExpiry, TermOver,
        gate::{Shut, Term},
    };

    const fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    /// A process that leads for 12 s.
    fn leads() -> (Leadership, Arc<Term>) {
        let config = LeaseConfig::new(LeaseName::new("a").unwrap());
        let leadership = Leadership::new(&config, LeaseClock::simulated());
        let valid_until = leadership.clock().now() + secs(12);
        let term =
            Arc::new(Term::of(leadership.clone(), FencingToken::new(7).unwrap(), valid_until));
        leadership.shared.gate.set(Some(Arc::clone(&term)));
        (leadership, term)
    }

    /// Answers after so long.
    fn takes(time: Duration) -> impl Service<(), Response = (), Error = Infallible> + Clone {
        service_fn(move |()| async move {
            sleep(time).await;
            Ok(())
        })
    }

    fn refused(error: &BoxError) -> bool {
        error.downcast_ref::<Rejected>().is_some_and(|error| error.reason() == Reason::NotLeader)
    }

    #[test]
    fn keeps_the_contract() {
        contract(
            || {
                let (leadership, term) = leads();
                let held = move || term.in_flight() as usize;
                Subject::new(LeadershipLayer::new(leadership), held)
            },
            || 1,
            || 1,
        );
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_is_let_in_has_the_terms_token_at_hand_in_call_and_in_each_poll() {
        for then in [OnExpiry::Cancel, OnExpiry::LetRun] {
            let (leadership, _term) = leads();
            let lease = leadership.name().id();
            let token = move || Fence::current(lease).map(FencingToken::get);
            let writes = service_fn(move |()| {
                let called = token();
                async move {
                    let first = token();
                    sleep(secs(1)).await;
                    Ok::<_, Infallible>([called, first, token()])
                }
            });
            let layer = LeadershipLayer::new(leadership).on_expiry(then);
            let other = Fence::new(LeaseId::of("other"), FencingToken::new(99).unwrap());
            let call = Ambient::default().with_fence(Some(other)).scope(async {
                let seen = layer.layer(writes).oneshot(()).await.unwrap();
                (seen, Fence::current(other.lease()))
            });
            assert_eq!(call.await, ([Some(7); 3], Some(other.token())));
            assert_eq!(token(), None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_waited_past_the_term_is_not_begun() {
        let (leadership, term) = leads();
        let begun = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let begins = Arc::clone(&begun);
        let layer = LeadershipLayer::new(leadership).min_remaining(secs(5)).unwrap();
        let mut service = layer.layer(service_fn(move |()| {
            let begins = Arc::clone(&begins);
            async move {
                begins.store(true, std::sync::atomic::Ordering::Relaxed);
                Ok::<_, Infallible>(())
            }
        }));
        let called = service.ready().await.unwrap().call(());
        assert_eq!(term.in_flight(), 1);
        tokio::time::advance(secs(7)).await;
        assert!(refused(&called.await.unwrap_err()));
        assert!(!begun.load(std::sync::atomic::Ordering::Relaxed));
        assert_eq!(term.in_flight(), 0);
    }

    // LDR-01
    #[tokio::test(start_paused = true)]
    async fn calls_end_with_the_term_whoever_tells_of_it() {
        for (suspends, tells) in [(false, false), (false, true), (true, false)] {
            let (leadership, term) = leads();
            let service = LeadershipLayer::new(leadership.clone()).layer(takes(secs(60)));
            let mut calls: Vec<_> =
                (0..10).map(|_| task::spawn(service.clone().oneshot(()))).collect();
            for call in &mut calls {
                assert_pending!(call.poll());
            }
            assert_eq!(term.in_flight(), 10);
            if tells {
                term.end();
            } else if suspends {
                leadership.clock().suspend(secs(12));
            } else {
                sleep(secs(12) + Duration::from_millis(1)).await;
            }
            for call in &mut calls {
                assert!(suspends || call.is_woken());
                let error = assert_ready!(call.poll()).unwrap_err();
                assert_eq!(error.downcast_ref::<TermOver>().unwrap().fence().get(), 7);
            }
            assert_eq!(term.in_flight(), 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_term_that_is_renewed_or_only_closes_ends_no_call() {
        let (leadership, term) = leads();
        let service = LeadershipLayer::new(leadership.clone()).layer(takes(secs(30)));
        let mut call = task::spawn(service.clone().oneshot(()));
        assert_pending!(call.poll());
        sleep(secs(11)).await;
        term.extend(leadership.clock().now() + secs(20));
        term.close(Shut::Leaving);
        assert_pending!(call.poll());
        assert!(refused(&service.oneshot(()).await.unwrap_err()), "nobody else comes in");
        sleep(secs(10)).await;
        assert_pending!(call.poll());
        sleep(secs(9) + Duration::from_millis(1)).await;
        assert!(call.is_woken());
        assert!(assert_ready!(call.poll()).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_closing_has_woken_is_still_told_of_the_end() {
        let (leadership, term) = leads();
        let service = LeadershipLayer::new(leadership).layer(takes(secs(30)));
        let mut call = task::spawn(service.oneshot(()));
        assert_pending!(call.poll());
        term.close(Shut::Leaving);
        assert!(call.is_woken());
        assert_pending!(call.poll());
        term.end();
        assert!(call.is_woken());
        assert!(assert_ready!(call.poll()).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_let_run_runs() {
        let (leadership, term) = leads();
        let layer = LeadershipLayer::new(leadership).on_expiry(OnExpiry::LetRun);
        let mut call = task::spawn(layer.layer(takes(secs(30))).oneshot(()));
        assert_pending!(call.poll());
        term.end();
        sleep(secs(31)).await;
        assert!(assert_ready!(call.poll()).is_ok());
        assert_eq!(term.in_flight(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_for_more_than_is_left_waits_for_a_renewal() {
        let (leadership, term) = leads();
        let layer = LeadershipLayer::new(leadership.clone());
        assert_eq!(layer.clone().min_remaining(secs(7)).unwrap_err().setting(), "min_remaining");
        let service = layer.min_remaining(secs(5)).unwrap().layer(takes(Duration::ZERO));
        assert!(service.clone().oneshot(()).await.is_ok());
        tokio::time::advance(secs(7)).await;
        assert!(refused(&service.clone().oneshot(()).await.unwrap_err()));
        term.extend(leadership.clock().now() + secs(12));
        assert!(service.oneshot(()).await.is_ok());
        let requests = leadership.metrics().requests;
        assert_eq!((requests.admitted, requests.low_validity), (2, 1));
    }
}
