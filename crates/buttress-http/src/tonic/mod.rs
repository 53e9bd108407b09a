//! tonic's channel in a stack, and what its errors are to gRPC.

mod body;
mod error;
mod status;

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use ::tonic::body::Body as TonicBody;
use buttress_core::{BoxError, Deadline, Elapsed, IntoBoxError, InvalidSetting, Limit, edge};
use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tokio::time::Instant;
use tower_service::Service;

pub(crate) use self::status::code_of;
pub use self::{body::ChannelBody, error::ChannelError, status::grpc_status};
use crate::{Body, Code, HttpClient, Hyper, HyperFuture, hyper};

/// Makes tonic's channel fit for a stack: the innermost service of every stack under a generated client.
///
/// A channel serves requests of tonic's own body alone, and a stack that sends a request again has another.
/// It knows of no deadline once the head is there. And its errors tell gRPC the wrong thing: a time limit is
/// CANCELLED, as if the caller had hung up, and a lost connection UNKNOWN. [`Tonic`] puts any body into
/// tonic's, answers with [`Body`], which carries the request's deadline to its end, and says by
/// [`ChannelError`] what became of a call.
///
/// It works for whatever serves tonic's requests, as an interceptor around a channel does.
///
/// # Examples
///
/// ```
/// use buttress_http::tonic;
/// use tonic::transport::Channel;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let service = tonic(Channel::from_static("http://orders:50051").connect_lazy());
/// # drop(service);
/// # }
/// ```
pub const fn tonic<S>(channel: S) -> Tonic<S> {
    Tonic { client: hyper(channel) }
}

/// A channel that fits in a stack. See [`tonic()`].
///
/// The body of a request is put in a box, one allocation a call; none if it is empty or tonic's already.
///
/// # Errors
///
/// What one of our own layers beneath the channel says comes out as it is: a
/// [`Rejected`](buttress_core::Rejected), an [`Elapsed`]. So does an error that does not come of a channel.
/// All else is a [`ChannelError`].
///
/// The channel keeps the limit that `grpc-timeout` names, and so does the server, whose word for it is
/// CANCELLED. If one of them is quicker than the layer that set the limit, by less than a timer can tell, the
/// call fails with the [`Elapsed`] that it was about to fail with.
#[derive(Clone, Debug)]
pub struct Tonic<S> {
    client: Hyper<S>,
}

pin_project! {
    /// The answer of [`Tonic`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct TonicFuture<F> {
        #[pin]
        answer: HyperFuture<F>,
        since: Instant,
    }
}

// === impl Tonic ===

impl<S> Tonic<S> {
    /// Ends a body whose next frame is waited for longer than `idle`. See [`Hyper::idle`].
    ///
    /// # Errors
    ///
    /// Refuses zero: no frame comes in no time.
    pub fn idle(mut self, idle: Duration) -> Result<Self, InvalidSetting> {
        self.client = self.client.idle(idle)?;
        Ok(self)
    }

    /// Lets bodies outlive the deadline, which then ends with the head. See [`Hyper::head_only`].
    #[must_use]
    pub fn head_only(mut self) -> Self {
        self.client = self.client.head_only();
        self
    }

    /// The channel.
    pub const fn channel(&self) -> &S {
        self.client.client()
    }
}

impl<S, ReqB> Service<Request<ReqB>> for Tonic<S>
where
    S: HttpClient<Request<TonicBody>>,
    S::Failure: IntoBoxError,
    ReqB: http_body::Body<Data = Bytes> + Send + 'static,
    ReqB::Error: Into<BoxError>,
{
    type Response = Response<Body<ChannelBody<S::Body>>>;
    type Error = BoxError;
    type Future = TonicFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.client.poll_ready(cx).map_err(error::of_channel)
    }

    fn call(&mut self, request: Request<ReqB>) -> Self::Future {
        let since = edge::now();
        TonicFuture { answer: self.client.call(request.map(TonicBody::new)), since }
    }
}

// === impl TonicFuture ===

impl<F, B, E> Future for TonicFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
{
    type Output = Result<Response<Body<ChannelBody<B>>>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let since = *this.since;
        Poll::Ready(match ready!(this.answer.poll(cx)) {
            Ok(response) => match is_cancelled(&response).then(|| late(since)).flatten() {
                Some(elapsed) => Err(elapsed.into()),
                None => Ok(response.map(|body| body.map(|body| ChannelBody::new(body, since)))),
            },
            Err(error) => Err(failed(error, since)),
        })
    }
}

