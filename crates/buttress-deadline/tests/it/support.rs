use std::{
    convert::Infallible,
    future::{Pending, Ready, pending, poll_fn, ready},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::Poll,
    time::Duration,
};

use buttress_core::{BoxError, Context, Deadline, edge};
use buttress_deadline::{Elapsed, Limit, Rejected};
use buttress_test::Probe;
use tower::{Service, ServiceExt, service_fn};

pub(crate) const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// The request's context, with that much time from now.
pub(crate) fn due_in(left: Duration) -> Context {
    Context::default().with_deadline(Deadline::after(left))
}

/// Answers what it is asked.
pub(crate) fn echo() -> Probe<u32, u32> {
    Probe::new(|n| n)
}

type Silent = fn(u32) -> Pending<Result<u32, Infallible>>;

/// Is ready, and never answers.
pub(crate) fn silent() -> tower::util::ServiceFn<Silent> {
    service_fn(|_| pending())
}

/// Answers with the deadline that it sees in `call` and when it is polled.
pub(crate) type Seen = (Option<Deadline>, Option<Deadline>);

pub(crate) fn seen()
-> impl Service<(), Response = Seen, Error = Infallible, Future: Unpin + Send> + Clone {
    service_fn(|()| {
        let in_call = Deadline::current();
        let mut first = true;
        poll_fn(move |cx| {
            if std::mem::take(&mut first) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(Ok((in_call, Deadline::current())))
        })
    })
}

/// Answers with the context in `call`, and with that of a later poll.
pub(crate) fn mirror()
-> impl Service<(), Response = [Context; 2], Error = Infallible, Future: Unpin + Send> + Clone {
    service_fn(|()| {
        let in_call = Context::current();
        let mut first = true;
        poll_fn(move |cx| {
            if std::mem::take(&mut first) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(Ok([in_call, Context::current()]))
        })
    })
}

/// What a call answers, and how long that took, readiness and all.
pub(crate) async fn timed<S>(service: S) -> (Result<S::Response, BoxError>, Duration)
where
    S: Service<u32, Error = BoxError>,
{
    let start = edge::now();
    let answer = service.oneshot(7).await;
    (answer, edge::now() - start)
}

/// Polls once.
pub(crate) async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await
}

/// Polls once, and tells whether it panicked.
pub(crate) async fn panics<F: Future>(mut future: Pin<&mut F>) -> bool {
    poll_fn(|cx| {
        let poll = AssertUnwindSafe(|| future.as_mut().poll(cx).is_ready());
        Poll::Ready(catch_unwind(poll).is_err())
    })
    .await
}

/// Polls for readiness once.
pub(crate) async fn poll_ready<S: Service<u32>>(service: &mut S) -> Poll<Result<(), S::Error>> {
    poll_fn(|cx| Poll::Ready(service.poll_ready(cx))).await
}

#[track_caller]
pub(crate) fn elapsed<T>(answer: Result<T, BoxError>) -> Elapsed {
    let error = answer.map(drop).expect_err("an answer");
    *error.downcast_ref().unwrap_or_else(|| panic!("{error}"))
}

#[track_caller]
pub(crate) fn rejected<T>(answer: Result<T, BoxError>) -> Rejected {
    let error = answer.map(drop).expect_err("an answer");
    *error.downcast_ref().unwrap_or_else(|| panic!("{error}"))
}

pub(crate) const fn attempt(limit: Duration) -> Elapsed {
    Elapsed::new(Limit::Attempt, limit)
}

pub(crate) const fn total(limit: Duration) -> Elapsed {
    Elapsed::new(Limit::Total, limit)
}

pub(crate) const LATE: Rejected =
    Rejected::new(buttress_deadline::Reason::DeadlineExceeded, "deadline");

pub(crate) const LATE_ATTEMPT: Rejected =
    Rejected::new(buttress_deadline::Reason::DeadlineExceeded, "timeout");

/// A service whose calls are all like this.
pub(crate) fn always<T: Clone>(
    answer: T,
) -> impl Service<u32, Response = T, Error = Infallible, Future = Ready<Result<T, Infallible>>> + Clone
{
    service_fn(move |_| ready(Ok(answer.clone())))
}
