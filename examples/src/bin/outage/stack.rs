//! The client with us. All that this program says to the library stands in this file.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use tower::{BoxError, Service, service_fn};

use crate::plain;

pub(crate) const NAME: &str = "hyper in buttress::Standard";

/// The settings, for the reader of the figures.
pub(crate) fn settings() -> String {
    "placeholder".to_owned()
}

/// What the breaker does, for the picture.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum BreakerState {
    Closed,
    HalfOpen,
    Open,
}

// === impl BreakerState ===

impl BreakerState {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half-open",
            Self::Open => "open",
        }
    }
}

pub(crate) fn standard() -> Result<
    (
        impl Service<
            Request<Full<Bytes>>,
            Response = Response<Incoming>,
            Error = BoxError,
            Future: Send,
        > + Clone
        + Send
        + 'static,
        impl Fn() -> BreakerState,
    ),
    BoxError,
> {
    let hyper = plain::hyper();
    let client = service_fn(move |request| plain::bare(hyper.clone(), request));
    Ok((client, || BreakerState::Closed))
}
