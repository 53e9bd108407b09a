use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use buttress_core::{edge, timer::RareAlarm};
use bytes::Buf;
use http_body::Body;
use pin_project_lite::pin_project;
use tokio::time::Instant;

/// How much of a body is worth reading to keep its connection: error pages are shorter, and one TLS
/// record, which is read as a whole anyway, is as long.
const BYTES: u64 = 16 * 1024;

/// How long that may take: a round trip to a callee that is near. A new connection costs no less, and a
/// retry is about to wait for longer.
const TIME: Duration = Duration::from_millis(50);

pin_project! {
    /// Reads the rest of a body that nobody wants, and drops it.
    ///
    /// An HTTP/1.1 connection can be used again only when the response on it was read to its end. So a
    /// retry that drops its answers unread pays for each with a connection, and one that reads them all
    /// hangs on the first endless one. This reads up to 16 KiB, for up to 50 ms; then, or as soon as
    /// it is known that the rest is longer, it drops the body.
    ///
    /// When it resolves the body is gone.
    #[must_use = "futures do nothing unless polled"]
    pub struct Drain<B> {
        #[pin]
        body: Option<B>,
        left: u64,
        until: Option<Instant>,
        alarm: RareAlarm,
    }
}

// === impl Drain ===

impl<B> Drain<B> {
    /// Lets go of `body`.
    pub fn new(body: B) -> Self {
        Self { body: Some(body), left: BYTES, until: None, alarm: RareAlarm::default() }
    }
}

impl<B: Body> Future for Drain<B> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        while let Some(body) = this.body.as_mut().as_pin_mut()
            && !body.is_end_stream()
            && body.size_hint().lower() <= *this.left
        {
            match body.poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    // An empty frame counts for one byte: a body of nothing else would never end.
                    let read = frame.data_ref().map_or(1, |data| data.remaining().max(1) as u64);
                    match this.left.checked_sub(read) {
                        Some(left) => *this.left = left,
                        None => break,
                    }
                }
                Poll::Ready(None | Some(Err(_))) => break,
                Poll::Pending => {
                    let until = *this.until.get_or_insert_with(|| edge::now() + TIME);
                    if this.alarm.poll(until, cx).is_pending() && edge::now() < until {
                        return Poll::Pending;
                    }
                    break;
                }
            }
        }
        this.body.set(None);
        Poll::Ready(())
    }
}

impl<B> fmt::Debug for Drain<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drain").field("left", &self.left).finish_non_exhaustive()
    }
}
