use std::{
    fmt,
    hash::{Hash, Hasher},
};

use buttress_core::KeyOf;
use http::{Request, header::HOST, uri::Scheme};

/// Keys requests by whom they are for: host and port.
///
/// One breaker for all hosts lets one that is ill cut off the others. The authority of the URI names
/// the callee; where the URI has none, the `Host` header does.
///
/// Names are compared without regard to case, and user names and passwords are neither kept nor shown.
/// A port that is not written is that of the scheme (`http` and `ws` 80, `https` and `wss` 443), so
/// `https://a` and `https://a:443` are one callee, and `http://a` is another. A request that names
/// nobody, or whose `Host` makes no sense, has a key that [is unknown](Authority::is_unknown): all such
/// requests share it.
///
/// Looking a key up allocates nothing; only a new key is made.
///
/// # Examples
///
/// ```
/// use buttress_core::KeyOf;
/// use buttress_http::ByAuthority;
///
/// let request = http::Request::get("https://user:secret@Example.com/path").body(()).unwrap();
/// assert_eq!(ByAuthority.key(&request).to_string(), "example.com:443");
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ByAuthority;

/// Whom a request is for: a host in lower case, and a port where it is known. See [`ByAuthority`].
#[derive(Clone, PartialEq, Eq)]
pub struct Authority {
    /// Empty if nobody is named.
    host: Box<str>,
    port: Option<u16>,
}

/// An authority where it lies in a request, in whatever case.
#[derive(Clone, Copy)]
struct Named<'a> {
    host: &'a str,
    port: Option<u16>,
}

// === impl ByAuthority ===

impl<B> KeyOf<Request<B>> for ByAuthority {
    type Key = Authority;

    fn hash<H: Hasher>(&self, request: &Request<B>, state: &mut H) {
        Named::of(request).hash(state);
    }

    fn matches(&self, request: &Request<B>, key: &Authority) -> bool {
        let named = Named::of(request);
        named.port == key.port && named.host.eq_ignore_ascii_case(&key.host)
    }

    fn key(&self, request: &Request<B>) -> Authority {
        let named = Named::of(request);
        Authority { host: named.host.to_ascii_lowercase().into(), port: named.port }
    }
}

// === impl Authority ===

impl Authority {
    /// The host in lower case, an IPv6 address in its brackets. Empty if nobody is named.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port, if it is written or the scheme has one.
    #[must_use]
    pub const fn port(&self) -> Option<u16> {
        self.port
    }

    /// Whether requests of this key name nobody.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.host.is_empty()
    }
}

impl Hash for Authority {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Named { host: &self.host, port: self.port }.hash(state);
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            _ if self.is_unknown() => f.write_str("unknown"),
            Some(port) => write!(f, "{}:{port}", self.host),
            None => f.write_str(&self.host),
        }
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({self})")
    }
}

// === impl Named ===

impl<'a> Named<'a> {
    const NOBODY: Self = Self { host: "", port: None };

    fn of<B>(request: &'a Request<B>) -> Self {
        let uri = request.uri();
        let default = uri.scheme().and_then(default_port);
        if let Some(authority) = uri.authority() {
            return Self { host: authority.host(), port: authority.port_u16().or(default) };
        }
        let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
        host.and_then(Self::read).unwrap_or(Self::NOBODY)
    }

    /// Reads `host`, `host:port`, `[v6]` or `[v6]:port`.
    fn read(host: &'a str) -> Option<Self> {
        // Nobody should write a user name here. Whoever does shall not find it in a log.
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host).trim_matches([' ', '\t']);
        let end_of_name = host.rfind(']').map_or(0, |bracket| bracket + 1);
        let (host, port) = match host[end_of_name..].find(':') {
            Some(colon) => {
                let (host, port) = host.split_at(end_of_name + colon);
                (host, &port[1..])
            }
            None => (host, ""),
        };
        let named = !host.is_empty() && !host.contains(['/', '?', '#', ' ']);
        let digits = port.bytes().all(|b| b.is_ascii_digit());
        (named && digits).then_some(())?;
        let port = if port.is_empty() { None } else { Some(port.parse().ok()?) };
        Some(Self { host, port })
    }

    fn hash<H: Hasher>(self, state: &mut H) {
        // In pieces that depend on the host alone: a hasher may tell pieces apart.
        for piece in self.host.as_bytes().chunks(32) {
            let mut lower = [0; 32];
            let lower = &mut lower[..piece.len()];
            lower.copy_from_slice(piece);
            lower.make_ascii_lowercase();
            state.write(lower);
        }
        state.write_u8(0xff);
        self.port.hash(state);
    }
}

fn default_port(scheme: &Scheme) -> Option<u16> {
    match scheme.as_str() {
        "http" | "ws" => Some(80),
        "https" | "wss" => Some(443),
        _ => None,
    }
}
