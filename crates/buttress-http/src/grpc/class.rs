use buttress_core::{BoxError, Class, Classify, Mark, Substitute};
use http::{HeaderMap, Response, StatusCode};

use super::code::{Code, Pushback, Status};
use crate::{ClassifyEnd, HttpClass, errors::class_of, retry_after};

/// What gRPC says, by its status codes, and what the errors of its clients say.
///
/// | code | class |
/// |---|---|
/// | OK | `Success` |
/// | CANCELLED, INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, PERMISSION_DENIED, FAILED_PRECONDITION, OUT_OF_RANGE, UNIMPLEMENTED, UNAUTHENTICATED | `CallerError` |
/// | RESOURCE_EXHAUSTED | `Throttled` |
/// | UNAVAILABLE, DEADLINE_EXCEEDED, ABORTED, UNKNOWN | `Transient` |
/// | INTERNAL, DATA_LOSS | `Fatal` |
///
/// The status is looked for in this order:
///
/// 1. `grpc-status` in the head, whatever the HTTP status: an answer of no messages;
/// 2. an HTTP status other than 200, by [gRPC's table](Code::from_http);
/// 3. `grpc-status` in the trailers;
/// 4. without any, after an end that looked well: UNKNOWN. HTTP's 200 says nothing.
///
/// # Pushback
///
/// `grpc-retry-pushback-ms` beside the status ([gRFC A6]) is how long to wait, for the classes that are
/// repeated. A negative number asks not to come again, and so do two of them and what cannot be read. Then
/// RESOURCE_EXHAUSTED is `Refused`: the callee is full, which is not held against it. What would be `Transient`
/// is `Fatal`: as ill as without, but not repeated. Where a proxy has answered by an HTTP status alone, its
/// [`Retry-After`](retry_after) counts in place of it.
///
/// # At the head, and at the end
///
/// For a retry it is a [`Classify`], and speaks when the head is there: the status in it, else what
/// [`GrpcHead`](super::GrpcHead) found right after it. A head that says nothing is a success so far. For a
/// breaker it is [`AtEnd(GrpcClass)`](crate::AtEnd), which waits for the trailers.
///
/// Errors are classified as [`HttpClass`] does.
///
/// [gRFC A6]: https://github.com/grpc/proposal/blob/master/A6-client-retries.md#pushback
///
/// # Examples
///
/// ```
/// use buttress_core::{Class, Classify};
/// use buttress_http::GrpcClass;
///
/// let response = http::Response::builder().header("grpc-status", "5").body(()).unwrap();
/// assert_eq!(GrpcClass.classify(Ok(&response)), Class::CallerError);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrpcClass;

/// [`GrpcClass`] with a table of one's own beside it.
///
/// # Examples
///
/// ```
/// use buttress_core::{Class, Classify};
/// use buttress_http::{Code, GrpcClass};
///
/// // A service that says UNKNOWN for what its callers did wrong.
/// let class = GrpcClass.codes(|code| (code == Code::Unknown).then_some(Class::CallerError));
///
/// let wrong = http::Response::builder().header("grpc-status", "2").body(()).unwrap();
/// assert_eq!(class.classify(Ok(&wrong)), Class::CallerError);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct CustomGrpcClass {
    codes: fn(Code) -> Option<Class>,
}

/// The status that came right after the head, in the extensions of the response.
///
/// Not among its headers: there a client would meet the trailers twice, and a proxy would send them so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AfterHead(pub(super) Status);

/// The status that is known at the head.
fn at_head<B>(response: &Response<B>) -> Option<Status> {
    let after_head = || response.extensions().get().map(|AfterHead(status)| *status);
    of_head(response.status(), response.headers()).or_else(after_head)
}

/// What the head says, if it decides.
pub(super) fn of_head(status: StatusCode, headers: &HeaderMap) -> Option<Status> {
    let said = Status::from_headers(headers);
    said.or_else(|| (status != StatusCode::OK).then(|| of_http(status, headers)))
}

