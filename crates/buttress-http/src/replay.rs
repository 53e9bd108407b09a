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

#[diagnostic::do_not_recommend]
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

#[diagnostic::do_not_recommend]
impl<B: http_body::Body> Discard<Response<B>> for HttpReplay {
    type Discarding = Drain<B>;

    fn discard(&self, response: Response<B>) -> Drain<B> {
        Drain::new(response.into_body())
    }
}

#[cfg(test)]
mod tests {
    use buttress_core::Kept;

    use super::*;

    fn post() -> http::request::Builder {
        Request::post("/orders")
    }

    fn is_safe(request: http::request::Builder) -> bool {
        HttpReplay.keep(request.body("tea").unwrap()).1.expect("everything is kept").safe()
    }

    // RET-11
    #[test]
    fn the_method_says_what_may_be_carried_out_twice() {
        for (method, safe) in [
            ("GET", true),
            ("HEAD", true),
            ("OPTIONS", true),
            ("TRACE", true),
            ("PUT", true),
            ("DELETE", true),
            ("POST", false),
            ("PATCH", false),
            ("CONNECT", false),
            ("PROPPATCH", false),
            ("get", false),
        ] {
            assert_eq!(is_safe(Request::builder().method(method).uri("/")), safe, "{method}");
        }
    }

    // RET-11
    #[test]
    fn a_key_lets_the_callee_know_the_second_one() {
        assert!(is_safe(post().header("Idempotency-Key", "\"8e03978e\"")));
        assert!(!is_safe(post().header("Idempotency-Key", "")), "that names nothing");
        assert!(!is_safe(post().header("Idempotency-Key", " \t")));
    }

    // RET-11
    #[test]
    fn whoever_made_the_request_knows_best() {
        assert!(is_safe(post().extension(Idempotent(true))));
        assert!(!is_safe(Request::get("/").extension(Idempotent(false))));
        assert!(!is_safe(post().header("Idempotency-Key", "7").extension(Idempotent(false))));
    }

    // RET-05, RET-13
    #[test]
    fn every_copy_is_the_request_as_it_entered() {
        let request = Request::put("https://a/b?c=d")
            .version(http::Version::HTTP_2)
            .header("x-one", "1")
            .header("x-one", "2")
            .extension(7_u32)
            .body("tea")
            .unwrap();
        let (mut sent, kept) = HttpReplay.keep(request);
        let mut kept = kept.unwrap();
        for last in [false, false, true] {
            assert_eq!(sent.method(), Method::PUT);
            assert_eq!(sent.uri(), "https://a/b?c=d");
            assert_eq!(sent.version(), http::Version::HTTP_2);
            assert_eq!(sent.headers().get_all("x-one").iter().count(), 2);
            assert_eq!(sent.headers().len(), 2);
            assert_eq!(sent.extensions().get(), Some(&7_u32));
            assert_eq!(sent.extensions().len(), 1);
            assert_eq!(sent.body(), &"tea");
            // What a layer beneath does to an attempt.
            sent.headers_mut().append("x-sig", "s".parse().unwrap());
            sent.extensions_mut().insert('x');
            *sent.method_mut() = Method::DELETE;
            sent = kept.copy(last).unwrap();
        }
        assert!(kept.copy(true).is_none());
    }
}
