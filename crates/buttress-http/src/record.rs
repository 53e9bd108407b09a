use std::{
    collections::VecDeque,
    error::Error,
    fmt,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker, ready},
};

use buttress_core::{BoxError, Discard, Kept, Replay};
use bytes::Bytes;
use http::{HeaderMap, Request, Response, header::CONTENT_LENGTH, request::Parts};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::{Drain, HttpReplay, replay::safe};

/// The most frames that are recorded. A handle to a frame takes 32 bytes, so a body in frames of one byte
/// would take far more than the cap allows; this bounds the handles to 128 KiB.
const FRAMES: usize = 4096;

/// Sends HTTP requests again whose bodies cannot be cloned: records each while it passes.
///
/// Most bodies are streams. They can be read once, and to read one ahead of sending it would cost
/// its whole length, and the wait. So the frames are kept as they go by, up to a cap:
///
/// - a body that is known to be longer than the cap is not recorded, and is sent once;
/// - a body of unknown length is recorded, and can be sent again while it is within the cap. The frame
///   that passes the cap frees all that was recorded; it streams on, and that attempt is the last;
/// - where an attempt ended before it had read the whole body, the next one sends what was recorded
///   and goes on with the rest.
///
/// What is kept are handles to the frames, not copies. (A handle holds on to the whole buffer that its frame
/// was cut from.) At most 4096 frames are kept. Trailers are kept too. A body that fails cannot be sent
/// again. Frames without a byte in them are not repeated.
///
/// Only one attempt reads the body. As soon as a copy is made, it is that copy's. An earlier attempt may
/// still be about, as in the task of a connection that goes on sending though its answer has come. If it
/// waits for a frame, it is woken; and when it polls its body once more, that fails with an error, and
/// never looks like an end. So its connection ends, or its stream in HTTP/2, and does not wait for ever.
///
/// Which requests may be carried out twice, and what a copy consists of, is as with [`HttpReplay`].
///
/// # Examples
///
/// ```
/// use buttress_core::{Kept, Replay};
/// use buttress_http::HttpReplay;
/// use http::Request;
/// use http_body_util::{BodyExt, Full};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), buttress_core::BoxError> {
/// let replay = HttpReplay::record(64 * 1024);
/// let (first, kept) = replay.keep(Request::put("/orders/7").body(Full::from("tea"))?);
/// assert_eq!(first.into_body().collect().await?.to_bytes(), "tea");
///
/// let second = kept.unwrap().copy(true).unwrap();
/// assert_eq!(second.into_body().collect().await?.to_bytes(), "tea");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RecordReplay {
    cap: usize,
}

/// What was kept of a request whose body is recorded. See [`RecordReplay`].
pub struct KeptRecord<B> {
    /// `None` once it was given away.
    head: Option<Parts>,
    body: KeptBody<B>,
    safe: bool,
}

enum KeptBody<B> {
    Empty,
    Recorded(Keeper<B>),
}

/// The one that makes copies. While it is there, what passes is recorded.
struct Keeper<B>(Arc<Shared<B>>);

pin_project! {
    /// The body of one attempt. See [`RecordReplay`].
    pub struct ReplayBody<B> {
        #[pin]
        source: Source<B>,
    }
}

