use std::{
    pin::Pin,
    task::{Context, Poll},
};

use buttress_core::BoxError;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tokio::time::Instant;

use super::failed;

pin_project! {
    /// The body of a channel's answer: the same frames, and errors that tell gRPC the right thing, as
    /// [`ChannelError`](super::ChannelError) does.
    #[derive(Debug)]
    pub struct ChannelBody<B> {
        #[pin]
        body: B,
        // When the call was made.
        since: Instant,
    }
}

impl<B> ChannelBody<B> {
    pub(super) const fn new(body: B, since: Instant) -> Self {
        Self { body, since }
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
        let this = self.project();
        this.body.poll_frame(cx).map_err(|error| failed(error.into(), *this.since))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
