use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use buttress_core::{
    BoxError, Class, Classify, Deadline, Discard, Kept, Reason, Rejected, Replay, edge, judge,
    timer::RareAlarm,
};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::{
    Token,
    before::Before,
    layer::Policy,
    machine::{Again, Stop},
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
        policy: Arc<Policy<C, R>>,
        // Whether a success earns tokens. Beneath another retry it does not: that one counts it.
        counts: bool,
        // The attempt that is being made, from 1 on, or 0 where this retry is not in charge.
        attempt: u32,
        // Not polled ready: for later attempts, and for a first one that has to wait for it.
        spare: Option<S>,
        kept: Option<R::Kept>,
        // As it was at `call`.
        deadline: Option<Deadline>,
        before: Before,
        #[pin]
        state: State<R::Sent, S::Future, R::Discarding>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<Req, F, D> {
        // Until the spare service is ready, or the deadline has come. The first attempt needs no token.
        Readying { request: Option<Req>, token: Option<Token>, alarm: RareAlarm },
        Calling { #[pin] future: F },
        // Until the answer that is replaced is gone; then sleeps for what is left of the wait.
        Discarding { #[pin] discarding: D, next: Option<Next<Req>> },
        Sleeping { next: Option<Next<Req>>, alarm: RareAlarm },
    }
}

/// The next attempt: decided, paid for, not yet due.
struct Next<Req> {
    request: Req,
    token: Token,
    again: Again,
}

/// Runs `f` as the attempt of that number. Zero is none of ours: the context stays as it is.
pub(crate) fn within<T>(attempt: u32, f: impl FnOnce() -> T) -> T {
    if attempt == 0 { f() } else { buttress_core::Context::within_attempt(attempt, f) }
}

// === impl ResponseFuture ===

impl<S, Req, C, R> ResponseFuture<S, Req, C, R>
where
    S: Service<R::Sent>,
    R: Replay<Req> + Discard<S::Response>,
{
    /// `sent` is the first attempt, or its request where the service was not ready.
    pub(crate) fn new(
        policy: Arc<Policy<C, R>>,
        counts: bool,
        attempt: u32,
        spare: Option<S>,
        kept: Option<R::Kept>,
        deadline: Option<Deadline>,
        sent: Result<S::Future, R::Sent>,
    ) -> Self {
        let state = match sent {
            Ok(future) => State::Calling { future },
            Err(request) => State::readying(request, None, RareAlarm::default()),
        };
        Self { policy, counts, attempt, spare, kept, deadline, before: Before::default(), state }
    }
}

impl<S, Req, C, R> Future for ResponseFuture<S, Req, C, R>
where
    S: Service<R::Sent>,
    S::Error: Into<BoxError>,
    C: Classify<S::Response>,
    R: Replay<Req> + Discard<S::Response>,
{
    type Output = Result<S::Response, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let policy = &**this.policy;
        loop {
            match this.state.as_mut().project() {
                // ## Readying => (Calling | Done)
                StateProj::Readying { request, token, alarm } => {
                    let service = this.spare.as_mut().expect("kept for what is not sent");
                    let deadline = in_force(*this.deadline);
                    // In hand: should readiness panic, it goes back now, not when what is left is dropped.
                    let held = token.take();
                    let polled = within(*this.attempt, || service.poll_ready(cx));
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
                        return Poll::Ready(Err(this.before.rather_than(error.into())));
                    }
                    if late {
                        // With it goes its place in a queue.
                        *this.spare = None;
                        let late = Rejected::new(Reason::DeadlineExceeded, LAYER).into();
                        return Poll::Ready(Err(this.before.rather_than(late)));
                    }
                    if let Some(token) = held {
                        // Before the call: one that panics may have sent it.
                        token.spend();
                    }
                    let future = within(*this.attempt, || service.call(request));
                    this.state.set(State::Calling { future });
                }

                // ## Calling => (Discarding | Sleeping | Done)
                StateProj::Calling { future } => {
                    let result = ready!(within(*this.attempt, || future.poll(cx)));
                    let result = result.map_err(Into::into);
                    if !*this.counts {
                        return Poll::Ready(result);
                    }
                    let class = judge(&policy.classify, result.as_ref());
                    if class == Class::Success {
                        policy.budget.deposit_in_passing();
                        return Poll::Ready(result);
                    }
                    let next = match policy.next(*this.attempt, class, this.kept, *this.deadline) {
                        Ok(next) => next,
                        Err(stop) => {
                            stop.tell(*this.attempt, class);
                            return Poll::Ready(result.map_err(|error| {
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
                        wait = ?next.again.wait,
                        "repeating"
                    );
                    *this.attempt += 1;
                    let next = Some(next);
                    match result {
                        Ok(response) => {
                            this.before.answered();
                            let discarding = policy.replay.discard(response);
                            this.state.set(State::Discarding { discarding, next });
                        }
                        Err(error) => {
                            this.before.failed(class, error);
                            this.state.set(State::Sleeping { next, alarm: RareAlarm::default() });
                        }
                    }
                }

                // ## Discarding => Sleeping
                StateProj::Discarding { discarding, next } => {
                    ready!(discarding.poll(cx));
                    let next = next.take();
                    this.state.set(State::Sleeping { next, alarm: RareAlarm::default() });
                }

                // ## Sleeping => Readying
                StateProj::Sleeping { next, alarm } => {
                    let Again { wait, until } = next.as_ref().expect("taken when it is due").again;
                    if !wait.is_zero() {
                        ready!(alarm.poll(until, cx));
                    }
                    let Next { request, token, .. } = next.take().expect("looked at above");
                    let readying = State::readying(request, Some(token), std::mem::take(alarm));
                    this.state.set(readying);
                }
            }
        }
    }
}

impl<S, Req, C, R> fmt::Debug for ResponseFuture<S, Req, C, R>
where
    S: Service<R::Sent>,
    R: Replay<Req> + Discard<S::Response>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Readying { .. } => "readying",
            State::Calling { .. } => "calling",
            State::Discarding { .. } => "discarding",
            State::Sleeping { .. } => "sleeping",
        };
        f.debug_struct("ResponseFuture")
            .field("attempt", &self.attempt)
            .field("state", &state)
            .finish_non_exhaustive()
    }
}

// === impl State ===

impl<Req, F, D> State<Req, F, D> {
    fn readying(request: Req, token: Option<Token>, alarm: RareAlarm) -> Self {
        Self::Readying { request: Some(request), token, alarm }
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
    ) -> Result<Next<K::Sent>, Stop> {
        let Self { schedule, budget, .. } = self;
        schedule.may(attempt, class, kept.as_ref().map(K::safe))?;
        let units = [edge::unit(), edge::unit()];
        let again = schedule.when(attempt, class, edge::now(), in_force(deadline), units)?;
        let token = budget.withdraw().ok_or(Stop::Budget)?;
        // The copy last: it costs the most. Without one the token goes back as it is dropped here.
        let last = attempt + 1 == schedule.attempts;
        let request = kept.as_mut().and_then(|kept| kept.copy(last)).ok_or(Stop::NoCopy)?;
        Ok(Next { request, token, again })
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
    use tokio::time::Instant;
    use tower::{Layer, service_fn};

    use super::*;
    use crate::{Backoff, Budget, BudgetSettings, RetryLayer, RetryService};

    const SEC: Duration = Duration::from_secs(1);

    fn layer() -> RetryLayer {
        let budget = Budget::new(BudgetSettings::default().reserve(1000)).unwrap();
        RetryLayer::new(Backoff::exponential(SEC, SEC), budget)
    }

    /// When the next attempt begins. The future has failed once, and waits.
    fn until<S, Req, C, R>(future: &ResponseFuture<S, Req, C, R>) -> Instant
    where
        S: Service<R::Sent>,
        R: Replay<Req> + Discard<S::Response>,
    {
        match &future.state {
            State::Sleeping { next: Some(next), .. } => next.again.until,
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
        match &future.state {
            State::Readying { alarm, .. } | State::Sleeping { alarm, .. } => {
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
        fn of<S: Service<[u64; 32], Response = ()>>(_: S) -> (usize, usize, usize) {
            (
                size_of::<S::Future>(),
                size_of::<RetryService<S>>() - size_of::<S>(),
                size_of::<ResponseFuture<S, [u64; 32], ErrorsAsFailures, CloneReplay>>(),
            )
        }
        let kept = size_of::<KeptClone<[u64; 32]>>();
        let request = size_of::<Option<[u64; 32]>>();

        // A future that is larger than a waiting request.
        let large = service_fn(|_: [u64; 32]| async {
            let held = [1u64; 64];
            pending::<()>().await;
            if held[0] > 0 { Ok(()) } else { Err(BoxError::from("never")) }
        });
        let (inner, service, future) = of(large);
        assert_eq!(service, 2 * size_of::<usize>(), "whether it is ready, and one handle");
        let ours = future - inner - kept;
        assert!(ours <= 64, "{ours} bytes beside the future, the kept copy and the clone");

        // Where the future is small, a request that waits with its token takes its place.
        let small = service_fn(|_: [u64; 32]| at_once(Ok::<(), BoxError>(())));
        let (_, _, future) = of(small);
        let ours = future - request - kept;
        assert!(ours <= 104, "{ours} bytes beside the request, the kept copy and the clone");
    }
}
