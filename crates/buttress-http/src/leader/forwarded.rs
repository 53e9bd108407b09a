use buttress_core::OneHop;
use http::{HeaderName, HeaderValue, Request};

/// The header on a request that one process has handed on to another, as that was seen to lead:
/// `leadership-forwarded`.
pub const LEADERSHIP_FORWARDED: HeaderName = HeaderName::from_static("leadership-forwarded");

/// Marks requests that are handed on to a leader with [`LEADERSHIP_FORWARDED`], so that none goes in circles.
///
/// It is for `ForwardToLeaderLayer` of `buttress-leadership`. A stranger who sets the header has their own request
/// refused where it could have been handed on, and nothing else.
///
/// ```
/// use buttress_core::OneHop;
/// use buttress_http::ForwardedOnce;
///
/// let mut request = http::Request::new(());
/// assert!(!ForwardedOnce.is_marked(&request));
/// ForwardedOnce.mark(&mut request);
/// assert!(ForwardedOnce.is_marked(&request));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct ForwardedOnce;

impl<B> OneHop<Request<B>> for ForwardedOnce {
    fn is_marked(&self, request: &Request<B>) -> bool {
        request.headers().contains_key(LEADERSHIP_FORWARDED)
    }

    fn mark(&self, request: &mut Request<B>) {
        request.headers_mut().insert(LEADERSHIP_FORWARDED, HeaderValue::from_static("1"));
    }
}
