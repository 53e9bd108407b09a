use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// A body whose first frame was looked at. See [`GrpcHead`](super::GrpcHead).
    ///
    /// It tells the same as the body in it would have, from the start. It can be made from bytes if that body
    /// can: so a fallback's answer fits.
    #[derive(Debug)]
    pub struct PeekedBody<B> {
        first: First,
        #[pin]
        body: B,
    }
}

/// What was looked at, and is not passed on yet.
#[derive(Debug)]
enum First {
    /// Nothing: all that comes is the body's.
    Nothing,
    /// A frame, and what the body told of its length before it.
    Frame(Frame<Bytes>, SizeHint),
    /// The end. The body is not polled again.
    End,
}

// === impl PeekedBody ===

impl<B> PeekedBody<B> {
    /// Nobody has looked.
    pub(super) const fn untouched(body: B) -> Self {
        Self { first: First::Nothing, body }
    }

    /// Its first frame was read, when it told of that length.
    pub(super) const fn begun(frame: Frame<Bytes>, hint: SizeHint, body: B) -> Self {
        Self { first: First::Frame(frame, hint), body }
    }

    /// It has ended without a frame.
    pub(super) const fn ended(body: B) -> Self {
        Self { first: First::End, body }
    }
}

impl<B: Body<Data = Bytes>> Body for PeekedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        match std::mem::replace(this.first, First::Nothing) {
            First::Nothing => this.body.poll_frame(cx),
            First::Frame(frame, _) => Poll::Ready(Some(Ok(frame))),
            First::End => {
                *this.first = First::End;
                Poll::Ready(None)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self.first {
            First::Nothing => self.body.is_end_stream(),
            First::Frame(..) => false,
            First::End => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self.first {
            First::Nothing => self.body.size_hint(),
            First::Frame(_, hint) => hint,
            First::End => SizeHint::with_exact(0),
        }
    }
}

impl<B: Default> Default for PeekedBody<B> {
    fn default() -> Self {
        Self::untouched(B::default())
    }
}

impl<B: From<Bytes>> From<Bytes> for PeekedBody<B> {
    fn from(bytes: Bytes) -> Self {
        Self::untouched(bytes.into())
    }
}

impl<B: From<&'static str>> From<&'static str> for PeekedBody<B> {
    fn from(text: &'static str) -> Self {
        Self::untouched(text.into())
    }
}

impl<B: From<String>> From<String> for PeekedBody<B> {
    fn from(text: String) -> Self {
        Self::untouched(text.into())
    }
}
