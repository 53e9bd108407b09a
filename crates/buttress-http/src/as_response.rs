use std::{
    convert::Infallible,
    error::Error,
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use buttress_core::{BoxError, IntoBoxError};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::{ByCode, Refusal, refusal};

/// Says what an error is as a response with a body of type `B`. Implemented by [`ByReason`], by [`ByCode`] and
/// by closures.
///
/// gRPC's refusals have no body, so [`ByCode`] needs a `B` that can be [empty](Default), as tonic's can. For all
/// others it has to be one that can be made from [`Bytes`].
#[diagnostic::on_unimplemented(
    message = "`RejectedAsResponseLayer` has no way to make a response with a body of type `{B}`",
    label = "its own responses need a body made from bytes",
    note = "the body of the service beneath has to be `From<bytes::Bytes>` (`Default` is enough for \
            `RejectedAsResponseLayer::grpc()`), as those of axum and `buttress::http::Body` are",
    note = "a client answers with `buttress::http::Body` in its adapter, as in `buttress::http::hyper(client)`",
    note = "put a layer between the two that maps the body, as tower-http's `MapResponseBodyLayer` \
            with `axum::body::Body::new`"
)]
pub trait Table<B> {
    /// What the error is, or `None` if it is none that the table knows.
    fn refusal(&self, error: &(dyn Error + 'static)) -> Option<Refusal>;

    /// The response to an error that it does not know: an empty 500. It says nothing: errors name addresses,
    /// paths, and worse.
    fn unknown(&self) -> Refusal {
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "")
    }

    /// The response.
    fn response(&self, refusal: Refusal) -> Response<B>;
}

/// The table of [`refusal`].
///
/// (A named type, and not a pointer to that function: with one in it, a server's connection could not be
/// spawned, as the compiler loses sight of the `'static` in its argument.)
#[derive(Clone, Copy, Debug, Default)]
pub struct ByReason;

/// Answers errors with responses: the outermost layer of a server.
///
/// A server has nothing to do with an error but to close the connection, with all other requests on it;
/// and axum takes only services that cannot fail. With this layer a service cannot: its error is
/// [`Infallible`].
///
/// Our own errors become what [`refusal`] says, or a table of one's own; all others a 500 with nothing in
/// it. gRPC's clients expect other answers: [`grpc`](Self::grpc). The text of a response is the reason and no
/// more. Refusals are `tracing` events at `debug`, all else at `warn`.
///
/// The body of the response has to be one that can be made from bytes, as axum's and [`Body`](crate::Body)
/// are. For gRPC, one that can be empty will do, as tonic's can. To a `HEAD` it says nothing but the head.
///
/// # Readiness
///
/// An error of `poll_ready` is final: such a service is never called again. As it cannot be passed on, it is
/// remembered, and all later requests to this instance are answered as the error would be. A clone asks anew.
///
/// # Examples
///
/// ```
/// use buttress_core::{BoxError, Reason, Rejected};
/// use buttress_http::{Body, RejectedAsResponseLayer};
/// use http::{Request, Response};
/// use http_body_util::Empty;
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let full = |_: Request<()>| async {
///     let rejected = Rejected::new(Reason::BulkheadFull, "bulkhead");
///     Err::<Response<Body<Empty<bytes::Bytes>>>, _>(BoxError::from(rejected))
/// };
/// let service = ServiceBuilder::new().layer(RejectedAsResponseLayer::new()).service_fn(full);
/// let Ok(response) = service.oneshot(Request::new(())).await;
/// assert_eq!(response.status(), 503);
/// # }
/// ```
#[derive(Clone, Copy)]
pub struct RejectedAsResponseLayer<T = ByReason> {
    table: T,
}

/// A service that cannot fail. See [`RejectedAsResponseLayer`].
pub struct RejectedAsResponse<S, T = ByReason> {
    inner: S,
    table: T,
    /// What the inner service's error of readiness is as a response. It is not polled or called again.
    dead: Option<Refusal>,
}

pin_project! {
    /// The answer of [`RejectedAsResponse`].
    #[must_use = "futures do nothing unless polled"]
    pub struct RejectedAsResponseFuture<F, T = ByReason> {
        #[pin]
        state: State<F>,
        table: T,
        // hyper's server of HTTP/2 sends the body of an answer to HEAD, and its client takes that for a fault.
        is_head: bool,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F> {
        Called { #[pin] answer: F },
        Dead { refusal: Refusal },
    }
}

fn answer<B>(table: &impl Table<B>, error: &BoxError) -> Refusal {
    let error: &(dyn Error + 'static) = &**error;
    match table.refusal(error) {
        Some(refusal) => {
            let (status, code) = (refusal.status().as_u16(), refusal.code().map(i32::from));
            tracing::debug!(status, code, error, "request refused");
            refusal
        }
        None => {
            let refusal = table.unknown();
            let (status, code) = (refusal.status().as_u16(), refusal.code().map(i32::from));
            tracing::warn!(status, code, error, "request failed");
            refusal
        }
    }
}

/// Never made. It is what the compiler lists where a server is given a service that can fail: axum asks for an
/// error that becomes [`Infallible`], and what else becomes one is all that the compiler has to say.
#[derive(Debug)]
pub enum PutRejectedAsResponseLayerOutermost {}

impl From<PutRejectedAsResponseLayerOutermost> for Infallible {
    fn from(never: PutRejectedAsResponseLayerOutermost) -> Self {
        match never {}
    }
}

// === impl Table ===

#[diagnostic::do_not_recommend]
impl<B: From<Bytes>> Table<B> for ByReason {
    fn refusal(&self, error: &(dyn Error + 'static)) -> Option<Refusal> {
        refusal(error)
    }

    fn response(&self, refusal: Refusal) -> Response<B> {
        refusal.into_response()
    }
}

#[diagnostic::do_not_recommend]
impl<F, B> Table<B> for F
where
    F: Fn(&(dyn Error + 'static)) -> Option<Refusal>,
    B: From<Bytes>,
{
    fn refusal(&self, error: &(dyn Error + 'static)) -> Option<Refusal> {
        self(error)
    }

    fn response(&self, refusal: Refusal) -> Response<B> {
        refusal.into_response()
    }
}

// === impl RejectedAsResponseLayer ===

impl RejectedAsResponseLayer {
    /// Answers by the table of [`refusal`].
    #[must_use]
    pub const fn new() -> Self {
        Self { table: ByReason }
    }
}

impl RejectedAsResponseLayer<ByCode> {
    /// Answers as gRPC does, by the table of [`grpc_refusal`](crate::grpc_refusal); errors that it does not
    /// know are an UNKNOWN with nothing in it.
    ///
    /// ```
    /// use buttress_core::{BoxError, Reason, Rejected};
    /// use buttress_http::{Body, RejectedAsResponseLayer};
    /// use http::{Request, Response};
    /// use http_body_util::Empty;
    /// use tower::{ServiceBuilder, ServiceExt, service_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let open = |_: Request<()>| async {
    ///     let rejected = Rejected::new(Reason::CircuitOpen, "breaker");
    ///     Err::<Response<Body<Empty<bytes::Bytes>>>, _>(BoxError::from(rejected))
    /// };
    /// let service = ServiceBuilder::new().layer(RejectedAsResponseLayer::grpc()).service_fn(open);
    /// let Ok(response) = service.oneshot(Request::new(())).await;
    /// assert_eq!(response.headers()["grpc-status"], "14");
    /// # }
    /// ```
    #[must_use]
    pub const fn grpc() -> Self {
        Self { table: ByCode }
    }
}

impl<T> RejectedAsResponseLayer<T> {
    /// Answers by `table` instead. Where it answers `None`, the response is an empty 500: let it end in
    /// [`refusal`] to change single lines.
    ///
    /// ```
    /// use buttress_http::{Refusal, RejectedAsResponseLayer, refusal};
    /// use http::StatusCode;
    ///
    /// let layer = RejectedAsResponseLayer::new().table(|error| {
    ///     let missing = error.downcast_ref::<std::io::Error>()?.kind() == std::io::ErrorKind::NotFound;
    ///     if missing { Some(Refusal::new(StatusCode::NOT_FOUND, "no such file")) } else { refusal(error) }
    /// });
    /// # drop(layer);
    /// ```
    #[must_use]
    pub fn table<T2>(self, table: T2) -> RejectedAsResponseLayer<T2>
    where
        T2: Fn(&(dyn Error + 'static)) -> Option<Refusal>,
    {
        RejectedAsResponseLayer { table }
    }
}

impl Default for RejectedAsResponseLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl<S, T: Clone> Layer<S> for RejectedAsResponseLayer<T> {
    type Service = RejectedAsResponse<S, T>;

    fn layer(&self, inner: S) -> Self::Service {
        RejectedAsResponse { inner, table: self.table.clone(), dead: None }
    }
}

impl<T> fmt::Debug for RejectedAsResponseLayer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RejectedAsResponseLayer").finish_non_exhaustive()
    }
}

// === impl RejectedAsResponse ===

impl<S, T, ReqB, B> Service<Request<ReqB>> for RejectedAsResponse<S, T>
where
    S: Service<Request<ReqB>, Response = Response<B>>,
    S::Error: IntoBoxError,
    T: Table<B> + Clone,
{
    type Response = Response<B>;
    type Error = Infallible;
    type Future = RejectedAsResponseFuture<S::Future, T>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        if self.dead.is_none()
            && let Err(error) = ready!(self.inner.poll_ready(cx))
        {
            self.dead = Some(answer(&self.table, &error.into()));
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ReqB>) -> Self::Future {
        let is_head = request.method() == Method::HEAD;
        let state = match self.dead {
            Some(refusal) => State::Dead { refusal },
            None => State::Called { answer: self.inner.call(request) },
        };
        RejectedAsResponseFuture { state, table: self.table.clone(), is_head }
    }
}

/// A clone asks its own inner service whether it is ready.
impl<S: Clone, T: Clone> Clone for RejectedAsResponse<S, T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), table: self.table.clone(), dead: None }
    }
}

impl<S: fmt::Debug, T> fmt::Debug for RejectedAsResponse<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RejectedAsResponse")
            .field("inner", &self.inner)
            .field("dead", &self.dead)
            .finish_non_exhaustive()
    }
}

// === impl RejectedAsResponseFuture ===

impl<F, T, B, E> Future for RejectedAsResponseFuture<F, T>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
    T: Table<B>,
{
    type Output = Result<Response<B>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let refusal = match this.state.project() {
            StateProj::Called { answer: inner } => match ready!(inner.poll(cx)) {
                Ok(response) => return Poll::Ready(Ok(response)),
                Err(error) => answer(this.table, &error.into()),
            },
            StateProj::Dead { refusal } => *refusal,
        };
        let refusal = if *this.is_head { refusal.without_body() } else { refusal };
        Poll::Ready(Ok(this.table.response(refusal)))
    }
}

impl<F, T> fmt::Debug for RejectedAsResponseFuture<F, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RejectedAsResponseFuture").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, io, rc::Rc, time::Duration};

    use buttress_core::{Reason, Rejected};
    use futures_util::FutureExt;
    use tower::ServiceExt;

    use super::*;

    type Answer = Result<Response<Bytes>, BoxError>;

    /// Fails as it is told, and must not be touched after it failed to become ready.
    #[derive(Clone, Default)]
    struct Inner {
        unready: Option<Rc<dyn Fn() -> BoxError>>,
        answer: Option<Rc<dyn Fn() -> Answer>>,
        polls: Rc<Cell<u32>>,
        calls: Rc<Cell<u32>>,
    }

    impl Service<Request<()>> for Inner {
        type Response = Response<Bytes>;
        type Error = BoxError;
        type Future = std::future::Ready<Answer>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
            self.polls.set(self.polls.get() + 1);
            Poll::Ready(self.unready.as_ref().map_or(Ok(()), |error| Err(error())))
        }

        fn call(&mut self, _: Request<()>) -> Self::Future {
            self.calls.set(self.calls.get() + 1);
            std::future::ready(self.answer.as_ref().expect("it answers")())
        }
    }

