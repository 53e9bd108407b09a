use std::{
    error::Error,
    fmt, mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use buttress_core::{CloneService, Fence, FenceStore, FencingToken, RaiseError, StaleFence};
use http::{Request, Response, StatusCode};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;
use tracing::field::display;

use super::{Malformed, read, write};
use crate::{Code, Refusal, grpc};

/// Refuses writes of a leader that another one has followed: a resource's half of fencing.
///
/// It reads the token that a [`SendFenceLayer`](crate::SendFenceLayer) has written, and asks a [`FenceStore`] whether
/// a greater one was seen: a [`FenceGuard`](buttress_core::FenceGuard) in memory, or one that all instances share.
/// It stands around what writes, and inside whatever says who may: the greatest token is believed of everybody who gets
/// here.
///
/// The handler finds the token by [`Fence::current`], in `call` and in each poll, as on the leader's side: for the
/// statement that writes, and for those whom it writes to in turn.
///
/// # What it cannot do
///
/// **It narrows the gap, and does not close it.** It compares before the handler runs. A write that passed may be
/// stopped just there, for as long as you like, while a newer leader is let in and writes. Only what compares in the
/// transaction that writes can refuse it then: have the handler send the token into it. The chapter on fencing has
/// the statements.
///
/// # What a caller hears
///
/// | request | status | gRPC |
/// |---|---|---|
/// | a token less than the greatest | 412, or [409](Self::conflict); `leadership-fence` names the greatest | FAILED_PRECONDITION |
/// | no token, as of a spawned task that took no [context](buttress_core::Context) along | 428, or it [passes](Self::optional) | INVALID_ARGUMENT |
/// | no number from 1 to 2^64 - 1 of digits alone, or two of them | 400 | INVALID_ARGUMENT |
/// | the store fails | 503 | UNAVAILABLE |
///
/// None of them is sent again by a retry of ours, but the last. 412 says that a condition in a header of the request
/// does not hold, which is what a token is, and 428 that there has to be one ([RFC 6585]). 409 says that the
/// caller may resolve the conflict and come again, which a former leader cannot; it is for callers that take 412
/// for a matter of entity tags. 503 fails closed: who cannot be compared does not write.
///
/// The body is empty. To a request of `content-type` `application/grpc` it answers as gRPC does, with the status in the
/// head. An error of the inner service is its own: the layer makes none, so that axum's and tonic's servers take it as
/// it is.
///
/// # Readiness
///
/// The inner service's. Whoever was readied is called, once the store has admitted the token.
///
/// # Cancel safety
///
/// Dropped while the store is asked, the handler was not called, and the mark may be raised or not. Dropped later, the
/// inner future is dropped with it. How long a store may take is not limited here: a deadline further out does it.
///
/// # Examples
///
/// ```
/// use buttress_core::{Fence, FenceGuard, LeaseId};
/// use buttress_http::FencingLayer;
/// use http::{Request, Response};
/// use std::convert::Infallible;
/// use tower::{Layer, ServiceExt, service_fn};
///
/// const ORDERS: LeaseId = LeaseId::of("orders");
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// async fn write(_: Request<()>) -> Result<Response<String>, Infallible> {
///     let token = Fence::current(ORDERS).expect("nobody comes in without");
///     Ok(Response::new(format!("UPDATE .. WHERE fence <= {token}")))
/// }
///
/// let resource = FencingLayer::new(FenceGuard::new(ORDERS)).layer(service_fn(write));
/// for (token, status) in [("33", 200), ("34", 200), ("33", 412), ("x", 400)] {
///     let request = Request::builder().header("leadership-fence", token).body(()).unwrap();
///     assert_eq!(resource.clone().oneshot(request).await.unwrap().status(), status);
/// }
/// assert_eq!(resource.oneshot(Request::new(())).await.unwrap().status(), 428);
/// # }
/// ```
///
/// [RFC 6585]: https://www.rfc-editor.org/rfc/rfc6585#section-3
#[derive(Clone, Copy, Debug)]
pub struct FencingLayer<G> {
    guard: G,
    rules: Rules,
}

/// Refuses writes of a leader that another one has followed. See [`FencingLayer`].
#[derive(Clone, Debug)]
pub struct Fencing<S, G> {
    inner: S,
    guard: G,
    rules: Rules,
}

pin_project! {
    /// The answer of [`Fencing`].
    #[must_use = "futures do nothing unless polled"]
    pub struct FencingFuture<S, Req, R>
    where
        S: Service<Req>,
    {
        #[pin]
        state: State<S, Req, R, S::Future>,
        rules: Rules,
        is_grpc: bool,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, Req, R, F> {
        Asking { #[pin] raise: R, service: S, request: Option<Req>, fence: Fence },
        // Without a fence, if it came without and that is allowed.
        Called { #[pin] future: F, fence: Option<Fence> },
        Refused { why: Why },
    }
}

/// What is refused, and how.
#[derive(Clone, Copy, Debug)]
struct Rules {
    stale: StatusCode,
    is_optional: bool,
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug)]
enum Why {
    Malformed,
    Missing,
    Stale(StaleFence),
    /// The store did not say.
    Unknown,
}

// === impl FencingLayer ===

impl<G> FencingLayer<G> {
    /// Asks that store.
    #[must_use]
    pub const fn new(guard: G) -> Self {
        let rules = Rules { stale: StatusCode::PRECONDITION_FAILED, is_optional: false };
        Self { guard, rules }
    }

    /// Answers 409 in place of 412.
    #[must_use]
    pub const fn conflict(mut self) -> Self {
        self.rules.stale = StatusCode::CONFLICT;
        self
    }

    /// Lets requests pass that come without a token. One that is malformed is refused all the same.
    ///
    /// For the time until all who write send one, and for a resource whose reads come the same way. A former leader that
    /// sends none is not kept out.
    #[must_use]
    pub const fn optional(mut self) -> Self {
        self.rules.is_optional = true;
        self
    }
}

impl<S, G: Clone> Layer<S> for FencingLayer<G> {
    type Service = Fencing<S, G>;

    fn layer(&self, inner: S) -> Self::Service {
        Fencing { inner, guard: self.guard.clone(), rules: self.rules }
    }
}

// === impl Fencing ===

impl<S, G, ReqB, B> Service<Request<ReqB>> for Fencing<S, G>
where
    S: Service<Request<ReqB>, Response = Response<B>> + CloneService,
    G: FenceStore,
    B: Default,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = FencingFuture<S, Request<ReqB>, G::Raise>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqB>) -> Self::Future {
        let is_grpc = grpc::is_grpc(request.headers());
        let state = match read(request.headers()) {
            Some(Ok(token)) => {
                let raise = self.guard.raise(token);
                let fence = Fence::new(self.guard.lease(), token);
                // The instance that was readied goes along; a clone waits for its own turn.
                let clone = self.inner.clone();
                let service = mem::replace(&mut self.inner, clone);
                State::Asking { raise, service, request: Some(request), fence }
            }
            None if self.rules.is_optional => {
                State::Called { future: self.inner.call(request), fence: None }
            }
            None => State::Refused { why: Why::Missing },
            Some(Err(Malformed)) => State::Refused { why: Why::Malformed },
        };
        FencingFuture { state, rules: self.rules, is_grpc }
    }
}

// === impl FencingFuture ===

impl<S, Req, R, B> Future for FencingFuture<S, Req, R>
where
    S: Service<Req, Response = Response<B>>,
    R: Future<Output = Result<(), RaiseError>>,
    B: Default,
{
    type Output = Result<Response<B>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let next = match this.state.as_mut().project() {
                // ## Asking => (Called | Refused)
                StateProj::Asking { raise, service, request, fence } => {
                    match ready!(raise.poll(cx)) {
                        Ok(()) => {
                            let request = request.take().expect("it is called once");
                            let fence = Some(*fence);
                            let future = Fence::within(fence, || service.call(request));
                            State::Called { future, fence }
                        }
                        Err(error) => State::Refused { why: Why::of(&error, fence.token()) },
                    }
                }
                StateProj::Called { future, fence: None } => return future.poll(cx),
                StateProj::Called { future, fence } => {
                    return Fence::within(*fence, || future.poll(cx));
                }
                StateProj::Refused { why } => {
                    return Poll::Ready(Ok(why.response(*this.rules, *this.is_grpc)));
                }
            };
            this.state.set(next);
        }
    }
}

