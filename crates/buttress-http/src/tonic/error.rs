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
/// | a `Status` of a layer beneath | the same |
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
    let mut status = match beneath.and_then(|beneath| chain(beneath).find_map(look)) {
        Some(Said::Code(code, link)) => Status::new(code, told(link)),
        // tonic finds a status by itself, as beneath our own errors; and of what else there is, it knows more.
        _ if !by_transport => return error,
        Some(Said::Status(status)) => status.clone(),
        None => match beneath {
            // A connector of the user's own, or the channel's worker is gone.
            Some(beneath) => Status::unavailable(told(beneath)),
            // Its own settings cannot work.
            None => Status::internal(error.to_string()),
        },
    };
    status.set_source(Arc::from(error));
    ChannelError { status }.into()
}

/// What one link of the chain says to gRPC, if it is of a kind that decides.
enum Said<'a> {
    Status(&'a Status),
    Code(Code, &'a (dyn Error + 'static)),
}

fn look<'a>(link: &'a (dyn Error + 'static)) -> Option<Said<'a>> {
    match peel::<Status>(link) {
        Some(status) => Some(Said::Status(status)),
        None => Some(Said::Code(code_of(link)?, link)),
    }
}

fn code_of(link: &(dyn Error + 'static)) -> Option<Code> {
    if peel::<TimeoutExpired>(link).is_some() {
        return Some(Code::DeadlineExceeded);
    }
    if peel::<ConnectError>(link).is_some() {
        return Some(Code::Unavailable);
    }
    if let Some(error) = peel::<::hyper::Error>(link) {
        let lost = error.is_canceled() || error.is_timeout() || error.is_closed();
        return lost.then_some(Code::Unavailable);
    }
    if let Some(error) = peel(link) {
        return Some(of_http2(error));
    }
    // One that carries another is but a wrapping.
    let error = peel::<io::Error>(link)?;
    error.get_ref().is_none().then_some(Code::Unavailable)
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

#[cfg(test)]
mod tests {
    use std::io;

    use buttress_core::{Both, Class, Limit, Reason as Why, find, judge};
    use http::Response;

    use super::*;
    use crate::GrpcClass;

    fn code(error: impl Into<BoxError>) -> Code {
        Status::from_error(of_channel(error.into())).code()
    }

    // GRP-07
    #[test]
    fn what_a_channel_fails_of_has_its_code_however_deep() {
        assert_eq!(code(TimeoutExpired(())), Code::DeadlineExceeded);
        assert_eq!(code(ConnectError("no such name".into())), Code::Unavailable);
        assert_eq!(code(io::Error::from(io::ErrorKind::ConnectionReset)), Code::Unavailable);
        assert_eq!(code(h2::Error::from(Reason::ENHANCE_YOUR_CALM)), Code::ResourceExhausted);
        let connect = ConnectError(Elapsed::new(Limit::Connect, std::time::Duration::ZERO).into());
        let error = of_channel(connect.into());
        let told = "the channel failed: connect timed out: no connection within 0ns";
        assert_eq!(error.to_string(), told);
        assert_eq!(Status::from_error(error).code(), Code::Unavailable);
    }

    #[test]
    fn nothing_is_cut() {
        let error = of_channel(ConnectError(io::Error::other("x").into()).into());
        assert!(find::<Status>(&*error).is_some() && find::<ConnectError>(&*error).is_some());
        assert!(find::<io::Error>(&*error).is_some());
        let status = Status::from_error(error);
        assert!(find::<ChannelError>(&status).is_some() && find::<io::Error>(&status).is_some());
    }

    #[test]
    fn what_comes_of_no_channel_stays_what_it_is() {
        let ours = Rejected::new(Why::Draining, "layer");
        let late = Elapsed::new(Limit::Attempt, std::time::Duration::ZERO);
        assert_eq!(of_channel(ours.into()).downcast_ref(), Some(&ours));
        assert_eq!(of_channel(late.into()).downcast_ref(), Some(&late));
        for wrapped in [BoxError::from(Both::new(ours, late)), io::Error::other(ours).into()] {
            let error = of_channel(wrapped);
            assert!(error.downcast_ref::<ChannelError>().is_none(), "{error:?}");
            let class = judge::<Response<()>, _>(&GrpcClass, Err(&error));
            assert_eq!(class, Class::Transient { after: None });
        }
        assert!(of_channel("x".into()).downcast_ref::<ChannelError>().is_none());
        let error = of_channel(Status::not_found("x").into());
        assert_eq!(error.downcast_ref::<Status>().unwrap().code(), Code::NotFound);
    }

    #[test]
    fn a_body_of_tonics_says_what_lies_beneath_its_status() {
        let mut status = Status::unknown("x");
        status.set_source(Arc::new(h2::Error::from(Reason::REFUSED_STREAM)));
        let error = of_channel(status.into());
        assert_eq!(
            error.downcast_ref::<ChannelError>().unwrap().status().code(),
            Code::Unavailable
        );
    }
}