pin_project! {
    #[project = SourceProj]
    enum Source<B> {
        // It is sent once, as it is.
        Once { #[pin] body: B },
        // A copy of a body in which there was nothing.
        Empty,
        Recorded { reader: Reader<B> },
    }
}

/// One attempt, reading.
struct Reader<B> {
    shared: Arc<Shared<B>>,
    /// It may read while it is its turn.
    turn: u32,
    place: Place,
}

/// How far an attempt has read.
#[derive(Default)]
struct Place {
    /// How many of the frames that are there now.
    frames: usize,
    bytes: u64,
    trailers: bool,
}

struct Shared<B> {
    /// Held while the body is polled: there is one reader, and none waits for it but one that is about to
    /// take over. Nothing that is dropped in there locks it: readers and keepers go without.
    recording: Mutex<Recording<B>>,
    /// Cleared when the keeper is gone. Only memory depends on it.
    kept: AtomicBool,
}

struct Recording<B> {
    /// What has not been read yet. In a box, so that it need not move from attempt to attempt.
    rest: Rest<B>,
    /// Whether frames are recorded. If not, those that are still there are given away as they are read.
    records: bool,
    frames: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
    held: usize,
    cap: usize,
    /// The length as it was told at first: what a copy tells too.
    hint: SizeHint,
    /// Whose turn it is to read.
    turn: u32,
    /// Wakes that reader, while it waits for the body and another may still take over: the body itself
    /// then wakes only the other.
    waiting: Option<Waker>,
    #[cfg(test)]
    high_water: usize,
}

enum Rest<B> {
    Body(Pin<Box<B>>),
    /// It was read to its end.
    Ended,
    /// It failed, or panicked.
    Lost,
}

/// What a body says that a later attempt has taken over, or that has failed before.
#[derive(Debug)]
enum Unreadable {
    Superseded,
    Lost,
}

// === impl RecordReplay ===

impl HttpReplay {
    /// Records bodies that cannot be cloned, up to `cap` bytes each. See [`RecordReplay`].
    #[must_use]
    pub const fn record(cap: usize) -> RecordReplay {
        RecordReplay { cap }
    }
}

impl<B: Body<Data = Bytes>> Replay<Request<B>> for RecordReplay {
    type Sent = Request<ReplayBody<B>>;
    type Kept = KeptRecord<B>;

    fn once(&self, request: Request<B>) -> Self::Sent {
        once(request)
    }

    fn keep(&self, request: Request<B>) -> (Self::Sent, Option<KeptRecord<B>>) {
        let safe = safe(request.method(), request.headers(), request.extensions());
        keep(request, safe, self.cap)
    }
}

impl<B: Body> Discard<Response<B>> for RecordReplay {
    type Discarding = Drain<B>;

    fn discard(&self, response: Response<B>) -> Drain<B> {
        Drain::new(response.into_body())
    }
}

/// The request, to be sent once.
pub(crate) fn once<B>(request: Request<B>) -> Request<ReplayBody<B>> {
    request.map(ReplayBody::once)
}

/// The request, to be recorded while it is sent; `safe` says whether it may be carried out twice.
pub(crate) fn keep<B: Body<Data = Bytes>>(
    request: Request<B>,
    safe: bool,
    cap: usize,
) -> (Request<ReplayBody<B>>, Option<KeptRecord<B>>) {
    let (head, body) = request.into_parts();
    let (sent, kept) = if body.is_end_stream() {
        (ReplayBody::once(body), KeptBody::Empty)
    } else if is_longer(&head, &body, cap) {
        return (Request::from_parts(head, ReplayBody::once(body)), None);
    } else {
        let (reader, keeper) = record(body, cap);
        (ReplayBody { source: Source::Recorded { reader } }, KeptBody::Recorded(keeper))
    };
    let kept = KeptRecord { head: Some(head.clone()), body: kept, safe };
    (Request::from_parts(head, sent), Some(kept))
}

/// Length is a hint to skip early: what tells none is recorded until it turns out to be too long.
fn is_longer<B: Body>(head: &Parts, body: &B, cap: usize) -> bool {
    let told = head.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let told = told.and_then(|value| value.parse().ok()).unwrap_or(0);
    body.size_hint().lower().max(told) > cap as u64
}

fn record<B: Body>(body: B, cap: usize) -> (Reader<B>, Keeper<B>) {
    let recording = Recording {
        hint: body.size_hint(),
        rest: Rest::Body(Box::pin(body)),
        records: true,
        frames: VecDeque::new(),
        trailers: None,
        held: 0,
        cap,
        turn: 0,
        waiting: None,
        #[cfg(test)]
        high_water: 0,
    };
    let shared = Arc::new(Shared { recording: Mutex::new(recording), kept: AtomicBool::new(true) });
    (Reader::new(shared.clone(), 0), Keeper(shared))
}

// === impl KeptRecord ===

impl<B: Body<Data = Bytes>> Kept for KeptRecord<B> {
    type Sent = Request<ReplayBody<B>>;

    fn safe(&self) -> bool {
        self.safe
    }

    fn copy(&mut self, last: bool) -> Option<Self::Sent> {
        self.head.as_ref()?;
        let source = match &self.body {
            KeptBody::Empty => Source::Empty,
            KeptBody::Recorded(keeper) => Source::Recorded { reader: keeper.reader(last)? },
        };
        let head = if last { self.head.take() } else { self.head.clone() };
        Some(Request::from_parts(head?, ReplayBody { source }))
    }
}

impl<B> fmt::Debug for KeptRecord<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptRecord").field("safe", &self.safe).finish_non_exhaustive()
    }
}

// === impl Keeper ===

impl<B> Keeper<B> {
    /// Gives the body to a new reader, from its start, if that can be done. From here on all others fail.
    fn reader(&self, last: bool) -> Option<Reader<B>> {
        let mut recording = self.0.lock();
        if !recording.records || matches!(recording.rest, Rest::Lost) {
            return None;
        }
        recording.records = !last;
        recording.turn += 1;
        let turn = recording.turn;
        let waiting = recording.waiting.take();
        drop(recording);
        if let Some(superseded) = waiting {
            // With no lock: whoever is woken may poll at once, to learn that it was superseded.
            superseded.wake();
        }
        Some(Reader::new(self.0.clone(), turn))
    }
}

impl<B> Drop for Keeper<B> {
    fn drop(&mut self) {
        // With no lock: whoever drops this may do so from within a poll of the body.
        self.0.kept.store(false, Ordering::Relaxed);
    }
}

// === impl ReplayBody ===

impl<B> ReplayBody<B> {
    const fn once(body: B) -> Self {
        Self { source: Source::Once { body } }
    }
}

impl<B> Body for ReplayBody<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.project().source.project() {
            SourceProj::Once { body } => body.poll_frame(cx).map_err(Into::into),
            SourceProj::Empty => Poll::Ready(None),
            SourceProj::Recorded { reader } => reader.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Once { body } => body.is_end_stream(),
            Source::Empty => true,
            Source::Recorded { reader } => reader.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Once { body } => body.size_hint(),
            Source::Empty => SizeHint::with_exact(0),
            Source::Recorded { reader } => reader.size_hint(),
        }
    }
}

