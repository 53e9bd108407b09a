use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use buttress_leadership::{
    AcquireOutcome, AcquireRequest, Expiry, LeaseClock, LeaseName, LeaseRecord, LeaseStore,
    ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest, StoreCapabilities, StoreError,
};

use crate::{
    error::Failure,
    host::Host,
    table::{self, Acquire, Done, Release, Renew},
    worker::Worker,
};

/// Leases in an SQLite file. Clones share its connection and its thread.
///
/// Calls wait on a thread of the store's own, one after the other, and never on the runtime's. Give each
/// elector a store of its own if a process has several: they get on with the same file.
///
/// # Errors
///
/// What a call fails with has a [`SqliteError`](crate::SqliteError) within, that names the file and the call:
///
/// - [`NotApplied`](StoreError::NotApplied): others held the lock for longer than the
///   [wait](SqliteOptions::busy_timeout), or the disk is full;
/// - [`Ambiguous`](StoreError::Ambiguous): the disk failed as the write was made to last;
/// - [`Fatal`](StoreError::Fatal): the file is gone, is no database, may not be written, or has another table
///   by that name.
///
/// # Cancel safety
///
/// A call that is dropped before its turn does nothing. One that is dropped later is done, or not.
#[derive(Clone)]
pub struct SqliteStore {
    worker: Arc<Worker>,
}

/// How to open a [`SqliteStore`].
///
/// ```no_run
/// use buttress_lease_sqlite::SqliteOptions;
/// use std::time::Duration;
///
/// # async fn open() -> Result<(), buttress_leadership::StoreError> {
/// let store = SqliteOptions::new("/var/lib/billing/leases.db")
///     .create(true)
///     .busy_timeout(Duration::from_millis(500))
///     .open()
///     .await?;
/// # let _ = store;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    path: PathBuf,
    create: bool,
    busy_timeout: Duration,
    clock: LeaseClock,
}

// === impl SqliteStore ===

impl SqliteStore {
    /// Opens the file, which is there and has the table. For more, see [`SqliteOptions`].
    ///
    /// # Errors
    ///
    /// As [`SqliteOptions::open`].
    pub async fn open(path: impl Into<PathBuf>) -> Result<Self, StoreError> {
        SqliteOptions::new(path).open().await
    }

    /// Opens the file, and makes it and its table first if they are not there. Many processes may do so at
    /// the same time.
    ///
    /// # Errors
    ///
    /// As [`SqliteOptions::open`].
    pub async fn open_or_create(path: impl Into<PathBuf>) -> Result<Self, StoreError> {
        SqliteOptions::new(path).create(true).open().await
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.worker.path()
    }
}

impl LeaseStore for SqliteStore {
    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities::new(Expiry::Server).ttl_granularity(Duration::from_nanos(1))
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome, StoreError> {
        let AcquireRequest { name, identity, ttl, payload, after, .. } = request;
        let (name, identity, payload) = (name.clone(), identity.clone(), payload.clone());
        let asked = Acquire { name, identity, ttl, payload, after };
        let call = move |db: &_, at: table::Instant<'_>| table::acquire(db, &asked, at);
        let Done { is_done, record } = self.worker.ask("acquire", |desk| desk.write(call)).await?;
        let record = record.expect("there is a record of what is held");
        Ok(if is_done { AcquireOutcome::Acquired(record) } else { AcquireOutcome::Held(record) })
    }

    async fn renew(&self, request: RenewRequest<'_>) -> Result<RenewOutcome, StoreError> {
        let RenewRequest { name, identity, fence, ttl, payload, memo, .. } = request;
        let (name, identity) = (name.clone(), identity.clone());
        let (payload, memo) = (payload.cloned(), memo.cloned());
        let asked = Renew { name, identity, fence, ttl, payload, memo };
        let call = move |db: &_, at: table::Instant<'_>| table::renew(db, asked, at);
        let Done { is_done, record } = self.worker.ask("renew", |desk| desk.write(call)).await?;
        Ok(match record {
            Some(record) if is_done => RenewOutcome::Renewed(record),
            record => RenewOutcome::Lost(record),
        })
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseOutcome, StoreError> {
        let ReleaseRequest { name, identity, fence, memo, .. } = request;
        let (name, identity, memo) = (name.clone(), identity.clone(), memo.cloned());
        let asked = Release { name, identity, fence, memo };
        let call = move |db: &_, at: table::Instant<'_>| table::release(db, asked, at);
        let Done { is_done, record } = self.worker.ask("release", |desk| desk.write(call)).await?;
        Ok(if is_done { ReleaseOutcome::Released } else { ReleaseOutcome::NotHolder(record) })
    }

    async fn inspect(&self, name: &LeaseName) -> Result<Option<LeaseRecord>, StoreError> {
        let name = name.clone();
        let call = move |db: &_, at: table::Instant<'_>| table::inspect(db, &name, at);
        self.worker.ask("inspect", |desk| desk.read(call)).await
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.path()).finish_non_exhaustive()
    }
}

// === impl SqliteOptions ===

impl SqliteOptions {
    /// A call waits twice at most, to begin and to end, and so gives up before the elector's limit of 2.5 s:
    /// "busy" says more than "too slow".
    pub const DEFAULT_BUSY_TIMEOUT: Duration = Duration::from_secs(1);

    /// Those of a file that is there and has the table.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            create: false,
            busy_timeout: Self::DEFAULT_BUSY_TIMEOUT,
            clock: LeaseClock::system(),
        }
    }

    /// Whether the file and the table are made if they are not there. Not unless set: a path with a slip in
    /// it would be an election that everybody wins.
    #[must_use]
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// How long a call waits for other processes' writes, [a second](Self::DEFAULT_BUSY_TIMEOUT) unless set.
    /// Twice that is to be less than the
    /// [operation timeout](buttress_leadership::LeaseConfig::DEFAULT_OPERATION_TIMEOUT). Nobody checks it: a
    /// store does not know whose it will be. Where it is more, a call that waits is dropped as too slow, and
    /// the next one waits behind it.
    #[must_use]
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout;
        self
    }

    /// The clock by which leases end, the machine's unless set: for tests, which let it
    /// [jump](LeaseClock::suspend). All who open the file must have the same.
    #[must_use]
    pub fn clock(mut self, clock: LeaseClock) -> Self {
        self.clock = clock;
        self
    }

    /// Opens it, on a new thread.
    ///
    /// # Errors
    ///
    /// [`Fatal`](StoreError::Fatal) if there is no such file or table, or it is another one; if it is no
    /// database, or may not be written; if the host does not say when it was started.
    /// [`NotApplied`](StoreError::NotApplied) if others hold its lock for longer than the wait.
    pub async fn open(self) -> Result<SqliteStore, StoreError> {
        let path: Arc<Path> = self.path.into();
        let failed = |failure: Failure| failure.into_error(&path, "open");
        // To SQLite these are no files, and each process would have its own.
        if path.as_os_str().is_empty() || *path == *Path::new(":memory:") {
            return Err(failed("it is to be a file".into()));
        }
        let host = Host::of(self.clock).map_err(|why| failed(why.into()))?;
        let worker = Worker::spawn(Arc::clone(&path), host, self.busy_timeout)
            .map_err(|error| failed(error.into()))?;
        let create = self.create;
        worker.ask("open", move |desk| desk.open(create)).await?;
        Ok(SqliteStore { worker: Arc::new(worker) })
    }
}
