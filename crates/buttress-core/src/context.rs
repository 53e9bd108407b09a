use std::{
    cell::Cell,
    marker::PhantomData,
    pin::Pin,
    task::{self, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;
use tokio::time::Instant;

use crate::{Fence, edge, fence::InFence};

/// The instant after which an answer is worth nothing to whoever asked.
///
/// It is absolute, fixed once when a request enters, and everything beneath obeys it: a retry with no
/// time left does not sleep, a queue does not keep what is late, an outgoing call inherits it. So it is
/// never armed anew, however often the request is repeated or handed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Deadline(Instant);

/// What travels with a request through a stack, with no plumbing.
///
/// A layer enters it around the inner `call` and around every `poll`, and leaves it again. So it
/// costs no allocation, works for every type of request, nests, and carries over from a server's
/// request to the client calls that its handler makes.
///
/// It goes where polls go: `join!`, `select!` and `FuturesUnordered` need nothing. What runs elsewhere
/// does not have it (`tokio::spawn`, `JoinSet`, `spawn_blocking`, the worker of a `Buffer`): carry it
/// there by hand.
///
/// ```
/// use buttress_core::{Context, Deadline};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let soon = Deadline::after(Duration::from_secs(5));
/// let request = Context::default().with_deadline(soon);
/// let seen = request.scope(async {
///     let carried = Context::current().scope(async { Deadline::current() });
///     tokio::spawn(carried).await.unwrap()
/// });
/// assert_eq!(seen.await, soon);
/// assert_eq!(Deadline::current(), None);
/// # }
/// ```
///
/// There is no guard to enter it with: one that is held across an `await` would leak into whatever
/// task runs next on that thread. There are [`within`](Self::within) and [`scope`](Self::scope).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Context {
    deadline: Option<Deadline>,
    attempt: u32,
    attempt_deadline: Option<Deadline>,
    fence: Option<Fence>,
}

pin_project! {
    /// A future that runs in a [`Context`]. See [`Context::scope`].
    #[derive(Clone, Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Scope<F> {
        #[pin]
        inner: F,
        context: Context,
    }
}

// One cell a field, so that a layer saves and sets only what is its own: the whole context in one cell
// costs seven times as much to enter.
thread_local! {
    static DEADLINE: Cell<Option<Deadline>> = const { Cell::new(None) };
    static ATTEMPT: Cell<u32> = const { Cell::new(0) };
    static ATTEMPT_DEADLINE: Cell<Option<Deadline>> = const { Cell::new(None) };
}

/// Puts the outer deadline back, on panic too. `!Send`, and private: see [`Context`].
struct InDeadline(Option<Deadline>, PhantomData<*const ()>);

/// Puts the outer attempt back.
struct InAttempt(u32, PhantomData<*const ()>);

/// Puts the outer attempt's deadline back.
struct InAttemptDeadline(Option<Deadline>, PhantomData<*const ()>);

// === impl Deadline ===

impl Deadline {
    /// The deadline at that instant.
    #[must_use]
    pub const fn at(instant: Instant) -> Self {
        Self(instant)
    }

    /// The deadline that is so far from now. `None` is never: the time is beyond the clock's reach, as
    /// with [`Duration::MAX`].
    #[must_use]
    pub fn after(limit: Duration) -> Option<Self> {
        Self::from_now(edge::now(), limit)
    }

    /// The same, where the time of the clock is known already.
    #[must_use]
    #[inline]
    pub fn from_now(now: Instant, limit: Duration) -> Option<Self> {
        now.checked_add(limit).map(Self)
    }

    /// The deadline of the request that this code runs for.
    #[inline]
    #[must_use]
    pub fn current() -> Option<Self> {
        DEADLINE.get()
    }

    /// The instant.
    #[inline]
    #[must_use]
    pub const fn instant(self) -> Instant {
        self.0
    }

    /// The time that is left at `now`; zero once it has passed.
    #[must_use]
    pub fn left(self, now: Instant) -> Duration {
        self.0.saturating_duration_since(now)
    }

    /// The limit that it was, seen from `start`: what was left then, rounded up to a whole millisecond if it
    /// was one at least.
    ///
    /// Whoever finds a deadline knows no more than that. Somebody fixed it a moment ago, by a clock that was
    /// read once more since; and the same limit should read the same each time.
    #[must_use]
    pub fn limit_from(self, start: Instant) -> Duration {
        const MS: Duration = Duration::from_millis(1);
        let left = self.left(start);
        let beyond = Duration::from_nanos(u64::from(left.subsec_nanos()) % 1_000_000);
        if left < MS || beyond.is_zero() { left } else { left.saturating_add(MS - beyond) }
    }

