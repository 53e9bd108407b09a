//! The services inside: trivial, so that what is measured is what stands around them.

use std::{
    error::Error,
    fmt,
    future::{Future, Pending, Ready, pending, ready},
    hint::black_box,
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    task::{Context, Poll},
};

use tower_service::Service;

/// Answers at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answers;

/// Answers in its second poll, as whatever asks a network does in a later one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits;

/// Fails at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fails;

/// Never answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hangs;

/// Answers at once, after so many turns of work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Works(pub(crate) u32);

/// The same, and counts it in a word that all threads share: the least that whatever is exact has to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts(pub(crate) Works);

/// Answers at once, with what a function makes of the request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Does<F>(pub(crate) F);

/// What [`Fails`] says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure;

/// Wakes its task, and is ready in the poll after that.
#[derive(Debug)]
pub(crate) struct Second {
    answer: u64,
    polled: bool,
}

macro_rules! service {
    ($service:ty, $future:ty, $call:expr) => {
        impl Service<u64> for $service {
            type Response = u64;
            type Error = Failure;
            type Future = $future;

            fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
                Poll::Ready(Ok(()))
            }

            fn call(&mut self, request: u64) -> $future {
                ($call)(*self, request)
            }
        }
    };
}

service!(Answers, Ready<Result<u64, Failure>>, |_, n| ready(Ok(n)));
service!(Works, Ready<Result<u64, Failure>>, |works: Self, n| ready(Ok(works.work(n))));
service!(Counts, Ready<Result<u64, Failure>>, |counts: Self, n| ready(Ok(counts.count(n))));
service!(Waits, Second, |_, answer| Second { answer, polled: false });
service!(Fails, Ready<Result<u64, Failure>>, |_, _| ready(Err(Failure)));
service!(Hangs, Pending<Result<u64, Failure>>, |_, _| pending());

impl<F: FnMut(u64) -> u64> Service<u64> for Does<F> {
    type Response = u64;
    type Error = Failure;
    type Future = Ready<Result<u64, Failure>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: u64) -> Self::Future {
        ready(Ok((self.0)(request)))
    }
}

impl Works {
    fn work(self, request: u64) -> u64 {
        (0..self.0).fold(request, |n, turn| black_box(n.wrapping_mul(31) ^ u64::from(turn)))
    }
}

impl Counts {
    fn count(self, request: u64) -> u64 {
        static CALLS: AtomicU64 = AtomicU64::new(0);
        CALLS.fetch_add(1, Relaxed);
        self.0.work(request)
    }
}

impl Future for Second {
    type Output = Result<u64, Failure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.polled {
            return Poll::Ready(Ok(self.answer));
        }
        self.polled = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the service failed")
    }
}

impl Error for Failure {}
