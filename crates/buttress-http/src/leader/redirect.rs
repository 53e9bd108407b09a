use std::{
    fmt,
    pin::Pin,
    str::from_utf8,
    task::{Context, Poll, ready},
    time::Duration,
};

use buttress_core::{BoxError, IntoBoxError, Reason, Rejected};
use bytes::Bytes;
use http::{
    HeaderValue, Request, Response, StatusCode,
    header::LOCATION,
    uri::{Authority, PathAndQuery},
};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use crate::{Refusal, chain::peel, grpc};

/// Tells clients where the leader is, where this process is refused as it does not lead.
///
/// Of a refusal alone, 421 and "not leader", a client learns whom not to ask. This layer makes of it what clients
/// know how to follow. It stands around the `LeadershipLayer`, beneath what makes responses of refusals
/// ([`RejectedAsResponseLayer`](crate::RejectedAsResponseLayer)).
///
/// It is told where the leader is by a function, which is asked once for each refusal: `None` if nobody else leads, or else
/// the leader's address, as it is published in the election. (This process is none to be sent to, or clients come in
/// circles.)
///
/// | the leader | answer |
/// |---|---|
/// | has an address | 307, and `Location`: the address with the request's path and query |
/// | has none that makes sense | the refusal as it is, to become a 421 |
/// | is unknown, or is this process | 503, and `Retry-After`: nothing was done, and somebody will lead soon |
///
/// An **address** is `host`, `host:port`, or one of them after `http://` or `https://`: nothing else, no path and no
/// user. Without a scheme it stays the one that the client came by (`Location: //host:port/path`). With 307 the client
/// repeats method and body. The path is the one that gets here: put the layer outside of what takes a part off it, as
/// axum's `nest` does.
///
/// gRPC's clients follow nothing. A request of `content-type` `application/grpc` gets its refusal as it is, to become
/// an UNAVAILABLE, with a pushback where nobody leads.
///
/// Every other answer and error passes as it is: of one whose term was over while it was under way, nobody knows whether
/// it was carried out, and so it is not sent anywhere else.
///
/// # Cancel safety
///
/// The inner future is dropped with the answer's.
///
/// # Examples
///
/// ```
/// use buttress_core::{BoxError, Reason, Rejected};
/// use buttress_http::RedirectToLeaderLayer;
/// use bytes::Bytes;
/// use http::{Request, Response};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// // As a `LeadershipLayer` refuses.
/// let refuses = service_fn(|_: Request<()>| async {
///     Err::<Response<String>, BoxError>(Rejected::new(Reason::NotLeader, "leadership").into())
/// });
/// // With a `Leadership`: move || Some(leadership.check().err()?.leader()?.payload.clone())
/// let leader = || Some(Bytes::from("node-2:8080"));
/// let service = RedirectToLeaderLayer::new(leader).layer(refuses);
/// let request = Request::post("/orders?dry").body(()).unwrap();
/// let response = service.oneshot(request).await.unwrap();
/// assert_eq!(response.status(), 307);
/// assert_eq!(response.headers()["location"], "//node-2:8080/orders?dry");
/// # }
/// ```
#[derive(Clone, Copy)]
pub struct RedirectToLeaderLayer<F> {
    find: F,
    retry_after: Duration,
}

/// Tells clients where the leader is. See [`RedirectToLeaderLayer`].
#[derive(Clone)]
pub struct RedirectToLeader<S, F> {
    inner: S,
    find: F,
    retry_after: Duration,
}

pin_project! {
    /// The answer of [`RedirectToLeader`].
    #[must_use = "futures do nothing unless polled"]
    pub struct RedirectToLeaderFuture<F, L> {
        #[pin]
        inner: F,
        find: L,
        asked: Asked,
        retry_after: Duration,
    }
}

/// What was asked for.
enum Asked {
    Grpc,
    Path(Option<PathAndQuery>),
}

// === impl RedirectToLeaderLayer ===

impl<F> RedirectToLeaderLayer<F>
where
    F: Fn() -> Option<Bytes>,
{
    /// Sends clients to where `find` says that the leader is.
    #[must_use]
    pub const fn new(find: F) -> Self {
        Self { find, retry_after: Duration::from_secs(1) }
    }
}

impl<F> RedirectToLeaderLayer<F> {
    /// Sets when clients are to come again while nobody leads. A second unless set, which is how often
    /// candidates look. It is told in whole seconds, rounded up.
    #[must_use]
    pub const fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = after;
        self
    }
}

impl<S, F: Clone> Layer<S> for RedirectToLeaderLayer<F> {
    type Service = RedirectToLeader<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        RedirectToLeader { inner, find: self.find.clone(), retry_after: self.retry_after }
    }
}

