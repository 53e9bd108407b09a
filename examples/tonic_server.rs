//! A tonic server that refuses what it cannot do in time, and a burst of callers who are told so.
//!
//! `cargo run -p buttress-examples --example tonic_server`

use std::{collections::BTreeMap, time::Duration};

use buttress::{
    BoxError, Bulkhead, BulkheadSettings, DeadlineLayer, FixedLimit, Shed, ShedLayer, ShedSettings,
    http::{ReceiveDeadlineLayer, RejectedAsResponseLayer, grpc_status},
};
use buttress_examples::shop::{
    Order, Receipt,
    orders_client::OrdersClient,
    orders_server::{Orders, OrdersServer},
};
use tokio::{task::JoinSet, time::sleep};
use tonic::{
    Request, Response, Status,
    transport::{Endpoint, Server, server::TcpIncoming},
};
use tower::ServiceBuilder;

struct Shop {
    placing: Bulkhead,
}

#[tonic::async_trait]
impl Orders for Shop {
    async fn price(&self, _: Request<Order>) -> Result<Response<Receipt>, Status> {
        sleep(Duration::from_millis(50)).await;
        Ok(Response::new(Receipt { cents: 250 }))
    }

    async fn place(&self, order: Request<Order>) -> Result<Response<Receipt>, Status> {
        // One at a time of this method, among all that the server works on.
        let _slot = self.placing.try_acquire().map_err(grpc_status)?;
        self.price(order).await
    }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let shed = Shed::new(FixedLimit::new(4)?, ShedSettings::default())?;
    let shop = Shop { placing: Bulkhead::new(BulkheadSettings::new(1))? };

    // === What wraps the server ===
    let whole = ServiceBuilder::new()
        .layer(RejectedAsResponseLayer::grpc()) // whatever is refused beneath has a status
        .layer(ReceiveDeadlineLayer::grpc().margin(Duration::from_millis(20))?) // `grpc-timeout`
        .layer(ShedLayer::new(shed.clone())) // 4 at a time; others wait a little, or are refused
        .layer(DeadlineLayer::new(Duration::from_secs(5))); // nothing runs for longer

    let incoming = TcpIncoming::bind("127.0.0.1:0".parse()?)?;
    let addr = incoming.local_addr()?;
    let server = Server::builder()
        .layer(whole)
        .add_service(OrdersServer::new(shop))
        .serve_with_incoming(incoming);
    tokio::spawn(server);

    // 40 callers who ask 10 times each, over one connection. A quarter of them wait for 40 ms.
    let channel = Endpoint::from_shared(format!("http://{addr}"))?.connect().await?;
    let mut callers = JoinSet::new();
    for n in 0..40 {
        let mut client = OrdersClient::new(channel.clone());
        let (method, left) =
            [("price", 1000), ("price", 1000), ("place", 1000), ("price", 40)][n % 4];
        callers.spawn(async move {
            let mut answers = Vec::new();
            for _ in 0..10 {
                let mut order = Request::new(Order { item: "tea".to_owned() });
                order.set_timeout(Duration::from_millis(left));
                let answer = match method {
                    "place" => client.place(order).await,
                    _ => client.price(order).await,
                };
                let status = answer.err().unwrap_or_else(|| Status::ok(""));
                let wait = status.metadata().get("grpc-retry-pushback-ms").cloned();
                let wait = wait.and_then(|wait| wait.to_str().map(str::to_owned).ok());
                answers.push((method, left, format!("{:?}", status.code()), wait));
            }
            answers
        });
    }
    let mut counts = BTreeMap::new();
    for answer in callers.join_all().await.into_iter().flatten() {
        *counts.entry(answer).or_insert(0) += 1;
    }

    for ((method, left, code, wait), count) in &counts {
        let wait = wait.as_ref().map(|ms| format!(", pushback {ms} ms")).unwrap_or_default();
        println!("{method} with {left:>4} ms: {count:>3} times {code}{wait}");
    }
    println!("the server worked on {} of {} calls", shed.stats().admitted, shed.stats().arrived);

    let seen = |code| counts.keys().any(|(.., c, _)| c == code);
    let is_shown = seen("Ok") && seen("ResourceExhausted") && seen("DeadlineExceeded");
    if is_shown { Ok(()) } else { Err("that is not what it should show".into()) }
}
