use std::{fmt, io, sync::Arc};

use buttress_leadership::{
    AcquireOutcome, AcquireRequest, Changes, Expiry, FenceSource, LeaseClock, LeaseName,
    LeaseRecord, LeaseStore, Observation, Observations, ReleaseOutcome, ReleaseRequest,
    RenewOutcome, RenewRequest, ServerClock, StoreCapabilities, StoreError, no_changes,
};
use redis::{ConnectionInfo, IntoConnectionInfo, PushInfo};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::{Mutex, mpsc::UnboundedReceiver},
};

use crate::{
    connect::{self, Handshake, Place},
    error::{Failure, Why},
    line::{Line, Slot, Wire},
    listen::released,
    run::Run,
    scripts::{self, Row},
};

/// Leases in Redis or Valkey. Clones share its connection, on which calls go one after the other.
///
/// Give each elector a store of its own if a process has several. See [what it does not
/// bear](crate#what-it-does-not-bear).
///
/// # Errors
///
/// What a call fails with has a [`RedisError`](crate::RedisError) within, that names the server and the call, and
/// has no password in it:
///
/// - [`NotApplied`](StoreError::NotApplied): the server could not be reached, or refused for now: it loads its
///   data, is out of memory, is a replica, or has [just started](RedisOptions::keeps_all);
/// - [`Ambiguous`](StoreError::Ambiguous): the connection ended before the answer came;
/// - [`Fatal`](StoreError::Fatal): the password, the database or a right is wrong or missing, or what stands in a
///   key is no lease.
///
/// # Cancel safety
///
/// A call that is dropped is done, or not. It takes its connection with it, so that nothing of it is sent
/// later.
#[derive(Clone)]
pub struct RedisStore {
    shared: Arc<Shared>,
}

/// How to open a [`RedisStore`].
///
/// ```no_run
/// use buttress_leadership::Expiry;
/// use buttress_lease_redis::RedisOptions;
///
/// # async fn open() -> Result<(), buttress_leadership::StoreError> {
/// let store =
///     RedisOptions::parse("redis://cache.internal/3")?.expiry(Expiry::Observed).open().await?;
/// # let _ = store;
/// # Ok(())
/// # }
/// ```
pub struct RedisOptions {
    server: ConnectionInfo,
    tls: Option<Handshake>,
    expiry: Expiry,
    keeps_all: bool,
    wake: bool,
    clock: LeaseClock,
}

pub(crate) struct Shared {
    place: Place,
    options: RedisOptions,
    /// What candidates see, where it is for them to decide that a lease is over.
    observed: Option<Observations>,
    slot: Mutex<Slot>,
}

// === impl RedisStore ===

impl RedisStore {
    /// Connects to the server. For more, see [`RedisOptions`].
    ///
    /// # Errors
    ///
    /// As [`RedisOptions::parse`] and [`RedisOptions::open`].
    pub async fn open(server: &str) -> Result<Self, StoreError> {
        RedisOptions::parse(server)?.open().await
    }

    /// The server and its database, as `host:port/number`.
    #[must_use]
    pub fn server(&self) -> &str {
        self.shared.place.as_str()
    }
}

impl LeaseStore for RedisStore {
    fn capabilities(&self) -> StoreCapabilities {
        let expiry = self.shared.options.expiry;
        let clock = match expiry {
            Expiry::Server => ServerClock::Wall,
            _ => ServerClock::None,
        };
        StoreCapabilities::new(expiry)
            .server_clock(clock)
            .fence(FenceSource::Time)
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

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("server", &self.server()).finish_non_exhaustive()
    }
}

// === impl RedisOptions ===

impl RedisOptions {
    /// Those of a server, without TLS, that may forget.
    #[must_use]
    pub fn new(server: ConnectionInfo) -> Self {
        Self {
            server,
            tls: None,
            expiry: Expiry::Server,
            keeps_all: false,
            wake: true,
            clock: LeaseClock::system(),
        }
    }

