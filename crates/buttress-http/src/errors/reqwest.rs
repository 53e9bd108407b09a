//! What reqwest's errors say. It is hyper's client that fails beneath them.

use std::error::Error;

use buttress_core::Class;

use super::{Link, Said, TRANSIENT};
use crate::{chain::peel, class::class_of_status};

pub(super) fn look(link: &(dyn Error + 'static)) -> Option<Link> {
    let error = peel::<reqwest::Error>(link)?;
    let class = if error.is_builder() || error.is_redirect() {
        // A request that cannot be made. Or its redirects were not followed to an end: every server on the
        // way has answered, and it was decided on our side to go no further.
        Class::CallerError
    } else if let Some(status) = error.status() {
        class_of_status(status)
    } else if error.is_request() {
        return Some(Link::Transports);
    } else {
        // The body of a response, what was made of it, an upgrade: the head had come.
        TRANSIENT
    };
    Some(Link::Says(Said::sent(class)))
}

/// Its own limits are of a type that nobody else can name.
pub(super) fn timed_out(link: &(dyn Error + 'static)) -> bool {
    peel::<reqwest::Error>(link).is_some_and(reqwest::Error::is_timeout)
}
