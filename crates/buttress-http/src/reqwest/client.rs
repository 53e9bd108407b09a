use std::{
    fmt::{self, Write as _},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use buttress_core::{BoxError, IntoBoxError, InvalidSetting};
use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body::Body as HttpBody;
use pin_project_lite::pin_project;
use reqwest::ResponseBuilderExt;
use tower_service::Service;

use super::{Unfit, body::for_reqwest};
use crate::{Body, Hyper, HyperFuture, hyper};

/// Makes reqwest's client fit for a stack: the innermost service of every HTTP client stack over reqwest.
///
/// reqwest takes requests of its own type, and answers with responses of its own; the stack above is of the
/// `http` crate's. [`Reqwest`] makes the one of the other, and answers with [`Body`], which carries the
/// request's deadline to its end.
///
/// # Examples
///
/// ```
/// use buttress_http::reqwest;
///
/// # fn main() -> Result<(), buttress_core::InvalidSetting> {
/// # fn wrap(client: ::reqwest::Client) -> Result<(), buttress_core::InvalidSetting> {
/// let service = reqwest(client).idle(std::time::Duration::from_secs(10))?;
/// # drop(service);
/// # Ok(())
/// # }
/// # Ok(())
/// # }
/// ```
pub const fn reqwest<S>(client: S) -> Reqwest<S> {
    Reqwest { inner: hyper(Translated { client }) }
}

/// reqwest's client as a service of `http` messages. See [`reqwest()`].
///
/// The deadline is the one that is ambient when it is called, or when the answer is first waited for (a
/// `Buffer` calls it elsewhere). It is one absolute limit over readiness, head and body, and over all
/// redirects that reqwest follows.
///
/// # Errors
///
/// reqwest's own, with no user name and no password in its URL. A request that is none for reqwest, such as
/// one whose URI names no host, fails where its answer is awaited, and nothing is sent.
///
/// # Redirects
///
/// reqwest follows them by itself, and does not tell. If there is no connection to where one points, its error is the
/// same as where nothing was sent: a retry sends the request again, a POST that the first server has carried out too.
/// The client of what must not be carried out twice follows none: `ClientBuilder::redirect(redirect::Policy::none())`.
#[derive(Clone)]
pub struct Reqwest<S> {
    inner: Hyper<Translated<S>>,
}

/// Takes the requests of `http`, and answers with its responses.
#[derive(Clone)]
struct Translated<S> {
    client: S,
}

pin_project! {
    /// The answer of [`Reqwest`].
    #[must_use = "futures do nothing unless polled"]
    pub struct ReqwestFuture<F> {
        #[pin]
        answer: HyperFuture<TranslatedFuture<F>>,
    }
}

pin_project! {
    struct TranslatedFuture<F> {
        #[pin]
        state: State<F>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F> {
        Sent { #[pin] answer: F, uri: Uri },
        Unfit { why: Option<Unfit> },
    }
}

// === impl Reqwest ===

impl<S> Reqwest<S> {
    /// Ends a body whose next frame is waited for longer than `idle`, with an
    /// [`Elapsed`](buttress_core::Elapsed) of [`Limit::Idle`](buttress_core::Limit::Idle).
    ///
    /// # Errors
    ///
    /// Refuses zero: no frame comes in no time.
    pub fn idle(mut self, idle: Duration) -> Result<Self, InvalidSetting> {
        self.inner = self.inner.idle(idle)?;
        Ok(self)
    }

    /// Lets bodies outlive the deadline, which then ends with the head: for streams with no end in sight,
    /// such as server-sent events. Such bodies want an [idle](Self::idle) limit.
    #[must_use]
    pub fn head_only(mut self) -> Self {
        self.inner = self.inner.head_only();
        self
    }

    /// The client.
    pub const fn client(&self) -> &S {
        &self.inner.client().client
    }
}

impl<S, B> Service<Request<B>> for Reqwest<S>
where
    S: Service<reqwest::Request, Response = reqwest::Response>,
    S::Error: IntoBoxError,
    B: HttpBody<Data = Bytes> + Send + Sync + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body<reqwest::Body>>;
    type Error = BoxError;
    type Future = ReqwestFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Service::<Request<B>>::poll_ready(&mut self.inner, cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        ReqwestFuture { answer: self.inner.call(request) }
    }
}

/// Tells nothing of the client: reqwest's shows the headers that it sends with each request, such as a token.
impl<S> fmt::Debug for Reqwest<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reqwest").finish_non_exhaustive()
    }
}

