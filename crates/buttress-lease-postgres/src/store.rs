use std::{
    fmt,
    num::NonZero,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use buttress_leadership::{
    AcquireOutcome, AcquireRequest, Changes, Expiry, LeaseClock, LeaseName, LeaseRecord,
    LeaseStore, Observation, Observations, ReleaseOutcome, ReleaseRequest, RenewOutcome,
    RenewRequest, ServerClock, StoreCapabilities, StoreError, no_changes,
};
use tokio::sync::Mutex;
use tokio_postgres::{
    Config, NoTls, Socket,
    tls::{MakeTlsConnect, TlsConnect},
};

use crate::{
    connect::{Connect, Place, completed},
    error::{Failure, Why},
    line::{Line, Slot, Wire},
    listen::released,
    table::{self, Millis, Row},
};

/// Leases in a PostgreSQL table. Clones share its connection, on which calls go one after the other.
///
/// Give each elector a store of its own if a process has several.
///
/// # Errors
///
/// What a call fails with has a [`PostgresError`](crate::PostgresError) within, that names the server and the
/// call, and has no password in it:
///
/// - [`NotApplied`](StoreError::NotApplied): the server could not be reached, or refused for now: it starts or
///   ends, has too many connections, or somebody held the row for longer than the
///   [timeout](PostgresOptions::statement_timeout);
/// - [`Ambiguous`](StoreError::Ambiguous): the connection ended before the answer came;
/// - [`Fatal`](StoreError::Fatal): the password, the database, the table or a right is wrong or missing.
///
/// # Cancel safety
///
/// A call that is dropped is done, or not. It takes its connection with it, so that nothing of it is sent
/// later.
#[derive(Clone)]
pub struct PostgresStore {
    shared: Arc<Shared>,
}

/// How to open a [`PostgresStore`].
///
/// ```no_run
/// use buttress_leadership::Expiry;
/// use buttress_lease_postgres::PostgresOptions;
///
/// # async fn open() -> Result<(), buttress_leadership::StoreError> {
/// let store = PostgresOptions::parse("host=db.internal user=billing dbname=billing")?
///     .expiry(Expiry::Observed)
///     .create_table(true)
///     .open()
///     .await?;
/// # let _ = store;
/// # Ok(())
/// # }
/// ```
pub struct PostgresOptions {
    config: Config,
    connect: Box<dyn Connect>,
    expiry: Expiry,
    create_table: bool,
    statement_timeout: Duration,
    wake: bool,
    clock: LeaseClock,
}

pub(crate) struct Shared {
    place: Place,
    options: PostgresOptions,
    /// What candidates see, where it is for them to decide that a lease is over.
    observed: Option<Observations>,
    /// The shortest time that anybody said to wait for an answer, in milliseconds.
    limit: AtomicU64,
    slot: Mutex<Slot>,
}

/// A statement is given up after this share of the time that the asker waits: "somebody holds the row" says more than
/// "too slow", and is to be heard.
const SHARE: (u32, u32) = (4, 5);

// === impl PostgresStore ===

impl PostgresStore {
    /// Connects to the server, whose database has the table. For more, see [`PostgresOptions`].
    ///
    /// # Errors
    ///
    /// As [`PostgresOptions::parse`] and [`PostgresOptions::open`].
    pub async fn open(server: &str) -> Result<Self, StoreError> {
        PostgresOptions::parse(server)?.open().await
    }

    /// Connects to the server, and makes the table first if it is not there. Many processes may do so at the
    /// same time.
    ///
    /// # Errors
    ///
    /// As [`PostgresOptions::parse`] and [`PostgresOptions::open`].
    pub async fn open_or_create(server: &str) -> Result<Self, StoreError> {
        PostgresOptions::parse(server)?.create_table(true).open().await
    }

    /// The server and its database, as `host:port/database`.
    #[must_use]
    pub fn server(&self) -> &str {
        self.shared.place.as_str()
    }
}

impl LeaseStore for PostgresStore {
    fn capabilities(&self) -> StoreCapabilities {
        let expiry = self.shared.options.expiry;
        let clock = match expiry {
            Expiry::Server => ServerClock::Wall,
            _ => ServerClock::None,
        };
        StoreCapabilities::new(expiry).server_clock(clock).watch(self.shared.options.wake)
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

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("server", &self.server()).finish_non_exhaustive()
    }
}

// === impl PostgresOptions ===

impl PostgresOptions {
    /// Less than the elector's limit of 2.5 s for a call.
    pub const DEFAULT_STATEMENT_TIMEOUT: Duration = Duration::from_secs(2);

    /// Those of a server that has the table, without TLS.
    ///
    /// It is connected to as `config` says, but only if it can write, whatever that says. If it names no
    /// timeouts, they are two seconds to connect, and ten until a dead connection is noticed.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            connect: Box::new(NoTls),
            expiry: Expiry::Server,
            create_table: false,
            statement_timeout: Self::DEFAULT_STATEMENT_TIMEOUT,
            wake: true,
            clock: LeaseClock::system(),
        }
    }

    /// The same, of a connection string: `postgres://user:password@host:port/database`, or
    /// `host=.. user=.. password=..`, with the options of [`Config`].
    ///
    /// # Errors
    ///
    /// [`Fatal`](StoreError::Fatal) if it is none. The error quotes nothing of it: that may be the password.
    pub fn parse(server: &str) -> Result<Self, StoreError> {
        server.parse().map(Self::new).map_err(|_: tokio_postgres::Error| {
            let why = Why::from(
                "this is no connection string of PostgreSQL, or has an option that is none",
            );
            Failure::from(why).into_error(&Place::unknown(), "open")
        })
    }

    /// Connects with that TLS, as of the crates `tokio-postgres-rustls` or `postgres-native-tls`. Whether there
    /// has to be TLS says the `sslmode` of the connection string: unless it is `require`, a server without is
    /// accepted.
    #[must_use]
    pub fn tls<T>(mut self, tls: T) -> Self
    where
        T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
        T::Stream: Send + 'static,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        self.connect = Box::new(tls);
        self
    }

    /// Who decides that a lease is over: [the server](Expiry::Server) unless set. See [whose
    /// clock](crate#whose-clock).
    #[must_use]
    pub fn expiry(mut self, expiry: Expiry) -> Self {
        self.expiry = expiry;
        self
    }

    /// Whether the table is made if it is not there. Not unless set: a database with a slip in its name would
    /// be an election that everybody wins.
    #[must_use]
    pub fn create_table(mut self, create: bool) -> Self {
        self.create_table = create;
        self
    }

    /// After what time the server gives a statement up, [two seconds](Self::DEFAULT_STATEMENT_TIMEOUT) unless
    /// set, in steps of a millisecond; one of less than that is refused.
    ///
    /// It is never more than four fifths of the elector's
    /// [`operation_timeout`](buttress_leadership::LeaseConfig::operation_timeout), whatever is set: the server would go
    /// on for nobody, and might take a lease long after whoever asked for it has gone.
    #[must_use]
    pub fn statement_timeout(mut self, timeout: Duration) -> Self {
        self.statement_timeout = timeout;
        self
    }

    /// Whether candidates have a second connection, on which the server wakes them at once when a lease is
    /// released. They do unless set: without they look more often.
    #[must_use]
    pub fn wake(mut self, wake: bool) -> Self {
        self.wake = wake;
        self
    }

    /// The clock by which candidates [observe](Expiry::Observed), the machine's unless set: for tests, which
    /// let it [jump](LeaseClock::suspend).
    #[must_use]
    pub fn clock(mut self, clock: LeaseClock) -> Self {
        self.clock = clock;
        self
    }

    /// Connects, makes the table if it is to, and looks whether it is the one.
    ///
    /// # Errors
    ///
    /// [`Fatal`](StoreError::Fatal) if the password, the database, the table or a right is wrong or missing.
    /// [`NotApplied`](StoreError::NotApplied) if the server cannot be reached, or does not let anybody in for
    /// now.
    pub async fn open(self) -> Result<PostgresStore, StoreError> {
        let store = self.open_later();
        let line = store.shared.line().await.map(drop);
        store.shared.named("open", line)?;
        Ok(store)
    }

    /// Does so with the first call, and with the next until it has worked: for a process that is to start while
    /// its database is down.
    #[must_use]
    pub fn open_later(mut self) -> PostgresStore {
        let place = Place::of(&self.config);
        self.config = completed(self.config);
        let is_observed = self.expiry == Expiry::Observed;
        let observed = is_observed.then(|| Observations::new(self.clock.clone()));
        let (limit, slot) = (AtomicU64::new(u64::MAX), Mutex::default());
        PostgresStore { shared: Arc::new(Shared { place, options: self, observed, limit, slot }) }
    }
}

impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOptions")
            .field("server", &Place::of(&self.config).as_str())
            .field("expiry", &self.expiry)
            .field("create_table", &self.create_table)
            .field("statement_timeout", &self.statement_timeout)
            .field("wake", &self.wake)
            .finish_non_exhaustive()
    }
}

// === impl Shared ===

impl Shared {
    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome, Failure> {
        self.waits(request.limit);
        let line = &mut self.line().await?;
        let name = request.name;
        // To look locks nothing, and most candidates find that somebody has it.
        let before = table::inspect(line, name).await?;
        let seen = before.as_ref().and_then(|row| self.see(name, row));
        if let Some(row) = before {
            let is_over = seen.map_or_else(|| row.is_over(), |seen| row.is_over_for(seen));
            if !is_over {
                return Ok(AcquireOutcome::Held(row.record(name, seen)));
            }
        }
        // What nobody ever had has no state: any will do.
        let signed = |number: u64| number.cast_signed();
        let state = seen.map_or((0, 0), |seen| (signed(seen.fence.get()), signed(seen.revision)));
        let state = self.observed.as_ref().map(|_| state);
        if let Some(row) = table::acquire(line, &request, state).await? {
            return Ok(AcquireOutcome::Acquired(self.record(name, row)));
        }
        // Somebody was quicker.
        let row = table::inspect(line, name).await?;
        let row = row.ok_or(Why::Gone("the lease was deleted by hand"))?;
        Ok(AcquireOutcome::Held(self.record(name, row)))
    }