impl<F> fmt::Debug for RedirectToLeaderLayer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedirectToLeaderLayer")
            .field("retry_after", &self.retry_after)
            .finish_non_exhaustive()
    }
}

// === impl RedirectToLeader ===

impl<S, F, ReqB, B> Service<Request<ReqB>> for RedirectToLeader<S, F>
where
    S: Service<Request<ReqB>, Response = Response<B>>,
    S::Error: IntoBoxError,
    F: Fn() -> Option<Bytes> + Clone,
    B: Default,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = RedirectToLeaderFuture<S::Future, F>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<ReqB>) -> Self::Future {
        let asked = if grpc::is_grpc(request.headers()) {
            Asked::Grpc
        } else {
            Asked::Path(request.uri().path_and_query().cloned())
        };
        let (find, retry_after) = (self.find.clone(), self.retry_after);
        RedirectToLeaderFuture { inner: self.inner.call(request), find, asked, retry_after }
    }
}

impl<S: fmt::Debug, F> fmt::Debug for RedirectToLeader<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedirectToLeader")
            .field("inner", &self.inner)
            .field("retry_after", &self.retry_after)
            .finish_non_exhaustive()
    }
}

// === impl RedirectToLeaderFuture ===

impl<F, L, B, E> Future for RedirectToLeaderFuture<F, L>
where
    F: Future<Output = Result<Response<B>, E>>,
    E: Into<BoxError>,
    L: Fn() -> Option<Bytes>,
    B: Default,
{
    type Output = Result<Response<B>, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = match ready!(this.inner.poll(cx)) {
            Ok(response) => Ok(response),
            Err(error) => {
                let error = error.into();
                match not_leader(&error) {
                    Some(rejected) => this.asked.answer((this.find)(), rejected, *this.retry_after),
                    None => Err(error),
                }
            }
        };
        Poll::Ready(answer)
    }
}

impl<F, L> fmt::Debug for RedirectToLeaderFuture<F, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedirectToLeaderFuture").finish_non_exhaustive()
    }
}

/// The refusal, if the error itself is one, and not one that a handler's error brought along.
fn not_leader(error: &BoxError) -> Option<Rejected> {
    let rejected = peel::<Rejected>(&**error).copied();
    rejected.filter(|rejected| rejected.reason() == Reason::NotLeader)
}

// === impl Asked ===

impl Asked {
    fn answer<B: Default>(
        &self,
        leader: Option<Bytes>,
        rejected: Rejected,
        after: Duration,
    ) -> Result<Response<B>, BoxError> {
        let response = match (leader, self) {
            (None, Self::Path(_)) => {
                Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "").retry_in(after).head()
            }
            (None, Self::Grpc) => return Err(rejected.retry_in(after).into()),
            (Some(address), Self::Path(Some(path))) => {
                let location = location(&address, path).ok_or(rejected)?;
                tracing::debug!(?location, "sent on to the leader");
                let mut response = Refusal::new(StatusCode::TEMPORARY_REDIRECT, "").head();
                response.headers_mut().insert(LOCATION, location);
                response
            }
            (Some(_), _) => return Err(rejected.into()),
        };
        Ok(response.map(|()| B::default()))
    }
}

/// Where the leader has that path, if its address is one.
fn location(address: &[u8], path: &PathAndQuery) -> Option<HeaderValue> {
    // `*`, as of `OPTIONS`, is nowhere.
    path.as_str().starts_with('/').then_some(())?;
    let address = from_utf8(address).ok()?;
    let (scheme, authority) = match address.split_once("//") {
        Some((scheme @ ("http:" | "https:"), authority)) => (scheme, authority),
        Some(_) => return None,
        None => ("", address),
    };
    let authority: Authority = authority.parse().ok()?;
    let port = authority.as_str().strip_prefix(authority.host())?;
    let is_port =
        |text: &str| text.bytes().all(|b| b.is_ascii_digit()) && text.parse::<u16>().is_ok();
    (port.is_empty() || port.strip_prefix(':').is_some_and(is_port)).then_some(())?;
    HeaderValue::try_from(format!("{scheme}//{authority}{path}")).ok()
}

#[cfg(test)]
mod tests {
    use buttress_core::{FencingToken, TermOver};
    use futures_util::FutureExt;
    use http::{Method, header::CONTENT_TYPE};
    use proptest::prelude::*;
    use tower::{ServiceExt, service_fn};

    use super::*;
    use crate::testing::Wrapped;

    const REFUSED: Rejected = Rejected::new(Reason::NotLeader, "leadership");

    type Answer = Result<Response<String>, BoxError>;

    /// What a client hears whose request failed so, if the leader is there.
    fn ask(
        leader: Option<&'static str>,
        request: Request<()>,
        error: impl Into<BoxError>,
    ) -> Answer {
        let mut error = Some(error.into());
        let fails = service_fn(move |_: Request<()>| {
            std::future::ready(Err::<Response<String>, _>(error.take().expect("it is called once")))
        });
        let layer = RedirectToLeaderLayer::new(move || leader.map(Bytes::from));
        layer.layer(fails).oneshot(request).now_or_never().unwrap()
    }

