use std::{
    error::Error,
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use buttress_core::{Both, BoxError, Class, Elapsed, IntoBoxError};
use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{
    Code, PeekedBody,
    class::{AfterHead, of_end, of_head},
    code::Status,
};
use crate::{HttpClient, errors::class_of};

/// Lets a retry see the status that follows right after the head: the innermost layer of a gRPC client.
///
/// Many servers send a call that failed as a head that says nothing, and trailers with the status right after
/// it. A retry decides at the head, so it would never repeat such a call. This waits for one frame more:
///
/// | what follows the head | what is answered |
/// |---|---|
/// | trailers, or the end | the response, and [`GrpcClass`](super::GrpcClass) knows the status at its head |
/// | a message, or a part of one | the response: the call is committed, as its answer has begun |
/// | a frame with nothing in it, as some servers send before their trailers | what the next one says; 16 of them commit the call |
/// | an error | that error, instead of the response |
///
/// Nothing is waited for where the head itself [decides](super::GrpcClass), or says that the body is empty.
///
/// The response is the same as without: its headers are not touched, and the frame that was looked at comes
/// first out of its [body](PeekedBody). No other layer need read frames; a breaker that observes
/// [`AtEnd`](crate::AtEnd) finds the trailers where they always are.
///
/// An error right after the head never says that nothing was sent, whatever it looks like: the head had come.
/// If it would, it is the error of a [`Both`].
///
/// # Streams
///
/// The answer comes with the first frame, not with the head. A server that streams, and sends nothing for a
/// minute after its head, is waited for that long: an attempt's limit covers that wait, and ends it. Leave
/// this layer out for methods whose first message may take its time; they are then repeated only where the
/// server says the status in the head.
///
/// # Requirements
///
/// The body is `Unpin`, as those of clients are. (One that is not can be boxed: `Pin<Box<B>>`.)
///
/// # Cancel safety
///
/// A future that is dropped drops the response, which resets its stream.
///
/// # Examples
///
/// ```
/// use buttress_core::{BoxError, Class, Classify};
/// use buttress_http::{GrpcClass, GrpcHeadLayer};
/// use bytes::Bytes;
/// use http::{HeaderMap, Request, Response};
/// use http_body_util::{BodyExt, Empty};
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let server = service_fn(|_: Request<()>| async {
///     let mut trailers = HeaderMap::new();
///     trailers.insert("grpc-status", "14".parse()?);
///     let body = Empty::<Bytes>::new().with_trailers(std::future::ready(Some(Ok(trailers))));
///     Ok::<_, BoxError>(Response::new(Box::pin(body)))
/// });
/// let client = ServiceBuilder::new().layer(GrpcHeadLayer::new()).service(server);
/// let response = client.oneshot(Request::new(())).await?;
/// assert_eq!(GrpcClass.classify(Ok(&response)), Class::Transient { after: None });
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct GrpcHeadLayer {}

/// Looks at the first frame after a head. See [`GrpcHeadLayer`].
#[derive(Clone, Debug)]
pub struct GrpcHead<S> {
    inner: S,
}

pin_project! {
    /// The answer of [`GrpcHead`].
    #[must_use = "futures do nothing unless polled"]
    pub struct GrpcHeadFuture<F, B> {
        #[pin]
        state: State<F, B>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, B> {
        Calling { #[pin] future: F },
        // The head is there, and does not decide.
        Peeking { response: Option<Response<B>>, empties: u32 },
    }
}

/// How many frames with nothing in them are looked past. Servers send one; a flood of them must not keep the
/// task busy for ever.
const EMPTIES: u32 = 16;

/// It was sent, whatever the error beside it looks like.
#[derive(Debug)]
struct HeadHadCome;

// === impl GrpcHeadLayer ===

impl GrpcHeadLayer {
    /// The layer.
    #[must_use]
    pub const fn new() -> Self {
        Self {}
    }
}

impl<S> Layer<S> for GrpcHeadLayer {
    type Service = GrpcHead<S>;

    fn layer(&self, inner: S) -> GrpcHead<S> {
        GrpcHead { inner }
    }
}

// === impl GrpcHead ===

impl<S, Req> Service<Req> for GrpcHead<S>
where
    S: HttpClient<Req>,
    S::Failure: IntoBoxError,
    S::Body: Body<Data = Bytes> + Unpin,
    <S::Body as Body>::Error: Into<BoxError>,
{
    type Response = Response<PeekedBody<S::Body>>;
    type Error = BoxError;
    type Future = GrpcHeadFuture<S::Future, S::Body>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        GrpcHeadFuture { state: State::Calling { future: self.inner.call(request) } }
    }
}

// === impl GrpcHeadFuture ===

impl<F, B, E> Future for GrpcHeadFuture<F, B>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Output = Result<Response<PeekedBody<B>>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            match state.as_mut().project() {
                // ## Calling => (Peeking | Done)
                StateProj::Calling { future } => {
                    let response = ready!(future.poll(cx)).map_err(Into::into)?;
                    if of_head(response.status(), response.headers()).is_some() {
                        return Poll::Ready(Ok(response.map(PeekedBody::untouched)));
                    }
                    if response.body().is_end_stream() {
                        return Poll::Ready(Ok(ended(response, 0)));
                    }
                    state.set(State::Peeking { response: Some(response), empties: 0 });
                }

                // ## Peeking => (Peeking | Done)
                StateProj::Peeking { response, empties } => {
                    let body = response.as_mut().expect("polled after it was ready").body_mut();
                    let hint = body.size_hint();
                    let frame = ready!(Pin::new(body).poll_frame(cx));
                    let empty =
                        |frame: &Frame<Bytes>| frame.data_ref().is_some_and(Bytes::is_empty);
                    if matches!(&frame, Some(Ok(frame)) if empty(frame)) && *empties < EMPTIES {
                        *empties += 1;
                        continue;
                    }
                    let empties = *empties;
                    let mut response = response.take().expect("looked at above");
                    let frame = match frame {
                        Some(Ok(frame)) => frame,
                        Some(Err(error)) => return Poll::Ready(Err(sent(error.into()))),
                        None => return Poll::Ready(Ok(ended(response, empties))),
                    };
                    if let Some(trailers) = frame.trailers_ref() {
                        note(&mut response, of_end(Some(trailers)));
                    }
                    let begun = |body| PeekedBody::begun(empties, frame, hint, body);
                    return Poll::Ready(Ok(response.map(begun)));
                }
            }
        }
    }
}

impl<F, B> fmt::Debug for GrpcHeadFuture<F, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Calling { .. } => "calling",
            State::Peeking { .. } => "peeking",
        };
        f.debug_struct("GrpcHeadFuture").field("state", &state).finish_non_exhaustive()
    }
}

