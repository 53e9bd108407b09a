use std::{
    fmt,
    panic::{self, AssertUnwindSafe},
    sync::{PoisonError, atomic::Ordering::Relaxed},
    task::Waker,
    thread,
    time::Duration,
};

use buttress_core::{Health, HealthSignal, InvalidSetting, Reading, Reason, Rejected};
use tokio::time::Instant;

use crate::{
    Acquire, BulkheadSettings, NAME, Slot,
    acquire::Place,
    counts::{Counts, Take},
    machine::{Queue, Ticket, Why},
    settings::check_limit,
    sync::{Arc, AtomicU64, Mutex, MutexGuard},
};

/// A bounded number of calls in flight, and a bounded queue before it. Clones share it.
///
/// One slow dependency must not hold every task, connection and byte of memory that others need, too.
/// Give each a bulkhead of its own, and put it into as many layers, routes and connections as there are.
///
/// # Examples
///
/// Without tower, a [`Slot`] is held for as long as the work takes:
///
/// ```
/// use buttress_bulkhead::{Bulkhead, BulkheadSettings};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let bulkhead = Bulkhead::new(BulkheadSettings::new(2))?;
/// let one = bulkhead.acquire().await?;
/// let two = bulkhead.try_acquire()?;
/// assert!(bulkhead.try_acquire().is_err());
/// drop(one);
/// assert_eq!(bulkhead.room(), 1);
/// # drop(two);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Bulkhead {
    shared: Arc<Shared>,
}

/// What a bulkhead has done so far, and what it does now.
///
/// The counts always add up:
///
/// ```text
/// started = granted + rejected + timed_out + expired + abandoned + waiting
/// granted = finished + in_flight
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BulkheadStats {
    /// How many asked for a slot.
    pub started: u64,
    /// How many of them got one. Whoever was called from the queue counts here, even if they had left by
    /// the time: they held the slot until they gave it back.
    pub granted: u64,
    /// How many slots came back.
    pub finished: u64,
    /// How many slots are held.
    pub in_flight: usize,
    /// How many wait.
    pub waiting: usize,
    /// How many were refused at once: no slot was free, and no place in the queue.
    pub rejected: u64,
    /// How many were refused after the longest wait.
    pub timed_out: u64,
    /// How many were refused because their deadline came while they waited.
    pub expired: u64,
    /// How many stopped asking while they waited: their future was dropped.
    pub abandoned: u64,
}

/// What becomes of somebody who asks for a slot.
pub(crate) enum Decision {
    Admit(Slot),
    Wait(Place),
    Refuse(Reason),
}

struct Shared {
    counts: Counts,
    max_wait: Duration,
    /// Whether anybody may wait at all. If not, the queue is never looked at.
    has_queue: bool,
    rejected: AtomicU64,
    queue: Mutex<Queue<Option<Waker>>>,
}

// === impl Bulkhead ===

impl Bulkhead {
    /// The largest limit: more calls than the memory of a machine holds.
    pub const MAX_LIMIT: usize = i32::MAX as usize;

    /// A bulkhead with those settings.
    ///
    /// # Errors
    ///
    /// Names the setting that cannot work: a `limit` of zero, or above [`MAX_LIMIT`](Self::MAX_LIMIT); a
    /// `max_wait` of zero where `max_waiting` lets somebody wait.
    pub fn new(settings: BulkheadSettings) -> Result<Self, InvalidSetting> {
        settings.check()?;
        Ok(Self::from_checked(settings))
    }

    /// A bulkhead that refuses nobody, and still counts.
    ///
    /// Its [`limit`](Self::limit) is [`MAX_LIMIT`](Self::MAX_LIMIT), and can be [set](Self::set_limit) to
    /// less while in use.
    #[must_use]
    pub fn unlimited() -> Self {
        Self::from_checked(BulkheadSettings::new(Self::MAX_LIMIT))
    }

    fn from_checked(settings: BulkheadSettings) -> Self {
        let shared = Shared {
            counts: Counts::new(settings.limit),
            max_wait: settings.max_wait,
            has_queue: settings.max_waiting > 0,
            rejected: AtomicU64::new(0),
            queue: Mutex::new(Queue::new(settings.max_waiting)),
        };
        Self { shared: Arc::new(shared) }
    }

    /// A slot, if one is free and nobody waits for it.
    ///
    /// # Errors
    ///
    /// [`Rejected`] for [`BulkheadFull`](Reason::BulkheadFull).
    pub fn try_acquire(&self) -> Result<Slot, Rejected> {
        let taken = match self.shared.counts.take() {
            Take::Taken => true,
            Take::Full => false,
            Take::NotMine => self.shared.take_after_queue(),
        };
        if taken { Ok(Slot::new(self.clone())) } else { Err(Rejected::new(self.refuse(), NAME)) }
    }

