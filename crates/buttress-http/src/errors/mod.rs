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
#[cfg(feature = "reqwest")]
mod reqwest;
#[cfg(feature = "tonic")]
mod tonic;

use std::{error::Error, io};

use buttress_core::{Both, Class, Elapsed, Limit, Reason, Rejected};

use crate::chain::{chain, is_pointer, peel};

const TRANSIENT: Class = Class::Transient { after: None };

/// What one link of the chain says.
enum Link {
    /// It decides.
    Says(Said),
    /// Nothing; but it speaks of the call that it failed and of no other, and so does what lies beneath.
    Transports,
    /// Nothing, and what lies beneath may be of another call. If that does not decide either, it is this.
    Foreign(Option<Class>),
}

/// What decided.
struct Said {
    class: Class,
    /// No connection was made.
    unconnected: bool,
}

/// Whether it failed as a time limit passed: one of ours, or one of the client's.
///
/// A time limit hides behind whatever it cut short: reqwest's own lies in an error of kind "body", that of
/// HTTP/2's pings in an error of the connection. So the whole chain of sources is walked, boxes and pointers
/// and what an [`io::Error`] carries too. It knows our [`Elapsed`] and a [`Rejected`] for want of time,
/// [`io::ErrorKind::TimedOut`] and tokio's `Elapsed`; with the features `hyper`, `reqwest` and `tonic` those
/// of these clients.
///
/// It may be the limit of another call, which a service made in the course of this one.
///
/// # Examples
///
/// ```
/// use buttress_http::is_timeout;
/// use std::io;
///
/// let silent = io::Error::from(io::ErrorKind::TimedOut);
/// assert!(is_timeout(&io::Error::other(silent)));
/// assert!(!is_timeout(&io::Error::from(io::ErrorKind::ConnectionReset)));
/// ```
pub fn is_timeout(error: &(dyn Error + 'static)) -> bool {
    chain(error).any(|link| match peel::<Both>(link) {
        Some(both) => is_timeout(both.error()) || is_timeout(both.cause()),
        None => timed_out(link),
    })
}

/// Whether it failed as no connection could be made, so that **nothing was sent**.
///
/// The whole chain of sources is walked, as [`is_timeout`] does; but only as long as each error in it is a
/// transport's, which speaks of its own call. In an error of yours it may be of another call.
///
/// A name that cannot be resolved, a connection that is refused, a TLS handshake that fails and a time limit on
/// connecting ([`Limit::Connect`](buttress_core::Limit), a client's own) are all of that kind. A client that says
/// which of its errors come of connecting is believed: hyper's, reqwest's, tonic's, each with its feature.
///
/// # Examples
///
/// ```
/// use buttress_http::is_connect;
/// use std::io;
///
/// assert!(is_connect(&io::Error::from(io::ErrorKind::ConnectionRefused)));
/// assert!(!is_connect(&io::Error::from(io::ErrorKind::ConnectionReset)));
/// ```
pub fn is_connect(error: &(dyn Error + 'static)) -> bool {
    walk(error, None).unconnected
}

/// What an error says that came instead of a response.
pub(crate) fn class_of(error: &(dyn Error + 'static)) -> Class {
    if error.is::<Rejected>() {
        return Class::Refused;
    }
    walk(error, None).class
}

/// Whether this very link tells of a time limit.
pub(crate) fn timed_out(link: &(dyn Error + 'static)) -> bool {
    #[cfg(feature = "hyper")]
    if hyper::timed_out(link) {
        return true;
    }
    #[cfg(feature = "reqwest")]
    if reqwest::timed_out(link) {
        return true;
    }
    #[cfg(feature = "tonic")]
    if peel::<::tonic::TimeoutExpired>(link).is_some() {
        return true;
    }
    peel::<Elapsed>(link).is_some()
        || peel::<Rejected>(link).is_some_and(|error| error.reason() == Reason::DeadlineExceeded)
        || peel::<io::Error>(link).is_some_and(|error| error.kind() == io::ErrorKind::TimedOut)
        || peel::<tokio::time::error::Elapsed>(link).is_some()
}

/// What the outermost link says that decides, else `otherwise`.
fn walk(error: &(dyn Error + 'static), mut otherwise: Option<Class>) -> Said {
    let mut of_this_call = true;
    for link in chain(error) {
        match look(link) {
            Link::Says(said) if of_this_call => return said,
            Link::Says(said) => return said.of_another_call(),
            Link::Transports => {}
            Link::Foreign(class) => {
                of_this_call = false;
                otherwise = otherwise.or(class);
            }
        }
    }
    Said::sent(otherwise.unwrap_or(TRANSIENT))
}

fn look(link: &(dyn Error + 'static)) -> Link {
    #[cfg(feature = "hyper")]
    if let Some(link) = hyper::look(link) {
        return link;
    }
    #[cfg(feature = "reqwest")]
    if let Some(link) = reqwest::look(link) {
        return link;
    }
    #[cfg(feature = "tonic")]
    if let Some(link) = tonic::look(link) {
        return link;
    }
    if let Some(both) = peel::<Both>(link) {
        Link::Says(of_both(both))
    } else if let Some(elapsed) = peel::<Elapsed>(link) {
        let unconnected = elapsed.which() == Limit::Connect;
        Link::Says(if unconnected { Said::unconnected(link) } else { Said::sent(TRANSIENT) })
    } else if peel::<Rejected>(link).is_some() {
        // A refusal that somebody's error brought along is that somebody's failure.
        Link::Says(Said::sent(TRANSIENT))
    } else if let Some(error) = peel::<io::Error>(link) {
        let unconnected = only_connecting_fails_so(error.kind());
        if unconnected { Link::Says(Said::unconnected(link)) } else { Link::Transports }
    } else if is_pointer(link) {
        Link::Transports
    } else {
        Link::Foreign(None)
    }
}

/// Either of them may have been sent.
fn of_both(both: &Both) -> Said {
    let class = match class_of(both.error()) {
        Class::Unreachable => class_of(both.cause()),
        class => class,
    };
    let class = if class == Class::Refused { TRANSIENT } else { class };
    Said { class, unconnected: is_connect(both.error()) && is_connect(both.cause()) }
}

/// Whether a connection that was made cannot fail in this way.
///
/// It can with `HostUnreachable` and `NetworkUnreachable`, once the route is lost: those are unsent only
/// where the client says that it was connecting.
const fn only_connecting_fails_so(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::ConnectionRefused | io::ErrorKind::AddrNotAvailable)
}

// === impl Said ===

impl Said {
    /// It was sent, or else the class says that it was not.
    const fn sent(class: Class) -> Self {
        Self { class, unconnected: false }
    }

    /// No connection could be made, so nothing was sent. Will the next try be any better?
    fn unconnected(error: &(dyn Error + 'static)) -> Self {
        let invalid = |link| {
            peel::<io::Error>(link).is_some_and(|error| error.kind() == io::ErrorKind::InvalidData)
        };
        // So TLS libraries report a certificate that does not verify, and a peer that does not speak TLS.
        let fatal = chain(error).any(invalid);
        Self { class: if fatal { Class::Fatal } else { Class::Unreachable }, unconnected: true }
    }

    const fn of_another_call(self) -> Self {
        Self::sent(match self.class {
            Class::Unreachable => TRANSIENT,
            class => class,
        })
    }
}
