use std::{
    error::Error,
    fmt,
    hash::{Hash, Hasher},
    str::FromStr,
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
///
/// From text it is `host:port` or `host`, as in a `Host` header. Write the port: a request for `http://a` has 80.
///
/// ```
/// use buttress_core::KeyOf;
/// use buttress_http::{Authority, ByAuthority};
///
/// let request = http::Request::get("http://127.0.0.1:9100/health").body(()).unwrap();
/// let key: Authority = "127.0.0.1:9100".parse()?;
/// assert_eq!(ByAuthority.key(&request), key);
/// # Ok::<_, buttress_http::InvalidAuthority>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Authority {
    /// Empty if nobody is named.
    host: Box<str>,
    port: Option<u16>,
}

/// A text that names nobody: it is neither `host` nor `host:port`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InvalidAuthority;

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

impl FromStr for Authority {
    type Err = InvalidAuthority;

    fn from_str(text: &str) -> Result<Self, InvalidAuthority> {
        let named = Named::read(text).ok_or(InvalidAuthority)?;
        Ok(Self { host: named.host.to_ascii_lowercase().into(), port: named.port })
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

// === impl InvalidAuthority ===

impl fmt::Display for InvalidAuthority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("must be `host` or `host:port`")
    }
}

impl Error for InvalidAuthority {}

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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    use proptest::prelude::*;

    use super::*;

    fn get(uri: &str) -> Request<()> {
        Request::get(uri).body(()).unwrap()
    }

    fn to_host(host: &[u8]) -> Request<()> {
        Request::get("/path").header(HOST, host).body(()).unwrap()
    }

    fn key(request: &Request<()>) -> String {
        ByAuthority.key(request).to_string()
    }

    // CBK-11
    #[test]
    fn the_authority_of_the_uri_names_the_callee() {
        for (uri, expected) in [
            ("http://example.com/", "example.com:80"),
            ("HTTP://EXAMPLE.com/", "example.com:80"),
            ("http://example.com:80/", "example.com:80"),
            ("https://example.com/", "example.com:443"),
            ("https://example.com:443/", "example.com:443"),
            ("https://example.com:8443/", "example.com:8443"),
            ("wss://example.com/", "example.com:443"),
            ("ftp://example.com/", "example.com"),
            ("example.com:443", "example.com:443"),
            ("http://[::1]/", "[::1]:80"),
            ("http://[FE80::1]:8080/", "[fe80::1]:8080"),
            ("http://127.0.0.1:80/", "127.0.0.1:80"),
        ] {
            assert_eq!(key(&get(uri)), expected, "{uri}");
        }
        let mut both = get("http://uri/");
        both.headers_mut().insert(HOST, "header".parse().unwrap());
        assert_eq!(key(&both), "uri:80");
    }

    #[test]
    fn the_host_header_names_it_where_the_uri_does_not() {
        for (host, expected) in [
            ("example.com", "example.com"),
            ("Example.COM:80", "example.com:80"),
            ("example.com:", "example.com"),
            (" example.com:08080\t", "example.com:8080"),
            ("[::1]", "[::1]"),
            ("[::1]:80", "[::1]:80"),
            ("user:secret@example.com:80", "example.com:80"),
        ] {
            assert_eq!(key(&to_host(host.as_bytes())), expected, "{host}");
            assert_eq!(host.parse(), Ok(ByAuthority.key(&to_host(host.as_bytes()))), "{host}");
        }
    }

    #[test]
    fn nobody_is_one_key_and_so_is_a_host_that_makes_no_sense() {
        let nobody = ByAuthority.key(&get("/path"));
        assert!(nobody.is_unknown());
        assert_eq!(nobody.to_string(), "unknown");
        let senseless: [&[u8]; 9] =
            [b"", b" ", b":80", b"a:http", b"a:99999", b"a:+80", b"a b", b"a/b", b"\xff"];
        for host in senseless {
            assert_eq!(ByAuthority.key(&to_host(host)), nobody, "{host:?}");
            let text = str::from_utf8(host).unwrap_or_default();
            assert_eq!(text.parse::<Authority>(), Err(InvalidAuthority), "{text}");
        }
        assert_ne!(ByAuthority.key(&to_host(b"unknown")), nobody);
    }

    #[test]
    fn no_password_is_kept_or_shown() {
        let request = get("https://user:secret@example.com/");
        let key = ByAuthority.key(&request);
        assert_eq!(format!("{key} {key:?}"), "example.com:443 Authority(example.com:443)");
        assert!(ByAuthority.matches(&get("https://example.com/"), &key));
        assert_eq!(hash_of(&request), hash_of(&get("https://EXAMPLE.com:443/")));
    }

    fn hash_of(request: &Request<()>) -> u64 {
        let mut state = hasher().build_hasher();
        ByAuthority.hash(request, &mut state);
        state.finish()
    }

    /// The same one each time.
    fn hasher() -> std::hash::BuildHasherDefault<std::hash::DefaultHasher> {
        Default::default()
    }

    fn uris() -> impl Strategy<Value = String> {
        let host = prop_oneof!["[aA]{1,2}", "[aAbB]{31,34}", Just("[::A]".to_owned())];
        let port = prop_oneof![Just(""), Just(":80"), Just(":443"), Just(":")];
        let scheme = prop_oneof![Just("http"), Just("https"), Just("ftp")];
        let user = prop_oneof![Just(""), Just("u:p@"), Just("u@")];
        (scheme, user, host, port).prop_map(|(s, u, h, p)| format!("{s}://{u}{h}{p}/"))
    }

    proptest! {
        #[test]
        fn what_is_looked_up_is_what_was_kept(one in uris(), other in uris()) {
            let (one, other) = (get(&one), get(&other));
            let (key, other_key) = (ByAuthority.key(&one), ByAuthority.key(&other));
            prop_assert_eq!(hasher().hash_one(&key), hash_of(&one));
            prop_assert!(ByAuthority.matches(&one, &key));
            prop_assert_eq!(ByAuthority.matches(&one, &other_key), key == other_key);
            prop_assert!(key != other_key || hash_of(&one) == hash_of(&other));
            prop_assert_eq!(HashSet::from([key.clone()]).contains(&other_key), key == other_key);
        }
    }
}
