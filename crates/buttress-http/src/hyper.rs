use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use buttress_core::{BoxError, Deadline, IntoBoxError, InvalidSetting, edge};
use http::{Request, Response};
use pin_project_lite::pin_project;
use tokio::time::Instant;
use tower_service::Service;

use crate::{Body, HttpClient, body::valid_idle};

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
    /// Ends a body whose next frame is waited for longer than `idle`, with an
    /// [`Elapsed`](buttress_core::Elapsed) of [`Limit::Idle`](buttress_core::Limit::Idle).
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

impl<S, ReqB> Service<Request<ReqB>> for Hyper<S>
where
    S: HttpClient<Request<ReqB>>,
    S::Failure: IntoBoxError,
{
    type Response = Response<Body<S::Body>>;
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
            Self::Known(Some((deadline, since))) => (Some(deadline), deadline.limit_from(since)),
            Self::Known(None) | Self::Unknown => (None, Duration::ZERO),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{Ready, pending, ready},
        io,
        pin::pin,
    };

    use buttress_core::{Elapsed, Limit, find};
    use bytes::Bytes;
    use futures_util::FutureExt;
    use http_body_util::{BodyExt, Empty};
    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::testing::{Scripted, Step, data, millis, scripted, secs};

    type Answer = Result<Response<Scripted>, io::Error>;

    fn stalls() -> impl Service<
        Request<()>,
        Response = Response<Scripted>,
        Error = io::Error,
        Future = Ready<Answer>,
    > {
        service_fn(|_| {
            ready(Ok(Response::builder().status(206).body(scripted([Step::Never])).unwrap()))
        })
    }

    fn deadline(after: Duration) -> Option<Deadline> {
        Deadline::after(after)
    }

    /// How the body of an answer to a call in `deadline` ends, and when.
    async fn ended<S>(mut service: Hyper<S>, deadline: Option<Deadline>) -> (Elapsed, Duration)
    where
        S: Service<Request<()>, Response = Response<Scripted>, Error = io::Error>,
    {
        let start = edge::now();
        let called = Deadline::within(deadline, || service.call(Request::new(())));
        let response = called.await.unwrap();
        assert_eq!(response.status(), 206, "the head is there, whatever becomes of the body");
        let error = response.into_body().collect().await.map(drop).unwrap_err();
        (*find(&*error).unwrap(), edge::now() - start)
    }

    // TMO-02
    #[tokio::test(start_paused = true)]
    async fn the_deadline_of_the_call_holds_to_the_end_of_the_body() {
        let expected = (Elapsed::new(Limit::Total, secs(5)), secs(5));
        assert_eq!(ended(hyper(stalls()), deadline(secs(5))).await, expected);
        let idle = hyper(stalls()).idle(secs(1)).unwrap();
        let expected = (Elapsed::new(Limit::Idle, secs(1)), secs(1));
        assert_eq!(ended(idle, deadline(secs(5))).await, expected);
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_the_deadline_of_the_call_and_not_of_whoever_reads() {
        let start = edge::now();
        let mut service = hyper(stalls());
        let called = Deadline::within(deadline(secs(5)), || service.call(Request::new(())));
        let mut called = pin!(called);
        let poll = Deadline::within(deadline(secs(1)), || called.as_mut().now_or_never());
        let body = poll.unwrap().unwrap().into_body();
        assert!(body.collect().await.is_err());
        assert_eq!(edge::now() - start, secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn where_the_call_is_made_elsewhere_it_is_the_deadline_of_whoever_waits() {
        // As behind a `Buffer`, whose worker knows nothing of the request.
        let start = edge::now();
        let slow = service_fn(|_: Request<()>| async {
            tokio::time::sleep(secs(1)).await;
            Answer::Ok(Response::new(scripted([Step::Never])))
        });
        let called = hyper(slow).call(Request::new(()));
        let waiting = buttress_core::Context::default().with_deadline(deadline(secs(5)));
        let response = waiting.scope(called).await.unwrap();
        assert!(response.into_body().collect().await.is_err());
        assert_eq!(edge::now() - start, secs(5));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_may_outlive_the_deadline_if_it_is_told_so() {
        let drips = service_fn(|_: Request<()>| {
            let steps = (0..10).flat_map(|_| [Step::Wait(secs(1)), data("x")]);
            ready(Answer::Ok(Response::new(scripted(steps))))
        });
        let mut service = hyper(drips).head_only();
        let called = Deadline::within(deadline(millis(1500)), || service.call(Request::new(())));
        let body = called.await.unwrap().into_body();
        assert_eq!(body.collect().await.unwrap().to_bytes().len(), 10);
    }

    #[tokio::test]
    async fn a_request_without_a_deadline_needs_no_timer() {
        let empty = service_fn(|_: Request<()>| {
            ready(Ok::<_, io::Error>(Response::new(Empty::<Bytes>::new())))
        });
        let response = hyper(empty).oneshot(Request::new(())).await.unwrap();
        assert!(response.into_body().collect().await.unwrap().to_bytes().is_empty());
    }

    #[tokio::test]
    async fn the_clients_error_comes_as_it_is() {
        let fails = service_fn(|_: Request<()>| {
            ready(Answer::Err(io::Error::from(io::ErrorKind::BrokenPipe)))
        });
        let error = hyper(fails).oneshot(Request::new(())).await.map(drop).unwrap_err();
        assert_eq!(error.downcast_ref::<io::Error>().unwrap().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn idle_of_zero_is_refused() {
        assert_eq!(hyper(()).idle(Duration::ZERO).unwrap_err().setting(), "idle");
        assert!(hyper(()).idle(Duration::MAX).is_ok());
    }

    #[tokio::test]
    async fn a_call_that_is_dropped_drops_the_clients_call_in_that_instant() {
        struct OnDrop<'a>(&'a std::cell::Cell<bool>);
        impl Drop for OnDrop<'_> {
            fn drop(&mut self) {
                self.0.set(true);
            }
        }
        let dropped = std::cell::Cell::new(false);
        let mut service = hyper(service_fn(|_: Request<()>| {
            let guard = OnDrop(&dropped);
            async move {
                let _guard = guard;
                pending::<Answer>().await
            }
        }));
        let mut called = Box::pin(service.call(Request::new(())));
        assert!(futures_util::poll!(called.as_mut()).is_pending());
        drop(called);
        assert!(dropped.get());
    }

    #[test]
    fn it_goes_wherever_its_client_goes() {
        fn free<T: Clone + Unpin + Send + Sync + 'static>() {}
        free::<Hyper<()>>();
    }
}
