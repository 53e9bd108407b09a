use buttress_core::{BoxError, Class, Classify, Mark, Substitute};
use http::{HeaderMap, HeaderName, Response, StatusCode};

use crate::{errors::class_of, retry_after};

/// The header that says: this server itself refused, for it has too much to do.
///
/// A 503 says only that something is amiss. With this header on it [`HttpClass`] knows that the server is
/// well and merely full: the refusal is not held against its health, and is not repeated unless the
/// server says when to come again. Our own [refusals](crate::Refusal) carry it.
pub const OVERLOADED: HeaderName = HeaderName::from_static("x-buttress-overloaded");

/// What HTTP says, by its status codes, and what the errors of its clients say.
///
/// | status | class |
/// |---|---|
/// | 1xx, 2xx, 3xx | `Success` |
/// | 408, 425 | `Transient` |
/// | 429 | `Throttled` |
/// | other 4xx | `CallerError` |
/// | 501, 505 | `CallerError` |
/// | 503 with [`OVERLOADED`] on it | with `Retry-After` `Throttled`, without it `Refused` |
/// | other 5xx | `Transient` |
/// | 600 to 999 | `Transient`: [RFC 9110, 15] has them taken for 5xx |
///
/// [`Retry-After`](retry_after) is read wherever the status asks for a repeat, not on 429 and 503 alone:
/// a gateway that answers 502 and says when to come again means it.
///
/// | error | class | why |
/// |---|---|---|
/// | no connection was made | `Unreachable` | nothing was sent |
/// | ... as the peer's certificate does not verify | `Fatal` | it will not verify next time |
/// | canceled before a connection took it up | `Unreachable` | nothing was sent |
/// | REFUSED_STREAM, or a GOAWAY of which this stream is beyond the last that was looked at | `Unreachable` | HTTP/2's word for: nothing was done |
/// | ENHANCE_YOUR_CALM | `Throttled` | |
/// | HTTP_1_1_REQUIRED | `CallerError` | as 505 is |
/// | INADEQUATE_SECURITY | `Fatal` | it will not be adequate next time |
/// | closed before the response was complete, any other reset, timed out, malformed | `Transient` | it may have been carried out |
/// | the request's own body failed, or the client does not take such requests | `CallerError` | |
/// | reqwest's: a request that cannot be built, redirects that do not end | `CallerError` | |
/// | reqwest's: a status that was made an error | as the status | |
/// | tonic's `Status` | what it came of; else as [`GrpcClass`](crate::GrpcClass) has its code | |
/// | [`Elapsed`](buttress_core::Elapsed) of a limit on connecting | `Unreachable` | nothing was sent |
/// | any other `Elapsed`, and a client's own limits | `Transient` | |
/// | anything else | `Transient` | |
///
/// An error is looked for in the whole chain of sources, in boxes, and in what an
/// [`io::Error`](std::io::Error) carries; the outermost that is known decides. But that nothing was sent is
/// believed only where no error of somebody else's lies around it: a service that has paid, and then could
/// not reach the auditor, fails with an error in which a connection was refused. And a
/// [`Rejected`](buttress_core::Rejected) deep in the chain is the callee's failure. The errors of hyper, of
/// HTTP/2 beneath it and of hyper-util's client are known with the feature `hyper`, those of reqwest and tonic with
/// theirs. [`is_timeout`](crate::is_timeout) and [`is_connect`](crate::is_connect) ask the same errors.
///
/// [RFC 9110, 15]: https://www.rfc-editor.org/rfc/rfc9110#section-15
///
/// # Examples
///
/// ```
/// use buttress_core::{Class, Classify};
/// use buttress_http::HttpClass;
///
/// let response = http::Response::builder().status(404).body(()).unwrap();
/// assert_eq!(HttpClass.classify(Ok(&response)), Class::CallerError);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HttpClass;

/// [`HttpClass`] with a table of one's own beside it.
///
/// # Examples
///
/// ```
/// use buttress_core::{Class, Classify};
/// use buttress_http::HttpClass;
/// use http::{HeaderName, StatusCode};
///
/// let class = HttpClass
///     .overload_header(HeaderName::from_static("x-envoy-overloaded"))
///     .statuses(|status| (status == StatusCode::LOCKED).then_some(Class::Transient { after: None }));
///
/// let shed = http::Response::builder().status(503).header("x-envoy-overloaded", "true");
/// assert_eq!(class.classify(Ok(&shed.body(()).unwrap())), Class::Refused);
/// let locked = http::Response::builder().status(423).body(()).unwrap();
/// assert_eq!(class.classify(Ok(&locked)), Class::Transient { after: None });
/// ```
#[derive(Clone, Debug)]
pub struct CustomHttpClass {
    overload: Option<HeaderName>,
    statuses: fn(StatusCode) -> Option<Class>,
}

