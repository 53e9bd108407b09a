use std::{
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use buttress_core::{
    BoxError, IntoBoxError, OneHop, Rejected,
    ready::{Call, Ready},
};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::{LeaderInfo, Leadership, NotLeading};

/// Hands requests on to whoever leads, while this process does not.
///
/// Clients know of no leaders. They ask whom the balancer gave them, and get a refusal from all but one. With this
/// layer any process answers: the one that leads by itself, all others by a service that is made from what the leader
/// [says of itself](LeaderInfo::payload). It stands outside the [`LeadershipLayer`](crate::LeadershipLayer), which
/// remains the one to say who may write: who leads here is a matter of a moment ago.
///
/// That service is made when the first request needs it, and kept for as long as the same leader says the same of
/// itself in the same term. Clones share it, and so does whatever this layer is put around. Where nobody leads, where
/// no service can be made, and while this process is about to leave, a request is refused with
/// [`Rejected`](buttress_core::Rejected) for [`NotLeader`](buttress_core::Reason::NotLeader).
///
/// # No circles
///
/// Two processes that each take the other for the leader would send a request back and forth. So what is handed on
/// is marked by a [`OneHop`], and what comes with a mark is answered here or refused, and never handed on. For HTTP that is
/// `ForwardedOnce` of `buttress-http`, a header.
///
/// # Errors
///
/// `Rejected`, as above; and whatever the inner service, or the leader's, fails with.
///
/// # Readiness
///
/// At once. Which way a request goes is known when it is there, and a process that does not lead may have no room
/// of its own: it still hands on. An inner service that is not ready is waited for in the response's future, and so is
/// the leader's: under whatever limit there is further out. One that was ready and is not called is let go of, for
/// those who call it. An error of its readiness is final.
///
/// # Cancel safety
///
/// Dropped, it drops the call that it waits for. What was handed on by then, the leader may carry out.
///
/// # Examples
///
/// ```
/// use buttress_core::OneHop;
/// use buttress_leadership::{
///     Elector, ForwardToLeaderLayer, LeaderInfo, LeaseConfig, LeaseName, MemoryStore,
/// };
/// use std::convert::Infallible;
/// use tower::{Layer, ServiceExt, service_fn, util::BoxCloneService};
///
/// # struct Job { is_forwarded: bool }
/// # #[derive(Clone)] struct ByField;
/// # impl OneHop<Job> for ByField {
/// #     fn is_marked(&self, job: &Job) -> bool { job.is_forwarded }
/// #     fn mark(&self, job: &mut Job) { job.is_forwarded = true }
/// # }
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// // In truth a client of the address in `leader.payload`.
/// let client = |leader: &LeaderInfo| {
///     let address = String::from_utf8(leader.payload.to_vec()).ok()?;
///     let answer = service_fn(move |_: Job| {
///         let answer = format!("of {address}");
///         async move { Ok::<_, Infallible>(answer) }
///     });
///     Some(BoxCloneService::new(answer))
/// };
/// let local = service_fn(async |_: Job| Ok::<_, Infallible>("mine".to_owned()));
///
/// let (store, name) = (MemoryStore::new(), LeaseName::new("orders")?);
/// let leader = Elector::new(store.clone(), LeaseConfig::new(name.clone()).payload("node-1"))?;
/// let follower = Elector::new(store, LeaseConfig::new(name))?;
/// let [a, b] = [leader.leadership(), follower.leadership()];
/// let _leads = leader.spawn();
/// a.watch().wait_for(|standing| standing.term.is_some()).await?;
/// let _follows = follower.spawn();
/// b.watch().wait_for(|standing| standing.leader.is_some()).await?;
///
/// for (leadership, expected) in [(a, "mine"), (b, "of node-1")] {
///     let service = ForwardToLeaderLayer::new(leadership, ByField, client).layer(local);
///     assert_eq!(service.oneshot(Job { is_forwarded: false }).await?, expected);
/// }
/// # Ok(())
/// # }
/// ```
pub struct ForwardToLeaderLayer<R, M, H> {
    route: Route<R, M, H>,
}

/// A service that hands requests on to whoever leads. See [`ForwardToLeaderLayer`].
pub struct ForwardToLeader<S, R, M, H> {
    inner: Ready<S>,
    route: Route<R, M, H>,
}

/// Where requests go.
struct Route<R, M, H> {
    leadership: Leadership,
    hop: H,
    make: M,
    /// The leader's service, and the leader that it was made for.
    made: Arc<Mutex<Option<(LeaderInfo, R)>>>,
}

/// Where one goes.
enum Way<R> {
    Here,
    There(R),
    Nowhere(Rejected),
}

pin_project! {
    /// The future of a [`ForwardToLeader`].
    #[must_use = "futures do nothing unless polled"]
    pub struct ForwardFuture<S, R, Req>
    where
        S: Service<Req>,
        R: Service<Req>,
    {
        #[pin]
        state: State<Call<S, Req>, Call<R, Req>>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<H, T> {
        Here { #[pin] call: H },
        There { #[pin] call: T },
        Nowhere { rejected: Rejected },
    }
}

// === impl ForwardToLeaderLayer ===

impl<R, M, H> ForwardToLeaderLayer<R, M, H>
where
    M: Fn(&LeaderInfo) -> Option<R>,
{
    /// Hands on to the leader of that election, by what `make` makes of it, with the mark of `hop`.
    ///
    /// `make` answers `None` if the leader says nothing that a service can be made of. Two requests that come at once
    /// may both call it, and one of the two services is let go of.
    #[must_use]
    pub fn new(leadership: Leadership, hop: H, make: M) -> Self {
        Self { route: Route { leadership, hop, make, made: Arc::default() } }
    }
}

impl<S, R, M: Clone, H: Clone> Layer<S> for ForwardToLeaderLayer<R, M, H> {
    type Service = ForwardToLeader<S, R, M, H>;

    fn layer(&self, inner: S) -> Self::Service {
        ForwardToLeader { inner: Ready::new(inner), route: self.route.clone() }
    }
}

impl<R, M: Clone, H: Clone> Clone for ForwardToLeaderLayer<R, M, H> {
    fn clone(&self) -> Self {
        Self { route: self.route.clone() }
    }
}

// By hand: what makes a service is often a closure, which is not `Debug`.
impl<R, M, H> fmt::Debug for ForwardToLeaderLayer<R, M, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForwardToLeaderLayer")
            .field("leadership", &self.route.leadership)
            .finish_non_exhaustive()
    }
}

// === impl ForwardToLeader ===

impl<S, R, M, H, Req> Service<Req> for ForwardToLeader<S, R, M, H>
where
    S: Service<Req> + Clone,
    S::Error: IntoBoxError,
    R: Service<Req, Response = S::Response> + Clone,
    R::Error: IntoBoxError,
    M: Fn(&LeaderInfo) -> Option<R>,
    H: OneHop<Req>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = ForwardFuture<S, R, Req>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Req) -> Self::Future {
        let way = self.route.way(&request);
        if !matches!(way, Way::Here) && self.inner.take_ready().is_some() {
            // Readiness may hold a place of a limit. A clone has none.
            self.inner = self.inner.clone();
        }
        let state = match way {
            Way::Here => State::Here { call: self.inner.call(request) },
            Way::There(leader) => {
                self.route.hop.mark(&mut request);
                State::There { call: Call::new(leader, request) }
            }
            Way::Nowhere(rejected) => State::Nowhere { rejected },
        };
        ForwardFuture { state }
    }
}