impl<B> fmt::Debug for ReplayBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match &self.source {
            Source::Once { .. } => "once",
            Source::Empty => "empty",
            Source::Recorded { .. } => "recorded",
        };
        f.debug_tuple("ReplayBody").field(&source).finish()
    }
}

// === impl Reader ===

impl<B> Reader<B> {
    fn new(shared: Arc<Shared<B>>, turn: u32) -> Self {
        Self { shared, turn, place: Place::default() }
    }
}

impl<B: Body<Data = Bytes>> Reader<B> {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>>
    where
        B::Error: Into<BoxError>,
    {
        let Self { shared, turn, place } = self;
        let mut recording = shared.lock();
        if recording.turn != *turn {
            // Not an end: a callee must not take half a body for a whole one.
            return Poll::Ready(Some(Err(Unreadable::Superseded.into())));
        }
        recording.records &= shared.kept.load(Ordering::Relaxed);
        if let Some(frame) = recording.replay(place) {
            return Poll::Ready(Some(Ok(frame)));
        }
        let polled = recording.poll_rest(cx);
        let waits = polled.is_pending() && recording.records;
        recording.waiting = waits.then(|| cx.waker().clone());
        let frame = ready!(polled);
        if let Some(Ok(frame)) = &frame {
            recording.record(frame, place);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        let recording = self.shared.lock();
        recording.turn == self.turn
            && recording.is_live(&self.place)
            && match &recording.rest {
                Rest::Body(body) => body.is_end_stream(),
                Rest::Ended => true,
                Rest::Lost => false,
            }
    }

    fn size_hint(&self) -> SizeHint {
        let recording = self.shared.lock();
        if recording.turn != self.turn {
            return SizeHint::default();
        }
        let unread = recording.frames.iter().skip(self.place.frames);
        let unread = unread.map(|data| data.len() as u64).sum();
        match &recording.rest {
            Rest::Body(body) if unread == 0 => body.size_hint(),
            // Where trailers are to come, no length is told that was not: HTTP/1.1 would leave them out.
            Rest::Ended if recording.trailers.is_none() => SizeHint::with_exact(unread),
            // What was told at first, less what was read since. The body's own word is for its rest.
            Rest::Body(_) | Rest::Ended => {
                let left = |told: u64| told.saturating_sub(self.place.bytes).max(unread);
                let mut hint = SizeHint::new();
                hint.set_lower(left(recording.hint.lower()));
                if let Some(upper) = recording.hint.upper() {
                    hint.set_upper(left(upper));
                }
                hint
            }
            Rest::Lost => SizeHint::default(),
        }
    }
}

// === impl Shared ===

impl<B> Shared<B> {
    fn lock(&self) -> MutexGuard<'_, Recording<B>> {
        // A body that panicked is lost, and is marked so: nothing else can be amiss.
        self.recording.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Recording ===

impl<B> Recording<B> {
    /// The next frame, if it is one that was recorded.
    fn replay(&mut self, place: &mut Place) -> Option<Frame<Bytes>> {
        let data = if self.records {
            let data = self.frames.get(place.frames).cloned();
            place.frames += usize::from(data.is_some());
            data
        } else {
            // Nobody will read them again.
            self.frames.drain(..std::mem::take(&mut place.frames));
            self.frames.pop_front()
        };
        if let Some(data) = data {
            place.bytes += data.len() as u64;
            return Some(Frame::data(data));
        }
        if place.trailers {
            return None;
        }
        let trailers = if self.records { self.trailers.clone() } else { self.trailers.take() }?;
        place.trailers = true;
        Some(Frame::trailers(trailers))
    }

    /// Keeps what was just read.
    fn record(&mut self, frame: &Frame<Bytes>, place: &mut Place) {
        let Some(data) = frame.data_ref() else {
            if self.records {
                self.trailers = frame.trailers_ref().cloned();
                place.trailers = true;
            }
            return;
        };
        place.bytes += data.len() as u64;
        if !self.records || data.is_empty() {
            return;
        }
        if data.len() > self.cap - self.held || self.frames.len() == FRAMES {
            self.release(place);
            return;
        }
        self.frames.push_back(data.clone());
        self.held += data.len();
        place.frames += 1;
        #[cfg(test)]
        {
            self.high_water = self.high_water.max(self.held);
        }
    }

    /// No copy will be made any more: frees what was recorded. All of it was read.
    fn release(&mut self, place: &mut Place) {
        self.records = false;
        self.frames = VecDeque::new();
        self.held = 0;
        place.frames = 0;
    }

    /// Whether all that was recorded was read.
    fn is_live(&self, place: &Place) -> bool {
        self.frames.len() == place.frames && (place.trailers || self.trailers.is_none())
    }

    /// The next frame of the body itself.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        // Lost, should it panic; and if it fails.
        let mut body = match std::mem::replace(&mut self.rest, Rest::Lost) {
            Rest::Body(body) => body,
            Rest::Ended => {
                self.rest = Rest::Ended;
                return Poll::Ready(None);
            }
            Rest::Lost => return Poll::Ready(Some(Err(Unreadable::Lost.into()))),
        };
        let polled = body.as_mut().poll_frame(cx);
        match &polled {
            Poll::Pending | Poll::Ready(Some(Ok(_))) => self.rest = Rest::Body(body),
            Poll::Ready(None) => self.rest = Rest::Ended,
            Poll::Ready(Some(Err(_))) => {}
        }
        polled.map_err(Into::into)
    }
}

// === impl Unreadable ===

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Superseded => "the request body was taken over by a later attempt",
            Self::Lost => "the request body has failed before",
        })
    }
}

