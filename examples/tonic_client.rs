//! A generated client of tonic's in the standard stack: which methods are sent again, and what a caller hears.
//!
//! `cargo run -p buttress-examples --example tonic_client`

use std::{
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::Duration,
};

use buttress::{
    BoxError, Standard,
    http::{GrpcHeadLayer, GrpcReplay, SendDeadlineLayer, tonic},
};
use buttress_examples::shop::{
    Order, Receipt,
    orders_client::OrdersClient,
    orders_server::{Orders, OrdersServer},
};
use tonic::{
    Code, Request, Response, Status,
    transport::{Endpoint, Server, server::TcpIncoming},
};
use tower::ServiceBuilder;

static CALLS: AtomicU32 = AtomicU32::new(0);

/// Fails every other time; for an item that it does not know, it takes for ever.
struct Shop;

#[tonic::async_trait]
impl Orders for Shop {
    async fn price(&self, order: Request<Order>) -> Result<Response<Receipt>, Status> {
        let is_well = CALLS.fetch_add(1, Relaxed) % 2 == 1;
        match order.into_inner().item.as_str() {
            "tea" if is_well => Ok(Response::new(Receipt { cents: 250 })),
            "tea" => Err(Status::unavailable("the till is jammed")),
            _ => std::future::pending().await,
        }
    }

    async fn place(&self, order: Request<Order>) -> Result<Response<Receipt>, Status> {
        self.price(order).await
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse()?)?;
    let channel =
        Endpoint::from_shared(format!("http://{}", incoming.local_addr()?))?.connect_lazy();
    let server = Server::builder().add_service(OrdersServer::new(Shop));
    tokio::spawn(server.serve_with_incoming(incoming));

    // === What wraps the channel ===
    let safe = GrpcReplay::methods(["/shop.Orders/Price"]); // a price may be asked for twice
    let stack =
        Standard::grpc("orders").attempt(Duration::from_millis(300)).replay(safe).build()?;
    let layers = (stack, GrpcHeadLayer::new(), SendDeadlineLayer::grpc());
    let mut client = OrdersClient::new(ServiceBuilder::new().layer(layers).service(tonic(channel)));

    let order = |item: &str| Order { item: item.to_owned() };
    let cents = client.price(order("tea")).await?.into_inner().cents;
    let asked = CALLS.swap(0, Relaxed);
    println!("price: {cents} cents after {asked} attempts");

    let jammed = client.place(order("tea")).await.unwrap_err();
    let placed = CALLS.swap(0, Relaxed);
    println!("place: {:?}, {}, after {placed} attempt", jammed.code(), jammed.message());

    let late = client.place(order("nectar")).await.unwrap_err();
    println!("place, and it takes for ever: {:?}, {}", late.code(), late.message());

    let is_shown = (cents, asked, placed) == (250, 2, 1)
        && (jammed.code(), late.code()) == (Code::Unavailable, Code::DeadlineExceeded);
    if is_shown { Ok(()) } else { Err("that is not what it should show".into()) }
}
