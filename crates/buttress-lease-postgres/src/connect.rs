//! Which connection to make, whatever TLS it has.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio_postgres::{
    AsyncMessage, Client, Config, Connection, Error, Socket,
    config::{Host, TargetSessionAttrs},
    tls::{MakeTlsConnect, TlsConnect, TlsStream},
};

/// Makes connections. `Config` and TLS, whose type is nobody's affair.
pub(crate) trait Connect: Send + Sync {
    fn connect(&self, config: Config) -> Connecting;
}

pub(crate) type Connecting = Pin<Box<dyn Future<Output = Result<Ends, Error>> + Send>>;

/// Who asks, and what carries the questions there and the answers back.
pub(crate) type Ends = (Client, Box<dyn Drive>);

/// Carries, while it is polled.
pub(crate) trait Drive: Send {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<AsyncMessage, Error>>>;
}

/// The server, for whoever reads of it: without what is secret.
#[derive(Clone, Debug)]
pub(crate) struct Place(String);

/// Longer than a database in reach takes, and shorter than the elector's limit for a call.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// What was sent and not acknowledged for so long is lost with its connection. So long a dead one is listened to.
const DEAD_AFTER: Duration = Duration::from_secs(10);

// === impl Connect ===

impl<T> Connect for T
where
    T: MakeTlsConnect<Socket> + Clone + Send + Sync + 'static,
    T::Stream: Send + 'static,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    fn connect(&self, config: Config) -> Connecting {
        let tls = self.clone();
        Box::pin(async move {
            let (client, connection) = config.connect(tls).await?;
            Ok((client, Box::new(connection) as Box<dyn Drive>))
        })
    }
}

impl<S: TlsStream + Send + Unpin> Drive for Connection<Socket, S> {
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<AsyncMessage, Error>>> {
        self.poll_message(cx)
    }
}

/// Sets what nobody has set.
pub(crate) fn completed(mut config: Config) -> Config {
    // Of several hosts the one that can write; and no other after a failover.
    config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    if config.get_application_name().is_none() {
        config.application_name("buttress-lease");
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(DEAD_AFTER);
    }
    if config.get_keepalives_interval().is_none() && config.get_keepalives_retries().is_none() {
        config
            .keepalives_idle(DEAD_AFTER)
            .keepalives_interval(DEAD_AFTER / 4)
            .keepalives_retries(3);
    }
    config
}

// === impl Place ===

impl Place {
    pub(crate) fn of(config: &Config) -> Self {
        let hosts = config.get_hosts().iter().map(|host| match host {
            Host::Tcp(name) => name.clone(),
            #[cfg(unix)]
            Host::Unix(path) => path.display().to_string(),
        });
        let mut hosts: Vec<_> = hosts.collect();
        if hosts.is_empty() {
            hosts = config.get_hostaddrs().iter().map(ToString::to_string).collect();
        }
        let ports = config.get_ports();
        for (nth, host) in hosts.iter_mut().enumerate() {
            let port = ports.get(nth).or(ports.first()).copied().unwrap_or(5432);
            host.push_str(&format!(":{port}"));
        }
        let database = config.get_dbname().or(config.get_user()).unwrap_or_default();
        Self(format!("{}/{database}", hosts.join(",")))
    }

    /// A server that nobody can make out.
    pub(crate) fn unknown() -> Self {
        Self("(no connection string)".to_owned())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
