//! Readiness that counts against a limit.
//!
//! A limit that starts in `call` says nothing of the time before it: a service behind a full queue is
//! waited for in `poll_ready`, for ever. A limit in `poll_ready` has no request to end, and may not fail:
//! an error of readiness is final. So the layers that limit or repeat a call are **ready at once**. Where
//! the inner service is ready too, that very instance is called. Where it is not, a clone of it moves
//! into the response future, which waits for its readiness and then calls it, both under one limit.
//! [`Ready`] is the service's half of that, [`Call`] the future's.
//!
//! A layer with a queue has two waits in a row, for a turn and for readiness, and both must end with the
//! request. [`Queued`] is a call that does both.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tower_service::Service;

use crate::{Context as Ambient, Deadline, Reason, Rejected, edge, timer::RareAlarm};

/// A service that is ready at once.
///
/// [`Clone`] forgets readiness: it belongs to the instance that was polled.
#[derive(Debug)]
pub struct Ready<S> {
    inner: S,
    is_ready: bool,
}

pin_project! {
    /// The future of [`Ready::call`]: waits for readiness where there was none, then for the answer.
    #[must_use = "futures do nothing unless polled"]
    pub struct Call<S, Req>
    where
        S: Service<Req>,
    {
        #[pin]
        state: State<S, Req, S::Future>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, Req, F> {
        Waiting { service: S, request: Option<Req> },
        Called { #[pin] future: F },
        Over,
    }
}

pin_project! {
    /// A call that waits for its turn, then for the inner service's readiness, then for the answer.
    ///
    /// Readiness may reserve something: a place of a limit, a connection. Whoever queues with a readied
    /// instance keeps that from those who could use it now. So this takes a fresh one, and readies it when
    /// its turn has come: when `wait` resolves, to a permit or to a refusal.
    ///
    /// All of it runs in the [context](crate::Context) that it was made in. The deadline in it, or at the
    /// first poll where that is earlier, holds until the request is handed over: a service that is not ready
    /// by then is let go of, and *nothing is sent late*. How long the answer may take is not for a queue to
    /// say. `wait` runs under the same deadline, and has to obey it by itself.
    ///
    /// # Examples
    ///
    /// ```
    /// use buttress_core::{Reason, Rejected, ready::Queued};
    /// use std::sync::Arc;
    /// use tokio::sync::{OwnedSemaphorePermit, Semaphore};
    /// use tower::service_fn;
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// async fn turn(queue: Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Rejected> {
    ///     let permit = queue.acquire_owned().await;
    ///     permit.map_err(|_| Rejected::new(Reason::BulkheadFull, "queue"))
    /// }
    ///
    /// let queue = Arc::new(Semaphore::new(1));
    /// let echo = service_fn(async |n: u32| Ok::<_, std::convert::Infallible>(n));
    /// let (answer, permit) = Queued::new("queue", turn(queue.clone()), echo, 7).await.unwrap();
    /// assert_eq!((answer, queue.available_permits()), (Ok(7), 0));
    /// drop(permit);
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// What `wait` refused with; and [`Rejected`] for [`Reason::DeadlineExceeded`] if the service was not
    /// ready by the deadline. What the service answers, errors too, comes with the permit.
    ///
    /// # Panics
    ///
    /// If it has to wait for readiness with a deadline, outside of a tokio runtime with timers.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it drops what it waits for, and then the permit. A panic within drops the permit as it unwinds.
    #[must_use = "futures do nothing unless polled"]
    pub struct Queued<S, Req, W, P>
    where
        S: Service<Req>,
    {
        #[pin]
        stage: Stage<W, (S, Req), Call<S, Req>, P>,
        ambient: Ambient,
        is_polled: bool,
        layer: &'static str,
    }
}

pin_project! {
    #[project = StageProj]
    enum Stage<W, I, C, P> {
        Waiting { #[pin] wait: W, call: Option<I> },
        // The permit is gone once the answer is there. It is dropped after the call: what it stands for must
        // have ended when it goes to the next.
        Admitted { #[pin] call: C, permit: Option<P>, alarm: RareAlarm },
        Over,
    }
}

/// What a service answers.
type Answer<S, Req> = Result<<S as Service<Req>>::Response, <S as Service<Req>>::Error>;

// === impl Ready ===

impl<S> Ready<S> {
    /// Wraps a service that has not been polled.
    pub const fn new(inner: S) -> Self {
        Self { inner, is_ready: false }
    }

    /// The inner service. A clone of it starts without readiness.
    pub const fn inner(&self) -> &S {
        &self.inner
    }

    /// Ready at once, whether the inner service is or not.
    ///
    /// An inner service that is pending is replaced by a clone, so that nothing of ours keeps a place in
    /// a queue that nobody waits in.
    ///
    /// # Errors
    ///
    /// The inner service's own, which is final.
    pub fn poll_ready<Req>(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>>
    where
        S: Service<Req> + Clone,
    {
        self.is_ready = match self.inner.poll_ready(cx) {
            Poll::Ready(Ok(())) => true,
            Poll::Ready(Err(error)) => {
                self.is_ready = false;
                return Poll::Ready(Err(error));
            }
            Poll::Pending => {
                self.inner = self.inner.clone();
                false
            }
        };
        Poll::Ready(Ok(()))
    }

    /// The inner service if it was polled ready: for one call. If not, a clone of it is to be
    /// [waited for](Call::new).
    #[inline]
    pub fn take_ready(&mut self) -> Option<&mut S> {
        std::mem::take(&mut self.is_ready).then_some(&mut self.inner)
    }

    /// Calls the inner service, once it is ready.
    pub fn call<Req>(&mut self, request: Req) -> Call<S, Req>
    where
        S: Service<Req> + Clone,
    {
        match self.take_ready() {
            Some(service) => Call::sent(service.call(request)),
            None => Call::new(self.inner.clone(), request),
        }
    }
}

impl<S: Clone> Clone for Ready<S> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone())
    }
}

// === impl Call ===

impl<S, Req> Call<S, Req>
where
    S: Service<Req>,
{
    /// A call of that very instance, which is readied first.
    pub const fn new(service: S, request: Req) -> Self {
        Self { state: State::Waiting { service, request: Some(request) } }
    }

    /// A call of a service that was ready.
    #[inline]
    pub const fn sent(future: S::Future) -> Self {
        Self { state: State::Called { future } }
    }

    /// No call: one that is [over](Self::end) before it was made.
    #[inline]
    pub const fn over() -> Self {
        Self { state: State::Over }
    }

    /// Whether the request was handed to the service. If not, nothing was sent.
    #[inline]
    pub fn is_sent(&self) -> bool {
        matches!(self.state, State::Called { .. })
    }

    /// Whether it was ended, or never was.
    #[inline]
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Drops whatever it waits for.
    #[inline]
    pub fn end(self: Pin<&mut Self>) {
        self.project().state.set(State::Over);
    }
}

impl<S, Req> Future for Call<S, Req>
where
    S: Service<Req>,
{
    type Output = Result<S::Response, S::Error>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            match state.as_mut().project() {
                StateProj::Called { future } => return future.poll(cx),
                // ## Waiting => Called
                StateProj::Waiting { service, request } => {
                    ready!(service.poll_ready(cx))?;
                    let request = request.take().expect("polled after it was ready");
                    let future = service.call(request);
                    state.set(State::Called { future });
                }
                StateProj::Over => panic!("polled after it was over"),
            }
        }
    }
}