/// There is nothing after the head but so many empty frames, and so no status.
fn ended<B>(mut response: Response<B>, empties: u32) -> Response<PeekedBody<B>> {
    note(&mut response, of_end(None));
    response.map(|body| PeekedBody::ended(empties, body))
}

/// Leaves word of the status for those who see the head. A head that says nothing is a success, so there is no
/// need for one where it went well.
fn note<B>(response: &mut Response<B>, status: Status) {
    if status.code != Code::Ok {
        response.extensions_mut().insert(AfterHead(status));
    }
}

/// The error, such that it does not say that nothing was sent.
fn sent(error: BoxError) -> BoxError {
    let unsent = |elapsed: &Elapsed| !elapsed.sent();
    if matches!(class_of(&*error), Class::Unreachable | Class::Refused)
        || error.downcast_ref().is_some_and(unsent)
    {
        return Both::new(error, HeadHadCome).into();
    }
    error
}

// === impl HeadHadCome ===

impl fmt::Display for HeadHadCome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the head of the response had come")
    }
}

impl Error for HeadHadCome {}

#[cfg(test)]
mod tests {
    use std::{future::ready as at_once, io};

    use buttress_core::{Classify, Limit, Reason, Rejected, find, judge};
    use futures_util::FutureExt;
    use http::{HeaderMap, StatusCode};
    use http_body_util::{BodyExt, Full};
    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::{
        GrpcClass,
        testing::{Scripted, Step, assert_same, data, of_known_length, scripted, secs, trailers},
    };

    const TRANSIENT: Class = Class::Transient { after: None };

    type Peeked<B> = Result<Response<PeekedBody<B>>, BoxError>;

    async fn peek<B>(response: Response<B>) -> Peeked<B>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Into<BoxError>,
    {
        let mut response = Some(response);
        let inner = service_fn(move |()| at_once(Ok::<_, BoxError>(response.take().unwrap())));
        GrpcHeadLayer::new().layer(inner).oneshot(()).await
    }

