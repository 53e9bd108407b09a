use crate::Breaker;

/// Which breaker a request asks.
///
/// A [`Breaker`] is asked by every request, [`Breakers`](crate::Breakers) choose by its key.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a breaker for `{Req}`",
    label = "a breaker layer in here was made of it",
    note = "`BreakerLayer::new` takes a `Breaker::new(settings)?`, \
            or for each key one, `Breakers::new(settings, key_of)?`"
)]
pub trait Select<Req: ?Sized> {
    /// The request's breaker.
    fn select(&self, request: &Req) -> Breaker;

    /// The breaker that every request asks, if they all ask the same.
    ///
    /// While that one refuses, the service says that it is ready without asking the one beneath, and refuses
    /// the call that follows: else callers would pile up before a callee that they are to spare. Where it
    /// depends on the request, nobody knows before there is one.
    fn only(&self) -> Option<&Breaker> {
        None
    }
}

impl<Req: ?Sized> Select<Req> for Breaker {
    fn select(&self, _: &Req) -> Breaker {
        self.clone()
    }

    #[inline]
    fn only(&self) -> Option<&Breaker> {
        Some(self)
    }
}