impl<S: Clone, R, M: Clone, H: Clone> Clone for ForwardToLeader<S, R, M, H> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), route: self.route.clone() }
    }
}

impl<S: fmt::Debug, R, M, H> fmt::Debug for ForwardToLeader<S, R, M, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForwardToLeader")
            .field("inner", self.inner.inner())
            .field("leadership", &self.route.leadership)
            .finish_non_exhaustive()
    }
}

// === impl Route ===

impl<R, M, H> Route<R, M, H> {
    fn way<Req>(&self, request: &Req) -> Way<R>
    where
        R: Clone,
        M: Fn(&LeaderInfo) -> Option<R>,
        H: OneHop<Req>,
    {
        let refused = match self.leadership.check() {
            Ok(_) => return Way::Here,
            Err(refused) => refused,
        };
        let leader = refused.leader().filter(|_| !self.hop.is_marked(request));
        match leader.and_then(|leader| self.service(leader)) {
            Some(service) => Way::There(service),
            None => Way::Nowhere(nowhere(&refused)),
        }
    }

    /// The service of that leader: the one that there is, or else a new one.
    fn service(&self, leader: &LeaderInfo) -> Option<R>
    where
        R: Clone,
        M: Fn(&LeaderInfo) -> Option<R>,
    {
        if let Some((of, service)) = &*self.made()
            && of == leader
        {
            return Some(service.clone());
        }
        // Not under the lock: it is the user's, and may take its time or panic.
        let service = (self.make)(leader)?;
        let old = self.made().replace((leader.clone(), service.clone()));
        drop(old);
        Some(service)
    }

