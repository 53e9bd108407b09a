use std::{fmt, time::Duration};

use buttress_core::edge;
use tokio::{sync::futures::OwnedNotified, time::Instant};

use crate::{
    BootTime, FencingToken, Leadership, LeaseName, NotLeading,
    gate::{Gate, Term},
    sync::Arc,
};

/// Somebody's place in a leader's term. As long as it is held, the lease is not given back.
///
/// It is a promise of the leader to wait, and no proof that it leads: the term may be over meanwhile,
/// whatever anybody holds. [`check`](Self::check) says whether it is.
#[must_use = "a permit that is dropped is not waited for"]
pub struct TermPermit {
    // One word, and one count to keep: it is made and dropped with every request.
    term: Arc<Term>,
}

/// A term of this process, for its work. See [`Elector::lead`](crate::Elector::lead).
#[derive(Clone)]
pub struct LeaderTerm {
    term: Arc<Term>,
}

// === impl TermPermit ===

impl TermPermit {
    /// Who makes it has entered the term.
    pub(crate) const fn new(term: Arc<Term>) -> Self {
        Self { term }
    }

    /// The token of the term: to be sent along with what is written.
    #[must_use]
    pub fn fence(&self) -> FencingToken {
        self.term.fence()
    }

    /// What is led.
    #[must_use]
    pub fn lease(&self) -> &LeaseName {
        self.term.owner().name()
    }

    /// Whether the term is valid at this instant, for longer than `min_remaining`. It is so too while the
    /// leader is about to leave, and holds the lease for those who are in.
    ///
    /// # Errors
    ///
    /// [`NotLeading`] says why it is not.
    pub fn check(&self, min_remaining: Duration) -> Result<FencingToken, NotLeading> {
        valid(&self.term, min_remaining)
    }

    /// For how long the term is valid still, unless it is renewed.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.term.remaining()
    }

    pub(crate) fn valid_until(&self) -> BootTime {
        self.term.valid_until()
    }

    /// When its time is up by tokio's clock, as of now.
    pub(crate) fn up(&self) -> Instant {
        edge::now() + self.term.remaining()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.term.is_over()
    }

    pub(crate) fn told(&self) -> OwnedNotified {
        self.term.told()
    }

    /// Ready once the term is over, or who is in has to go: what is done from then on is done beside the next
    /// leader. It looks at the clock whenever it is polled, and needs no elector to tell it.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers.
    ///
    /// # Cancel safety
    ///
    /// It holds nothing.
    pub async fn over(&self) {
        self.term.over().await;
    }
}

/// One more to be waited for.
impl Clone for TermPermit {
    fn clone(&self) -> Self {
        self.term.enter_with();
        Self { term: Arc::clone(&self.term) }
    }
}

impl Drop for TermPermit {
    fn drop(&mut self) {
        self.term.leave();
    }
}

impl fmt::Debug for TermPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TermPermit").field("fence", &self.fence()).finish_non_exhaustive()
    }
}

// === impl LeaderTerm ===

impl LeaderTerm {
    pub(crate) const fn new(term: Arc<Term>) -> Self {
        Self { term }
    }

    /// The token of the term: to be sent along with what is written.
    #[must_use]
    pub fn fence(&self) -> FencingToken {
        self.term.fence()
    }

    /// Whether the term is valid at this instant, for longer than `min_remaining`. It is so too while the
    /// leader is about to leave, and waits for its work.
    ///
    /// # Errors
    ///
    /// [`NotLeading`] says why it is not.
    pub fn check(&self, min_remaining: Duration) -> Result<FencingToken, NotLeading> {
        valid(&self.term, min_remaining)
    }

    /// For how long the term is valid still, unless it is renewed.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.term.remaining()
    }

    /// Ready once the work is to end: the leader leaves, and waits for it as long as
    /// [`drain_timeout`](crate::LeaseConfig::drain_timeout). A term that is lost, or whose time is up, does not wait: then
    /// the work is dropped.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers.
    ///
    /// # Cancel safety
    ///
    /// It holds nothing.
    pub async fn cancelled(&self) {
        self.term.closed().await;
    }

    /// The election.
    #[must_use]
    pub fn leadership(&self) -> &Leadership {
        self.term.owner()
    }
}

impl fmt::Debug for LeaderTerm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaderTerm").field("fence", &self.fence()).finish_non_exhaustive()
    }
}

fn valid(term: &Term, min: Duration) -> Result<FencingToken, NotLeading> {
    let left = term.remaining();
    if term.is_over() || left.is_zero() {
        return Err(term.owner().why(Gate::NO_TERM));
    }
    if left <= min {
        return Err(NotLeading::TooShort { remaining: left });
    }
    Ok(term.fence())
}
