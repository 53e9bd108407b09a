//! Our layers on tonic's server, which knows none of them.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use buttress::{
    Bulkhead, BulkheadLayer, BulkheadSettings, Context, DeadlineLayer, Fence, FenceGuard,
    FencingToken, FixedLimit, LeaseId, Shed, ShedLayer, ShedSettings,
    http::{FencingLayer, ReceiveDeadlineLayer, RejectedAsResponseLayer, SendFenceLayer},
};
use bytes::Bytes;
use futures_util::StreamExt;
use http_body_util::Full;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::{net::TcpListener, task::JoinHandle};
use tonic::{Code, Request, server::NamedService, transport::Server};

use super::{channel, ms, until};
use crate::shop::{OrdersClient, OrdersServer, Shop, listen, order};

fn one_at_a_time() -> Bulkhead {
    Bulkhead::new(BulkheadSettings::new(1)).unwrap()
}

/// A call that stays with the server until it is given up.
async fn hold(shop: &Shop, addr: SocketAddr) -> JoinHandle<()> {
    let mut orders = OrdersClient::new(channel(addr));
    let before = shop.hanging();
    let held = tokio::spawn(async move { drop(orders.get(order("hang")).await) });
    until("a call hangs", || shop.hanging() == before + 1).await;
    held
}

/// Hands on the bytes of each connection to `addr`, and counts the connections.
async fn counted(addr: SocketAddr) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (front, connections) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let count = connections.clone();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            count.fetch_add(1, SeqCst);
            tokio::spawn(async move {
                let mut server = tokio::net::TcpStream::connect(addr).await.unwrap();
                drop(tokio::io::copy_bidirectional(&mut client, &mut server).await);
            });
        }
    });
    (front, connections)
}

/// What a full server says to a bare client, and that the connection stays.
async fn assert_full(shop: &Shop, addr: SocketAddr, pushback: Option<&str>) {
    let (front, connections) = counted(addr).await;
    let mut orders = OrdersClient::new(channel(front));
    for n in 0..3 {
        let status = orders.get(order("tea")).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "{n}: {status}");
        let said = status.metadata().get("grpc-retry-pushback-ms");
        assert_eq!(said.map(|said| said.to_str().unwrap()), pushback);
    }
    assert_eq!(shop.calls(), 1, "only the one that hangs was worked on");
    assert_eq!(connections.load(SeqCst), 1, "a refusal closes no connection");
}

// GRP-07
#[tokio::test]
async fn a_bulkhead_alone_refuses_as_grpc_does() {
    let (shop, bulkhead) = (Shop::default(), one_at_a_time());
    let (addr, incoming) = listen().await;
    let server = Server::builder().layer(BulkheadLayer::new(bulkhead.clone()));
    tokio::spawn(server.clone().add_service(shop.server()).serve_with_incoming(incoming));
    let held = hold(&shop, addr).await;
    assert_full(&shop, addr, None).await;

    // As it is on the wire: a head that has it all.
    let request = http::Request::post(format!("http://{addr}/shop.Orders/Get"))
        .header("content-type", "application/grpc")
        .body(tonic::body::Body::empty());
    let answer = tower::ServiceExt::oneshot(channel(addr), request.unwrap()).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["content-type"], "application/grpc");
    assert_eq!(answer.headers()["grpc-status"], "8");
    assert!(http_body::Body::is_end_stream(answer.body()));

    held.abort();
    until("the slot is free", || bulkhead.in_flight() == 0).await;
    let mut orders = OrdersClient::new(channel(addr));
    assert_eq!(orders.get(order("tea")).await.unwrap().into_inner().text, "tea");
}

// GRP-07
#[tokio::test]
async fn a_shedder_alone_refuses_as_grpc_does() {
    let shop = Shop::default();
    let settings = ShedSettings::default();
    let shed = Shed::new(FixedLimit::new(1).unwrap(), settings).unwrap();
    let (addr, incoming) = listen().await;
    let server = Server::builder().layer(ShedLayer::new(shed.clone())).add_service(shop.server());
    tokio::spawn(server.serve_with_incoming(incoming));
    let held = hold(&shop, addr).await;
    // Whoever comes waits for a while, and is then refused.
    assert_full(&shop, addr, None).await;
    held.abort();
}

// GRP-07
#[tokio::test]
async fn with_the_layer_for_it_a_refusal_says_not_to_come_again() {
    let shop = Shop::default();
    let (addr, incoming) = listen().await;
    let server = Server::builder()
        .layer(RejectedAsResponseLayer::grpc())
        .layer(BulkheadLayer::new(one_at_a_time()))
        .add_service(shop.server());
    tokio::spawn(server.serve_with_incoming(incoming));
    let held = hold(&shop, addr).await;
    assert_full(&shop, addr, Some("-1")).await;
    held.abort();
}

// GRP-04, GRP-12
#[tokio::test]
async fn a_server_refuses_what_has_no_time_left_and_its_handlers_inherit_the_rest() {
    let shop = Shop::default();
    let (addr, incoming) = listen().await;
    let margin = ReceiveDeadlineLayer::grpc().margin(ms(100)).unwrap();
    let server = Server::builder().layer(margin).add_service(shop.server());
    tokio::spawn(server.serve_with_incoming(incoming));
    let mut orders = OrdersClient::new(channel(addr));
    let asked = |left| {
        let mut request = Request::new(order("left"));
        request.set_timeout(left);
        request
    };
    let left = orders.get(asked(Duration::from_secs(60))).await.unwrap().into_inner().text;
    assert!(left.parse::<u64>().unwrap() <= 59_900, "{left}");
    let status = orders.get(asked(ms(100))).await.unwrap_err();
    // Said by the server, for nobody waits for so long here.
    assert_eq!((status.code(), status.message()), (Code::DeadlineExceeded, "deadline exceeded"));
    assert_eq!(shop.calls(), 1, "its handler was not called");
}

