//! A gRPC service with one method of each kind, which does what the order says.

use std::{
    collections::HashMap,
    future::pending,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use buttress::{Deadline, edge};
use futures_util::{Stream, StreamExt, stream};
use tokio::net::TcpListener;
use tonic::{Request, Response, Status, Streaming, transport::server::TcpIncoming};

pub(crate) use generated::{
    Order, Receipt, orders_client::OrdersClient, orders_server::Orders, orders_server::OrdersServer,
};

#[allow(unreachable_pub, missing_docs)]
mod generated {
    /// What is asked for.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Order {
        #[prost(string, tag = "1")]
        pub text: String,
    }

    /// What is answered.
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Receipt {
        #[prost(string, tag = "1")]
        pub text: String,
    }

    include!(concat!(env!("OUT_DIR"), "/shop.Orders.rs"));
}

pub(crate) const GET: &str = "/shop.Orders/Get";
pub(crate) const LIST: &str = "/shop.Orders/List";

pub(crate) fn order(text: &str) -> Order {
    Order { text: text.to_owned() }
}

/// Answers every order with its text, but for these:
///
/// | order | answer |
/// |---|---|
/// | `busy n ..` | UNAVAILABLE to the first `n` that say so |
/// | `status n` | that status |
/// | `hang` | none |
/// | `timeout` | the `grpc-timeout` that came with it |
/// | `left` | the milliseconds until the ambient deadline |
#[derive(Clone, Debug, Default)]
pub(crate) struct Shop {
    seen: Arc<Mutex<HashMap<String, u32>>>,
    /// How many orders have come, and how many of those that hang are left.
    pub(crate) calls: Arc<AtomicUsize>,
    pub(crate) hanging: Arc<AtomicUsize>,
}

/// Counts while it is there.
struct Hanging(Arc<AtomicUsize>);

impl Drop for Hanging {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

impl Shop {
    pub(crate) fn server(&self) -> OrdersServer<Self> {
        OrdersServer::new(self.clone())
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.load(SeqCst)
    }

    pub(crate) fn hanging(&self) -> usize {
        self.hanging.load(SeqCst)
    }

    async fn answer<T>(&self, request: &Request<T>, order: &str) -> Result<Receipt, Status> {
        self.calls.fetch_add(1, SeqCst);
        let text = match order.split(' ').collect::<Vec<_>>()[..] {
            ["busy", n, ..] => {
                let mut seen = self.seen.lock().unwrap();
                let times = seen.entry(order.to_owned()).or_default();
                *times += 1;
                if *times <= n.parse().unwrap() {
                    return Err(Status::unavailable("busy"));
                }
                order.to_owned()
            }
            ["status", n] => {
                let code = n.parse::<i32>().unwrap();
                return Err(Status::new(code.into(), "as ordered"));
            }
            ["hang"] => {
                self.hanging.fetch_add(1, SeqCst);
                let _hanging = Hanging(self.hanging.clone());
                pending().await
            }
            ["timeout"] => {
                let timeout = request.metadata().get("grpc-timeout");
                timeout.map_or("none", |timeout| timeout.to_str().unwrap()).to_owned()
            }
            ["left"] => {
                let deadline = Deadline::current().expect("there is one");
                deadline.left(edge::now()).as_millis().to_string()
            }
            _ => order.to_owned(),
        };
        Ok(Receipt { text })
    }
}

type Receipts = Pin<Box<dyn Stream<Item = Result<Receipt, Status>> + Send>>;

#[tonic::async_trait]
impl Orders for Shop {
    async fn get(&self, request: Request<Order>) -> Result<Response<Receipt>, Status> {
        let text = request.get_ref().text.clone();
        self.answer(&request, &text).await.map(Response::new)
    }

    type ListStream = Receipts;

    /// Each word after a `|` is an order of its own, so that an answer can fail after its head, or later.
    async fn list(&self, request: Request<Order>) -> Result<Response<Receipts>, Status> {
        let text = request.get_ref().text.clone();
        let orders: Vec<_> = text.split('|').map(str::to_owned).collect();
        let (shop, request) = (self.clone(), Arc::new(request));
        let receipts = stream::iter(orders).then(move |order| {
            let (shop, request) = (shop.clone(), request.clone());
            async move { shop.answer(&request, &order).await }
        });
        Ok(Response::new(receipts.boxed()))
    }

    /// Answers the first order that fails, else with all their texts.
    async fn place(&self, request: Request<Streaming<Order>>) -> Result<Response<Receipt>, Status> {
        let (metadata, extensions, mut orders) = request.into_parts();
        let request = Request::from_parts(metadata, extensions, ());
        let mut text = String::new();
        while let Some(order) = orders.message().await? {
            text += &self.answer(&request, &order.text).await?.text;
        }
        Ok(Response::new(Receipt { text }))
    }

    type TalkStream = Receipts;

    async fn talk(&self, request: Request<Streaming<Order>>) -> Result<Response<Receipts>, Status> {
        let (metadata, extensions, orders) = request.into_parts();
        let request = Arc::new(Request::from_parts(metadata, extensions, ()));
        let shop = self.clone();
        let receipts = orders.then(move |order| {
            let (shop, request) = (shop.clone(), request.clone());
            async move { shop.answer(&request, &order?.text).await }
        });
        Ok(Response::new(receipts.boxed()))
    }
}

/// A free port on loopback, and what arrives there.
pub(crate) async fn listen() -> (SocketAddr, TcpIncoming) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    (listener.local_addr().unwrap(), TcpIncoming::from(listener))
}
