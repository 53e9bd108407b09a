use std::sync::Arc;

use buttress_core::{Discard, InvalidSetting, KeptClone, Replay};
use bytes::Bytes;
use http::{Extensions, Request, Response, Uri};
use http_body::Body;

use crate::{Drain, Idempotent, KeptRecord, ReplayBody, record};

/// As much of a body is kept as most unary calls send. A call that sends more is sent once.
const CAP: usize = 64 * 1024;

/// Sends gRPC requests again.
///
/// Every gRPC call is a POST, so nothing in the protocol tells a query from a payment. A call may be carried
/// out twice if one of these says so, the first that has a word in it:
///
/// 1. an [`Idempotent`] in the request's extensions: whoever made the request knows best;
/// 2. its method, if it is one of those [named here](Self::methods).
///
/// Every other request is kept all the same, to be sent again if it is certain that it was not sent before,
/// as when no connection could be made. That is all that is repeated by [default](Self::none).
///
/// Bodies of generated clients cannot be cloned, so each is recorded while it passes, up to 64 KiB or
/// [another cap](Self::record): see [`RecordReplay`](crate::RecordReplay). A request whose body is longer is
/// sent once. For bodies that can be cloned there is [`clone_bodies`](Self::clone_bodies).
///
/// # Examples
///
/// ```
/// use buttress_core::{Kept, Replay};
/// use buttress_http::GrpcReplay;
/// use bytes::Bytes;
/// use http::Request;
/// use http_body_util::Empty;
///
/// let replay = GrpcReplay::methods(["/shop.Orders/Get", "/shop.Orders/List"]);
/// let call = |path| Request::post(path).body(Empty::<Bytes>::new()).unwrap();
/// let safe = |path| replay.keep(call(path)).1.unwrap().safe();
/// assert!(safe("https://shop/shop.Orders/Get"));
/// assert!(!safe("https://shop/shop.Orders/Place"));
/// ```
#[derive(Clone, Debug)]
pub struct GrpcReplay {
    twice: Twice,
    cap: usize,
}

/// Sends gRPC requests again whose bodies can be cloned, which costs less than to record them: those that are
/// made by hand, as of `Full<Bytes>`. Made by [`GrpcReplay::clone_bodies`].
#[derive(Clone, Debug, Default)]
pub struct GrpcCloneReplay {
    replay: GrpcReplay,
}

/// What may be carried out twice.
#[derive(Clone, Debug, Default)]
enum Twice {
    #[default]
    Nothing,
    /// The calls of these paths.
    Methods(Arc<[Box<str>]>),
    All,
}

// === impl GrpcReplay ===

impl GrpcReplay {
    /// No method may be carried out twice: sent again is only what was never sent.
    #[must_use]
    pub const fn none() -> Self {
        Self { twice: Twice::Nothing, cap: CAP }
    }

    /// Every method may: for services that only answer questions.
    #[must_use]
    pub const fn all() -> Self {
        Self { twice: Twice::All, cap: CAP }
    }

    /// These methods may, written as their paths are: `/package.Service/Method`.
    ///
    /// # Panics
    ///
    /// If one is not written so: it would never be found. See [`try_methods`](Self::try_methods).
    #[must_use]
    #[track_caller]
    pub fn methods<M: Into<String>>(methods: impl IntoIterator<Item = M>) -> Self {
        match Self::try_methods(methods) {
            Ok(replay) => replay,
            Err(error) => panic!("{error}"),
        }
    }

    /// The same as [`methods`](Self::methods), for names that come from elsewhere.
    ///
    /// # Errors
    ///
    /// If one is not written as `/package.Service/Method`.
    pub fn try_methods<M: Into<String>>(
        methods: impl IntoIterator<Item = M>,
    ) -> Result<Self, InvalidSetting> {
        let methods = methods.into_iter().map(|method| valid(method.into()));
        Ok(Self { twice: Twice::Methods(methods.collect::<Result<_, _>>()?), cap: CAP })
    }

    /// The same, with up to `cap` bytes recorded of each body. See [`RecordReplay`](crate::RecordReplay).
    #[must_use]
    pub const fn record(mut self, cap: usize) -> Self {
        self.cap = cap;
        self
    }

    /// The same, for bodies that can be cloned: none is recorded.
    #[must_use]
    pub const fn clone_bodies(self) -> GrpcCloneReplay {
        GrpcCloneReplay { replay: self }
    }

    fn safe(&self, uri: &Uri, extensions: &Extensions) -> bool {
        if let Some(Idempotent(says)) = extensions.get() {
            return *says;
        }
        match &self.twice {
            Twice::Nothing => false,
            Twice::Methods(methods) => methods.iter().any(|method| **method == *uri.path()),
            Twice::All => true,
        }
    }
}

fn valid(method: String) -> Result<Box<str>, InvalidSetting> {
    let parts = method.strip_prefix('/').and_then(|path| path.rsplit_once('/'));
    let names = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_graphic());
    match parts {
        Some((service, name)) if names(service) && names(name) => Ok(method.into()),
        _ => {
            let must = format!("must be written as `/package.Service/Method` ({method:?} is not)");
            Err(InvalidSetting::new("methods", must))
        }
    }
}

impl Default for GrpcReplay {
    fn default() -> Self {
        Self::none()
    }
}

impl<B: Body<Data = Bytes>> Replay<Request<B>> for GrpcReplay {
    type Sent = Request<ReplayBody<B>>;
    type Kept = KeptRecord<B>;

    fn once(&self, request: Request<B>) -> Self::Sent {
        record::once(request)
    }

