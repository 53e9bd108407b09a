//! Which client to ask with.

use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::{
    Uri,
    header::{HeaderValue, USER_AGENT},
};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, Config};

use crate::error::Why;

/// The server and the namespace, for whoever reads of it: without what is secret.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Unknown, if the client came as it is.
    server: Option<String>,
    namespace: String,
}

/// The way to the server.
pub(crate) enum Way {
    /// The user's.
    Client(Client),
    /// One of our own, made when it is wanted.
    Config { config: Box<Config>, made: Mutex<Option<Client>> },
}

/// Has the next call made with a client of its own, unless it is told that this one will do.
struct Forget<'a>(Option<&'a Way>);

/// Longer than a server in reach takes, and shorter than the elector's limit for a call.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// For who reads the server's log, and for rules of priority that go by it.
const AGENT: &str = concat!("buttress/", env!("CARGO_PKG_VERSION"), "/leader-election");

/// Sets what a lease wants otherwise than the rest of a program.
pub(crate) fn completed(mut config: Config) -> Config {
    // The elector repeats, and knows when to stop.
    config.default_retry = false;
    let timeout = config.connect_timeout.unwrap_or(CONNECT_TIMEOUT);
    config.connect_timeout = Some(timeout.min(CONNECT_TIMEOUT));
    if config.headers.iter().all(|(name, _)| name != USER_AGENT) {
        config.headers.push((USER_AGENT, HeaderValue::from_static(AGENT)));
    }
    config
}

/// The client panics in its first call if it is not told how to speak.
fn made_by(config: &Config) -> Result<Client, Why> {
    if !is_server(&config.cluster_url) {
        return Err(NO_SERVER.into());
    }
    Ok(Client::try_from(config.clone())?)
}

/// Whether that is the URL of an API server.
pub(crate) fn is_server(url: &Uri) -> bool {
    matches!(url.scheme_str(), Some("http" | "https"))
}

pub(crate) const NO_SERVER: &str =
    "this is no URL of an API server: `http://` or `https://`, and a host";

// === impl Place ===

impl Place {
    pub(crate) fn of(way: &Way, namespace: Option<String>) -> Self {
        match way {
            Way::Client(client) => {
                let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
                Self { server: None, namespace }
            }
            Way::Config { config, .. } => {
                let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
                let url = &config.cluster_url;
                let port = url.port_u16().map_or_else(String::new, |port| format!(":{port}"));
                Self { server: url.host().map(|host| format!("{host}{port}")), namespace }
            }
        }
    }

    /// A server that nobody can make out.
    pub(crate) fn unknown() -> Self {
        Self { server: None, namespace: "(no configuration)".to_owned() }
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(server) = &self.server {
            write!(f, "{server}/")?;
        }
        f.write_str(&self.namespace)
    }
}

// === impl Way ===

impl Way {
    pub(crate) fn of(config: Config) -> Self {
        Self::Config { config: Box::new(completed(config)), made: Mutex::new(None) }
    }

    pub(crate) fn client(&self) -> Result<Client, Why> {
        match self {
            Self::Client(client) => Ok(client.clone()),
            Self::Config { config, made } => {
                let mut made = lock(made);
                if made.is_none() {
                    *made = Some(made_by(config)?);
                }
                Ok(made.clone().expect("it has just been made"))
            }
        }
    }

    pub(crate) fn leases(&self, place: &Place) -> Result<Api<Lease>, Why> {
        Ok(Api::namespaced(self.client()?, place.namespace()))
    }

    /// With connections that no call has: for who listens.
    pub(crate) fn apart(&self, place: &Place) -> Result<Api<Lease>, Why> {
        let client = match self {
            Self::Client(client) => client.clone(),
            Self::Config { config, .. } => made_by(config)?,
        };
        Ok(Api::namespaced(client, place.namespace()))
    }

    /// What is answered to `call`. If nothing is, or nobody waits for it any more, the connections are not used again.
    pub(crate) async fn carry<T>(
        &self,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, Why> {
        let mut forget = Forget(Some(self));
        let done = call.await.map_err(Why::from);
        if done.as_ref().map_or_else(Why::leaves_client, |_| true) {
            forget.0 = None;
        }
        done
    }
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        if let Some(Way::Config { made, .. }) = self.0 {
            *lock(made) = None;
        }
    }
}

fn lock(made: &Mutex<Option<Client>>) -> MutexGuard<'_, Option<Client>> {
    made.lock().unwrap_or_else(PoisonError::into_inner)
}
