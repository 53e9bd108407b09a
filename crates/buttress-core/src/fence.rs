use std::cell::Cell;

use crate::FencingToken;

/// Which lease a [token](FencingToken) is of.
///
/// Made of the lease's name, so that everybody makes the same of it. It is small, for it travels with each request.
///
/// ```
/// use buttress_core::LeaseId;
///
/// const ORDERS: LeaseId = LeaseId::of("orders");
/// assert_ne!(ORDERS, LeaseId::of("invoices"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseId(u64);

/// The term that a request was let in by: which lease it is of, and which of its terms.
///
/// A leader's gate makes it ambient, and whoever writes to a resource sends the token along. One process may lead in
/// two things at once, and a token of one is nothing to the other's resource. So whoever writes names the lease.
///
/// There is one at a time, of the innermost gate. Whoever asks for that of a gate further out gets none, and a
/// resource that wants a token refuses what comes without.
///
/// ```
/// use buttress_core::{Fence, FencingToken, LeaseId};
///
/// const ORDERS: LeaseId = LeaseId::of("orders");
///
/// let token = FencingToken::new(7).unwrap();
/// Fence::within(Some(Fence::new(ORDERS, token)), || {
///     assert_eq!(Fence::current(ORDERS), Some(token));
///     assert_eq!(Fence::current(LeaseId::of("invoices")), None);
/// });
/// assert_eq!(Fence::current(ORDERS), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    lease: LeaseId,
    token: FencingToken,
}

thread_local! {
    static FENCE: Cell<Option<Fence>> = const { Cell::new(None) };
}

/// Puts the outer one back, on panic too.
pub(crate) struct InFence(Option<Fence>);

// === impl LeaseId ===

impl LeaseId {
    /// That of the lease of this name.
    ///
    /// By 64-bit FNV-1a: two names share one by a chance that is no concern, unless somebody looks for such names.
    #[must_use]
    pub const fn of(name: &str) -> Self {
        let (name, mut hash, mut at) = (name.as_bytes(), 0xcbf2_9ce4_8422_2325_u64, 0);
        while at < name.len() {
            hash = (hash ^ name[at] as u64).wrapping_mul(0x0000_0100_0000_01b3);
            at += 1;
        }
        Self(hash)
    }
}

// === impl Fence ===

impl Fence {
    /// A term of a lease.
    #[must_use]
    pub const fn new(lease: LeaseId, token: FencingToken) -> Self {
        Self { lease, token }
    }

    /// The token to send along with what is written under that lease, if this code runs for a request that its leader
    /// let in.
    #[inline]
    #[must_use]
    pub fn current(lease: LeaseId) -> Option<FencingToken> {
        Self::innermost().filter(|fence| fence.lease == lease).map(|fence| fence.token)
    }

    /// That of the innermost gate, whichever lease it is of.
    #[inline]
    pub(crate) fn innermost() -> Option<Self> {
        FENCE.get()
    }

    /// Which lease it is of.
    #[must_use]
    pub const fn lease(self) -> LeaseId {
        self.lease
    }

    /// Which of its terms.
    #[must_use]
    pub const fn token(self) -> FencingToken {
        self.token
    }

    /// Runs `f` with this, or with none, and all else as it is.
    #[inline]
    pub fn within<T>(fence: Option<Self>, f: impl FnOnce() -> T) -> T {
        let _in = InFence::enter(fence);
        f()
    }
}

// === impl InFence ===

impl InFence {
    #[inline]
    pub(crate) fn enter(fence: Option<Fence>) -> Self {
        Self(FENCE.replace(fence))
    }
}

impl Drop for InFence {
    #[inline]
    fn drop(&mut self) {
        FENCE.set(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: LeaseId = LeaseId::of("a");
    const B: LeaseId = LeaseId::of("b");

    fn fence(lease: LeaseId, number: u64) -> Option<Fence> {
        FencingToken::new(number).map(|token| Fence::new(lease, token))
    }

    fn current(lease: LeaseId) -> Option<u64> {
        Fence::current(lease).map(FencingToken::get)
    }

    #[test]
    fn a_name_makes_the_number_that_others_make_of_it() {
        // The published results for FNV-1a.
        assert_eq!(LeaseId::of(""), LeaseId(0xcbf2_9ce4_8422_2325));
        assert_eq!(LeaseId::of("a"), LeaseId(0xaf63_dc4c_8601_ec8c));
        assert_eq!(LeaseId::of("foobar"), LeaseId(0x8594_4171_f739_67e8));
    }

    #[test]
    fn the_token_of_one_lease_is_none_for_another() {
        Fence::within(fence(A, 3), || {
            assert_eq!((current(A), current(B)), (Some(3), None));
            Fence::within(fence(B, 8), || assert_eq!((current(A), current(B)), (None, Some(8))));
            assert_eq!((current(A), current(B)), (Some(3), None));
        });
        assert_eq!(current(A), None);
    }

    #[test]
    fn a_panic_within_puts_the_outer_one_back() {
        let caught = std::panic::catch_unwind(|| Fence::within(fence(A, 3), || panic!("planted")));
        assert!(caught.is_err());
        assert_eq!(current(A), None);
    }
}
