use std::{
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use buttress_leadership::{
    AcquireOutcome, AcquireRequest, Changes, Expiry, FenceSource, LeaseClock, LeaseName,
    LeaseRecord, LeaseStore, ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest,
    ServerClock, StoreCapabilities, StoreError, no_changes,
};
use etcd_client::WatchStream;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::Mutex,
    time::timeout,
};

use crate::{
    connect::{self, Endpoint, Handshake, Place},
    error::{Failure, Why},
    keys::{self, Keys, Row},
    line::{Line, Slot, Wire},
    listen::released,
    times::{Clock, Left},
};

/// Leases in etcd. Clones share its connection, on which calls go one after the other.
///
/// Give each elector a store of its own if a process has several.
///
/// # Errors
///
/// What a call fails with has an [`EtcdError`](crate::EtcdError) within, that names the cluster and the call, and
/// has no password in it:
///
/// - [`NotApplied`](StoreError::NotApplied): no member could be reached, or what failed was a question;
/// - [`Ambiguous`](StoreError::Ambiguous): the answer did not come, or etcd does not know either: it has no leader,
///   has another one since, is out of room, or took too long;
/// - [`Fatal`](StoreError::Fatal): the password or a right is wrong or missing, or what stands in a key is no
///   lease.
///
/// # Cancel safety
///
/// A call that is dropped is done, or not. It takes its connection with it. What it had been granted by etcd and
/// not yet used ends by itself, when the lease would have.
#[derive(Clone)]
pub struct EtcdStore {
    shared: Arc<Shared>,
}

/// How to open an [`EtcdStore`].
///
/// ```no_run
/// use buttress_lease_etcd::EtcdOptions;
///
/// # async fn open(password: &str) -> Result<(), buttress_leadership::StoreError> {
/// let store = EtcdOptions::parse("etcd-0.etcd:2379,etcd-1.etcd:2379,etcd-2.etcd:2379")?
///     .user("billing", password)
///     .prefix("billing/")
///     .open()
///     .await?;
/// # let _ = store;
/// # Ok(())
/// # }
/// ```
pub struct EtcdOptions {
    endpoints: Vec<Endpoint>,
    user: Option<(String, String)>,
    prefix: String,
    tls: Option<Handshake>,
    wake: bool,
}

pub(crate) struct Shared {
    place: Place,
    options: EtcdOptions,
    /// Whose turn it is to be connected to.
    turn: AtomicUsize,
    clock: Clock,
    slot: Mutex<Slot>,
}

/// Longer than a cluster in reach takes to let us in, and shorter than the elector's limit for a call.
const LONGEST: Duration = Duration::from_secs(2);
/// One member of many has that much of it.
const SHORTEST: Duration = Duration::from_millis(500);
/// A century: what is longer has no end that etcd can count to, sooner or later.
const LONGEST_TTL: i64 = 100 * 366 * 86_400;

// === impl EtcdStore ===

impl EtcdStore {
    /// Connects to a member of the cluster. For more, see [`EtcdOptions`].
    ///
    /// # Errors
    ///
    /// As [`EtcdOptions::parse`] and [`EtcdOptions::open`].
    pub async fn open(endpoints: &str) -> Result<Self, StoreError> {
        EtcdOptions::parse(endpoints)?.open().await
    }

    /// The members of the cluster, each as `host:port`, with commas between.
    #[must_use]
    pub fn server(&self) -> &str {
        self.shared.place.as_str()
    }

    /// The key that is there while somebody holds that lease. The revision that it was created at is the token: what
    /// is written to the same etcd can be compared with it, in one transaction.
    #[must_use]
    pub fn key(&self, name: &LeaseName) -> String {
        self.shared.keys(name).lease
    }
}

impl LeaseStore for EtcdStore {
    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities::new(Expiry::Server)
            // One and a half times the election timeout of the members, rounded up, that is not set.
            .min_ttl(Duration::from_secs(2))
            .ttl_granularity(Duration::from_secs(1))
            .server_clock(ServerClock::Untold)
            .fence(FenceSource::Revision)
            .watch(self.shared.options.wake)
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome, StoreError> {
        self.shared.named("acquire", self.shared.acquire(request).await)
    }