// === impl HttpClass ===

impl HttpClass {
    /// The same, and a failure that bears the header `name` is `Refused`: neither repeated nor held
    /// against the callee's health.
    #[must_use]
    pub fn overload_header(self, name: HeaderName) -> CustomHttpClass {
        CustomHttpClass::default().overload_header(name)
    }

    /// The same, but asks `statuses` first, and its own table where that answers `None`.
    #[must_use]
    pub fn statuses(self, statuses: fn(StatusCode) -> Option<Class>) -> CustomHttpClass {
        CustomHttpClass::default().statuses(statuses)
    }

    pub(crate) fn class_of_head(status: StatusCode, headers: &HeaderMap) -> Class {
        let class = hinted(class_of_status(status), headers);
        if status == StatusCode::SERVICE_UNAVAILABLE && headers.contains_key(OVERLOADED) {
            return match class.after() {
                None => Class::Refused,
                after => Class::Throttled { after },
            };
        }
        class
    }
}

impl<B> Classify<Response<B>> for HttpClass {
    fn classify(&self, result: Result<&Response<B>, &BoxError>) -> Class {
        match result {
            Ok(response) => Self::class_of_head(response.status(), response.headers()),
            Err(error) => class_of(&**error),
        }
    }
}

/// Puts the [`Substitute`] into the extensions of the response.
impl<B> Mark<Response<B>> for HttpClass {
    fn mark(&self, response: &mut Response<B>, why: Substitute) {
        response.extensions_mut().insert(why);
    }
}

pub(crate) fn class_of_status(status: StatusCode) -> Class {
    match status.as_u16() {
        100..=399 => Class::Success,
        408 | 425 => Class::Transient { after: None },
        429 => Class::Throttled { after: None },
        400..=499 | 501 | 505 => Class::CallerError,
        _ => Class::Transient { after: None },
    }
}

/// `class`, with the time after which to come again, if the response names it.
fn hinted(class: Class, headers: &HeaderMap) -> Class {
    match class {
        Class::Throttled { after: None } => Class::Throttled { after: retry_after(headers) },
        Class::Transient { after: None } => Class::Transient { after: retry_after(headers) },
        class => class,
    }
}

// === impl CustomHttpClass ===

impl CustomHttpClass {
    /// A failure that bears the header `name` is `Refused`: neither repeated nor held against the
    /// callee's health. The last such call counts.
    #[must_use]
    pub fn overload_header(mut self, name: HeaderName) -> Self {
        self.overload = Some(name);
        self
    }

    /// Asks `statuses` first, and the table of [`HttpClass`] where that answers `None`. Where a class
    /// has a place for the time to wait, and it is empty, `Retry-After` fills it. The last such call
    /// counts.
    #[must_use]
    pub fn statuses(mut self, statuses: fn(StatusCode) -> Option<Class>) -> Self {
        self.statuses = statuses;
        self
    }

    pub(crate) fn class_of_head(&self, status: StatusCode, headers: &HeaderMap) -> Class {
        let class = match (self.statuses)(status) {
            Some(class) => hinted(class, headers),
            None => HttpClass::class_of_head(status, headers),
        };
        let failed = !matches!(class, Class::Success | Class::CallerError);
        let overloaded = self.overload.as_ref().is_some_and(|name| headers.contains_key(name));
        if failed && overloaded { Class::Refused } else { class }
    }
}

/// The table of [`HttpClass`].
impl Default for CustomHttpClass {
    fn default() -> Self {
        Self { overload: None, statuses: |_| None }
    }
}

impl<B> Classify<Response<B>> for CustomHttpClass {
    fn classify(&self, result: Result<&Response<B>, &BoxError>) -> Class {
        match result {
            Ok(response) => self.class_of_head(response.status(), response.headers()),
            Err(error) => class_of(&**error),
        }
    }
}

/// As [`HttpClass`] does.
impl<B> Mark<Response<B>> for CustomHttpClass {
    fn mark(&self, response: &mut Response<B>, why: Substitute) {
        HttpClass.mark(response, why);
    }
}