impl<S: Service<Req>, Req, R> fmt::Debug for FencingFuture<S, Req, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Asking { .. } => "asking",
            State::Called { .. } => "called",
            State::Refused { .. } => "refused",
        };
        f.debug_struct("FencingFuture").field("state", &state).finish_non_exhaustive()
    }
}

// === impl Why ===

impl Why {
    #[cold]
    fn of(error: &RaiseError, fence: FencingToken) -> Self {
        if let RaiseError::Stale(stale) = error {
            return Self::Stale(*stale);
        }
        let error: &(dyn Error + 'static) = error;
        tracing::warn!(%fence, error, "fencing token not compared");
        Self::Unknown
    }

    #[cold]
    fn response<B: Default>(self, rules: Rules, is_grpc: bool) -> Response<B> {
        let (status, code, text) = match self {
            Self::Malformed => {
                (StatusCode::BAD_REQUEST, Code::InvalidArgument, "malformed fencing token")
            }
            Self::Missing => {
                (StatusCode::PRECONDITION_REQUIRED, Code::InvalidArgument, "no fencing token")
            }
            Self::Stale(_) => (rules.stale, Code::FailedPrecondition, "stale fencing token"),
            Self::Unknown => {
                (StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable, "fencing token not compared")
            }
        };
        let stale = if let Self::Stale(stale) = self { Some(stale) } else { None };
        let fence = stale.map(|stale| display(stale.token()));
        let highest = stale.map(|stale| display(stale.highest()));
        if stale.is_some() {
            // It is rare, and says that a leader stood still, or that a store has lost what it knew.
            tracing::warn!(reason = text, fence, highest, "write refused");
        } else {
            tracing::debug!(reason = text, "write refused");
        }
        // No text in HTTP: nothing else is asked of a body than that it can be empty, and tonic's can be no more.
        let refusal = if is_grpc { Refusal::grpc(code, text) } else { Refusal::new(status, "") };
        let mut response = refusal.head().map(|()| B::default());
        if let Some(stale) = stale {
            write(stale.highest(), response.headers_mut());
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, time::Duration};

    use buttress_core::{Context as Ambient, FenceGuard, LeaseId};
    use buttress_test::{Act, Probe};
    use futures_util::{FutureExt, future::BoxFuture};
    use http::header::CONTENT_TYPE;
    use http_body_util::Empty;
    use tokio::{task::yield_now, time::sleep};
    use tokio_test::{assert_pending, task};
    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::LEADERSHIP_FENCE;

    const ORDERS: LeaseId = LeaseId::of("orders");

    type Answer = Response<Empty<bytes::Bytes>>;

    fn token(number: u64) -> FencingToken {
        FencingToken::new(number).unwrap()
    }

    fn request(tokens: &[&str]) -> Request<()> {
        let mut request = Request::new(());
        for token in tokens {
            request.headers_mut().append(LEADERSHIP_FENCE, token.parse().unwrap());
        }
        request
    }

    fn grpc(tokens: &[&str]) -> Request<()> {
        let mut request = request(tokens);
        request.headers_mut().insert(CONTENT_TYPE, "application/grpc+proto".parse().unwrap());
        request
    }

    /// A resource that has seen token 34.
    fn resource() -> FencingLayer<FenceGuard> {
        FencingLayer::new(FenceGuard::starting_at(ORDERS, Some(token(34))))
    }

    fn probe() -> Probe<Request<()>, Answer> {
        Probe::new(|_| Response::new(Empty::new()))
    }

    fn field<'a>(response: &'a Answer, name: &str) -> Option<&'a str> {
        response.headers().get(name).map(|value| value.to_str().unwrap())
    }