    /// Whether it has passed at `now`. It has at the very instant.
    #[must_use]
    #[inline]
    pub fn has_passed(self, now: Instant) -> bool {
        self.0 <= now
    }

    /// The earlier of two, where `None` is never.
    #[must_use]
    #[inline]
    pub fn earlier(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (one, other) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// Runs `f` with this deadline, or with none, and all else as it is.
    #[inline]
    pub fn within<T>(deadline: Option<Self>, f: impl FnOnce() -> T) -> T {
        let _in = InDeadline::enter(deadline);
        f()
    }

    /// When the attempt that this code runs for is given up. `None` if that has no limit of its own.
    ///
    /// It is not the request's deadline: another attempt may follow, and an answer whose head came in time
    /// may take as long as the request has. So nothing here ends by it. It is for those who tell somebody
    /// else how long to work: a callee that works on for an attempt that was given up works for nobody, and
    /// does so just when it is slow already.
    ///
    /// ```
    /// use buttress_core::Deadline;
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let [total, attempt] = [30, 10].map(|secs| Deadline::after(Duration::from_secs(secs)));
    /// Deadline::within(total, || {
    ///     Deadline::within_attempt(attempt, || {
    ///         assert_eq!(Deadline::current(), total);
    ///         assert_eq!(Deadline::of_attempt(), attempt);
    ///     });
    /// });
    /// # }
    /// ```
    #[inline]
    #[must_use]
    pub fn of_attempt() -> Option<Self> {
        ATTEMPT_DEADLINE.get()
    }

    /// Runs `f` for an attempt that is given up at `until`, with all else as it is.
    ///
    /// An attempt within an attempt ends with the outer one at the latest.
    #[inline]
    pub fn within_attempt<T>(until: Option<Self>, f: impl FnOnce() -> T) -> T {
        let _in = InAttemptDeadline::enter(Self::earlier(Self::of_attempt(), until));
        f()
    }
}

// === impl Context ===

impl Context {
    /// That of the request that this code runs for.
    #[must_use]
    pub fn current() -> Self {
        Self {
            deadline: DEADLINE.get(),
            attempt: ATTEMPT.get(),
            attempt_deadline: ATTEMPT_DEADLINE.get(),
            fence: Fence::innermost(),
        }
    }

    /// The request's deadline.
    #[must_use]
    pub const fn deadline(&self) -> Option<Deadline> {
        self.deadline
    }

    /// The number of the attempt, from 1 on. Zero if no retry of ours is in charge of this call.
    ///
    /// A retry that finds one in charge makes one attempt, and leaves repeating to it: so three attempts
    /// over three attempts make three, and not nine.
    #[must_use]
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// When the attempt is given up. See [`Deadline::of_attempt`].
    #[must_use]
    pub const fn attempt_deadline(&self) -> Option<Deadline> {
        self.attempt_deadline
    }

    /// The term that the request was let in by, if a leader did.
    #[must_use]
    pub const fn fence(&self) -> Option<Fence> {
        self.fence
    }

    /// The same with that deadline, or with none.
    #[must_use]
    pub const fn with_deadline(mut self, deadline: Option<Deadline>) -> Self {
        self.deadline = deadline;
        self
    }

    /// The same with that number of the attempt; zero leaves repeating to whoever comes next.
    #[must_use]
    pub const fn with_attempt(mut self, attempt: u32) -> Self {
        self.attempt = attempt;
        self
    }

    /// The same with that deadline of the attempt, or with none.
    #[must_use]
    pub const fn with_attempt_deadline(mut self, deadline: Option<Deadline>) -> Self {
        self.attempt_deadline = deadline;
        self
    }

    /// The same with that term, or with none.
    #[must_use]
    pub const fn with_fence(mut self, fence: Option<Fence>) -> Self {
        self.fence = fence;
        self
    }

    /// The same, with limits no later than those that are current.
    ///
    /// A `Buffer` calls in a task of its own, where the request's limits are not known; whoever polls what came
    /// of the call knows them. So they are looked for again at the first poll.
    #[must_use]
    pub fn bounded_by_current(self) -> Self {
        let current = Self::current();
        let deadline = Deadline::earlier(self.deadline(), current.deadline());
        let attempt = Deadline::earlier(self.attempt_deadline(), current.attempt_deadline());
        self.with_deadline(deadline).with_attempt_deadline(attempt)
    }

    /// Runs `f` in this context.
    pub fn within<T>(self, f: impl FnOnce() -> T) -> T {
        let _deadline = InDeadline::enter(self.deadline);
        let _attempt = InAttempt::enter(self.attempt);
        let _attempt_deadline = InAttemptDeadline::enter(self.attempt_deadline);
        let _fence = InFence::enter(self.fence);
        f()
    }