    fn answers(answer: impl Fn() -> Answer + 'static) -> Inner {
        Inner { answer: Some(Rc::new(answer)), ..Inner::default() }
    }

    fn never_ready(error: impl Fn() -> BoxError + 'static) -> Inner {
        Inner { unready: Some(Rc::new(error)), ..Inner::default() }
    }

    fn call<S>(service: &mut S) -> Response<Bytes>
    where
        S: Service<Request<()>, Response = Response<Bytes>, Error = Infallible>,
    {
        let ready = service.ready().now_or_never().expect("it is ready");
        let Ok(service) = ready;
        let Ok(response) =
            service.call(Request::new(())).now_or_never().expect("it answers at once");
        response
    }

    #[test]
    fn answers_pass_as_they_are() {
        let mut service = RejectedAsResponseLayer::new()
            .layer(answers(|| Ok(Response::builder().status(500).body("own".into()).unwrap())));
        let response = call(&mut service);
        assert_eq!((response.status().as_u16(), &response.body()[..]), (500, &b"own"[..]));
    }

    // TMO-08, BLK-12
    #[test]
    fn a_refusal_is_an_answer_and_the_service_goes_on() {
        let mut service = RejectedAsResponseLayer::new()
            .layer(answers(|| Err(Rejected::new(Reason::Overloaded, "shed").into())));
        for _ in 0..100 {
            assert_eq!(call(&mut service).status(), 503);
        }
        assert_eq!(service.inner.calls.get(), 100);
    }

