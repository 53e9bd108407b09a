use std::task::{Context, Poll};

use buttress_core::{Fence, LeaseId};
use http::Request;
use tower_layer::Layer;
use tower_service::Service;

use super::{LEADERSHIP_FENCE, write};

/// Tells a resource of which term a write is: a leader's half of fencing.
///
/// It belongs next to the client, beneath the retry, so that each attempt bears the token. It is the token of the
/// request that this code runs for, by the lease that the layer is made for: [`Fence::current`]. A leader's gate makes
/// it ambient, `LeadershipLayer` for what it lets in, and the election for the work of a term.
///
/// **What leaves under this header is this process's term, or nothing.** Whatever is there already is replaced, and
/// taken off where there is no term: a server that hands on the headers of its callers must not hand on their tokens.
/// A resource refuses what comes without a token ([`FencingLayer`](crate::FencingLayer)), and so it is not
/// refused here: whether a request needs one is for the resource to know, which has reads as well. A client writes under
/// one lease: of two of these layers around it, the inner one takes off what the outer one wrote.
///
/// It makes no errors, its future and its readiness are the inner service's, and it allocates for the header alone.
///
/// The token is that of the `call`. A spawned task and what is beneath a `Buffer` have none, unless it is carried there:
/// by [`Context::scope`](buttress_core::Context::scope), by a `CarryLayer` and a `ResumeLayer`.
///
/// # Examples
///
/// ```
/// use buttress_core::{Fence, FencingToken, LeaseId};
/// use buttress_http::SendFenceLayer;
/// use http::Request;
/// use std::convert::Infallible;
/// use tower::{Layer, Service, service_fn};
///
/// const ORDERS: LeaseId = LeaseId::of("orders");
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let mut client = SendFenceLayer::new(ORDERS).layer(service_fn(|request: Request<()>| async move {
///     Ok::<_, Infallible>(request.headers()["leadership-fence"].clone())
/// }));
/// // As beneath a `LeadershipLayer`.
/// let term = Fence::new(ORDERS, FencingToken::new(34).unwrap());
/// let sent = Fence::within(Some(term), || client.call(Request::new(())));
/// assert_eq!(sent.await.unwrap(), "34");
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SendFenceLayer {
    lease: LeaseId,
}

/// Tells a resource of which term a write is. See [`SendFenceLayer`].
#[derive(Clone, Debug)]
pub struct SendFence<S> {
    inner: S,
    lease: LeaseId,
}

// === impl SendFenceLayer ===

impl SendFenceLayer {
    /// Sends the tokens of that lease.
    #[must_use]
    pub const fn new(lease: LeaseId) -> Self {
        Self { lease }
    }
}

impl<S> Layer<S> for SendFenceLayer {
    type Service = SendFence<S>;

    fn layer(&self, inner: S) -> Self::Service {
        SendFence { inner, lease: self.lease }
    }
}

// === impl SendFence ===

impl<S, B> Service<Request<B>> for SendFence<S>
where
    S: Service<Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let headers = request.headers_mut();
        match Fence::current(self.lease) {
            Some(token) => write(token, headers),
            None => _ = headers.remove(LEADERSHIP_FENCE),
        }
        self.inner.call(request)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use buttress_core::FencingToken;
    use futures_util::FutureExt;
    use http::HeaderMap;
    use tower::service_fn;

    use super::*;

    const ORDERS: LeaseId = LeaseId::of("orders");

    fn term(lease: &str, number: u64) -> Option<Fence> {
        Some(Fence::new(LeaseId::of(lease), FencingToken::new(number).unwrap()))
    }

    /// What the resource sees in the header, if these values were written there before.
    fn sent(fence: Option<Fence>, written: &[&str]) -> Vec<String> {
        let mut request = Request::new(());
        for value in written {
            request.headers_mut().append(LEADERSHIP_FENCE, value.parse().unwrap());
        }
        let mut client =
            SendFenceLayer::new(ORDERS).layer(service_fn(|request: Request<()>| async move {
                Ok::<HeaderMap, Infallible>(request.into_parts().0.headers)
            }));
        let Ok(headers) = Fence::within(fence, || client.call(request)).now_or_never().unwrap();
        let values = headers.get_all(LEADERSHIP_FENCE).iter();
        values.map(|value| value.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn what_leaves_is_the_term_of_the_lease_in_place_of_what_was_there() {
        for written in [&[][..], &["33"], &["35"], &["33", "x"]] {
            assert_eq!(sent(term("orders", 34), written), ["34"], "{written:?}");
        }
        assert_eq!(sent(term("orders", u64::MAX), &[]), ["18446744073709551615"]);
    }

    #[test]
    fn what_is_not_of_this_lease_leaves_without_a_token() {
        for written in [&[][..], &["33"], &["33", "34"]] {
            assert!(sent(None, written).is_empty(), "{written:?}");
            assert!(sent(term("invoices", 99), written).is_empty(), "{written:?}");
        }
    }
}
