use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use buttress_leadership::{
    AcquireOutcome, AcquireRequest, Changes, Expiry, FenceSource, FencingToken, Identity,
    LeaseClock, LeaseName, LeaseRecord, LeaseStore, Observation, Observations, ReleaseOutcome,
    ReleaseRequest, RenewOutcome, RenewRequest, ServerClock, StoreCapabilities, StoreError,
    no_changes,
};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, Config, api::PostParams};
use tokio::sync::Mutex as AsyncMutex;

use crate::{
    connect::{self, Place, Way},
    error::{Failure, Why},
    listen::released,
    object::{self, Kept, Micros},
};

/// Leases in the API of Kubernetes. Clones share the client, by which calls go one after the other.
///
/// Give each elector a store of its own if a process has several.
///
/// # Errors
///
/// What a call fails with has a [`KubernetesError`](crate::KubernetesError) within, that names the lease and the call,
/// and has no token in it:
///
/// - [`NotApplied`](StoreError::NotApplied): the server could not be reached, or has too much to do (429), or others
///   change the lease all the time;
/// - [`Ambiguous`](StoreError::Ambiguous): the connection ended before the answer came, or the server says (5xx) that it
///   does not know itself;
/// - [`Fatal`](StoreError::Fatal): the token, a right or the namespace is wrong or missing, the name is none that
///   Kubernetes takes, or what stands in the object is no lease.
///
/// # Cancel safety
///
/// A call that is dropped is done, or not. If it is done late, it is done only to what it has seen.
#[derive(Clone)]
pub struct KubernetesStore {
    shared: Arc<Shared>,
}

/// How to open a [`KubernetesStore`].
///
/// ```no_run
/// use buttress_lease_kubernetes::KubernetesOptions;
///
/// # async fn open() -> Result<(), buttress_leadership::StoreError> {
/// let store = KubernetesOptions::infer().await?.namespace("billing").open().await?;
/// # let _ = store;
/// # Ok(())
/// # }
/// ```
pub struct KubernetesOptions {
    way: Way,
    namespace: Option<String>,
    wake: bool,
    clock: LeaseClock,
}

pub(crate) struct Shared {
    place: Place,
    way: Way,
    wake: bool,
    /// Whose call it is. They go one after the other, so that what is seen is not older than what was seen before.
    turn: AsyncMutex<()>,
    /// What candidates see: it is for them to decide that a lease is over.
    observed: Observations,
    /// What this store has written last.
    written: Mutex<HashMap<LeaseName, Kept>>,
    /// Terms of those who have no token, and the number that each has here.
    foreign: Mutex<HashMap<LeaseName, (Foreign, FencingToken)>>,
}

/// A term of somebody who notes no token: whose it is, and when it began.
type Foreign = (Option<Identity>, Micros);

/// So often a call writes over a state that is not the latest any more. Only who changes other things of the object can
/// be quicker more than once or twice.
const TRIES: usize = 8;

// === impl KubernetesStore ===

impl KubernetesStore {
    /// Connects to the cluster of the kubeconfig, or of the pod that it runs in. For more, see [`KubernetesOptions`].
    ///
    /// # Errors
    ///
    /// As [`KubernetesOptions::infer`] and [`KubernetesOptions::open`].
    pub async fn open() -> Result<Self, StoreError> {
        KubernetesOptions::infer().await?.open().await
    }

    /// The namespace that its leases are in.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.shared.place.namespace()
    }
}

impl LeaseStore for KubernetesStore {
    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities::new(Expiry::Observed)
            .ttl_granularity(Duration::from_secs(1))
            .server_clock(ServerClock::None)
            .fence(FenceSource::Revision)
            .watch(self.shared.wake)
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome, StoreError> {
        self.shared.named(request.name, "acquire", self.shared.acquire(request).await)
    }

