use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use buttress_core::{
    BoxError, Deadline, edge,
    ready::Call,
    timer::{Timer, poll_within},
};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::bound::Bound;

/// A call that can be ended, and knows whether its request was handed over.
pub(crate) trait Attempt: Future {
    /// Whether the request was handed over. If not, nothing was sent.
    fn is_sent(&self) -> bool;

    /// Whether it was ended, or never made.
    fn is_over(&self) -> bool;

    /// Drops what it waits for.
    fn end(self: Pin<&mut Self>);
}

pin_project! {
    /// A call of a service that was ready.
    #[project = SentProj]
    pub(crate) enum Sent<F> {
        Running { #[pin] future: F },
        Over,
    }
}

/// Waits for the answer of a call until its time is up, which was [settled](Bound::settle). The call is dropped
/// with its answer, or in the poll that finds the time up.
#[inline]
pub(crate) fn poll_bounded<C, A, T, E>(
    mut call: Pin<&mut C>,
    mut timer: Pin<&mut A>,
    bound: &Bound,
    layer: &'static str,
    cx: &mut Context<'_>,
) -> Poll<Result<T, BoxError>>
where
    C: Attempt<Output = Result<T, E>>,
    A: Timer,
    E: Into<BoxError>,
{
    if !call.is_sent()
        && let Some(over) = poll_unsent(call.as_mut(), timer.as_mut(), bound, layer, cx)
    {
        return over.map(Err);
    }
    let until = || bound.until().map(Deadline::instant);
    match ready!(poll_within(call.as_mut(), timer, until, cx)) {
        Some(answer) => {
            call.end();
            Poll::Ready(answer.map_err(Into::into))
        }
        None => Poll::Ready(Err(end(call, bound, layer))),
    }
}

/// Looks whether a call that was not handed over may still be. `None` if it may.
#[cold]
fn poll_unsent<C: Attempt, A: Timer>(
    call: Pin<&mut C>,
    timer: Pin<&mut A>,
    bound: &Bound,
    layer: &'static str,
    cx: &mut Context<'_>,
) -> Option<Poll<BoxError>> {
    if call.is_over() {
        assert!(bound.is_refused(), "polled after it had answered");
        return Some(Poll::Ready(bound.error(false, layer)));
    }
    let until = bound.until()?;
    if !until.has_passed(edge::now()) {
        return None;
    }
    // An answer that comes late is still an answer, but nothing is called late. The timer is asked all the
    // same, so that at the same instant the outer limit speaks.
    Some(timer.poll_after(until.instant(), true, cx).map(|()| end(call, bound, layer)))
}

/// Drops the call, and says that the time was up.
#[cold]
fn end<C: Attempt>(call: Pin<&mut C>, bound: &Bound, layer: &'static str) -> BoxError {
    let error = bound.error(call.is_sent(), layer);
    call.end();
    error
}

// === impl Attempt ===

impl<S, Req> Attempt for Call<S, Req>
where
    S: Service<Req>,
{
    #[inline]
    fn is_sent(&self) -> bool {
        Self::is_sent(self)
    }

    fn is_over(&self) -> bool {
        Self::is_over(self)
    }

    fn end(self: Pin<&mut Self>) {
        Self::end(self);
    }
}

// === impl Sent ===

impl<F: Future> Future for Sent<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        match self.project() {
            SentProj::Running { future } => future.poll(cx),
            SentProj::Over => panic!("polled after it was over"),
        }
    }
}

impl<F: Future> Attempt for Sent<F> {
    #[inline]
    fn is_sent(&self) -> bool {
        matches!(self, Self::Running { .. })
    }

    fn is_over(&self) -> bool {
        matches!(self, Self::Over)
    }

    fn end(mut self: Pin<&mut Self>) {
        self.set(Self::Over);
    }
}
