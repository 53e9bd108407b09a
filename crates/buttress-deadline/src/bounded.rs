use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use buttress_core::{
    BoxError, Deadline, edge,
    ready::Call,
    timer::{Alarm, poll_within},
};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::bound::Bound;

pin_project! {
    /// A call that ends when its bound does.
    pub(crate) struct Bounded<C> {
        #[pin]
        state: State<C>,
        bound: Bound,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<C> {
        /// There was no time to send it.
        Refused,
        Running { #[pin] call: C, #[pin] alarm: Alarm },
        Over,
    }
}

/// A call that knows whether its request was handed over.
pub(crate) trait Attempt: Future {
    /// Whether it was. If not, nothing was sent.
    fn is_sent(&self) -> bool;
}

pin_project! {
    /// A call of a service that was ready.
    pub(crate) struct Sent<F> {
        #[pin]
        future: F,
    }
}

// === impl Bounded ===

impl<C> Bounded<C> {
    pub(crate) fn running(call: C, bound: Bound) -> Self {
        Self { state: State::Running { call, alarm: Alarm::default() }, bound }
    }

    pub(crate) const fn refused(bound: Bound) -> Self {
        Self { state: State::Refused, bound }
    }

    /// Until when it may take, now that it is polled.
    pub(crate) fn settle(self: Pin<&mut Self>) -> Option<Deadline> {
        let bound = self.project().bound;
        bound.settle();
        bound.until()
    }

    /// Waits for the answer until the time is up, which was [settled](Self::settle). The call is dropped with its answer, or in the poll
    /// that finds the time up.
    pub(crate) fn poll<T, E>(
        self: Pin<&mut Self>,
        layer: &'static str,
        cx: &mut Context<'_>,
    ) -> Poll<Result<T, BoxError>>
    where
        C: Attempt<Output = Result<T, E>>,
        E: Into<BoxError>,
    {
        let mut this = self.project();
        let answer = match this.state.as_mut().project() {
            StateProj::Refused => Err(this.bound.error(false, layer)),
            StateProj::Running { mut call, alarm } => {
                match ready!(poll_in_time(call.as_mut(), alarm, this.bound.until(), cx)) {
                    Some(answer) => answer.map_err(Into::into),
                    None => Err(this.bound.error(call.is_sent(), layer)),
                }
            }
            StateProj::Over => panic!("polled after it had answered"),
        };
        this.state.set(State::Over);
        Poll::Ready(answer)
    }
}

/// Polls a call until an instant. `None` if the time is up.
fn poll_in_time<C: Attempt>(
    call: Pin<&mut C>,
    alarm: Pin<&mut Alarm>,
    until: Option<Deadline>,
    cx: &mut Context<'_>,
) -> Poll<Option<C::Output>> {
    // An answer that comes late is still an answer, but nothing is called late. The alarm is asked all the
    // same, so that at the same instant the outer limit speaks.
    if let Some(until) = until
        && !call.is_sent()
        && until.has_passed(edge::now())
    {
        ready!(alarm.poll(until.instant(), cx));
        return Poll::Ready(None);
    }
    poll_within(call, alarm, || until.map(Deadline::instant), cx)
}

// === impl Attempt ===

impl<S, Req> Attempt for Call<S, Req>
where
    S: Service<Req>,
{
    fn is_sent(&self) -> bool {
        Self::is_sent(self)
    }
}

impl<F> Sent<F> {
    pub(crate) const fn new(future: F) -> Self {
        Self { future }
    }
}

impl<F: Future> Future for Sent<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.project().future.poll(cx)
    }
}

impl<F: Future> Attempt for Sent<F> {
    fn is_sent(&self) -> bool {
        true
    }
}
