use std::{fmt, sync::Arc};

use buttress_core::{InvalidSetting, LeaseId, edge};

/// What is led: one lease has one leader at a time.
///
/// From 1 to 253 bytes without control characters, which is what all stores can keep. With the feature `serde`
/// it is a string.
///
/// ```
/// use buttress_leadership::LeaseName;
///
/// assert_eq!(LeaseName::new("billing/nightly")?.as_str(), "billing/nightly");
/// assert!(LeaseName::new("").is_err());
/// # Ok::<(), buttress_core::InvalidSetting>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseName(Arc<str>);

/// Who leads, or wants to: one run of one process.
///
/// A process that was started anew is another one, for it knows nothing of what it had begun. So an identity
/// that is the same after a restart, as a host's name is, makes two out of one: both believe that the lease
/// in the store is theirs.
/// [`generate`](Self::generate) one each time, and one for each elector: settings that are cloned have the identity of
/// the first. An elector leaves alone what has its name and is not its own, and [says](crate::Event::IdentityInUse) so.
/// But where an answer is lost, two of one identity cannot know whose the lease is, and then both lead.
///
/// From 1 to 255 bytes without control characters. Two are the same only if all of it is.
///
/// ```
/// use buttress_leadership::Identity;
///
/// let (one, other) = (Identity::generate(), Identity::generate());
/// assert!(one != other && one.is_unique());
/// assert!(!Identity::new("host-7.example.com")?.is_unique());
/// # Ok::<(), buttress_core::InvalidSetting>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(Arc<str>);

/// Kubernetes' limit, the shortest of all.
const MAX_NAME: usize = 253;
const MAX_IDENTITY: usize = 255;
/// A host's name beyond that says no more, and the whole has to fit.
const MAX_HOST: usize = 63;
/// Of so many hexadecimal digits in a row it is believed that chance has made them: 64 bits.
const UNIQUE_DIGITS: usize = 16;
/// Chance leaves fewer different ones among 16 digits in one case of a million.
const UNIQUE_KINDS: u32 = 5;

// === impl LeaseName ===

impl LeaseName {
    /// The lease of that name.
    ///
    /// # Errors
    ///
    /// Refuses the `name` if it is empty, longer than 253 bytes, or has control characters.
    pub fn new(name: impl Into<Arc<str>>) -> Result<Self, InvalidSetting> {
        check("name", name.into(), MAX_NAME).map(Self)
    }

    /// What is no name: a place for one.
    #[cfg(feature = "serde")]
    pub(crate) fn none() -> Self {
        Self("".into())
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// By what those who write name it. See [`Fence::current`](crate::Fence::current).
    #[must_use]
    pub fn id(&self) -> LeaseId {
        LeaseId::of(self.as_str())
    }
}

impl fmt::Debug for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl Identity ===

impl Identity {
    /// The identity of that text, as a store has it.
    ///
    /// # Errors
    ///
    /// Refuses the `identity` if it is empty, longer than 255 bytes, or has control characters.
    pub fn new(identity: impl Into<Arc<str>>) -> Result<Self, InvalidSetting> {
        check("identity", identity.into(), MAX_IDENTITY).map(Self)
    }

    /// A new one: the host's name and the process's number, for whoever reads it, and 128 bits by chance.
    ///
    /// Each call makes another, so that two electors of one process are two.
    #[must_use]
    pub fn generate() -> Self {
        let host: String = host().chars().filter(|c| c.is_ascii_graphic()).take(MAX_HOST).collect();
        let host = if host.is_empty() { "host" } else { &host };
        Self(format!("{host}-{}-{}", std::process::id(), chance()).into())
    }

    /// A new one that begins with `prefix`, as a pod's name, instead of host and process.
    ///
    /// # Errors
    ///
    /// Refuses the `identity` if `prefix` is longer than 222 bytes, or has control characters.
    pub fn with_prefix(prefix: &str) -> Result<Self, InvalidSetting> {
        Self::new(format!("{prefix}-{}", chance()))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it looks like one that no other run has: it has 16 hexadecimal digits in a row, as are in 64
    /// bits by chance, dashes left aside as in a UUID.
    #[must_use]
    pub fn is_unique(&self) -> bool {
        let is_part = |c: char| c.is_ascii_hexdigit() || c == '-';
        self.0.split(|c| !is_part(c)).any(|run| {
            let digits = run.chars().filter_map(|c| c.to_digit(16));
            let kinds = digits.clone().fold(0_u16, |kinds, digit| kinds | 1 << digit);
            digits.count() >= UNIQUE_DIGITS && kinds.count_ones() >= UNIQUE_KINDS
        })
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn check(what: &'static str, text: Arc<str>, max: usize) -> Result<Arc<str>, InvalidSetting> {
    if text.is_empty() || text.len() > max {
        return Err(InvalidSetting::new(what, format!("must be 1 to {max} bytes long")));
    }
    if text.chars().any(char::is_control) {
        return Err(InvalidSetting::new(what, "must have no control characters"));
    }
    Ok(text)
}

/// 128 bits from the dice, which have 53 a throw.
fn chance() -> String {
    const BITS: f64 = (1_u64 << 32) as f64;
    let word = || (edge::unit() * BITS) as u32;
    format!("{:08x}{:08x}{:08x}{:08x}", word(), word(), word(), word())
}

#[cfg(unix)]
fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(not(unix))]
fn host() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_identity_that_is_made_is_unique_and_fits() {
        let many: std::collections::BTreeSet<_> = (0..1000).map(|_| Identity::generate()).collect();
        assert_eq!(many.len(), 1000);
        assert!(many.iter().all(|one| one.is_unique() && one.as_str().len() <= MAX_IDENTITY));
        let pod = Identity::with_prefix("pod-a").unwrap();
        assert!(pod.is_unique() && pod.as_str().starts_with("pod-a-"));
        assert!(Identity::with_prefix(&"x".repeat(222)).is_ok());
        assert!(Identity::with_prefix(&"x".repeat(223)).is_err());
    }

    // kubernetes/kubernetes#22775
    #[test]
    fn a_hosts_name_is_not_unique() {
        let of = |text: &str| Identity::new(text).unwrap().is_unique();
        assert!(of("550e8400-e29b-41d4-a716-446655440000"));
        assert!(of("pod/7f3a9c0e1b2d4865"));
        for host in
            ["a", "ip-10-0-12-7", "0242ac110002", "web-0", "0000000000000000", "7f3a9c0e.1b2d4865"]
        {
            assert!(!of(host), "{host}");
        }
    }

    #[test]
    fn what_a_store_cannot_keep_is_refused_by_name() {
        for (text, works) in [("", false), ("a\nb", false), ("a", true), ("é/b c", true)] {
            assert_eq!(LeaseName::new(text).is_ok(), works, "{text:?}");
            assert_eq!(Identity::new(text).is_ok(), works, "{text:?}");
        }
        let long = |n| "x".repeat(n);
        assert!(LeaseName::new(long(253)).is_ok() && Identity::new(long(255)).is_ok());
        assert_eq!(LeaseName::new(long(254)).unwrap_err().setting(), "name");
        assert_eq!(Identity::new(long(256)).unwrap_err().setting(), "identity");
    }

    #[test]
    fn a_name_that_begins_with_another_is_another() {
        let of = |text: &str| Identity::new(text).unwrap();
        assert_ne!(of("node-1"), of("node-10"));
    }
}
