//! Which connection to make, whatever TLS it has.

use std::{fmt, io, pin::Pin, str::FromStr};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

use crate::error::Why;

/// What a connection is made over.
pub(crate) trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}

pub(crate) type Stream = Box<dyn Bytes>;

/// TLS, whose type is nobody's affair.
pub(crate) type Handshake = Box<dyn Fn(String, TcpStream) -> Shaking + Send + Sync>;

pub(crate) type Shaking = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

/// One member of a cluster, by where clients reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// Without the brackets that an IPv6 address has in a URL.
    host: String,
    port: u16,
    wants_tls: bool,
}

/// The cluster, for whoever reads of it: without what is secret.
#[derive(Clone, Debug)]
pub(crate) struct Place(String);

const DEFAULT_PORT: u16 = 2379;

/// Without being asked to, it connects to nobody without TLS.
pub(crate) const NO_TLS: &str = "TLS is brought by `EtcdOptions::tls`";

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Bytes for S {}

pub(crate) async fn connect(at: &Endpoint, tls: Option<&Handshake>) -> Result<Stream, Why> {
    if at.wants_tls && tls.is_none() {
        return Err(NO_TLS.into());
    }
    let tcp = TcpStream::connect((at.host.as_str(), at.port)).await?;
    tcp.set_nodelay(true)?;
    match tls {
        Some(handshake) => Ok(handshake(at.host.clone(), tcp).await?),
        None => Ok(Box::new(tcp)),
    }
}

// === impl Endpoint ===

impl Endpoint {
    /// What requests name as their authority.
    pub(crate) fn authority(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

impl FromStr for Endpoint {
    type Err = &'static str;

    /// `http://host:port`, or `https://host:port`, or neither.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let (wants_tls, rest) = match text.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some(_) => return Err("an endpoint begins with `http://`, `https://` or its host"),
            None => (false, text),
        };
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        if authority.contains('@') {
            return Err("user and password are set by `EtcdOptions::user`, and not in an endpoint");
        }
        let wrong = "an endpoint is `host:port`";
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => rest.split_once(']').ok_or(wrong)?,
            None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
        };
        let port = match port {
            "" => DEFAULT_PORT,
            port => port.strip_prefix(':').and_then(|port| port.parse().ok()).ok_or(wrong)?,
        };
        let is_host = |c: char| c.is_ascii_alphanumeric() || "-._:%".contains(c);
        if host.is_empty() || !host.chars().all(is_host) {
            return Err(wrong);
        }
        Ok(Self { host: host.to_owned(), port, wants_tls })
    }
}

// === impl Place ===

impl Place {
    pub(crate) fn of(endpoints: &[Endpoint]) -> Self {
        Self(endpoints.iter().map(Endpoint::authority).collect::<Vec<_>>().join(","))
    }

    /// A cluster that nobody can make out.
    pub(crate) fn unknown() -> Self {
        Self("(no endpoints)".to_owned())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_host_and_its_port_and_anything_else_is_refused() {
        for (text, authority, wants_tls) in [
            ("http://etcd.internal:2379", "etcd.internal:2379", false),
            ("https://etcd.internal:1/", "etcd.internal:1", true),
            (" etcd-0.etcd ", "etcd-0.etcd:2379", false),
            ("10.0.0.7:80", "10.0.0.7:80", false),
            ("http://[::1]:2379", "[::1]:2379", false),
            ("[fe80::1%eth0]", "[fe80::1%eth0]:2379", false),
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!((&*endpoint.authority(), endpoint.wants_tls), (authority, wants_tls));
        }
        for text in [
            "",
            "http://",
            ":2379",
            "host:",
            "host:port",
            "host:65536",
            "host:1:2",
            "host/path",
            "[::1",
            "[::1]2379",
            "unix:///socket",
            "ftp://host",
            "a b",
            "a:hunter2@host",
        ] {
            let refused = text.parse::<Endpoint>().unwrap_err();
            assert!(!refused.contains("hunter2"), "{text}: {refused}");
        }
    }
}