    /// A slot, or a place in the queue, or a refusal: which of them is decided in this call, and not
    /// when the future is first polled. A queue that is first come, first served goes by who asked first,
    /// and not by whose future an executor happens to poll first; and the longest wait counts from here.
    /// (`Shed::admit` of `buttress-shed` decides at the first poll, for its reasons.)
    ///
    /// The wait ends at the latest after the longest wait, and never goes beyond the
    /// [deadline](buttress_core::Deadline) of the request that this code runs for.
    ///
    /// # Errors
    ///
    /// The future fails with [`Rejected`]: for [`BulkheadFull`](Reason::BulkheadFull) if no place is free,
    /// or if the longest wait is over; for [`DeadlineExceeded`](Reason::DeadlineExceeded) if the deadline
    /// comes first.
    ///
    /// # Panics
    ///
    /// The future panics if it has to wait for a bounded time outside of a tokio runtime with timers.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the future gives up its slot or its place in that instant. A slot that was on its way to it
    /// goes to whoever is next.
    pub fn acquire(&self) -> Acquire {
        Acquire::new(match self.take() {
            Some(slot) => Decision::Admit(slot),
            None if self.has_queue() => self.queue_up(),
            None => Decision::Refuse(self.refuse()),
        })
    }

    /// A slot, if one is free and nobody waits for it.
    #[inline]
    pub(crate) fn take(&self) -> Option<Slot> {
        (self.shared.counts.take() == Take::Taken).then(|| Slot::new(self.clone()))
    }

    /// Whether somebody who finds no slot may wait for one.
    #[inline]
    pub(crate) fn has_queue(&self) -> bool {
        self.shared.has_queue
    }

    /// What becomes of somebody who found no slot.
    #[cold]
    pub(crate) fn queue_up(&self) -> Decision {
        match self.shared.join() {
            Joined::Called => Decision::Admit(Slot::new(self.clone())),
            Joined::Waiting(ticket) => Place::new(self.clone(), ticket, self.shared.max_wait)
                .map_or_else(Decision::Refuse, Decision::Wait),
            Joined::NoPlace => Decision::Refuse(self.refuse()),
        }
    }

    /// Why nobody else comes in. It is counted, and told.
    #[cold]
    pub(crate) fn refuse(&self) -> Reason {
        self.shared.rejected.fetch_add(1, Relaxed);
        tracing::debug!(target: "buttress_bulkhead", limit = self.limit(), "bulkhead is full");
        Reason::BulkheadFull
    }

    /// How many more calls would be admitted at once.
    #[must_use]
    pub fn room(&self) -> usize {
        self.limit().saturating_sub(self.in_flight())
    }

    /// How many slots are held. More than the limit only after that was lowered.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.counts.snapshot().in_flight()
    }

    /// How many wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.lock().len()
    }

    /// How many calls may be in flight.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.shared.counts.limit()
    }

    /// Changes how many calls may be in flight, while in use.
    ///
    /// A higher limit admits at once whoever waits. A lower one takes no slot away: nobody is admitted
    /// until so many have left that there is room under it.
    ///
    /// # Errors
    ///
    /// Names the `limit` if it is zero, or above [`MAX_LIMIT`](Self::MAX_LIMIT). Then nothing changes.
    pub fn set_limit(&self, limit: usize) -> Result<(), InvalidSetting> {
        check_limit(limit)?;
        self.shared.counts.resize(limit);
        self.shared.call_waiting();
        Ok(())
    }

    /// What it has done so far, and what it does now.
    #[must_use]
    pub fn stats(&self) -> BulkheadStats {
        // Nobody is called meanwhile, so that nobody counts twice.
        let queue = self.shared.lock();
        let (left, waiting) = (queue.left(), queue.len());
        let counts = self.shared.counts.snapshot();
        drop(queue);

        let granted = counts.taken();
        let rejected = self.shared.rejected.load(Relaxed);
        let refused = rejected + left.timed_out + left.expired;
        BulkheadStats {
            started: granted + refused + left.abandoned + waiting as u64,
            granted,
            finished: granted - counts.in_flight() as u64,
            in_flight: counts.in_flight(),
            waiting,
            rejected,
            timed_out: left.timed_out,
            expired: left.expired,
            abandoned: left.abandoned,
        }
    }

    /// Whether a slot is there for that ticket; if not, `waker` is woken when there is one.
    pub(crate) fn is_called(&self, ticket: Ticket, waker: &Waker) -> bool {
        // A waker may run other people's code when it is cloned or dropped, even drop a task that holds
        // a slot of ours. So neither is done under the lock.
        let waker = waker.clone();
        let mut queue = self.shared.lock();
        let before = queue.find(ticket).map(|known| known.replace(waker));
        drop(queue);
        before.is_none()
    }

    /// Gives up a ticket, and the slot if it has been called already.
    pub(crate) fn leave(&self, ticket: Ticket, why: Why) {
        self.shared.leave(ticket, why);
        if why != Why::Abandoned {
            tracing::debug!(target: "buttress_bulkhead", limit = self.limit(), ?why, "waited in vain");
        }
    }

    #[inline]
    pub(crate) fn give_back(&self) {
        if self.shared.counts.give_back() {
            self.shared.call_waiting();
        }
    }
}

