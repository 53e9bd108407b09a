use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use buttress_core::{BoxError, Deadline, Elapsed, InvalidSetting, Limit, edge, timer::RareAlarm};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::Instant;

pin_project! {
    /// The body of a response: a client's frames, or bytes of our own.
    ///
    /// A client's body cannot be made by anybody else, so a fallback would have nothing to answer with;
    /// and a limit that ends with the head of the response lets its body stall for ever. This one can be
    /// made from bytes, and carries the request's [`Deadline`] to its end.
    ///
    /// Two limits, both optional:
    ///
    /// - the [deadline](Self::until): one instant for readiness, head and body together. It is not put
    ///   off by frames that trickle in, nor by a reader that takes its time;
    /// - [idle](Self::idle): the longest wait for one frame. It starts anew with each, and a reader's own
    ///   slowness does not count.
    ///
    /// When a limit passes, the client's body is dropped in that same poll, which lets go of its
    /// connection, and the body fails with an [`Elapsed`] ([`Limit::Total`] for the deadline,
    /// [`Limit::Attempt`] for idle). Status and headers were there before and stay readable. While the
    /// client's body is polled, its deadline is [ambient](Deadline::current).
    ///
    /// Length, frames and trailers are the client's own. Only a body that carries a limit, has to be
    /// waited for, and is polled where nobody [lends a timer](buttress_core::timer) allocates: one timer,
    /// once.
    ///
    /// # Examples
    ///
    /// ```
    /// use buttress_http::Body;
    /// use http_body_util::{BodyExt, Empty};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), buttress_core::BoxError> {
    /// // What a fallback answers with, in place of a client's body of any type.
    /// let body: Body<Empty<bytes::Bytes>> = "try again later".into();
    /// assert_eq!(body.collect().await?.to_bytes(), "try again later");
    /// # Ok(())
    /// # }
    /// ```
    #[derive(Debug)]
    pub struct Body<B> {
        #[pin]
        frames: Frames<B>,
        limits: Limits,
    }
}

pin_project! {
    #[project = FramesProj]
    enum Frames<B> {
        Inner { #[pin] body: B },
        Own { bytes: Bytes },
    }
}

#[derive(Debug, Default)]
struct Limits {
    deadline: Option<Deadline>,
    /// How long the deadline was, for the error.
    total: Duration,
    idle: Option<Duration>,
    /// When the wait for this frame ends. `None` while nothing is waited for.
    idle_until: Option<Instant>,
    alarm: RareAlarm,
}

// === impl Body ===

impl<B> Body<B> {
    /// The body `inner`, with no limit.
    pub fn new(inner: B) -> Self {
        Self { frames: Frames::Inner { body: inner }, limits: Limits::default() }
    }

    /// No body at all.
    #[must_use]
    pub fn empty() -> Self {
        Self::from(Bytes::new())
    }

    /// The same, to be at its end when `deadline` comes.
    #[must_use]
    pub fn until(self, deadline: Deadline) -> Self {
        let total = deadline.left(edge::now());
        self.limited(Some(deadline), total, None)
    }

    /// The same, with no wait for a frame longer than `idle`.
    ///
    /// # Errors
    ///
    /// Refuses zero: no frame comes in no time.
    pub fn idle(mut self, idle: Duration) -> Result<Self, InvalidSetting> {
        self.limits.idle = Some(valid_idle(idle)?);
        Ok(self)
    }

    pub(crate) fn limited(
        mut self,
        deadline: Option<Deadline>,
        total: Duration,
        idle: Option<Duration>,
    ) -> Self {
        self.limits.deadline = deadline;
        self.limits.total = total;
        self.limits.idle = idle.or(self.limits.idle);
        self
    }
}

pub(crate) fn valid_idle(idle: Duration) -> Result<Duration, InvalidSetting> {
    if idle.is_zero() {
        return Err(InvalidSetting::new("idle", "must be more than zero"));
    }
    Ok(idle)
}

impl<B> http_body::Body for Body<B>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut this = self.project();
        let inner = match this.frames.as_mut().project() {
            FramesProj::Inner { body } => body,
            FramesProj::Own { bytes } => {
                let bytes = std::mem::take(bytes);
                return Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))));
            }
        };
        let polled = match this.limits.deadline {
            Some(deadline) => Deadline::within(Some(deadline), || inner.poll_frame(cx)),
            None => inner.poll_frame(cx),
        };
        let late = match &polled {
            Poll::Pending => this.limits.poll_passed(cx),
            Poll::Ready(frame) => this.limits.late(frame.as_ref()),
        };
        if let Some(elapsed) = late {
            this.frames.set(Frames::Own { bytes: Bytes::new() });
            return Poll::Ready(Some(Err(elapsed.into())));
        }
        polled.map(|frame| frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.frames {
            Frames::Inner { body } => body.is_end_stream(),
            Frames::Own { bytes } => bytes.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.frames {
            Frames::Inner { body } => body.size_hint(),
            Frames::Own { bytes } => SizeHint::with_exact(bytes.len() as u64),
        }
    }
}

