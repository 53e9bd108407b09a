use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use buttress_core::{BoxError, Deadline, Elapsed, IntoBoxError, Limit, Rejected, edge, find};
use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use reqwest::{ResponseBuilderExt, Url};
use tower_layer::Layer;
use tower_service::Service;

use super::Unfit;
use crate::is_timeout;

/// Makes of a stack what reqwest's users are used to: requests made with reqwest's builder, and
/// `response.json()`.
///
/// It is the other half of [`reqwest()`](super::reqwest()): that one is innermost, this one outermost.
/// See [`AsReqwest`].
///
/// # Examples
///
/// ```
/// use buttress_core::BoxError;
/// use buttress_http::{as_reqwest, reqwest};
/// use tower::{Service, ServiceExt};
///
/// # async fn order(inner: ::reqwest::Client) -> Result<(), BoxError> {
/// // With nothing between them here; there a stack belongs.
/// let mut client = as_reqwest(reqwest(inner.clone()));
/// let request = inner.post("https://shop/orders").body("tea").build()?;
/// let answer = client.ready().await?.call(request).await?.error_for_status()?.text().await?;
/// # Ok(())
/// # }
/// ```
pub const fn as_reqwest<S>(stack: S) -> AsReqwest<S> {
    AsReqwest { inner: stack }
}

/// Makes services of reqwest's types. See [`as_reqwest()`].
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct AsReqwestLayer;

/// A service of reqwest's requests and responses, over one of `http` messages. See [`as_reqwest()`].
///
/// - The request's own [timeout](reqwest::Request::timeout) is the deadline of the whole, with all attempts,
///   unless an earlier one is [ambient](Deadline::current). reqwest obeys it in each attempt too, in place of
///   its client's. Whoever of them notices first, the call fails with an [`Elapsed`]; or with a [`Rejected`], if
///   the time was up before anything was sent.
/// - The response tells the URL that it came from, after redirects. One that the stack has made itself, as a
///   fallback does, tells the request's.
/// - A body whose limit passes fails with an error of reqwest's, whose
///   [`is_timeout`](reqwest::Error::is_timeout) is true, with our [`Elapsed`] among its sources.
///
/// # Errors
///
/// Those of the stack. A request whose URL is too long to be sent fails where its answer is awaited.
#[derive(Clone, Debug)]
pub struct AsReqwest<S> {
    inner: S,
}

pin_project! {
    /// The answer of [`AsReqwest`].
    #[must_use = "futures do nothing unless polled"]
    pub struct AsReqwestFuture<F> {
        #[pin]
        state: State<F>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F> {
        Called { #[pin] answer: F, url: Option<Url>, limit: Option<OwnLimit> },
        Unfit { why: Option<Unfit> },
    }
}

/// The deadline that the request has brought along.
#[derive(Clone, Copy)]
struct OwnLimit {
    deadline: Deadline,
    /// How long it was, for the error.
    limit: Duration,
    is_settled: bool,
}

pin_project! {
    /// The stack's body, with errors that reqwest knows for timeouts.
    struct Timed<B> {
        #[pin]
        inner: B,
    }
}

// === impl AsReqwestLayer ===

impl<S> Layer<S> for AsReqwestLayer {
    type Service = AsReqwest<S>;

    fn layer(&self, inner: S) -> AsReqwest<S> {
        as_reqwest(inner)
    }
}

// === impl AsReqwest ===

impl<S, B> Service<reqwest::Request> for AsReqwest<S>
where
    S: Service<Request<reqwest::Body>, Response = Response<B>>,
    S::Error: IntoBoxError,
    B: Body<Data = Bytes> + Send + Sync + 'static,
    B::Error: Into<BoxError>,
{
    type Response = reqwest::Response;
    type Error = BoxError;
    type Future = AsReqwestFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: reqwest::Request) -> Self::Future {
        let limit = OwnLimit::of(&request);
        let url = request.url().clone();
        let state = match request.try_into() {
            Ok(request) => {
                let answer = OwnLimit::within(limit, || self.inner.call(request));
                State::Called { answer, url: Some(url), limit }
            }
            Err(why) => State::Unfit { why: Some(Unfit { why }) },
        };
        AsReqwestFuture { state }
    }
}

// === impl AsReqwestFuture ===

impl<F, B, E> Future for AsReqwestFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
    B: Body<Data = Bytes> + Send + Sync + 'static,
    B::Error: Into<BoxError>,
{
    type Output = Result<reqwest::Response, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Called { answer, url, limit } => {
                if let Some(limit) = limit {
                    limit.settle();
                }
                let polled = OwnLimit::within(*limit, || answer.poll(cx));
                let response = ready!(polled).map_err(|error| named(error.into(), *limit))?;
                let url = url.take().expect("polled once more after it was ready");
                Poll::Ready(Ok(of_reqwest(response, url)))
            }
            StateProj::Unfit { why } => {
                let why = why.take().expect("polled once more after it was ready");
                Poll::Ready(Err(why.into()))
            }
        }
    }
}

