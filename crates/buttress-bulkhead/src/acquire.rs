use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use buttress_core::{Deadline, Reason, Rejected, edge, timer::RareAlarm};
use tokio::time::Instant;

use crate::{
    Bulkhead, NAME, Slot,
    bulkhead::Decision,
    machine::{Ticket, Why},
};

/// The future of [`Bulkhead::acquire`].
#[must_use = "dropped, it gives up its slot or its place in the queue"]
pub struct Acquire {
    state: State,
}

enum State {
    Admitted(Slot),
    Waiting(Place),
    Refused(Reason),
    Done,
}

/// A place in the queue. Dropped, it is free for somebody else, and so is the slot if it was called.
pub(crate) struct Place {
    bulkhead: Bulkhead,
    /// Gone once it was given up, or changed for a slot.
    ticket: Option<Ticket>,
    longest: Option<Instant>,
    deadline: Option<Deadline>,
    is_polled: bool,
    alarm: RareAlarm,
}

// === impl Acquire ===

impl Acquire {
    pub(crate) fn new(decision: Decision) -> Self {
        let state = match decision {
            Decision::Admit(slot) => State::Admitted(slot),
            Decision::Wait(place) => State::Waiting(place),
            Decision::Refuse(reason) => State::Refused(reason),
        };
        Self { state }
    }

    pub(crate) fn waiting(place: Place) -> Self {
        Self { state: State::Waiting(place) }
    }
}

impl Future for Acquire {
    type Output = Result<Slot, Rejected>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let State::Waiting(place) = &mut self.state {
            self.state = match ready!(place.poll(cx)) {
                Ok(slot) => State::Admitted(slot),
                Err(reason) => State::Refused(reason),
            };
        }
        match std::mem::replace(&mut self.state, State::Done) {
            State::Admitted(slot) => Poll::Ready(Ok(slot)),
            State::Refused(reason) => Poll::Ready(Err(Rejected::new(reason, NAME))),
            State::Waiting(_) | State::Done => panic!("`Acquire` was polled after it was ready"),
        }
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").finish_non_exhaustive()
    }
}

// === impl Place ===

impl Place {
    /// The wait starts now. It does not start at all if the deadline has passed.
    pub(crate) fn new(
        bulkhead: Bulkhead,
        ticket: Ticket,
        max_wait: Duration,
    ) -> Result<Self, Reason> {
        let now = edge::now();
        let mut place = Self {
            bulkhead,
            ticket: Some(ticket),
            // Beyond the clock's reach is never.
            longest: now.checked_add(max_wait),
            deadline: Deadline::current(),
            is_polled: false,
            alarm: RareAlarm::default(),
        };
        if place.deadline.is_some_and(|deadline| deadline.has_passed(now)) {
            return Err(place.give_up(Why::Expired));
        }
        Ok(place)
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Slot, Reason>> {
        if !std::mem::replace(&mut self.is_polled, true) {
            // A `Buffer` makes the call elsewhere than where its future is polled.
            self.deadline = Deadline::earlier(self.deadline, Deadline::current());
        }
        let ticket = self.ticket.expect("a place is not polled after it was left");
        if self.bulkhead.is_called(ticket, cx.waker()) {
            if self.deadline.is_some_and(|deadline| deadline.has_passed(edge::now())) {
                return Poll::Ready(Err(self.give_up(Why::Expired)));
            }
            self.ticket = None;
            return Poll::Ready(Ok(Slot::new(self.bulkhead.clone())));
        }
        let Some((until, why)) = self.until() else { return Poll::Pending };
        ready!(self.alarm.poll(until, cx));
        Poll::Ready(Err(self.give_up(why)))
    }

    /// When the wait ends, and why. If both come at the same instant, it is the deadline.
    fn until(&self) -> Option<(Instant, Why)> {
        let deadline = self.deadline.map(|at| (at.instant(), Why::Expired));
        let longest = self.longest.map(|at| (at, Why::TimedOut));
        [deadline, longest].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    fn give_up(&mut self, why: Why) -> Reason {
        if let Some(ticket) = self.ticket.take() {
            self.bulkhead.leave(ticket, why);
        }
        match why {
            Why::Expired => Reason::DeadlineExceeded,
            Why::TimedOut | Why::Abandoned => Reason::BulkheadFull,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.give_up(Why::Abandoned);
    }
}