/// No body at all.
impl<B> Default for Body<B> {
    fn default() -> Self {
        Self::empty()
    }
}

impl<B> From<Bytes> for Body<B> {
    fn from(bytes: Bytes) -> Self {
        Self { frames: Frames::Own { bytes }, limits: Limits::default() }
    }
}

impl<B> From<&'static str> for Body<B> {
    fn from(text: &'static str) -> Self {
        Bytes::from_static(text.as_bytes()).into()
    }
}

impl<B> From<String> for Body<B> {
    fn from(text: String) -> Self {
        Bytes::from(text).into()
    }
}

// === impl Frames ===

impl<B: fmt::Debug> fmt::Debug for Frames<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inner { body } => body.fmt(f),
            Self::Own { bytes } => f.debug_tuple("Own").field(&bytes.len()).finish(),
        }
    }
}

// === impl Limits ===

impl Limits {
    /// Nothing has come yet. Has a limit passed? If not, wakes the task when one does.
    fn poll_passed(&mut self, cx: &mut Context<'_>) -> Option<Elapsed> {
        if self.deadline.is_none() && self.idle.is_none() {
            return None;
        }
        let now = edge::now();
        if self.idle_until.is_none() {
            self.idle_until = self.idle.and_then(|idle| now.checked_add(idle));
        }
        let (at, elapsed) = self.next()?;
        // The clock is asked too, and not the timer alone: a body that is always busy uses up the budget
        // without which a timer does not answer.
        if now < at && self.alarm.poll(at, cx).is_pending() {
            return None;
        }
        Some(elapsed)
    }

    /// The limit that passes first; the deadline, where both pass at once.
    fn next(&self) -> Option<(Instant, Elapsed)> {
        let deadline = self.deadline.map(Deadline::instant);
        match (deadline, self.idle_until) {
            (Some(at), idle) if idle.is_none_or(|idle| at <= idle) => {
                Some((at, Elapsed::new(Limit::Total, self.total)))
            }
            (_, Some(at)) => {
                Some((at, Elapsed::new(Limit::Attempt, self.idle.unwrap_or_default())))
            }
            (_, None) => None,
        }
    }

    /// Something has come. Is it too late? A body that always has more must not outlive its deadline, but
    /// what comes at the very instant still counts, and an end is an end.
    fn late<E>(&mut self, frame: Option<&Result<Frame<Bytes>, E>>) -> Option<Elapsed> {
        self.idle_until = None;
        let more = frame.is_some_and(|frame| frame.as_ref().is_ok_and(Frame::is_data));
        let late = more && self.deadline.is_some_and(|deadline| deadline.instant() < edge::now());
        late.then(|| Elapsed::new(Limit::Total, self.total))
    }
}
