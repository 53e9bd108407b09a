use std::{
    cell::RefCell,
    fmt,
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
    time::Duration,
};

use buttress_core::{
    BoxError, Class, ErrorsAsFailures, Fence, Observe, Permit, Rejected, TermOver,
    ready::poll_holding,
    timer::{Alarm, poll_within},
};
use pin_project_lite::pin_project;
use tokio::{sync::futures::OwnedNotified, time::Instant};

use crate::{BootTime, FencingToken, NotLeading, OnExpiry, TermPermit, layer::Gatekeeper};

pin_project! {
    /// The future of a [`LeadershipService`](crate::LeadershipService).
    ///
    /// # Cancel safety
    ///
    /// Dropped, it gives back its place in the term in that instant.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<F, O = ErrorsAsFailures> {
        #[pin]
        state: State<F>,
        observe: O,
        // The term that it was let in by. None, if it was not.
        fence: Option<Fence>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F> {
        // The permit is gone once the answer is there.
        Called { #[pin] future: F, permit: Option<TermPermit>, #[pin] watch: Watch, on_expiry: OnExpiry },
        Refused { rejected: Rejected },
        Over,
    }
}

pin_project! {
    /// Looks out for the end of the term.
    #[derive(Default)]
    struct Watch {
        #[pin]
        alarm: Alarm,
        // Told when the term closes or is over, before its time.
        #[pin]
        told: Option<OwnedNotified>,
        // When the term's time is up by tokio's clock, as of what it was when that was looked up.
        until: Option<(BootTime, Instant)>,
        // For how long the term has to be valid still: as long as was asked for until the call is begun, and
        // then at all.
        min_remaining: Duration,
        is_polled: bool,
    }
}

// === impl ResponseFuture ===

impl<F, O> ResponseFuture<F, O> {
    #[inline]
    pub(crate) fn called(
        future: F,
        permit: TermPermit,
        fence: Fence,
        gate: &Gatekeeper,
        observe: O,
    ) -> Self {
        let watch = Watch { min_remaining: gate.min_remaining, ..Watch::default() };
        let (permit, on_expiry) = (Some(permit), gate.on_expiry);
        let state = State::Called { future, permit, watch, on_expiry };
        Self { state, observe, fence: Some(fence) }
    }

    #[cold]
    pub(crate) fn refused(why: &dyn fmt::Display, rejected: Rejected, observe: O) -> Self {
        tracing::debug!(target: "buttress_leadership", %why, "refused");
        Self { state: State::Refused { rejected }, observe, fence: None }
    }
}

impl<F, O, Res, E> Future for ResponseFuture<F, O>
where
    F: Future<Output = Result<Res, E>>,
    E: Into<BoxError>,
    O: Observe<Res>,
{
    type Output = Result<O::Response<TermPermit>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let (future, permit, watch) = match this.state.as_mut().project() {
            StateProj::Called { future, permit, on_expiry: OnExpiry::LetRun, .. } => {
                let polled = Fence::within(*this.fence, || poll_holding(permit, future, cx));
                let (result, permit) = ready!(polled);
                return Poll::Ready(this.observe.observe(result.map_err(Into::into), permit));
            }
            StateProj::Called { future, permit, watch, .. } => (future, permit, watch),
            StateProj::Refused { rejected } => return Poll::Ready(Err((*rejected).into())),
            StateProj::Over => panic!("polled after it had answered"),
        };
        let was_polled = watch.is_polled;
        match ready!(Fence::within(*this.fence, || watch.poll(future, permit, cx))) {
            Ok((result, permit)) => {
                Poll::Ready(this.observe.observe(result.map_err(Into::into), permit))
            }
            Err(fence) => {
                // The call and its place in the term are dropped in this poll.
                this.state.set(State::Over);
                Poll::Ready(Err(over(fence, was_polled)))
            }
        }
    }
}

impl<F, O> fmt::Debug for ResponseFuture<F, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Called { .. } => "called",
            State::Refused { .. } => "refused",
            State::Over => "over",
        };
        f.debug_struct("ResponseFuture").field("state", &state).finish_non_exhaustive()
    }
}

/// What a call that was never polled has sent is nothing, as far as futures are lazy. Of the others nobody
/// knows.
#[cold]
fn over(fence: FencingToken, was_polled: bool) -> BoxError {
    tracing::debug!(target: "buttress_leadership", %fence, was_polled, "term over before the call was");
    if was_polled {
        TermOver::new(fence).into()
    } else {
        NotLeading::NotLeader { leader: None }.rejected().into()
    }
}

// === impl Watch ===

impl Watch {
    /// Polls the call while the term is valid. The error is the term's token once it is not.
    fn poll<F: Future>(
        self: Pin<&mut Self>,
        mut future: Pin<&mut F>,
        permit: &mut Option<TermPermit>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(F::Output, TermPermit), FencingToken>> {
        let mut this = self.project();
        loop {
            let held = permit.as_ref().expect("it is polled until it has answered, and no longer");
            // Whatever woke it, and however long this process stood still: nothing goes on beside the next
            // leader.
            if held.check(*this.min_remaining).is_err() {
                return Poll::Ready(Err(held.fence()));
            }
            (*this.is_polled, *this.min_remaining) = (true, Duration::ZERO);
            // Both of what follows need it, one after the other.
            let lent = RefCell::new(&mut *permit);
            let inner =
                pin!(poll_fn(|cx| poll_holding(&mut lent.borrow_mut(), future.as_mut(), cx)));
            // Only what is pending needs to know when to look again.
            let until = || {
                let permit = lent.borrow();
                let held = permit.as_ref().expect("it has not answered");
                let valid_until = held.valid_until();
                let until = this.until.filter(|(of, _)| *of == valid_until);
                Some(this.until.insert(until.unwrap_or_else(|| (valid_until, held.up()))).1)
            };
            match poll_within(inner, this.alarm.as_mut(), until, cx) {
                Poll::Ready(Some(answered)) => return Poll::Ready(Ok(answered)),
                // It is time to look again: the term may have been renewed.
                Poll::Ready(None) => {
                    *this.until = None;
                    continue;
                }
                Poll::Pending => {}
            }
            let held = permit.as_ref().expect("it has not answered");
            if this.told.is_none() {
                this.told.set(Some(held.told()));
                if held.is_over() {
                    continue;
                }
            }
            let told = this.told.as_mut().as_pin_mut().expect("it was set above");
            ready!(told.poll(cx));
            // It closed, or is over: that is looked at next.
            this.told.set(None);
        }
    }
}

/// How the call ended makes no difference: the place is given back.
impl Permit for TermPermit {
    fn report(self, _: Class) {}
}
