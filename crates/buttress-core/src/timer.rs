//! One timer for a whole stack.
//!
//! A timer that is registered with the runtime costs as much as all else in a stack together, and
//! a stack has many limits: the request's, each attempt's, each wait between them. So the outermost one
//! **lends** its timer to those beneath. While it polls its inner future it publishes which task it is
//! polled for. A limit beneath that is polled for *the same task* leaves a wish, "poll me again at this
//! instant", instead of arming a timer of its own; the lender arms for the earliest wish. A limit that
//! is polled for another task (it was spawned, or sits behind a combinator that wakes by itself), or that
//! has nobody above it, arms its own. Nothing has to be taken back when a future is dropped: wishes
//! are collected anew in each poll.
//!
//! Rules that hold for everything here: the inner future is polled first, so an answer at the very
//! instant wins; a timer is armed only once the inner future is pending; and an inner future that uses
//! up the task's cooperative budget cannot starve it.

use std::{
    cell::Cell,
    marker::PhantomData,
    pin::{Pin, pin},
    ptr,
    task::{Context, Poll, ready},
};

use pin_project_lite::pin_project;
use tokio::{
    task::coop,
    time::{Instant, Sleep, sleep_until},
};

use crate::edge;

thread_local! {
    /// The task that the innermost lender polls for. The other two are `None` where this is.
    static LENDER: Cell<Task> = const { Cell::new(Task::NONE) };
    /// The earliest instant that was asked of it during this poll.
    static WISH: Cell<Option<Instant>> = const { Cell::new(None) };
    /// Set while it polls because its timer fired: whatever was wished for until then is due.
    static DUE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// A task: who is polled with the same `Context` is woken by the same timer, and polled again by its lender.
///
/// It is the address of that. The lender's frame borrows its `Context` for as long as it lends, so no other lies
/// there. The waker does not tell: two nested `block_on`s of one thread share theirs, and there the inner one would
/// wait for a lender that waits for it. What is polled with another `Context` arms a timer of its own.
#[derive(Clone, Copy, PartialEq)]
struct Task(*const ());

pin_project! {
    /// Wakes its task at an instant: by a lent timer if there is one, else by its own.
    ///
    /// It holds its timer in itself (112 bytes). [`RareAlarm`] is for waits that seldom happen.
    #[derive(Debug, Default)]
    pub struct Alarm {
        #[pin]
        own: Option<Sleep>,
    }
}

/// An [`Alarm`] of one word, whose own timer is on the heap.
///
/// For waits that are rare, as a retry's: there 112 bytes in every future would cost more than an
/// allocation now and then.
#[derive(Debug, Default)]
pub struct RareAlarm {
    own: Option<Pin<Box<Sleep>>>,
}

/// Where a limit keeps a timer of its own, should it need one: in itself, as an [`Alarm`], or on the heap, as a
/// [`RareAlarm`].
///
/// There are no others.
pub trait Timer: Default + sealed::Sealed {
    /// Ready once `until` has come. Until then the task is woken at that instant.
    ///
    /// `had_budget` says whether the task had some when the poll began that this is part of.
    #[doc(hidden)]
    fn poll_after(
        self: Pin<&mut Self>,
        until: Instant,
        had_budget: bool,
        cx: &mut Context<'_>,
    ) -> Poll<()>;
}

mod sealed {
    pub trait Sealed {}

    impl Sealed for super::Alarm {}
    impl Sealed for super::RareAlarm {}
}

/// Publishes a lender, and puts the outer one back, on panic too.
struct Lending {
    lender: Task,
    wish: Option<Instant>,
    due: Option<Instant>,
    _not_send: PhantomData<*const ()>,
}

/// Polls `inner` until an instant, and lends `timer` to the limits beneath it. Ready with `None` when the
/// time is up.
///
/// `until` is asked for only when `inner` is pending, so that a future which is ready at once costs no
/// look at the clock. Its `None` is never.
///
/// Whoever gets `None` drops the inner future in the same poll.
#[inline]
pub fn poll_within<F: Future, T: Timer>(
    mut inner: Pin<&mut F>,
    mut timer: Pin<&mut T>,
    mut until: impl FnMut() -> Option<Instant>,
    cx: &mut Context<'_>,
) -> Poll<Option<F::Output>> {
    if Task::of(cx).lends() && DUE.get().is_none() {
        // Who lends to this one lends to those beneath as well. Only when something is due it matters who hears
        // of it first.
        if let Poll::Ready(output) = inner.poll(cx) {
            return Poll::Ready(Some(output));
        }
        return until()
            .map_or(Poll::Pending, |until| timer.poll_after(until, true, cx).map(|()| None));
    }
    let mut due = None;
    loop {
        let had_budget = coop::has_budget_remaining();
        let lending = Lending::open(cx, due);
        if let Poll::Ready(output) = inner.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        let wish = lending.close();
        let until = until();
        let Some(at) = earliest(wish, until) else { return Poll::Pending };
        ready!(timer.as_mut().poll_after(at, had_budget, cx));
        if until.is_some_and(|until| until <= at) {
            return Poll::Ready(None);
        }
        // What asked for `at` is due, and where we come late, what asked for later is due as well: else they
        // would be found one a round. The second round finds its budget used up, if the first did.
        due = Some(at.max(edge::now()));
    }
}

fn earliest(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Asks whoever lends a timer to this task. `None` if nobody does.
fn poll_lent(until: Instant, cx: &Context<'_>) -> Option<Poll<()>> {
    if !Task::of(cx).lends() {
        return None;
    }
    if DUE.get().is_some_and(|due| until <= due) {
        return Some(Poll::Ready(()));
    }
    WISH.set(earliest(WISH.get(), Some(until)));
    Some(Poll::Pending)
}

/// Polls a timer of one's own. A bare `Sleep` stays pending while the task has no budget left, so an
/// inner future that is always busy would put it off for ever.
fn poll_own(sleep: Pin<&mut Sleep>, had_budget: bool, cx: &mut Context<'_>) -> Poll<()> {
    if had_budget && !coop::has_budget_remaining() {
        pin!(coop::unconstrained(sleep)).poll(cx)
    } else {
        sleep.poll(cx)
    }
}

// === impl Task ===

impl Task {
    const NONE: Self = Self(ptr::null());

    #[inline]
    fn of(cx: &Context<'_>) -> Self {
        Self(ptr::from_ref(cx).cast())
    }

    /// Whether a lender polls for it.
    #[inline]
    fn lends(self) -> bool {
        LENDER.get() == self
    }
}

// === impl Alarm ===

impl Alarm {
    /// Ready once `until` has come. Until then the task is woken at that instant.
    pub fn poll(self: Pin<&mut Self>, until: Instant, cx: &mut Context<'_>) -> Poll<()> {
        self.poll_after(until, true, cx)
    }
}

impl Timer for Alarm {
    fn poll_after(
        self: Pin<&mut Self>,
        until: Instant,
        had_budget: bool,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        if let Some(lent) = poll_lent(until, cx) {
            return lent;
        }
        let mut own = self.project().own;
        match own.as_mut().as_pin_mut() {
            Some(sleep) if sleep.deadline() == until => {}
            Some(sleep) => sleep.reset(until),
            None => own.set(Some(sleep_until(until))),
        }
        let sleep = own.as_pin_mut().expect("it was armed above");
        poll_own(sleep, had_budget, cx)
    }
}

// === impl RareAlarm ===

impl RareAlarm {
    /// Ready once `until` has come. Until then the task is woken at that instant.
    pub fn poll(&mut self, until: Instant, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(self).poll_after(until, true, cx)
    }
}

impl Timer for RareAlarm {
    fn poll_after(
        mut self: Pin<&mut Self>,
        until: Instant,
        had_budget: bool,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        if let Some(lent) = poll_lent(until, cx) {
            return lent;
        }
        let own = self.own.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if own.deadline() != until {
            own.as_mut().reset(until);
        }
        poll_own(own.as_mut(), had_budget, cx)
    }
}

// === impl Lending ===

impl Lending {
    #[inline]
    fn open(cx: &Context<'_>, due: Option<Instant>) -> Self {
        let lender = LENDER.replace(Task::of(cx));
        // What is due for an outer lender is for this one's limit to hear first: at the same instant, the outer
        // limit speaks. If it is not this one's, it is passed on in a second round.
        let (wish, outer_due) =
            if lender == Task::NONE { (None, None) } else { (WISH.take(), DUE.take()) };
        if due.is_some() {
            DUE.set(due);
        }
        Self { lender, wish, due: outer_due, _not_send: PhantomData }
    }

    /// What was wished for while it was open.
    #[inline]
    fn close(self) -> Option<Instant> {
        WISH.get()
    }
}

impl Drop for Lending {
    #[inline]
    fn drop(&mut self) {
        LENDER.set(self.lender);
        WISH.set(self.wish);
        DUE.set(self.due);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, poll_fn},
        time::Duration,
    };

    use futures_util::{StreamExt, stream::FuturesUnordered};
    use tokio::time::{Sleep, timeout};

    use super::*;

    pin_project! {
        /// A limit as a layer would write it. Counts the timers that are armed in its tree.
        struct Limited<F> {
            #[pin] inner: F,
            #[pin] alarm: Alarm,
            until: Option<Instant>,
        }
    }

    impl<F: Future> Future for Limited<F> {
        type Output = Option<F::Output>;

        fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
            let this = self.project();
            poll_within(this.inner, this.alarm, || *this.until, cx)
        }
    }

    impl<F> Limited<F> {
        fn own_timer(&self) -> Option<&Sleep> {
            self.alarm.own.as_ref()
        }
    }

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn limited<F>(seconds: u64, inner: F) -> Limited<F> {
        limited_to(secs(seconds), inner)
    }

    fn limited_to<F>(limit: Duration, inner: F) -> Limited<F> {
        Limited { inner, alarm: Alarm::default(), until: Some(edge::now() + limit) }
    }

    /// Polls once, then tells whether the outermost limit armed a timer, and for when.
    async fn armed<F: Future>(limited: Pin<&mut Limited<F>>) -> Option<Instant> {
        let mut limited = limited;
        poll_fn(|cx| {
            assert!(limited.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        limited.own_timer().map(Sleep::deadline)
    }

    #[tokio::test(start_paused = true)]
    async fn the_inner_limit_leaves_a_wish_and_the_outer_one_arms_for_it() {
        let start = edge::now();
        let mut outer = pin!(limited(30, limited(10, pending::<()>())));
        assert_eq!(armed(outer.as_mut()).await, Some(start + secs(10)));
        assert!(outer.inner.own_timer().is_none(), "one timer for both");
        assert_eq!(outer.await, Some(None), "the inner one's time was up");
        assert_eq!(edge::now() - start, secs(10));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_due_at_the_same_instant_is_the_outer_ones() {
        let start = edge::now();
        assert_eq!(limited(10, limited(10, pending::<()>())).await, None);
        assert_eq!(edge::now() - start, secs(10));
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_same_instant_the_outer_one_speaks_also_where_both_borrow() {
        let start = edge::now();
        let answer = limited(30, limited(10, limited(10, pending::<()>()))).await;
        assert_eq!(answer, Some(None), "not the innermost");
        assert_eq!(edge::now() - start, secs(10));
        let answer = limited(30, limited(20, limited(10, pending::<()>()))).await;
        assert_eq!(answer, Some(Some(None)), "nobody else is due");
        assert_eq!(edge::now() - start, secs(20));
    }

    #[tokio::test(start_paused = true)]
    async fn a_future_that_is_ready_arms_nothing_and_asks_no_clock() {
        let mut alarm = pin!(Alarm::default());
        let answer = poll_fn(|cx| {
            let inner = pin!(std::future::ready(7));
            poll_within(inner, alarm.as_mut(), || panic!("asked for the limit"), cx)
        });
        assert_eq!(answer.await, Some(7));
        assert!(alarm.own.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_at_the_very_instant_wins() {
        assert_eq!(limited(5, tokio::time::sleep(secs(5))).await, Some(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_that_wakes_by_itself_arms_its_own_timer() {
        let start = edge::now();
        let mut all = FuturesUnordered::from_iter([8, 3].map(|n| limited(n, pending::<()>())));
        let first = limited(30, async { all.next().await.map(|_| edge::now() - start) });
        assert_eq!(first.await, Some(Some(secs(3))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_that_moves_to_another_task_leaves_the_outer_one_whole() {
        let start = edge::now();
        let mut moving = Some(Box::pin(limited(10, pending::<()>())));
        let (done, moved) = tokio::sync::oneshot::channel();
        let mut done = Some(done);
        let outer = limited(
            30,
            poll_fn(move |cx| {
                if let Some(mut moving) = moving.take() {
                    assert!(moving.as_mut().poll(cx).is_pending());
                    let done = done.take().unwrap();
                    tokio::spawn(async move { done.send((moving.await, edge::now())).unwrap() });
                }
                Poll::<()>::Pending
            }),
        );
        assert_eq!(timeout(secs(1000), outer).await, Ok(None));
        assert_eq!(edge::now() - start, secs(30));
        assert_eq!(moved.await.unwrap(), (None, start + secs(10)));
    }

    #[test]
    fn a_limit_in_a_nested_runtime_does_not_wait_for_a_lender_that_waits_for_it() {
        // Real time, and a thread of its own: what goes wrong here hangs, and both share one waker.
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let inner = || limited_to(Duration::from_millis(20), pending::<()>());
            let outer = limited(3600, async {
                tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(inner()))
            });
            done.send(runtime.block_on(outer)).unwrap();
        });
        assert_eq!(ended.recv_timeout(secs(60)), Ok(Some(None)));
    }

    #[tokio::test(start_paused = true)]
    async fn limits_that_are_late_together_are_found_together() {
        let polls = std::cell::Cell::new(0);
        let all: Vec<_> = (1..=1000).map(|n| Box::pin(limited(n, pending::<()>()))).collect();
        let mut all = all.into_iter().map(Some).collect::<Vec<_>>();
        let together = poll_fn(|cx| {
            for slot in &mut all {
                if let Some(limited) = slot {
                    polls.set(polls.get() + 1);
                    if limited.as_mut().poll(cx).is_ready() {
                        *slot = None;
                    }
                }
            }
            if all.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
        });
        let mut outer = pin!(limited(1_000_000, together));
        assert!(futures_util::poll!(outer.as_mut()).is_pending());
        tokio::time::advance(secs(10_000)).await;
        assert_eq!(outer.await, Some(()));
        assert!(polls.get() <= 4_000, "{} polls of 1000 limits", polls.get());
    }

    #[tokio::test(start_paused = true)]
    async fn a_wish_whose_branch_is_gone_does_not_end_the_outer_one() {
        let start = edge::now();
        let outer = limited(30, async {
            tokio::select! {
                biased;
                _ = limited(10, pending::<()>()) => {}
                () = async {} => {}
            }
            pending::<()>().await;
        });
        assert_eq!(outer.await, None);
        assert_eq!(edge::now() - start, secs(30));
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_beneath_leaves_no_lender_behind() {
        let mut outer = Box::pin(limited(30, poll_fn(|_| -> Poll<()> { panic!("planted") })));
        let caught = poll_fn(|cx| {
            let poll = std::panic::AssertUnwindSafe(|| outer.as_mut().poll(cx).is_ready());
            Poll::Ready(std::panic::catch_unwind(poll).is_err())
        });
        assert!(caught.await);
        assert!(LENDER.get() == Task::NONE && WISH.get().is_none() && DUE.get().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_of_never_lends_and_never_ends() {
        let start = edge::now();
        let never =
            Limited { inner: limited(10, pending::<()>()), alarm: Alarm::default(), until: None };
        assert_eq!(never.await, Some(None));
        assert_eq!(edge::now() - start, secs(10));
    }

    #[tokio::test(start_paused = true)]
    async fn a_rare_alarm_borrows_and_does_without() {
        let start = edge::now();
        let mut alone = RareAlarm::default();
        poll_fn(|cx| alone.poll(start + secs(2), cx)).await;
        assert!(alone.own.is_some());
        let mut lent = RareAlarm::default();
        assert_eq!(limited(30, poll_fn(|cx| lent.poll(start + secs(5), cx))).await, Some(()));
        assert!(lent.own.is_none());
        assert_eq!(edge::now() - start, secs(5));
    }

    /// Always has work, and uses up the whole budget in every poll.
    async fn glutton() {
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        loop {
            sender.send(()).unwrap();
            receiver.recv().await;
        }
    }

    #[tokio::test]
    async fn a_future_that_is_always_busy_cannot_starve_the_limit() {
        // Real time: a task that is always busy never lets a paused clock go on.
        let limited = Limited {
            inner: limited(3600, glutton()),
            alarm: Alarm::default(),
            until: Some(edge::now() + Duration::from_millis(20)),
        };
        assert_eq!(tokio::spawn(limited).await.unwrap(), None);
    }

    #[tokio::test]
    async fn nor_a_rare_alarm_that_is_polled_after_it() {
        let until = edge::now() + Duration::from_millis(20);
        let starved = async move {
            let (mut busy, mut alarm) = (Box::pin(glutton()), RareAlarm::default());
            poll_fn(|cx| {
                assert!(busy.as_mut().poll(cx).is_pending());
                alarm.poll(until, cx)
            })
            .await;
        };
        let patience = tokio::time::timeout(secs(60), tokio::spawn(starved));
        patience.await.expect("it ends").unwrap();
    }
}
