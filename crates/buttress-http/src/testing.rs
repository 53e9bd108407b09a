//! Bodies and errors for tests.

use std::{
    cell::Cell,
    collections::VecDeque,
    error::Error,
    fmt,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};

use buttress_core::{BoxError, Deadline, edge};
use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

/// Somebody's error, which came of another.
#[derive(Debug)]
pub(crate) struct Wrapped(pub(crate) BoxError);

impl fmt::Display for Wrapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the call failed")
    }
}

impl Error for Wrapped {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.0)
    }
}

/// What a body does next.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Data(Bytes),
    Trailers(HeaderMap),
    Error(&'static str),
    /// Nothing, until so long after the step before.
    Wait(Duration),
    Never,
    Panic,
    /// The same frame for ever, one each so often.
    Drip(&'static str, Duration),
    /// The same frame for ever, at once.
    Flood(Bytes),
}

/// A body that follows a script, and tells what it sees.
pub(crate) struct Scripted {
    steps: VecDeque<Step>,
    hint: SizeHint,
    waiting: Option<Pin<Box<Sleep>>>,
    pub(crate) seen: Rc<Seen>,
}

#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) dropped: Cell<bool>,
    pub(crate) polls: Cell<usize>,
    pub(crate) read: Cell<u64>,
    pub(crate) deadline: Cell<Option<Deadline>>,
}

pub(crate) fn scripted(steps: impl IntoIterator<Item = Step>) -> Scripted {
    Scripted {
        steps: steps.into_iter().collect(),
        hint: SizeHint::default(),
        waiting: None,
        seen: Rc::default(),
    }
}

pub(crate) fn data(text: &'static str) -> Step {
    Step::Data(Bytes::from_static(text.as_bytes()))
}

pub(crate) fn trailers(name: &'static str, value: &'static str) -> Step {
    let mut trailers = HeaderMap::new();
    trailers.insert(name, value.parse().unwrap());
    Step::Trailers(trailers)
}

/// A body of these frames that knows its length, as a client's does.
pub(crate) fn of_known_length(steps: impl IntoIterator<Item = Step>) -> Scripted {
    let mut body = scripted(steps);
    let length = |step: &Step| if let Step::Data(data) = step { data.len() as u64 } else { 0 };
    body.hint = SizeHint::with_exact(body.steps.iter().map(length).sum());
    body
}

pub(crate) fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(crate) fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

impl Body for Scripted {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        this.seen.polls.set(this.seen.polls.get() + 1);
        this.seen.deadline.set(Deadline::current());
        loop {
            let Some(step) = this.steps.front().cloned() else { return Poll::Ready(None) };
            if let Step::Wait(time) | Step::Drip(_, time) = step {
                let at: Instant = edge::now() + time;
                let waiting = this.waiting.get_or_insert_with(|| Box::pin(sleep_until(at)));
                if waiting.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
                this.waiting = None;
            }
            if !matches!(step, Step::Never | Step::Drip(..) | Step::Flood(_)) {
                this.steps.pop_front();
            }
            let data = match step {
                Step::Wait(_) => continue,
                Step::Never => return Poll::Pending,
                Step::Panic => panic!("planted"),
                Step::Error(error) => return Poll::Ready(Some(Err(error.into()))),
                Step::Trailers(trailers) => {
                    return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
                }
                Step::Drip(text, _) => Bytes::from_static(text.as_bytes()),
                Step::Data(data) | Step::Flood(data) => data,
            };
            let length = data.len() as u64;
            this.seen.read.set(this.seen.read.get() + length);
            if let Some(exact) = this.hint.exact() {
                this.hint = SizeHint::with_exact(exact - length);
            }
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
    }

    fn is_end_stream(&self) -> bool {
        // As a client's body: it knows its end only if it knew its length.
        self.steps.is_empty() && self.hint.exact() == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.hint
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.seen.dropped.set(true);
    }
}

/// Reads both bodies side by side: each must say the same as the other before and after every frame.
pub(crate) async fn assert_same<A, B>(one: A, other: B)
where
    A: Body<Data = Bytes>,
    B: Body<Data = Bytes>,
    A::Error: std::fmt::Debug,
    B::Error: std::fmt::Debug,
{
    use http_body_util::BodyExt;

    let mut one = std::pin::pin!(one);
    let mut other = std::pin::pin!(other);
    loop {
        let (hint, expected) = (other.size_hint(), one.size_hint());
        assert_eq!((hint.lower(), hint.upper()), (expected.lower(), expected.upper()));
        assert_eq!(other.is_end_stream(), one.is_end_stream());
        let (expected, frame) = (one.frame().await, other.frame().await);
        let Some(expected) = expected else {
            assert!(frame.is_none(), "a frame more");
            return;
        };
        let (expected, frame) = (expected.unwrap(), frame.expect("a frame less").unwrap());
        assert_eq!(frame.trailers_ref(), expected.trailers_ref());
        assert_eq!(frame.data_ref(), expected.data_ref());
    }
}
