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
        state: State<S::Future, A::Kept, A::Future>,
        policy: Policy<A, C, W>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, K, G> {
        /// The inner service works on it.
        Asking { #[pin] future: F, kept: Option<K> },
        /// The fallback does, for that reason. Where it was an error, here it is.
        Answering { #[pin] future: G, why: Substitute, error: Option<BoxError> },
        Over,
    }
}

impl<S, Req, A, C, W> ResponseFuture<S, Req, A, C, W>
where
    S: Service<Req>,
    A: Answer<Req, S::Response>,
{
    pub(crate) const fn new(
        future: S::Future,
        kept: Option<A::Kept>,
        policy: Policy<A, C, W>,
    ) -> Self {
        Self { state: State::Asking { future, kept }, policy }
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
        loop {
            match this.state.as_mut().project() {
                // ## Asking => (Over | Answering)
                StateProj::Asking { future, kept } => {
                    let result = ready!(future.poll(cx)).map_err(Into::into);
                    let kept = kept.take();
                    // What the call held is free before anybody else is asked.
                    this.state.set(State::Over);
                    let Some(kept) = kept else { return Poll::Ready(result) };
                    let cause = Cause::judged(classify, result);
                    if !when.applies(&cause) {
                        return Poll::Ready(cause.into_result());
                    }
                    let future = answer.answer(kept, &cause);
                    let why = cause.substitute();
                    // A response goes here: it may hold a connection.
                    let error = cause.into_result().err();
                    this.state.set(State::Answering { future, why, error });
                }
                // ## Answering => Over
                StateProj::Answering { future, why, error } => {
                    let answer = ready!(future.poll(cx));
                    let (why, cause) = (*why, error.take());
                    this.state.set(State::Over);
                    return Poll::Ready(finish(classify, answer, why, cause));
                }
                StateProj::Over => panic!("polled after it had answered"),
            }
        }
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
