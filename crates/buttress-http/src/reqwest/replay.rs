use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use buttress_core::{Discard, Kept, KeptClone, Replay};
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as HttpBody;

use crate::{Drain, KeptRecord, record, replay::safe};

/// Sends requests again that have reqwest's bodies.
///
/// Those cannot be cloned, though most of them are bytes in memory: a form, or JSON. So
/// [`HttpReplay`](crate::HttpReplay) does not take them, and
/// [`HttpReplay::record`](crate::HttpReplay::record) sends them once if they are longer than its cap. This one
/// tells them apart:
///
/// - bytes in memory are sent again, however many they are: to keep them costs no copy;
/// - streams are recorded up to a cap, and those that are longer are sent once, as with
///   [`RecordReplay`](crate::RecordReplay).
///
/// Which requests may be carried out twice, and what a copy consists of, is as with `HttpReplay`. A request of
/// reqwest's that is no POST says so by its method; a POST may bear an `Idempotency-Key`.
///
/// # Examples
///
/// ```
/// use buttress_core::{Kept, Replay};
/// use buttress_http::ReqwestReplay;
///
/// # fn main() -> Result<(), buttress_core::BoxError> {
/// let order = http::Request::put("https://shop/orders/7").body(reqwest::Body::from("tea"))?;
/// let (first, kept) = ReqwestReplay::record(0).keep(order);
/// assert_eq!(first.body().as_bytes(), Some(&b"tea"[..]));
///
/// let second = kept.unwrap().copy(true).unwrap();
/// assert_eq!(second.body().as_bytes(), Some(&b"tea"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ReqwestReplay {
    cap: usize,
}

/// What was kept of a request with a body of reqwest's. See [`ReqwestReplay`].
pub struct KeptReqwest {
    kept: What,
}

enum What {
    InMemory(KeptClone<Request<Bytes>>),
    Recorded(KeptRecord<reqwest::Body>),
}

// === impl ReqwestReplay ===

impl ReqwestReplay {
    /// Records streams, up to `cap` bytes each.
    #[must_use]
    pub const fn record(cap: usize) -> Self {
        Self { cap }
    }
}

impl Replay<Request<reqwest::Body>> for ReqwestReplay {
    type Sent = Request<reqwest::Body>;
    type Kept = KeptReqwest;

    fn once(&self, request: Request<reqwest::Body>) -> Self::Sent {
        request
    }

    fn keep(&self, request: Request<reqwest::Body>) -> (Self::Sent, Option<KeptReqwest>) {
        let safe = safe(request.method(), request.headers(), request.extensions());
        let (head, body) = request.into_parts();
        match in_memory(body) {
            Ok(bytes) => {
                let request = Request::from_parts(head, bytes);
                let sent = request.clone().map(Into::into);
                (sent, Some(KeptReqwest { kept: What::InMemory(KeptClone::new(request, safe)) }))
            }
            Err(stream) => {
                let request = Request::from_parts(head, stream);
                let (sent, kept) = record::keep(request, safe, self.cap);
                let kept = kept.map(|kept| KeptReqwest { kept: What::Recorded(kept) });
                (sent.map(reqwest::Body::wrap), kept)
            }
        }
    }
}

impl<B: HttpBody> Discard<Response<B>> for ReqwestReplay {
    type Discarding = Drain<B>;

    fn discard(&self, response: Response<B>) -> Drain<B> {
        Drain::new(response.into_body())
    }
}

/// The bytes of a body that is no stream.
fn in_memory(mut body: reqwest::Body) -> Result<Bytes, reqwest::Body> {
    let Some(bytes) = body.as_bytes() else {
        return Err(body);
    };
    if bytes.is_empty() {
        return Ok(Bytes::new());
    }
    // As a body it gives away its handle to the bytes, which it shows nowhere else.
    match Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Some(Ok(frame))) => Ok(frame.into_data().unwrap_or_default()),
        _ => Err(body),
    }
}

// === impl KeptReqwest ===

impl Kept for KeptReqwest {
    type Sent = Request<reqwest::Body>;

    fn safe(&self) -> bool {
        match &self.kept {
            What::InMemory(kept) => kept.safe(),
            What::Recorded(kept) => kept.safe(),
        }
    }

    fn copy(&mut self, last: bool) -> Option<Self::Sent> {
        match &mut self.kept {
            What::InMemory(kept) => Some(kept.copy(last)?.map(Into::into)),
            What::Recorded(kept) => Some(kept.copy(last)?.map(reqwest::Body::wrap)),
        }
    }
}

impl fmt::Debug for KeptReqwest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptReqwest").field("safe", &self.safe()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_memory_stays_there_whatever_the_cap() {
        for text in ["", "tea"] {
            let request = http::Request::post("/orders").body(text.into()).unwrap();
            let (mut sent, kept) = ReqwestReplay::record(0).keep(request);
            let mut kept = kept.unwrap();
            for last in [false, false, true] {
                assert_eq!(sent.body().as_bytes(), Some(text.as_bytes()));
                sent = kept.copy(last).unwrap();
            }
            assert!(kept.copy(true).is_none());
        }
    }

    #[test]
    fn what_was_kept_tells_nothing_of_the_request() {
        let request = http::Request::post("/s3cret").header("authorization", "s3cret");
        let (_, kept) = ReqwestReplay::record(0).keep(request.body("s3cret".into()).unwrap());
        assert_eq!(format!("{:?}", kept.unwrap()), "KeptReqwest { safe: false, .. }");
    }
}