    async fn renew(&self, request: RenewRequest<'_>) -> Result<RenewOutcome, Failure> {
        self.waits(request.limit);
        let line = &mut self.line().await?;
        let name = request.name;
        if let Some(row) = table::renew(line, &request, self.observed.is_some()).await? {
            return Ok(RenewOutcome::Renewed(self.record(name, row)));
        }
        let row = table::inspect(line, name).await?;
        Ok(RenewOutcome::Lost(row.map(|row| self.record(name, row))))
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseOutcome, Failure> {
        self.waits(request.limit);
        let line = &mut self.line().await?;
        if table::release(line, &request).await? {
            return Ok(ReleaseOutcome::Released);
        }
        let row = table::inspect(line, request.name).await?;
        // It was given back before, and the answer was lost.
        if row.as_ref().is_some_and(|row| row.holder.is_none() && row.fence == request.fence) {
            return Ok(ReleaseOutcome::Released);
        }
        Ok(ReleaseOutcome::NotHolder(row.map(|row| self.record(request.name, row))))
    }

    async fn inspect(&self, name: &LeaseName) -> Result<Option<LeaseRecord>, Failure> {
        let row = table::inspect(&mut self.line().await?, name).await?;
        Ok(row.map(|row| self.record(name, row)))
    }

    fn record(&self, name: &LeaseName, row: Row) -> LeaseRecord {
        let seen = self.see(name, &row);
        row.record(name, seen)
    }

    fn see(&self, name: &LeaseName, row: &Row) -> Option<Observation> {
        self.observed
            .as_ref()
            .map(|observed| observed.see(name, row.fence, row.revision.cast_unsigned()))
    }

    /// The connection, for the next call. What fails here has had no effect on any lease.
    async fn line(&self) -> Result<Line<'_>, Failure> {
        let timeout = self.timeout()?;
        let mut line = Line::of(self.slot.lock().await).await;
        if line.slot.wire.is_none() {
            let mut first = table::session(timeout);
            if self.options.create_table && !line.slot.is_checked {
                first.push_str(table::CREATE);
            }
            line.slot.wire = Some(self.connect(&first).await?);
            line.slot.timeout = Some(timeout);
            if !line.slot.is_checked {
                table::check(&mut line).await.map_err(Failure::without_effect)?;
                line.slot.is_checked = true;
            }
        }
        line.time_out(timeout).await?;
        Ok(line)
    }

    /// Somebody does not wait for longer than that.
    fn waits(&self, limit: Option<Duration>) {
        if let Some(limit) = limit {
            let millis = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
            self.limit.fetch_min(millis, Relaxed);
        }
    }

    /// After what time the server gives up.
    fn timeout(&self) -> Result<Millis, Failure> {
        let waits = Duration::from_millis(self.limit.load(Relaxed));
        let most = (waits / SHARE.1 * SHARE.0).max(Duration::from_millis(1));
        let timeout = self.options.statement_timeout.min(most).as_millis();
        // Zero is no limit to the server, and it is not what was meant.
        let timeout =
            NonZero::new(u32::try_from(timeout.min(i32::MAX as u128)).unwrap_or(u32::MAX));
        timeout.ok_or_else(|| "`statement_timeout` must be a millisecond at least".into())
    }

    pub(crate) async fn connect(&self, first: &str) -> Result<Wire, Why> {
        Wire::new(&*self.options.connect, self.options.config.clone(), first).await
    }

    fn named<T>(&self, operation: &'static str, done: Result<T, Failure>) -> Result<T, StoreError> {
        done.map_err(|failure| failure.into_error(&self.place, operation))
    }
}
