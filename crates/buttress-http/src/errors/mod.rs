//! What a client's errors say.
//!
//! One question matters more than all others: can it be that the request was sent? Only what cannot be
//! is [`Class::Unreachable`], which is repeated whatever the method. So the chain is walked from the
//! outside in, and the first link that is known decides: a connection that was refused *while a body was
//! being sent* is not one that was refused.
//!
//! And it is believed only as long as every link so far is a transport's. What lies in somebody else's error
//! may be of another call: a service that has paid, and then could not reach the auditor, says so by an error
//! in which a connection was refused.

#[cfg(feature = "hyper")]
mod hyper;

use std::{error::Error, io};

use buttress_core::{Both, Class, Rejected};

use crate::chain::{chain, is_pointer, peel};

/// What an error says that came instead of a response.
pub(crate) fn class_of(error: &(dyn Error + 'static)) -> Class {
    if error.is::<Rejected>() {
        return Class::Refused;
    }
    let mut of_this_call = true;
    for link in chain(error) {
        let class = match peel::<Both>(link) {
            // Either of them may have been sent.
            Some(both) => Some(match class_of(both.error()) {
                Class::Unreachable => callees(class_of(both.cause())),
                class => callees(class),
            }),
            None => link_class(link),
        };
        match class {
            Some(Class::Unreachable) if !of_this_call => break,
            Some(class) => return class,
            None => of_this_call &= is_transports(link),
        }
    }
    Class::Transient { after: None }
}

/// Whether it is an error of a transport, which speaks of the call that it failed, and of no other.
fn is_transports(link: &(dyn Error + 'static)) -> bool {
    #[cfg(feature = "hyper")]
    if hyper::is_transports(link) {
        return true;
    }
    peel::<io::Error>(link).is_some() || is_pointer(link)
}

/// A refusal that somebody else's error brought along is the callee's failure.
const fn callees(class: Class) -> Class {
    match class {
        Class::Refused => Class::Transient { after: None },
        class => class,
    }
}

/// What one link of the chain says, if it is of a kind that decides.
fn link_class(link: &(dyn Error + 'static)) -> Option<Class> {
    #[cfg(feature = "hyper")]
    if let Some(class) = hyper::link_class(link) {
        return Some(class);
    }
    let unsent =
        peel::<io::Error>(link).is_some_and(|error| only_connecting_fails_so(error.kind()));
    unsent.then_some(Class::Unreachable)
}

/// Whether a connection that was made cannot fail in this way.
///
/// It can with `HostUnreachable` and `NetworkUnreachable`, once the route is lost: those are unsent only
/// where the client says that it was connecting.
const fn only_connecting_fails_so(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::ConnectionRefused | io::ErrorKind::AddrNotAvailable)
}
