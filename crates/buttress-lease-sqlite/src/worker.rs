//! The thread that waits for the disk and for locks, so that no runtime does.

use std::{
    fs, io,
    path::Path,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use buttress_leadership::StoreError;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};
use tokio::sync::oneshot;

use crate::{
    error::{Failure, Why},
    host::Host,
    table::{self, Instant},
};

/// Sends calls to the thread. It ends with the last call once all of these are gone.
pub(crate) struct Worker {
    path: Arc<Path>,
    jobs: mpsc::Sender<Job>,
}

type Job = Box<dyn FnOnce(&mut Desk) + Send>;

/// What the thread works with.
pub(crate) struct Desk {
    path: Arc<Path>,
    host: Host,
    busy_timeout: Duration,
    open: Option<Open>,
}

struct Open {
    db: Connection,
    file: FileId,
}

/// Which file it is, whatever it is called.
#[cfg(unix)]
type FileId = (u64, u64);
#[cfg(not(unix))]
type FileId = ();

// === impl Worker ===

impl Worker {
    pub(crate) fn spawn(path: Arc<Path>, host: Host, busy_timeout: Duration) -> io::Result<Self> {
        let (jobs, asked) = mpsc::channel::<Job>();
        let mut desk = Desk { path: Arc::clone(&path), host, busy_timeout, open: None };
        thread::Builder::new().name("buttress-sqlite".to_owned()).spawn(move || {
            for job in asked {
                job(&mut desk);
            }
        })?;
        Ok(Self { path, jobs })
    }

    /// Does it on the thread, after what was asked before, unless nobody waits for it any more by then.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        operation: &'static str,
        call: impl FnOnce(&mut Desk) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let job = Box::new(move |desk: &mut Desk| {
            if !answer.is_closed() {
                // Nobody hears it: then it was dropped as it was done, and is ambiguous there.
                let _ = answer.send(call(desk));
            }
        });
        let done = match self.jobs.send(job) {
            Err(_) => Err("its thread has ended".into()),
            Ok(()) => match answered.await {
                Ok(done) => done,
                Err(_) => Err(Failure::ambiguous(Why::Gone("its thread has ended"))),
            },
        };
        done.map_err(|failure| failure.into_error(&self.path, operation))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

// === impl Desk ===

impl Desk {
    /// Opens the file, and makes it and its table first if it is to.
    pub(crate) fn open(&mut self, create: bool) -> Result<(), Failure> {
        let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        if create {
            flags |= OpenFlags::SQLITE_OPEN_CREATE;
        } else {
            // SQLite would only say that it cannot open it.
            file_id(&self.path).map_err(|why| match why {
                Why::Io(error) if error.kind() == io::ErrorKind::NotFound => Why::Wrong(format!(
                    "{error}: `open_or_create` makes it in a folder that is there"
                )),
                why => why,
            })?;
        }
        let mut db = Connection::open_with_flags(&self.path, flags).map_err(Why::from)?;
        db.busy_timeout(self.busy_timeout.min(LONGEST_WAIT)).map_err(Why::from)?;
        db.execute_batch("PRAGMA synchronous = EXTRA").map_err(Why::from)?;
        if create {
            let writing = db.transaction_with_behavior(TransactionBehavior::Immediate);
            let writing = writing.map_err(Why::from)?;
            table::create(&writing)?;
            writing.commit().map_err(Why::from)?;
        }
        table::check(&db)?;
        let file = file_id(&self.path)?;
        self.open = Some(Open { db, file });
        Ok(())
    }

    /// Does it in one step that no other process comes between. `call` is told the time at which nobody else
    /// can write any more.
    pub(crate) fn write<T>(
        &mut self,
        call: impl FnOnce(&Connection, Instant<'_>) -> Result<T, Why>,
    ) -> Result<T, Failure> {
        self.reopen()?;
        let open = self.open.as_mut().expect("it was opened right now");
        let done = step(open, &self.path, &self.host, call);
        let is_unsure = done.as_ref().is_err_and(|failure| failure.is_ambiguous);
        if is_unsure || !open.db.is_autocommit() {
            // What it has in hand is rolled back as it is closed, or by the next one who opens it.
            self.open = None;
        }
        done
    }

    pub(crate) fn read<T>(
        &mut self,
        call: impl FnOnce(&Connection, Instant<'_>) -> Result<T, Why>,
    ) -> Result<T, Failure> {
        self.reopen()?;
        let open = self.open.as_ref().expect("it was opened right now");
        // Of one that is written in between, more has passed than is told: never less.
        let at = Instant { boot: &self.host.boot, now: self.host.now() };
        Ok(call(&open.db, at)?)
    }

    /// Opens it again if it was closed, or another file has its name now. What was deleted is not made again:
    /// it would begin with the first token.
    fn reopen(&mut self) -> Result<(), Failure> {
        let file = file_id(&self.path)?;
        if self.open.as_ref().is_some_and(|open| open.file == file) {
            return Ok(());
        }
        self.open = None;
        self.open(false)
    }
}

/// SQLite counts milliseconds in 31 bits.
const LONGEST_WAIT: Duration = Duration::from_millis(i32::MAX as u64);

fn step<T>(
    open: &mut Open,
    path: &Path,
    host: &Host,
    call: impl FnOnce(&Connection, Instant<'_>) -> Result<T, Why>,
) -> Result<T, Failure> {
    let writing = open.db.transaction_with_behavior(TransactionBehavior::Immediate);
    let writing = writing.map_err(Why::from)?;
    if file_id(path)? != open.file {
        return Err(Why::Gone("the file was replaced").into());
    }
    let done = call(&writing, Instant { boot: &host.boot, now: host.now() })?;
    writing.commit().map_err(|error| match error.sqlite_error_code() {
        // Readers were in the way, and it is rolled back.
        Some(ErrorCode::DatabaseBusy) => Failure::from(error),
        _ => Failure::ambiguous(error),
    })?;
    Ok(done)
}

#[cfg(unix)]
fn file_id(path: &Path) -> Result<FileId, Why> {
    use std::os::unix::fs::MetadataExt;
    let of = fs::metadata(path)?;
    Ok((of.dev(), of.ino()))
}

#[cfg(not(unix))]
fn file_id(path: &Path) -> Result<FileId, Why> {
    fs::metadata(path)?;
    Ok(())
}