    async fn renew(&self, request: RenewRequest<'_>) -> Result<RenewOutcome, StoreError> {
        self.shared.named("renew", self.shared.renew(request).await)
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseOutcome, StoreError> {
        self.shared.named("release", self.shared.release(request).await)
    }

    async fn inspect(&self, name: &LeaseName) -> Result<Option<LeaseRecord>, StoreError> {
        self.shared.named("inspect", self.shared.inspect(name).await)
    }

    fn changes(&self, name: &LeaseName) -> Changes {
        if !self.shared.options.wake {
            return no_changes();
        }
        released(Arc::clone(&self.shared), name.clone())
    }
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdStore").field("server", &self.server()).finish_non_exhaustive()
    }
}

// === impl EtcdOptions ===

impl EtcdOptions {
    /// What all keys begin with.
    pub const DEFAULT_PREFIX: &str = "buttress/";

    /// Those of a cluster of these members, with commas between: each as `http://host:port`, `https://host:port` or
    /// `host:port`. The port is 2379 unless it is there.
    ///
    /// # Errors
    ///
    /// [`Fatal`](StoreError::Fatal) if they are none. The error quotes nothing of it: that may be a password.
    pub fn parse(endpoints: &str) -> Result<Self, StoreError> {
        let parsed = endpoints.split(',').map(str::parse).collect::<Result<_, &str>>();
        let endpoints =
            parsed.map_err(|why| Failure::from(why).into_error(&Place::unknown(), "open"))?;
        let prefix = Self::DEFAULT_PREFIX.to_owned();
        Ok(Self { endpoints, user: None, prefix, tls: None, wake: true })
    }

    /// Who we are to the cluster. Nobody unless set.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.user = Some((name.to_owned(), password.to_owned()));
        self
    }

    /// What all keys begin with, ["buttress/"](Self::DEFAULT_PREFIX) unless set. All who share a lease are to have
    /// the same.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.prefix);
        self
    }

    /// Makes TLS of each connection: `handshake` is handed the member's host and a connection, and gives back what to
    /// speak over. A server without TLS is not spoken to then. Have it offer the protocol `h2` (ALPN): etcd wants it.
    ///
    /// ```no_run
    /// use std::sync::Arc;
    ///
    /// use buttress_lease_etcd::EtcdOptions;
    /// use rustls::pki_types::ServerName;
    /// use tokio_rustls::TlsConnector;
    ///
    /// # async fn open(mut config: rustls::ClientConfig) -> Result<(), Box<dyn std::error::Error>> {
    /// config.alpn_protocols = vec![b"h2".to_vec()];
    /// let tls = TlsConnector::from(Arc::new(config));
    /// let store = EtcdOptions::parse("https://etcd.internal:2379")?
    ///     .tls(move |host, tcp| {
    ///         let tls = tls.clone();
    ///         async move {
    ///             let name = ServerName::try_from(host).map_err(std::io::Error::other)?;
    ///             tls.connect(name, tcp).await
    ///         }
    ///     })
    ///     .open()
    ///     .await?;
    /// # let _ = store;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn tls<F, T, S>(mut self, handshake: F) -> Self
    where
        F: Fn(String, TcpStream) -> T + Send + Sync + 'static,
        T: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        self.tls = Some(Box::new(move |host, tcp| {
            let shaking = handshake(host, tcp);
            Box::pin(async move { Ok(Box::new(shaking.await?) as connect::Stream) })
        }));
        self
    }

    /// Whether candidates have a second connection, on which the server wakes them at once when a lease is
    /// released or has ended. They do unless set: without they look more often.
    #[must_use]
    pub fn wake(mut self, wake: bool) -> Self {
        self.wake = wake;
        self
    }

    /// Connects to a member, and looks whether it can be asked.
    ///
    /// # Errors
    ///
    /// [`Fatal`](StoreError::Fatal) if the password is wrong or missing. [`NotApplied`](StoreError::NotApplied) if
    /// no member can be reached, or none knows of a leader of the cluster.
    pub async fn open(self) -> Result<EtcdStore, StoreError> {
        let store = self.open_later();
        let line = store.shared.line().await.map(drop);
        store.shared.named("open", line)?;
        Ok(store)
    }

    /// Does so with the first call, and with the next until it has worked: for a process that is to start while
    /// its cluster is down.
    #[must_use]
    pub fn open_later(self) -> EtcdStore {
        let place = Place::of(&self.endpoints);
        let clock = Clock::new(LeaseClock::system());
        let (turn, slot) = (AtomicUsize::default(), Mutex::default());
        EtcdStore { shared: Arc::new(Shared { place, options: self, turn, clock, slot }) }
    }
}

