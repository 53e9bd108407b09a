//! What tonic's errors say. It is hyper that fails beneath them.

use std::error::Error;

use buttress_core::Class;
use tonic::{ConnectError, Status, TimeoutExpired, transport};

use super::{Link, Said, TRANSIENT, walk};
use crate::{ChannelError, chain::peel, grpc};

pub(super) fn look(link: &(dyn Error + 'static)) -> Option<Link> {
    if let Some(error) = peel::<ChannelError>(link) {
        return Some(Link::Says(of_channel(error)));
    }
    if let Some(error) = peel::<Status>(link) {
        // It may be of a call that the callee made itself.
        return Some(Link::Foreign(Some(of_status(error))));
    }
    if let Some(error) = peel::<transport::Error>(link) {
        // Without a source, its settings cannot work.
        let said = Link::Says(Said::sent(Class::CallerError));
        return Some(error.source().map_or(said, |_| Link::Transports));
    }
    if peel::<ConnectError>(link).is_some() {
        return Some(Link::Says(Said::unconnected(link)));
    }
    peel::<TimeoutExpired>(link)?;
    Some(Link::Says(Said::sent(TRANSIENT)))
}

/// What the channel failed of decides. Its status was made of that, and knows less.
fn of_channel(error: &ChannelError) -> Said {
    let class = of_status(error.status());
    match error.status().source() {
        Some(beneath) => walk(beneath, Some(class)),
        None => Said::sent(class),
    }
}

fn of_status(status: &Status) -> Class {
    match grpc::class_of_status(status.code().into(), status.metadata().as_ref()) {
        // An error all the same.
        Class::Success => TRANSIENT,
        class => class,
    }
}