    async fn renew(&self, request: RenewRequest<'_>) -> Result<RenewOutcome, StoreError> {
        self.shared.named(request.name, "renew", self.shared.renew(request).await)
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseOutcome, StoreError> {
        self.shared.named(request.name, "release", self.shared.release(request).await)
    }

    async fn inspect(&self, name: &LeaseName) -> Result<Option<LeaseRecord>, StoreError> {
        self.shared.named(name, "inspect", self.shared.inspect(name).await)
    }

    fn changes(&self, name: &LeaseName) -> Changes {
        if !self.shared.wake {
            return no_changes();
        }
        released(Arc::clone(&self.shared), name.clone())
    }
}

impl fmt::Debug for KubernetesStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubernetesStore")
            .field("namespace", &self.namespace())
            .finish_non_exhaustive()
    }
}

// === impl KubernetesOptions ===

impl KubernetesOptions {
    /// Those of a client as it is. Have it for leases alone: with the work's, they wait in its queue.
    ///
    /// Turn [`Config::default_retry`] off, which is on unless set: the elector repeats by itself, and a client that does so
    /// for minutes keeps it from that.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self::by(Way::Client(client))
    }

    /// Those of a client of the store's own, by that configuration: it connects within two seconds, repeats nothing, and
    /// says that it is `leader-election` unless `config` says who it is. It has the TLS that `kube` is built with.
    #[must_use]
    pub fn of(config: Config) -> Self {
        Self::by(Way::of(config))
    }

    /// The same, by the configuration of where it runs: the kubeconfig, or the pod's.
    ///
    /// # Errors
    ///
    /// [`Fatal`](StoreError::Fatal) if there is neither.
    pub async fn infer() -> Result<Self, StoreError> {
        let config = Config::infer().await.map_err(kube::Error::InferConfig);
        config.map(Self::of).map_err(|error| {
            Failure::from(Why::from(error)).into_error(&Place::unknown(), None, "open")
        })
    }

    /// The same, of a server that wants no token, as `http://127.0.0.1:8001` of `kubectl proxy`. The namespace is
    /// `default` unless [set](Self::namespace).
    ///
    /// # Errors
    ///
    /// [`Fatal`](StoreError::Fatal) if `server` is no URL. The error quotes nothing of it: that may be a password.
    pub fn parse(server: &str) -> Result<Self, StoreError> {
        let url = server.parse::<http::Uri>().ok();
        let url = url.filter(connect::is_server);
        url.map(|url| Self::of(Config::new(url))).ok_or_else(|| {
            let why = Failure::from(connect::NO_SERVER);
            why.into_error(&Place::unknown(), None, "open")
        })
    }

    fn by(way: Way) -> Self {
        Self { way, namespace: None, wake: true, clock: LeaseClock::system() }
    }

    /// The namespace that leases are in: the configuration's unless set, which is the pod's.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Whether candidates watch, so that the server wakes them at once when a lease is released. They do unless set:
    /// without they look more often. It needs the right to.
    #[must_use]
    pub fn wake(mut self, wake: bool) -> Self {
        self.wake = wake;
        self
    }

    /// The clock by which candidates [observe](Expiry::Observed), the machine's unless set: for tests, which let it
    /// [jump](LeaseClock::suspend).
    #[must_use]
    pub fn clock(mut self, clock: LeaseClock) -> Self {
        self.clock = clock;
        self
    }

    /// Connects, and looks whether there is such an API.
    ///
    /// # Errors
    ///
    /// [`Fatal`](StoreError::Fatal) if the token is wrong, there is no TLS and has to be, or what answers is no API server.
    /// [`NotApplied`](StoreError::NotApplied) if nobody answers, or not for now. Rights and the namespace show with the
    /// first call.
    pub async fn open(self) -> Result<KubernetesStore, StoreError> {
        let store = self.open_later();
        let shared = &store.shared;
        shared.look().await.map_err(|failure| failure.into_error(&shared.place, None, "open"))?;
        Ok(store)
    }

    /// Does so with the first call, and with the next until it has worked: for a process that is to start while the
    /// server is down.
    #[must_use]
    pub fn open_later(self) -> KubernetesStore {
        let place = Place::of(&self.way, self.namespace);
        KubernetesStore {
            shared: Arc::new(Shared {
                place,
                way: self.way,
                wake: self.wake,
                turn: AsyncMutex::default(),
                observed: Observations::new(self.clock),
                written: Mutex::default(),
                foreign: Mutex::default(),
            }),
        }
    }
}

