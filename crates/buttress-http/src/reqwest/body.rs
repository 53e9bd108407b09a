//! Bodies of requests, as reqwest has them.

use std::{
    any::Any,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use buttress_core::BoxError;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

type Polled = Option<Result<Frame<Bytes>, BoxError>>;

/// A body of which the first frame was read ahead.
struct Begun<B> {
    /// What that poll answered, if it did.
    first: Option<Polled>,
    rest: Pin<Box<B>>,
}

/// The body, for reqwest to send.
///
/// One that is in memory, whole, goes as bytes and not as a stream: those reqwest can send a second time by
/// itself, as where a redirect asks for it.
pub(super) fn for_reqwest<B>(body: B) -> reqwest::Body
where
    B: Body<Data = Bytes> + Send + Sync + 'static,
    B::Error: Into<BoxError>,
{
    let mut body = Some(body);
    if let Some(own) = (&mut body as &mut dyn Any).downcast_mut::<Option<reqwest::Body>>() {
        return own.take().unwrap_or_default();
    }
    let Some(body) = body.filter(|body| !body.is_end_stream()) else {
        return reqwest::Body::default();
    };
    let Some(length) = body.size_hint().exact() else {
        return reqwest::Body::wrap(body);
    };
    match read_ahead(body, length) {
        Ok(whole) => whole.into(),
        Err(begun) => reqwest::Body::wrap(begun),
    }
}

/// All of a body of that length, if that is its first frame, and is there already.
fn read_ahead<B>(body: B, length: u64) -> Result<Bytes, Begun<B>>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let mut rest = Box::pin(body);
    // Nobody is to be woken: whoever sends it polls it again.
    match rest.as_mut().poll_frame(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
            Ok(data) if data.len() as u64 == length && rest.is_end_stream() => Ok(data),
            Ok(data) => Err(Begun { first: Some(Some(Ok(Frame::data(data)))), rest }),
            Err(frame) => Err(Begun { first: Some(Some(Ok(frame))), rest }),
        },
        Poll::Ready(Some(Err(error))) => Err(Begun { first: Some(Some(Err(error.into()))), rest }),
        Poll::Ready(None) => Err(Begun { first: Some(None), rest }),
        Poll::Pending => Err(Begun { first: None, rest }),
    }
}

// === impl Begun ===

impl<B> Body for Begun<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Polled> {
        match self.first.take() {
            Some(first) => Poll::Ready(first),
            None => self.rest.as_mut().poll_frame(cx).map_err(Into::into),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.rest.size_hint();
        let read = match &self.first {
            Some(Some(Ok(frame))) => frame.data_ref().map_or(0, |data| data.len() as u64),
            _ => 0,
        };
        // The upper one first: the lower may not be beyond it.
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + read);
        }
        hint.set_lower(hint.lower() + read);
        hint
    }
}