    /// The same, of a URL: `redis://user:password@host:port/database`, or `redis+unix:///path?db=database`.
    ///
    /// # Errors
    ///
    /// [`Fatal`](StoreError::Fatal) if it is none. The error quotes nothing of it: that may be the password.
    pub fn parse(server: &str) -> Result<Self, StoreError> {
        let refused = |why: &str| Failure::from(why).into_error(&Place::unknown(), "open");
        if server.starts_with("rediss:") || server.starts_with("valkeys:") {
            return Err(refused(connect::NO_TLS));
        }
        let parsed = server.into_connection_info();
        parsed.map(Self::new).map_err(|_| refused("a server's URL is `redis://host:port/`"))
    }

    /// Makes TLS of each connection: `handshake` is handed one, and gives back what to speak over. A server without
    /// TLS is not spoken to then.
    ///
    /// ```no_run
    /// use std::sync::Arc;
    ///
    /// use buttress_lease_redis::RedisOptions;
    /// use rustls::pki_types::ServerName;
    /// use tokio_rustls::TlsConnector;
    ///
    /// # async fn open(config: rustls::ClientConfig) -> Result<(), Box<dyn std::error::Error>> {
    /// let tls = TlsConnector::from(Arc::new(config));
    /// let name = ServerName::try_from("cache.internal")?;
    /// let store = RedisOptions::parse("redis://cache.internal:6380")?
    ///     .tls(move |tcp| tls.connect(name.clone(), tcp))
    ///     .open()
    ///     .await?;
    /// # let _ = store;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn tls<F, T, S>(mut self, handshake: F) -> Self
    where
        F: Fn(TcpStream) -> T + Send + Sync + 'static,
        T: Future<Output = io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        self.tls = Some(Box::new(move |tcp| {
            let shaking = handshake(tcp);
            Box::pin(async move { Ok(Box::new(shaking.await?) as connect::Stream) })
        }));
        self
    }

    /// Who decides that a lease is over: [the server](Expiry::Server) unless set. See [whose
    /// clock](crate#whose-clock).
    #[must_use]
    pub fn expiry(mut self, expiry: Expiry) -> Self {
        self.expiry = expiry;
        self
    }

    /// Whether the server has after a start all that it had answered before: one server, with `appendonly yes`
    /// and `appendfsync always`. Not unless set: then nobody takes a lease from a server that has run for less time
    /// than the lease is long, as it may have forgotten one that somebody believes in.
    #[must_use]
    pub fn keeps_all(mut self, keeps_all: bool) -> Self {
        self.keeps_all = keeps_all;
        self
    }

    /// Whether candidates have a second connection, on which the server wakes them at once when a lease is
    /// released. They do unless set: without they look more often.
    #[must_use]
    pub fn wake(mut self, wake: bool) -> Self {
        self.wake = wake;
        self
    }

    /// The clock by which candidates [observe](Expiry::Observed) and a server grows older, the machine's unless set:
    /// for tests, which let it [jump](LeaseClock::suspend).
    #[must_use]
    pub fn clock(mut self, clock: LeaseClock) -> Self {
        self.clock = clock;
        self
    }

    /// Connects, and looks whether it is a server for leases.
    ///
    /// # Errors
    ///
    /// [`Fatal`](StoreError::Fatal) if the password, the database or a right is wrong or missing, or if the server
    /// evicts what it has no room for. [`NotApplied`](StoreError::NotApplied) if it cannot be reached, does not let
    /// anybody in for now, or is a replica.
    pub async fn open(self) -> Result<RedisStore, StoreError> {
        let store = self.open_later();
        let line = store.shared.line().await.map(drop);
        store.shared.named("open", line)?;
        Ok(store)
    }

    /// Does so with the first call, and with the next until it has worked: for a process that is to start while
    /// its server is down.
    #[must_use]
    pub fn open_later(self) -> RedisStore {
        let place = Place::of(&self.server);
        let is_observed = self.expiry == Expiry::Observed;
        let observed = is_observed.then(|| Observations::new(self.clock.clone()));
        let slot = Mutex::default();
        RedisStore { shared: Arc::new(Shared { place, options: self, observed, slot }) }
    }
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("server", &Place::of(&self.server).as_str())
            .field("expiry", &self.expiry)
            .field("keeps_all", &self.keeps_all)
            .field("wake", &self.wake)
            .finish_non_exhaustive()
    }
}

