use buttress_core::{Discard, KeptClone, Replay};
use http::{Extensions, HeaderMap, HeaderName, Method, Request, Response};

use crate::Drain;

/// Sends HTTP requests again, if their bodies can be cloned.
///
/// Whether a request may be carried out twice is taken from the request itself. It may if one of these
/// says so, the first that has a word in it:
///
/// 1. an [`Idempotent`] in its extensions: whoever made the request knows best;
/// 2. an `Idempotency-Key` header that is not empty: the callee will know the second one for what it is;
/// 3. its method: GET, HEAD, OPTIONS, TRACE, QUERY, PUT and DELETE may, by [RFC 9110, 9.2.2].
///
/// Every other request is kept all the same, to be sent again if it is certain that it was not sent
/// before, as when no connection could be made.
///
/// A copy is the whole request as it entered: method, URI, version, headers, extensions, body. What
/// layers beneath add to an attempt, they add to that attempt only.
///
/// For bodies that cannot be cloned there is [`record`](Self::record).
///
/// [RFC 9110, 9.2.2]: https://www.rfc-editor.org/rfc/rfc9110#section-9.2.2
///
/// # Examples
///
/// ```
/// use buttress_core::{Kept, Replay};
/// use buttress_http::{HttpReplay, Idempotent};
/// use http::Request;
///
/// let safe = |request| HttpReplay.keep(request).1.unwrap().safe();
/// assert!(safe(Request::put("/orders/7").body("tea").unwrap()));
/// assert!(!safe(Request::post("/orders").body("tea").unwrap()));
/// assert!(safe(Request::post("/search").extension(Idempotent(true)).body("tea").unwrap()));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct HttpReplay;

/// Says of one request whether it may be carried out twice. Put it into the request's extensions.
///
/// It outranks the method and the headers: `Idempotent(false)` for a GET that has side effects,
/// `Idempotent(true)` for a POST that has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idempotent(
    /// Whether it may.
    pub bool,
);

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Whether the request may be carried out twice.
pub(crate) fn safe(method: &Method, headers: &HeaderMap, extensions: &Extensions) -> bool {
    if let Some(Idempotent(says)) = extensions.get() {
        return *says;
    }
    let keyed = |key: &http::HeaderValue| !key.as_bytes().trim_ascii().is_empty();
    method.is_idempotent() || headers.get(IDEMPOTENCY_KEY).is_some_and(keyed)
}

// === impl HttpReplay ===

impl<B: Clone> Replay<Request<B>> for HttpReplay {
    type Sent = Request<B>;
    type Kept = KeptClone<Request<B>>;

    fn once(&self, request: Request<B>) -> Request<B> {
        request
    }

    fn keep(&self, request: Request<B>) -> (Request<B>, Option<KeptClone<Request<B>>>) {
        let safe = safe(request.method(), request.headers(), request.extensions());
        let kept = KeptClone::new(request.clone(), safe);
        (request, Some(kept))
    }
}

impl<B: http_body::Body> Discard<Response<B>> for HttpReplay {
    type Discarding = Drain<B>;

    fn discard(&self, response: Response<B>) -> Drain<B> {
        Drain::new(response.into_body())
    }
}