/// So a server says that the time which it was told of is up.
fn is_cancelled<B>(response: &Response<B>) -> bool {
    Code::from_headers(response.headers()) == Some(Code::Cancelled)
}

/// What to make of a channel's error, or of its body's, in a call that was made at `since`.
fn failed(error: BoxError, since: Instant) -> BoxError {
    let error = error::of_channel(error);
    if error.downcast_ref().is_some_and(ChannelError::is_cut_short)
        && let Some(elapsed) = late(since)
    {
        return elapsed.into();
    }
    error
}

/// The limit that has passed, of those that are known where the call is polled.
fn late(since: Instant) -> Option<Elapsed> {
    let (attempt, total) = (Deadline::of_attempt(), Deadline::current());
    let earlier = Deadline::earlier(attempt, total)?;
    let which = if Some(earlier) == total { Limit::Total } else { Limit::Attempt };
    earlier.has_passed(edge::now()).then(|| Elapsed::new(which, earlier.limit_from(since)))
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, future::ready, io};

    use ::tonic::{Status, TimeoutExpired};
    use buttress_core::Context as Ambient;
    use http_body_util::{BodyExt, Empty, Full};
    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::testing::{millis, secs};

    type Answer = Result<Response<Full<Bytes>>, BoxError>;

    fn cancelled() -> Answer {
        Ok(Response::builder().header("grpc-status", "1").body(Full::default())?)
    }

    /// What a call makes of `answer`, which comes after `wait`.
    async fn called(
        within: Ambient,
        wait: Duration,
        answer: fn() -> Answer,
    ) -> Result<(), BoxError> {
        let channel = service_fn(move |_: Request<TonicBody>| async move {
            tokio::time::sleep(wait).await;
            answer()
        });
        let request = Request::new(Empty::<Bytes>::new());
        within.scope(tonic(channel).oneshot(request)).await.map(drop)
    }

    // GRP-07
    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_cut_short_as_its_limit_passes_fails_of_that_limit() {
        let total = || Ambient::default().with_deadline(Deadline::after(secs(2)));
        let attempt = || total().with_attempt_deadline(Deadline::after(secs(1)));
        let expired: fn() -> Answer = || Err(TimeoutExpired(()).into());
        for answer in [expired, cancelled] {
            let error = called(attempt(), secs(1), answer).await.unwrap_err();
            assert_eq!(error.downcast_ref(), Some(&Elapsed::new(Limit::Attempt, secs(1))));
            let error = called(total(), secs(2), answer).await.unwrap_err();
            assert_eq!(error.downcast_ref(), Some(&Elapsed::new(Limit::Total, secs(2))));
        }
        // Somebody else's limit, or none of these: it stands as it was said.
        for within in [attempt(), Ambient::default()] {
            let error = called(within, millis(999), expired).await.unwrap_err();
            assert_eq!(Status::from_error(error).code(), ::tonic::Code::DeadlineExceeded);
            called(within, Duration::ZERO, cancelled).await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_came_in_spite_of_the_limit_is_taken() {
        let total = Ambient::default().with_deadline(Deadline::after(secs(2)));
        called(total, secs(2), || Ok(Response::default())).await.unwrap();
        let error = called(total, secs(2), || Err(io::Error::other("x").into())).await.unwrap_err();
        assert!(error.is::<io::Error>());
    }

    #[tokio::test]
    async fn a_body_of_any_type_goes_through_as_it_is() {
        let echo = service_fn(|request: Request<TonicBody>| {
            ready(Ok::<_, Infallible>(Response::new(request.into_body())))
        });
        let body = Full::<Bytes>::from("tea").with_trailers(ready(Some(Ok([(
            http::HeaderName::from_static("x-end"),
            "1".parse().unwrap(),
        )]
        .into_iter()
        .collect()))));
        let answer = tonic(echo).oneshot(Request::new(body)).await.unwrap();
        let answer = answer.into_body().collect().await.unwrap();
        assert_eq!(answer.trailers().unwrap()["x-end"], "1");
        assert_eq!(answer.to_bytes(), "tea");
    }
}
