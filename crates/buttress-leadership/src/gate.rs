//! What a request is let in by: the term of the moment.
//!
//! A term is one object with its token, until when it is valid, whether it is open, and who is in. A reader
//! loads it once. So it never has one term's token and another's validity, whatever is stored meanwhile. Its
//! validity only grows, and it only closes: a new term is a new object.
//!
//! Whether it is open and how many are in are one word. Whoever enters counts themselves first, and leaves
//! again if it was closed before: so once it is closed and empty, nobody is in and nobody will be.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use buttress_core::{edge, timer::Alarm};
use tokio::sync::{Notify, futures::OwnedNotified};

use crate::{
    BootTime, FencingToken, Leadership,
    sync::{
        Arc, AtomicU64,
        Ordering::{AcqRel, Acquire},
        Swap,
    },
};

/// Nobody is let in.
const CLOSED: u64 = 1 << 63;
/// It is closed since the leader wants to leave.
const LEAVING: u64 = 1 << 62;
/// It is closed since the clocks disagree.
const ANOMALY: u64 = 1 << 61;
/// It is over: who is in has to go.
const OVER: u64 = 1 << 60;
const FLAGS: u64 = CLOSED | LEAVING | ANOMALY | OVER;

/// See the module.
#[derive(Debug)]
pub(crate) struct Term {
    /// Whose it is: a permit is no more than a term, and still has to know. The gate lets go of a term that
    /// is over, so that nothing keeps itself alive.
    owner: Option<Leadership>,
    fence: FencingToken,
    valid_until: AtomicU64,
    word: AtomicU64,
    /// Told when a term that is closed becomes empty.
    empty: Notify,
    /// Told when it closes, and when it is over.
    told: std::sync::Arc<Notify>,
}

/// The term of the moment, if there is one.
pub(crate) struct Gate {
    term: Swap<Term>,
}

/// Why nobody is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shut {
    /// There is no term, or it is over.
    NoTerm,
    Leaving,
    Anomaly,
    /// It is not valid for as long as was asked. Zero if it is not at all.
    Short(Duration),
}

// === impl Term ===

impl Term {
    /// A term of nobody, for tests.
    #[cfg(test)]
    pub(crate) fn new(fence: FencingToken, valid_until: BootTime) -> Self {
        Self::made(None, fence, valid_until)
    }

    pub(crate) fn of(owner: Leadership, fence: FencingToken, valid_until: BootTime) -> Self {
        Self::made(Some(owner), fence, valid_until)
    }

    fn made(owner: Option<Leadership>, fence: FencingToken, valid_until: BootTime) -> Self {
        Self {
            owner,
            fence,
            valid_until: AtomicU64::new(valid_until.as_nanos()),
            word: AtomicU64::new(0),
            empty: Notify::new(),
            told: std::sync::Arc::default(),
        }
    }

    pub(crate) const fn owner(&self) -> &Leadership {
        self.owner.as_ref().expect("only terms of tests are nobody's")
    }

    pub(crate) const fn fence(&self) -> FencingToken {
        self.fence
    }

    /// When it ends unless it is renewed. The gate does not ask whether it is still open.
    #[inline]
    pub(crate) fn valid_until(&self) -> BootTime {
        BootTime::from_nanos(self.valid_until.load(Acquire))
    }

    /// Lets it be valid until then, if that is later.
    pub(crate) fn extend(&self, until: BootTime) {
        self.valid_until.fetch_max(until.as_nanos(), AcqRel);
    }

    /// Whether it is open and valid for more than `min` from `now` on.
    #[inline]
    pub(crate) fn check(&self, now: BootTime, min: Duration) -> Result<(), Shut> {
        open(self.word.load(Acquire))?;
        let left = self.valid_until().since(now);
        if left > min { Ok(()) } else { Err(Shut::Short(left)) }
    }

    /// Goes in, if it is open.
    #[inline]
    pub(crate) fn enter(&self) -> Result<(), Shut> {
        let before = self.word.fetch_add(1, AcqRel);
        open(before).inspect_err(|_| self.leave())
    }

    /// Goes in with who is in already: open or not.
    pub(crate) fn enter_with(&self) {
        self.word.fetch_add(1, AcqRel);
    }

    #[inline]
    pub(crate) fn leave(&self) {
        let before = self.word.fetch_sub(1, AcqRel);
        if before & FLAGS != 0 && before & !FLAGS == 1 {
            self.empty.notify_one();
        }
    }

    pub(crate) fn in_flight(&self) -> u64 {
        self.word.load(Acquire) & !FLAGS
    }

    pub(crate) fn is_over(&self) -> bool {
        self.word.load(Acquire) & OVER != 0
    }

    /// Lets nobody in any more. Who is in may stay.
    pub(crate) fn close(&self, why: Shut) {
        let why = match why {
            Shut::Leaving => LEAVING,
            Shut::Anomaly => ANOMALY,
            Shut::NoTerm | Shut::Short(_) => 0,
        };
        self.word.fetch_or(CLOSED | why, AcqRel);
        self.told.notify_waiters();
    }

    /// Lets nobody in any more, and tells who is in to go.
    pub(crate) fn end(&self) {
        self.word.fetch_or(CLOSED | OVER, AcqRel);
        self.told.notify_waiters();
    }

    /// Woken when it was closed and became empty: one wake-up is kept.
    pub(crate) const fn empty(&self) -> &Notify {
        &self.empty
    }

    /// Told when it closes, and when it is over. Listen, and then look.
    pub(crate) fn told(&self) -> OwnedNotified {
        std::sync::Arc::clone(&self.told).notified_owned()
    }

    /// For how long it is valid still, unless it is renewed, by its owner's clock.
    pub(crate) fn remaining(&self) -> Duration {
        self.valid_until().since(self.owner().clock().now())
    }