/// What the end of a body says.
pub(super) fn of_end(trailers: Option<&HeaderMap>) -> Status {
    trailers.and_then(Status::from_headers).unwrap_or(Status::MISSING)
}

fn of_http(status: StatusCode, headers: &HeaderMap) -> Status {
    let pushback = match (Pushback::from_headers(headers), retry_after(headers)) {
        (Pushback::Unsaid, Some(after)) => Pushback::After(after),
        (pushback, _) => pushback,
    };
    Status { code: Code::from_http(status), pushback }
}

// === impl GrpcClass ===

impl GrpcClass {
    /// The same, but asks `codes` first, and its own table where that answers `None`. Where a class has a
    /// place for the time to wait, and it is empty, the pushback fills it, as it does in the table; a pushback
    /// that asks not to come again counts too. OK is a success whatever `codes` says.
    #[must_use]
    pub fn codes(self, codes: fn(Code) -> Option<Class>) -> CustomGrpcClass {
        CustomGrpcClass { codes }
    }
}

impl<B> Classify<Response<B>> for GrpcClass {
    fn classify(&self, result: Result<&Response<B>, &BoxError>) -> Class {
        match result {
            Ok(response) => at_head(response).map_or(Class::Success, Status::class),
            Err(error) => class_of(&**error),
        }
    }
}

impl ClassifyEnd for GrpcClass {
    fn head(&self, status: StatusCode, headers: &HeaderMap) -> Option<Class> {
        of_head(status, headers).map(Status::class)
    }

    fn known<B>(&self, response: &Response<B>) -> Option<Class> {
        at_head(response).map(Status::class)
    }

    fn end(&self, trailers: Option<&HeaderMap>) -> Class {
        of_end(trailers).class()
    }

    fn error(&self, error: &BoxError) -> Class {
        class_of(&**error)
    }
}

/// As [`HttpClass`] does.
impl<B> Mark<Response<B>> for GrpcClass {
    fn mark(&self, response: &mut Response<B>, why: Substitute) {
        HttpClass.mark(response, why);
    }
}

// === impl CustomGrpcClass ===

impl CustomGrpcClass {
    fn class(&self, status: Status) -> Class {
        match (self.codes)(status.code) {
            Some(class) if status.code != Code::Ok => status.pushback.on(class),
            _ => status.class(),
        }
    }
}

impl<B> Classify<Response<B>> for CustomGrpcClass {
    fn classify(&self, result: Result<&Response<B>, &BoxError>) -> Class {
        match result {
            Ok(response) => at_head(response).map_or(Class::Success, |status| self.class(status)),
            Err(error) => class_of(&**error),
        }
    }
}

/// As [`GrpcClass`] does, with its own table.
impl ClassifyEnd for CustomGrpcClass {
    fn head(&self, status: StatusCode, headers: &HeaderMap) -> Option<Class> {
        of_head(status, headers).map(|status| self.class(status))
    }

    fn known<B>(&self, response: &Response<B>) -> Option<Class> {
        at_head(response).map(|status| self.class(status))
    }

    fn end(&self, trailers: Option<&HeaderMap>) -> Class {
        self.class(of_end(trailers))
    }

    fn error(&self, error: &BoxError) -> Class {
        GrpcClass.error(error)
    }
}

/// As [`HttpClass`] does.
impl<B> Mark<Response<B>> for CustomGrpcClass {
    fn mark(&self, response: &mut Response<B>, why: Substitute) {
        HttpClass.mark(response, why);
    }
}

#[cfg(test)]
mod tests {
    use std::{io, time::Duration};

    use buttress_core::{Elapsed, Limit, Reason, Rejected, Verdict, judge};
    use http::{HeaderName, header::RETRY_AFTER};

    use super::*;
    use crate::grpc::{GRPC_STATUS, PUSHBACK};

    const TRANSIENT: Class = Class::Transient { after: None };

