//! Which connection to make, whatever TLS it has.

use std::{fmt, io, pin::Pin, time::Duration};

use redis::{
    ConnectionAddr, ConnectionInfo,
    io::tcp::socket2::{SockRef, TcpKeepalive},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

use crate::error::Why;

/// What a connection is made over.
pub(crate) trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}

pub(crate) type Stream = Box<dyn Bytes>;

/// TLS, whose type is nobody's affair.
pub(crate) type Handshake = Box<dyn Fn(TcpStream) -> Shaking + Send + Sync>;

pub(crate) type Shaking = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

/// The server, for whoever reads of it: without what is secret.
#[derive(Clone, Debug)]
pub(crate) struct Place(String);

/// So long a dead connection is listened to.
const DEAD_AFTER: Duration = Duration::from_secs(10);

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Bytes for S {}

pub(crate) async fn connect(
    server: &ConnectionInfo,
    tls: Option<&Handshake>,
) -> Result<Stream, Why> {
    let tcp = match server.addr() {
        ConnectionAddr::Tcp(host, port) => TcpStream::connect((host.as_str(), *port)).await?,
        ConnectionAddr::TcpTls { host, port, insecure: false, .. } if tls.is_some() => {
            TcpStream::connect((host.as_str(), *port)).await?
        }
        #[cfg(unix)]
        ConnectionAddr::Unix(path) if tls.is_none() => {
            return Ok(Box::new(tokio::net::UnixStream::connect(path).await?));
        }
        _ => return Err(NO_TLS.into()),
    };
    tcp.set_nodelay(true)?;
    let ours = TcpKeepalive::new().with_time(DEAD_AFTER).with_interval(DEAD_AFTER / 4);
    SockRef::from(&tcp).set_tcp_keepalive(server.tcp_settings().keepalive().unwrap_or(&ours))?;
    match tls {
        Some(handshake) => Ok(handshake(tcp).await?),
        None => Ok(Box::new(tcp)),
    }
}

/// Without being asked to, it connects to nobody without TLS.
pub(crate) const NO_TLS: &str =
    "TLS is brought by `RedisOptions::tls`, with a `redis://` before the host";

// === impl Place ===

impl Place {
    pub(crate) fn of(server: &ConnectionInfo) -> Self {
        Self(format!("{}/{}", server.addr(), server.redis_settings().db()))
    }

    /// A server that nobody can make out.
    pub(crate) fn unknown() -> Self {
        Self("(no URL)".to_owned())
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
