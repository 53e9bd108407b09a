use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::Poll,
    time::Duration,
};

use buttress_core::{
    BoxError, Class, Classify, Context, Deadline, Elapsed, Limit, Mark, Reason, Rejected,
    Substitute,
};
use buttress_test::{Act, Probe};

pub(crate) const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(crate) const OPEN: Rejected = Rejected::new(Reason::CircuitOpen, "breaker");
pub(crate) const LATE: Elapsed = Elapsed::new(Limit::Total, secs(1));

/// A response with a status and a place for a mark.
#[derive(Debug, PartialEq)]
pub(crate) struct Page {
    pub(crate) status: u16,
    pub(crate) mark: Option<Substitute>,
}

pub(crate) const fn page(status: u16) -> Page {
    Page { status, mark: None }
}

/// Classifies pages by status, and marks them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByStatus;

impl Classify<Page> for ByStatus {
    fn classify(&self, result: Result<&Page, &BoxError>) -> Class {
        match result.map(|page| page.status) {
            Ok(200..400) => Class::Success,
            Ok(429) => Class::Throttled { after: None },
            Ok(400..=499) => Class::CallerError,
            Ok(501) => Class::Fatal,
            Ok(_) => Class::Transient { after: None },
            Err(error) if error.is::<Elapsed>() => Class::Transient { after: None },
            Err(_) => Class::Unreachable,
        }
    }
}

impl Mark<Page> for ByStatus {
    fn mark(&self, page: &mut Page, why: Substitute) {
        page.mark = Some(why);
    }
}

/// Answers with a page of the status that it is asked for.
pub(crate) fn pages() -> Probe<u16, Page> {
    Probe::new(page)
}

/// Fails with that, once.
pub(crate) fn failing(error: impl Into<BoxError>) -> Probe<u16, Page> {
    let probe = pages();
    probe.script([Act::Fail(error.into())]);
    probe
}

/// The request's context, with that much time from now.
pub(crate) fn due_in(left: Duration) -> Context {
    Context::default().with_deadline(Deadline::after(left))
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
