use std::{
    error::Error,
    fmt,
    future::{Ready, ready},
};

use crate::{
    BoxError, FencingToken, LeaseId,
    sync::{
        Arc, AtomicU64,
        Ordering::{AcqRel, Acquire, Relaxed},
    },
};

/// The greatest token that a resource has seen, in memory: the resource's half of fencing.
///
/// A leader that stood still for longer than its lease goes on with a write that it began as a leader. No gate on its
/// side can help any more. So the resource keeps the greatest token that it has seen, and refuses what comes with a
/// smaller one.
///
/// It is the mark of one lease, since tokens of two leases cannot be compared. Clones share it. `buttress-http` asks it
/// for each request (`FencingLayer`); a resource that speaks something else asks by [`admit`](Self::admit).
///
/// # What it cannot do
///
/// - **Between the question and the write there is time.** A writer that was admitted may be stopped just there, while
///   a newer leader is admitted and writes. Only a resource that compares *in the same transaction* in which it
///   writes refuses that one. What compares before is a net with a hole as wide as a write takes.
/// - **It forgets.** A resource that was started anew has seen nothing, and another instance of it has seen other
///   tokens. [`starting_at`](Self::starting_at) what the data itself says, or keep the mark where all see it
///   ([`FenceStore`]).
/// - **It believes.** Whoever may ask may raise the mark to the last number there is, and nobody gets in any more. Ask it
///   for those alone who may write.
///
/// # Examples
///
/// ```
/// use buttress_core::{FenceGuard, FencingToken, LeaseId};
///
/// let guard = FenceGuard::new(LeaseId::of("orders"));
/// let [old, new] = [33, 34].map(|number| FencingToken::new(number).unwrap());
/// assert!(guard.admit(old).is_ok());
/// assert!(guard.admit(new).is_ok());
/// assert_eq!(guard.admit(old).unwrap_err().highest(), new);
/// ```
#[derive(Clone)]
pub struct FenceGuard {
    lease: LeaseId,
    mark: Arc<Mark>,
}

struct Mark {
    /// Zero until there is one.
    highest: AtomicU64,
    refused: AtomicU64,
}

/// Where the greatest token of a lease is kept.
///
/// [`FenceGuard`] is one, in memory. One that is in a database outlives restarts, and is the same for all instances
/// of a resource.
///
/// # Rules
///
/// - **It compares and raises at once**: in one statement, one transaction, one script. Who reads and then writes lets
///   an old token through between the two.
/// - **It never falls**, whatever is lost and restarted.
/// - A token that equals the mark is admitted: a term has many writes.
/// - The future may be dropped at any time, and the mark may have been raised or not. Either is right, since the
///   token's term has begun.
///
/// # Examples
///
/// ```
/// use buttress_core::{BoxError, FenceStore, FencingToken, LeaseId, RaiseError, StaleFence};
/// use std::pin::Pin;
///
/// # #[derive(Clone)]
/// # struct Pool;
/// # impl Pool {
/// #     async fn query(&self, _: &str, _: (&str, u64)) -> Result<u64, BoxError> { Ok(34) }
/// # }
/// #[derive(Clone)]
/// struct InDatabase {
///     pool: Pool,
///     lease: &'static str,
/// }
///
/// // Answers with the greatest of the two.
/// const RAISE: &str = "INSERT INTO fence_guard (lease, fence) VALUES ($1, $2)
///     ON CONFLICT (lease) DO UPDATE SET fence = greatest(fence_guard.fence, excluded.fence) RETURNING fence";
///
/// impl FenceStore for InDatabase {
///     type Raise = Pin<Box<dyn Future<Output = Result<(), RaiseError>> + Send>>;
///
///     fn lease(&self) -> LeaseId {
///         LeaseId::of(self.lease)
///     }
///
///     fn raise(&self, token: FencingToken) -> Self::Raise {
///         let Self { pool, lease } = self.clone();
///         Box::pin(async move {
///             let mark = pool.query(RAISE, (lease, token.get())).await.map_err(RaiseError::Failed)?;
///             // A mark of zero is none: then nobody knows, and nobody is to write.
///             let highest = FencingToken::new(mark).ok_or("the mark is zero");
///             let highest = highest.map_err(|error| RaiseError::Failed(error.into()))?;
///             StaleFence::check(token, highest).map_err(RaiseError::Stale)
///         })
///     }
/// }
/// ```
pub trait FenceStore {
    /// The future of [`raise`](Self::raise).
    type Raise: Future<Output = Result<(), RaiseError>>;

    /// Whose tokens it keeps.
    fn lease(&self) -> LeaseId;

    /// Raises the mark to `token`, unless it is there or higher already.
    ///
    /// # Errors
    ///
    /// [`RaiseError::Stale`] if it is higher. Whatever else goes wrong, [`RaiseError::Failed`].
    fn raise(&self, token: FencingToken) -> Self::Raise;
}

/// A newer leader has written already: this token comes too late, and always will.
///
/// ```
/// use buttress_core::{FencingToken, StaleFence};
///
/// let [old, new] = [33, 34].map(|number| FencingToken::new(number).unwrap());
/// let stale = StaleFence::check(old, new).unwrap_err();
/// assert_eq!(stale.to_string(), "fencing token 33 is stale: 34 was seen");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaleFence {
    token: FencingToken,
    highest: FencingToken,
}