    fn headers(fields: &[(HeaderName, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(name, value.parse().unwrap());
        }
        headers
    }

    fn answered(status: u16, fields: &[(HeaderName, &str)]) -> Response<()> {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        *response.headers_mut() = headers(fields);
        response
    }

    fn class(status: u16, fields: &[(HeaderName, &str)]) -> Class {
        let response = answered(status, fields);
        let class = GrpcClass.classify(Ok(&response));
        let at_end = GrpcClass.head(response.status(), response.headers());
        assert_eq!(at_end.unwrap_or(Class::Success), class, "retry and breaker see the same");
        class
    }

    fn of_code(code: &str) -> Class {
        class(200, &[(GRPC_STATUS, code)])
    }

    // CBK-06
    #[test]
    fn every_code_has_its_class_wherever_it_stands() {
        let throttled = Class::Throttled { after: None };
        let table = [
            ("OK", Class::Success),
            ("CANCELLED", Class::CallerError),
            ("UNKNOWN", TRANSIENT),
            ("INVALID_ARGUMENT", Class::CallerError),
            ("DEADLINE_EXCEEDED", TRANSIENT),
            ("NOT_FOUND", Class::CallerError),
            ("ALREADY_EXISTS", Class::CallerError),
            ("PERMISSION_DENIED", Class::CallerError),
            ("RESOURCE_EXHAUSTED", throttled),
            ("FAILED_PRECONDITION", Class::CallerError),
            ("ABORTED", TRANSIENT),
            ("OUT_OF_RANGE", Class::CallerError),
            ("UNIMPLEMENTED", Class::CallerError),
            ("INTERNAL", Class::Fatal),
            ("UNAVAILABLE", TRANSIENT),
            ("DATA_LOSS", Class::Fatal),
            ("UNAUTHENTICATED", Class::CallerError),
        ];
        for (number, (name, expected)) in (0..).zip(table) {
            let code = Code::from_i32(number);
            assert_eq!((i32::from(code), code.to_string().as_str()), (number, name));
            let field = (GRPC_STATUS, &*number.to_string());
            assert_eq!(class(200, std::slice::from_ref(&field)), expected, "{name} in the head");
            let trailers = headers(std::slice::from_ref(&field));
            assert_eq!(GrpcClass.end(Some(&trailers)), expected, "{name} in the trailers");
            let mut response = answered(200, &[]);
            response.extensions_mut().insert(AfterHead(of_end(Some(&trailers))));
            assert_eq!(GrpcClass.classify(Ok(&response)), expected, "{name} right after the head");
        }
    }

    // CBK-06
    #[test]
    fn what_the_caller_did_wrong_says_nothing_of_the_callees_health() {
        for code in ["1", "3", "5", "6", "7", "9", "11", "12", "16"] {
            assert_eq!(of_code(code).health(), Verdict::Neutral, "{code}");
        }
    }

    // GRP-02
    #[test]
    fn a_status_that_cannot_be_read_is_unknown_and_not_missing() {
        for code in ["x", "", " ", "-1", "+0", "0x0", "0.0", "17", "99", "4294967296", "0 0", "OK"]
        {
            assert_eq!(of_code(code), TRANSIENT, "{code:?}");
            let trailers = headers(&[(GRPC_STATUS, code)]);
            assert_eq!(GrpcClass.end(Some(&trailers)), TRANSIENT, "{code:?}");
        }
        for number in [-1, 17, i32::MIN, i32::MAX] {
            assert_eq!(Code::from_i32(number), Code::Unknown, "{number}");
        }
        let two = [(GRPC_STATUS, "0"), (GRPC_STATUS, "5")];
        assert_eq!(class(200, &two), TRANSIENT, "which of the two?");
    }

    // GRP-02
    #[test]
    fn every_http_status_has_its_code_where_nothing_else_is_said() {
        for status in (100..=999).filter(|status| *status != 200) {
            let (code, expected) = match status {
                400 => (Code::Internal, Class::Fatal),
                401 => (Code::Unauthenticated, Class::CallerError),
                403 => (Code::PermissionDenied, Class::CallerError),
                404 => (Code::Unimplemented, Class::CallerError),
                429 | 502 | 503 | 504 => (Code::Unavailable, TRANSIENT),
                _ => (Code::Unknown, TRANSIENT),
            };
            assert_eq!(Code::from_http(StatusCode::from_u16(status).unwrap()), code, "{status}");
            assert_eq!(class(status, &[]), expected, "{status}");
            assert_eq!(class(status, &[(GRPC_STATUS, "0")]), Class::Success, "{status}");
            assert_eq!(class(status, &[(GRPC_STATUS, "5")]), Class::CallerError, "{status}");
        }
    }

    // GRP-02
    #[test]
    fn a_status_is_looked_for_in_the_head_then_in_http_then_in_the_trailers() {
        let end = |fields: &[(HeaderName, &str)]| GrpcClass.end(Some(&headers(fields)));
        assert_eq!(of_code("14"), TRANSIENT);
        assert_eq!(end(&[(GRPC_STATUS, "14")]), TRANSIENT);
        assert_eq!(GrpcClass.head(StatusCode::OK, &HeaderMap::new()), None, "not yet");
        assert_eq!(of_code("0"), Class::Success);
        assert_eq!(GrpcClass.end(None), TRANSIENT, "an end without a status");
        assert_eq!(end(&[(RETRY_AFTER, "7")]), TRANSIENT, "trailers without a status");
    }

    #[test]
    fn the_wait_that_is_asked_for_comes_with_every_class_that_has_a_place_for_it() {
        let after = Some(Duration::from_millis(1500));
        for code in 0..=16 {
            let code = code.to_string();
            let expected = match of_code(&code) {
                Class::Throttled { .. } => Class::Throttled { after },
                Class::Transient { .. } => Class::Transient { after },
                class => class,
            };
            let fields = [(GRPC_STATUS, &*code), (PUSHBACK, "1500")];
            assert_eq!(class(200, &fields), expected, "{code}");
            assert_eq!(GrpcClass.end(Some(&headers(&fields))), expected, "{code}");
        }
        let longest = Some(Duration::from_millis(2_147_483_647));
        let fields = [(GRPC_STATUS, "14"), (PUSHBACK, "2147483647")];
        assert_eq!(class(200, &fields), Class::Transient { after: longest });
        let now = [(GRPC_STATUS, "14"), (PUSHBACK, "0")];
        assert_eq!(class(200, &now), Class::Transient { after: Some(Duration::ZERO) });
    }

    #[test]
    fn a_callee_that_says_not_again_is_not_repeated_and_as_well_or_ill_as_before() {
        for no in ["-1", "-0", "", "soon", "1.5", "+7", "1 2", "2147483648", "99999999999999999999"]
        {
            for code in 0..=16 {
                let code = code.to_string();
                let said = class(200, &[(GRPC_STATUS, &code), (PUSHBACK, no)]);
                assert_eq!(said.repeat(), buttress_core::Repeat::Never, "{code} {no:?}");
                assert_eq!(said.health(), of_code(&code).health(), "{code} {no:?}");
            }
        }
        let unsent = GrpcClass.codes(|_| Some(Class::Unreachable));
        let never = answered(200, &[(GRPC_STATUS, "14"), (PUSHBACK, "-1")]);
        assert_eq!(unsent.classify(Ok(&never)), Class::Fatal, "it holds for a table of one's own");
        let two = [(GRPC_STATUS, "14"), (PUSHBACK, "7"), (PUSHBACK, "7")];
        assert_eq!(class(200, &two), Class::Fatal);
        assert_eq!(class(200, &[(GRPC_STATUS, "8"), (PUSHBACK, "-1")]), Class::Refused);
    }

    #[test]
    fn a_proxy_says_when_to_come_again_as_http_does() {
        let after = |millis| Class::Transient { after: Some(Duration::from_millis(millis)) };
        assert_eq!(class(503, &[(RETRY_AFTER, "7")]), after(7000));
        assert_eq!(class(429, &[(RETRY_AFTER, "7"), (PUSHBACK, "5")]), after(5));
        assert_eq!(class(503, &[(RETRY_AFTER, "7"), (PUSHBACK, "-1")]), Class::Fatal);
        assert_eq!(class(200, &[(RETRY_AFTER, "7"), (GRPC_STATUS, "14")]), TRANSIENT);
    }

    // GRP-09
    #[test]
    fn errors_are_what_they_are_in_http() {
        let judged = |error: BoxError| judge::<Response<()>, _>(&GrpcClass, Err(&error));
        let elapsed = Elapsed::new(Limit::Attempt, Duration::ZERO);
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let rejected = Rejected::new(Reason::CircuitOpen, "breaker");
        assert_eq!(judged(refused().into()), Class::Unreachable);
        assert_eq!(judged(rejected.into()), Class::Refused);
        assert_eq!(judged(io::Error::other(rejected).into()), TRANSIENT);
        assert_eq!(judged(elapsed.into()), TRANSIENT);
        assert_eq!(judged(elapsed.unsent().into()), TRANSIENT);
        assert_eq!(GrpcClass.error(&refused().into()), Class::Unreachable);
    }

    // CBK-06
    #[test]
    fn a_table_of_ones_own_is_asked_first_wherever_the_status_stands() {
        let custom = GrpcClass.codes(|code| match code {
            Code::Ok | Code::NotFound => Some(TRANSIENT),
            Code::Unknown => Some(Class::CallerError),
            Code::Unavailable => Some(Class::Throttled { after: None }),
            _ => None,
        });
        let after = Some(Duration::from_millis(7));
        for (code, pushback, expected) in [
            ("0", None, Class::Success),
            ("2", None, Class::CallerError),
            ("x", None, Class::CallerError),
            ("5", Some("7"), Class::Transient { after }),
            ("5", Some("-1"), Class::Fatal),
            ("14", Some("7"), Class::Throttled { after }),
            ("14", Some("-1"), Class::Refused),
            ("4", Some("7"), Class::Transient { after }),
            ("3", None, Class::CallerError),
        ] {
            let mut fields = headers(&[(GRPC_STATUS, code)]);
            fields.extend(pushback.map(|value| (PUSHBACK, value.parse().unwrap())));
            let mut response = answered(200, &[]);
            response.extensions_mut().insert(AfterHead(of_end(Some(&fields))));
            assert_eq!(custom.classify(Ok(&response)), expected, "{code} right after the head");
            assert_eq!(custom.end(Some(&fields)), expected, "{code} in the trailers");
            assert_eq!(custom.head(StatusCode::OK, &fields), Some(expected), "{code} in the head");
            *response.headers_mut() = fields;
            assert_eq!(custom.classify(Ok(&response)), expected, "{code} in the head");
        }
        assert_eq!(custom.classify(Ok(&answered(200, &[]))), Class::Success, "so far");
        assert_eq!(custom.end(None), Class::CallerError);
        let refused: BoxError = io::Error::from(io::ErrorKind::ConnectionRefused).into();
        assert_eq!(judge::<Response<()>, _>(&custom, Err(&refused)), Class::Unreachable);
        assert_eq!(custom.error(&refused), Class::Unreachable);
    }

    // FBK-01
    #[test]
    fn a_substitute_is_marked_as_one() {
        let why = Substitute::new(Class::Refused, Some(Reason::CircuitOpen));
        for mark in [&GrpcClass as &dyn Mark<_>, &GrpcClass.codes(|_| None)] {
            let mut response = answered(200, &[]);
            mark.mark(&mut response, why);
            assert_eq!(response.extensions().get(), Some(&why));
        }
    }
}
