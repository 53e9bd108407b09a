use std::{error::Error, fmt, path::Path, sync::Arc};

use buttress_leadership::StoreError;
use rusqlite::ErrorCode;

/// What went wrong, with which file, at what. It is the cause within a [`StoreError`].
#[derive(Debug)]
pub struct SqliteError {
    path: Arc<Path>,
    operation: &'static str,
    why: Why,
}

/// Why a step failed, before it is known which store it was of.
#[derive(Debug)]
pub(crate) enum Why {
    Sqlite(rusqlite::Error),
    Io(std::io::Error),
    /// Something that SQLite has no word for, and that will be so again.
    Wrong(String),
    /// Something that is over with the next call.
    Gone(&'static str),
}

/// A failure, and whether the step may have had its effect.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) why: Why,
    pub(crate) is_ambiguous: bool,
}

// === impl SqliteError ===

impl SqliteError {
    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What was asked: `open`, `acquire`, `renew`, `release` or `inspect`.
    #[must_use]
    pub fn operation(&self) -> &str {
        self.operation
    }
}

impl fmt::Display for SqliteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, operation) = (self.path.display(), self.operation);
        write!(f, "SQLite lease store {path}: {operation}: ")?;
        match &self.why {
            Why::Sqlite(error) => fmt::Display::fmt(error, f),
            Why::Io(error) => fmt::Display::fmt(error, f),
            Why::Wrong(what) => f.write_str(what),
            Why::Gone(what) => f.write_str(what),
        }
    }
}

impl Error for SqliteError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.why {
            Why::Sqlite(error) => Some(error),
            Why::Io(error) => Some(error),
            Why::Wrong(_) | Why::Gone(_) => None,
        }
    }
}

// === impl Failure ===

impl Failure {
    /// It may have been done: the write was on its way to the disk.
    pub(crate) fn ambiguous(why: impl Into<Why>) -> Self {
        Self { why: why.into(), is_ambiguous: true }
    }

    pub(crate) fn into_error(self, path: &Arc<Path>, operation: &'static str) -> StoreError {
        let kind = match (self.is_ambiguous, self.why.lasts()) {
            (true, _) => StoreError::Ambiguous,
            (false, true) => StoreError::Fatal,
            (false, false) => StoreError::NotApplied,
        };
        let path = Arc::clone(path);
        kind(Box::new(SqliteError { path, operation, why: self.why }))
    }
}

impl<W: Into<Why>> From<W> for Failure {
    fn from(why: W) -> Self {
        Self { why: why.into(), is_ambiguous: false }
    }
}

// === impl Why ===

impl Why {
    /// Whether it will be so again, until somebody mends it.
    fn lasts(&self) -> bool {
        match self {
            // What the disk, the memory and the locks do may be over with the next call.
            Self::Sqlite(rusqlite::Error::SqliteFailure(error, _)) => !matches!(
                error.code,
                ErrorCode::DatabaseBusy
                    | ErrorCode::DatabaseLocked
                    | ErrorCode::DiskFull
                    | ErrorCode::FileLockingProtocolFailed
                    | ErrorCode::OperationInterrupted
                    | ErrorCode::OutOfMemory
                    | ErrorCode::SchemaChanged
                    | ErrorCode::SystemIoFailure
            ),
            Self::Sqlite(_) | Self::Wrong(_) => true,
            Self::Io(error) => !matches!(
                error.kind(),
                std::io::ErrorKind::Interrupted
                    | std::io::ErrorKind::OutOfMemory
                    | std::io::ErrorKind::WouldBlock
            ),
            Self::Gone(_) => false,
        }
    }
}

impl From<rusqlite::Error> for Why {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<std::io::Error> for Why {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<String> for Why {
    fn from(what: String) -> Self {
        Self::Wrong(what)
    }
}

impl From<&str> for Why {
    fn from(what: &str) -> Self {
        Self::Wrong(what.to_owned())
    }
}