/// The error, by our name for it if it is the request's own limit that passed. reqwest has a timer of its own
/// for it, and it is chance which of them is heard first. A refusal stays one: it says that nothing was sent.
fn named(error: BoxError, limit: Option<OwnLimit>) -> BoxError {
    match limit {
        Some(OwnLimit { deadline, limit, .. })
            if deadline.has_passed(edge::now())
                && is_timeout(&*error)
                && find::<Elapsed>(&*error).is_none()
                && find::<Rejected>(&*error).is_none() =>
        {
            Elapsed::new(Limit::Total, limit).into()
        }
        _ => error,
    }
}

/// The response as reqwest has it; from `url`, unless it says another.
fn of_reqwest<B>(response: Response<B>, mut url: Url) -> reqwest::Response
where
    B: Body<Data = Bytes> + Send + Sync + 'static,
    B::Error: Into<BoxError>,
{
    // It was not sent, so reqwest's own responses do not tell it either.
    url.set_fragment(None);
    let (mut head, body) = response.into_parts();
    let bearer = Response::builder().url(url).body(()).expect("a URL is no part of the head");
    let said = std::mem::replace(&mut head.extensions, bearer.into_parts().0.extensions);
    head.extensions.extend(said);
    Response::from_parts(head, reqwest::Body::wrap(Timed { inner: body })).into()
}

/// Tells nothing of the request, whose URL may have a password in it.
impl<F> fmt::Debug for AsReqwestFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsReqwestFuture").finish_non_exhaustive()
    }
}

// === impl OwnLimit ===

impl OwnLimit {
    fn of(request: &reqwest::Request) -> Option<Self> {
        let own = Deadline::after(*request.timeout()?);
        let ambient = Deadline::current();
        let deadline = Deadline::earlier(own, ambient)?;
        let limit = deadline.limit_from(edge::now());
        Some(Self { deadline, limit, is_settled: ambient.is_some() })
    }

    fn within<T>(limit: Option<Self>, f: impl FnOnce() -> T) -> T {
        match limit {
            Some(Self { deadline, .. }) => Deadline::within(Some(deadline), f),
            None => f(),
        }
    }

    /// A buffer above called in its own task: only where it is polled an earlier deadline can be seen.
    fn settle(&mut self) {
        if !std::mem::replace(&mut self.is_settled, true) {
            self.deadline = Deadline::earlier(Some(self.deadline), Deadline::current())
                .unwrap_or(self.deadline);
        }
    }
}

// === impl Timed ===

impl<B> Body for Timed<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.project().inner.poll_frame(cx).map_err(|error| {
            let error = error.into();
            if error.is::<Elapsed>() {
                // The one kind of error, of those that others can make, that reqwest takes for a timeout.
                return io::Error::new(io::ErrorKind::TimedOut, error).into();
            }
            error
        })
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::mpsc};

    use buttress_core::Context as Ambient;
    use tokio::task::yield_now;
    use tower::{ServiceExt, buffer::Buffer, service_fn};

    use super::*;
    use crate::testing::secs;

    type Told = mpsc::Sender<Option<Deadline>>;

    /// Tells the deadline in `call` and in a later poll.
    fn mirror(
        told: Told,
    ) -> impl Service<
        Request<reqwest::Body>,
        Response = Response<crate::Body<reqwest::Body>>,
        Error = Infallible,
        Future: Send,
    > + Clone {
        service_fn(move |_| {
            let told = told.clone();
            told.send(Deadline::current()).unwrap();
            async move {
                yield_now().await;
                told.send(Deadline::current()).unwrap();
                Ok(Response::new("ok".into()))
            }
        })
    }

    fn request(timeout: Option<u64>) -> reqwest::Request {
        let url = Url::parse("http://localhost/").unwrap();
        let mut request = reqwest::Request::new(http::Method::GET, url);
        *request.timeout_mut() = timeout.map(secs);
        request
    }

    #[tokio::test(start_paused = true)]
    async fn the_earlier_of_the_requests_own_limit_and_the_ambient_one_holds_throughout() {
        for (own, ambient, expected) in [
            (None, None, None),
            (None, Some(5), Some(5)),
            (Some(3), None, Some(3)),
            (Some(3), Some(5), Some(3)),
            (Some(7), Some(5), Some(5)),
        ] {
            for buffered in [false, true] {
                let (told, heard) = mpsc::channel();
                let around =
                    Ambient::default().with_deadline(ambient.map(secs).and_then(Deadline::after));
                let service = as_reqwest(mirror(told));
                let answer = if buffered {
                    around.scope(Buffer::new(service, 1).oneshot(request(own))).await
                } else {
                    around.scope(service.oneshot(request(own))).await
                };
                assert_eq!(answer.unwrap().text().await.unwrap(), "ok");
                let expected = expected.map(secs).and_then(Deadline::after);
                let told = Vec::from_iter(heard.try_iter());
                // A buffer calls where nobody knows of a deadline, but it is polled here.
                assert_eq!(told[1], expected);
                assert!(buffered || told[0] == expected);
            }
        }
    }
}
