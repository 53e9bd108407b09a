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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::FutureExt;
    use http_body_util::Empty;

    use super::*;
    use crate::testing::{Scripted, Step, data, of_known_length, scripted, secs, trailers};

    fn bytes(n: u64) -> Step {
        Step::Data(vec![0; n as usize].into())
    }

    /// Drains the body. How much was read of it, and how long did that take?
    async fn drained(body: Scripted) -> (u64, Duration) {
        let (seen, start) = (body.seen.clone(), edge::now());
        let mut drain = Box::pin(Drain::new(body));
        drain.as_mut().await;
        assert!(seen.dropped.get(), "the body is gone before the drain is");
        (seen.read.get(), edge::now() - start)
    }

    // RET-08
    #[tokio::test(start_paused = true)]
    async fn a_short_body_is_read_to_its_end() {
        let steps = [data("no"), Step::Wait(TIME / 2), data("pe"), trailers("checksum", "7")];
        assert_eq!(drained(scripted(steps)).await, (4, TIME / 2));
    }

    // RET-08
    #[tokio::test(start_paused = true)]
    async fn an_endless_body_is_given_up_after_so_many_bytes() {
        let flood = scripted([Step::Flood(Bytes::from_static(&[0; 1024]))]);
        assert_eq!(drained(flood).await, (BYTES + 1024, Duration::ZERO));
    }

    // RET-08
    #[tokio::test(start_paused = true)]
    async fn a_body_that_stalls_is_given_up_after_its_time_to_the_nanosecond() {
        assert_eq!(drained(scripted([data("x"), Step::Never])).await, (1, TIME));
        let drip = scripted([Step::Drip("x", TIME / 2 + Duration::from_millis(1))]);
        assert_eq!(drained(drip).await, (1, TIME), "frames do not put it off");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_known_to_be_too_long_is_not_even_begun() {
        let long = of_known_length([bytes(BYTES + 1)]);
        assert_eq!(drained(long).await, (0, Duration::ZERO));
        assert_eq!(drained(of_known_length([bytes(BYTES)])).await.0, BYTES);
        assert_eq!(drained(scripted([bytes(BYTES)])).await.0, BYTES);
        let rest_too_long = of_known_length([bytes(10), Step::Wait(secs(1)), bytes(BYTES)]);
        assert_eq!(drained(rest_too_long).await, (0, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn frames_with_nothing_in_them_come_to_an_end_too() {
        assert_eq!(drained(scripted([Step::Flood(Bytes::new())])).await, (0, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_ends_it() {
        assert_eq!(
            drained(scripted([data("x"), Step::Error("reset"), Step::Never])).await,
            (1, Duration::ZERO)
        );
    }

    #[test]
    fn an_empty_body_is_gone_at_once_and_needs_no_clock() {
        // No runtime: a timer would panic.
        assert!(Drain::new(Empty::<Bytes>::new()).now_or_never().is_some());
        assert!(Drain::new(of_known_length([])).now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_that_is_dropped_drops_the_body() {
        let body = scripted([Step::Never]);
        let seen = body.seen.clone();
        let mut drain = Box::pin(Drain::new(body));
        assert!(futures_util::poll!(drain.as_mut()).is_pending());
        drop(drain);
        assert!(seen.dropped.get());
    }
}