/// A thousand in flight, and nobody waits.
impl Default for Bulkhead {
    fn default() -> Self {
        Self::from_checked(BulkheadSettings::default())
    }
}

/// `Healthy` while there is room, `Degraded` while every slot is held. Never `Unhealthy`: full is how busy
/// the callers are as much as how ill the callee is. It is not known since when, for that would cost
/// each call a look at the clock.
impl HealthSignal for Bulkhead {
    fn sample(&self, _: Instant) -> Reading {
        let health = if self.room() > 0 { Health::Healthy } else { Health::Degraded };
        Reading { health, since: None }
    }
}

impl fmt::Debug for Bulkhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bulkhead")
            .field("limit", &self.limit())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

// === impl Shared ===

/// What came of the attempt to join the queue.
enum Joined {
    /// There was a slot, after all.
    Called,
    Waiting(Ticket),
    NoPlace,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue<Option<Waker>>> {
        // Nothing under it panics, and nothing is half done in between: there is nothing to poison.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot or a place, and neither only if at one instant there was neither.
    fn join(&self) -> Joined {
        loop {
            // Whoever has given a slot back may not have come to call those who wait.
            self.call_waiting();
            let mut queue = self.lock();
            if queue.is_empty() {
                self.counts.somebody_waits();
                // A slot may have come back before that was known. Nobody will call us for it.
                if self.counts.take_for_first() {
                    self.counts.nobody_waits();
                    return Joined::Called;
                }
            }
            if let Some(ticket) = queue.join(None) {
                return Joined::Waiting(ticket);
            }
            if !self.counts.has_room(self.counts.snapshot()) {
                return Joined::NoPlace;
            }
        }
    }

    /// Takes a slot that is left over when all who wait have been called.
    #[cold]
    fn take_after_queue(&self) -> bool {
        loop {
            self.call_waiting();
            let queue = self.lock();
            if queue.is_empty() {
                return self.counts.take_for_first();
            }
            if !self.counts.has_room(self.counts.snapshot()) {
                return false;
            }
        }
    }

    /// Calls those who wait, one by one, for as long as there are slots. If a waker panics, which is
    /// foreign code, that goes on once the others are called.
    #[cold]
    fn call_waiting(&self) {
        let mut panicked = None;
        while let Some(waker) = self.call_first() {
            if let Some(waker) = waker {
                let woken = panic::catch_unwind(AssertUnwindSafe(|| waker.wake()));
                panicked = panicked.or(woken.err());
            }
        }
        // A slot that comes back as a panic unwinds must not start another: that would end the process.
        if let Some(payload) = panicked
            && !thread::panicking()
        {
            panic::resume_unwind(payload);
        }
    }

    /// Calls the first, if there is one and a slot for it. The slot is taken here, so that it cannot be
    /// lost before the one who was called comes for it.
    fn call_first(&self) -> Option<Option<Waker>> {
        let mut queue = self.lock();
        if queue.is_empty() || !self.counts.take_for_first() {
            return None;
        }
        let first = queue.call();
        self.mark_if_empty(&queue);
        first
    }

    fn leave(&self, ticket: Ticket, why: Why) {
        let mut queue = self.lock();
        let waker = queue.leave(ticket, why);
        if waker.is_some() {
            self.mark_if_empty(&queue);
            drop(queue);
            // Only now is the waker dropped, see `is_called`.
            return;
        }
        let somebody_waits = self.counts.give_back();
        drop(queue);
        if somebody_waits {
            self.call_waiting();
        }
    }

    fn mark_if_empty(&self, queue: &Queue<Option<Waker>>) {
        if queue.is_empty() {
            self.counts.nobody_waits();
        }
    }
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use super::*;

    #[test]
    fn once_nobody_waits_any_more_nobody_takes_the_slow_way() {
        let settings = BulkheadSettings::new(1).max_waiting(2).max_wait(Duration::MAX);
        let bulkhead = Bulkhead::new(settings).unwrap();
        let slow = |bulkhead: &Bulkhead| bulkhead.shared.counts.give_back();
        let slots = || (bulkhead.try_acquire().unwrap(), bulkhead.acquire());

        let (slot, leaves) = slots();
        drop(leaves);
        std::mem::forget(slot);
        assert!(!slow(&bulkhead), "it left");

        let (slot, called) = slots();
        drop(slot);
        std::mem::forget(called);
        assert!(!slow(&bulkhead), "it was called");
    }
}