    fn made(&self) -> MutexGuard<'_, Option<(LeaderInfo, R)>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R, M: Clone, H: Clone> Clone for Route<R, M, H> {
    fn clone(&self) -> Self {
        Self {
            leadership: self.leadership.clone(),
            hop: self.hop.clone(),
            make: self.make.clone(),
            made: Arc::clone(&self.made),
        }
    }
}

#[cold]
fn nowhere(refused: &NotLeading) -> Rejected {
    tracing::debug!(target: "buttress_leadership", why = %refused, "refused");
    refused.rejected()
}

// === impl ForwardFuture ===

impl<S, R, Req> Future for ForwardFuture<S, R, Req>
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
    R: Service<Req, Response = S::Response>,
    R::Error: Into<BoxError>,
{
    type Output = Result<S::Response, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Here { call } => call.poll(cx).map_err(Into::into),
            StateProj::There { call } => call.poll(cx).map_err(Into::into),
            StateProj::Nowhere { rejected } => Poll::Ready(Err((*rejected).into())),
        }
    }
}

impl<S: Service<Req>, R: Service<Req>, Req> fmt::Debug for ForwardFuture<S, R, Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Here { .. } => "here",
            State::There { .. } => "there",
            State::Nowhere { .. } => "nowhere",
        };
        f.debug_struct("ForwardFuture").field("state", &state).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use std::{
        panic::AssertUnwindSafe,
        sync::atomic::{AtomicUsize, Ordering::Relaxed},
        time::Duration,
    };

    use buttress_core::Reason;
    use buttress_test::{
        Probe, Subject, calls_what_was_readied, contract, dropped_calls_give_all_back,
        idle_clones_hold_nothing, panics_give_all_back,
    };
    use futures_util::{FutureExt, future::BoxFuture};
    use tokio::time::{sleep, timeout};
    use tokio_test::{assert_pending, task};
    use tower::{ServiceExt, layer::layer_fn, limit::ConcurrencyLimit, service_fn};

    use super::*;
    use crate::{
        FencingToken, Identity, LeaseClock, LeaseConfig, LeaseName,
        gate::{Shut, Term},
    };

    /// A request, and how often it was handed on.
    type Hops = usize;

    #[derive(Clone, Copy)]
    struct Counted;

    impl OneHop<Hops> for Counted {
        fn is_marked(&self, hops: &Hops) -> bool {
            *hops > 0
        }

        fn mark(&self, hops: &mut Hops) {
            *hops += 1;
        }
    }

    fn process() -> Leadership {
        let config = LeaseConfig::new(LeaseName::new("a").unwrap());
        Leadership::new(&config, LeaseClock::simulated())
    }

    fn token(number: u64) -> FencingToken {
        FencingToken::new(number).unwrap()
    }

    fn leads(process: &Leadership, number: u64) -> crate::sync::Arc<Term> {
        let valid_until = process.clock().now() + Duration::from_secs(12);
        let term = Term::of(process.clone(), token(number), valid_until);
        let term = crate::sync::Arc::new(term);
        process.shared.gate.set(Some(crate::sync::Arc::clone(&term)));
        term
    }

    fn leader(payload: &'static str, number: u64) -> LeaderInfo {
        let identity = Identity::new("another").unwrap();
        LeaderInfo { identity, fence: token(number), payload: payload.into() }
    }

    fn follows(process: &Leadership, leader: LeaderInfo) {
        process.shared.see(Some(leader), process.clock().now());
    }

    fn of(leader: LeaderInfo) -> Leadership {
        let process = process();
        follows(&process, leader);
        process
    }

    type Echo = Probe<Hops, Hops>;

    fn echo() -> Echo {
        Probe::new(|hops| hops)
    }

    async fn call<S>(service: &S, hops: Hops) -> Result<Hops, BoxError>
    where
        S: Service<Hops, Response = Hops, Error = BoxError> + Clone,
    {
        service.clone().oneshot(hops).await
    }

    #[track_caller]
    fn assert_refused(answer: Result<Hops, BoxError>) {
        let error = answer.unwrap_err();
        let rejected: &Rejected = error.downcast_ref().unwrap();
        assert_eq!(rejected.reason(), Reason::NotLeader);
    }

    #[tokio::test(start_paused = true)]
    async fn who_leads_answers_and_who_does_not_hands_on_with_a_mark() {
        let (process, here, there) = (of(leader("b", 6)), echo(), echo());
        let remote = there.clone();
        let layer =
            ForwardToLeaderLayer::new(process.clone(), Counted, move |_| Some(remote.clone()));
        let service = layer.layer(here.clone());
        assert_eq!(call(&service, 0).await.unwrap(), 1, "marked");
        assert_eq!((here.calls(), there.calls()), (0, 1));
        let term = leads(&process, 7);
        for marked in [0, 1] {
            assert_eq!(call(&service, marked).await.unwrap(), marked, "as it came");
        }
        assert_eq!((here.calls(), there.calls()), (2, 1));
        term.close(Shut::Leaving);
        assert_refused(call(&service, 0).await);
        term.end();
        assert_eq!(call(&service, 0).await.unwrap(), 1);
        assert_eq!((here.calls(), there.calls()), (2, 2));
        assert_eq!(here.violations() + there.violations(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_handed_on_is_refused_by_who_does_not_lead_either() {
        let there = echo();
        let remote = there.clone();
        let layer =
            ForwardToLeaderLayer::new(of(leader("b", 6)), Counted, move |_| Some(remote.clone()));
        assert_refused(call(&layer.layer(echo()), 1).await);
        assert_eq!(there.calls(), 0);
    }

    /// The other process, which is made last and called by the first.
    #[derive(Clone, Default)]
    struct Other(Arc<std::sync::OnceLock<Erased>>);

    type Erased = Box<dyn Fn(Hops) -> BoxFuture<'static, Result<Hops, BoxError>> + Send + Sync>;

    impl Service<Hops> for Other {
        type Response = Hops;
        type Error = BoxError;
        type Future = BoxFuture<'static, Result<Hops, BoxError>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, hops: Hops) -> Self::Future {
            self.0.get().expect("it was made")(hops)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn two_that_each_take_the_other_for_the_leader_end_after_one_hop() {
        let asked = Arc::new(AtomicUsize::new(0));
        let [a, b] = [Other::default(), Other::default()];
        for (me, other) in [(&a, &b), (&b, &a)] {
            let (other, asked) = (other.clone(), Arc::clone(&asked));
            let layer = ForwardToLeaderLayer::new(of(leader("x", 6)), Counted, move |_| {
                Some(other.clone())
            });
            let service = layer.layer(echo());
            let ask: Erased = Box::new(move |hops| {
                assert!(asked.fetch_add(1, Relaxed) < 10, "in circles");
                service.clone().oneshot(hops).boxed()
            });
            assert!(me.0.set(ask).is_ok());
        }
        assert_refused(a.oneshot(0).await);
        assert_eq!(asked.load(Relaxed), 2);
    }

    /// A service for one at a time, that answers a second later.
    fn one_at_a_time() -> impl Service<Hops, Response = Hops, Error = BoxError> + Clone {
        let slow = service_fn(async |hops| {
            sleep(Duration::from_secs(1)).await;
            Ok::<_, BoxError>(hops)
        });
        ConcurrencyLimit::new(slow, 1)
    }

    /// What is ready, and called.
    async fn call_in_place<S>(service: &mut S, hops: Hops) -> Result<Hops, BoxError>
    where
        S: Service<Hops, Response = Hops, Error = BoxError>,
    {
        let whole = async { service.ready().await?.call(hops).await };
        timeout(Duration::from_secs(60), whole).await.expect("it is ready at last")
    }

    #[tokio::test(start_paused = true)]
    async fn clones_that_hand_on_keep_no_place_here() {
        let process = of(leader("b", 6));
        let layer = ForwardToLeaderLayer::new(process.clone(), Counted, |_| Some(echo()));
        let mut first = layer.layer(one_at_a_time());
        let mut second = first.clone();
        for _ in 0..3 {
            for service in [&mut first, &mut second] {
                assert_eq!(call_in_place(service, 0).await.unwrap(), 1);
                assert_refused(call_in_place(service, 1).await);
            }
        }
        leads(&process, 7);
        // The first to be ready is idle now, and keeps nothing.
        assert_eq!(call_in_place(&mut second, 0).await.unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_busy_hands_on_all_the_same_and_who_leads_has_the_next_wait() {
        let process = process();
        let layer = ForwardToLeaderLayer::new(process.clone(), Counted, |_| Some(echo()));
        let service = layer.layer(one_at_a_time());
        let term = leads(&process, 7);
        let mut busy = task::spawn(service.clone().oneshot(0));
        assert_pending!(busy.poll());
        let mut next = task::spawn(service.clone().oneshot(0));
        assert_pending!(next.poll());
        term.end();
        follows(&process, leader("b", 8));
        assert_eq!(service.oneshot(0).now_or_never().unwrap().unwrap(), 1);
        assert_eq!((busy.await.unwrap(), next.await.unwrap()), (0, 0), "each was for here");
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_is_made_once_for_each_term_and_each_word_of_its_leader() {
        let process = process();
        let made = Arc::new(Mutex::new(Vec::new()));
        let making = Arc::clone(&made);
        let layer = ForwardToLeaderLayer::new(process.clone(), Counted, move |leader| {
            making.lock().unwrap().push(leader.clone());
            (!leader.payload.is_empty()).then(echo)
        });
        let services = [layer.layer(echo()), layer.layer(echo())];
        assert_refused(call(&services[0], 0).await);
        let leaders = [leader("b", 6), leader("b", 7), leader("c", 7)];
        for leader in leaders.clone() {
            follows(&process, leader);
            for service in services.iter().chain(&services.clone()) {
                assert_eq!(call(service, 0).await.unwrap(), 1);
            }
        }
        assert_eq!(*made.lock().unwrap(), leaders);
        follows(&process, leader("", 8));
        assert_refused(call(&services[0], 0).await);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_cannot_be_made_harms_nobody_else() {
        let process = of(leader("panics", 6));
        let layer = ForwardToLeaderLayer::new(process.clone(), Counted, |leader| {
            assert!(leader.payload != "panics", "planted");
            Some(echo())
        });
        let service = layer.layer(echo());
        assert!(AssertUnwindSafe(call(&service, 0)).catch_unwind().await.is_err());
        follows(&process, leader("b", 7));
        assert_eq!(call(&service, 0).await.unwrap(), 1);
    }

    #[test]
    fn who_leads_keeps_the_contract() {
        let make = || {
            let process = process();
            leads(&process, 7);
            Subject::stateless(ForwardToLeaderLayer::new(process, Counted, |_| None::<Echo>))
        };
        contract(make, || 0, || 0);
    }

    // All of it but one: that an error of readiness is passed on before the call. It comes from the call: nobody
    // knows whom it will be for.
    #[test]
    fn what_is_handed_on_keeps_the_rest_of_the_contract() {
        let there = |remote: Echo| {
            let make = move |_: &LeaderInfo| Some(remote.clone());
            ForwardToLeaderLayer::new(of(leader("b", 6)), Counted, make).layer(echo())
        };
        let subject = || Subject::stateless(layer_fn(there));
        let checks = [
            calls_what_was_readied(subject, || 0, || 0),
            idle_clones_hold_nothing(subject, || 0, || 0),
            dropped_calls_give_all_back(subject, || 0, || 0),
            panics_give_all_back(subject, || 0, || 0),
        ];
        for check in checks {
            check.unwrap();
        }
    }
}