#[cfg(test)]
mod tests {
    use std::{error::Error, io, sync::Arc, time::Duration};

    use buttress_core::{Both, Elapsed, Limit, Reason, Rejected, Verdict, judge};
    use http::header::RETRY_AFTER;

    use super::*;
    use crate::testing::Wrapped;

    const TRANSIENT: Class = Class::Transient { after: None };

    fn answered(status: u16, headers: &[(HeaderName, &str)]) -> Response<()> {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        for (name, value) in headers {
            response.headers_mut().append(name, value.parse().unwrap());
        }
        response
    }

    fn class(status: u16, headers: &[(HeaderName, &str)]) -> Class {
        HttpClass.classify(Ok(&answered(status, headers)))
    }

    fn judged(error: impl Into<BoxError>) -> Class {
        judge::<Response<()>, _>(&HttpClass, Err(&error.into()))
    }

    // CBK-06
    #[test]
    fn every_status_has_its_class() {
        for status in 100..=999 {
            let expected = match status {
                429 => Class::Throttled { after: None },
                408 | 425 => TRANSIENT,
                501 | 505 => Class::CallerError,
                100..=399 => Class::Success,
                400..=499 => Class::CallerError,
                500..=999 => TRANSIENT,
                _ => unreachable!(),
            };
            assert_eq!(class(status, &[]), expected, "{status}");
        }
    }

    // CBK-06
    #[test]
    fn what_the_caller_did_wrong_says_nothing_of_the_callees_health() {
        for status in (400..=499).filter(|status| ![408, 425].contains(status)) {
            assert_eq!(class(status, &[]).health(), Verdict::Neutral, "{status}");
        }
    }

    // BKO-07
    #[test]
    fn the_wait_that_is_asked_for_comes_with_every_class_that_has_a_place_for_it() {
        let after = Some(Duration::from_secs(7));
        for status in 100..=999 {
            let expected = match class(status, &[]) {
                Class::Throttled { .. } => Class::Throttled { after },
                Class::Transient { .. } => Class::Transient { after },
                class => class,
            };
            assert_eq!(class(status, &[(RETRY_AFTER, "7")]), expected, "{status}");
        }
        assert_eq!(class(503, &[(RETRY_AFTER, "7"), (RETRY_AFTER, "8")]), TRANSIENT);
    }

    // BUD-06
    #[test]
    fn a_server_that_is_full_is_not_ill() {
        let mark = (OVERLOADED, "true");
        assert_eq!(class(503, std::slice::from_ref(&mark)), Class::Refused);
        assert_eq!(
            class(503, &[mark.clone(), (RETRY_AFTER, "2")]),
            Class::Throttled { after: Some(Duration::from_secs(2)) }
        );
        assert_eq!(class(503, &[mark.clone(), (RETRY_AFTER, "soon")]), Class::Refused);
        for status in (100..=999).filter(|status| *status != 503) {
            assert_eq!(class(status, std::slice::from_ref(&mark)), class(status, &[]), "{status}");
        }
        assert_eq!(class(503, &[(RETRY_AFTER, "2")]).health(), Verdict::Bad, "no mark, no mercy");
    }

    // BUD-06
    #[test]
    fn a_foreign_mark_of_overload_is_neither_repeated_nor_held_against_the_callee() {
        let name = HeaderName::from_static("x-envoy-overloaded");
        let envoy = HttpClass.overload_header(name.clone());
        let class = |status, headers: &[_]| envoy.classify(Ok(&answered(status, headers)));
        let mark = (name, "true");
        assert_eq!(class(503, std::slice::from_ref(&mark)), Class::Refused);
        assert_eq!(class(429, &[mark.clone(), (RETRY_AFTER, "2")]), Class::Refused);
        assert_eq!(class(200, std::slice::from_ref(&mark)), Class::Success);
        assert_eq!(class(404, &[mark]), Class::CallerError);
        assert_eq!(class(503, &[]), TRANSIENT);
        assert_eq!(class(503, &[(OVERLOADED, "true")]), Class::Refused, "ours is still known");
    }