// === impl Translated ===

impl<S, B> Service<Request<B>> for Translated<S>
where
    S: Service<reqwest::Request, Response = reqwest::Response>,
    S::Error: IntoBoxError,
    B: HttpBody<Data = Bytes> + Send + Sync + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<reqwest::Body>;
    type Error = BoxError;
    type Future = TranslatedFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.client.poll_ready(cx).map_err(no_password)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let uri = request.uri().clone();
        let state = match request.map(for_reqwest).try_into() {
            Ok(request) => State::Sent { answer: self.client.call(request), uri },
            Err(why) => State::Unfit { why: Some(Unfit { why }) },
        };
        TranslatedFuture { state }
    }
}

// === impl ReqwestFuture ===

impl<F, E> Future for ReqwestFuture<F>
where
    F: Future<Output = Result<reqwest::Response, E>>,
    E: Into<BoxError>,
{
    type Output = Result<Response<Body<reqwest::Body>>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.project().answer.poll(cx)
    }
}

/// Tells nothing of the request, whose URI may have a password in it.
impl<F> fmt::Debug for ReqwestFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReqwestFuture").finish_non_exhaustive()
    }
}

// === impl TranslatedFuture ===

impl<F, E> Future for TranslatedFuture<F>
where
    F: Future<Output = Result<reqwest::Response, E>>,
    E: Into<BoxError>,
{
    type Output = Result<Response<reqwest::Body>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Sent { answer, uri } => {
                let response = ready!(answer.poll(cx)).map_err(no_password)?;
                Poll::Ready(Ok(translated(response, uri)))
            }
            StateProj::Unfit { why } => {
                let why = why.take().expect("polled once more after it was ready");
                Poll::Ready(Err(why.into()))
            }
        }
    }
}

/// The response, which bears the URL that it came from where that is not the request's.
fn translated(response: reqwest::Response, uri: &Uri) -> Response<reqwest::Body> {
    let url = (!is_same(uri, response.url().as_str())).then(|| response.url().clone());
    let mut response = Response::from(response);
    if let Some(url) = url {
        let bearer = Response::builder().url(url).body(()).expect("a URL is no part of the head");
        response.extensions_mut().extend(bearer.into_parts().0.extensions);
    }
    response
}

/// Whether the URI reads so. It is compared as it is written, as there is nowhere it lies in one piece.
fn is_same(uri: &Uri, url: &str) -> bool {
    struct Rest<'a>(&'a str);

    impl fmt::Write for Rest<'_> {
        fn write_str(&mut self, written: &str) -> fmt::Result {
            self.0 = self.0.strip_prefix(written).ok_or(fmt::Error)?;
            Ok(())
        }
    }

    let mut rest = Rest(url);
    write!(rest, "{uri}").is_ok() && rest.0.is_empty()
}

/// The error with no password in it: reqwest tells the whole URL, to whatever log it is written.
fn no_password(error: impl Into<BoxError>) -> BoxError {
    match error.into().downcast::<reqwest::Error>() {
        Ok(mut error) => {
            let is_bare = error
                .url_mut()
                .is_none_or(|url| url.set_password(None).is_ok() && url.set_username("").is_ok());
            if is_bare { error } else { error.without_url().into() }
        }
        Err(error) => error,
    }
}