    /// What came back, and whether the handler was called.
    async fn ask<G>(layer: &FencingLayer<G>, request: Request<()>) -> (Answer, bool)
    where
        G: FenceStore + Clone,
    {
        let probe = probe();
        let response = layer.layer(probe.clone()).oneshot(request).await.unwrap();
        assert_eq!(probe.violations(), 0);
        (response, probe.calls() == 1)
    }

    #[tokio::test]
    async fn a_former_leader_is_told_of_the_greatest_and_the_handler_is_not() {
        for token in ["34", "35", "18446744073709551615"] {
            let (response, called) = ask(&resource(), request(&[token])).await;
            assert_eq!((response.status().as_u16(), called), (200, true), "{token}");
        }
        for (layer, status) in [(resource(), 412), (resource().conflict(), 409)] {
            let (response, called) = ask(&layer, request(&["33"])).await;
            assert_eq!((response.status().as_u16(), called), (status, false));
            assert_eq!(field(&response, "leadership-fence"), Some("34"));
        }
    }

    #[tokio::test]
    async fn what_is_no_token_is_malformed_also_where_none_is_needed() {
        let senseless: [&[&str]; 14] = [
            &[""],
            &["0"],
            &["+35"],
            &["-35"],
            &[" 35"],
            &["35 "],
            &["035"],
            &["35.0"],
            &["0x23"],
            &["18446744073709551616"],
            &["35, 36"],
            &["\u{0663}\u{0665}"],
            &["35", "35"],
            &["35", "x"],
        ];
        for tokens in senseless {
            for layer in [resource(), resource().optional()] {
                let (response, called) = ask(&layer, request(tokens)).await;
                assert_eq!((response.status().as_u16(), called), (400, false), "{tokens:?}");
            }
        }
    }

    #[tokio::test]
    async fn whoever_sends_no_token_needs_one_unless_that_is_allowed() {
        let (response, called) = ask(&resource(), request(&[])).await;
        assert_eq!((response.status().as_u16(), called), (428, false));
        let (response, called) = ask(&resource().optional(), request(&[])).await;
        assert_eq!((response.status().as_u16(), called), (200, true));
        let (response, _) = ask(&resource().optional(), request(&["33"])).await;
        assert_eq!(response.status(), 412, "a token that is sent counts");
    }

