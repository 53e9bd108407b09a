use std::{error::Error, time::Duration};

use buttress_core::{Reason, Rejected};
use http::{HeaderValue, Response, header::CONTENT_TYPE};

use super::{Code, GRPC_MESSAGE, GRPC_STATUS, LONGEST_PUSHBACK, PUSHBACK};
use crate::{
    Refusal, Table,
    refusal::{Ours, TERM_OVER, TIMED_OUT, find, is_rejected},
};

/// The table of [`grpc_refusal`], for [`RejectedAsResponseLayer::grpc`](crate::RejectedAsResponseLayer::grpc).
/// An error that it does not know is UNKNOWN, with nothing in it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByCode;

/// Finds our own error in `error`, or a time limit that passed, and says what it is as a gRPC response. `None`
/// if there is neither.
///
/// | error | code | with |
/// |---|---|---|
/// | `Rejected`: circuit open, degraded, draining, not leader | 14, UNAVAILABLE | the pushback, where known |
/// | `Rejected`: bulkhead full, overloaded | 8, RESOURCE_EXHAUSTED | the pushback, where known, else -1: do not come again |
/// | ... deeper in somebody's error | 14, UNAVAILABLE | the pushback, where known |
/// | `Rejected`: rate limited | 8, RESOURCE_EXHAUSTED | the pushback, where known |
/// | `Rejected`: deadline exceeded | 4, DEADLINE_EXCEEDED | |
/// | `Elapsed`, or a [time limit](crate::is_timeout) of a client's | 4, DEADLINE_EXCEEDED | |
/// | `TermOver` | 4, DEADLINE_EXCEEDED | |
///
/// DEADLINE_EXCEEDED is the code of what may have been carried out all the same, a call among it that was under way as
/// its leader's term ended. UNAVAILABLE is the one that clients are set up to repeat.
///
/// Never CANCELLED, which says that the caller gave up, nor UNKNOWN, which says nothing.
///
/// With the feature `tonic`, what has nothing of this in it but is itself a `tonic::Status`, or a channel's error, keeps
/// its code. Its text stays here: a channel's names addresses.
///
/// It is a response without a body: HTTP status 200, `grpc-status` and `grpc-message` in its head.
/// `grpc-retry-pushback-ms` is in milliseconds, rounded up, and at least one.
///
/// The outermost of them decides. Only the error that itself is the refusal says that *this* server is
/// full. It is what [`OVERLOADED`](crate::OVERLOADED) is in HTTP: [`GrpcClass`](super::GrpcClass) does not
/// hold it against the server's health, nor repeat it unless the server says when to come again.
///
/// # Examples
///
/// ```
/// use buttress_core::{Reason, Rejected};
/// use buttress_http::{Code, grpc_refusal};
///
/// let refusal = grpc_refusal(&Rejected::new(Reason::BulkheadFull, "bulkhead")).unwrap();
/// assert_eq!(refusal.code(), Some(Code::ResourceExhausted));
/// let response: http::Response<bytes::Bytes> = refusal.into_response();
/// assert_eq!(response.headers()["grpc-message"], "bulkhead full");
/// ```
pub fn grpc_refusal(error: &(dyn Error + 'static)) -> Option<Refusal> {
    match find(error) {
        Some(Ours::Rejected(rejected)) => Some(of_rejected(rejected, is_rejected(error))),
        Some(Ours::Elapsed(_) | Ours::TimedOut) => {
            Some(Refusal::grpc(Code::DeadlineExceeded, TIMED_OUT))
        }
        Some(Ours::TermOver(_)) => Some(Refusal::grpc(Code::DeadlineExceeded, TERM_OVER)),
        #[cfg(feature = "tonic")]
        None => crate::tonic::code_of(error).map(|code| Refusal::grpc(code, "")),
        #[cfg(not(feature = "tonic"))]
        None => None,
    }
}

fn of_rejected(rejected: &Rejected, own: bool) -> Refusal {
    let reason = rejected.reason();
    let text = reason.as_str();
    let refusal = match reason {
        Reason::DeadlineExceeded => return Refusal::grpc(Code::DeadlineExceeded, text),
        Reason::RateLimited => Refusal::grpc(Code::ResourceExhausted, text),
        Reason::BulkheadFull | Reason::Overloaded if own => {
            Refusal::grpc(Code::ResourceExhausted, text).overloaded()
        }
        // Open circuits, degraded leaders, what is draining, what does not lead; and what may come.
        _ => Refusal::grpc(Code::Unavailable, text),
    };
    match rejected.retry_after() {
        Some(after) => refusal.retry_in(after),
        None => refusal,
    }
}

/// A response that has its trailers in its head.
pub(crate) fn trailers_only(
    code: Code,
    text: &str,
    retry_after: Option<Duration>,
    overloaded: bool,
) -> Response<()> {
    let mut response = Response::new(());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(GRPC_STATUS, i32::from(code).into());
    if !text.is_empty() {
        headers.insert(GRPC_MESSAGE, percent_encoded(text));
    }
    match retry_after {
        Some(after) => _ = headers.insert(PUSHBACK, whole_millis(after).into()),
        None if overloaded => _ = headers.insert(PUSHBACK, HeaderValue::from_static("-1")),
        None => {}
    }
    response
}

/// Rounded up, so that nobody comes too early; and never "now".
fn whole_millis(after: Duration) -> u32 {
    let millis = after.as_nanos().div_ceil(1_000_000);
    u32::try_from(millis).unwrap_or(u32::MAX).clamp(1, LONGEST_PUSHBACK)
}

/// The text as the protocol wants it: what is not printable ASCII, and the percent sign, as `%XX`.
fn percent_encoded(text: &str) -> HeaderValue {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(byte.into()),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    HeaderValue::try_from(encoded).expect("it is printable ASCII")
}

// === impl ByCode ===

#[diagnostic::do_not_recommend]
impl<B: Default> Table<B> for ByCode {
    fn refusal(&self, error: &(dyn Error + 'static)) -> Option<Refusal> {
        grpc_refusal(error)
    }

    fn unknown(&self) -> Refusal {
        Refusal::grpc(Code::Unknown, "")
    }

    fn response(&self, refusal: Refusal) -> Response<B> {
        refusal.head().map(|()| B::default())
    }
}

#[cfg(test)]
mod tests {
    use std::{io, sync::Arc};

    use buttress_core::{Both, BoxError, Class, Classify, Elapsed, FencingToken, Limit, TermOver};
    use bytes::Bytes;
    use http::Request;
    use http_body::Body as _;
    use http_body_util::Full;
    use tower::{Layer, ServiceExt, service_fn};

    use super::*;
    use crate::{GrpcClass, RejectedAsResponseLayer};

    const ALL: [(Reason, &str); 8] = [
        (Reason::CircuitOpen, "14"),
        (Reason::BulkheadFull, "8"),
        (Reason::Overloaded, "8"),
        (Reason::DeadlineExceeded, "4"),
        (Reason::NotLeader, "14"),
        (Reason::Degraded, "14"),
        (Reason::RateLimited, "8"),
        (Reason::Draining, "14"),
    ];

    type Answer = Response<Full<Bytes>>;

    fn response(error: impl Into<BoxError>) -> Answer {
        grpc_refusal(&*error.into()).expect("one of ours").into_response()
    }

    fn field<'a>(response: &'a Answer, name: &str) -> Option<&'a str> {
        response.headers().get(name).map(|value| value.to_str().unwrap())
    }

    fn rejected(reason: Reason) -> Rejected {
        Rejected::new(reason, "layer")
    }

    // GRP-07
    #[test]
    fn every_error_of_ours_has_its_code() {
        for (reason, code) in ALL {
            let response = response(rejected(reason));
            assert_eq!(response.status(), 200, "{reason}");
            assert_eq!(field(&response, "content-type"), Some("application/grpc"));
            assert_eq!(field(&response, "grpc-status"), Some(code), "{reason}");
            assert_eq!(field(&response, "grpc-message"), Some(reason.as_str()));
            assert!(response.body().is_end_stream(), "the trailers are in the head");
        }
        for which in [Limit::Attempt, Limit::Total] {
            let elapsed = Elapsed::new(which, Duration::from_secs(1));
            assert_eq!(field(&response(elapsed), "grpc-status"), Some("4"));
            assert_eq!(field(&response(elapsed.unsent()), "grpc-status"), Some("4"));
        }
        let over = TermOver::new(FencingToken::new(7).unwrap());
        assert_eq!(field(&response(over), "grpc-status"), Some("4"));
    }

    #[test]
    fn the_wait_is_in_whole_milliseconds_rounded_up_and_at_least_one() {
        for (after, expected) in [
            (Duration::ZERO, "1"),
            (Duration::from_nanos(1), "1"),
            (Duration::from_millis(5), "5"),
            (Duration::from_nanos(5_000_001), "6"),
            (Duration::MAX, "2147483647"),
        ] {
            let response = response(rejected(Reason::CircuitOpen).retry_in(after));
            assert_eq!(field(&response, "grpc-retry-pushback-ms"), Some(expected), "{after:?}");
        }
    }

    #[test]
    fn a_wait_goes_with_those_codes_that_know_of_it() {
        for (reason, code) in ALL {
            let response = response(rejected(reason).retry_in(Duration::from_secs(3)));
            let expected = (code != "4").then_some("3000");
            assert_eq!(field(&response, "grpc-retry-pushback-ms"), expected, "{reason}");
        }
    }

    // BUD-06
    #[test]
    fn the_other_side_knows_a_server_that_is_full_from_one_that_is_ill() {
        let class = |error: BoxError| GrpcClass.classify(Ok(&response(error)));
        let after = Some(Duration::from_secs(2));
        let later = |reason| rejected(reason).retry_in(Duration::from_secs(2));
        for reason in [Reason::BulkheadFull, Reason::Overloaded] {
            assert_eq!(class(rejected(reason).into()), Class::Refused);
            assert_eq!(class(later(reason).into()), Class::Throttled { after });
            for own in
                [BoxError::from(Box::new(rejected(reason))), Arc::new(rejected(reason)).into()]
            {
                assert_eq!(class(own), Class::Refused, "a pointer hides nothing");
            }
            let deep = io::Error::other(rejected(reason));
            assert_eq!(
                class(deep.into()),
                Class::Transient { after: None },
                "somebody else is full"
            );
        }
        for reason in [Reason::CircuitOpen, Reason::Degraded, Reason::Draining, Reason::NotLeader] {
            assert_eq!(class(later(reason).into()), Class::Transient { after });
            assert_eq!(class(rejected(reason).into()), Class::Transient { after: None });
        }
        assert_eq!(class(later(Reason::RateLimited).into()), Class::Throttled { after });
        let unsaid = Class::Throttled { after: None };
        assert_eq!(class(rejected(Reason::RateLimited).into()), unsaid);
    }

    // GRP-07
    #[test]
    fn a_refusal_is_found_however_deep() {
        let deep = io::Error::other(Both::new(
            io::Error::other("x"),
            Elapsed::new(Limit::Total, Duration::ZERO),
        ));
        assert_eq!(field(&response(deep), "grpc-status"), Some("4"));
        assert!(grpc_refusal(&io::Error::other("x")).is_none());
    }

    // GRP-07
    #[tokio::test]
    async fn an_error_that_is_not_ours_is_unknown_and_says_nothing_to_strangers() {
        let fails = service_fn(|request: Request<fn() -> BoxError>| {
            std::future::ready(Err::<Answer, _>(request.body()()))
        });
        let fail = |error: fn() -> BoxError| Request::new(error);
        let service = RejectedAsResponseLayer::grpc().layer(fails);
        let Ok(response) =
            service.clone().oneshot(fail(|| "no such table at 10.0.0.7".into())).await;
        assert_eq!((response.status().as_u16(), field(&response, "grpc-status")), (200, Some("2")));
        assert_eq!(field(&response, "grpc-message"), None);
        let Ok(response) = service.oneshot(fail(|| rejected(Reason::Draining).into())).await;
        assert_eq!(field(&response, "grpc-status"), Some("14"));
    }

    #[test]
    fn a_message_is_encoded_as_the_protocol_wants_it() {
        for (text, encoded) in [
            ("circuit open", "circuit open"),
            ("100 %", "100 %25"),
            ("a\nb\u{7f}", "a%0Ab%7F"),
            ("\u{e9}", "%C3%A9"),
        ] {
            let response: Answer = Refusal::grpc(Code::Internal, text).into_response();
            assert_eq!(field(&response, "grpc-message"), Some(encoded));
        }
    }

    // GRP-07
    #[tokio::test]
    async fn a_body_that_can_be_empty_will_do_for_grpc() {
        #[derive(Default)]
        struct OfTonic;
        let refuses = service_fn(|_: Request<()>| async {
            let rejected = Rejected::new(Reason::Overloaded, "shed");
            Err::<Response<OfTonic>, _>(BoxError::from(rejected))
        });
        let Ok(response) =
            RejectedAsResponseLayer::grpc().layer(refuses).oneshot(Request::new(())).await;
        assert_eq!(response.headers()["grpc-status"], "8");
    }
}
