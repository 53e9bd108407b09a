use http::Response;
use tower_service::Service;

/// What answers a request `Req` with an [`http::Response`], asked of the client beneath an adapter.
///
/// It is [`Service`] by a name of ours, so that the compiler can say what to do where a client takes other
/// requests: asked for `Service` itself, it would list whatever else the client may be.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not answer `{Req}`",
    label = "the client in here takes other requests",
    note = "hyper's client takes the type of body for which it was built: `build_http::<Full<Bytes>>()`, and \
            `build_http::<ReplayBody<B>>()` where a body `B` is recorded, as it is by `HttpReplay::record(..)` and \
            `GrpcReplay`",
    note = "tonic's channel takes its own alone: put it into its adapter, `buttress::http::tonic(channel)`",
    note = "reqwest's client takes its own alone: put it into its adapter, `buttress::http::reqwest(client)`"
)]
pub trait HttpClient<Req>:
    Service<Req, Response = Response<Self::Body>, Error = Self::Failure>
{
    /// The body of its answers.
    type Body;
    // Repeated here, for where `Service::Error` is named the compiler asks for `Service` after all.
    /// How it fails: [`Service::Error`].
    type Failure;
}

#[diagnostic::do_not_recommend]
impl<S, Req, B> HttpClient<Req> for S
where
    S: Service<Req, Response = Response<B>>,
{
    type Body = B;
    type Failure = S::Error;
}