// === impl Shared ===

impl Shared {
    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome, Failure> {
        let line = &mut self.line().await?;
        let name = request.name;
        let age = line
            .slot
            .run
            .as_ref()
            .map_or_else(Default::default, |run| run.age(&self.options.clock));
        let is_young = !self.options.keeps_all && age < request.ttl;
        let mut state = None;
        if is_young || self.observed.is_some() {
            let before = scripts::inspect(line, name).await?;
            // What nobody ever had has no state: any will do.
            let seen = before.as_ref().and_then(|row| self.see(name, row));
            state = self
                .observed
                .as_ref()
                .map(|_| seen.map_or((0, 0), |seen| (seen.fence.get(), seen.revision)));
            if let Some(row) = before.filter(|row| !row.is_over(seen)) {
                return Ok(AcquireOutcome::Held(row.record(name, seen)));
            }
        }
        if is_young {
            let why = format!(
                "it has run for {} s, and may have forgotten a lease: nobody takes one of {} s \
                before it has run for as long",
                age.as_secs(),
                request.ttl.as_secs_f64()
            );
            return Err(Why::Passing(why).into());
        }
        let (is_done, row) = scripts::acquire(line, &request, state).await?;
        let row = row.ok_or("it is held, and by nobody")?;
        let record = self.record(name, row);
        Ok(if is_done { AcquireOutcome::Acquired(record) } else { AcquireOutcome::Held(record) })
    }

    async fn renew(&self, request: RenewRequest<'_>) -> Result<RenewOutcome, Failure> {
        let line = &mut self.line().await?;
        let (is_done, row) = scripts::renew(line, &request, self.observed.is_some()).await?;
        Ok(match row.map(|row| self.record(request.name, row)) {
            Some(record) if is_done => RenewOutcome::Renewed(record),
            record => RenewOutcome::Lost(record),
        })
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseOutcome, Failure> {
        let line = &mut self.line().await?;
        let (is_done, row) = scripts::release(line, &request).await?;
        // Or it was given back before, and the answer was lost.
        let is_free = |row: &Row| row.held.is_none() && row.fence == request.fence;
        if is_done || row.as_ref().is_some_and(is_free) {
            return Ok(ReleaseOutcome::Released);
        }
        Ok(ReleaseOutcome::NotHolder(row.map(|row| self.record(request.name, row))))
    }

    async fn inspect(&self, name: &LeaseName) -> Result<Option<LeaseRecord>, Failure> {
        let row = scripts::inspect(&mut self.line().await?, name).await?;
        Ok(row.map(|row| self.record(name, row)))
    }

    fn record(&self, name: &LeaseName, row: Row) -> LeaseRecord {
        let seen = self.see(name, &row);
        row.record(name, seen)
    }

    fn see(&self, name: &LeaseName, row: &Row) -> Option<Observation> {
        self.observed.as_ref().map(|observed| observed.see(name, row.fence, row.revision))
    }

    /// The connection, for the next call. What fails here has had no effect on any lease.
    async fn line(&self) -> Result<Line<'_>, Failure> {
        let mut line = Line::of(self.slot.lock().await).await;
        if line.slot.wire.is_none() {
            let options = &self.options;
            line.slot.wire = Some(Wire::new(&options.server, options.tls.as_ref()).await?);
            let before = line.slot.run.clone();
            let by_its_clock = self.observed.is_none();
            let run = Run::ask(&mut line, before.as_ref(), by_its_clock, &options.clock).await;
            // The next call is to ask again.
            line.slot.run = Some(run.inspect_err(|_| line.slot.wire = None)?);
        }
        Ok(line)
    }

    /// The second connection, on which the server tells of releases of that lease.
    pub(crate) async fn listen(
        &self,
        name: &LeaseName,
    ) -> Result<(Wire, UnboundedReceiver<PushInfo>), Why> {
        let options = &self.options;
        Wire::listening(&options.server, options.tls.as_ref(), &scripts::channel(name)).await
    }

    fn named<T>(&self, operation: &'static str, done: Result<T, Failure>) -> Result<T, StoreError> {
        done.map_err(|failure| failure.into_error(&self.place, operation))
    }
}
