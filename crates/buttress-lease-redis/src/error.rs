use std::{error::Error, fmt, io};

use buttress_leadership::StoreError;
use redis::{ErrorKind, RedisError as ClientError, ServerErrorKind};

use crate::connect::Place;

/// What went wrong, with which server, at what. It is the cause within a [`StoreError`].
///
/// Neither it nor what it comes of has a password in it.
#[derive(Debug)]
pub struct RedisError {
    place: Place,
    operation: &'static str,
    why: Why,
}

/// Why a step failed, before it is known which store it was of.
#[derive(Debug)]
pub(crate) enum Why {
    Redis(ClientError),
    /// Before there was a connection.
    Io(io::Error),
    /// Something that Redis has no word for, and that will be so again.
    Wrong(String),
    /// Something that passes.
    Passing(String),
}

/// A failure, and whether the step may have had its effect.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) why: Why,
    pub(crate) is_ambiguous: bool,
}

// === impl RedisError ===

impl RedisError {
    /// The server and its database, as `host:port/number`.
    #[must_use]
    pub fn server(&self) -> &str {
        self.place.as_str()
    }

    /// What was asked: `open`, `acquire`, `renew`, `release` or `inspect`.
    #[must_use]
    pub fn operation(&self) -> &str {
        self.operation
    }

    /// The code that Redis has for it, as `NOPERM`, if it was Redis that refused.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        match &self.why {
            Why::Redis(error) => error.code(),
            Why::Io(_) | Why::Wrong(_) | Why::Passing(_) => None,
        }
    }
}

impl fmt::Display for RedisError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redis lease store {}: {}: ", self.place, self.operation)?;
        match &self.why {
            Why::Redis(error) => {
                let said = match (error.code(), error.detail()) {
                    // Which script it was is nobody's affair.
                    (Some(code), Some(said)) => {
                        let said = said.split(" script: ").next().unwrap_or_default();
                        format!("{} ({code})", said.trim_end_matches(['.', ' ']))
                    }
                    _ => error.to_string(),
                };
                // What is no answer is quoted, and may have lines.
                f.write_str(said.lines().next().unwrap_or_default())
            }
            Why::Io(error) => fmt::Display::fmt(error, f),
            Why::Wrong(what) | Why::Passing(what) => f.write_str(what),
        }
    }
}

impl Error for RedisError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.why {
            Why::Redis(error) => Some(error),
            Why::Io(error) => Some(error),
            Why::Wrong(_) | Why::Passing(_) => None,
        }
    }
}

// === impl Failure ===

impl Failure {
    /// What a script that was sent ended with.
    pub(crate) fn sent(why: Why) -> Self {
        // What the server refuses it has not done. Our scripts look before they write.
        let is_ambiguous = !why.is_plain();
        Self { why, is_ambiguous }
    }

    /// It was a question only.
    pub(crate) fn without_effect(self) -> Self {
        Self { is_ambiguous: false, ..self }
    }

    pub(crate) fn into_error(self, place: &Place, operation: &'static str) -> StoreError {
        let kind = match (self.is_ambiguous, self.why.lasts()) {
            (true, _) => StoreError::Ambiguous,
            (false, true) => StoreError::Fatal,
            (false, false) => StoreError::NotApplied,
        };
        kind(Box::new(RedisError { place: place.clone(), operation, why: self.why }))
    }
}

impl<W: Into<Why>> From<W> for Failure {
    fn from(why: W) -> Self {
        Self { why: why.into(), is_ambiguous: false }
    }
}

// === impl Why ===

impl Why {
    /// Whether the server has refused, and listens for the next command.
    fn is_plain(&self) -> bool {
        let Self::Redis(error) = self else { return false };
        matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
    }

    /// Whether the next call may go the same way. One that may not write is another one's replica now.
    pub(crate) fn leaves_connection(&self) -> bool {
        let Self::Redis(error) = self else { return false };
        self.is_plain() && error.kind() != ErrorKind::Server(ServerErrorKind::ReadOnly)
    }

    /// Whether it will be so again, until somebody mends it.
    fn lasts(&self) -> bool {
        use ServerErrorKind::{BusyLoading, ClusterDown, MasterDown, ReadOnly, TryAgain};
        let error = match self {
            Self::Redis(error) => error,
            // What the network does passes. What it brings and is no answer (a certificate that does not verify)
            // may not.
            Self::Io(error) => return error.kind() == io::ErrorKind::InvalidData,
            Self::Wrong(_) => return true,
            Self::Passing(_) => return false,
        };
        match error.kind() {
            ErrorKind::Server(BusyLoading | ClusterDown | MasterDown | ReadOnly | TryAgain) => {
                false
            }
            // Somebody's script runs, there is no room, or the disk or the replicas are away.
            ErrorKind::Extension => {
                let passing = ["BUSY", "MISCONF", "NOREPLICAS", "OOM", "UNKILLABLE"];
                !error.code().is_some_and(|code| passing.contains(&code))
            }
            ErrorKind::Io => false,
            _ => true,
        }
    }
}

impl From<ClientError> for Why {
    fn from(error: ClientError) -> Self {
        Self::Redis(error)
    }
}

impl From<io::Error> for Why {
    fn from(error: io::Error) -> Self {
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
