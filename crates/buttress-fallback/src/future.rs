use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use buttress_core::{Both, BoxError, Classify, Mark, Reason, Substitute};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::{Answer, Cause, FailedResponse, When, layer::Policy};

pin_project! {
    /// The answer of a [`FallbackService`](crate::FallbackService): the inner service's or the fallback's.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, Req, A, C, W>
    where
        S: Service<Req>,
        A: Answer<Req, S::Response>,
    {
        #[pin]
        pub(crate) state: State<S::Future, A::Kept, A::Future>,
        pub(crate) policy: Policy<A, C, W>,
    }
}

pin_project! {
    #[project = StateProj]
    pub(crate) enum State<F, K, G> {
        /// The inner service works on it.
        Asking { #[pin] future: F, kept: Option<K> },
        /// The fallback does. That is rare, and may be large: on the heap it costs those who need it an
        /// allocation, and all others nothing.
        Answering { answering: Pin<Box<Answering<G>>> },
        Over,
    }
}

pin_project! {
    /// The fallback works, for that reason. Where it was an error, here it is.
    pub(crate) struct Answering<G> {
        #[pin]
        future: G,
        why: Substitute,
        error: Option<BoxError>,
    }
}

impl<S, Req, A, C, W> Future for ResponseFuture<S, Req, A, C, W>
where
    S: Service<Req>,
    S::Error: Into<BoxError>,
    A: Answer<Req, S::Response>,
    C: Classify<S::Response> + Mark<S::Response>,
    W: When<S::Response>,
{
    type Output = Result<S::Response, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let Policy { answer, classify, when } = this.policy;
        // ## Asking => (Over | Answering)
        if let StateProj::Asking { future, kept } = this.state.as_mut().project() {
            let result = ready!(future.poll(cx));
            let kept = kept.take();
            // What the call held is free before anybody else is asked.
            this.state.set(State::Over);
            let result = result.map_err(Into::into);
            let Some(kept) = kept else { return Poll::Ready(result) };
            let cause = Cause::judged(classify, result);
            if !when.applies(&cause) {
                return Poll::Ready(cause.into_result());
            }
            let answering = Answering::new(answer, kept, cause);
            this.state.set(State::Answering { answering });
        }
        // ## Answering => Over
        let StateProj::Answering { answering } = this.state.as_mut().project() else {
            panic!("polled after it had answered");
        };
        let answer = ready!(answering.as_mut().poll(classify, cx));
        this.state.set(State::Over);
        Poll::Ready(answer)
    }
}

impl<G> Answering<G> {
    #[cold]
    fn new<A, Req, Res>(answer: &A, kept: A::Kept, cause: Cause<Res>) -> Pin<Box<Self>>
    where
        A: Answer<Req, Res, Future = G>,
    {
        let future = answer.answer(kept, &cause);
        let why = cause.substitute();
        // A response goes here: it may hold a connection.
        let error = cause.into_result().err();
        Box::pin(Self { future, why, error })
    }

    #[cold]
    fn poll<Res, C>(
        self: Pin<&mut Self>,
        classify: &C,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Res, BoxError>>
    where
        G: Future<Output = Result<Res, BoxError>>,
        C: Mark<Res>,
    {
        let this = self.project();
        let answer = ready!(this.future.poll(cx));
        Poll::Ready(finish(classify, answer, *this.why, this.error.take()))
    }
}

/// Marks the fallback's answer, or pairs its error with what led to it.
fn finish<Res, C>(
    classify: &C,
    answer: Result<Res, BoxError>,
    why: Substitute,
    cause: Option<BoxError>,
) -> Result<Res, BoxError>
where
    C: Mark<Res>,
{
    let reason = why.reason.map(Reason::as_str);
    match answer {
        Ok(mut response) => {
            tracing::debug!(class = ?why.class, reason, "answered by fallback");
            classify.mark(&mut response, why);
            Ok(response)
        }
        Err(error) => {
            tracing::debug!(class = ?why.class, reason, "fallback failed");
            let cause = cause.unwrap_or_else(|| FailedResponse::new(why.class).into());
            Err(Both::new(error, cause).into())
        }
    }
}

impl<S, Req, A, C, W> fmt::Debug for ResponseFuture<S, Req, A, C, W>
where
    S: Service<Req>,
    A: Answer<Req, S::Response>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