impl<S, Req> fmt::Debug for Call<S, Req>
where
    S: Service<Req>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("is_sent", &self.is_sent()).finish_non_exhaustive()
    }
}

// === impl Queued ===

impl<S, Req, W, P> Queued<S, Req, W, P>
where
    S: Service<Req>,
{
    /// Calls `service`, which nobody has polled ready, once `wait` lets it. `layer` is who refuses if
    /// that comes too late.
    pub fn new(layer: &'static str, wait: W, service: S, request: Req) -> Self {
        let stage = Stage::Waiting { wait, call: Some((service, request)) };
        Self { stage, ambient: Ambient::current(), is_polled: false, layer }
    }
}

impl<S, Req, W, P> Future for Queued<S, Req, W, P>
where
    S: Service<Req>,
    W: Future<Output = Result<P, Rejected>>,
{
    type Output = Result<(Answer<S, Req>, P), Rejected>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if !std::mem::replace(this.is_polled, true) {
            // A `Buffer` makes the call elsewhere than where its future is polled.
            *this.ambient = this.ambient.bounded_by_current();
        }
        let (ambient, mut stage) = (*this.ambient, this.stage);
        ambient.within(|| {
            loop {
                match stage.as_mut().project() {
                    // ## Waiting => (Admitted | Over)
                    StageProj::Waiting { wait, call } => match ready!(wait.poll(cx)) {
                        Ok(permit) => {
                            let (service, request) = call.take().expect("it was not called yet");
                            let call = Call::new(service, request);
                            let alarm = RareAlarm::default();
                            stage.set(Stage::Admitted { call, permit: Some(permit), alarm });
                        }
                        Err(rejected) => {
                            stage.set(Stage::Over);
                            return Poll::Ready(Err(rejected));
                        }
                    },
                    // ## Admitted => Over
                    StageProj::Admitted { call, permit, alarm } => {
                        let deadline = ambient.deadline();
                        let answer = ready!(poll_in_time(call, permit, deadline, alarm, cx));
                        stage.set(Stage::Over);
                        let late = || Rejected::new(Reason::DeadlineExceeded, this.layer);
                        return Poll::Ready(answer.ok_or_else(late));
                    }
                    StageProj::Over => panic!("polled after it had answered"),
                }
            }
        })
    }
}

