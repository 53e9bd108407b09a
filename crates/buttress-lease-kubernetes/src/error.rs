use std::{error::Error, fmt, io};

use buttress_leadership::{LeaseName, StoreError};
use kube::{Error as ClientError, config::KubeconfigError};

use crate::connect::Place;

/// What went wrong, with which lease, at what. It is the cause within a [`StoreError`].
///
/// Neither it nor what it comes of has a token or a password in it.
#[derive(Debug)]
pub struct KubernetesError {
    place: Place,
    /// None, if it was of no lease.
    name: Option<LeaseName>,
    operation: &'static str,
    why: Why,
}

/// Why a step failed, before it is known which store it was of.
#[derive(Debug)]
pub(crate) enum Why {
    Kube(ClientError),
    /// Something that the client has no word for, and that will be so again.
    Wrong(String),
    /// Something that passes.
    Passing(&'static str),
}

/// A failure, and whether the step may have had its effect.
#[derive(Debug)]
pub(crate) struct Failure {
    why: Why,
    is_ambiguous: bool,
}

/// More of a page that is no answer is of no use.
const LONGEST: usize = 200;

// === impl KubernetesError ===

impl KubernetesError {
    /// The namespace that the store's leases are in.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.place.namespace()
    }

    /// The lease, if it was about one.
    #[must_use]
    pub fn name(&self) -> Option<&LeaseName> {
        self.name.as_ref()
    }

    /// What was asked: `open`, `acquire`, `renew`, `release` or `inspect`.
    #[must_use]
    pub fn operation(&self) -> &str {
        self.operation
    }

    /// The status of HTTP, as 403, if it was the API server that refused.
    #[must_use]
    pub fn code(&self) -> Option<u16> {
        match &self.why {
            Why::Kube(ClientError::Api(status)) => Some(status.code),
            _ => None,
        }
    }
}

impl fmt::Display for KubernetesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kubernetes lease store {}", self.place)?;
        if let Some(name) = &self.name {
            write!(f, "/{name}")?;
        }
        write!(f, ": {}: ", self.operation)?;
        let said = match &self.why {
            Why::Kube(ClientError::Api(status)) => {
                let said = status.message.lines().next().unwrap_or_default();
                let said: String = said.chars().take(LONGEST).collect();
                return write!(f, "{said} ({})", status.code);
            }
            Why::Kube(ClientError::SerdeError(error)) => format!("it answers no lease: {error}"),
            Why::Kube(error) => {
                chain(error).map(ToString::to_string).collect::<Vec<_>>().join(": ")
            }
            Why::Wrong(what) => what.clone(),
            Why::Passing(what) => (*what).to_owned(),
        };
        f.write_str(said.lines().next().unwrap_or_default())
    }
}

impl Error for KubernetesError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.why {
            Why::Kube(error) => Some(error),
            Why::Wrong(_) | Why::Passing(_) => None,
        }
    }
}