impl Error for Unreadable {}

#[cfg(test)]
mod tests {
    use std::{
        panic::AssertUnwindSafe,
        pin::pin,
        sync::{
            atomic::AtomicUsize,
            mpsc::{Receiver, Sender, channel},
        },
        task::Wake,
        thread,
    };

    use futures_util::{FutureExt, stream};
    use http::{Method, Version};
    use http_body_util::{BodyExt, Empty, Full, StreamBody};
    use proptest::prelude::*;

    use super::*;
    use crate::{
        Idempotent,
        testing::{Scripted, Step, assert_same, data, of_known_length, scripted, trailers},
    };

    fn put<B>(body: B) -> Request<B> {
        Request::put("https://a/b").body(body).unwrap()
    }

    fn keep<B: Body<Data = Bytes>>(cap: usize, body: B) -> (ReplayBody<B>, Option<KeptRecord<B>>) {
        let (sent, kept) = HttpReplay::record(cap).keep(put(body));
        (sent.into_body(), kept)
    }

    fn copy<B: Body<Data = Bytes>>(kept: &mut KeptRecord<B>) -> ReplayBody<B> {
        kept.copy(false).expect("it can be sent again").into_body()
    }

    fn high_water<B>(kept: &KeptRecord<B>) -> usize {
        match &kept.body {
            KeptBody::Empty => 0,
            KeptBody::Recorded(keeper) => keeper.0.lock().high_water,
        }
    }

    /// Reads so many frames, all of which are there.
    async fn read<B>(body: &mut ReplayBody<B>, frames: usize) -> Vec<u8>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: Into<BoxError>,
    {
        let mut read = Vec::new();
        for _ in 0..frames {
            read.extend(body.frame().await.unwrap().unwrap().into_data().unwrap());
        }
        read
    }

