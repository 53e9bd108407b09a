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

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use buttress_core::BoxError;
    use proptest::{collection::vec, prelude::*, sample::select};

    use super::*;
    use crate::testing::Wrapped;

    const CONNECT: Elapsed = Elapsed::new(Limit::Connect, Duration::from_secs(1));

    fn io(kind: io::ErrorKind) -> BoxError {
        io::Error::from(kind).into()
    }

    /// What is put around an error.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Wrap {
        Io,
        Arc,
        BoxedIo,
        SharedIo,
        Foreign,
        #[cfg(feature = "tonic")]
        Status,
    }

    const WRAPS: &[Wrap] = &[
        Wrap::Io,
        Wrap::Arc,
        Wrap::BoxedIo,
        Wrap::SharedIo,
        Wrap::Foreign,
        #[cfg(feature = "tonic")]
        Wrap::Status,
    ];

    impl Wrap {
        fn around(self, error: BoxError) -> BoxError {
            match self {
                Self::Io => io::Error::other(error).into(),
                Self::Arc => Box::new(Arc::<dyn Error + Send + Sync>::from(error)),
                Self::BoxedIo => Box::new(Box::new(io::Error::other(error))),
                Self::SharedIo => Box::new(Arc::new(Box::new(io::Error::other(error)))),
                Self::Foreign => Wrapped(error).into(),
                #[cfg(feature = "tonic")]
                Self::Status => {
                    let mut status = ::tonic::Status::cancelled("somebody's");
                    status.set_source(error.into());
                    status.into()
                }
            }
        }

        const fn is_transports(self) -> bool {
            matches!(self, Self::Io | Self::Arc | Self::BoxedIo | Self::SharedIo)
        }
    }

    /// Errors of which nothing was sent.
    fn unsent() -> Vec<BoxError> {
        vec![
            io(io::ErrorKind::ConnectionRefused),
            io(io::ErrorKind::AddrNotAvailable),
            CONNECT.into(),
            #[cfg(feature = "tonic")]
            ::tonic::ConnectError(io(io::ErrorKind::TimedOut)).into(),
        ]
    }

    proptest! {
        // HTP-02
        #[test]
        fn nothing_beneath_an_error_of_somebodys_proves_that_nothing_was_sent(
            wraps in vec(select(WRAPS), 0..6),
        ) {
            let of_this_call = wraps.iter().all(|wrap| wrap.is_transports());
            let expected = if of_this_call { Class::Unreachable } else { TRANSIENT };
            for error in unsent() {
                let error = wraps.iter().rev().fold(error, |error, wrap| wrap.around(error));
                prop_assert_eq!(class_of(&*error), expected, "{:?}", error);
                prop_assert_eq!(is_connect(&*error), of_this_call, "{:?}", error);
            }
        }

        #[test]
        fn what_was_sent_is_never_unsent_however_it_is_wrapped(wraps in vec(select(WRAPS), 0..6)) {
            let perhaps: [BoxError; 5] = [
                io(io::ErrorKind::ConnectionReset),
                io(io::ErrorKind::TimedOut),
                Elapsed::new(Limit::Attempt, Duration::ZERO).unsent().into(),
                Both::new("reset", CONNECT).into(),
                Both::new(CONNECT, "reset").into(),
            ];
            for error in perhaps {
                let error = wraps.iter().rev().fold(error, |error, wrap| wrap.around(error));
                prop_assert!(class_of(&*error) != Class::Unreachable, "{:?}", error);
                prop_assert!(!is_connect(&*error), "{:?}", error);
            }
        }

        // HTP-05
        #[test]
        fn a_time_limit_is_found_however_deep(wraps in vec(select(WRAPS), 0..6)) {
            let late: [BoxError; 5] = [
                io(io::ErrorKind::TimedOut),
                CONNECT.into(),
                Elapsed::new(Limit::Idle, Duration::ZERO).into(),
                Rejected::new(Reason::DeadlineExceeded, "bulkhead").into(),
                Both::new("busy", Both::new(CONNECT, "x")).into(),
            ];
            for error in late {
                let error = wraps.iter().rev().fold(error, |error, wrap| wrap.around(error));
                prop_assert!(is_timeout(&*error), "{:?}", error);
            }
            let other = [io(io::ErrorKind::ConnectionReset), "timed out, it says".into()];
            for error in other {
                let error = wraps.iter().rev().fold(error, |error, wrap| wrap.around(error));
                prop_assert!(!is_timeout(&*error), "{:?}", error);
            }
        }
    }

    #[test]
    fn a_connection_that_two_calls_did_not_get_is_one_that_neither_got() {
        let both = Both::new(CONNECT, io(io::ErrorKind::ConnectionRefused));
        assert_eq!((class_of(&both), is_connect(&both)), (Class::Unreachable, true));
        let both = Both::new(CONNECT, Rejected::new(Reason::CircuitOpen, "breaker"));
        assert_eq!((class_of(&both), is_connect(&both)), (TRANSIENT, false));
    }

    // HTP-05
    #[tokio::test(start_paused = true)]
    async fn the_limits_of_clients_are_answered_as_ours_are() {
        let tokios = tokio::time::timeout(Duration::ZERO, std::future::pending::<()>());
        let tokios = tokios.await.unwrap_err();
        for error in [io(io::ErrorKind::TimedOut), tokios.into(), CONNECT.into()] {
            let error = Wrapped(error);
            assert!(is_timeout(&error));
            assert_eq!(crate::refusal(&error).unwrap().status(), 504);
            let code = crate::grpc_refusal(&error).unwrap().code();
            assert_eq!(code, Some(crate::Code::DeadlineExceeded));
        }
        let full = Rejected::new(Reason::BulkheadFull, "bulkhead");
        let refusal = |error: Both| crate::refusal(&error).unwrap().status();
        assert_eq!(refusal(Both::new(full, io(io::ErrorKind::TimedOut))), 503, "the outermost");
        assert_eq!(refusal(Both::new(io(io::ErrorKind::TimedOut), full)), 504);
    }

    // GRP-09
    #[cfg(feature = "tonic")]
    #[test]
    fn a_status_is_what_it_came_of_and_else_what_its_code_says() {
        use ::tonic::{Code, ConnectError, Status, TimeoutExpired};

        let class = |status: Status| class_of(&status);
        for (code, expected) in [
            (Code::Cancelled, Class::CallerError),
            (Code::NotFound, Class::CallerError),
            (Code::ResourceExhausted, Class::Throttled { after: None }),
            (Code::Unavailable, TRANSIENT),
            (Code::Internal, Class::Fatal),
            (Code::Ok, TRANSIENT),
        ] {
            assert_eq!(class(Status::new(code, "x")), expected, "{code}");
            assert_eq!(class_of(&Wrapped(Status::new(code, "x").into())), expected, "{code}");
        }
        let mut pushed = Status::unavailable("x");
        pushed.metadata_mut().insert("grpc-retry-pushback-ms", "250".parse().unwrap());
        assert_eq!(class(pushed), Class::Transient { after: Some(Duration::from_millis(250)) });

        let refused = || ConnectError(io(io::ErrorKind::ConnectionRefused));
        let invalid = ConnectError(io(io::ErrorKind::InvalidData));
        assert_eq!(class_of(&refused()), Class::Unreachable);
        assert_eq!(class_of(&invalid), Class::Fatal);
        // As tonic makes them of what a client failed of: perhaps of another call's.
        assert_eq!(class(Status::from_error(refused().into())), TRANSIENT);
        assert_eq!(class(Status::from_error(invalid.into())), Class::Fatal);
        let late = Status::from_error(TimeoutExpired(()).into());
        assert_eq!(late.code(), Code::Cancelled, "so tonic says");
        assert!(is_timeout(&late));
        assert_eq!(class(late), TRANSIENT);
    }
}
