use std::{error::Error, fmt, io, sync::Arc};

use ::tonic::{Code, ConnectError, Status, TimeoutExpired, transport};
use buttress_core::{BoxError, Elapsed, Rejected};
use h2::Reason;

use crate::chain::{chain, peel};

/// What a channel failed of, and what that is to gRPC.
///
/// | what happened | code |
/// |---|---|
/// | no connection, or it was lost; sent over one that was about to close; GOAWAY | UNAVAILABLE |
/// | REFUSED_STREAM: the server had no room for it, and did not look at it | UNAVAILABLE |
/// | the channel's own time limit, which goes by `grpc-timeout` too | DEADLINE_EXCEEDED |
/// | the server reset the call: CANCEL | CANCELLED |
/// | ENHANCE_YOUR_CALM | RESOURCE_EXHAUSTED |
/// | INADEQUATE_SECURITY | PERMISSION_DENIED |
/// | any other error of HTTP/2 | INTERNAL |
/// | a `Status`, as the body of a request fails with | the same |
///
/// The first four differ from what tonic itself makes of them.
///
/// Its source is the [status](Self::status), which is where tonic looks for one, and the source of that is the
/// channel's error. So nothing is lost on the way to a generated client's caller.
#[derive(Debug)]
pub struct ChannelError {
    status: Status,
}

/// What gRPC should hear of `error`, which is a channel's, or its body's.
pub(super) fn of_channel(error: BoxError) -> BoxError {
    let (by_transport, beneath) = match (error.downcast_ref(), error.downcast_ref()) {
        (Some(error), _) => (true, transport::Error::source(error)),
        // A body of tonic's says nothing else. What it knows is beneath.
        (_, Some(error)) => (false, Status::source(error)),
        _ => (false, Some(&*error as &(dyn Error + 'static))),
    };
    if by_transport {
        if let Some(rejected) = beneath.and_then(<dyn Error>::downcast_ref::<Rejected>) {
            return Box::new(*rejected);
        }
        if let Some(elapsed) = beneath.and_then(<dyn Error>::downcast_ref::<Elapsed>) {
            return Box::new(*elapsed);
        }
    }
    let known = beneath.and_then(|beneath| chain(beneath).find_map(status_of));
    let mut status = match (known, beneath) {
        (Some(status), _) => status,
        (None, _) if !by_transport => return error,
        // A connector of the user's own, or the channel's worker is gone.
        (None, Some(beneath)) => Status::unavailable(told(beneath)),
        // Its own settings cannot work.
        (None, None) => Status::internal(error.to_string()),
    };
    status.set_source(Arc::from(error));
    ChannelError { status }.into()
}

/// What one link of the chain says to gRPC, if it is of a kind that decides.
fn status_of(link: &(dyn Error + 'static)) -> Option<Status> {
    if let Some(status) = peel::<Status>(link) {
        return Some(status.clone());
    }
    let code = if peel::<TimeoutExpired>(link).is_some() {
        Code::DeadlineExceeded
    } else if peel::<ConnectError>(link).is_some() || peel::<io::Error>(link).is_some() {
        Code::Unavailable
    } else if let Some(error) = peel::<::hyper::Error>(link) {
        let lost = error.is_canceled() || error.is_timeout() || error.is_closed();
        return lost.then(|| Status::unavailable(told(link)));
    } else {
        of_http2(peel(link)?)
    };
    Some(Status::new(code, told(link)))
}

fn of_http2(error: &h2::Error) -> Code {
    if error.is_io() || error.is_go_away() && error.is_remote() {
        return Code::Unavailable;
    }
    match error.reason() {
        Some(Reason::REFUSED_STREAM) => Code::Unavailable,
        Some(Reason::CANCEL) => Code::Cancelled,
        Some(Reason::ENHANCE_YOUR_CALM) => Code::ResourceExhausted,
        Some(Reason::INADEQUATE_SECURITY) => Code::PermissionDenied,
        _ => Code::Internal,
    }
}

/// The link and what lies beneath it, in words.
fn told(link: &(dyn Error + 'static)) -> String {
    let mut told = link.to_string();
    // A status beneath an error of ours says the same again.
    for beneath in chain(link).skip(1).take_while(|link| !link.is::<Status>()) {
        let text = beneath.to_string();
        // Many errors tell of their source themselves.
        if !told.ends_with(&text) {
            told = told + ": " + &text;
        }
    }
    told
}

// === impl ChannelError ===

impl ChannelError {
    /// What it is to gRPC.
    #[must_use]
    pub const fn status(&self) -> &Status {
        &self.status
    }

    /// Whether it may be that its time was up.
    pub(super) fn is_cut_short(&self) -> bool {
        matches!(self.status.code(), Code::Cancelled | Code::DeadlineExceeded)
    }
}

impl fmt::Display for ChannelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the channel failed: {}", self.status.message())
    }
}

impl Error for ChannelError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.status)
    }
}
