use std::{error::Error, fmt, time::Duration};

use buttress_core::BoxError;
use bytes::Bytes;

use crate::{Changes, FencingToken, Identity, LeaseName, LeaseRecord, no_changes};

/// Where leases are kept, and who holds them is decided.
///
/// An elector is as good as its store. Who writes one keeps to these rules, and has them checked by the
/// conformance suite:
///
/// 1. `acquire` succeeds just if nobody holds the lease, and it is one step: of two at the same time one succeeds.
/// 2. Each success has a token greater than any that this name has ever had, whatever was released, expired or
///    deleted.
/// 3. `acquire` by who holds it already does **not** renew it, and answers [`Held`](AcquireOutcome::Held).
/// 4. `renew` succeeds just if holder and token are the record's, and it has not expired.
/// 5. `release` clears it just if both are; the token and the [memo](LeaseRecord::memo) stay. Twice is as once.
/// 6. `inspect` sees every write that was answered before it was asked.
/// 7. A future that is dropped leaves what [`Ambiguous`](StoreError::Ambiguous) says: done, or not done.
/// 8. [`granted_ttl`](LeaseRecord::granted_ttl) is what the store will enforce, or less. Never more.
///
/// A lost race is an answer, and no error: an error says that there was no answer.
///
/// **One call is one attempt.** The elector reads the clock right before it polls the future, and counts the
/// lease from there. A client that repeats by itself inside makes terms short; the elector repeats, and knows
/// when to stop. No call needs a time limit: the elector drops it. A server that would go on with it meanwhile is
/// told how long it [waits](AcquireRequest::limit).
///
/// Give it a connection of its own. What shares the work's pool waits for the work just when that is stuck.
pub trait LeaseStore: Send + Sync + 'static {
    /// What it can do, and what must be known to set it up. The same each time.
    fn capabilities(&self) -> StoreCapabilities;

    /// Takes the lease if nobody holds it.
    fn acquire(
        &self,
        request: AcquireRequest<'_>,
    ) -> impl Future<Output = Result<AcquireOutcome, StoreError>> + Send;

    /// Holds it for another while.
    fn renew(
        &self,
        request: RenewRequest<'_>,
    ) -> impl Future<Output = Result<RenewOutcome, StoreError>> + Send;

    /// Gives it back.
    fn release(
        &self,
        request: ReleaseRequest<'_>,
    ) -> impl Future<Output = Result<ReleaseOutcome, StoreError>> + Send;

    /// Looks who holds it. `None` if nobody ever did.
    fn inspect(
        &self,
        name: &LeaseName,
    ) -> impl Future<Output = Result<Option<LeaseRecord>, StoreError>> + Send;

    /// Tells that the lease may have changed, so that candidates need not wait for their next look.
    ///
    /// It wakes, and proves nothing: it may drop, double, reorder, and end. The default never says anything.
    ///
    /// An elector asks for it before it looks, and lets go of it when it leads.
    fn changes(&self, name: &LeaseName) -> Changes {
        let _ = name;
        no_changes()
    }
}

/// What a store can do.
///
/// ```
/// use buttress_leadership::{Expiry, StoreCapabilities};
/// use std::time::Duration;
///
/// let etcd = StoreCapabilities::new(Expiry::Server)
///     .min_ttl(Duration::from_secs(2))
///     .ttl_granularity(Duration::from_secs(1))
///     .watch(true);
/// assert_eq!(etcd.expiry, Expiry::Server);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreCapabilities {
    /// The shortest lease that it grants. A second unless set.
    pub min_ttl: Duration,
    /// Of what a lease is a multiple. A millisecond unless set.
    pub ttl_granularity: Duration,
    /// Who decides that a lease is over.
    pub expiry: Expiry,
    /// The clock by which the store decides. [`Monotonic`](ServerClock::Monotonic) unless set.
    pub server_clock: ServerClock,
    /// Whether [`changes`](LeaseStore::changes) tells of releases. Then candidates look less often.
    pub watch: bool,
    /// Where tokens come from. A [counter](FenceSource::Counter) unless set.
    pub fence: FenceSource,
}