/// What the client wraps says more than it does, and says it too.
fn chain(error: &ClientError) -> impl Iterator<Item = &(dyn Error + 'static)> {
    let first = error.source().or(Some(error as &(dyn Error + 'static)));
    std::iter::successors(first, |error| (*error).source())
}

/// Whether what came was no answer. It may be said within, by an error that does not say so itself.
fn is_invalid(error: &io::Error) -> bool {
    let within = || error.get_ref()?.downcast_ref();
    error.kind() == io::ErrorKind::InvalidData || within().is_some_and(is_invalid)
}

// === impl Failure ===

impl Failure {
    /// What a write that was sent ended with.
    pub(crate) fn sent(why: Why) -> Self {
        Self { is_ambiguous: !why.is_plain(), why }
    }

    /// It was done, and what came back of it cannot be read.
    pub(crate) fn after_effect(self) -> Self {
        Self { is_ambiguous: true, ..self }
    }

    pub(crate) fn into_error(
        self,
        place: &Place,
        name: Option<&LeaseName>,
        operation: &'static str,
    ) -> StoreError {
        let kind = match (self.is_ambiguous, self.why.lasts()) {
            (true, _) => StoreError::Ambiguous,
            (false, true) => StoreError::Fatal,
            (false, false) => StoreError::NotApplied,
        };
        let (place, name) = (place.clone(), name.cloned());
        kind(Box::new(KubernetesError { place, name, operation, why: self.why }))
    }
}

impl<W: Into<Why>> From<W> for Failure {
    fn from(why: W) -> Self {
        Self { why: why.into(), is_ambiguous: false }
    }
}

// === impl Why ===

impl Why {
    /// Whether it is sure that nothing was written.
    fn is_plain(&self) -> bool {
        match self {
            // Who is told 5xx may hear it from somebody on the way, or after it was done.
            Self::Kube(ClientError::Api(status)) => matches!(status.code, 400..=407 | 409..=499),
            Self::Kube(error) => match error {
                ClientError::Service(_) | ClientError::HyperError(_) => chain(error).any(|error| {
                    let error = error.downcast_ref::<hyper_util::client::legacy::Error>();
                    error.is_some_and(hyper_util::client::legacy::Error::is_connect)
                }),
                ClientError::SerdeError(_)
                | ClientError::FromUtf8(_)
                | ClientError::ReadEvents(_) => false,
                // What is left is about the request, before it is sent.
                _ => true,
            },
            Self::Wrong(_) | Self::Passing(_) => true,
        }
    }

    /// Whether it will be so again, until somebody mends it.
    fn lasts(&self) -> bool {
        match self {
            Self::Kube(ClientError::Api(status)) => {
                matches!(status.code, 400..=499) && !matches!(status.code, 408 | 409 | 429)
            }
            // What the network does passes. What it brings and is no answer (a certificate that does not verify)
            // may not.
            Self::Kube(error @ (ClientError::Service(_) | ClientError::HyperError(_))) => {
                chain(error).any(|error| error.downcast_ref().is_some_and(is_invalid))
            }
            Self::Kube(_) | Self::Wrong(_) => true,
            Self::Passing(_) => false,
        }
    }

    /// That a lease is not there, and not something else of the way to it.
    pub(crate) fn is_not_found(&self, lease: &LeaseName) -> bool {
        let Self::Kube(ClientError::Api(status)) = self else { return false };
        let name = status.details.as_ref().map(|details| &*details.name);
        status.reason == "NotFound" && name.is_none_or(|name| name == lease.as_str())
    }

    /// That somebody else was quicker.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, Self::Kube(ClientError::Api(status)) if status.code == 409)
    }

    /// Whether the next call may go the same way. Who is not let in any more may be with a token that is read anew.
    pub(crate) fn leaves_client(&self) -> bool {
        match self {
            Self::Kube(ClientError::Api(status)) => status.code != 401,
            Self::Kube(ClientError::SerdeError(_)) => true,
            _ => false,
        }
    }
}

impl From<ClientError> for Why {
    fn from(error: ClientError) -> Self {
        // Some of them quote what is secret: a program's output, a line of a file, a proxy with its password.
        Self::Wrong(match error {
            ClientError::Auth(_) => "there is no token to be had by the configuration".to_owned(),
            ClientError::InferConfig(error) => {
                let error = error.source().and_then(|error| error.downcast_ref());
                format!("there is no configuration, neither a pod's nor {}", file(error))
            }
            ClientError::InferKubeconfig(error) => {
                format!("there is no configuration in {}", file(Some(&error)))
            }
            ClientError::ProxyProtocolUnsupported { .. }
            | ClientError::ProxyProtocolDisabled { .. } => {
                "the configuration has a proxy that the client does not go by".to_owned()
            }
            ClientError::TlsRequired => {
                "TLS is a feature of `kube`: turn on `rustls-tls` with `ring` or `aws-lc-rs`, \
                or `openssl-tls`, or bring a client that has it"
                    .to_owned()
            }
            error => return Self::Kube(error),
        })
    }
}

fn file(error: Option<&KubeconfigError>) -> String {
    match error {
        Some(KubeconfigError::Parse(_)) | None => "a kubeconfig that can be read".to_owned(),
        Some(error) => format!("a kubeconfig: {error}"),
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
