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
use buttress_core::{BoxError, InvalidSetting};
use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

pub use self::{body::ChannelBody, error::ChannelError, status::grpc_status};
use crate::{Body, Hyper, HyperFuture, hyper};

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
/// What one of our own layers beneath the channel says comes out as it is: a
/// [`Rejected`](buttress_core::Rejected), an [`Elapsed`](buttress_core::Elapsed). So does an error that does
/// not come of a channel. All else is a [`ChannelError`].
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

impl<S, ReqB, ResB> Service<Request<ReqB>> for Tonic<S>
where
    S: Service<Request<TonicBody>, Response = Response<ResB>>,
    S::Error: Into<BoxError>,
    ReqB: http_body::Body<Data = Bytes> + Send + 'static,
    ReqB::Error: Into<BoxError>,
{
    type Response = Response<Body<ChannelBody<ResB>>>;
    type Error = BoxError;
    type Future = TonicFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.client.poll_ready(cx).map_err(error::of_channel)
    }

    fn call(&mut self, request: Request<ReqB>) -> Self::Future {
        TonicFuture { answer: self.client.call(request.map(TonicBody::new)) }
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
        Poll::Ready(match ready!(self.project().answer.poll(cx)) {
            Ok(response) => Ok(response.map(|body| body.map(ChannelBody::new))),
            Err(error) => Err(error::of_channel(error)),
        })
    }
}