    async fn read_all<B>(body: ReplayBody<B>) -> Bytes
    where
        B: Body<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        body.collect().await.unwrap().to_bytes()
    }

    /// A buffer that counts those which are alive.
    struct Counted(Arc<AtomicUsize>, [u8; 4]);

    impl AsRef<[u8]> for Counted {
        fn as_ref(&self) -> &[u8] {
            &self.1
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn counted(alive: &Arc<AtomicUsize>, frames: usize) -> Vec<Step> {
        let buffer = || {
            alive.fetch_add(1, Ordering::Relaxed);
            Step::Data(Bytes::from_owner(Counted(alive.clone(), *b"abcd")))
        };
        (0..frames).map(|_| buffer()).collect()
    }

    // RET-01
    #[tokio::test]
    async fn a_body_that_passes_the_cap_is_let_go_of_in_that_moment_and_streams_on() {
        let alive = Arc::default();
        let (mut sent, kept) = keep(8, scripted(counted(&alive, 5)));
        let mut kept = kept.unwrap();
        assert_eq!(read(&mut sent, 2).await.len(), 8);
        assert_eq!(alive.load(Ordering::Relaxed), 5, "two recorded, three to come");
        assert_eq!(read(&mut sent, 1).await.len(), 4);
        assert_eq!(alive.load(Ordering::Relaxed), 2, "only those to come");
        assert!(kept.copy(false).is_none());
        assert_eq!(read_all(sent).await.len(), 8);
        assert_eq!(high_water(&kept), 8);
    }

    // RET-01
    #[tokio::test]
    async fn a_long_upload_costs_no_more_than_the_cap() {
        const KIB_64: usize = 64 * 1024;
        let frames = (0..64).map(|n| Step::Data(vec![n; KIB_64].into()));
        let (sent, kept) = keep(KIB_64, scripted(frames));
        let mut kept = kept.unwrap();
        assert_eq!(read_all(sent).await.len(), 64 * KIB_64);
        assert!(high_water(&kept) <= KIB_64);
        assert!(kept.copy(false).is_none());
    }

    // RET-01
    #[tokio::test]
    async fn a_body_that_is_known_to_be_too_long_is_not_wrapped() {
        let (sent, kept) = keep(4, of_known_length([data("hello")]));
        assert!(kept.is_none());
        assert!(matches!(sent.source, Source::Once { .. }));
        assert_eq!(read_all(sent).await, "hello");
        assert!(keep(5, of_known_length([data("hello")])).1.is_some());

        let told = |length: &str| {
            let request = Request::put("/").header(CONTENT_LENGTH, length);
            HttpReplay::record(4).keep(request.body(scripted([data("x")])).unwrap()).1.is_some()
        };
        assert!(!told("5"));
        assert!(told("4") && told("-1") && told("99999999999999999999999"), "a hint is a hint");
    }

    // RET-02
    #[tokio::test]
    async fn a_body_that_does_not_tell_its_length_can_be_sent_again() {
        let (sent, kept) = keep(64, scripted([data("hello")]));
        assert_eq!(sent.size_hint().upper(), None);
        assert_eq!(read_all(sent).await, "hello");
        assert_eq!(read_all(copy(&mut kept.unwrap())).await, "hello");
    }

    // RET-04
    #[tokio::test]
    async fn what_is_sent_once_is_sent_as_it_is() {
        let body = || of_known_length([data("he"), data("llo"), trailers("checksum", "7")]);
        let once = HttpReplay::record(64).once(put(body())).into_body();
        assert_same(body(), once).await;
        let failing = HttpReplay::record(64).once(put(scripted([Step::Error("own")])));
        let error = failing.into_body().collect().await.unwrap_err();
        assert_eq!(error.to_string(), "own", "its own error and none of ours");
    }

    // RET-04
    #[tokio::test]
    async fn a_body_that_fails_says_so_once_and_is_not_sent_again() {
        let (mut sent, kept) = keep(64, scripted([data("x"), Step::Error("own"), data("y")]));
        let mut kept = kept.unwrap();
        read(&mut sent, 1).await;
        assert_eq!(sent.frame().await.unwrap().unwrap_err().to_string(), "own");
        assert!(kept.copy(false).is_none());
        assert!(sent.frame().await.unwrap().is_err() && !sent.is_end_stream());
    }

    #[tokio::test]
    async fn a_body_that_panics_is_lost_and_nothing_else() {
        let (mut sent, kept) = keep(64, scripted([data("x"), Step::Panic]));
        let mut kept = kept.unwrap();
        read(&mut sent, 1).await;
        assert!(AssertUnwindSafe(sent.frame()).catch_unwind().await.is_err());
        assert!(kept.copy(false).is_none());
        assert!(sent.frame().await.unwrap().is_err() && !sent.is_end_stream());
    }

    // RET-05, RET-13
    #[tokio::test]
    async fn every_copy_is_the_request_as_it_entered() {
        let request = Request::put("https://a/b?c=d")
            .version(Version::HTTP_2)
            .header("x-one", "1")
            .header("x-one", "2")
            .extension(7_u32)
            .body(scripted([data("tea"), trailers("checksum", "7")]))
            .unwrap();
        let (mut sent, kept) = HttpReplay::record(64).keep(request);
        let mut kept = kept.unwrap();
        for last in [false, false, true] {
            assert_eq!(sent.method(), Method::PUT);
            assert_eq!(sent.uri(), "https://a/b?c=d");
            assert_eq!(sent.version(), Version::HTTP_2);
            assert_eq!(sent.headers().get_all("x-one").iter().count(), 2);
            assert_eq!(sent.headers().len(), 2);
            assert_eq!(sent.extensions().get(), Some(&7_u32));
            // What a layer beneath does to an attempt.
            sent.headers_mut().append("x-sig", "s".parse().unwrap());
            sent.extensions_mut().insert('x');
            let body = sent.into_body().collect().await.unwrap();
            assert_eq!(body.trailers().unwrap()["checksum"], "7");
            assert_eq!(body.to_bytes(), "tea");
            sent = kept.copy(last).unwrap();
        }
        assert!(kept.copy(true).is_none());
    }

    // RET-11
    #[test]
    fn what_may_be_carried_out_twice_is_as_with_clones() {
        let is_safe = |request: http::request::Builder| {
            let body = scripted([data("x")]);
            HttpReplay::record(64).keep(request.body(body).unwrap()).1.unwrap().safe()
        };
        assert!(is_safe(Request::put("/")));
        assert!(!is_safe(Request::post("/")), "but kept, for what was never sent");
        assert!(is_safe(Request::post("/").header("idempotency-key", "7")));
        assert!(!is_safe(Request::put("/").extension(Idempotent(false))));
    }

    #[tokio::test]
    async fn an_attempt_that_ended_early_hands_the_rest_over() {
        let (mut first, kept) = keep(64, scripted([data("a"), data("b"), data("c")]));
        let mut kept = kept.unwrap();
        assert_eq!(read(&mut first, 1).await, b"a");
        drop(first);
        let mut second = copy(&mut kept);
        assert_eq!(read(&mut second, 2).await, b"ab");
        drop(second);
        assert_eq!(read_all(copy(&mut kept)).await, "abc");
        assert_eq!(read_all(kept.copy(true).unwrap().into_body()).await, "abc");
    }

    #[tokio::test]
    async fn an_attempt_that_is_still_about_fails_and_never_looks_like_an_end() {
        let (mut first, kept) = keep(64, scripted([data("a"), data("b"), data("c")]));
        let mut kept = kept.unwrap();
        assert_eq!(read(&mut first, 2).await, b"ab");
        let mut second = copy(&mut kept);
        assert_eq!(read(&mut second, 1).await, b"a");
        let error = first.frame().await.unwrap().unwrap_err();
        assert_eq!(error.to_string(), "the request body was taken over by a later attempt");
        assert!(!first.is_end_stream());
        assert_eq!(read(&mut second, 2).await, b"bc");
        assert!(first.frame().await.unwrap().is_err());
        drop(first);
        assert!(second.frame().await.is_none());
    }

    #[tokio::test]
    async fn an_attempt_that_read_nothing_is_not_at_its_end_when_the_last_one_is() {
        let (first, kept) = keep(64, of_known_length([data("abc")]));
        assert_eq!(read_all(kept.unwrap().copy(true).unwrap().into_body()).await, "abc");
        assert!(!first.is_end_stream());
        assert_eq!(first.size_hint().upper(), None);
        assert!(first.collect().await.is_err());
    }

    /// A body from which nothing ever comes.
    type Silence = StreamBody<stream::Pending<Result<Frame<Bytes>, BoxError>>>;

    /// A task that reads a body, and polls it in the very moment in which it is woken.
    struct Task {
        body: Mutex<ReplayBody<Silence>>,
        ended: Mutex<Vec<String>>,
    }

    impl Task {
        fn reading(body: ReplayBody<Silence>) -> Arc<Self> {
            let task = Arc::new(Self { body: Mutex::new(body), ended: Mutex::default() });
            task.clone().wake();
            task
        }

        fn ended(&self) -> Vec<String> {
            self.ended.lock().unwrap().clone()
        }
    }

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            let waker = Waker::from(self.clone());
            let mut cx = Context::from_waker(&waker);
            if let Poll::Ready(frame) = pin!(self.body.lock().unwrap().frame()).poll(&mut cx) {
                let error = frame.expect("an error, and no end").unwrap_err();
                self.ended.lock().unwrap().push(error.to_string());
            }
        }
    }

    #[test]
    fn an_earlier_attempt_that_waits_is_woken_to_learn_that_it_was_superseded() {
        let (first, kept) = keep(64, StreamBody::new(stream::pending()));
        let mut kept = kept.unwrap();
        let superseded = ["the request body was taken over by a later attempt"];
        let mut earlier = Task::reading(first);
        for last in [false, false, true] {
            let body = kept.copy(last).unwrap().into_body();
            assert_eq!(earlier.ended(), superseded, "before the later one reads");
            let later = Task::reading(body);
            assert_eq!(earlier.ended(), superseded, "and once");
            assert!(later.ended().is_empty());
            earlier = later;
        }
    }

    #[test]
    fn nothing_is_kept_of_a_task_that_does_not_wait_or_that_nobody_can_supersede() {
        let wakers = |task: &Arc<Task>| Arc::strong_count(task) - 1;
        let (first, kept) = keep(64, StreamBody::new(stream::pending()));
        let mut kept = kept.unwrap();
        let task = Task::reading(first);
        assert_eq!(wakers(&task), 1);
        let last = Task::reading(kept.copy(true).unwrap().into_body());
        assert_eq!((wakers(&task), wakers(&last)), (0, 0));

        let (first, kept) = keep(64, StreamBody::new(stream::pending()));
        let task = Task::reading(first);
        drop(kept);
        task.clone().wake();
        assert_eq!(wakers(&task), 0, "the keeper is gone");
    }

    #[tokio::test]
    async fn a_frame_that_an_earlier_attempt_waits_for_is_the_later_ones() {
        let wait = Step::Wait(crate::testing::secs(1));
        tokio::time::pause();
        let (mut first, kept) = keep(64, scripted([data("a"), wait, data("b")]));
        let mut kept = kept.unwrap();
        read(&mut first, 1).await;
        assert!(first.frame().now_or_never().is_none(), "its task is to be woken");
        assert_eq!(read_all(copy(&mut kept)).await, "ab");
    }

    /// Is in the middle of a poll until it is let go on.
    struct Halting(Sender<()>, Receiver<()>, u8);

    impl Body for Halting {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            if self.2 == b'd' {
                return Poll::Ready(None);
            }
            self.0.send(()).unwrap();
            // Nobody left to halt for.
            let _ = self.1.recv();
            self.2 += 1;
            Poll::Ready(Some(Ok(Frame::data(vec![self.2 - 1].into()))))
        }
    }

    #[test]
    fn a_frame_that_an_earlier_attempt_reads_at_that_very_moment_is_not_lost() {
        let ((polled, is_polled), (go_on, halted)) = (channel(), channel());
        let (mut first, kept) = keep(64, Halting(polled, halted, b'a'));
        let mut kept = kept.unwrap();
        let earlier = thread::spawn(move || {
            let frame = first.frame().now_or_never().unwrap().unwrap();
            assert_eq!(frame.unwrap().into_data().unwrap(), "a");
            first
        });
        is_polled.recv().unwrap();
        let later = thread::spawn(move || {
            let second = copy(&mut kept);
            second.collect().now_or_never().unwrap().unwrap().to_bytes()
        });
        drop(go_on);
        assert_eq!(later.join().unwrap(), "abc");
        let mut first = earlier.join().unwrap();
        assert!(first.frame().now_or_never().unwrap().unwrap().is_err());
    }

    #[tokio::test]
    async fn once_nobody_can_ask_again_what_was_recorded_is_given_up() {
        let alive = Arc::default();
        let (mut sent, kept) = keep(64, scripted(counted(&alive, 4)));
        read(&mut sent, 2).await;
        assert_eq!(alive.load(Ordering::Relaxed), 4);
        drop(kept);
        read(&mut sent, 1).await;
        assert_eq!(alive.load(Ordering::Relaxed), 1);
        assert_eq!(read_all(sent).await.len(), 4);
    }

    #[tokio::test]
    async fn the_last_copy_gives_away_what_it_sends() {
        let alive = Arc::default();
        let (sent, kept) = keep(64, scripted(counted(&alive, 4)));
        let mut kept = kept.unwrap();
        assert_eq!(read_all(sent).await.len(), 16);
        assert_eq!(alive.load(Ordering::Relaxed), 4);
        let mut last = kept.copy(true).unwrap().into_body();
        for left in (0..4).rev() {
            read(&mut last, 1).await;
            assert_eq!(alive.load(Ordering::Relaxed), left);
        }
        assert!(last.frame().await.is_none());
    }

    /// Drops what keeps the request in the middle of a poll: so may a waker that is replaced there.
    struct DropsTheKeeper(Arc<Mutex<Option<KeptRecord<Self>>>>);

    impl Body for DropsTheKeeper {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            let kept = self.0.lock().unwrap().take();
            Poll::Ready(kept.map(|kept| {
                drop(kept);
                Ok(Frame::data(Bytes::from_static(b"x")))
            }))
        }
    }

    #[tokio::test]
    async fn a_poll_that_drops_the_keeper_does_not_wait_for_itself() {
        let slot = Arc::default();
        let (sent, kept) = keep(64, DropsTheKeeper(Arc::clone(&slot)));
        *slot.lock().unwrap() = kept;
        assert_eq!(read_all(sent).await, "x");
    }

    #[tokio::test]
    async fn an_empty_body_is_kept_for_nothing() {
        let (sent, kept) = keep(0, Empty::<Bytes>::new());
        let mut kept = kept.unwrap();
        assert!(matches!(sent.source, Source::Once { .. }));
        assert_same(Empty::<Bytes>::new(), sent).await;
        assert_same(Empty::<Bytes>::new(), copy(&mut kept)).await;
        assert_same(Empty::<Bytes>::new(), kept.copy(true).unwrap().into_body()).await;
        assert!(kept.copy(true).is_none());
    }

    #[tokio::test]
    async fn frames_with_nothing_in_them_take_no_place() {
        let steps = std::iter::repeat_n(data(""), 2 * FRAMES).chain([data("x")]);
        let (sent, kept) = keep(1, scripted(steps));
        assert_eq!(read_all(sent).await, "x");
        assert_eq!(read_all(copy(&mut kept.unwrap())).await, "x");
    }

    #[tokio::test]
    async fn a_body_in_crumbs_is_bounded_too() {
        for (crumbs, can) in [(FRAMES, true), (FRAMES + 1, false)] {
            let (sent, kept) = keep(usize::MAX, scripted(vec![data("x"); crumbs]));
            assert_eq!(read_all(sent).await.len(), crumbs);
            assert_eq!(kept.unwrap().copy(false).is_some(), can, "{crumbs}");
        }
    }

    #[tokio::test]
    async fn what_is_kept_are_handles_and_not_copies() {
        let bytes = Bytes::from(vec![7; 100]);
        let (mut first, kept) = keep(1000, Full::new(bytes.clone()));
        let mut kept = kept.unwrap();
        let sent = first.frame().await.unwrap().unwrap().into_data().unwrap();
        let again = copy(&mut kept).frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!((sent.as_ptr(), again.as_ptr()), (bytes.as_ptr(), bytes.as_ptr()));
    }

    // The law for bodies.
    #[tokio::test]
    async fn bytes_trailers_and_hints_are_the_same_with_and_without_and_in_every_copy() {
        let steps = [data("he"), data("llo"), trailers("checksum", "7")];
        let known = || of_known_length(steps.clone());
        let (sent, kept) = keep(64, known());
        let mut kept = kept.unwrap();
        assert_same(known(), sent).await;
        // A copy knows its end where the body did not.
        let told =
            |body: &ReplayBody<Scripted>| (body.size_hint().lower(), body.size_hint().upper());
        let mut second = copy(&mut kept);
        for left in [5, 3, 0] {
            assert_eq!(told(&second), (left, Some(left)));
            assert!(!second.is_end_stream(), "there are trailers");
            assert!(second.frame().await.unwrap().is_ok());
        }
        assert!(second.is_end_stream() && second.frame().await.is_none());

        let (mut first, kept) = keep(64, scripted(steps.clone()));
        read(&mut first, 1).await;
        let mut second = copy(&mut kept.unwrap());
        assert_eq!(told(&second), (2, None), "what is there, and nobody knows how much more");
        read(&mut second, 1).await;
        assert_eq!(told(&second), (0, None));
    }

    // RET-05
    #[tokio::test]
    async fn a_copy_with_trailers_tells_no_length_that_was_not_told() {
        for (trailer, told) in [(None, Some(2)), (Some(trailers("checksum", "7")), None)] {
            let steps = [data("he")].into_iter().chain(trailer);
            let (sent, kept) = keep(8, scripted(steps));
            assert_eq!(read_all(sent).await, "he", "to its very end");
            assert_eq!(copy(&mut kept.unwrap()).size_hint().exact(), told);
        }
    }

    #[tokio::test]
    async fn a_body_that_must_not_be_moved_can_be_recorded_too() {
        let stream = stream::once(async {
            tokio::task::yield_now().await;
            Ok::<_, BoxError>(Frame::data(Bytes::from_static(b"x")))
        });
        let (sent, kept) = keep(64, StreamBody::new(stream));
        let mut kept = kept.unwrap();
        assert_eq!(read_all(sent).await, "x");
        assert_eq!(read_all(copy(&mut kept)).await, "x");
    }

    #[test]
    fn it_moves_freely_if_the_body_does() {
        fn free<T: Unpin + Send + Sync + 'static>() {}
        free::<ReplayBody<Full<Bytes>>>();
        free::<KeptRecord<Full<Bytes>>>();
    }

    /// A body in any chunks, which is pending now and then.
    #[derive(Clone, Debug)]
    struct Chunks {
        chunks: VecDeque<Bytes>,
        trailers: bool,
        fails: bool,
        told: bool,
        pending: bool,
    }

    impl Chunks {
        fn left(&self) -> u64 {
            self.chunks.iter().map(|chunk| chunk.len() as u64).sum()
        }
    }

    impl Body for Chunks {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            self.pending = !self.pending;
            if self.pending {
                return Poll::Pending;
            }
            if let Some(chunk) = self.chunks.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(chunk))));
            }
            if std::mem::take(&mut self.fails) {
                return Poll::Ready(Some(Err("planted".into())));
            }
            let trailers = std::mem::take(&mut self.trailers);
            let trailers = trailers.then(|| Ok(Frame::trailers(HeaderMap::default())));
            Poll::Ready(trailers)
        }

        fn size_hint(&self) -> SizeHint {
            if self.told { SizeHint::with_exact(self.left()) } else { SizeHint::new() }
        }
    }

    fn chunks() -> impl Strategy<Value = Chunks> {
        let chunk = proptest::collection::vec(any::<u8>(), 0..12).prop_map(Bytes::from);
        let chunks = proptest::collection::vec_deque(chunk, 0..8);
        (chunks, any::<bool>(), proptest::bool::weighted(0.2), any::<bool>()).prop_map(
            |(chunks, trailers, fails, told)| Chunks {
                chunks,
                trailers,
                fails,
                told,
                pending: false,
            },
        )
    }

    /// What one attempt saw.
    #[derive(Debug, Default)]
    struct Seen {
        bytes: Vec<u8>,
        trailers: bool,
        ended: bool,
        failed: bool,
    }

    impl Seen {
        fn poll(&mut self, body: &mut ReplayBody<Chunks>) {
            let mut cx = Context::from_waker(std::task::Waker::noop());
            match pin!(body).poll_frame(&mut cx) {
                Poll::Pending => {}
                Poll::Ready(None) => self.ended = true,
                Poll::Ready(Some(Err(_))) => self.failed = true,
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => self.bytes.extend(data),
                    Err(_) => self.trailers = true,
                },
            }
        }
    }

    proptest! {
        // RET-05
        #[test]
        fn every_attempt_sends_a_beginning_of_the_same_body_and_the_last_sends_all(
            original in chunks(),
            cap in 0_usize..60,
            drops in proptest::collection::vec((0_usize..24, any::<bool>()), 0..5),
        ) {
            let whole: Vec<u8> = original.chunks.iter().flatten().copied().collect();
            let longest = original.chunks.iter().map(Bytes::len).max().unwrap_or(0);
            let (mut body, kept) = keep(cap, original.clone());
            prop_assert_eq!(kept.is_some(), !(original.told && whole.len() > cap));
            let Some(mut kept) = kept else { return Ok(()) };
            let mut furthest = 0;
            let mut lost = false;
            let mut still_about = Vec::new();
            for (polls, dropped) in drops {
                let mut seen = Seen::default();
                let fresh = body.size_hint();
                prop_assert!(fresh.lower() <= whole.len() as u64);
                prop_assert!(!original.told || fresh.exact() == Some(whole.len() as u64));
                for _ in 0..polls {
                    if seen.ended || seen.failed {
                        break;
                    }
                    seen.poll(&mut body);
                    let left = (whole.len() - seen.bytes.len()) as u64;
                    let hint = body.size_hint();
                    prop_assert!(hint.lower() <= left);
                    prop_assert!(hint.upper().is_none_or(|upper| upper >= left));
                    prop_assert!(
                        seen.failed || !original.told || hint.exact() == Some(left),
                        "{:?}", hint,
                    );
                    for old in &mut still_about {
                        let mut late = Seen::default();
                        late.poll(old);
                        prop_assert!(late.failed, "{:?}", late);
                    }
                }
                prop_assert!(whole.starts_with(&seen.bytes));
                prop_assert!(!seen.ended || seen.bytes == whole && seen.trailers == original.trailers);
                prop_assert!(!seen.failed || original.fails);
                furthest = furthest.max(seen.bytes.len());
                lost |= seen.failed;
                let can = furthest <= cap && !lost;
                let copy = kept.copy(false);
                prop_assert_eq!(copy.is_some(), can);
                prop_assert!(high_water(&kept) <= cap + longest);
                let Some(copy) = copy else { return Ok(()) };
                let old = std::mem::replace(&mut body, copy.into_body());
                if !dropped {
                    still_about.push(old);
                }
            }
            let mut seen = Seen::default();
            while !seen.ended && !seen.failed {
                seen.poll(&mut body);
            }
            prop_assert_eq!(seen.failed, original.fails);
            prop_assert_eq!(&seen.bytes, &whole);
            prop_assert!(seen.failed || seen.trailers == original.trailers);
        }
    }
}
