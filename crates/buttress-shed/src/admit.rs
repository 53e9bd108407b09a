use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use buttress_core::{Deadline, Rejected, edge, timer::RareAlarm};
use tokio::time::Instant;

use crate::{
    Permit, Priority, Shed,
    machine::{Outcome, Ticket},
    shed::Decision,
    slot::Slot,
};

/// The future of [`Shed::admit`].
///
/// # Cancel safety
///
/// Dropped, it gives back its place, granted or in the queue, in that instant.
#[must_use = "futures do nothing unless polled"]
pub struct Admit {
    state: State,
}

enum State {
    New { shed: Shed, priority: Priority },
    Waiting(Waiter),
    Done,
}

/// Somebody who waits. Dropped, their place is somebody else's.
pub(crate) struct Waiter {
    shed: Shed,
    ticket: Ticket,
    slot: Arc<Slot>,
    deadline: Option<Deadline>,
    priority: Priority,
    is_polled: bool,
    /// Whether they know what became of them.
    knows: bool,
    alarm: RareAlarm,
}

// === impl Admit ===

impl Admit {
    pub(crate) const fn new(shed: Shed, priority: Priority) -> Self {
        Self { state: State::New { shed, priority } }
    }
}

impl Future for Admit {
    type Output = Result<Permit, Rejected>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match &mut self.state {
                // ## New => (Waiting | Done)
                State::New { shed, priority } => {
                    let decision = match shed.enter(edge::now(), Deadline::current()) {
                        Ok(permit) => Decision::Admit(permit),
                        Err(undecided) => shed.decide(undecided, *priority),
                    };
                    self.state = State::Done;
                    match decision {
                        Decision::Admit(permit) => return Poll::Ready(Ok(permit)),
                        Decision::Refuse(rejected) => return Poll::Ready(Err(rejected)),
                        Decision::Wait(waiter) => self.state = State::Waiting(waiter),
                    }
                }
                // ## Waiting => Done
                State::Waiting(waiter) => {
                    let decided = ready!(Pin::new(waiter).poll(cx));
                    self.state = State::Done;
                    return Poll::Ready(decided);
                }
                State::Done => panic!("`Admit` was polled after it was ready"),
            }
        }
    }
}

impl fmt::Debug for Admit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::New { .. } => "new",
            State::Waiting(_) => "waiting",
            State::Done => "done",
        };
        f.debug_struct("Admit").field("state", &state).finish_non_exhaustive()
    }
}

// === impl Waiter ===

impl Waiter {
    /// Those whose wait has come to its last instant are not refused in it: a place that is freed in that
    /// instant is theirs. So their own timer comes by the clock's next tick.
    const TICK: Duration = Duration::from_millis(1);

    pub(crate) fn new(
        shed: Shed,
        ticket: Ticket,
        slot: Arc<Slot>,
        deadline: Option<Deadline>,
        priority: Priority,
    ) -> Self {
        let alarm = RareAlarm::default();
        Self { shed, ticket, slot, deadline, priority, is_polled: false, knows: false, alarm }
    }

    /// A `Buffer` makes the call elsewhere than where its future is polled, and there is no deadline.
    fn look_for_deadline(&mut self) {
        let known = Deadline::earlier(self.deadline, Deadline::current());
        if let Some(deadline) = known
            && known != self.deadline
        {
            self.deadline = known;
            self.shed.set_deadline(self.ticket, deadline);
        }
    }

    /// When the wait ends without anybody's doing. `None` is never.
    fn until(&self) -> Option<Instant> {
        let old = self.ticket.expires.and_then(|expires| expires.checked_add(Self::TICK));
        [old, self.deadline.map(Deadline::instant)].into_iter().flatten().min()
    }
}

impl Future for Waiter {
    type Output = Result<Permit, Rejected>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if !std::mem::replace(&mut self.is_polled, true) {
            self.look_for_deadline();
        }
        let outcome = match self.slot.poll(cx) {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => {
                let Some(until) = self.until() else { return Poll::Pending };
                ready!(self.alarm.poll(until, cx));
                self.shed.expire(until, self.ticket);
                self.slot.outcome().expect("an alarm decides")
            }
        };
        self.knows = true;
        let started = match outcome {
            Outcome::Granted => self.shed.start(self.deadline),
            Outcome::Refused(reason) => Err(reason),
        };
        Poll::Ready(started.map_err(|reason| self.shed.refusal(reason, self.priority)))
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if !self.knows {
            self.shed.leave(self.ticket, &self.slot);
        }
    }
}