impl fmt::Debug for EtcdOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdOptions")
            .field("server", &Place::of(&self.endpoints).as_str())
            .field("user", &self.user.as_ref().map(|(name, _)| name))
            .field("prefix", &self.prefix)
            .field("wake", &self.wake)
            .finish_non_exhaustive()
    }
}

// === impl Shared ===

impl Shared {
    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome, Failure> {
        let line = &mut self.line().await?;
        let (name, keys) = (request.name, self.keys(request.name));
        // First, so that who is refused leaves no lease of etcd behind.
        let seen = keys::look(line, &keys).await?;
        if let Some(held) = self.held(line, name, seen.row).await? {
            return Ok(AcquireOutcome::Held(held));
        }
        let ttl = request.ttl.as_secs().saturating_add(u64::from(request.ttl.subsec_nanos() > 0));
        let ttl = i64::try_from(ttl).unwrap_or(i64::MAX).clamp(1, LONGEST_TTL);
        // Without a key it is nobody's.
        let (lease, granted) = line.grant(ttl).await.map_err(Failure::without_effect)?;
        let (is_done, seen) = keys::take(line, &keys, &request, lease).await?;
        if !is_done {
            line.revoke(lease).await;
            let held = self.held(line, name, seen.row).await?;
            let over = || Why::Passing("somebody had it, and it was over at once".to_owned());
            return Ok(AcquireOutcome::Held(held.ok_or_else(over)?));
        }
        let row = seen.row.ok_or("it is held, and by nobody").map_err(Failure::from);
        let row = row.map_err(Failure::after_effect)?;
        let (now, times) = self.clock.see(name, row.fence, granted, Left::All);
        Ok(AcquireOutcome::Acquired(row.record(name, now, Some(times))))
    }

    async fn renew(&self, request: RenewRequest<'_>) -> Result<RenewOutcome, Failure> {
        let line = &mut self.line().await?;
        let (name, keys) = (request.name, self.keys(request.name));
        let is_change = request.payload.is_some() || request.memo.is_some();
        // The key says which lease of etcd it is. What a connection keeps already it need not ask.
        let mut before = None;
        let lease = match line.kept(&request).filter(|_| !is_change) {
            Some(lease) => lease,
            None => {
                let seen = keys::look(line, &keys).await?.row;
                match held_by(seen.as_ref(), &request) {
                    Some(lease) => {
                        before = seen;
                        lease
                    }
                    None => return self.lost(line, name, seen).await,
                }
            }
        };
        let kept = line.keep_alive(&request, lease).await?;
        // After it: that etcd keeps its lease alive says nothing of the key, which may have been deleted.
        let after = match before {
            Some(before) if is_change && kept.is_some() => {
                let changed = keys::change(line, &keys, &request, &before).await;
                let (is_done, after) = changed.map_err(Failure::after_effect)?;
                let is_ours = held_by(after.row.as_ref(), &request).is_some();
                if is_ours && !is_done {
                    let why = Why::Passing("somebody has changed it meanwhile".to_owned());
                    return Err(Failure::from(why).after_effect());
                }
                after
            }
            _ => keys::look(line, &keys).await.map_err(Failure::after_effect)?,
        };
        if held_by(after.row.as_ref(), &request) != Some(lease) {
            return self.lost(line, name, after.row).await;
        }
        // A leader of the cluster that has been deposed, and has not noticed, keeps alive what the next one ends. But
        // it vouches for nothing: who has vouched for the key is the leader of the same term.
        match (kept, after.row) {
            (Some(kept), Some(row)) if kept.raft_term == after.raft_term => {
                let (now, times) = self.clock.see(name, row.fence, kept.ttl, Left::All);
                Ok(RenewOutcome::Renewed(row.record(name, now, Some(times))))
            }
            _ => {
                let why = Why::Passing("the cluster has another leader since".to_owned());
                Err(Failure::from(why).after_effect())
            }
        }
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseOutcome, Failure> {
        let line = &mut self.line().await?;
        let (name, keys) = (request.name, self.keys(request.name));
        let mut row = keys::look(line, &keys).await?.row;
        let held = row.as_ref().and_then(|row| row.held_by(request.identity, request.fence));
        if let Some(lease) = held.map(|held| held.lease) {
            let (is_done, seen) = keys::free(line, &keys, &request).await?;
            if is_done {
                self.clock.forget(name);
                line.revoke(lease).await;
                return Ok(ReleaseOutcome::Released);
            }
            row = seen.row;
        }
        // It was given back before, and the answer was lost; or it is over.
        if row.as_ref().is_some_and(|row| row.held.is_none() && row.fence == request.fence) {
            return Ok(ReleaseOutcome::Released);
        }
        Ok(ReleaseOutcome::NotHolder(self.record(line, name, row).await?))
    }

    async fn inspect(&self, name: &LeaseName) -> Result<Option<LeaseRecord>, Failure> {
        let line = &mut self.line().await?;
        let seen = keys::look(line, &self.keys(name)).await?;
        self.record(line, name, seen.row).await
    }

    /// It is somebody else's, or nobody's: whose, is told if it can be.
    async fn lost(
        &self,
        line: &mut Line<'_>,
        name: &LeaseName,
        row: Option<Row>,
    ) -> Result<RenewOutcome, Failure> {
        Ok(RenewOutcome::Lost(self.record(line, name, row).await.unwrap_or_default()))
    }

    /// If it is held, and not over: by whom.
    async fn held(
        &self,
        line: &mut Line<'_>,
        name: &LeaseName,
        row: Option<Row>,
    ) -> Result<Option<LeaseRecord>, Failure> {
        let record = self.record(line, name, row).await?;
        Ok(record.filter(|record| record.holder.is_some()))
    }

    async fn record(
        &self,
        line: &mut Line<'_>,
        name: &LeaseName,
        row: Option<Row>,
    ) -> Result<Option<LeaseRecord>, Failure> {
        let Some(row) = row else { return Ok(None) };
        let left = match &row.held {
            Some(held) => line.left(held.lease).await?,
            None => None,
        };
        let Some((granted, left)) = left else {
            self.clock.forget(name);
            return Ok(Some(row.record(name, self.clock.now(), None)));
        };
        let (now, times) = self.clock.see(name, row.fence, granted, Left::Seconds(left));
        Ok(Some(row.record(name, now, Some(times))))
    }

    fn keys(&self, name: &LeaseName) -> Keys {
        Keys::of(&self.options.prefix, name)
    }

    /// The connection, for the next call. What fails here has had no effect on any lease.
    async fn line(&self) -> Result<Line<'_>, Failure> {
        let mut line = Line::of(self.slot.lock().await).await;
        if line.slot.wire.is_none() {
            line.slot.wire = Some(self.connect().await?);
        }
        Ok(line)
    }