/// Who decides that a lease is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Expiry {
    /// The store, by its own clock.
    Server,
    /// Each candidate: it has seen no renewal for as long as the lease is, by its own clock. It takes a lease
    /// longer to begin with, and no clock of a server's can end a lease too early.
    Observed,
}

/// The clock by which a store decides that leases are over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ServerClock {
    /// One that nobody sets.
    Monotonic,
    /// The wall clock: when that is set forward, leases end too early, and there may be two leaders, whom
    /// only their tokens tell apart.
    Wall,
    /// One that nobody sets, and of which it tells no time: the times of a record are of the process that has asked,
    /// when *it* saw what.
    Untold,
    /// None: it does not decide.
    None,
}

/// Where a store's tokens come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FenceSource {
    /// A counter beside the lease. It is as durable as that is.
    ///
    /// A store that has forgotten it would begin anew, and whoever leads with a token that was there before is
    /// refused by whatever has seen greater ones. So a token is greater also than what the request says that it
    /// is to come [after](AcquireRequest::after): what candidates have seen, they remember.
    Counter,
    /// The number of the write among all writes of the store.
    Revision,
    /// The wall clock, and never less than the one before, nor than what candidates have seen. It grows although
    /// the store has forgotten everything.
    Time,
}

/// Asks for the lease.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AcquireRequest<'a> {
    /// Which lease.
    pub name: &'a LeaseName,
    /// Who wants it.
    pub identity: &'a Identity,
    /// For how long.
    pub ttl: Duration,
    /// What the holder says of itself.
    pub payload: &'a Bytes,
    /// The greatest token that whoever asks has seen, if it has seen any. See
    /// [`FenceSource::Counter`].
    pub after: Option<FencingToken>,
    /// How long the asker waits for the answer at most, if it says so: an elector its
    /// [`operation_timeout`](crate::LeaseConfig::operation_timeout).
    pub limit: Option<Duration>,
}

/// Asks for it for another while.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RenewRequest<'a> {
    /// Which lease.
    pub name: &'a LeaseName,
    /// Who holds it.
    pub identity: &'a Identity,
    /// The token of the term.
    pub fence: FencingToken,
    /// For how long from now on.
    pub ttl: Duration,
    /// What the holder says of itself, if it is to be changed.
    pub payload: Option<&'a Bytes>,
    /// What it leaves for those who come after it, if it is to be changed.
    pub memo: Option<&'a Bytes>,
    /// As [`AcquireRequest::limit`].
    pub limit: Option<Duration>,
}

/// Gives it back.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ReleaseRequest<'a> {
    /// Which lease.
    pub name: &'a LeaseName,
    /// Who held it.
    pub identity: &'a Identity,
    /// The token of the term.
    pub fence: FencingToken,
    /// What it leaves for those who come after it, if it is to be changed.
    pub memo: Option<&'a Bytes>,
    /// As [`AcquireRequest::limit`].
    pub limit: Option<Duration>,
}

/// What came of asking for a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcquireOutcome {
    /// It is the asker's, by this very call.
    Acquired(LeaseRecord),
    /// Somebody holds it.
    Held(LeaseRecord),
}

/// What came of asking to hold it longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RenewOutcome {
    /// It is the asker's for another while.
    Renewed(LeaseRecord),
    /// It is not the asker's any more: it ended, somebody else has it, or the record is gone.
    Lost(Option<LeaseRecord>),
}

/// What came of giving it back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// Nobody holds it.
    Released,
    /// The asker did not hold it.
    NotHolder(Option<LeaseRecord>),
}

/// A store that gave no answer. What matters is whether the call may have had its effect.
#[derive(Debug)]
pub enum StoreError {
    /// It had none: the connection was refused, or nothing was sent.
    NotApplied(BoxError),
    /// It may have had it: the answer did not come.
    Ambiguous(BoxError),
    /// It had none, and will have none if it is asked again: no rights, no table, not supported.
    Fatal(BoxError),
}

// === impl StoreCapabilities ===

impl StoreCapabilities {
    /// Those of a store that grants leases from a second on, to the millisecond, and wakes nobody.
    #[must_use]
    pub const fn new(expiry: Expiry) -> Self {
        Self {
            min_ttl: Duration::from_secs(1),
            ttl_granularity: Duration::from_millis(1),
            expiry,
            server_clock: ServerClock::Monotonic,
            watch: false,
            fence: FenceSource::Counter,
        }
    }