/// Polls a call that is not sent after the deadline. `None` if that has come.
fn poll_in_time<S, Req, P>(
    mut call: Pin<&mut Call<S, Req>>,
    permit: &mut Option<P>,
    deadline: Option<Deadline>,
    alarm: &mut RareAlarm,
    cx: &mut Context<'_>,
) -> Poll<Option<(Answer<S, Req>, P)>>
where
    S: Service<Req>,
{
    let Some(deadline) = deadline.filter(|_| !call.is_sent()) else {
        return poll_holding(permit, call, cx).map(Some);
    };
    if deadline.has_passed(edge::now()) {
        return Poll::Ready(None);
    }
    let polled = poll_holding(permit, call.as_mut(), cx);
    // The time may have passed in there, but what was sent is not refused.
    if polled.is_ready() || call.is_sent() {
        return polled.map(Some);
    }
    alarm.poll(deadline.instant(), cx).map(|()| None)
}

impl<S, Req, W, P> fmt::Debug for Queued<S, Req, W, P>
where
    S: Service<Req>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match &self.stage {
            Stage::Waiting { .. } => "waiting",
            Stage::Admitted { .. } => "admitted",
            Stage::Over => "over",
        };
        f.debug_struct("Queued").field("stage", &stage).finish_non_exhaustive()
    }
}

