use std::{
    fmt,
    pin::Pin,
    task::{self, Poll, ready},
};

use buttress_core::{BoxError, Context, timer::RareAlarm};
use pin_project_lite::pin_project;

use crate::bound::Bound;

pin_project! {
    /// The connection of a [`ConnectTimeout`](super::ConnectTimeout), within the limit.
    #[must_use = "futures do nothing unless polled"]
    pub struct ConnectFuture<F> {
        // `None` once it is over.
        #[pin]
        connecting: Option<F>,
        bound: Bound,
        // Not an `Alarm`, which would have to stay where it is: hyper-util asks for futures that can be moved.
        alarm: RareAlarm,
    }
}

/// Polls in no request's context, and with nobody's timer.
///
/// Timers are lent to those who are polled with the lender's own `Context`, so one that is made anew borrows
/// none.
pub(super) fn detached<T>(
    cx: &task::Context<'_>,
    poll: impl FnOnce(&mut task::Context<'_>) -> T,
) -> T {
    Context::default().within(|| poll(&mut task::Context::from_waker(cx.waker())))
}

impl<F> ConnectFuture<F> {
    pub(super) fn new(connecting: F, bound: Bound) -> Self {
        Self { connecting: Some(connecting), bound, alarm: RareAlarm::default() }
    }
}

impl<F, T, E> Future for ConnectFuture<F>
where
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
{
    type Output = Result<T, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut task::Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let connecting =
            this.connecting.as_mut().as_pin_mut().expect("polled after it had answered");
        let answer = detached(cx, |cx| {
            if let Poll::Ready(answer) = connecting.poll(cx) {
                return Poll::Ready(answer.map_err(Into::into));
            }
            let Some(until) = this.bound.until() else { return Poll::Pending };
            ready!(this.alarm.poll(until.instant(), cx));
            Poll::Ready(Err(this.bound.error(false, "connect")))
        });
        let answer = ready!(answer);
        this.connecting.set(None);
        Poll::Ready(answer)
    }
}

impl<F> fmt::Debug for ConnectFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectFuture").finish_non_exhaustive()
    }
}