    fn get(path: &str) -> Request<()> {
        Request::get(path).body(()).unwrap()
    }

    fn sent_to(leader: &'static str, path: &str) -> Option<String> {
        let response = ask(Some(leader), get(path), REFUSED).ok()?;
        assert_eq!((response.status().as_u16(), response.body().as_str()), (307, ""));
        Some(response.headers()[LOCATION].to_str().unwrap().to_owned())
    }

    #[test]
    fn a_client_is_sent_to_the_same_path_of_whoever_leads() {
        for (leader, path, expected) in [
            ("node-2:8080", "/orders?dry=1", "//node-2:8080/orders?dry=1"),
            ("node-2", "/", "//node-2/"),
            ("10.0.0.7:80", "/a//b", "//10.0.0.7:80/a//b"),
            ("[fd00::7]:8080", "/", "//[fd00::7]:8080/"),
            ("[fd00::7]", "//evil", "//[fd00::7]//evil"),
            ("https://node-2:8443", "/orders", "https://node-2:8443/orders"),
            ("http://node-2", "/?", "http://node-2/?"),
            ("node-2:8080", "http://front/orders?dry", "//node-2:8080/orders?dry"),
        ] {
            assert_eq!(sent_to(leader, path).as_deref(), Some(expected));
        }
    }

    #[test]
    fn what_is_no_address_sends_nobody_anywhere() {
        for leader in [
            "",
            " ",
            "node 2",
            "node-2:",
            "node-2:http",
            "node-2:+80",
            "node-2:65536",
            "node-2:80:80",
            "fd00::7",
            "me@node-2",
            "https://me:secret@node-2",
            "node-2/orders",
            "https://node-2/",
            "https://node-2?x",
            "https://node-2#x",
            "https://",
            "ftp://node-2",
            "//node-2",
            "node-2\r\nset-cookie: a=b",
            "{\"zone\":\"a\"}",
        ] {
            let error = ask(Some(leader), get("/"), REFUSED).unwrap_err();
            assert_eq!(error.downcast_ref(), Some(&REFUSED), "{leader:?}");
        }
        assert_eq!(location(b"node-\xff", &PathAndQuery::from_static("/")), None);
        let options = Request::builder().method(Method::OPTIONS).uri("*").body(()).unwrap();
        assert!(ask(Some("node-2"), options, REFUSED).is_err());
    }

    proptest! {
        #[test]
        fn whatever_a_leader_says_it_sends_to_a_host_and_to_the_path_alone(
            address in ".{0,24}|[a-z0-9:/@.\\[\\]#?-]{0,24}", path in "/[a-z/]{0,8}"
        ) {
            let path: PathAndQuery = path.parse().unwrap();
            if let Some(location) = location(address.as_bytes(), &path) {
                let location = location.to_str().unwrap();
                let (_, rest) = location.split_once("//").unwrap();
                let host = rest.strip_suffix(path.as_str()).unwrap();
                prop_assert!(!host.is_empty() && !host.contains(['/', '@', '#', '?']), "{}", location);
                prop_assert!(address.ends_with(host));
            }
        }
    }

    #[test]
    fn while_nobody_leads_a_client_is_to_come_again() {
        let response = ask(None, get("/"), REFUSED).unwrap();
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["retry-after"], "1");
    }

    #[test]
    fn grpc_follows_nothing_and_is_told_when_to_come_again() {
        let grpc =
            || Request::post("/a.B/C").header(CONTENT_TYPE, "application/grpc").body(()).unwrap();
        let error = ask(Some("node-2:8080"), grpc(), REFUSED).unwrap_err();
        assert_eq!(error.downcast_ref(), Some(&REFUSED));
        let error = ask(None, grpc(), REFUSED).unwrap_err();
        assert_eq!(error.downcast_ref(), Some(&REFUSED.retry_in(Duration::from_secs(1))));
    }

    #[test]
    fn what_may_have_been_carried_out_is_sent_nowhere_else() {
        let over = TermOver::new(FencingToken::new(7).unwrap());
        let errors: [fn(TermOver) -> BoxError; 3] = [
            |over| over.into(),
            // Of a handler that wrote, and then asked somebody who does not lead.
            |_| Wrapped(REFUSED.into()).into(),
            |_| Rejected::new(Reason::Overloaded, "shed").into(),
        ];
        for error in errors {
            for leader in [Some("node-2:8080"), None] {
                let passed = ask(leader, get("/"), error(over)).unwrap_err();
                assert_eq!(passed.to_string(), error(over).to_string());
            }
        }
    }
}
