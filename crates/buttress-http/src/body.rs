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
    /// [`Limit::Idle`] for the other). Status and headers were there before and stay readable. While the
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
        let total = deadline.limit_from(edge::now());
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

    /// The same limits over another body.
    #[cfg(feature = "tonic")]
    pub(crate) fn map<T>(self, f: impl FnOnce(B) -> T) -> Body<T> {
        let frames = match self.frames {
            Frames::Inner { body } => Frames::Inner { body: f(body) },
            Frames::Own { bytes } => Frames::Own { bytes },
        };
        Body { frames, limits: self.limits }
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
            (_, Some(at)) => Some((at, Elapsed::new(Limit::Idle, self.idle.unwrap_or_default()))),
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

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, panic::AssertUnwindSafe, pin::pin};

    use buttress_core::{Class, Classify, find, timer};
    use futures_util::FutureExt;
    use http_body::Body as _;
    use http_body_util::{BodyExt, Empty, Full};

    use super::*;
    use crate::{
        HttpClass,
        testing::{Scripted, Step, data, millis, of_known_length, scripted, secs, trailers},
    };

    type Ended = Result<(), BoxError>;

    fn deadline(after: Duration) -> Deadline {
        Deadline::after(after).unwrap()
    }

    fn elapsed(ended: Ended) -> Elapsed {
        *find(&*ended.unwrap_err()).expect("a limit passed")
    }

    /// Reads the body, and tells how much of it there was, how it ended and how long that took.
    async fn read<B>(body: Body<B>) -> (usize, Ended, Duration)
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let start = edge::now();
        let mut body = pin!(body);
        let mut read = 0;
        let ended = loop {
            match body.as_mut().frame().await {
                Some(Ok(frame)) => read += frame.data_ref().map_or(0, Bytes::len),
                Some(Err(error)) => break Err(error),
                None => break Ok(()),
            }
        };
        (read, ended, edge::now() - start)
    }

    // TMO-02
    #[tokio::test(start_paused = true)]
    async fn frames_that_trickle_in_do_not_put_the_deadline_off() {
        let drip = scripted([Step::Drip("x", millis(900))]);
        let seen = drip.seen.clone();
        let body = Body::new(drip).until(deadline(secs(5))).idle(secs(1)).unwrap();
        let mut body = Box::pin(body);
        let start = edge::now();
        let mut read = 0;
        let error = loop {
            match body.frame().await.expect("it never ends") {
                Ok(_) => read += 1,
                Err(error) => break error,
            }
        };
        assert_eq!((read, edge::now() - start), (5, secs(5)));
        assert_eq!(find(&*error), Some(&Elapsed::new(Limit::Total, secs(5))));
        assert!(seen.dropped.get(), "its connection is let go of while the body is still there");
        assert!(body.is_end_stream() && body.frame().await.is_none());
    }

    // TMO-02
    #[tokio::test(start_paused = true)]
    async fn silence_ends_the_body_long_before_the_deadline() {
        let silent = scripted([data("x"), Step::Never]);
        let seen = silent.seen.clone();
        let body = Body::new(silent).until(deadline(secs(5))).idle(secs(1)).unwrap();
        let (read, ended, took) = read(body).await;
        assert_eq!((read, took), (1, secs(1)));
        assert_eq!(elapsed(ended), Elapsed::new(Limit::Idle, secs(1)));
        assert!(seen.dropped.get());
    }

    #[tokio::test(start_paused = true)]
    async fn each_frame_starts_the_idle_limit_anew() {
        let steps = (0..20).flat_map(|_| [Step::Wait(millis(900)), data("x")]);
        let (read, ended, took) = read(Body::new(scripted(steps)).idle(secs(1)).unwrap()).await;
        assert!(ended.is_ok());
        assert_eq!((read, took), (20, secs(18)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_its_time_is_not_an_idle_body() {
        let steps = [data("x"), Step::Wait(millis(900)), data("y")];
        let mut body = Body::new(scripted(steps)).idle(secs(1)).unwrap();
        assert!(body.frame().await.unwrap().is_ok());
        tokio::time::sleep(secs(100)).await;
        assert!(body.frame().await.unwrap().is_ok());
        assert!(body.frame().await.is_none());
    }

    // TMO-02
    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_its_time_does_not_put_the_deadline_off() {
        let flood = scripted([Step::Flood(Bytes::from_static(b"x"))]);
        let seen = flood.seen.clone();
        let mut body = Body::new(flood).until(deadline(secs(5)));
        for second in 0..=5 {
            assert!(body.frame().await.unwrap().is_ok(), "{second}: at the very instant it counts");
            tokio::time::sleep(secs(1)).await;
        }
        assert_eq!(elapsed(body.frame().await.unwrap().map(drop)).which(), Limit::Total);
        assert!(seen.dropped.get());
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_read_in_time_has_an_end_however_late_it_is_seen() {
        let steps = [data("x"), trailers("checksum", "7")];
        let mut body = Body::new(scripted(steps)).until(deadline(secs(1)));
        assert!(body.frame().await.unwrap().is_ok());
        tokio::time::sleep(secs(10)).await;
        assert!(body.frame().await.unwrap().unwrap().is_trailers());
        assert!(body.frame().await.is_none());
    }

    // TMO-02
    #[tokio::test(start_paused = true)]
    async fn a_limit_that_passes_in_a_body_is_no_success_of_the_callee() {
        let silent = || Body::new(scripted([Step::Never]));
        for body in [silent().until(deadline(secs(1))), silent().idle(secs(1)).unwrap()] {
            let error = body.collect().await.unwrap_err();
            let class = Classify::<http::Response<()>>::classify(&HttpClass, Err(&error));
            assert_eq!(class, Class::Transient { after: None }, "{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_that_has_passed_lets_nothing_be_waited_for() {
        let passed = Deadline::at(edge::now());
        let (_, ended, took) = read(Body::new(scripted([Step::Never])).until(passed)).await;
        assert_eq!(elapsed(ended), Elapsed::new(Limit::Total, Duration::ZERO));
        assert_eq!(took, Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn where_both_limits_pass_at_once_it_is_the_deadline() {
        let body = Body::new(scripted([Step::Never])).until(deadline(secs(1))).idle(secs(1));
        assert_eq!(elapsed(read(body.unwrap()).await.1).which(), Limit::Total);
    }

    // BKO-10
    #[tokio::test(start_paused = true)]
    async fn idle_of_zero_is_refused_and_for_ever_is_no_limit() {
        let refused = Body::new(scripted([])).idle(Duration::ZERO).map(drop).unwrap_err();
        assert_eq!(refused.setting(), "idle");
        let steps = [Step::Wait(secs(1_000_000)), data("x")];
        let body = Body::new(scripted(steps)).idle(Duration::MAX).unwrap();
        assert!(read(body).await.1.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn the_deadline_is_ambient_for_a_body_that_carries_one_and_untouched_else() {
        let (outer, own) = (deadline(secs(9)), deadline(secs(5)));
        for (carried, expected) in [(Some(own), own), (None, outer)] {
            let inner = scripted([data("x"), Step::Never]);
            let seen = inner.seen.clone();
            let mut body = Body::new(inner).limited(carried, secs(5), None);
            Deadline::within(Some(outer), || {
                assert!(body.frame().now_or_never().is_some());
                assert_eq!(Deadline::current(), Some(outer), "and is left again");
            });
            assert_eq!(seen.deadline.get(), Some(expected));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_panics_leaves_no_deadline_behind() {
        let body = Body::new(scripted([Step::Panic])).until(deadline(secs(5)));
        assert!(AssertUnwindSafe(body.collect()).catch_unwind().await.is_err());
        assert_eq!(Deadline::current(), None);
    }

    /// Always has work, and uses up the whole budget in every poll.
    struct Glutton;

    impl http_body::Body for Glutton {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
            loop {
                sender.send(()).unwrap();
                if receiver.poll_recv(cx).is_pending() {
                    return Poll::Pending;
                }
            }
        }
    }

    #[tokio::test]
    async fn a_body_that_is_always_busy_cannot_starve_its_limit() {
        // Real time: a task that is always busy never lets a paused clock go on.
        let body = Body::new(Glutton).until(deadline(millis(20)));
        let collected = tokio::spawn(body.collect()).await.unwrap();
        assert_eq!(elapsed(collected.map(drop)).which(), Limit::Total);
    }

    #[tokio::test(start_paused = true)]
    async fn beneath_a_limit_that_lends_the_body_arms_no_timer_of_its_own() {
        let mut body = Body::new(scripted([Step::Never])).until(deadline(secs(5)));
        let mut alarm = pin!(timer::Alarm::default());
        let until = edge::now() + secs(30);
        let mut frame = pin!(body.frame());
        let lent =
            poll_fn(|cx| timer::poll_within(frame.as_mut(), alarm.as_mut(), || Some(until), cx));
        assert!(lent.await.unwrap().unwrap().is_err());
        assert_eq!(format!("{:?}", body.limits.alarm), "RareAlarm { own: None }");
    }

    #[tokio::test]
    async fn bytes_of_our_own_are_a_body_of_any_type() {
        let bodies: [Body<Scripted>; 3] =
            ["busy".into(), String::from("busy").into(), "busy".into()];
        for body in bodies {
            assert_eq!(body.size_hint().exact(), Some(4));
            assert!(!body.is_end_stream());
            assert_eq!(body.collect().await.unwrap().to_bytes(), "busy");
        }
        for empty in [Body::<Scripted>::default(), Body::empty(), "".into()] {
            assert!(empty.is_end_stream());
            assert_eq!(empty.size_hint().exact(), Some(0));
            assert!(empty.collect().await.unwrap().to_bytes().is_empty());
        }
    }

    // The law for bodies.
    // TMO-02
    #[tokio::test(start_paused = true)]
    async fn bytes_trailers_and_hints_are_the_same_with_and_without() {
        let steps = [data("he"), Step::Wait(secs(1)), data("llo"), trailers("checksum", "7")];
        for known in [true, false] {
            let plain = || {
                let steps = steps.clone();
                if known { of_known_length(steps) } else { scripted(steps) }
            };
            let body = Body::new(plain()).until(deadline(secs(5))).idle(secs(2)).unwrap();
            crate::testing::assert_same(plain(), body).await;
        }
        crate::testing::assert_same(Full::new(Bytes::from("x")), Body::new(Full::from("x"))).await;
        crate::testing::assert_same(Empty::<Bytes>::new(), Body::<Scripted>::empty()).await;
    }

    #[test]
    fn it_moves_freely_if_the_clients_body_does() {
        fn free<T: Unpin + Send + Sync + 'static>() {}
        free::<Body<Full<Bytes>>>();
    }
}