    /// Runs `future` in this context, wherever it is polled.
    pub const fn scope<F>(self, future: F) -> Scope<F> {
        Scope { inner: future, context: self }
    }

    /// Runs `future` in no request's context.
    ///
    /// For work that may outlive a request, or serves more than one: a connection that is being made, a
    /// value that many wait for. The request that happens to start it must not end it.
    pub const fn detached<F>(future: F) -> Scope<F> {
        let nobodys = Self { deadline: None, attempt: 0, attempt_deadline: None, fence: None };
        Scope { inner: future, context: nobodys }
    }

    /// Runs `f` as the attempt of that number, with all else as it is.
    #[inline]
    pub fn within_attempt<T>(attempt: u32, f: impl FnOnce() -> T) -> T {
        let _in = InAttempt::enter(attempt);
        f()
    }
}

// === impl Scope ===

impl<F: Future> Future for Scope<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        this.context.within(|| this.inner.poll(cx))
    }
}

// === impl InDeadline, InAttempt, InAttemptDeadline ===

impl InDeadline {
    #[inline]
    fn enter(deadline: Option<Deadline>) -> Self {
        Self(DEADLINE.replace(deadline), PhantomData)
    }
}

impl Drop for InDeadline {
    #[inline]
    fn drop(&mut self) {
        DEADLINE.set(self.0);
    }
}

impl InAttempt {
    #[inline]
    fn enter(attempt: u32) -> Self {
        Self(ATTEMPT.replace(attempt), PhantomData)
    }
}

impl Drop for InAttempt {
    #[inline]
    fn drop(&mut self) {
        ATTEMPT.set(self.0);
    }
}

impl InAttemptDeadline {
    #[inline]
    fn enter(deadline: Option<Deadline>) -> Self {
        Self(ATTEMPT_DEADLINE.replace(deadline), PhantomData)
    }
}