    #[tokio::test(start_paused = true)]
    async fn grpc_is_told_in_the_head_by_a_code_that_is_not_repeated() {
        let layer = FencingLayer::new(Told::failing());
        for (asked, code) in [
            (ask(&resource(), grpc(&["33"])).await, "9"),
            (ask(&resource().conflict(), grpc(&["33"])).await, "9"),
            (ask(&resource(), grpc(&["x"])).await, "3"),
            (ask(&resource(), grpc(&[])).await, "3"),
            (ask(&layer, grpc(&["35"])).await, "14"),
        ] {
            let (response, called) = asked;
            assert_eq!((response.status().as_u16(), called), (200, false));
            assert_eq!(field(&response, "grpc-status"), Some(code));
            assert_eq!(field(&response, "content-type"), Some("application/grpc"));
        }
        for (content_type, is_grpc) in [
            ("application/grpc", true),
            ("application/grpc;charset=utf-8", true),
            ("application/grpc-web", false),
            ("application/json", false),
        ] {
            let mut request = request(&["33"]);
            request.headers_mut().insert(CONTENT_TYPE, content_type.parse().unwrap());
            let (response, _) = ask(&resource(), request).await;
            assert_eq!(field(&response, "grpc-status").is_some(), is_grpc, "{content_type}");
        }
    }

    #[tokio::test]
    async fn the_handler_has_the_token_at_hand_in_call_and_in_each_poll() {
        let now = || Fence::current(ORDERS).map(FencingToken::get);
        let handler = service_fn(move |_: Request<()>| {
            let called = now();
            async move {
                let first = now();
                yield_now().await;
                let seen = [called, first, now()];
                Ok::<_, Infallible>(Response::builder().extension(seen).body(()).unwrap())
            }
        });
        let outer = Fence::new(ORDERS, token(99));
        for (layer, sent, expected) in [
            (resource(), request(&["35"]), Some(35)),
            (resource().optional(), request(&["35"]), Some(35)),
            (resource().optional(), request(&[]), Some(99)),
        ] {
            let call = Ambient::default().with_fence(Some(outer)).scope(async {
                let response = layer.layer(handler).oneshot(sent).await.unwrap();
                (*response.extensions().get::<[Option<u64>; 3]>().unwrap(), now())
            });
            assert_eq!(call.await, ([expected; 3], Some(99)));
        }
    }

    /// A store that takes a second, and then says what it was told to.
    #[derive(Clone)]
    struct Told(fn() -> Result<(), RaiseError>);

    impl Told {
        fn failing() -> Self {
            Self(|| Err(RaiseError::Failed("connection lost".into())))
        }
    }

    impl FenceStore for Told {
        type Raise = BoxFuture<'static, Result<(), RaiseError>>;

        fn lease(&self) -> LeaseId {
            ORDERS
        }

        fn raise(&self, _: FencingToken) -> Self::Raise {
            let answer = self.0;
            async move {
                sleep(Duration::from_secs(1)).await;
                answer()
            }
            .boxed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_cannot_be_compared_does_not_write() {
        let stale = || StaleFence::check(token(33), token(34)).map_err(RaiseError::Stale);
        for (told, status) in [(Told(|| Ok(())), 200), (Told(stale), 412), (Told::failing(), 503)] {
            let (response, called) = ask(&FencingLayer::new(told), request(&["33"])).await;
            assert_eq!((response.status().as_u16(), called), (status, status == 200));
            assert!(!response.headers().contains_key("retry-after"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_leaves_while_the_store_is_asked_has_written_nothing() {
        let probe = probe();
        probe.script([Act::Hang]);
        let service = FencingLayer::new(Told(|| Ok(()))).layer(probe.clone());
        let mut call = task::spawn(service.clone().oneshot(request(&["34"])));
        assert_pending!(call.poll());
        drop(call);
        sleep(Duration::from_secs(2)).await;
        assert_eq!(probe.calls(), 0);
        let mut call = task::spawn(service.oneshot(request(&["34"])));
        assert_pending!(call.poll());
        sleep(Duration::from_secs(2)).await;
        assert_pending!(call.poll());
        assert_eq!((probe.calls(), probe.in_flight()), (1, 1));
        drop(call);
        assert_eq!((probe.in_flight(), probe.violations()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_panics_lets_nobody_in() {
        let probe = probe();
        let service = FencingLayer::new(Told(|| panic!("planted"))).layer(probe.clone());
        let call = service.clone().oneshot(request(&["34"]));
        assert!(std::panic::AssertUnwindSafe(call).catch_unwind().await.is_err());
        assert_eq!((probe.calls(), Fence::current(ORDERS)), (0, None));
    }
}
