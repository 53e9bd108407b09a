use std::{
    panic::{self, AssertUnwindSafe},
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    thread,
};

use crate::machine::Outcome;

/// Where somebody who waits finds out what became of them.
///
/// It is decided while the shed is locked, so whoever leaves the queue under that lock knows for certain
/// whether there is something to give back.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

/// Tasks to be woken once nothing is locked. As a rule it is one.
#[derive(Debug, Default)]
pub(crate) struct Wakers {
    first: Option<Waker>,
    rest: Vec<Waker>,
}

// === impl Slot ===

impl Slot {
    /// Tells the outcome. The answer is whom to wake.
    pub(crate) fn decide(&self, outcome: Outcome) -> Option<Waker> {
        let mut state = self.lock();
        state.outcome = Some(outcome);
        state.waker.take()
    }

    pub(crate) fn outcome(&self) -> Option<Outcome> {
        self.lock().outcome
    }

    pub(crate) fn poll(&self, cx: &Context<'_>) -> Poll<Outcome> {
        // Wakers are foreign code: one is neither cloned nor dropped while a lock is held.
        let waker = cx.waker().clone();
        let mut state = self.lock();
        if let Some(outcome) = state.outcome {
            return Poll::Ready(outcome);
        }
        let last = state.waker.replace(waker);
        drop(state);
        drop(last);
        Poll::Pending
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Wakers ===

impl Wakers {
    pub(crate) fn push(&mut self, waker: Waker) {
        if self.first.is_none() {
            self.first = Some(waker);
        } else {
            self.rest.push(waker);
        }
    }

    /// Wakes them all. If a waker panics, which is foreign code, that goes on once the others are woken.
    pub(crate) fn wake(self) {
        let mut panicked = None;
        for waker in self.first.into_iter().chain(self.rest) {
            let woken = panic::catch_unwind(AssertUnwindSafe(|| waker.wake()));
            panicked = panicked.or(woken.err());
        }
        // A place that comes back as a panic unwinds must not start another: that would end the process.
        if let Some(payload) = panicked
            && !thread::panicking()
        {
            panic::resume_unwind(payload);
        }
    }
}