/// Why a [`FenceStore`] did not admit a token.
#[derive(Debug)]
#[non_exhaustive]
pub enum RaiseError {
    /// A greater one was seen.
    Stale(StaleFence),
    /// The store did not say. Nobody knows, and so nobody is to write.
    Failed(BoxError),
}

// === impl FenceGuard ===

impl FenceGuard {
    /// The mark of that lease. It has seen nothing.
    #[must_use]
    pub fn new(lease: LeaseId) -> Self {
        Self::starting_at(lease, None)
    }

    /// The mark of that lease, which has seen `highest`: what the data says that was written last.
    #[must_use]
    pub fn starting_at(lease: LeaseId, highest: Option<FencingToken>) -> Self {
        let highest = AtomicU64::new(highest.map_or(0, FencingToken::get));
        Self { lease, mark: Arc::new(Mark { highest, refused: AtomicU64::new(0) }) }
    }

    /// Whose tokens it keeps.
    #[must_use]
    pub const fn lease(&self) -> LeaseId {
        self.lease
    }

    /// The greatest token that was admitted.
    #[must_use]
    pub fn highest(&self) -> Option<FencingToken> {
        FencingToken::new(self.mark.highest.load(Acquire))
    }

    /// How often a token was refused so far, for metrics.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.mark.refused.load(Relaxed)
    }

    /// Admits whoever comes with that token, unless a greater one was seen.
    ///
    /// It is exact under any interleaving: what is admitted never decreases.
    ///
    /// # Errors
    ///
    /// [`StaleFence`], if a greater one was seen.
    pub fn admit(&self, token: FencingToken) -> Result<(), StaleFence> {
        let seen = self.mark.highest.fetch_max(token.get(), AcqRel);
        let admitted =
            FencingToken::new(seen).map_or(Ok(()), |highest| StaleFence::check(token, highest));
        if admitted.is_err() {
            self.mark.refused.fetch_add(1, Relaxed);
        }
        admitted
    }
}

impl fmt::Debug for FenceGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceGuard")
            .field("lease", &self.lease)
            .field("highest", &self.highest())
            .field("refused", &self.refused())
            .finish()
    }
}

impl FenceStore for FenceGuard {
    type Raise = Ready<Result<(), RaiseError>>;

    fn lease(&self) -> LeaseId {
        self.lease
    }

    fn raise(&self, token: FencingToken) -> Self::Raise {
        ready(self.admit(token).map_err(RaiseError::Stale))
    }
}

// === impl StaleFence ===

impl StaleFence {
    /// Compares a token with the greatest that was seen.
    ///
    /// # Errors
    ///
    /// [`StaleFence`], if that one is greater.
    pub const fn check(token: FencingToken, highest: FencingToken) -> Result<(), Self> {
        if token.get() < highest.get() { Err(Self { token, highest }) } else { Ok(()) }
    }

    /// The token that comes too late.
    #[must_use]
    pub const fn token(&self) -> FencingToken {
        self.token
    }

    /// The greatest that was seen.
    #[must_use]
    pub const fn highest(&self) -> FencingToken {
        self.highest
    }
}

impl fmt::Display for StaleFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fencing token {} is stale: {} was seen", self.token, self.highest)
    }
}

impl Error for StaleFence {}

// === impl RaiseError ===

impl fmt::Display for RaiseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stale(stale) => stale.fmt(f),
            Self::Failed(_) => f.write_str("the greatest fencing token is not known"),
        }
    }
}

impl Error for RaiseError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Stale(stale) => Some(stale),
            Self::Failed(error) => Some(&**error),
        }
    }
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use std::thread;

    use super::*;

    const ORDERS: LeaseId = LeaseId::of("orders");

    fn token(number: u64) -> FencingToken {
        FencingToken::new(number).unwrap()
    }

    #[test]
    fn what_is_less_than_the_greatest_that_was_seen_is_refused_and_what_equals_it_is_not() {
        let guard = FenceGuard::new(ORDERS);
        assert_eq!(guard.highest(), None);
        for (number, admitted) in [(7, true), (7, true), (6, false), (u64::MAX, true), (8, false)] {
            assert_eq!(guard.clone().admit(token(number)).is_ok(), admitted, "{number}");
        }
        assert_eq!((guard.highest(), guard.refused()), (Some(token(u64::MAX)), 2));
    }

    #[test]
    fn whoever_restores_a_mark_refuses_what_was_stale_before() {
        let guard = FenceGuard::starting_at(ORDERS, Some(token(34)));
        assert_eq!(guard.admit(token(33)), StaleFence::check(token(33), token(34)));
        assert_eq!(guard.admit(token(34)), Ok(()));
    }

    #[test]
    fn the_mark_never_falls_and_nobody_comes_in_beneath_what_was_seen_before() {
        const THREADS: usize = 4;
        let guard = FenceGuard::new(ORDERS);
        thread::scope(|scope| {
            for start in 1..=THREADS {
                let guard = &guard;
                scope.spawn(move || {
                    for number in (start as u64..100_000).step_by(THREADS) {
                        let before = guard.highest();
                        let admitted = guard.admit(token(number)).is_ok();
                        assert!(!admitted || Some(token(number)) >= before);
                        assert!(guard.highest() >= before.max(Some(token(number))));
                    }
                });
            }
        });
        assert_eq!(guard.highest(), Some(token(99_999)));
    }
}
