use std::{error::Error, fmt};

use buttress_leadership::StoreError;
use tokio_postgres::error::{Severity, SqlState};

use crate::connect::Place;

/// What went wrong, with which server, at what. It is the cause within a [`StoreError`].
///
/// Neither it nor what it comes of has a password in it.
#[derive(Debug)]
pub struct PostgresError {
    place: Place,
    operation: &'static str,
    why: Why,
}

/// Why a step failed, before it is known which store it was of.
#[derive(Debug)]
pub(crate) enum Why {
    Postgres(tokio_postgres::Error),
    /// Something that PostgreSQL has no word for, and that will be so again.
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

// === impl PostgresError ===

impl PostgresError {
    /// The server and its database, as `host:port/database`.
    #[must_use]
    pub fn server(&self) -> &str {
        self.place.as_str()
    }

    /// What was asked: `open`, `acquire`, `renew`, `release` or `inspect`.
    #[must_use]
    pub fn operation(&self) -> &str {
        self.operation
    }

    /// The code that PostgreSQL has for it, if it was PostgreSQL that refused.
    #[must_use]
    pub fn code(&self) -> Option<&SqlState> {
        match &self.why {
            Why::Postgres(error) => error.code(),
            Why::Wrong(_) | Why::Gone(_) => None,
        }
    }
}

impl fmt::Display for PostgresError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgreSQL lease store {}: {}: ", self.place, self.operation)?;
        match &self.why {
            Why::Postgres(error) => match error.as_db_error() {
                Some(error) => write!(f, "{} ({})", error.message(), error.code().code()),
                None => {
                    fmt::Display::fmt(error, f)?;
                    let mut cause = error.source();
                    while let Some(error) = cause {
                        write!(f, ": {error}")?;
                        cause = error.source();
                    }
                    Ok(())
                }
            },
            Why::Wrong(what) => f.write_str(what),
            Why::Gone(what) => f.write_str(what),
        }
    }
}

impl Error for PostgresError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.why {
            Why::Postgres(error) => Some(error),
            Why::Wrong(_) | Why::Gone(_) => None,
        }
    }
}

// === impl Failure ===

impl Failure {
    /// What a statement that was sent ended with.
    pub(crate) fn sent(why: Why) -> Self {
        // It was rolled back if it is an error and no more. What ends the session may come after the commit.
        let is_ambiguous = !why.is_plain();
        Self { why, is_ambiguous }
    }

    /// It was done, and what came back of it cannot be read.
    pub(crate) fn after_effect(self) -> Self {
        Self { is_ambiguous: true, ..self }
    }

    /// Nothing that matters was sent yet, or it was a question only.
    pub(crate) fn without_effect(self) -> Self {
        Self { is_ambiguous: false, ..self }
    }

    pub(crate) fn into_error(self, place: &Place, operation: &'static str) -> StoreError {
        let kind = match (self.is_ambiguous, self.why.lasts()) {
            (true, _) => StoreError::Ambiguous,
            (false, true) => StoreError::Fatal,
            (false, false) => StoreError::NotApplied,
        };
        kind(Box::new(PostgresError { place: place.clone(), operation, why: self.why }))
    }
}

impl<W: Into<Why>> From<W> for Failure {
    fn from(why: W) -> Self {
        Self { why: why.into(), is_ambiguous: false }
    }
}

// === impl Why ===

impl Why {
    /// Whether the server has refused, and listens for the next statement.
    fn is_plain(&self) -> bool {
        let Self::Postgres(error) = self else { return false };
        let severity = error.as_db_error().and_then(|error| error.parsed_severity());
        severity == Some(Severity::Error)
    }

    /// Whether the next call may go the same way. One that may not write is another one's replica now.
    pub(crate) fn leaves_connection(&self) -> bool {
        let Self::Postgres(error) = self else { return false };
        self.is_plain() && error.code() != Some(&SqlState::READ_ONLY_SQL_TRANSACTION)
    }

    /// Whether it will be so again, until somebody mends it.
    fn lasts(&self) -> bool {
        match self {
            Self::Postgres(error) => match error.code() {
                // Classes: not supported, data, constraint, statement, authorisation, rights, catalog, schema,
                // syntax or access. What locks, resources and operators do may be over with the next call.
                Some(code) => {
                    let class = &code.code()[..2];
                    ["0A", "22", "23", "26", "28", "2F", "3D", "3F", "42"].contains(&class)
                }
                // What the network does may be over too. What it brings and is no answer (a certificate that does
                // not verify) may not, nor how we are set up.
                None if error.is_closed() => false,
                None => error
                    .source()
                    .and_then(|source| source.downcast_ref::<std::io::Error>())
                    .is_none_or(|error| error.kind() == std::io::ErrorKind::InvalidData),
            },
            Self::Wrong(_) => true,
            Self::Gone(_) => false,
        }
    }
}

impl From<tokio_postgres::Error> for Why {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Postgres(error)
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
