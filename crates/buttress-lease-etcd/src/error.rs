use std::{error::Error, fmt, io};

use buttress_leadership::StoreError;
use etcd_client::Error as ClientError;
use tonic::{Code, Status};

use crate::connect::Place;

/// What went wrong, with which cluster, at what. It is the cause within a [`StoreError`].
///
/// Neither it nor what it comes of has a password in it.
#[derive(Debug)]
pub struct EtcdError {
    place: Place,
    operation: &'static str,
    why: Why,
}

/// Why a step failed, before it is known which store it was of.
#[derive(Debug)]
pub(crate) enum Why {
    Etcd(ClientError),
    /// Before there was a connection.
    Io(io::Error),
    /// While there came to be one.
    Http(hyper::Error),
    /// Something that etcd has no word for, and that will be so again.
    Wrong(String),
    /// Something that passes.
    Passing(String),
    /// One of several members, and why it was not that one.
    At(String, Box<Self>),
}

/// A failure, and whether the step may have had its effect.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) why: Why,
    pub(crate) is_ambiguous: bool,
}

// === impl EtcdError ===

impl EtcdError {
    /// The members of the cluster, each as `host:port`, with commas between.
    #[must_use]
    pub fn server(&self) -> &str {
        self.place.as_str()
    }

    /// What was asked: `open`, `acquire`, `renew`, `release` or `inspect`.
    #[must_use]
    pub fn operation(&self) -> &str {
        self.operation
    }

    /// The code that gRPC has for it, if it was etcd that refused.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        self.why.refused().map(Status::code)
    }
}

impl fmt::Display for EtcdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "etcd lease store {}: {}: {}", self.place, self.operation, self.why)
    }
}

impl Error for EtcdError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self.why.innermost() {
            Why::Etcd(error) => Some(error),
            Why::Io(error) => Some(error),
            Why::Http(error) => Some(error),
            Why::Wrong(_) | Why::Passing(_) | Why::At(..) => None,
        }
    }
}

// === impl Failure ===

impl Failure {
    /// What a request that was sent ended with.
    pub(crate) fn sent(why: Why) -> Self {
        // What etcd refuses it has not done. But for want of room it refuses what it has done, and what it does
        // not answer in time it may do yet.
        let is_ambiguous = !why.refused().is_some_and(|status| is_plain(status.code()));
        Self { why, is_ambiguous }
    }

    /// It was a question only, or nobody will know of what was done.
    pub(crate) fn without_effect(self) -> Self {
        Self { is_ambiguous: false, ..self }
    }

    /// Something before it was done.
    pub(crate) fn after_effect(self) -> Self {
        Self { is_ambiguous: true, ..self }
    }

    pub(crate) fn into_error(self, place: &Place, operation: &'static str) -> StoreError {
        let kind = match (self.is_ambiguous, self.why.lasts()) {
            (true, _) => StoreError::Ambiguous,
            (false, true) => StoreError::Fatal,
            (false, false) => StoreError::NotApplied,
        };
        kind(Box::new(EtcdError { place: place.clone(), operation, why: self.why }))
    }
}

impl<W: Into<Why>> From<W> for Failure {
    fn from(why: W) -> Self {
        Self { why: why.into(), is_ambiguous: false }
    }
}

/// Whether a server that says so has looked, and done nothing.
fn is_plain(code: Code) -> bool {
    use Code::{
        DataLoss, FailedPrecondition, InvalidArgument, NotFound, OutOfRange, PermissionDenied,
        Unauthenticated, Unimplemented,
    };
    matches!(
        code,
        DataLoss
            | FailedPrecondition
            | InvalidArgument
            | NotFound
            | OutOfRange
            | PermissionDenied
            | Unauthenticated
            | Unimplemented
    )
}

// === impl Why ===

impl Why {
    /// What etcd itself has answered, and not the client for want of an answer.
    fn refused(&self) -> Option<&Status> {
        match self.innermost() {
            Self::Etcd(ClientError::GRpcStatus(status)) => {
                Some(status).filter(|status| status.source().is_none())
            }
            _ => None,
        }
    }

    fn innermost(&self) -> &Self {
        match self {
            Self::At(_, why) => why.innermost(),
            why => why,
        }
    }

    /// Whether the next call may go the same way. A member that has no leader, or does not know us any more, is
    /// left for another, or for another try.
    pub(crate) fn leaves_connection(&self) -> bool {
        let is_plain = |status: &Status| is_plain(status.code());
        self.refused().is_some_and(|status| is_plain(status) && !is_stale(status))
    }

    /// Whether it will be so again, until somebody mends it.
    pub(crate) fn lasts(&self) -> bool {
        match self.innermost() {
            Self::Etcd(ClientError::GRpcStatus(_)) => self.refused().is_some_and(|status| {
                is_plain(status.code()) && status.code() != Code::NotFound && !is_stale(status)
            }),
            Self::Etcd(_) => true,
            // What the network does passes. What it brings and is no answer (a certificate that does not verify)
            // may not.
            Self::Io(error) => error.kind() == io::ErrorKind::InvalidData,
            Self::Http(_) | Self::Passing(_) => false,
            Self::Wrong(_) => true,
            Self::At(..) => unreachable!("it is the innermost"),
        }
    }
}

/// Whether it is over once we have said anew who we are: the members forget that, with each start and each change
/// of somebody's rights.
fn is_stale(status: &Status) -> bool {
    ["invalid auth token", "revision of auth store is old"]
        .iter()
        .any(|what| status.message().contains(what))
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = match self {
            Self::Etcd(ClientError::GRpcStatus(status)) => {
                let said = with_causes(status.message(), status.source());
                format!("{said} ({:?})", status.code())
            }
            Self::Etcd(error) => error.to_string(),
            Self::Io(error) => error.to_string(),
            Self::Http(error) => with_causes(&error.to_string(), error.source()),
            Self::Wrong(what) | Self::Passing(what) => what.clone(),
            Self::At(which, why) => format!("{which}: {why}"),
        };
        // What is no answer is quoted, and may have lines.
        f.write_str(said.lines().next().unwrap_or_default())
    }
}

fn with_causes(what: &str, mut cause: Option<&(dyn Error + 'static)>) -> String {
    let mut said = what.to_owned();
    while let Some(error) = cause {
        let more = error.to_string();
        if !said.contains(&more) {
            said = format!("{said}: {more}");
        }
        cause = error.source();
    }
    said
}

impl From<ClientError> for Why {
    fn from(error: ClientError) -> Self {
        Self::Etcd(error)
    }
}

impl From<io::Error> for Why {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<hyper::Error> for Why {
    fn from(error: hyper::Error) -> Self {
        Self::Http(error)
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
