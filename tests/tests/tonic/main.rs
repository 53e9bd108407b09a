//! Generated clients over the standard stack, and our layers on tonic's servers: real sockets on loopback.
//!
//! Nothing here asserts how long anything takes. What must come to pass is waited for.

mod client;
mod codes;
mod restart;
mod server;
mod shop;
mod types;

use std::{error::Error, net::SocketAddr, time::Duration};

use buttress::{
    BudgetSettings, GrpcService, GrpcStandard, RetrySettings, Standard, edge,
    http::{GrpcHead, GrpcHeadLayer, GrpcReplay, SendDeadline, SendDeadlineLayer, Tonic, tonic},
};
use tonic::{
    Status,
    transport::{Channel, Endpoint, Server},
};
use tower::ServiceBuilder;

use shop::{GET, LIST, OrdersClient, Shop, listen};

/// What an application keeps.
type Stack = GrpcService<GrpcHead<SendDeadline<Tonic<Channel>>>>;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Limits that nobody reaches, short waits, and as much budget as it wants.
fn patient() -> buttress::StandardSettings {
    let mut settings = buttress::StandardSettings::default();
    settings.total = ms(60_000);
    settings.attempt = ms(25_000);
    settings.retry = RetrySettings::default().base(ms(1)).cap(ms(2));
    settings.budget = BudgetSettings::default().reserve(1000);
    settings
}

fn standard(settings: buttress::StandardSettings) -> GrpcStandard {
    let replay = GrpcReplay::methods([GET, LIST]);
    Standard::grpc("orders").settings(settings).replay(replay).build().unwrap()
}

fn channel(addr: SocketAddr) -> Channel {
    Endpoint::new(format!("http://{addr}")).unwrap().connect_lazy()
}

fn client(stack: &GrpcStandard, addr: SocketAddr) -> OrdersClient<Stack> {
    OrdersClient::new(
        ServiceBuilder::new()
            .layer(stack)
            .layer(GrpcHeadLayer::new())
            .layer(SendDeadlineLayer::grpc())
            .service(tonic(channel(addr))),
    )
}

/// A server with nothing of ours.
async fn serve(shop: &Shop) -> SocketAddr {
    let (addr, incoming) = listen().await;
    let server = Server::builder().add_service(shop.server());
    tokio::spawn(server.serve_with_incoming(incoming));
    addr
}

/// The error of ours that lies beneath a status.
fn ours<E: Error + 'static>(status: &Status) -> Option<&E> {
    buttress::find(status)
}

/// Waits for what must come to pass, and prints how long that took.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = edge::now();
    for _ in 0..3_000 {
        if holds() {
            println!("{what}: after {:?}", edge::now() - start);
            return;
        }
        tokio::time::sleep(ms(10)).await;
    }
    panic!("it never came to pass that {what}");
}