    fn keep(&self, request: Request<B>) -> (Self::Sent, Option<KeptRecord<B>>) {
        let safe = self.safe(request.uri(), request.extensions());
        record::keep(request, safe, self.cap)
    }
}

#[diagnostic::do_not_recommend]
impl<B: Body> Discard<Response<B>> for GrpcReplay {
    type Discarding = Drain<B>;

    fn discard(&self, response: Response<B>) -> Drain<B> {
        Drain::new(response.into_body())
    }
}

// === impl GrpcCloneReplay ===

#[diagnostic::do_not_recommend]
impl<B: Clone> Replay<Request<B>> for GrpcCloneReplay {
    type Sent = Request<B>;
    type Kept = KeptClone<Request<B>>;

    fn once(&self, request: Request<B>) -> Request<B> {
        request
    }

    fn keep(&self, request: Request<B>) -> (Request<B>, Option<KeptClone<Request<B>>>) {
        let safe = self.replay.safe(request.uri(), request.extensions());
        let kept = KeptClone::new(request.clone(), safe);
        (request, Some(kept))
    }
}

impl<B: Body> Discard<Response<B>> for GrpcCloneReplay {
    type Discarding = Drain<B>;

    fn discard(&self, response: Response<B>) -> Drain<B> {
        self.replay.discard(response)
    }
}

#[cfg(test)]
mod tests {
    use buttress_core::Kept;
    use futures_util::FutureExt;
    use http_body_util::{BodyExt, Full};

    use super::*;

    const GET: &str = "/shop.Orders/Get";
    const PLACE: &str = "/shop.Orders/Place";

    fn call(path: &str) -> http::request::Builder {
        Request::post(format!("https://shop{path}"))
    }

    fn is_safe(replay: &GrpcReplay, request: http::request::Builder) -> bool {
        let body = || Full::<Bytes>::from("tea");
        let recorded = request.extensions_ref().cloned();
        let uri = request.uri_ref().cloned().unwrap();
        let (sent, kept) = replay.keep(request.body(body()).unwrap());
        assert_eq!(sent.uri(), &uri);
        let safe = kept.expect("everything is kept").safe();
        let mut request = Request::post(uri).body(body()).unwrap();
        *request.extensions_mut() = recorded.unwrap();
        let (_, kept) = replay.clone().clone_bodies().keep(request);
        assert_eq!(kept.expect("it is short").safe(), safe, "recorded or cloned");
        safe
    }

    // RET-11
    #[test]
    fn only_the_methods_that_are_named_may_be_carried_out_twice() {
        let named = GrpcReplay::methods([GET, "/shop.Orders/List"]);
        for (path, expected) in [
            (GET, true),
            ("/shop.Orders/Get?x=1", true),
            ("/shop.Orders/List", true),
            (PLACE, false),
            ("/shop.Orders/get", false),
            ("/shop.Orders/Get/", false),
            ("/shop.Orders/GetAll", false),
            ("/v1/shop.Orders/Get", false),
            ("/", false),
        ] {
            assert_eq!(is_safe(&named, call(path)), expected, "{path}");
            assert!(is_safe(&GrpcReplay::all(), call(path)), "{path}");
            assert!(!is_safe(&GrpcReplay::none(), call(path)), "{path}");
            assert!(!is_safe(&GrpcReplay::default(), call(path)), "{path}");
        }
    }

    // RET-11
    #[test]
    fn what_is_safe_in_http_is_not_safe_in_grpc() {
        let keyed = call(PLACE).header("idempotency-key", "7");
        assert!(!is_safe(&GrpcReplay::methods([GET]), keyed), "no server looks at it");
        assert!(!is_safe(&GrpcReplay::none(), call(PLACE).method("GET")));
    }

    // RET-11
    #[test]
    fn whoever_made_the_request_knows_best() {
        assert!(is_safe(&GrpcReplay::none(), call(PLACE).extension(Idempotent(true))));
        assert!(!is_safe(&GrpcReplay::all(), call(GET).extension(Idempotent(false))));
    }

    #[test]
    fn a_name_that_would_never_be_found_is_refused() {
        let wrong =
            ["", "/", "//", "Get", "/Get", "/Get/", "shop.Orders/Get", "/shop.Orders/", "/a b/c"];
        for name in wrong {
            let refused = GrpcReplay::try_methods([GET, name]).unwrap_err();
            assert_eq!(refused.setting(), "methods", "{name:?}");
            assert!(refused.to_string().contains(&format!("{name:?}")), "{refused}");
        }
        let none = GrpcReplay::try_methods([""; 0]).unwrap();
        assert!(!is_safe(&none, call(GET)));
    }

    #[test]
    #[should_panic(expected = "/package.Service/Method")]
    fn a_name_that_would_never_be_found_panics_where_it_is_written() {
        let _ = GrpcReplay::methods(["Get"]);
    }

    // RET-13
    #[test]
    fn a_recorded_copy_is_the_request_as_it_entered() {
        let request = call(GET).header("te", "trailers").body(Full::<Bytes>::from("tea")).unwrap();
        let (sent, kept) = GrpcReplay::all().record(3).keep(request);
        let (mut sent, mut kept) = (Some(sent), kept.unwrap());
        for last in [false, true] {
            let request = sent.take().expect("it can be sent again");
            assert_eq!(request.uri().path(), GET);
            assert_eq!(request.headers()["te"], "trailers");
            let body = request.into_body().collect().now_or_never().unwrap().unwrap();
            assert_eq!(body.to_bytes(), "tea");
            sent = kept.copy(last);
        }
        let long = call(GET).body(Full::<Bytes>::from("teas")).unwrap();
        assert!(GrpcReplay::all().record(3).keep(long).1.is_none(), "it is over the cap");
    }
}