    #[test]
    fn a_table_of_ones_own_is_asked_first() {
        let class = HttpClass.statuses(|status| match status.as_u16() {
            404 => Some(Class::Success),
            429 => Some(Class::Transient { after: None }),
            500 => Some(Class::Transient { after: Some(Duration::from_secs(1)) }),
            _ => None,
        });
        let class = |status, headers: &[_]| class.classify(Ok(&answered(status, headers)));
        let after = |secs| Class::Transient { after: Some(Duration::from_secs(secs)) };
        assert_eq!(class(404, &[]), Class::Success);
        assert_eq!(class(429, &[(RETRY_AFTER, "7")]), after(7));
        assert_eq!(class(500, &[(RETRY_AFTER, "7")]), after(1), "its own wait stands");
        assert_eq!(class(403, &[]), Class::CallerError);
    }

    // FBK-01
    #[test]
    fn a_substitute_is_marked_as_one() {
        let why = Substitute::new(Class::Refused, Some(Reason::CircuitOpen));
        for mark in [&HttpClass as &dyn Mark<_>, &CustomHttpClass::default()] {
            let mut response = answered(200, &[]);
            mark.mark(&mut response, why);
            assert_eq!(response.extensions().get(), Some(&why));
        }
    }

    fn wrapped(error: impl Into<BoxError>) -> Wrapped {
        Wrapped(error.into())
    }

    #[test]
    fn only_the_error_that_is_a_refusal_is_a_refusal() {
        let rejected = Rejected::new(Reason::CircuitOpen, "breaker");
        assert_eq!(judged(rejected), Class::Refused);
        for deeper in [
            BoxError::from(wrapped(rejected)),
            io::Error::other(rejected).into(),
            Both::new(rejected, rejected).into(),
            Both::new(io::Error::from(io::ErrorKind::ConnectionRefused), rejected).into(),
        ] {
            assert_eq!(judged(deeper), TRANSIENT, "it may have been sent");
        }
    }

    #[test]
    fn a_limit_of_somebody_beneath_does_not_prove_that_nothing_was_sent() {
        let elapsed = Elapsed::new(Limit::Attempt, Duration::from_secs(1));
        assert_eq!(judged(elapsed), TRANSIENT);
        assert_eq!(judged(elapsed.unsent()), TRANSIENT, "a call of the callee's own, perhaps");
        assert_eq!(judged(wrapped(elapsed.unsent())), TRANSIENT);
        assert_eq!(judged(io::Error::other(elapsed.unsent())), TRANSIENT);
    }

    // HTP-02
    #[test]
    fn what_was_refused_at_the_door_is_found_however_it_is_wrapped() {
        use io::ErrorKind::{AddrNotAvailable, ConnectionRefused};

        for kind in [ConnectionRefused, AddrNotAvailable] {
            let refused = || io::Error::from(kind);
            let shared: Arc<dyn Error + Send + Sync> = Arc::new(refused());
            let wraps: [BoxError; 7] = [
                refused().into(),
                Box::new(Box::new(refused())),
                Box::new(Arc::new(refused())),
                Box::new(shared),
                io::Error::other(refused()).into(),
                io::Error::other(Box::new(io::Error::other(Arc::new(refused())))).into(),
                Both::new(refused(), refused()).into(),
            ];
            for error in wraps {
                assert_eq!(class_of(&*error), Class::Unreachable, "{error:?}");
            }
            // In an error that is not a transport's it may be of another call.
            for error in [
                BoxError::from(wrapped(refused())),
                wrapped(wrapped(io::Error::other(Box::new(refused())))).into(),
                io::Error::other(wrapped(refused())).into(),
                Both::new(wrapped(refused()), refused()).into(),
            ] {
                assert_eq!(class_of(&*error), TRANSIENT, "{error:?}");
            }
        }
    }

    // HTP-01
    #[test]
    fn what_a_connection_in_use_can_fail_with_may_have_been_sent() {
        use io::ErrorKind::{
            BrokenPipe, ConnectionAborted, ConnectionReset, HostUnreachable, NetworkUnreachable,
            NotConnected, TimedOut, UnexpectedEof,
        };

        for kind in [
            BrokenPipe,
            ConnectionAborted,
            ConnectionReset,
            HostUnreachable,
            NetworkUnreachable,
            NotConnected,
            TimedOut,
            UnexpectedEof,
        ] {
            assert_eq!(judged(io::Error::from(kind)), TRANSIENT, "{kind}");
        }
        assert_eq!(judged("never heard of"), TRANSIENT);
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        assert_eq!(judged(Both::new("reset", refused())), TRANSIENT);
        assert_eq!(judged(Both::new(refused(), "reset")), TRANSIENT, "either may have been sent");
    }
}
