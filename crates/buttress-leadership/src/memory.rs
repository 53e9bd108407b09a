use std::{
    collections::HashMap,
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures_core::Stream;
use tokio::sync::{Notify, futures::OwnedNotified};

use crate::{
    AcquireOutcome, AcquireRequest, BootTime, Changes, Expiry, FenceSource, FencingToken, Identity,
    LeaseClock, LeaseName, LeaseRecord, LeaseStore, ReleaseOutcome, ReleaseRequest, RenewOutcome,
    RenewRequest, StoreCapabilities, StoreError, StoreTime, no_changes,
};

/// A store in this process's memory: for tests, and for electors of one process. Clones share it.
///
/// It keeps to all rules of [`LeaseStore`], and forgets everything with the process. A
/// [`FaultyStore`](crate::FaultyStore) around it does what stores do at their worst.
///
/// ```
/// use buttress_leadership::{AcquireOutcome, AcquireRequest, Identity, LeaseName, LeaseStore, MemoryStore};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (store, name) = (MemoryStore::new(), LeaseName::new("a")?);
/// let (me, you, ttl) = (Identity::generate(), Identity::generate(), Duration::from_secs(15));
/// let payload = "10.0.0.7:8080".into();
/// let mine = store.acquire(AcquireRequest::new(&name, &me, ttl, &payload)).await?;
/// assert!(matches!(mine, AcquireOutcome::Acquired(_)));
/// let theirs = store.acquire(AcquireRequest::new(&name, &you, ttl, &payload)).await?;
/// let AcquireOutcome::Held(record) = theirs else { unreachable!() };
/// assert!(record.is_held_by(&me));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

struct Shared {
    clock: LeaseClock,
    capabilities: StoreCapabilities,
    longest: Duration,
    rows: Mutex<HashMap<LeaseName, Row>>,
    changed: Arc<Notify>,
}

/// What is kept of a lease. The token and the memo outlive the holder.
struct Row {
    holder: Option<Identity>,
    fence: FencingToken,
    ttl: Duration,
    acquired: BootTime,
    renewed: BootTime,
    expires: BootTime,
    payload: Bytes,
    memo: Bytes,
    revision: u64,
}

/// Wakes with each change.
struct Changed {
    notify: Arc<Notify>,
    next: Pin<Box<OwnedNotified>>,
}

// === impl MemoryStore ===

impl MemoryStore {
    /// An empty store, by the [default clock](LeaseClock::default).
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(LeaseClock::default())
    }

    /// An empty store by that clock. It need not be the electors': each of them has its own, as has a store.
    #[must_use]
    pub fn with_clock(clock: LeaseClock) -> Self {
        let capabilities = StoreCapabilities::new(Expiry::Server).watch(true);
        Self::made(clock, capabilities, Duration::MAX)
    }

    /// The same, empty, and it wakes nobody: candidates learn of a release when they look.
    #[must_use]
    pub fn without_watch(self) -> Self {
        let capabilities = self.shared.capabilities.watch(false);
        Self::made(self.shared.clock.clone(), capabilities, self.shared.longest)
    }

    /// The same, empty, and it grants no lease that is longer, whatever is asked.
    #[must_use]
    pub fn grant_at_most(self, longest: Duration) -> Self {
        Self::made(self.shared.clock.clone(), self.shared.capabilities, longest)
    }

    /// The same, empty, and its tokens are numbers of its writes: once it has [forgotten](Self::clear) them, they begin
    /// anew, whatever candidates have seen. See [`FenceSource::Revision`].
    #[must_use]
    pub fn numbering_writes(self) -> Self {
        let capabilities = self.shared.capabilities.fence(FenceSource::Revision);
        Self::made(self.shared.clock.clone(), capabilities, self.shared.longest)
    }

    fn made(clock: LeaseClock, capabilities: StoreCapabilities, longest: Duration) -> Self {
        let (rows, changed) = (Mutex::default(), Arc::default());
        Self { shared: Arc::new(Shared { clock, capabilities, longest, rows, changed }) }
    }

    /// Forgets everything, tokens too, as a store that comes back without its data.
    pub fn clear(&self) {
        self.rows().clear();
        self.shared.changed.notify_waiters();
    }

    /// Takes the lease away from whoever holds it, as somebody who deletes the record by hand. The token
    /// stays.
    pub fn evict(&self, name: &LeaseName) {
        if let Some(row) = self.rows().get_mut(name) {
            row.vacate();
        }
        self.shared.changed.notify_waiters();
    }

    fn rows(&self) -> MutexGuard<'_, HashMap<LeaseName, Row>> {
        // Nothing of a user's runs under it.
        self.shared.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, request: &AcquireRequest<'_>) -> AcquireOutcome {
        let mut rows = self.rows();
        let now = self.shared.clock.now();
        let name = request.name;
        let before = rows.get(name);
        if let Some(row) = before.filter(|row| row.is_held(now)) {
            return AcquireOutcome::Held(row.read(name, now));
        }
        let counts = self.shared.capabilities.fence == FenceSource::Counter;
        let seen = request.after.filter(|_| counts);
        let last = before.map(|row| row.fence).max(seen).map_or(0, FencingToken::get);
        let ttl = request.ttl.min(self.shared.longest);
        let row = Row {
            holder: Some(request.identity.clone()),
            fence: FencingToken::new(last.saturating_add(1)).expect("one more is not zero"),
            ttl,
            acquired: now,
            renewed: now,
            expires: now + ttl,
            payload: request.payload.clone(),
            memo: before.map(|row| row.memo.clone()).unwrap_or_default(),
            revision: before.map_or(0, |row| row.revision) + 1,
        };
        let record = row.read(name, now);
        rows.insert(name.clone(), row);
        AcquireOutcome::Acquired(record)
    }

    fn prolong(&self, request: &RenewRequest<'_>) -> RenewOutcome {
        let mut rows = self.rows();
        let now = self.shared.clock.now();
        let Some(row) = rows.get_mut(request.name) else { return RenewOutcome::Lost(None) };
        if !row.is_held(now) || !row.is_of(request.identity, request.fence) {
            return RenewOutcome::Lost(Some(row.read(request.name, now)));
        }
        row.ttl = request.ttl.min(self.shared.longest);
        (row.renewed, row.expires) = (now, now + row.ttl);
        row.revision += 1;
        if let Some(payload) = request.payload {
            row.payload = payload.clone();
        }
        if let Some(memo) = request.memo {
            row.memo = memo.clone();
        }
        RenewOutcome::Renewed(row.read(request.name, now))
    }

    fn give_back(&self, request: &ReleaseRequest<'_>) -> ReleaseOutcome {
        let mut rows = self.rows();
        let now = self.shared.clock.now();
        let Some(row) = rows.get_mut(request.name) else { return ReleaseOutcome::NotHolder(None) };
        if row.is_of(request.identity, request.fence) {
            row.vacate();
            if let Some(memo) = request.memo {
                row.memo = memo.clone();
            }
            drop(rows);
            self.shared.changed.notify_waiters();
            return ReleaseOutcome::Released;
        }
        if row.holder.is_none() && row.fence == request.fence {
            return ReleaseOutcome::Released;
        }
        ReleaseOutcome::NotHolder(Some(row.read(request.name, now)))
    }

    fn look(&self, name: &LeaseName) -> Option<LeaseRecord> {
        let rows = self.rows();
        let now = self.shared.clock.now();
        rows.get(name).map(|row| row.read(name, now))
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl LeaseStore for MemoryStore {
    fn capabilities(&self) -> StoreCapabilities {
        self.shared.capabilities
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome, StoreError> {
        Ok(self.take(&request))
    }

    async fn renew(&self, request: RenewRequest<'_>) -> Result<RenewOutcome, StoreError> {
        Ok(self.prolong(&request))
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseOutcome, StoreError> {
        Ok(self.give_back(&request))
    }

    async fn inspect(&self, name: &LeaseName) -> Result<Option<LeaseRecord>, StoreError> {
        Ok(self.look(name))
    }

    fn changes(&self, _: &LeaseName) -> Changes {
        if !self.shared.capabilities.watch {
            return no_changes();
        }
        let notify = Arc::clone(&self.shared.changed);
        let next = Box::pin(Arc::clone(&notify).notified_owned());
        Box::pin(Changed { notify, next })
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("clock", &self.shared.clock).finish_non_exhaustive()
    }
}

// === impl Row ===

impl Row {
    fn is_held(&self, now: BootTime) -> bool {
        self.holder.is_some() && now < self.expires
    }

    fn is_of(&self, identity: &Identity, fence: FencingToken) -> bool {
        self.holder.as_ref() == Some(identity) && self.fence == fence
    }

    fn vacate(&mut self) {
        self.holder = None;
        self.payload = Bytes::new();
        self.revision += 1;
    }

    fn read(&self, name: &LeaseName, now: BootTime) -> LeaseRecord {
        let at = |time: BootTime| StoreTime::from_nanos(time.as_nanos());
        let mut record = LeaseRecord::vacant(name.clone(), self.fence, at(now));
        record.holder.clone_from(&self.holder);
        record.granted_ttl = self.ttl;
        record.acquired_at = at(self.acquired);
        record.renewed_at = at(self.renewed);
        record.expires_at = if self.holder.is_some() { at(self.expires) } else { at(now) };
        record.payload = self.payload.clone();
        record.memo = self.memo.clone();
        record.revision = self.revision;
        record
    }
}

// === impl Changed ===

impl Stream for Changed {
    type Item = ();

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<()>> {
        ready!(self.next.as_mut().poll(cx));
        // From here on: what changes before the next poll is told then.
        self.next = Box::pin(Arc::clone(&self.notify).notified_owned());
        Poll::Ready(Some(()))
    }
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use futures_util::{FutureExt, StreamExt};

    use super::*;

    const TTL: Duration = Duration::from_secs(15);

    struct Fixture {
        store: MemoryStore,
        clock: LeaseClock,
        name: LeaseName,
        payload: Bytes,
    }

    fn fixture() -> Fixture {
        let clock = LeaseClock::simulated();
        let store = MemoryStore::with_clock(clock.clone());
        Fixture { store, clock, name: LeaseName::new("a").unwrap(), payload: Bytes::from("x") }
    }

    impl Fixture {
        fn acquire(&self, who: &Identity) -> AcquireOutcome {
            self.store.take(&AcquireRequest::new(&self.name, who, TTL, &self.payload))
        }

        fn acquired(&self, who: &Identity) -> LeaseRecord {
            match self.acquire(who) {
                AcquireOutcome::Acquired(record) => record,
                AcquireOutcome::Held(record) => panic!("held: {record:?}"),
            }
        }

        fn renews(&self, who: &Identity, fence: FencingToken) -> bool {
            let request = RenewRequest::new(&self.name, who, fence, TTL);
            matches!(self.store.prolong(&request), RenewOutcome::Renewed(_))
        }

        fn release(&self, who: &Identity, fence: FencingToken) -> ReleaseOutcome {
            self.store.give_back(&ReleaseRequest::new(&self.name, who, fence))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_of_two_gets_it_and_the_other_is_told_who() {
        let (on, me, you) = (fixture(), Identity::generate(), Identity::generate());
        assert_eq!(on.store.look(&on.name), None);
        let mine = on.acquired(&me);
        assert_eq!((mine.granted_ttl, mine.remaining()), (TTL, TTL));
        let AcquireOutcome::Held(seen) = on.acquire(&you) else { panic!("it is held") };
        assert!(seen.is_held_by(&me) && seen.payload == "x");
        on.clock.suspend(Duration::from_secs(5));
        let AcquireOutcome::Held(again) = on.acquire(&me) else { panic!("it is held") };
        assert_eq!(again.remaining(), Duration::from_secs(10), "to ask again renews nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn every_term_has_a_greater_token_however_the_last_one_ended() {
        let (on, me) = (fixture(), Identity::generate());
        let mut last = on.acquired(&me).fence;
        let mut next = |how: &str| {
            let fence = on.acquired(&me).fence;
            assert!(fence > last, "{how}");
            last = fence;
            fence
        };
        on.clock.suspend(TTL);
        let fence = next("expired");
        assert_eq!(on.release(&me, fence), ReleaseOutcome::Released);
        next("released");
        on.store.evict(&on.name);
        next("deleted");
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_expired_is_renewed_by_nobody() {
        let (on, me) = (fixture(), Identity::generate());
        let fence = on.acquired(&me).fence;
        on.clock.suspend(TTL - Duration::from_nanos(1));
        assert!(on.renews(&me, fence));
        assert!(!on.renews(&Identity::generate(), fence));
        assert!(!on.renews(&me, FencingToken::new(fence.get() + 1).unwrap()));
        on.clock.suspend(TTL);
        assert!(!on.renews(&me, fence), "at the very instant");
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_gives_back_nothing_but_ones_own() {
        let (on, me, you) = (fixture(), Identity::generate(), Identity::generate());
        let old = on.acquired(&me).fence;
        on.clock.suspend(TTL);
        let new = on.acquired(&you).fence;
        assert!(matches!(on.release(&me, old), ReleaseOutcome::NotHolder(Some(_))));
        assert!(on.renews(&you, new));
        let memo = Bytes::from("why");
        let request = ReleaseRequest::new(&on.name, &you, new).memo(&memo);
        assert_eq!(on.store.give_back(&request), ReleaseOutcome::Released);
        assert_eq!(on.release(&you, new), ReleaseOutcome::Released, "twice is as once");
        assert!(!on.renews(&you, new));
        assert_eq!(on.acquired(&me).memo, memo, "it outlives the term");
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_between_two_polls_is_told() {
        let (on, me) = (fixture(), Identity::generate());
        let mut changes = on.store.changes(&on.name);
        assert!(changes.next().now_or_never().is_none());
        let fence = on.acquired(&me).fence;
        on.release(&me, fence);
        assert_eq!(changes.next().now_or_never(), Some(Some(())));
        assert!(changes.next().now_or_never().is_none());
        let silent = MemoryStore::new().without_watch();
        let mut never = silent.changes(&on.name);
        silent.clear();
        assert!(never.next().now_or_never().is_none());
    }
}
