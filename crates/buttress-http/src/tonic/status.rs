use std::error::Error;

use ::tonic::{Code, Status, metadata::MetadataMap};
use buttress_core::BoxError;
use bytes::Bytes;

use super::ChannelError;
use crate::{
    chain::peel,
    grpc::{PUSHBACK, grpc_refusal},
    refusal::{Ours, TIMED_OUT, find},
};

/// What `error` is as a tonic `Status`, with all that can be said of it: for a handler whose own client
/// failed, and for a client that wants more than tonic finds by itself.
///
/// tonic makes a `Status` of whatever a service fails with, and each of our errors tells it the right code. This
/// says more, by the table of [`grpc_refusal`]:
///
/// - the whole message: which layer, which limit, and when to come again;
/// - when to come again as `grpc-retry-pushback-ms` in the metadata, so that it goes on to the caller;
/// - a refusal deep in somebody's error is that somebody's, and not *this* server's being full.
///
/// The error is the source of the status, from where it can be downcast. A client's own time limit is
/// DEADLINE_EXCEEDED. What is neither, a `Status` or a [`ChannelError`] among it, is what tonic makes of it.
///
/// # Examples
///
/// ```
/// use buttress_core::{Reason, Rejected};
/// use buttress_http::grpc_status;
/// use std::{error::Error, time::Duration};
///
/// let rejected = Rejected::new(Reason::CircuitOpen, "breaker").retry_in(Duration::from_secs(5));
/// let status = grpc_status(rejected);
/// assert_eq!(status.code(), tonic::Code::Unavailable);
/// assert_eq!(status.message(), "refused by breaker: circuit open, try again in 5s");
/// assert_eq!(status.metadata().get("grpc-retry-pushback-ms").unwrap(), "5000");
/// assert_eq!(status.source().unwrap().downcast_ref(), Some(&rejected));
/// ```
pub fn grpc_status(error: impl Into<BoxError>) -> Status {
    let error = error.into();
    if error.is::<Status>() || error.is::<ChannelError>() {
        return Status::from_error(error);
    }
    let (Some(ours), Some(refusal)) = (find(&*error), grpc_refusal(&*error)) else {
        return Status::from_error(error);
    };
    let message = match ours {
        Ours::Rejected(rejected) => rejected.to_string(),
        Ours::Elapsed(elapsed) => elapsed.to_string(),
        Ours::TimedOut => TIMED_OUT.into(),
        Ours::TermOver(over) => over.to_string(),
    };
    let code = refusal.code().map_or(Code::Unknown, |code| i32::from(code).into());
    let mut response = refusal.into_response::<Bytes>();
    let wait = response.headers_mut().remove(PUSHBACK).map(|wait| (PUSHBACK, wait));
    let metadata = MetadataMap::from_headers(wait.into_iter().collect());
    let mut status = Status::with_metadata(code, message, metadata);
    status.set_source(error.into());
    status
}

