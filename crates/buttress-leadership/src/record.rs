use std::time::Duration;

use bytes::Bytes;

use crate::{FencingToken, Identity, LeaseName};

/// An instant on a store's clock, in nanoseconds since whatever that counts from.
///
/// Two of one record can be subtracted. Nothing else can be done with them: a store's clock and ours are two,
/// and who compares them has a lease that ends when it is not over.
///
/// ```compile_fail
/// # use buttress_leadership::{LeaseClock, StoreTime};
/// let _ = StoreTime::from_nanos(7) < LeaseClock::system().now();
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreTime(u64);

/// A lease as its store has it.
///
/// The store's time and the end are of the same clock and of the same reading, so that what is
/// [left](Self::remaining) is a length of time, which means the same everywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseRecord {
    /// Which lease it is.
    pub name: LeaseName,
    /// Who holds it. Nobody if it was released.
    pub holder: Option<Identity>,
    /// The token of the latest term, whether or not that is over.
    pub fence: FencingToken,
    /// For how long the store really grants it, from each renewal on. It may be less or more than what was
    /// asked.
    pub granted_ttl: Duration,
    /// When the term began.
    pub acquired_at: StoreTime,
    /// When it was renewed last, or began.
    pub renewed_at: StoreTime,
    /// When it ends unless it is renewed.
    pub expires_at: StoreTime,
    /// When this was read.
    pub store_now: StoreTime,
    /// What the holder says of itself, as its address.
    pub payload: Bytes,
    /// What holders have left for those who come after them. It outlives the term, as the token does.
    pub memo: Bytes,
    /// A number that changes with each write, where the store has one. Else zero.
    pub revision: u64,
}

/// Who leads, as was last seen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LeaderInfo {
    /// Who it is.
    pub identity: Identity,
    /// The token of its term.
    pub fence: FencingToken,
    /// What it says of itself, as its address.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::file::lossy"))]
    pub payload: Bytes,
}

// === impl StoreTime ===

impl StoreTime {
    /// The instant so many nanoseconds after the clock's zero.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// How many nanoseconds after the clock's zero it is.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long it is after `earlier`. Zero if it is not.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

// === impl LeaseRecord ===

impl LeaseRecord {
    /// A record of a lease that nobody holds: for stores, which fill in the rest.
    #[must_use]
    pub fn vacant(name: LeaseName, fence: FencingToken, store_now: StoreTime) -> Self {
        Self {
            name,
            holder: None,
            fence,
            granted_ttl: Duration::ZERO,
            acquired_at: store_now,
            renewed_at: store_now,
            expires_at: store_now,
            store_now,
            payload: Bytes::new(),
            memo: Bytes::new(),
            revision: 0,
        }
    }

    /// Whether it was over when it was read. It is at the very instant.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.expires_at <= self.store_now
    }

    /// Whether `identity` is its holder, exactly. Whether it is over is another question.
    #[must_use]
    pub fn is_held_by(&self, identity: &Identity) -> bool {
        self.holder.as_ref() == Some(identity)
    }

    /// How much of it was left when it was read; zero once it was over.
    #[must_use]
    pub const fn remaining(&self) -> Duration {
        self.expires_at.since(self.store_now)
    }

    /// Who leads by it: its holder, unless it was over.
    #[must_use]
    pub fn leader(&self) -> Option<LeaderInfo> {
        let identity = self.holder.clone().filter(|_| !self.is_expired())?;
        Some(LeaderInfo { identity, fence: self.fence, payload: self.payload.clone() })
    }
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_over_at_the_very_instant_and_nobody_leads_by_it() {
        let at = StoreTime::from_nanos;
        let name = LeaseName::new("a").unwrap();
        let mut record = LeaseRecord::vacant(name, FencingToken::new(7).unwrap(), at(1_000));
        assert!(record.is_expired() && record.leader().is_none());
        let me = Identity::generate();
        record.holder = Some(me.clone());
        record.expires_at = at(1_001);
        assert_eq!(record.remaining(), Duration::from_nanos(1));
        assert_eq!(record.leader().unwrap().identity, me);
        record.store_now = at(1_001);
        assert!(record.is_expired() && record.leader().is_none() && record.is_held_by(&me));
        record.store_now = at(2_000);
        assert_eq!(record.remaining(), Duration::ZERO);
    }
}