    #[test]
    fn an_answer_to_head_has_no_body() {
        let rejected = || Rejected::new(Reason::Overloaded, "shed").retry_in(Duration::MAX).into();
        let layer = RejectedAsResponseLayer::new();
        for inner in [answers(move || Err(rejected())), never_ready(rejected)] {
            let head = Request::head("/").body(()).unwrap();
            let Ok(response) = layer.layer(inner).oneshot(head).now_or_never().unwrap();
            assert_eq!((response.status().as_u16(), &response.body()[..]), (503, &b""[..]));
            assert!(response.headers().contains_key("retry-after"));
        }
    }

    #[test]
    fn an_error_that_is_not_ours_says_nothing_to_strangers() {
        let mut service = RejectedAsResponseLayer::new()
            .layer(answers(|| Err(io::Error::other("no such table at 10.0.0.7").into())));
        let response = call(&mut service);
        assert_eq!(response.status(), 500);
        assert!(response.body().is_empty() && response.headers().is_empty());
    }

    // BLK-12
    #[test]
    fn a_service_that_failed_to_become_ready_is_left_alone_and_answered_for() {
        for (error, status) in [(None, 500), (Some(Rejected::new(Reason::Draining, "drain")), 503)]
        {
            let mut service =
                RejectedAsResponseLayer::new().layer(never_ready(move || match error {
                    Some(rejected) => rejected.into(),
                    None => "broken".into(),
                }));
            for _ in 0..3 {
                assert_eq!(call(&mut service).status(), status);
            }
            assert_eq!((service.inner.polls.get(), service.inner.calls.get()), (1, 0));
            let mut clone = service.clone();
            assert_eq!(call(&mut clone).status(), status);
            assert_eq!(clone.inner.polls.get(), 2, "a clone asks anew");
        }
    }

    // TMO-08
    #[test]
    fn a_table_of_ones_own_changes_single_lines() {
        let teapot = |error: &(dyn Error + 'static)| match error.downcast_ref::<io::Error>() {
            Some(_) => Some(Refusal::new(StatusCode::IM_A_TEAPOT, "short and stout")),
            None => refusal(error),
        };
        let layer = RejectedAsResponseLayer::new().table(teapot);
        let mut io = layer.layer(answers(|| Err(io::Error::other("x").into())));
        assert_eq!(call(&mut io).status(), 418);
        let rejected = || Err(Rejected::new(Reason::NotLeader, "leadership").into());
        assert_eq!(call(&mut layer.layer(answers(rejected))).status(), 421);
        let unready = || io::Error::other("x").into();
        assert_eq!(call(&mut layer.layer(never_ready(unready))).status(), 418);
    }

    #[test]
    #[should_panic(expected = "planted")]
    fn a_panic_is_not_hushed_up() {
        call(&mut RejectedAsResponseLayer::new().layer(answers(|| panic!("planted"))));
    }
}