    /// Ready once it is closed, or its time is up.
    pub(crate) async fn closed(&self) {
        self.until(CLOSED).await;
    }

    /// Ready once it is over, or its time is up.
    pub(crate) async fn over(&self) {
        self.until(OVER).await;
    }

    /// The elector that sets the flag may get no turn in time: it hangs in its store, or the machine was
    /// suspended. So this goes by the clock as well, and looks at it whenever it is polled.
    async fn until(&self, flag: u64) {
        loop {
            // Whoever sets the flag after this is heard.
            let mut told = pin!(self.told.notified());
            let left = self.remaining();
            if self.word.load(Acquire) & flag != 0 || left.is_zero() {
                return;
            }
            let (mut alarm, up) = (pin!(Alarm::default()), edge::now() + left);
            // It is time to look again: the term may have been renewed.
            poll_fn(|cx| {
                let is_woken = told.as_mut().poll(cx).is_ready()
                    || alarm.as_mut().poll(up, cx).is_ready()
                    || self.remaining().is_zero();
                if is_woken { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
    }
}

#[inline]
fn open(word: u64) -> Result<(), Shut> {
    if word & CLOSED == 0 {
        return Ok(());
    }
    Err(match word & FLAGS {
        flags if flags & OVER != 0 => Shut::NoTerm,
        flags if flags & ANOMALY != 0 => Shut::Anomaly,
        flags if flags & LEAVING != 0 => Shut::Leaving,
        _ => Shut::NoTerm,
    })
}

// === impl Gate ===

impl Gate {
    pub(crate) const NO_TERM: Shut = Shut::NoTerm;

    #[cfg(not(buttress_loom))]
    pub(crate) const fn new() -> Self {
        Self { term: Swap::empty() }
    }

    #[cfg(buttress_loom)]
    pub(crate) fn new() -> Self {
        Self { term: Swap::empty() }
    }

    pub(crate) fn set(&self, term: Option<Arc<Term>>) {
        self.term.store(term);
    }

    #[inline]
    pub(crate) fn read<R>(&self, f: impl FnOnce(Option<&Arc<Term>>) -> R) -> R {
        self.term.read(f)
    }

    /// The token, if the term is open and valid for more than `min`.
    #[inline]
    pub(crate) fn check(
        &self,
        now: impl FnOnce() -> BootTime,
        min: Duration,
    ) -> Result<FencingToken, Shut> {
        self.read(|term| {
            let term = term.ok_or(Self::NO_TERM)?;
            term.check(now(), min)?;
            Ok(term.fence())
        })
    }

    /// Goes in: the term, and who gets it has to leave it.
    ///
    /// The clock is read last. What stops this thread before that is seen.
    #[inline]
    pub(crate) fn admit(
        &self,
        now: impl FnOnce() -> BootTime,
        min: Duration,
    ) -> Result<Arc<Term>, Shut> {
        let term = self.read(|term| {
            let term = term.ok_or(Self::NO_TERM)?;
            term.enter()?;
            Ok(Arc::clone(term))
        })?;
        match term.check(now(), min) {
            Ok(()) => Ok(term),
            Err(shut) => {
                term.leave();
                Err(shut)
            }
        }
    }
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const MIN: Duration = Duration::ZERO;

    fn at(nanos: u64) -> BootTime {
        BootTime::from_nanos(nanos)
    }

    fn term(valid_until: u64) -> Arc<Term> {
        Arc::new(Term::new(FencingToken::new(7).unwrap(), at(valid_until)))
    }

    #[test]
    fn a_term_is_over_at_the_very_instant() {
        let term = term(100);
        assert_eq!(term.check(at(99), MIN), Ok(()));
        assert_eq!(term.check(at(100), MIN), Err(Shut::Short(Duration::ZERO)));
        assert_eq!(term.check(at(90), Duration::from_nanos(9)), Ok(()));
        let ten = Duration::from_nanos(10);
        assert_eq!(term.check(at(90), ten), Err(Shut::Short(ten)));
    }

    #[test]
    fn validity_only_grows() {
        let term = term(100);
        term.extend(at(50));
        assert_eq!(term.valid_until(), at(100));
        term.extend(at(150));
        assert_eq!(term.valid_until(), at(150));
    }

    #[test]
    fn who_is_refused_is_not_in() {
        let gate = Gate::new();
        assert_eq!(gate.admit(|| at(0), MIN).unwrap_err(), Shut::NoTerm);
        let term = term(100);
        gate.set(Some(Arc::clone(&term)));
        assert_eq!(gate.admit(|| at(100), MIN).unwrap_err(), Shut::Short(Duration::ZERO));
        assert_eq!(term.in_flight(), 0);
        let inside = gate.admit(|| at(0), MIN).unwrap();
        term.close(Shut::Leaving);
        assert_eq!(gate.admit(|| at(0), MIN).unwrap_err(), Shut::Leaving);
        assert_eq!((term.in_flight(), term.is_over()), (1, false), "who is in may stay");
        term.end();
        assert!(inside.is_over());
        assert_eq!(gate.admit(|| at(0), MIN).unwrap_err(), Shut::NoTerm);
        inside.leave();
        assert_eq!(term.in_flight(), 0);
    }

    #[test]
    fn the_last_to_leave_tells_and_only_if_it_is_closed() {
        let term = term(100);
        for _ in 0..2 {
            term.enter().unwrap();
            term.leave();
        }
        assert!(term.empty().notified().now_or_never().is_none());
        term.enter().unwrap();
        term.enter_with();
        term.close(Shut::Leaving);
        term.leave();
        assert!(term.empty().notified().now_or_never().is_none());
        term.leave();
        assert!(term.empty().notified().now_or_never().is_some());
    }
}
