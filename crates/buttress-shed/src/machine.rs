use std::{collections::VecDeque, time::Duration};

use buttress_core::{Deadline, Reason};
use tokio::time::Instant;

use crate::{Priority, ShedSettings, estimate::Estimate};

/// Decides who is served, who waits and who is refused.
///
/// It knows no clock, no task and no request: time is an argument, so is the limit of the moment, which is
/// one at least, and whoever waits is a key `K` that it hands back when it has decided. A place is first
/// *granted* and then *started*, since whoever waited has to be woken in between, and may be gone.
///
/// The age at which a waiter is refused follows from two rules. The server is overloaded once the queue
/// has not been empty for more than an interval; and the age limit is then twice the target, else the
/// greater of that and the interval. While somebody waits the queue is not empty, so for them both rules
/// together name one instant, known when they come: `max(came + 2 * target, since + interval)`. Nobody has
/// to be looked at again when the server becomes overloaded, and each waiter's own timer can be exact.
///
/// Threads may reach it in another order than that in which they read the clock. So `now` may step back
/// a little, and nothing here minds.
#[derive(Debug)]
pub(crate) struct Machine<K> {
    rules: Rules,
    /// By priority; in each, the oldest is at the front.
    queues: [VecDeque<Waiter<K>>; Priority::COUNT],
    next: u64,
    /// Since when the queue has not been empty.
    since: Option<Instant>,
    granted: usize,
    running: usize,
    estimate: Estimate,
    counts: Counts,
    /// What was told last by [`turned`](Self::turned).
    told: bool,
}

#[derive(Debug)]
struct Rules {
    /// Twice the target: the longest wait under overload.
    slough: Duration,
    interval: Duration,
    max_queue: Option<usize>,
}

#[derive(Debug)]
struct Waiter<K> {
    number: u64,
    /// After this instant it is refused. `None` is never.
    expires: Option<Instant>,
    deadline: Option<Deadline>,
    key: K,
}

/// A place in the queue, for whoever wants to leave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    priority: Priority,
    number: u64,
    /// After this instant it is refused. `None` is never.
    pub(crate) expires: Option<Instant>,
}

/// What became of somebody who waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Granted,
    Refused(Reason),
}

/// What has been decided in one step, in order.
pub(crate) type Decided<K> = Vec<(K, Outcome)>;

/// What has happened so far. See [`ShedStats`](crate::ShedStats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) arrived: u64,
    pub(crate) admitted: u64,
    pub(crate) overloaded: u64,
    pub(crate) expired: u64,
    pub(crate) abandoned: u64,
    pub(crate) finished: u64,
    pub(crate) dropped: u64,
    pub(crate) late: u64,
}

/// How a place came back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// When it began, where how long it took says what others will take.
    pub(crate) started: Option<Instant>,
    pub(crate) is_reported: bool,
    pub(crate) is_late: bool,
}

// === impl Machine ===

impl<K> Machine<K> {
    /// The settings are valid.
    pub(crate) fn new(settings: &ShedSettings) -> Self {
        Self {
            rules: Rules {
                slough: settings.target.saturating_mul(2),
                interval: settings.interval,
                max_queue: settings.max_queue,
            },
            queues: Default::default(),
            next: 0,
            since: None,
            granted: 0,
            running: 0,
            estimate: Estimate::new(),
            counts: Counts::default(),
            told: false,
        }
    }

    /// Somebody comes, where nobody waits, there is room, and they are in time. False if that is not so: then
    /// nothing has happened, and they [`arrive`](Self::arrive).
    #[inline]
    pub(crate) fn enter(&mut self, now: Instant, limit: usize, deadline: Option<Deadline>) -> bool {
        let enters = self.is_quiet() && self.taken() < limit && !self.is_too_late(now, deadline);
        if enters {
            self.counts.arrived += 1;
            self.counts.admitted += 1;
            self.running += 1;
        }
        enters
    }