impl fmt::Debug for KubernetesOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KubernetesOptions")
            .field("namespace", &self.namespace)
            .field("wake", &self.wake)
            .finish_non_exhaustive()
    }
}

// === impl Shared ===

impl Shared {
    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome, Failure> {
        let _turn = self.turn.lock().await;
        let (name, leases) = (request.name, self.leases(request.name)?);
        let mut has_written = false;
        for _ in 0..TRIES {
            let found = match self.get(&leases, name).await {
                // A client that repeats by itself may be told of a conflict with what it has done.
                Err(failure) if has_written => return Err(failure.after_effect()),
                found => found?,
            };
            // It has to be there first, and to have a number: what a term writes over is its token.
            let found = match found {
                Some(found) => Some(found),
                None => self.create(&leases, name).await?,
            };
            let Some(found) = found else { continue };
            let seen = self.see(name, &found);
            if !found.is_over_for(seen) {
                return Ok(AcquireOutcome::Held(found.record(name, seen)));
            }
            has_written = true;
            let fence = found.next_fence(request.after)?;
            if let Some(taken) = self.put(&leases, name, found.taken(&request, fence)).await? {
                if !taken.is_of(request.identity, fence) {
                    return Err("it has not kept what was written".into());
                }
                return Ok(AcquireOutcome::Acquired(self.record(name, taken)));
            }
        }
        Err(BUSY.into())
    }

