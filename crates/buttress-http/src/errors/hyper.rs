//! What the errors of hyper say, of its client, and of HTTP/2 beneath them.

use std::error::Error;

use buttress_core::Class;
use h2::Reason;
use hyper_util::client::legacy;

use super::{Link, Said, TRANSIENT};
use crate::chain::peel;

pub(super) fn look(link: &(dyn Error + 'static)) -> Option<Link> {
    if let Some(error) = peel::<legacy::Error>(link) {
        return Some(of_client(error));
    }
    let class = if let Some(error) = peel::<hyper::Error>(link) {
        of_hyper(error)
    } else {
        let bare = peel::<h2::Error>(link)?;
        // It may be its connection's, which tells of streams within the last one too.
        if bare.is_go_away() { TRANSIENT } else { of_h2(bare) }
    };
    Some(Link::Says(Said::sent(class)))
}

/// By HTTP/2's pings, too, which time out if a connection is dead.
pub(super) fn timed_out(link: &(dyn Error + 'static)) -> bool {
    peel::<hyper::Error>(link).is_some_and(hyper::Error::is_timeout)
}

fn of_client(error: &legacy::Error) -> Link {
    if error.is_connect() {
        Link::Says(Said::unconnected(error))
    } else if error.source().is_none() {
        // It refused the request as it stands: no host in the URI, a version that it does not speak.
        Link::Says(Said::sent(Class::CallerError))
    } else {
        Link::Transports
    }
}

fn of_hyper(error: &hyper::Error) -> Class {
    if error.is_canceled() && !says(error.source(), "upgrade expected but not completed") {
        // Given to a connection that ended before it took the request up. hyper says so only while it
        // still has the whole request. (Or of an upgrade that an answer did not grant.)
        Class::Unreachable
    } else if error.is_closed() {
        // The connection was not even ready to take one.
        Class::Unreachable
    } else if error.is_user() && !says(Some(error), "dispatch task is gone") {
        // Our side failed, as when the request's body did. What lies beneath is the body's affair.
        Class::CallerError
    } else if let Some(error) = error.source().and_then(peel::<h2::Error>) {
        of_h2(error)
    } else {
        // Reset, closed, cut off, timed out, malformed: that tells of the response. The request may have
        // been carried out.
        TRANSIENT
    }
}

/// Whether the error is shown so: hyper has no other name for some that matter.
fn says(error: Option<&(dyn Error + 'static)>, text: &str) -> bool {
    error.is_some_and(|error| error.to_string() == text)
}

/// Only what the peer has said proves that it did nothing.
///
/// A stream fails with its GOAWAY only if it is beyond the last one that was, or might yet be, looked at.
/// (RFC 9113, 6.8; of that connection nobody gets a stream any more, and fails so too.) Those within go on,
/// and fail with whatever ends the connection.
fn of_h2(error: &h2::Error) -> Class {
    if !error.is_remote() {
        // By hyper, when the request's own body failed; or by h2, which did not take the request as it
        // stands.
        let by_user = error.is_reset() && !error.is_library();
        let as_it_stands = error.reason().is_none() && !error.is_io();
        return if by_user || as_it_stands { Class::CallerError } else { TRANSIENT };
    }
    match error.reason() {
        // It would not take the next one either.
        Some(Reason::INADEQUATE_SECURITY) => Class::Fatal,
        // As a 505 is.
        Some(Reason::HTTP_1_1_REQUIRED) => Class::CallerError,
        // RFC 9113, 8.7: nothing was done.
        Some(Reason::REFUSED_STREAM) => Class::Unreachable,
        _ if error.is_go_away() => Class::Unreachable,
        Some(Reason::ENHANCE_YOUR_CALM) => Class::Throttled { after: None },
        _ => TRANSIENT,
    }
}
