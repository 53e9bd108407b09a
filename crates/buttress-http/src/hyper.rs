use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use buttress_core::{BoxError, Deadline, InvalidSetting, edge};
use http::{Request, Response};
use pin_project_lite::pin_project;
use tokio::time::Instant;
use tower_service::Service;

use crate::{Body, body::valid_idle};

/// Makes hyper's client fit for a stack: the innermost service of every HTTP client stack over hyper.
///
/// hyper answers with a body that nobody else can make, and knows of no deadline. [`Hyper`] answers with
/// [`Body`], which carries the request's deadline to its end.
///
/// It works for whatever is a service of `http` messages.
///
/// # Examples
///
/// ```
/// use buttress_http::hyper;
/// use hyper_util::{client::legacy::Client, rt::TokioExecutor};
///
/// # use http_body_util::Empty;
/// # use bytes::Bytes;
/// # fn main() -> Result<(), buttress_core::InvalidSetting> {
/// let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
/// let service = hyper(client).idle(std::time::Duration::from_secs(10))?;
/// # drop(service);
/// # Ok(())
/// # }
/// ```
pub const fn hyper<S>(client: S) -> Hyper<S> {
    Hyper { client, idle: None, head_only: false }
}

/// A client whose bodies obey the request's deadline. See [`hyper()`].
///
/// The deadline is the one that is ambient when it is called, or when the answer is first waited for (a
/// `Buffer` calls it elsewhere). It is one absolute limit over readiness, head and body.
///
/// Its future allocates nothing, and adds no limit to the head: that is the `DeadlineLayer`'s.
#[derive(Clone, Debug)]
pub struct Hyper<S> {
    client: S,
    idle: Option<Duration>,
    head_only: bool,
}

pin_project! {
    /// The answer of [`Hyper`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct HyperFuture<F> {
        #[pin]
        answer: F,
        deadline: Carried,
        idle: Option<Duration>,
    }
}

/// The deadline that the body is to carry.
#[derive(Clone, Copy, Debug)]
enum Carried {
    /// None yet; perhaps whoever polls knows of one.
    Unknown,
    Known(Option<(Deadline, Instant)>),
}

// === impl Hyper ===

impl<S> Hyper<S> {
    /// Ends a body whose next frame is waited for longer than `idle`.
    ///
    /// # Errors
    ///
    /// Refuses zero: no frame comes in no time.
    pub fn idle(mut self, idle: Duration) -> Result<Self, InvalidSetting> {
        self.idle = Some(valid_idle(idle)?);
        Ok(self)
    }

    /// Lets bodies outlive the deadline, which then ends with the head: for streams with no end in sight,
    /// such as server-sent events. Such bodies want an [idle](Self::idle) limit.
    #[must_use]
    pub const fn head_only(mut self) -> Self {
        self.head_only = true;
        self
    }

    /// The client.
    pub const fn client(&self) -> &S {
        &self.client
    }
}

impl<S, ReqB, ResB> Service<Request<ReqB>> for Hyper<S>
where
    S: Service<Request<ReqB>, Response = Response<ResB>>,
    S::Error: Into<BoxError>,
{
    type Response = Response<Body<ResB>>;
    type Error = BoxError;
    type Future = HyperFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.client.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<ReqB>) -> Self::Future {
        let deadline = if self.head_only {
            Carried::Known(None)
        } else {
            Carried::now().map_or(Carried::Unknown, |now| Carried::Known(Some(now)))
        };
        HyperFuture { answer: self.client.call(request), deadline, idle: self.idle }
    }
}

// === impl HyperFuture ===

impl<F, B, E> Future for HyperFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
{
    type Output = Result<Response<Body<B>>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Carried::Unknown = this.deadline {
            *this.deadline = Carried::Known(Carried::now());
        }
        let response = ready!(this.answer.poll(cx)).map_err(Into::into)?;
        let (deadline, total) = this.deadline.limit();
        Poll::Ready(Ok(response.map(|body| Body::new(body).limited(deadline, total, *this.idle))))
    }
}

// === impl Carried ===

impl Carried {
    /// The deadline of the request that this code runs for, and since when it is waited for.
    fn now() -> Option<(Deadline, Instant)> {
        Deadline::current().map(|deadline| (deadline, edge::now()))
    }

    fn limit(self) -> (Option<Deadline>, Duration) {
        match self {
            Self::Known(Some((deadline, since))) => (Some(deadline), deadline.left(since)),
            Self::Known(None) | Self::Unknown => (None, Duration::ZERO),
        }
    }
}