    async fn renew(&self, request: RenewRequest<'_>) -> Result<RenewOutcome, Failure> {
        let _turn = self.turn.lock().await;
        let RenewRequest { name, identity, fence, .. } = request;
        let written = self.write(name, identity, fence, |kept| kept.renewed(&request)).await?;
        Ok(match written {
            Ok(renewed) => RenewOutcome::Renewed(self.record(name, renewed)),
            Err(found) => RenewOutcome::Lost(found.and_then(|found| self.had(name, found))),
        })
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseOutcome, Failure> {
        let _turn = self.turn.lock().await;
        let ReleaseRequest { name, identity, fence, .. } = request;
        let memo = request.memo.map(|memo| &memo[..]);
        let written = self.write(name, identity, fence, |kept| kept.released(memo)).await?;
        Ok(match written {
            Ok(_) => ReleaseOutcome::Released,
            // It was given back before, and the answer was lost.
            Err(Some(found)) if found.holder.is_none() && found.fence() == Some(fence) => {
                ReleaseOutcome::Released
            }
            Err(found) => ReleaseOutcome::NotHolder(found.and_then(|found| self.had(name, found))),
        })
    }

    async fn inspect(&self, name: &LeaseName) -> Result<Option<LeaseRecord>, Failure> {
        let _turn = self.turn.lock().await;
        let found = self.get(&self.leases(name)?, name).await?;
        Ok(found.and_then(|found| self.had(name, found)))
    }

    /// Writes over the lease of who holds it: as this store has written it last, or as it is after others have. If it is
    /// not theirs, it is answered with what it is.
    async fn write(
        &self,
        name: &LeaseName,
        who: &Identity,
        fence: FencingToken,
        change: impl Fn(Kept) -> Lease,
    ) -> Result<Result<Kept, Option<Kept>>, Failure> {
        let leases = self.leases(name)?;
        let last = self.written().remove(name).filter(|last| last.is_of(who, fence));
        let mut found = match last {
            Some(last) => Some(last),
            None => self.get(&leases, name).await?,
        };
        for _ in 0..TRIES {
            match found {
                Some(kept) if kept.is_of(who, fence) => {
                    if let Some(written) = self.put(&leases, name, change(kept)).await? {
                        return Ok(Ok(written));
                    }
                }
                found => return Ok(Err(found)),
            }
            found = self.get(&leases, name).await.map_err(Failure::after_effect)?;
        }
        Err(BUSY.into())
    }

    /// What there is of it, whether or not anybody ever held it.
    async fn get(&self, leases: &Api<Lease>, name: &LeaseName) -> Result<Option<Kept>, Failure> {
        match self.way.carry(leases.get(name.as_str())).await {
            Ok(lease) => Ok(Some(Kept::of(lease)?)),
            Err(why) if why.is_not_found(name) => Ok(None),
            Err(why) => Err(why.into()),
        }
    }

    /// One that nobody holds, unless somebody was quicker. If it is not known whether it is there, nobody holds it still.
    async fn create(&self, leases: &Api<Lease>, name: &LeaseName) -> Result<Option<Kept>, Failure> {
        let lease = object::vacant(name);
        match self.way.carry(leases.create(&PostParams::default(), &lease)).await {
            Ok(lease) => Ok(Some(Kept::of(lease)?)),
            Err(why) if why.is_conflict() => Ok(None),
            Err(why) => Err(why.into()),
        }
    }

    /// Writes it over the state that it was made from, unless that is not the latest.
    async fn put(
        &self,
        leases: &Api<Lease>,
        name: &LeaseName,
        lease: Lease,
    ) -> Result<Option<Kept>, Failure> {
        let params = PostParams::default();
        match self.way.carry(leases.replace(name.as_str(), &params, &lease)).await {
            Ok(lease) => {
                let kept = Kept::of(lease).map_err(|why| Failure::from(why).after_effect())?;
                self.written().insert(name.clone(), kept.clone());
                Ok(Some(kept))
            }
            Err(why) if why.is_conflict() || why.is_not_found(name) => Ok(None),
            Err(why) => Err(Failure::sent(why)),
        }
    }

    /// What is told of it. Nothing, if nobody ever held it.
    fn had(&self, name: &LeaseName, found: Kept) -> Option<LeaseRecord> {
        found.was_held().then(|| self.record(name, found))
    }

    fn record(&self, name: &LeaseName, kept: Kept) -> LeaseRecord {
        let seen = self.see(name, &kept);
        kept.record(name, seen)
    }

    fn see(&self, name: &LeaseName, kept: &Kept) -> Observation {
        let fence = kept.fence().unwrap_or_else(|| self.foreign_fence(name, kept));
        self.observed.see(name, fence, kept.renewal())
    }

    /// The same for a whole term, as long as this store has seen no other.
    fn foreign_fence(&self, name: &LeaseName, kept: &Kept) -> FencingToken {
        let mut all = lock(&self.foreign);
        let term = (kept.holder.clone(), kept.acquired);
        match all.get(name) {
            Some((same, fence)) if *same == term => *fence,
            _ => {
                let fence = kept.foreign_fence();
                all.insert(name.clone(), (term, fence));
                fence
            }
        }
    }

    fn written(&self) -> MutexGuard<'_, HashMap<LeaseName, Kept>> {
        lock(&self.written)
    }

    fn leases(&self, name: &LeaseName) -> Result<Api<Lease>, Why> {
        self.check(name)?;
        self.way.leases(&self.place)
    }

    /// By connections that no call has.
    pub(crate) fn apart(&self, name: &LeaseName) -> Result<Api<Lease>, Why> {
        self.check(name)?;
        self.way.apart(&self.place)
    }

    /// What is none would be another path, if not a refusal.
    fn check(&self, name: &LeaseName) -> Result<(), Why> {
        object::check_namespace(self.place.namespace())?;
        object::check_name(name)
    }

    /// Whether there is such an API.
    async fn look(&self) -> Result<(), Failure> {
        object::check_namespace(self.place.namespace())?;
        let client = self.way.client()?;
        let group =
            self.way.carry(client.list_api_group_resources("coordination.k8s.io/v1")).await?;
        if group.resources.iter().all(|resource| resource.name != "leases") {
            return Err("it has no leases".into());
        }
        Ok(())
    }

    fn named<T>(
        &self,
        name: &LeaseName,
        operation: &'static str,
        done: Result<T, Failure>,
    ) -> Result<T, StoreError> {
        done.map_err(|failure| failure.into_error(&self.place, Some(name), operation))
    }
}

/// It was not done: each write was refused because of another one.
const BUSY: Why = Why::Passing("others change it all the time");

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}
