use std::{
    pin::Pin,
    task::{Context, Poll},
};

use buttress_core::BoxError;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::error;

pin_project! {
    /// The body of a channel's answer: the same frames, and errors that tell gRPC the right thing, as
    /// [`ChannelError`](super::ChannelError) does.
    #[derive(Debug)]
    pub struct ChannelBody<B> {
        #[pin]
        body: B,
    }
}

impl<B> ChannelBody<B> {
    pub(super) const fn new(body: B) -> Self {
        Self { body }
    }
}

impl<B> Body for ChannelBody<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let frame = self.project().body.poll_frame(cx);
        frame.map_err(|error| error::of_channel(error.into()))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