    /// Sets the shortest lease.
    #[must_use]
    pub const fn min_ttl(mut self, ttl: Duration) -> Self {
        self.min_ttl = ttl;
        self
    }

    /// Sets of what a lease is a multiple.
    #[must_use]
    pub const fn ttl_granularity(mut self, granularity: Duration) -> Self {
        self.ttl_granularity = granularity;
        self
    }

    /// Sets the clock by which the store decides.
    #[must_use]
    pub const fn server_clock(mut self, clock: ServerClock) -> Self {
        self.server_clock = clock;
        self
    }

    /// Sets whether it tells of changes.
    #[must_use]
    pub const fn watch(mut self, watch: bool) -> Self {
        self.watch = watch;
        self
    }

    /// Sets where tokens come from.
    #[must_use]
    pub const fn fence(mut self, fence: FenceSource) -> Self {
        self.fence = fence;
        self
    }
}

// === impl AcquireRequest, RenewRequest, ReleaseRequest ===

impl<'a> AcquireRequest<'a> {
    /// Asks for the lease for so long.
    #[must_use]
    pub const fn new(
        name: &'a LeaseName,
        identity: &'a Identity,
        ttl: Duration,
        payload: &'a Bytes,
    ) -> Self {
        Self { name, identity, ttl, payload, after: None, limit: None }
    }

    /// With a token that is greater than this one, where tokens are counted.
    #[must_use]
    pub const fn after(mut self, seen: Option<FencingToken>) -> Self {
        self.after = seen;
        self
    }

    /// Says how long the asker waits.
    #[must_use]
    pub const fn limit(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }
}

impl<'a> RenewRequest<'a> {
    /// Asks to hold it for so long, and changes nothing else.
    #[must_use]
    pub const fn new(
        name: &'a LeaseName,
        identity: &'a Identity,
        fence: FencingToken,
        ttl: Duration,
    ) -> Self {
        Self { name, identity, fence, ttl, payload: None, memo: None, limit: None }
    }

    /// Changes what the holder says of itself.
    #[must_use]
    pub const fn payload(mut self, payload: &'a Bytes) -> Self {
        self.payload = Some(payload);
        self
    }

    /// Changes what it leaves.
    #[must_use]
    pub const fn memo(mut self, memo: &'a Bytes) -> Self {
        self.memo = Some(memo);
        self
    }

    /// Says how long the asker waits.
    #[must_use]
    pub const fn limit(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }
}

impl<'a> ReleaseRequest<'a> {
    /// Gives it back, and leaves what was left.
    #[must_use]
    pub const fn new(name: &'a LeaseName, identity: &'a Identity, fence: FencingToken) -> Self {
        Self { name, identity, fence, memo: None, limit: None }
    }

    /// Changes what it leaves.
    #[must_use]
    pub const fn memo(mut self, memo: &'a Bytes) -> Self {
        self.memo = Some(memo);
        self
    }

    /// Says how long the asker waits.
    #[must_use]
    pub const fn limit(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }
}

// === impl StoreError ===

impl StoreError {
    /// What it came of.
    #[must_use]
    pub fn cause(&self) -> &(dyn Error + Send + Sync + 'static) {
        match self {
            Self::NotApplied(cause) | Self::Ambiguous(cause) | Self::Fatal(cause) => &**cause,
        }
    }

    /// Whether the call may have had its effect.
    #[must_use]
    pub const fn is_ambiguous(&self) -> bool {
        matches!(self, Self::Ambiguous(_))
    }

    /// Whether it is of no use to ask again.
    #[must_use]
    pub const fn is_fatal(&self) -> bool {
        matches!(self, Self::Fatal(_))
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, cause) = match self {
            Self::NotApplied(cause) => ("not applied", cause),
            Self::Ambiguous(cause) => ("no answer", cause),
            Self::Fatal(cause) => ("fatal", cause),
        };
        write!(f, "the lease store failed, {what}: {cause}")
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(self.cause())
    }
}
