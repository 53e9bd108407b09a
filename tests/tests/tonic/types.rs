//! What users write: it compiles, and can be kept, cloned and sent.

use buttress::{InvalidSetting, Standard, http::tonic};
use static_assertions::assert_impl_all;
use tonic::{
    Request, Status,
    service::{Interceptor, interceptor::InterceptedService},
    transport::Channel,
};
use tower::Layer;

use super::{Stack, channel, client, patient, serve, standard};
use crate::shop::{OrdersClient, Shop, order};

/// A client in a struct, by name.
#[derive(Clone)]
struct App {
    orders: OrdersClient<Stack>,
}

assert_impl_all!(App: Clone, Send, Sync);
assert_impl_all!(OrdersClient<Stack>: Clone, Send, Sync);

/// All that a generated client asks of a service, and what it gives for it.
const fn documented_bounds<S>(_: &S)
where
    S: tower::Service<
            http::Request<tonic::body::Body>,
            Response: IsResponse<Body: Default>,
            Error = buttress::BoxError,
            Future: Send,
        > + Clone
        + Send
        + Sync
        + 'static,
{
}

trait IsResponse {
    type Body: http_body::Body<Data = bytes::Bytes, Error = buttress::BoxError> + Send + 'static;
}

impl<B> IsResponse for http::Response<B>
where
    B: http_body::Body<Data = bytes::Bytes, Error = buttress::BoxError> + Send + 'static,
{
    type Body = B;
}

// GRP-08
#[tokio::test]
async fn a_client_can_be_kept_cloned_and_sent() {
    let addr = serve(&Shop::default()).await;
    let app = App { orders: client(&standard(patient()), addr) };
    let mut orders = app.clone().orders;
    let answer = tokio::spawn(async move { orders.get(order("tea")).await });
    assert_eq!(answer.await.unwrap().unwrap().into_inner().text, "tea");
}

// GRP-08
#[tokio::test]
async fn the_bounds_are_those_that_the_docs_name() {
    let addr = serve(&Shop::default()).await;
    let stack = standard(patient());
    documented_bounds(&stack.layer(tonic(channel(addr))));
    documented_bounds(
        &tower::ServiceBuilder::new()
            .layer(&stack)
            .layer(buttress::http::GrpcHeadLayer::new())
            .layer(buttress::http::SendDeadlineLayer::grpc())
            .service(tonic(channel(addr))),
    );
}

// GRP-08
#[tokio::test]
async fn the_first_thing_that_one_writes_works() {
    async fn first(channel: Channel) -> Result<String, Box<dyn std::error::Error>> {
        let mut orders = OrdersClient::new(Standard::grpc("orders").build()?.layer(tonic(channel)));
        Ok(orders.get(order("tea")).await?.into_inner().text)
    }
    let addr = serve(&Shop::default()).await;
    assert_eq!(first(channel(addr)).await.unwrap(), "tea");
}

/// Asks for what the shop says of `timeout`, which it is told by an interceptor.
#[derive(Clone)]
struct Stamp;

impl Interceptor for Stamp {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("grpc-timeout", "7S".parse().unwrap());
        Ok(request)
    }
}

// GRP-08
#[tokio::test]
async fn an_interceptor_goes_above_the_stack_and_beneath_it() {
    let addr = serve(&Shop::default()).await;
    let stack = standard(patient());
    let mut above = OrdersClient::with_interceptor(stack.layer(tonic(channel(addr))), Stamp);
    assert_eq!(above.get(order("timeout")).await.unwrap().into_inner().text, "7S");
    let intercepted = InterceptedService::new(channel(addr), Stamp);
    let mut beneath = OrdersClient::new(stack.layer(tonic(intercepted)));
    assert_eq!(beneath.get(order("timeout")).await.unwrap().into_inner().text, "7S");
}

// GRP-08
#[test]
fn a_stack_is_checked_for_what_a_generated_client_sends() {
    fn stack(channel: Channel) -> Result<Stack, InvalidSetting> {
        let stack = tower::ServiceBuilder::new()
            .layer(Standard::grpc("orders").build()?)
            .layer(buttress::http::GrpcHeadLayer::new())
            .layer(buttress::http::SendDeadlineLayer::grpc())
            .service(tonic(channel));
        buttress::check::<http::Request<tonic::body::Body>, _>(&stack);
        Ok(stack)
    }
    let _ = stack;
}
