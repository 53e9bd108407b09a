use std::{
    fmt, mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use buttress_core::{
    BoxError, Class, Classify, Context as Ambient, Deadline, Discard, Kept, Reason, Rejected,
    Replay, edge, judge, timer::RareAlarm,
};
use pin_project_lite::pin_project;
use tokio::time::Instant;
use tower_service::Service;

use crate::{
    Token,
    before::Before,
    layer::Policy,
    machine::{Again, Stop},
    service::Shared,
};

/// The name under which this layer refuses.
const LAYER: &str = "retry";

pin_project! {
    /// The future of a [`RetryService`](crate::RetryService): all attempts at one request.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, Req, C, R>
    where
        S: Service<R::Sent>,
        R: Replay<Req>,
        R: Discard<S::Response>,
    {
        // Always there. As an option it can be taken from whoever holds it during the first call: see `sent`.
        shared: Option<Arc<Shared<S, C, R>>>,
        // Whether a success earns tokens. Beneath another retry it does not: that one counts it.
        counts: bool,
        // The attempt that is being made, from 1 on, or 0 where this retry is not in charge.
        attempt: u32,
        kept: Option<R::Kept>,
        // As it was at `call`.
        deadline: Option<Deadline>,
        before: Before,
        // What made the last attempt, if it is not the service's own instance: it makes the next as well.
        again: Option<Box<S>>,
        #[pin]
        state: State<S::Future, Waiting<S, R::Sent, R::Discarding>>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, W> {
        Calling { #[pin] future: F },
        // On the heap: few requests ever wait, and all would take the place of it, and the time to look at it.
        Waiting { waiting: Pin<Box<W>> },
        // Ended before it was sent, and nothing is kept of it, no place in a queue either.
        Unsent,
    }
}

pin_project! {
    /// Before an attempt.
    #[project = WaitingProj]
    enum Waiting<S, Req, D> {
        // Until the service is ready, or the deadline has come. The first attempt needs no token.
        Readying { service: Option<Box<S>>, request: Option<Req>, token: Option<Token>, alarm: RareAlarm },
        // Until the answer that is replaced is gone; then sleeps for what is left of the wait.
        Discarding { #[pin] discarding: D, next: Option<Next<Req>> },
        Sleeping { next: Option<Next<Req>>, alarm: RareAlarm },
    }
}

/// The next attempt: decided, paid for, not yet due.
struct Next<Req> {
    request: Req,
    token: Token,
    // None: at once.
    due: Option<Instant>,
}

/// What is known of a request when its first attempt is made. See [`ResponseFuture`].
pub(crate) struct First {
    pub(crate) counts: bool,
    pub(crate) attempt: u32,
    pub(crate) deadline: Option<Deadline>,
}

fn shared<S, C, R>(shared: &Option<Arc<Shared<S, C, R>>>) -> &Shared<S, C, R> {
    shared.as_ref().expect("taken by whoever made the future")
}

/// Runs `f` as the attempt of that number. Zero is none of ours: the context stays as it is.
#[inline(always)]
pub(crate) fn within<T>(attempt: u32, f: impl FnOnce() -> T) -> T {
    // And not `f` in either branch, which would be there twice.
    let number = if attempt == 0 { Ambient::current().attempt() } else { attempt };
    Ambient::within_attempt(number, f)
}

// === impl ResponseFuture ===

impl<S, Req, C, R> ResponseFuture<S, Req, C, R>
where
    S: Service<R::Sent>,
    R: Replay<Req> + Discard<S::Response>,
{
    /// The first attempt, made by `service`, which is ready. What the future keeps is taken.
    // A frame with nothing to clean up makes the inner future where it stays. Any other makes it aside and copies it.
    pub(crate) fn sent(
        shared: &mut Option<Arc<Shared<S, C, R>>>,
        kept: &mut Option<R::Kept>,
        first: First,
        service: &mut S,
        request: R::Sent,
    ) -> Self {
        let state = State::Calling { future: service.call(request) };
        let First { counts, attempt, deadline } = first;
        let (shared, kept, before) = (shared.take(), kept.take(), Before::default());
        Self { shared, counts, attempt, kept, deadline, before, again: None, state }
    }

    /// The first attempt, to be made by `service` once it is ready.
    // In line, but for what is rare: if another function made this future, `sent` would have to copy the one it made.
    #[inline(always)]
    pub(crate) fn unsent(
        shared: Option<Arc<Shared<S, C, R>>>,
        kept: Option<R::Kept>,
        first: First,
        service: S,
        request: R::Sent,
    ) -> Self {
        let state = State::Waiting { waiting: Waiting::first(service, request) };
        let First { counts, attempt, deadline } = first;
        let before = Before::default();
        Self { shared, counts, attempt, kept, deadline, before, again: None, state }
    }
}

impl<S, Req, C, R> Future for ResponseFuture<S, Req, C, R>
where
    S: Service<R::Sent> + Clone,
    S::Error: Into<BoxError>,
    C: Classify<S::Response>,
    R: Replay<Req> + Discard<S::Response>,
{
    type Output = Result<S::Response, BoxError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let this = self.as_mut().project();
            let StateProj::Calling { future } = this.state.project() else {
                ready!(self.as_mut().poll_called(cx))?;
                continue;
            };
            let result = ready!(within(*this.attempt, || future.poll(cx)));
            if !*this.counts {
                return Poll::Ready(result.map_err(Into::into));
            }
            let Policy { classify, budget, .. } = &shared(this.shared).policy;
            let (class, result) = match result {
                Ok(response) => {
                    let class = judge(classify, Ok(&response));
                    if matches!(class, Class::Success) {
                        budget.deposit_in_passing();
                        return Poll::Ready(Ok(response));
                    }
                    (class, Ok(response))
                }
                Err(error) => {
                    let error = error.into();
                    (judge(classify, Err(&error)), Err(error))
                }
            };
            if let Err(last) = self.as_mut().repeat(class, result) {
                return Poll::Ready(last);
            }
        }
    }
}

// What seldom happens is kept out of `poll`, and of those that it becomes a part of.
impl<S, Req, C, R> ResponseFuture<S, Req, C, R>
where
    S: Service<R::Sent> + Clone,
    S::Error: Into<BoxError>,
    R: Replay<Req> + Discard<S::Response>,
{
    /// Decides on an attempt that was no success: another one follows, or its result is the last.
    #[cold]
    #[inline(never)]
    fn repeat(
        self: Pin<&mut Self>,
        class: Class,
        result: Result<S::Response, BoxError>,
    ) -> Result<(), Result<S::Response, BoxError>> {
        let mut this = self.project();
        let policy = &shared(this.shared).policy;
        if class == Class::Success {
            // An error may be one.
            policy.budget.deposit_in_passing();
            return Err(result);
        }
        let (again, next) = match policy.next(*this.attempt, class, this.kept, *this.deadline) {
            Ok(next) => next,
            Err(stop) => {
                stop.tell(*this.attempt, class);
                return Err(result.map_err(|error| {
                    if *this.attempt > 1 && class == Class::Refused {
                        // It went no further than to us.
                        policy.budget.refund();
                    }
                    this.before.rather_than(error)
                }));
            }
        };
        tracing::trace!(
            target: "buttress_retry",
            attempt = *this.attempt,
            ?class,
            wait = ?again.wait,
            "repeating"
        );
        *this.attempt += 1;
        let next = Some(next);
        let waiting = match result {
            // ## Calling => Discarding
            Ok(response) => {
                this.before.answered();
                Waiting::Discarding { discarding: policy.replay.discard(response), next }
            }
            // ## Calling => Sleeping
            Err(error) => {
                this.before.failed(class, error);
                Waiting::Sleeping { next, alarm: RareAlarm::default() }
            }
        };
        this.state.set(State::Waiting { waiting: Box::pin(waiting) });
        Ok(())
    }

    /// Ready when the next attempt is under way, or with what ends the request before that.
    #[cold]
    #[inline(never)]
    fn poll_called(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let mut this = self.project();
        let waiting = match this.state.as_mut().project() {
            StateProj::Waiting { waiting } => waiting,
            StateProj::Calling { .. } => return Poll::Ready(Ok(())),
            StateProj::Unsent => panic!("polled after it had ended"),
        };
        let called = loop {
            match waiting.as_mut().project() {
                // ## Readying => (Calling | Unsent)
                WaitingProj::Readying { service, request, token, alarm } => {
                    let deadline = in_force(*this.deadline);
                    // In hand: should readiness panic, it goes back now, not when what is left is dropped.
                    let held = token.take();
                    let instance = service.as_mut().expect("it has not been called");
                    let polled = within(*this.attempt, || instance.poll_ready(cx));
                    let late = match polled {
                        Poll::Ready(_) => has_passed(deadline),
                        Poll::Pending => comes(deadline, alarm, cx),
                    };
                    if polled.is_pending() && !late {
                        *token = held;
                        return Poll::Pending;
                    }
                    let request = request.take().expect("polled after it was ready");
                    if let Poll::Ready(Err(error)) = polled {
                        break Err(error.into());
                    }
                    if late {
                        break Err(Rejected::new(Reason::DeadlineExceeded, LAYER).into());
                    }
                    if let Some(token) = held {
                        // Before the call: one that panics may have sent it.
                        token.spend();
                    }
                    let mut instance = service.take().expect("it was readied above");
                    let future = within(*this.attempt, || instance.call(request));
                    *this.again = Some(instance);
                    break Ok(future);
                }

                // ## Discarding => Sleeping
                WaitingProj::Discarding { discarding, next } => {
                    ready!(discarding.poll(cx));
                    let next = next.take();
                    waiting.set(Waiting::Sleeping { next, alarm: RareAlarm::default() });
                }

                // ## Sleeping => Readying
                WaitingProj::Sleeping { next, alarm } => {
                    if let Some(due) = next.as_ref().expect("taken when it is due").due {
                        ready!(alarm.poll(due, cx));
                    }
                    let Next { request, token, .. } = next.take().expect("looked at above");
                    let alarm = mem::take(alarm);
                    let service = this.again.take().unwrap_or_else(|| {
                        let fresh = shared(this.shared).spare.fresh();
                        Box::new(fresh.expect("kept before the first attempt"))
                    });
                    waiting.set(Waiting::readying(service, request, Some(token), alarm));
                }
            }
        };
        // With the service goes its place in a queue.
        match called {
            Ok(future) => this.state.set(State::Calling { future }),
            Err(error) => {
                this.state.set(State::Unsent);
                return Poll::Ready(Err(this.before.rather_than(error)));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S, Req, C, R> fmt::Debug for ResponseFuture<S, Req, C, R>
where
    S: Service<R::Sent>,
    R: Replay<Req> + Discard<S::Response>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Calling { .. } => "calling",
            State::Waiting { waiting } => match **waiting {
                Waiting::Readying { .. } => "readying",
                Waiting::Discarding { .. } => "discarding",
                Waiting::Sleeping { .. } => "sleeping",
            },
            State::Unsent => "unsent",
        };
        f.debug_struct("ResponseFuture")
            .field("attempt", &self.attempt)
            .field("state", &state)
            .finish_non_exhaustive()
    }
}

// === impl Waiting ===

impl<S, Req, D> Waiting<S, Req, D> {
    /// Before a first attempt.
    #[cold]
    #[inline(never)]
    fn first(service: S, request: Req) -> Pin<Box<Self>> {
        Box::pin(Self::readying(Box::new(service), request, None, RareAlarm::default()))
    }

    fn readying(service: Box<S>, request: Req, token: Option<Token>, alarm: RareAlarm) -> Self {
        Self::Readying { service: Some(service), request: Some(request), token, alarm }
    }
}

/// Whether there is a deadline and it has passed: then nothing more is sent.
fn has_passed(deadline: Option<Deadline>) -> bool {
    deadline.is_some_and(|deadline| deadline.has_passed(edge::now()))
}

/// Whether there is a deadline and it has come. If it is yet to come, the task is woken then.
///
/// The clock is not asked: where this is a borrowed timer, at the deadline itself its lender speaks.
fn comes(deadline: Option<Deadline>, alarm: &mut RareAlarm, cx: &mut Context<'_>) -> bool {
    deadline.is_some_and(|deadline| alarm.poll(deadline.instant(), cx).is_ready())
}

/// The deadline that was there at `call`. Where there was none, a `Buffer` may have called us from elsewhere:
/// then it is there when we are polled.
fn in_force(deadline: Option<Deadline>) -> Option<Deadline> {
    deadline.or_else(Deadline::current)
}

// === impl Policy ===

impl<C, R> Policy<C, R> {
    /// Decides on the attempt after `attempt`, and takes for it what it needs.
    fn next<K: Kept>(
        &self,
        attempt: u32,
        class: Class,
        kept: &mut Option<K>,
        deadline: Option<Deadline>,
    ) -> Result<(Again, Next<K::Sent>), Stop> {
        let Self { schedule, budget, .. } = self;
        schedule.may(attempt, class, kept.as_ref().map(K::safe))?;
        let units = [edge::unit(), edge::unit()];
        let again = schedule.when(attempt, class, edge::now(), in_force(deadline), units)?;
        let token = budget.withdraw().ok_or(Stop::Budget)?;
        // The copy last: it costs the most. Without one the token goes back as it is dropped here.
        let last = attempt + 1 == schedule.attempts;
        let request = kept.as_mut().and_then(|kept| kept.copy(last)).ok_or(Stop::NoCopy)?;
        let due = (!again.wait.is_zero()).then_some(again.until);
        Ok((again, Next { request, token, due }))
    }
}

// === impl Stop ===

impl Stop {
    fn tell(self, attempt: u32, class: Class) {
        let reason = self.as_str();
        match self {
            // It is an answer, and no failure of the retry's.
            Self::Final => {}
            Self::Budget => {
                tracing::debug!(target: "buttress_retry", attempt, ?class, reason, "not repeated");
            }
            _ => tracing::trace!(target: "buttress_retry", attempt, ?class, reason, "not repeated"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::HashSet,
        future::{pending, ready as at_once},
        mem::size_of,
        pin::pin,
        time::Duration,
    };

    use buttress_core::{
        CloneReplay, ErrorsAsFailures, KeptClone,
        timer::{Alarm, poll_within},
    };
    use tower::{Layer, service_fn};

    use super::*;
    use crate::{Backoff, Budget, BudgetSettings, RetryLayer, RetryService};

    const SEC: Duration = Duration::from_secs(1);

    fn layer() -> RetryLayer {
        let budget = Budget::new(BudgetSettings::default().reserve(1000)).unwrap();
        RetryLayer::new(Backoff::exponential(SEC, SEC), budget)
    }

    /// What the future waits for.
    fn waiting<S, Req, C, R>(
        future: &ResponseFuture<S, Req, C, R>,
    ) -> Option<&Waiting<S, R::Sent, R::Discarding>>
    where
        S: Service<R::Sent>,
        R: Replay<Req> + Discard<S::Response>,
    {
        match &future.state {
            State::Waiting { waiting } => Some(waiting),
            _ => None,
        }
    }

    /// When the next attempt begins. The future has failed once, and waits.
    fn until<S, Req, C, R>(future: &ResponseFuture<S, Req, C, R>) -> Instant
    where
        S: Service<R::Sent>,
        R: Replay<Req> + Discard<S::Response>,
    {
        match waiting(future) {
            Some(Waiting::Sleeping { next: Some(next), .. }) => next.due.expect("it has to wait"),
            _ => panic!("it does not sleep: {future:?}"),
        }
    }

    // BKO-03
    #[tokio::test(start_paused = true)]
    async fn requests_on_clones_that_fail_together_do_not_come_back_together() {
        for seed in 0..10 {
            edge::seed(seed);
            let start = edge::now();
            let service = layer().layer(service_fn(|()| at_once(Err::<(), _>("reset"))));
            let mut waits = Vec::new();
            for _ in 0..200 {
                let mut call = tokio_test::task::spawn(service.clone().call(()));
                tokio_test::assert_pending!(call.poll());
                waits.push(until(&call) - start);
            }
            assert_eq!(waits.iter().collect::<HashSet<_>>().len(), 200, "to the nanosecond");
            let (first, last) = (waits.iter().min().unwrap(), waits.iter().max().unwrap());
            assert!(*last < SEC && *last - *first > SEC * 8 / 10, "{first:?} to {last:?}");
        }
    }

    /// Whether it has armed a timer for what it waits for: its time, or that of readiness.
    fn own_timer<S, Req, C, R>(future: &ResponseFuture<S, Req, C, R>) -> bool
    where
        S: Service<R::Sent>,
        R: Replay<Req> + Discard<S::Response>,
    {
        match waiting(future) {
            Some(Waiting::Readying { alarm, .. } | Waiting::Sleeping { alarm, .. }) => {
                format!("{alarm:?}") != "RareAlarm { own: None }"
            }
            _ => panic!("it does not wait: {future:?}"),
        }
    }

    /// Polls it once beneath a limit of a minute, which lends its timer.
    async fn poll_lent_to<F: Future>(call: Pin<&mut F>) {
        let (mut call, mut alarm) = (call, pin!(Alarm::default()));
        let far = edge::now() + 60 * SEC;
        std::future::poll_fn(|cx| {
            let limited = poll_within(call.as_mut(), alarm.as_mut(), || Some(far), cx);
            assert!(limited.is_pending());
            Poll::Ready(())
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_borrows_the_timer_of_the_limit_above_and_has_its_own_without() {
        let mut service = layer().layer(service_fn(|()| at_once(Err::<(), _>("reset"))));

        let mut alone = tokio_test::task::spawn(service.call(()));
        tokio_test::assert_pending!(alone.poll());
        assert!(own_timer(&alone));

        let mut call = pin!(service.call(()));
        poll_lent_to(call.as_mut()).await;
        assert!(!own_timer(&call));
    }

    /// Is never ready.
    #[derive(Clone)]
    struct Unready;

    impl Service<()> for Unready {
        type Response = ();
        type Error = BoxError;
        type Future = std::future::Ready<Result<(), BoxError>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
            Poll::Pending
        }

        fn call(&mut self, (): ()) -> Self::Future {
            unreachable!("it is not ready")
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_wait_for_readiness_has_a_timer_only_for_a_deadline_that_nobody_above_keeps() {
        let soon = buttress_core::Context::default().with_deadline(Deadline::after(SEC));
        let mut service = layer().layer(Unready);

        let mut endless = tokio_test::task::spawn(service.call(()));
        tokio_test::assert_pending!(endless.poll());
        assert!(!own_timer(&endless), "there is nothing to wake for");

        let mut alone = tokio_test::task::spawn(soon.within(|| service.call(())));
        tokio_test::assert_pending!(alone.poll());
        assert!(own_timer(&alone));

        let mut call = pin!(soon.within(|| service.call(())));
        poll_lent_to(call.as_mut()).await;
        assert!(!own_timer(&call));
    }

    #[test]
    fn a_request_in_flight_takes_its_parts_and_little_more() {
        /// Bytes of the service beside the inner one, and of the future beside the inner one and the kept copy.
        fn ours<S: Service<[u64; 32], Response = ()>>(_: S) -> (usize, usize) {
            let future = size_of::<ResponseFuture<S, [u64; 32], ErrorsAsFailures, CloneReplay>>();
            (
                size_of::<RetryService<S>>() - size_of::<S>(),
                future - size_of::<S::Future>() - size_of::<KeptClone<[u64; 32]>>(),
            )
        }
        let large = service_fn(|_: [u64; 32]| async {
            let held = [1u64; 64];
            pending::<()>().await;
            if held[0] > 0 { Ok(()) } else { Err(BoxError::from("never")) }
        });
        let small = service_fn(|_: [u64; 32]| at_once(Ok::<(), BoxError>(())));
        // Of the service: whether it is ready, and a handle. Of the future: a handle, the deadline, the number of
        // the attempt, and a word each for what was before, for what makes the next attempt, and, where the inner
        // future has no room for it, for the state.
        assert_eq!(ours(large), (16, 56));
        assert_eq!(ours(small), (16, 48));
    }
}