    /// Connects to whichever member lets us in first. The next time it begins with another one, also if it was
    /// dropped.
    async fn connect(&self) -> Result<Wire, Why> {
        let EtcdOptions { endpoints, tls, user, .. } = &self.options;
        let many = u32::try_from(endpoints.len()).unwrap_or(u32::MAX);
        let each = (LONGEST / many.max(1)).max(SHORTEST);
        let mut failed = Why::from("there are no endpoints");
        for _ in endpoints {
            let at = &endpoints[self.turn.fetch_add(1, Relaxed) % endpoints.len()];
            let wire = Box::pin(Wire::new(at, tls.as_ref(), user.as_ref()));
            let wire = timeout(each, wire).await;
            let late = |_| Err(Why::Passing("it does not answer".to_owned()));
            let why = match wire.unwrap_or_else(late) {
                Ok(wire) => return Ok(wire),
                Err(why) if many > 1 => Why::At(at.authority(), Box::new(why)),
                Err(why) => why,
            };
            if why.lasts() {
                return Err(why);
            }
            failed = why;
        }
        Err(failed)
    }

    /// The second connection, on which the server tells of that lease's end.
    pub(crate) async fn listen(&self, name: &LeaseName) -> Result<(Wire, WatchStream), Why> {
        let listening = async {
            let mut wire = self.connect().await?;
            let told = wire.watch(&self.keys(name).lease).await?;
            Ok((wire, told))
        };
        let late = |_| Err(Why::Passing("it does not answer".to_owned()));
        timeout(2 * LONGEST, listening).await.unwrap_or_else(late)
    }

    fn named<T>(&self, operation: &'static str, done: Result<T, Failure>) -> Result<T, StoreError> {
        done.map_err(|failure| failure.into_error(&self.place, operation))
    }
}

/// If it is that holder's, by that token: which lease of etcd it goes with.
fn held_by(row: Option<&Row>, request: &RenewRequest<'_>) -> Option<i64> {
    row?.held_by(request.identity, request.fence).map(|held| held.lease)
}