    /// Whether nobody waits, and that was told.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.since.is_none() && !self.told
    }

    /// Somebody comes. `None` if they have to wait: then they [`enqueue`](Self::enqueue), or are
    /// [turned away](Self::turn_away).
    pub(crate) fn arrive(
        &mut self,
        now: Instant,
        limit: usize,
        deadline: Option<Deadline>,
        decided: &mut Decided<K>,
    ) -> Option<Result<(), Reason>> {
        self.counts.arrived += 1;
        self.settle(now, limit, decided);
        if self.is_too_late(now, deadline) {
            Some(Err(self.refuse(Reason::DeadlineExceeded)))
        } else if self.taken() < limit {
            // Nobody is overtaken: had somebody waited, the place would be theirs by now.
            self.running += 1;
            self.counts.admitted += 1;
            Some(Ok(()))
        } else {
            None
        }
    }

    /// They wait, if there is room. If not, somebody who matters less makes room; and in overload whoever
    /// has waited longest among equals, for they would be served last.
    pub(crate) fn enqueue(
        &mut self,
        now: Instant,
        limit: usize,
        deadline: Option<Deadline>,
        priority: Priority,
        key: impl FnOnce() -> K,
        decided: &mut Decided<K>,
    ) -> Result<Ticket, Reason> {
        if self.queued() >= self.rules.room(limit) {
            let equals_go = self.is_overloaded(now);
            let goes = |(class, queue): &(usize, &mut VecDeque<_>)| {
                let below = *class < priority as usize || equals_go && *class == priority as usize;
                below && !queue.is_empty()
            };
            match self.queues.iter_mut().enumerate().find(goes) {
                Some((_, queue)) => {
                    let oldest = queue.pop_front().expect("it is not empty");
                    let reason = self.refuse(Reason::Overloaded);
                    decided.push((oldest.key, Outcome::Refused(reason)));
                }
                None => return Err(self.refuse(Reason::Overloaded)),
            }
        }
        let since = *self.since.get_or_insert(now);
        let expires = self.rules.expires(now, since);
        let number = self.next;
        self.next += 1;
        self.queues[priority as usize].push_back(Waiter { number, expires, deadline, key: key() });
        Ok(Ticket { priority, number, expires })
    }

    /// They do not want to wait.
    pub(crate) fn turn_away(&mut self) -> Reason {
        self.refuse(Reason::Overloaded)
    }

    /// The deadline of somebody who waits, where it was not known when they came.
    pub(crate) fn set_deadline(&mut self, ticket: Ticket, deadline: Deadline) {
        if let Some((queue, at)) = self.place(ticket) {
            queue[at].deadline = Some(deadline);
        }
    }

    /// Somebody stops waiting by themselves. False if they do not wait any more.
    pub(crate) fn leave(&mut self, ticket: Ticket) -> bool {
        let left = self.remove(ticket).is_some();
        self.counts.abandoned += u64::from(left);
        left
    }

    /// The time of somebody who waits is up.
    pub(crate) fn expire(
        &mut self,
        now: Instant,
        limit: usize,
        ticket: Ticket,
        decided: &mut Decided<K>,
    ) {
        self.settle(now, limit, decided);
        if let Some(waiter) = self.remove(ticket) {
            let reason = self.refuse(waiter.reason(now));
            decided.push((waiter.key, Outcome::Refused(reason)));
        }
    }

    /// Somebody takes the place that they were granted; or it is too late for that, and it goes to the next.
    pub(crate) fn start(
        &mut self,
        now: Instant,
        limit: usize,
        deadline: Option<Deadline>,
        decided: &mut Decided<K>,
    ) -> Result<(), Reason> {
        self.granted -= 1;
        if deadline.is_some_and(|deadline| deadline.has_passed(now)) {
            let reason = self.refuse(Reason::DeadlineExceeded);
            self.settle(now, limit, decided);
            return Err(reason);
        }
        self.running += 1;
        self.counts.admitted += 1;
        Ok(())
    }

    /// Somebody was granted a place, and has left before they knew.
    pub(crate) fn forgo(&mut self, now: Instant, limit: usize, decided: &mut Decided<K>) {
        self.granted -= 1;
        self.counts.abandoned += 1;
        self.settle(now, limit, decided);
    }

    /// A place comes back.
    #[inline]
    pub(crate) fn end(
        &mut self,
        now: Instant,
        limit: usize,
        ended: Ended,
        decided: &mut Decided<K>,
    ) {
        self.running -= 1;
        if ended.is_reported {
            self.counts.finished += 1;
        } else {
            self.counts.dropped += 1;
        }
        self.counts.late += u64::from(ended.is_late);
        if let Some(started) = ended.started {
            self.estimate.record(started, now);
        }
        self.settle(now, limit, decided);
    }

    /// Whether the queue has not been empty for more than an interval.
    pub(crate) fn is_overloaded(&self, now: Instant) -> bool {
        self.since.is_some_and(|since| now.saturating_duration_since(since) > self.rules.interval)
    }

    /// Whether it has become overloaded, or has ceased to be, since this was asked last.
    pub(crate) fn turned(&mut self, now: Instant) -> Option<bool> {
        let is_overloaded = self.is_overloaded(now);
        (std::mem::replace(&mut self.told, is_overloaded) != is_overloaded).then_some(is_overloaded)
    }

    /// How many places are taken by requests that were started.
    pub(crate) const fn running(&self) -> usize {
        self.running
    }

    /// How many do not yet know what became of them.
    pub(crate) fn waiting(&self) -> usize {
        self.queued() + self.granted
    }

    pub(crate) const fn counts(&self) -> Counts {
        self.counts
    }

    /// Refuses whoever has waited for too long, and gives places to others while there are any.
    #[inline]
    fn settle(&mut self, now: Instant, limit: usize, decided: &mut Decided<K>) {
        if self.since.is_some() {
            self.settle_queue(now, limit, decided);
        }
    }

    #[cold]
    fn settle_queue(&mut self, now: Instant, limit: usize, decided: &mut Decided<K>) {
        for class in 0..Priority::COUNT {
            while self.queues[class].front().is_some_and(|oldest| oldest.is_old(now)) {
                let oldest = self.queues[class].pop_front().expect("it has a front");
                let reason = self.refuse(oldest.reason(now));
                decided.push((oldest.key, Outcome::Refused(reason)));
            }
        }
        let newest_first = self.is_overloaded(now);
        while self.taken() < limit {
            let Some(queue) = self.queues.iter_mut().rfind(|queue| !queue.is_empty()) else {
                break;
            };
            let next = if newest_first { queue.pop_back() } else { queue.pop_front() };
            let next = next.expect("it is not empty");
            let outcome = if self.is_too_late(now, next.deadline) {
                Outcome::Refused(self.refuse(Reason::DeadlineExceeded))
            } else {
                self.granted += 1;
                Outcome::Granted
            };
            decided.push((next.key, outcome));
        }
        self.note_emptiness();
    }

    /// Whether its deadline has passed, or will have before a call is likely to end.
    #[inline]
    fn is_too_late(&mut self, now: Instant, deadline: Option<Deadline>) -> bool {
        deadline.is_some_and(|deadline| {
            deadline.has_passed(now) || deadline.left(now) < self.estimate.median(now)
        })
    }

    fn refuse(&mut self, reason: Reason) -> Reason {
        match reason {
            Reason::DeadlineExceeded => self.counts.expired += 1,
            _ => self.counts.overloaded += 1,
        }
        reason
    }

    fn remove(&mut self, ticket: Ticket) -> Option<Waiter<K>> {
        let (queue, at) = self.place(ticket)?;
        let waiter = queue.remove(at);
        self.note_emptiness();
        waiter
    }

    fn place(&mut self, ticket: Ticket) -> Option<(&mut VecDeque<Waiter<K>>, usize)> {
        let queue = &mut self.queues[ticket.priority as usize];
        let at = queue.binary_search_by_key(&ticket.number, |waiter| waiter.number).ok()?;
        Some((queue, at))
    }

    fn note_emptiness(&mut self) {
        if self.queued() == 0 {
            self.since = None;
        }
    }

    fn queued(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }

    const fn taken(&self) -> usize {
        self.granted + self.running
    }
}

// === impl Rules ===

impl Rules {
    fn room(&self, limit: usize) -> usize {
        self.max_queue.unwrap_or_else(|| limit.saturating_mul(4))
    }

    fn expires(&self, came: Instant, since: Instant) -> Option<Instant> {
        let old = came.checked_add(self.slough)?;
        let overloaded = since.checked_add(self.interval)?;
        Some(old.max(overloaded))
    }
}

// === impl Waiter ===

impl<K> Waiter<K> {
    fn is_old(&self, now: Instant) -> bool {
        self.expires.is_some_and(|expires| expires < now)
    }

    /// Why it is refused when its time is up.
    fn reason(&self, now: Instant) -> Reason {
        match self.deadline {
            Some(deadline) if deadline.has_passed(now) => Reason::DeadlineExceeded,
            _ => Reason::Overloaded,
        }
    }
}

#[cfg(test)]
mod tests;
