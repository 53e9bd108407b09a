//! Three services in a row, axum's, tonic's and hyper's, and one budget of time that shrinks from hop to hop.
//!
//! No handler here passes a deadline on, and yet each service knows what its caller has left: layers take it from
//! the request, hold the handler to it, and tell the next one what remains.
//!
//! `cargo run -p buttress-examples --example three_hops`

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, extract::Path, routing::get};
use buttress::{
    BoxError, Deadline, DeadlineLayer, HttpService, Standard, edge,
    http::{
        Body, Hyper, ReceiveDeadlineLayer, RejectedAsResponseLayer, SendDeadline,
        SendDeadlineLayer, grpc_status, hyper, refusal, tonic,
    },
};
use buttress_examples::shop::{
    Order, Receipt,
    orders_client::OrdersClient,
    orders_server::{Orders, OrdersServer},
};
use bytes::Bytes;
use http::{HeaderName, Request, Response, StatusCode};
use http_body_util::{Empty, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{net::TcpListener, time::sleep};
use tonic::transport::{Endpoint, Server, server::TcpIncoming};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

/// What a caller waits for, in milliseconds, where gRPC's `grpc-timeout` is not at hand.
const LEFT: HeaderName = HeaderName::from_static("x-time-left-ms");

/// Nothing runs for longer, whatever its caller says.
const LONGEST: Duration = Duration::from_secs(5);

/// Who was asked, with how much time left, in order. It decides nothing: it is to be shown.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<Vec<(&'static str, Duration)>>>);

impl Asked {
    fn note(&self, hop: &'static str) {
        let left = Deadline::current().map_or(Duration::MAX, |deadline| deadline.left(edge::now()));
        println!("  {hop:<5} is asked, with {:>3} ms left", left.as_millis());
        self.0.lock().unwrap().push((hop, left));
    }

    fn take(&self) -> Vec<(&'static str, Duration)> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

// === The last hop: hyper's server ===

async fn stock(asked: Asked) -> Result<SocketAddr, BoxError> {
    let service = ServiceBuilder::new()
        .layer(RejectedAsResponseLayer::new())
        .layer(ReceiveDeadlineLayer::millis(LEFT))
        .layer(DeadlineLayer::new(LONGEST))
        .service(service_fn(move |_: Request<hyper::body::Incoming>| {
            asked.note("hyper");
            async { Ok::<_, Infallible>(Response::new(Body::<Empty<Bytes>>::from("in stock"))) }
        }));

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (service, socket) =
                (TowerToHyperService::new(service.clone()), TokioIo::new(socket));
            tokio::spawn(async move {
                auto::Builder::new(TokioExecutor::new()).serve_connection(socket, service).await
            });
        }
    });
    Ok(addr)
}

// === The one in the middle: tonic's server ===

type Stock = HttpService<SendDeadline<Hyper<Client<HttpConnector, Full<Bytes>>>>>;

struct Shop {
    asked: Asked,
    stock: Stock,
    uri: String,
}

#[tonic::async_trait]
impl Orders for Shop {
    async fn price(
        &self,
        order: tonic::Request<Order>,
    ) -> Result<tonic::Response<Receipt>, tonic::Status> {
        self.asked.note("tonic");
        let slow = order.get_ref().item == "slow";
        sleep(Duration::from_millis(if slow { 480 } else { 50 })).await;

        let request = Request::get(&self.uri).body(Full::default()).map_err(grpc_status)?;
        self.stock.clone().oneshot(request).await.map_err(grpc_status)?;
        Ok(tonic::Response::new(Receipt { cents: 250 }))
    }

    async fn place(
        &self,
        order: tonic::Request<Order>,
    ) -> Result<tonic::Response<Receipt>, tonic::Status> {
        self.price(order).await
    }
}

async fn shop(asked: Asked, stock: SocketAddr) -> Result<SocketAddr, BoxError> {
    let client = hyper(Client::builder(TokioExecutor::new()).build_http());
    let client = Standard::http().build()?.layer(SendDeadlineLayer::millis(LEFT).layer(client));
    let shop = Shop { asked, stock: client, uri: format!("http://{stock}/") };

    let incoming = TcpIncoming::bind("127.0.0.1:0".parse()?)?;
    let addr = incoming.local_addr()?;
    let server = Server::builder()
        .layer(RejectedAsResponseLayer::grpc())
        .layer(ReceiveDeadlineLayer::grpc())
        .layer(DeadlineLayer::new(LONGEST))
        .add_service(OrdersServer::new(shop))
        .serve_with_incoming(incoming);
    tokio::spawn(server);
    Ok(addr)
}

// === The one in front: axum's server ===

async fn front(asked: Asked, shop: SocketAddr) -> Result<SocketAddr, BoxError> {
    let channel = Endpoint::from_shared(format!("http://{shop}"))?.connect_lazy();
    let client = SendDeadlineLayer::grpc().layer(tonic(channel));
    let client = OrdersClient::new(Standard::grpc("shop").build()?.layer(client));

    let handler = async move |Path(item): Path<String>| {
        asked.note("axum");
        sleep(Duration::from_millis(50)).await;
        match client.clone().price(Order { item }).await {
            Ok(receipt) => Ok(format!("{} cents", receipt.into_inner().cents)),
            // What is beneath the status tells that the time was up, if it was.
            Err(status) => {
                Err(refusal(&status).map_or(StatusCode::BAD_GATEWAY, |refusal| refusal.status()))
            }
        }
    };
    let app = Router::new().route("/price/{item}", get(handler)).layer(
        ServiceBuilder::new()
            .layer(RejectedAsResponseLayer::new())
            .layer(ReceiveDeadlineLayer::millis(LEFT))
            .layer(DeadlineLayer::new(LONGEST)),
    );
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    tokio::spawn(axum::serve(listener, app).into_future());
    Ok(addr)
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let asked = Asked::default();
    let stock = stock(asked.clone()).await?;
    let shop = shop(asked.clone(), stock).await?;
    let front = front(asked.clone(), shop).await?;

    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let ask = async |item: &str| {
        let uri = format!("http://{front}/price/{item}");
        let request = Request::get(uri).header(LEFT, 500).body(Empty::new())?;
        let status = client.request(request).await?.status();
        println!("  the caller is answered {status}");
        Ok::<_, BoxError>((status, asked.take()))
    };

    // A machine that is busy with other things may use the time up: then it is asked once more.
    let mut shown = false;
    for _ in 0..10 {
        println!("a caller waits for 500 ms, axum and tonic work 50 ms each");
        let (status, told) = ask("tea").await?;
        // What is told is rounded up, by less than a millisecond.
        let work = Duration::from_millis(50 - 1);
        let shrinks = told.windows(2).all(|pair| pair[1].1 + work <= pair[0].1);
        let hops = told.iter().map(|(hop, _)| *hop);
        shown = status == 200 && shrinks && hops.eq(["axum", "tonic", "hyper"]);
        if shown || !shrinks {
            break;
        }
    }
    if !shown {
        return Err("each should be told less than the one before".into());
    }

    println!("another waits for 500 ms, and tonic works 480 ms");
    let (status, told) = ask("slow").await?;
    // What axum's server has answered may not be all that goes on: is the last asked for nobody?
    sleep(Duration::from_millis(200)).await;
    let late = asked.take();
    if !(status == 504 && late.is_empty() && told.iter().all(|(hop, _)| *hop != "hyper")) {
        return Err("the last should not be asked when the time is gone".into());
    }
    println!("  hyper was not asked: there was no time left to do it for anybody");
    Ok(())
}