    fn class<B>(response: &Peeked<B>) -> Class {
        judge(&GrpcClass, response.as_ref())
    }

    fn head(status: u16, grpc: Option<&str>, body: Scripted) -> Response<Scripted> {
        let mut response = Response::new(body);
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        if let Some(grpc) = grpc {
            response.headers_mut().insert("grpc-status", grpc.parse().unwrap());
        }
        response
    }

    // GRP-01, GRP-02
    #[tokio::test]
    async fn a_status_right_after_the_head_is_known_at_the_head() {
        let message = || data("hello");
        let table = [
            ("trailers that failed", vec![trailers("grpc-status", "14")], TRANSIENT),
            ("trailers", vec![trailers("grpc-status", "0")], Class::Success),
            ("trailers with garbage", vec![trailers("grpc-status", "x")], TRANSIENT),
            ("trailers without a status", vec![trailers("checksum", "7")], TRANSIENT),
            ("nothing", vec![], TRANSIENT),
            ("an empty frame, trailers", vec![data(""), trailers("grpc-status", "14")], TRANSIENT),
            ("an empty frame, nothing", vec![data(""), data("")], TRANSIENT),
            ("a message", vec![message(), trailers("grpc-status", "14")], Class::Success),
            ("a message alone", vec![message()], Class::Success),
            ("a message that breaks off", vec![message(), Step::Error("reset")], Class::Success),
        ];
        for (what, steps, expected) in table {
            let response = peek(head(200, None, scripted(steps))).await;
            assert_eq!(class(&response), expected, "{what}");
            let noted = !response.unwrap().extensions().is_empty();
            assert_eq!(noted, expected != Class::Success, "{what}: a success costs no note");
        }
        let empty = head(200, None, of_known_length([]));
        assert_eq!(class(&peek(empty).await), TRANSIENT, "a body that knows that it is empty");
    }

    #[tokio::test]
    async fn a_head_that_decides_is_answered_at_once_and_its_body_not_touched() {
        for (status, grpc, expected) in [
            (200, Some("14"), TRANSIENT),
            (200, Some("0"), Class::Success),
            (200, Some("x"), TRANSIENT),
            (503, None, TRANSIENT),
            (404, None, Class::CallerError),
        ] {
            let body = scripted([Step::Never]);
            let seen = body.seen.clone();
            let response = peek(head(status, grpc, body)).now_or_never().expect("at once");
            assert_eq!((class(&response), seen.polls.get()), (expected, 0), "{status} {grpc:?}");
        }
    }

    // GRP-01
    #[tokio::test(start_paused = true)]
    async fn the_response_is_the_same_with_and_without() {
        let scripts = [
            vec![trailers("grpc-status", "14")],
            vec![data("hello"), Step::Wait(secs(1)), data("you"), trailers("grpc-status", "0")],
            vec![Step::Wait(secs(1)), data(""), data("you")],
            vec![data(""), Step::Wait(secs(1)), data(""), trailers("grpc-status", "14")],
            vec![data(""); 100],
            vec![data("hello")],
        ];
        for steps in scripts {
            let mut served = head(200, None, scripted(steps.clone()));
            served.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
            let headers = served.headers().clone();
            let response = peek(served).await.unwrap();
            assert_eq!(response.headers(), &headers, "a proxy passes on what it got");
            assert_same(scripted(steps.clone()), response.into_body()).await;
            if steps.iter().all(|step| !matches!(step, Step::Trailers(_))) {
                let response = peek(head(200, None, of_known_length(steps.clone()))).await;
                assert_same(of_known_length(steps), response.unwrap().into_body()).await;
            }
        }
    }