impl Drop for InAttemptDeadline {
    #[inline]
    fn drop(&mut self) {
        ATTEMPT_DEADLINE.set(self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, panic::AssertUnwindSafe};

    use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
    use tower::{Service, ServiceExt, buffer::Buffer, service_fn};

    use super::*;

    fn at(attempt: u32) -> Context {
        Context::default().with_attempt(attempt)
    }

    async fn seen() -> u32 {
        tokio::task::yield_now().await;
        Context::current().attempt()
    }

    #[tokio::test]
    async fn nests_and_is_left_while_pending() {
        let nested = at(1).scope(async { (seen().await, at(2).scope(seen()).await, seen().await) });
        let mut nested = std::pin::pin!(nested);
        assert!(futures_util::poll!(nested.as_mut()).is_pending());
        assert_eq!(Context::current(), Context::default());
        assert_eq!(nested.await, (1, 2, 1));
    }

    #[tokio::test]
    async fn a_panic_within_puts_the_outer_one_back() {
        let outer = at(1).scope(async {
            let inner = at(2).scope(async { panic!("planted") });
            assert!(AssertUnwindSafe(inner).catch_unwind().await.is_err());
            seen().await
        });
        assert_eq!(outer.await, 1);
        assert_eq!(Context::current().attempt(), 0);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_runs_elsewhere_has_it_only_if_it_is_carried() {
        let seen = at(7).scope(async {
            let current = Context::current();
            let blocking = move || current.within(|| Context::current().attempt());
            [
                tokio::spawn(seen()).await.unwrap(),
                tokio::spawn(current.scope(seen())).await.unwrap(),
                tokio::task::spawn_blocking(|| Context::current().attempt()).await.unwrap(),
                tokio::task::spawn_blocking(blocking).await.unwrap(),
            ]
        });
        assert_eq!(seen.await, [0, 7, 0, 7]);
    }

    #[tokio::test]
    async fn what_is_polled_together_does_not_mix() {
        let all = at(1).scope(async {
            let joined = tokio::join!(at(2).scope(seen()), seen(), at(3).scope(seen()));
            let selected = tokio::select! {
                biased;
                attempt = at(4).scope(seen()) => attempt,
                _ = std::future::pending::<()>() => 0,
            };
            (joined, selected, seen().await)
        });
        assert_eq!(all.await, ((2, 1, 3), 4, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_hundred_deadlines_in_one_task_stay_apart() {
        let now = edge::now();
        let all: FuturesUnordered<_> = (1..=100)
            .map(|n| {
                let deadline = Deadline::from_now(now, Duration::from_secs(n));
                let scoped = Context::default().with_deadline(deadline).scope(async move {
                    tokio::time::sleep(Duration::from_secs(101 - n)).await;
                    Deadline::current()
                });
                async move { scoped.await == deadline }
            })
            .collect();
        assert_eq!(all.filter(|same| std::future::ready(*same)).count().await, 100);
    }

    #[tokio::test]
    async fn a_shared_future_runs_in_the_context_of_whoever_polls_it_unless_it_is_detached() {
        let lent = async { (seen().await, Deadline::current()) }.shared();
        let own = Context::detached(async { (seen().await, Deadline::current()) }).shared();
        let soon = Deadline::after(Duration::from_secs(1));
        let request = at(3).with_deadline(soon);
        assert_eq!(request.scope(lent).await, (3, soon));
        assert_eq!(request.scope(own).await, (0, None), "one request's limits are not another's");
    }

    #[tokio::test]
    async fn a_buffer_loses_it_in_call_and_keeps_it_in_poll() {
        let mut buffer = Buffer::new(
            service_fn(|()| {
                let called = Context::current().attempt();
                async move { Ok::<_, Infallible>((called, seen().await)) }
            }),
            4,
        );
        let through = at(5).scope(async { buffer.ready().await.unwrap().call(()).await.unwrap() });
        assert_eq!(through.await, (0, 5));
    }

    #[tokio::test]
    async fn a_future_that_is_dropped_leaves_the_dropping_code_where_it_is() {
        struct OnDrop<'a>(&'a Cell<u32>);
        impl Drop for OnDrop<'_> {
            fn drop(&mut self) {
                self.0.set(100 + Context::current().attempt());
            }
        }
        let dropped = Cell::new(0);
        let guard = OnDrop(&dropped);
        let mut scoped = Box::pin(at(9).scope(async {
            let _guard = guard;
            std::future::pending::<()>().await;
        }));
        assert!(futures_util::poll!(scoped.as_mut()).is_pending());
        at(1).within(|| drop(scoped));
        assert_eq!(dropped.get(), 101);
    }

    fn in_secs(n: u64) -> Option<Deadline> {
        Deadline::after(Duration::from_secs(n))
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempts_deadline_is_not_the_requests() {
        let (total, attempt) = (in_secs(30), in_secs(10));
        Deadline::within(total, || {
            Deadline::within_attempt(attempt, || {
                assert_eq!((Deadline::current(), Deadline::of_attempt()), (total, attempt));
            });
            assert_eq!((Deadline::current(), Deadline::of_attempt()), (total, None));
        });
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_within_an_attempt_ends_with_the_outer_one_at_the_latest() {
        let (soon, late) = (in_secs(1), in_secs(2));
        for (outer, inner) in [(soon, late), (late, soon), (soon, None), (None, soon)] {
            let seen = Deadline::within_attempt(outer, || {
                let seen = Deadline::within_attempt(inner, Deadline::of_attempt);
                assert_eq!(Deadline::of_attempt(), outer, "the outer one is put back");
                seen
            });
            assert_eq!(seen, soon);
        }
        let panics = || Deadline::within_attempt(soon, || panic!("planted"));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(Deadline::of_attempt(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempts_deadline_goes_where_the_context_goes() {
        let (one, other) = (in_secs(1), in_secs(2));
        let seen = || async {
            tokio::task::yield_now().await;
            Deadline::of_attempt()
        };
        let carries = Deadline::within_attempt(one, Context::current);
        assert_eq!(carries, Context::default().with_attempt_deadline(one));
        assert_eq!(carries.attempt_deadline(), one);
        assert_eq!(carries.within(Deadline::of_attempt), one);
        // The later one is entered all the same: a context is what it is, wherever it is polled.
        let later = carries.with_attempt_deadline(other);
        assert_eq!(carries.scope(async { later.scope(seen()).await }).await, other);
        assert_eq!(tokio::spawn(carries.scope(seen())).await.unwrap(), one);
        assert_eq!(carries.scope(Context::detached(seen())).await, None);
    }

    #[test]
    fn a_limit_that_was_found_reads_as_it_was_set() {
        let (start, second) = (edge::now(), Duration::from_secs(1));
        let limit = |left| Deadline::at(start + left).limit_from(start);
        assert_eq!(limit(second), second);
        assert_eq!(limit(second - Duration::from_nanos(1)), second, "a clock was read in between");
        assert_eq!(limit(second - Duration::from_micros(999)), second);
        assert_eq!(limit(Duration::from_nanos(1)), Duration::from_nanos(1));
        assert_eq!(limit(Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn never_is_the_latest_of_all() {
        let soon = Deadline::after(Duration::from_secs(1));
        assert_eq!(Deadline::after(Duration::MAX), None);
        assert_eq!(Deadline::earlier(None, soon), soon);
        assert_eq!(Deadline::earlier(soon, None), soon);
        assert_eq!(Deadline::earlier(None, None), None);
    }
}
