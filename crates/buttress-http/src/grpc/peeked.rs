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
        // Frames of no bytes, which came before `first`.
        empties: u32,
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
        Self { empties: 0, first: First::Nothing, body }
    }

    /// Its first frame was read, after so many empty ones, when it told of that length.
    pub(super) const fn begun(empties: u32, frame: Frame<Bytes>, hint: SizeHint, body: B) -> Self {
        Self { empties, first: First::Frame(frame, hint), body }
    }

    /// It has ended, with nothing but so many empty frames.
    pub(super) const fn ended(empties: u32, body: B) -> Self {
        Self { empties, first: First::End, body }
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
        if let Some(left) = this.empties.checked_sub(1) {
            *this.empties = left;
            return Poll::Ready(Some(Ok(Frame::data(Bytes::new()))));
        }
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
            First::End => self.empties == 0,
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
