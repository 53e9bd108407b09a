use std::{error::Error, time::Duration};

use buttress_core::{Both, Elapsed, Reason, Rejected, TermOver};
use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER},
};

use crate::{
    Code, OVERLOADED,
    chain::{chain, peel},
    errors::timed_out,
    grpc,
};

/// The longest wait that a response asks for: the most that clients which read it into 32 bits
/// understand, 68 years.
const LONGEST: u64 = i32::MAX as u64;

/// What an error of ours is as a response. See [`refusal`].
///
/// # Examples
///
/// ```
/// use buttress_core::{Reason, Rejected};
/// use buttress_http::refusal;
/// use std::time::Duration;
///
/// let rejected = Rejected::new(Reason::CircuitOpen, "breaker").retry_in(Duration::from_millis(4200));
/// let response: http::Response<bytes::Bytes> = refusal(&rejected).unwrap().into_response();
/// assert_eq!(response.status(), 503);
/// assert_eq!(response.headers()["retry-after"], "5");
/// assert_eq!(response.body(), "circuit open");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Refusal {
    status: StatusCode,
    /// Of a gRPC response.
    code: Option<Code>,
    text: &'static str,
    retry_after: Option<Duration>,
    overloaded: bool,
}

/// Finds our own error in `error`, or a time limit that passed, and says what it is as a response. `None` if
/// there is neither.
///
/// | error | status | with |
/// |---|---|---|
/// | `Rejected`: circuit open, degraded, draining | 503 | `Retry-After`, where known |
/// | `Rejected`: bulkhead full, overloaded | 503 | `Retry-After`, where known; [`OVERLOADED`] |
/// | `Rejected`: rate limited | 429 | `Retry-After`, where known |
/// | `Rejected`: deadline exceeded | 504 | |
/// | `Rejected`: not leader | 421 | |
/// | `Elapsed`, or a [time limit](crate::is_timeout) of a client's | 504 | |
/// | `TermOver` | 504 | |
///
/// 504 is for all of which the outcome is unknown, a term among them that was over while the request was under way: it
/// may have been carried out. 503 says that it was not, and there are clients that then send anything again.
///
/// Never 408: it tells a client that its own request came too slowly, and browsers repeat it.
///
/// `Retry-After` is in whole seconds, rounded up, and at least one.
///
/// A limit on [connecting](buttress_core::Limit::Connect) is 504 as any other: this server did not get its answer
/// in time, whichever part of it took so long.
///
/// The outermost of them decides. [`OVERLOADED`] says that *this* server is full, so it is set
/// only where the error itself is the refusal, not where a handler failed of somebody's. An open circuit,
/// a leader that is degraded and a server that is draining do not bear it either: the first two cannot do their job,
/// and of the last another instance may well be asked at once.
pub fn refusal(error: &(dyn Error + 'static)) -> Option<Refusal> {
    Some(match find(error)? {
        Ours::Rejected(rejected) => Refusal::of_rejected(rejected, is_rejected(error)),
        Ours::Elapsed(_) | Ours::TimedOut => Refusal::new(StatusCode::GATEWAY_TIMEOUT, TIMED_OUT),
        Ours::TermOver(_) => Refusal::new(StatusCode::GATEWAY_TIMEOUT, TERM_OVER),
    })
}

/// An error of ours, or what is answered as one.
pub(crate) enum Ours<'a> {
    Rejected(&'a Rejected),
    // What it says is read where there is tonic.
    #[cfg_attr(not(feature = "tonic"), allow(dead_code))]
    Elapsed(&'a Elapsed),
    /// A client's own time limit.
    TimedOut,
    #[cfg_attr(not(feature = "tonic"), allow(dead_code))]
    TermOver(&'a TermOver),
}

/// What is said where time ran out.
pub(crate) const TIMED_OUT: &str = "timed out";

/// What is said where a leader's term was over while the request was under way.
pub(crate) const TERM_OVER: &str = "term over";

/// The outermost of them.
pub(crate) fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<Ours<'a>> {
    for link in chain(error) {
        if let Some(both) = peel::<Both>(link) {
            return find(both.error()).or_else(|| find(both.cause()));
        }
        if let Some(rejected) = peel(link) {
            return Some(Ours::Rejected(rejected));
        }
        if let Some(elapsed) = peel(link) {
            return Some(Ours::Elapsed(elapsed));
        }
        if let Some(over) = peel(link) {
            return Some(Ours::TermOver(over));
        }
        if timed_out(link) {
            return Some(Ours::TimedOut);
        }
    }
    None
}

/// Whether the error itself is a refusal, and not one that somebody's error brought along.
pub(crate) fn is_rejected(error: &(dyn Error + 'static)) -> bool {
    peel::<Rejected>(error).is_some()
}

// === impl Refusal ===

impl Refusal {
    /// A response of that status, with `text` as its body. Say nothing in it that a stranger should not
    /// read.
    pub const fn new(status: StatusCode, text: &'static str) -> Self {
        Self { status, code: None, text, retry_after: None, overloaded: false }
    }

    /// A gRPC response of that code, with `text` as its message: status 200, no body, and the code in the
    /// head. Say nothing in the text that a stranger should not read.
    pub const fn grpc(code: Code, text: &'static str) -> Self {
        Self { code: Some(code), ..Self::new(StatusCode::OK, text) }
    }

    /// The same, with a `Retry-After`; for gRPC, with a `grpc-retry-pushback-ms`.
    pub const fn retry_in(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// The same, with [`OVERLOADED`] on it; for gRPC, which has a word of its own for that, with a pushback
    /// of -1: do not come again. (Unless it says [when](Self::retry_in) to.)
    pub const fn overloaded(mut self) -> Self {
        self.overloaded = true;
        self
    }

    /// The status.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        self.status
    }

    /// The code, if it is a gRPC response.
    #[must_use]
    pub const fn code(&self) -> Option<Code> {
        self.code
    }

    /// The response.
    #[must_use]
    pub fn into_response<B: From<Bytes>>(self) -> Response<B> {
        // gRPC says it in the head.
        let text = if self.code.is_some() { "" } else { self.text };
        self.head().map(|()| Bytes::from_static(text.as_bytes()).into())
    }

    /// The same with nothing in its body, for who asked for the head alone.
    pub(crate) const fn without_body(mut self) -> Self {
        if self.code.is_none() {
            self.text = "";
        }
        self
    }

    /// The response but for its text.
    pub(crate) fn head(self) -> Response<()> {
        if let Some(code) = self.code {
            return grpc::trailers_only(code, self.text, self.retry_after, self.overloaded);
        }
        let mut response = Response::new(());
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        if !self.text.is_empty() {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        }
        if let Some(after) = self.retry_after {
            headers.insert(RETRY_AFTER, whole_seconds(after).into());
        }
        if self.overloaded {
            headers.insert(OVERLOADED, HeaderValue::from_static("true"));
        }
        response
    }

    fn of_rejected(rejected: &Rejected, own: bool) -> Self {
        let reason = rejected.reason();
        let status = match reason {
            Reason::RateLimited => StatusCode::TOO_MANY_REQUESTS,
            Reason::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Reason::NotLeader => StatusCode::MISDIRECTED_REQUEST,
            // Open circuits, full bulkheads, load that is shed, degraded leaders, what is draining; and what may come.
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        let retry_after = match status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                rejected.retry_after()
            }
            _ => None,
        };
        let overloaded = own && matches!(reason, Reason::BulkheadFull | Reason::Overloaded);
        Self { status, code: None, text: reason.as_str(), retry_after, overloaded }
    }
}

/// Rounded up, so that nobody comes too early; and never "now".
fn whole_seconds(after: Duration) -> u64 {
    let begun = u64::from(after.subsec_nanos() > 0);
    after.as_secs().saturating_add(begun).clamp(1, LONGEST)
}

#[cfg(test)]
mod tests {
    use std::{io, sync::Arc};

    use buttress_core::{BoxError, Class, Classify, FencingToken, Limit};

    use super::*;
    use crate::HttpClass;

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

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn response(error: impl Into<BoxError>) -> Response<Bytes> {
        refusal(&*error.into()).expect("one of ours").into_response()
    }

    fn header(response: &Response<Bytes>, name: impl http::header::AsHeaderName) -> Option<&str> {
        response.headers().get(name).map(|value| value.to_str().unwrap())
    }

    // TMO-08
    #[test]
    fn every_error_of_ours_has_its_status_and_none_is_408() {
        let table = [503, 503, 503, 504, 421, 503, 429, 503];
        for (reason, status) in ALL.into_iter().zip(table) {
            let response = response(Rejected::new(reason, "layer"));
            assert_eq!(response.status(), status, "{reason}");
            assert_eq!(response.body(), reason.as_str(), "the reason and no more");
            assert_eq!(header(&response, RETRY_AFTER), None);
        }
        for which in [Limit::Attempt, Limit::Total] {
            let elapsed = Elapsed::new(which, secs(1));
            assert_eq!(response(elapsed).status(), 504);
            assert_eq!(response(elapsed.unsent()).status(), 504);
        }
        let over = response(TermOver::new(FencingToken::new(7).unwrap()));
        assert_eq!((over.status().as_u16(), &over.body()[..]), (504, &b"term over"[..]));
        assert_eq!(header(&over, RETRY_AFTER), None, "it may have been carried out");
    }

    // TMO-08
    #[test]
    fn the_wait_is_in_whole_seconds_rounded_up_and_at_least_one() {
        for (after, header_value) in [
            (Duration::ZERO, "1"),
            (Duration::from_nanos(1), "1"),
            (secs(1), "1"),
            (secs(1) + Duration::from_nanos(1), "2"),
            (secs(5), "5"),
            (Duration::MAX, "2147483647"),
        ] {
            let rejected = Rejected::new(Reason::CircuitOpen, "breaker").retry_in(after);
            assert_eq!(header(&response(rejected), RETRY_AFTER), Some(header_value), "{after:?}");
        }
    }

    #[test]
    fn a_wait_goes_with_those_statuses_that_know_of_it() {
        for reason in ALL {
            let response = response(Rejected::new(reason, "layer").retry_in(secs(3)));
            let expected = [429, 503].contains(&response.status().as_u16()).then_some("3");
            assert_eq!(header(&response, RETRY_AFTER), expected, "{reason}");
        }
    }

    // BUD-06
    #[test]
    fn the_other_side_knows_a_server_that_is_full_from_one_that_is_ill() {
        let class = |rejected: Rejected| HttpClass.classify(Ok(&response(rejected)));
        for reason in [Reason::BulkheadFull, Reason::Overloaded] {
            let rejected = Rejected::new(reason, "shed");
            assert_eq!(class(rejected), Class::Refused);
            let after = Some(secs(2));
            assert_eq!(class(rejected.retry_in(secs(2))), Class::Throttled { after });
        }
        let ill = [Reason::CircuitOpen, Reason::Degraded, Reason::Draining];
        for reason in ill.into_iter().chain([Reason::DeadlineExceeded]) {
            let rejected = Rejected::new(reason, "layer");
            assert_eq!(class(rejected), Class::Transient { after: None }, "{reason}");
        }
        let limited = Rejected::new(Reason::RateLimited, "limit").retry_in(secs(2));
        assert_eq!(class(limited), Class::Throttled { after: Some(secs(2)) });
    }

    #[test]
    fn a_refusal_is_found_however_deep_but_only_our_own_says_that_this_server_is_full() {
        let full = Rejected::new(Reason::BulkheadFull, "bulkhead").retry_in(secs(2));
        for own in [BoxError::from(full), Box::new(Box::new(full)), Box::new(Arc::new(full))] {
            assert_eq!(header(&response(own), OVERLOADED), Some("true"));
        }
        for handlers in [
            BoxError::from(io::Error::other(full)),
            Both::new(io::Error::other("fallback"), full).into(),
            Both::new(full, "x").into(),
        ] {
            let response = response(handlers);
            assert_eq!(response.status(), 503);
            assert_eq!(header(&response, RETRY_AFTER), Some("2"));
            assert_eq!(header(&response, OVERLOADED), None);
        }
    }

    #[test]
    fn the_outermost_of_ours_decides() {
        let (late, open) =
            (Elapsed::new(Limit::Total, secs(1)), Rejected::new(Reason::CircuitOpen, "breaker"));
        assert_eq!(response(Both::new(late, open)).status(), 504);
        assert_eq!(response(Both::new(open, late)).status(), 503);
    }

    #[test]
    fn what_is_not_ours_is_no_refusal() {
        assert_eq!(refusal(&io::Error::from(io::ErrorKind::ConnectionReset)), None);
        assert_eq!(refusal(&Both::new("one", "other")), None);
    }

    #[test]
    fn an_empty_text_is_an_empty_body_of_no_type() {
        let response: Response<Bytes> = Refusal::new(StatusCode::BAD_GATEWAY, "").into_response();
        assert!(response.body().is_empty() && response.headers().is_empty());
    }
}
