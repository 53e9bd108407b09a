use std::{fmt, pin::Pin, sync::Arc};

use crate::{
    AcquireOutcome, AcquireRequest, Changes, LeaseName, LeaseRecord, LeaseStore, ReleaseOutcome,
    ReleaseRequest, RenewOutcome, RenewRequest, StoreCapabilities, StoreError,
};

/// A store of whatever type, for who chooses it at run time. Clones share it.
///
/// It costs an allocation a call, which is nothing beside what a store does.
///
/// ```
/// use buttress_leadership::{ErasedStore, MemoryStore};
///
/// let by_url = |url: &str| match url {
///     "memory:" => Some(ErasedStore::new(MemoryStore::new())),
///     _ => None,
/// };
/// assert!(by_url("memory:").is_some());
/// ```
#[derive(Clone)]
pub struct ErasedStore(Arc<dyn Dyn>);

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// [`LeaseStore`], with its futures boxed.
trait Dyn: Send + Sync {
    fn capabilities(&self) -> StoreCapabilities;
    fn acquire<'a>(&'a self, request: AcquireRequest<'a>) -> Answer<'a, AcquireOutcome>;
    fn renew<'a>(&'a self, request: RenewRequest<'a>) -> Answer<'a, RenewOutcome>;
    fn release<'a>(&'a self, request: ReleaseRequest<'a>) -> Answer<'a, ReleaseOutcome>;
    fn inspect<'a>(&'a self, name: &'a LeaseName) -> Answer<'a, Option<LeaseRecord>>;
    fn changes(&self, name: &LeaseName) -> Changes;
}

impl<S: LeaseStore> Dyn for S {
    fn capabilities(&self) -> StoreCapabilities {
        LeaseStore::capabilities(self)
    }

    fn acquire<'a>(&'a self, request: AcquireRequest<'a>) -> Answer<'a, AcquireOutcome> {
        Box::pin(LeaseStore::acquire(self, request))
    }

    fn renew<'a>(&'a self, request: RenewRequest<'a>) -> Answer<'a, RenewOutcome> {
        Box::pin(LeaseStore::renew(self, request))
    }

    fn release<'a>(&'a self, request: ReleaseRequest<'a>) -> Answer<'a, ReleaseOutcome> {
        Box::pin(LeaseStore::release(self, request))
    }

    fn inspect<'a>(&'a self, name: &'a LeaseName) -> Answer<'a, Option<LeaseRecord>> {
        Box::pin(LeaseStore::inspect(self, name))
    }

    fn changes(&self, name: &LeaseName) -> Changes {
        LeaseStore::changes(self, name)
    }
}

impl ErasedStore {
    /// That store.
    pub fn new<S: LeaseStore>(store: S) -> Self {
        Self(Arc::new(store))
    }
}

impl LeaseStore for ErasedStore {
    fn capabilities(&self) -> StoreCapabilities {
        self.0.capabilities()
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome, StoreError> {
        self.0.acquire(request).await
    }

    async fn renew(&self, request: RenewRequest<'_>) -> Result<RenewOutcome, StoreError> {
        self.0.renew(request).await
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseOutcome, StoreError> {
        self.0.release(request).await
    }

    async fn inspect(&self, name: &LeaseName) -> Result<Option<LeaseRecord>, StoreError> {
        self.0.inspect(name).await
    }

    fn changes(&self, name: &LeaseName) -> Changes {
        self.0.changes(name)
    }
}

impl fmt::Debug for ErasedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ErasedStore").finish()
    }
}