/// Polls `future` with its permit in hand, which comes out with the output.
///
/// So a panic within gives the permit back as it unwinds, and not when somebody drops what is left.
///
/// # Panics
///
/// If the permit is gone: the future was ready, or has panicked.
#[inline]
pub fn poll_holding<F: Future, P>(
    permit: &mut Option<P>,
    future: Pin<&mut F>,
    cx: &mut Context<'_>,
) -> Poll<(F::Output, P)> {
    let held = permit.take().expect("polled after it was ready");
    match future.poll(cx) {
        Poll::Ready(output) => Poll::Ready((output, held)),
        Poll::Pending => {
            *permit = Some(held);
            Poll::Pending
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        future::{self, poll_fn},
        panic::AssertUnwindSafe,
        pin::pin,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::Relaxed},
        },
        time::Duration,
    };

    use futures_util::{FutureExt, future::BoxFuture};
    use tokio::time::{Sleep, sleep, timeout};
    use tower::{ServiceExt, limit::ConcurrencyLimit, service_fn};

    use super::*;

    type Limited = ConcurrencyLimit<tower::util::BoxCloneService<u64, u64, Infallible>>;

    /// One place; a call takes as many seconds as it is asked for.
    fn one_place() -> Limited {
        let slow = service_fn(|seconds| async move {
            sleep(Duration::from_secs(seconds)).await;
            Ok(seconds)
        });
        ConcurrencyLimit::new(tower::util::BoxCloneService::new(slow), 1)
    }

    async fn poll_ready(service: &mut Ready<Limited>) {
        future::poll_fn(|cx| service.poll_ready(cx)).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn ready_while_the_inner_service_is_not_and_called_when_it_is() {
        let mut service = Ready::new(one_place());
        poll_ready(&mut service).await;
        let first = service.call(10);
        assert!(first.is_sent());
        poll_ready(&mut service).await;
        let second = service.call(1);
        assert!(!second.is_sent());
        assert_eq!(tokio::join!(first, second), (Ok(10), Ok(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn idle_and_not_ready_it_keeps_no_place_in_a_queue() {
        let mut limited = one_place();
        let running = limited.ready().await.unwrap().call(10);
        let mut idle = Ready::new(limited.clone());
        poll_ready(&mut idle).await;
        let next = async { limited.ready().await.unwrap().call(1).await };
        let (_, next) = tokio::join!(running, timeout(Duration::from_secs(60), next));
        assert_eq!(next, Ok(Ok(1)), "the freed place must not go to an idle service");
    }

    #[tokio::test(start_paused = true)]
    async fn a_clone_starts_without_readiness() {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let mut service = Ready::new(service_fn(move |()| {
            counted.fetch_add(1, Relaxed);
            future::ready(Ok::<_, Infallible>(()))
        }));
        future::poll_fn(|cx| service.poll_ready(cx)).await.unwrap();
        let unsent = service.clone().call(());
        assert!(!unsent.is_sent() && calls.load(Relaxed) == 0);
        unsent.await.unwrap();
        assert!(service.call(()).is_sent());
    }

    const SEC: Duration = Duration::from_secs(1);

    /// Takes so long to become ready from its first poll on, and answers with the context it is called in a
    /// second later. Not `Clone`.
    struct Slow {
        readiness: Duration,
        timer: Option<Pin<Box<Sleep>>>,
        sent: Arc<AtomicUsize>,
    }

    impl Slow {
        fn new(seconds: u64) -> (Self, Arc<AtomicUsize>) {
            let (readiness, sent) = (Duration::from_secs(seconds), Arc::default());
            (Self { readiness, timer: None, sent: Arc::clone(&sent) }, sent)
        }
    }

    impl Service<()> for Slow {
        type Response = Ambient;
        type Error = Infallible;
        type Future = BoxFuture<'static, Result<Ambient, Infallible>>;

        fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            let readiness = self.readiness;
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(readiness)));
            timer.as_mut().poll(cx).map(Ok)
        }

        fn call(&mut self, (): ()) -> Self::Future {
            self.sent.fetch_add(1, Relaxed);
            let called = Ambient::current();
            Box::pin(sleep(SEC).map(move |()| {
                assert_eq!(Ambient::current(), called, "the same in `call` and in `poll`");
                Ok(called)
            }))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_of_an_instance_to_give_away_clones_nothing_and_readies_it_first() {
        let (slow, sent) = Slow::new(5);
        let call = Call::new(slow, ());
        assert!(!call.is_sent());
        let start = edge::now();
        assert_eq!(call.await, Ok(Ambient::default()));
        assert_eq!((edge::now() - start, sent.load(Relaxed)), (6 * SEC, 1));
    }

    /// A permit that is held as long as there is a clone of it elsewhere.
    type Held = Arc<()>;

    /// A turn that comes after so many seconds.
    async fn turn(seconds: u64, held: Held) -> Result<Held, Rejected> {
        sleep(Duration::from_secs(seconds)).await;
        Ok(held)
    }

    fn due(seconds: u64) -> Ambient {
        Ambient::default().with_deadline(Deadline::after(Duration::from_secs(seconds)))
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_readied_before_their_turn_and_the_permit_comes_with_the_answer() {
        let (slow, sent) = Slow::new(5);
        let held = Held::default();
        let start = edge::now();
        let queued = Queued::new("queue", turn(10, held.clone()), slow, ());
        let (answer, permit) = queued.await.unwrap();
        assert_eq!(edge::now() - start, 16 * SEC, "one after the other");
        assert_eq!((answer.is_ok(), sent.load(Relaxed), Arc::strong_count(&held)), (true, 1, 2));
        drop(permit);
        assert_eq!(Arc::strong_count(&held), 1, "nothing else has it");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_is_refused_a_turn_is_told_so_and_lets_go_of_the_service() {
        let (slow, sent) = Slow::new(0);
        let full = async { Err::<Held, _>(Rejected::new(Reason::BulkheadFull, "turn")) };
        let mut queued = pin!(Queued::new("queue", full, slow, ()));
        let refused = queued.as_mut().await.unwrap_err();
        assert_eq!((refused.reason(), refused.layer()), (Reason::BulkheadFull, "turn"));
        assert_eq!((sent.load(Relaxed), Arc::strong_count(&sent)), (0, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn readiness_that_comes_after_the_deadline_is_not_waited_for_and_nothing_is_sent() {
        // At the very instant it is too late, too.
        for readiness in [7, 3600] {
            let (slow, sent) = Slow::new(readiness);
            let held = Held::default();
            let start = edge::now();
            let wait = turn(2, held.clone());
            let mut queued = pin!(due(9).within(|| Queued::new("queue", wait, slow, ())));
            let refused = queued.as_mut().await.unwrap_err();
            assert_eq!((refused.reason(), refused.layer()), (Reason::DeadlineExceeded, "queue"));
            assert_eq!((edge::now() - start, sent.load(Relaxed)), (9 * SEC, 0));
            let holders = (Arc::strong_count(&held), Arc::strong_count(&sent));
            assert_eq!(holders, (1, 1), "permit and service are let go of while the future lives");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_that_comes_after_the_deadline_sends_nothing() {
        let (slow, sent) = Slow::new(0);
        let wait = turn(20, Held::default());
        let refused = due(9).within(|| Queued::new("queue", wait, slow, ())).await.unwrap_err();
        assert_eq!((refused.reason(), sent.load(Relaxed)), (Reason::DeadlineExceeded, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_that_only_the_first_poll_knows_holds_as_well() {
        let (slow, sent) = Slow::new(60);
        let start = edge::now();
        let queued = Queued::new("queue", turn(2, Held::default()), slow, ());
        assert!(due(9).scope(queued).await.is_err());
        assert_eq!((edge::now() - start, sent.load(Relaxed)), (9 * SEC, 0));

        // And the earlier of two does; a later poll changes nothing.
        for (made, polled, then) in [(9, 30, 1), (30, 9, 1)] {
            let (slow, _) = Slow::new(60);
            let start = edge::now();
            let wait = turn(2, Held::default());
            let queued = due(made).within(|| Queued::new("queue", wait, slow, ()));
            let mut queued = pin!(queued);
            assert!(
                due(polled)
                    .scope(poll_fn(|cx| Poll::Ready(queued.as_mut().poll(cx))))
                    .await
                    .is_pending()
            );
            assert!(due(then).scope(queued).await.is_err());
            assert_eq!(edge::now() - start, 9 * SEC);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn once_it_is_sent_the_deadline_is_for_others_to_enforce() {
        let (slow, _) = Slow::new(6);
        let start = edge::now();
        let wait = turn(2, Held::default());
        let queued = due(8).with_attempt(3).within(|| Queued::new("queue", wait, slow, ()));
        let refused = queued.await.is_err();
        assert!(refused, "ready at the very instant");
        let (slow, _) = Slow::new(5);
        let came_in = due(8).with_attempt(3);
        let wait = turn(2, Held::default());
        let queued = came_in.within(|| Queued::new("queue", wait, slow, ()));
        // Polled by somebody else, as when it is handed on.
        let elsewhere = Ambient::default().with_attempt(7);
        let (answer, _permit) = elsewhere.scope(queued).await.unwrap();
        assert_eq!(answer, Ok(came_in), "it runs in the context it was made in");
        assert_eq!(edge::now() - start, 16 * SEC);
    }

    #[tokio::test(start_paused = true)]
    async fn the_turn_is_waited_for_in_the_context_too() {
        let (slow, _) = Slow::new(0);
        let came_in = due(8);
        let wait = async move {
            assert_eq!(Ambient::current(), came_in);
            Ok(())
        };
        assert!(came_in.within(|| Queued::new("queue", wait, slow, ())).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_gives_the_permit_back_as_it_unwinds() {
        type Fails = fn(()) -> BoxFuture<'static, Result<(), Infallible>>;
        let in_call: Fails = |()| panic!("planted");
        let in_poll: Fails = |()| Box::pin(async { panic!("planted") });
        for fails in [in_call, in_poll] {
            let held = Held::default();
            let wait = turn(1, held.clone());
            let mut queued = Box::pin(Queued::new("queue", wait, service_fn(fails), ()));
            assert!(AssertUnwindSafe(&mut queued).catch_unwind().await.is_err());
            assert_eq!(Arc::strong_count(&held), 1, "the future is still there");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_while_it_runs_the_permit_goes_after_the_call() {
        /// Sees whether the permit is still held when it is dropped.
        struct Sees(Held, Arc<AtomicUsize>);
        impl Drop for Sees {
            fn drop(&mut self) {
                self.1.store(Arc::strong_count(&self.0), Relaxed);
            }
        }
        let (held, seen) = (Held::default(), Arc::default());
        let sees = Sees(held.clone(), Arc::clone(&seen));
        let hangs = service_fn(move |()| {
            let sees = Sees(sees.0.clone(), sees.1.clone());
            async move {
                let _sees = sees;
                future::pending::<Result<(), Infallible>>().await
            }
        });
        let mut queued = Box::pin(Queued::new("queue", turn(1, held.clone()), hangs, ()));
        assert!(timeout(2 * SEC, &mut queued).await.is_err());
        seen.store(0, Relaxed);
        drop(queued);
        assert_eq!(seen.load(Relaxed), 3, "here, there, and the permit");
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