/// The code of an error that itself is a status, or a channel's with its status.
pub(crate) fn code_of(error: &(dyn Error + 'static)) -> Option<crate::Code> {
    let status = peel::<ChannelError>(error).map(ChannelError::status).or_else(|| peel(error))?;
    let code = crate::Code::from_i32(status.code().into());
    // An error is no answer that went well.
    (code != crate::Code::Ok).then_some(code)
}

#[cfg(test)]
mod tests {
    use std::{io, time::Duration};

    use buttress_core::{
        Both, Class, Elapsed, FencingToken, Limit, Reason, Rejected, TermOver, judge,
    };
    use http::Response;

    use super::*;
    use crate::{GrpcClass, HttpClass, grpc_refusal};

    const LATE: Elapsed = Elapsed::new(Limit::Total, Duration::from_secs(1));
    const ALL: [Reason; 8] = [
        Reason::CircuitOpen,
        Reason::BulkheadFull,
        Reason::Overloaded,
        Reason::DeadlineExceeded,
        Reason::NotLeader,
        Reason::Degraded,
        Reason::RateLimited,
        Reason::Draining,
    ];

    fn rejected(reason: Reason) -> Rejected {
        Rejected::new(reason, "layer")
    }

    fn over() -> TermOver {
        TermOver::new(FencingToken::new(7).unwrap())
    }

    fn pushback(status: &Status) -> Option<&str> {
        status.metadata().get(PUSHBACK.as_str()).map(|wait| wait.to_str().unwrap())
    }

    // GRP-07
    #[test]
    fn what_tonic_finds_is_what_our_own_table_says() {
        let errors = ALL.map(|reason| BoxError::from(rejected(reason)));
        for error in errors.into_iter().chain([BoxError::from(LATE), over().into()]) {
            let refusal = grpc_refusal(&*error).unwrap();
            let response = refusal.into_response::<Bytes>();
            let status = Status::from_error(error);
            assert_eq!(i32::from(status.code()), i32::from(refusal.code().unwrap()), "{status}");
            assert_eq!(response.headers()["grpc-message"], status.message(), "{status}");
        }
    }

    // GRP-07
    #[test]
    fn a_status_says_all_that_can_be_said_and_has_the_error_beneath() {
        for (error, code, wait) in [
            (rejected(Reason::CircuitOpen), Code::Unavailable, None),
            (rejected(Reason::BulkheadFull), Code::ResourceExhausted, Some("-1")),
            (rejected(Reason::DeadlineExceeded), Code::DeadlineExceeded, None),
        ] {
            let status = grpc_status(error);
            assert_eq!((status.code(), pushback(&status)), (code, wait), "{error}");
            assert_eq!(status.message(), error.to_string());
            assert_eq!(status.source().unwrap().downcast_ref(), Some(&error));
        }
        let later = rejected(Reason::Overloaded).retry_in(Duration::from_millis(1500));
        assert_eq!(pushback(&grpc_status(later)), Some("1500"));
        let status = grpc_status(LATE);
        assert_eq!((status.code(), pushback(&status)), (Code::DeadlineExceeded, None));
        assert_eq!(status.message(), "request timed out: no answer within 1s");
        let sent = status.into_http::<()>();
        assert_eq!(sent.headers()["grpc-status"], "4");
        assert_eq!(
            grpc_status(over()).message(),
            "the leader's term 7 was over before the call was"
        );
    }

    // GRP-07
    #[test]
    fn a_wait_goes_on_to_the_caller() {
        let after = Duration::from_secs(3);
        let sent = grpc_status(rejected(Reason::Draining).retry_in(after)).into_http::<()>();
        assert_eq!(sent.headers()["grpc-retry-pushback-ms"], "3000");
    }

    // GRP-07
    #[test]
    fn somebody_elses_being_full_is_not_ours() {
        let deep = io::Error::other(rejected(Reason::BulkheadFull));
        let status = grpc_status(deep);
        assert_eq!((status.code(), pushback(&status)), (Code::Unavailable, None));
        assert_eq!(status.message(), "refused by layer: bulkhead full");
        let both = grpc_status(Both::new(LATE, rejected(Reason::CircuitOpen)));
        assert_eq!(both.code(), Code::DeadlineExceeded);
    }

    // GRP-07
    #[test]
    fn what_is_not_ours_is_what_tonic_makes_of_it() {
        assert_eq!(grpc_status(Status::not_found("x")).code(), Code::NotFound);
        assert_eq!(grpc_status(io::Error::other("x")).code(), Code::Unknown);
        // A client's status: it had been decided there.
        let relayed = Status::from_error(rejected(Reason::BulkheadFull).into());
        assert_eq!(grpc_status(relayed).code(), Code::ResourceExhausted);
    }

    // GRP-07
    #[test]
    fn a_server_keeps_the_code_of_a_status_and_leaves_out_what_it_says() {
        let code = |error: &(dyn Error + 'static)| {
            let response = grpc_refusal(error)?.into_response::<Bytes>();
            assert!(!response.headers().contains_key("grpc-message"));
            Some(response.headers()["grpc-status"].to_str().unwrap().to_owned())
        };
        assert_eq!(code(&Status::permission_denied("of 10.0.0.7")).as_deref(), Some("7"));
        let lost = io::Error::from(io::ErrorKind::ConnectionReset);
        let lost = crate::tonic::error::of_channel(lost.into());
        assert_eq!(code(&*lost).as_deref(), Some("14"));
        // Somebody else's, and what says that it went well.
        assert_eq!(code(&io::Error::other(Status::permission_denied("x"))), None);
        assert_eq!(code(&Status::ok("x")), None);
    }

    #[test]
    fn the_status_beneath_our_errors_changes_no_class() {
        let classes = |error: BoxError| {
            [
                judge::<Response<()>, _>(&HttpClass, Err(&error)),
                judge::<Response<()>, _>(&GrpcClass, Err(&error)),
            ]
        };
        let transient = [Class::Transient { after: None }; 2];
        for reason in ALL {
            let error = rejected(reason);
            assert_eq!(classes(error.into()), [Class::Refused; 2], "{reason}");
            assert_eq!(classes(io::Error::other(error).into()), transient, "{reason}");
            assert_eq!(classes(Both::new(error, LATE).into()), transient, "{reason}");
        }
        assert_eq!(classes(over().into()), transient);
        assert_eq!(classes(LATE.into()), transient);
        assert_eq!(classes(LATE.unsent().into()), transient);
        assert_eq!(classes(io::Error::other(LATE).into()), transient);
    }
}
