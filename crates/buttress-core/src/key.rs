use std::hash::{Hash, Hasher};

/// Which of many callees a request is for, so that one that is ill does not cut off the others.
///
/// State is looked up for every request, so the key is compared where it lies: `hash` and `matches`
/// read it from the request, and only a key that is new is [made](KeyOf::key).
///
/// Closures that return a key are the short form, and make it each time:
///
/// ```
/// use buttress_core::KeyOf;
///
/// let by_tenant = |request: &(u32, &str)| request.0;
/// assert_eq!(by_tenant.key(&(7, "hello")), 7);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` finds no key in `{Req}`",
    label = "a layer in here asks it whom a request is for",
    note = "`ByAuthority` is for `http::Request`s",
    note = "a closure can say it, too: `|request: &{Req}| ..`, its type written, and what it returns `Hash + Eq`"
)]
pub trait KeyOf<Req: ?Sized> {
    /// The key, as it is kept.
    type Key: Hash + Eq;

    /// Feeds `state` with just what hashing [`key`](KeyOf::key)`(request)` would.
    fn hash<H: Hasher>(&self, request: &Req, state: &mut H);

    /// Whether `key` is the request's.
    fn matches(&self, request: &Req, key: &Self::Key) -> bool;

    /// The request's key.
    fn key(&self, request: &Req) -> Self::Key;
}

#[diagnostic::do_not_recommend]
impl<F, Req: ?Sized, K> KeyOf<Req> for F
where
    F: Fn(&Req) -> K,
    K: Hash + Eq,
{
    type Key = K;

    fn hash<H: Hasher>(&self, request: &Req, state: &mut H) {
        self(request).hash(state);
    }

    fn matches(&self, request: &Req, key: &K) -> bool {
        self(request) == *key
    }

    fn key(&self, request: &Req) -> K {
        self(request)
    }
}