    #[tokio::test]
    async fn one_frame_is_looked_at_and_no_more() {
        let body = scripted([data("a"), Step::Never]);
        let seen = body.seen.clone();
        let response = peek(head(200, None, body)).now_or_never().expect("one is enough");
        assert_eq!((seen.polls.get(), seen.read.get()), (1, 1));
        let mut body = response.unwrap().into_body();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "a");
        assert_eq!(seen.polls.get(), 1, "it is passed on as it was kept");
    }

    #[tokio::test]
    async fn a_flood_of_frames_with_nothing_in_them_commits_the_call() {
        let flood = scripted([Step::Flood(Bytes::new())]);
        let seen = flood.seen.clone();
        let response = peek(head(200, None, flood)).now_or_never().expect("it is bounded");
        assert_eq!((class(&response), seen.polls.get()), (Class::Success, 17));
        let mut body = response.unwrap().into_body();
        for _ in 0..17 {
            assert!(body.frame().await.unwrap().unwrap().into_data().unwrap().is_empty());
        }
        assert_eq!(seen.polls.get(), 17, "each is passed on");
    }

    #[tokio::test]
    async fn a_body_that_has_ended_is_not_asked_again() {
        let body = scripted([]);
        let seen = body.seen.clone();
        let mut body = peek(head(200, None, body)).await.unwrap().into_body();
        assert!(body.is_end_stream() && body.size_hint().exact() == Some(0));
        assert!(body.frame().await.is_none() && body.frame().await.is_none());
        assert_eq!(seen.polls.get(), 1);

        let mut body = peek(head(200, None, scripted([data("")]))).await.unwrap().into_body();
        assert!(!body.is_end_stream(), "there is a frame, if an empty one");
        assert!(body.frame().await.unwrap().is_ok());
        assert!(body.is_end_stream() && body.frame().await.is_none());
    }

    #[tokio::test]
    async fn an_error_right_after_the_head_is_the_calls_error() {
        let failed = peek(head(200, None, scripted([Step::Error("reset")]))).await;
        assert_eq!(class(&failed), TRANSIENT);
        assert_eq!(failed.map(drop).unwrap_err().to_string(), "reset", "as it is");
    }

    /// Fails with the error that it was made of.
    struct Fails(Option<BoxError>);

    impl Body for Fails {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            Poll::Ready(self.0.take().map(Err))
        }
    }

    #[tokio::test]
    async fn an_error_after_the_head_never_says_that_nothing_was_sent() {
        let elapsed = Elapsed::new(Limit::Attempt, secs(1));
        let errors: [BoxError; 4] = [
            io::Error::from(io::ErrorKind::ConnectionRefused).into(),
            Rejected::new(Reason::CircuitOpen, "breaker").into(),
            elapsed.unsent().into(),
            elapsed.into(),
        ];
        for error in errors {
            let shown = error.to_string();
            let failed = peek(Response::new(Fails(Some(error)))).await;
            assert_eq!(class(&failed), TRANSIENT, "{shown}");
            let error = failed.map(drop).unwrap_err();
            assert!(error.to_string().starts_with(&shown), "{error}");
            assert!(!error.is::<Rejected>(), "{error}");
            assert!(error.downcast_ref().is_none_or(Elapsed::sent), "{error}");
            let found = find::<Elapsed>(&*error).is_some()
                || find::<Rejected>(&*error).is_some()
                || find::<io::Error>(&*error).is_some();
            assert!(found, "it is still there: {error}");
        }
    }

    #[tokio::test]
    async fn an_error_instead_of_a_head_is_passed_on_as_it_is() {
        let inner = service_fn(|()| {
            at_once(Err::<Response<Full<Bytes>>, _>(io::Error::from(
                io::ErrorKind::ConnectionRefused,
            )))
        });
        let failed = GrpcHeadLayer::new().layer(inner).oneshot(()).await;
        assert_eq!(class(&failed), Class::Unreachable, "nothing was sent");
    }

    #[tokio::test]
    async fn a_call_that_is_dropped_while_it_waits_lets_go_of_its_stream() {
        let body = scripted([Step::Never]);
        let seen = body.seen.clone();
        let mut call = Box::pin(peek(head(200, None, body)));
        assert!(futures_util::poll!(call.as_mut()).is_pending());
        assert!(!seen.dropped.get());
        drop(call);
        assert!(seen.dropped.get());
    }

    #[tokio::test]
    #[should_panic(expected = "planted")]
    async fn a_panic_is_not_hushed_up() {
        let _ = peek(head(200, None, scripted([Step::Panic]))).await;
    }

    #[tokio::test]
    async fn an_answer_of_our_own_fits() {
        type Ours = PeekedBody<crate::Body<Full<Bytes>>>;
        for body in [Ours::from("busy"), String::from("busy").into(), Bytes::from("busy").into()] {
            assert_eq!(body.collect().await.unwrap().to_bytes(), "busy");
        }
        assert!(Ours::default().is_end_stream());
        let response = Response::new(Ours::from("busy"));
        assert_eq!(GrpcClass.classify(Ok(&response)), Class::Success);
        let _: HeaderMap = response.into_parts().0.headers;
    }
}