// GRP-07
#[tokio::test]
async fn what_runs_out_of_time_on_the_server_is_deadline_exceeded() {
    let shop = Shop::default();
    let (addr, incoming) = listen().await;
    let server = Server::builder()
        .layer(DeadlineLayer::new(ms(20)))
        .add_service(shop.server())
        .serve_with_incoming(incoming);
    tokio::spawn(server);
    let mut orders = OrdersClient::new(channel(addr));
    let status = orders.get(order("hang")).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::DeadlineExceeded, "timed out"));
    until("the handler was dropped", || shop.hanging() == 0).await;
}

// GRP-07
#[tokio::test]
async fn a_callers_limit_is_deadline_exceeded_though_tonics_server_would_say_cancelled() {
    let shop = Shop::default();
    let (addr, incoming) = listen().await;
    let layers = tower::ServiceBuilder::new()
        .layer(ReceiveDeadlineLayer::grpc())
        .layer(DeadlineLayer::new(Duration::from_secs(60)));
    let server = Server::builder().layer(layers).add_service(shop.server());
    tokio::spawn(server.serve_with_incoming(incoming));
    // A client that keeps no limit itself, as tonic's channel would.
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let calls = futures_util::stream::iter(0..100).map(|_| {
        let request = http::Request::post(format!("http://{addr}/shop.Orders/Get"))
            .header("content-type", "application/grpc")
            .header("grpc-timeout", "20m")
            .body(Full::new(Bytes::from_static(b"\0\0\0\0\x06\x0a\x04hang")));
        client.request(request.unwrap())
    });
    let answers = calls.buffer_unordered(10).collect::<Vec<_>>().await;
    assert!(shop.calls() > 0);
    for answer in answers {
        assert_eq!(answer.unwrap().headers()["grpc-status"], "4");
    }
}

// GRP-07
#[tokio::test]
async fn all_connections_and_services_share_one_bulkhead() {
    let (one, other) = (Shop::default(), Shop::default());
    let bulkhead = Bulkhead::new(BulkheadSettings::new(2)).unwrap();
    let layer = tower::ServiceBuilder::new()
        .layer(RejectedAsResponseLayer::grpc())
        .layer(BulkheadLayer::new(bulkhead.clone()));
    // Two servers, and the second of them with two services.
    let (first, incoming) = listen().await;
    let server = Server::builder().layer(layer.clone()).add_service(one.server());
    tokio::spawn(server.serve_with_incoming(incoming));
    let (second, incoming) = listen().await;
    let server = Server::builder()
        .layer(layer)
        .add_service(Renamed(other.server()))
        .add_service(other.server());
    tokio::spawn(server.serve_with_incoming(incoming));

    let held = [hold(&one, first).await, hold(&other, second).await];
    assert_eq!(bulkhead.in_flight(), 2);
    let full = futures_util::stream::iter([first, second, first, second]).map(|addr| async move {
        OrdersClient::new(channel(addr)).get(order("tea")).await.unwrap_err().code()
    });
    let codes = full.buffer_unordered(4).collect::<Vec<_>>().await;
    assert_eq!(codes, [Code::ResourceExhausted; 4]);
    for held in held {
        held.abort();
    }
    until("all slots are free", || bulkhead.in_flight() == 0).await;
}

/// The same service under another name.
#[derive(Clone)]
struct Renamed<S>(S);

impl<S> NamedService for Renamed<S> {
    const NAME: &'static str = "shop.Others";
}

impl<S: tower::Service<Req>, Req> tower::Service<Req> for Renamed<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(
        &mut self,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Req) -> S::Future {
        self.0.call(request)
    }
}

// GRP-08
#[test]
fn a_generated_server_keeps_its_name() {
    assert_eq!(OrdersServer::<Shop>::NAME, "shop.Orders");
}

#[tokio::test]
async fn a_call_of_a_former_leader_is_refused_as_grpc_does() {
    const LEASE: LeaseId = LeaseId::of("orders");
    let shop = Shop::default();
    let (addr, incoming) = listen().await;
    let fencing = FencingLayer::new(FenceGuard::new(LEASE));
    let server = Server::builder().layer(fencing).add_service(shop.server());
    tokio::spawn(server.serve_with_incoming(incoming));
    let mut orders =
        OrdersClient::new(tower::Layer::layer(&SendFenceLayer::new(LEASE), channel(addr)));

    for (token, code) in [
        (33, None),
        (34, None),
        (33, Some((Code::FailedPrecondition, "stale fencing token"))),
        (0, Some((Code::InvalidArgument, "no fencing token"))),
    ] {
        let term = FencingToken::new(token).map(|token| Fence::new(LEASE, token));
        let answer = Context::default().with_fence(term).scope(orders.get(order("tea"))).await;
        let status = answer.err();
        let said = status.as_ref().map(|status| (status.code(), status.message()));
        assert_eq!(said, code, "{token}");
    }
    assert_eq!(shop.calls(), 2);
}
