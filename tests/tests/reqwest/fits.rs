//! Where a client with a stack goes: structs, states, boxes, and reqwest's own connector.

use std::{
    cell::Cell,
    convert::Infallible,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use ::reqwest::Client;
use axum::{Router, extract::State, routing::get};
use buttress::{
    BoxError, Bulkhead, BulkheadLayer, BulkheadSettings, ConnectTimeoutLayer, Elapsed, HttpService,
    Limit, TimeoutLayer, find,
    http::{AsReqwest, Body, Reqwest, ReqwestReplay, as_reqwest, reqwest},
};
use bytes::Bytes;
use futures_util::future::{Ready, ready};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use static_assertions::{assert_impl_all, assert_not_impl_any};
use tokio::net::TcpListener;
use tower::{Layer, Service, ServiceExt, service_fn, util::BoxCloneSyncService};

use crate::support::{self, building, ms, patient, plain, silent, third_time};

type Stack = HttpService<Reqwest<Client>>;
type OfReqwest = AsReqwest<HttpService<Reqwest<Client>, ReqwestReplay>>;

// HTP-08
assert_impl_all!(Stack: Clone, Send, Sync);
assert_impl_all!(OfReqwest: Clone, Send, Sync);
assert_impl_all!(<Stack as Service<Request<Full<Bytes>>>>::Future: Send);
assert_impl_all!(<OfReqwest as Service<::reqwest::Request>>::Future: Send);

fn order(url: &str) -> Request<Full<Bytes>> {
    Request::put(url).body(Full::from("tea")).unwrap()
}

// HTP-08
#[tokio::test]
async fn the_client_is_a_state_of_axums() {
    let (upstream, _) = third_time("tea").await;
    let stack = patient().replay(ReqwestReplay::record(0)).build().unwrap();
    let inner = plain();
    let client: OfReqwest = as_reqwest(stack.layer(reqwest(inner.clone())));
    let url = upstream.url();
    let handler = |State(client): State<OfReqwest>| async move {
        let request = inner.get(url).build().unwrap();
        client.oneshot(request).await.unwrap().text().await.unwrap()
    };
    let app = Router::new().route("/", get(handler)).with_state(client);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    let answer = plain().get(format!("http://{addr}/")).send().await.unwrap();
    assert_eq!(answer.text().await.unwrap(), "tea");
}

// HTP-08
#[tokio::test]
async fn a_client_whose_types_are_erased_is_shared_between_threads() {
    type Erased =
        BoxCloneSyncService<Request<Full<Bytes>>, Response<Body<::reqwest::Body>>, BoxError>;
    struct Orders {
        client: Erased,
    }
    assert_impl_all!(Orders: Send, Sync);
    let (server, seen) = third_time("ok").await;
    let orders = Arc::new(Orders {
        client: BoxCloneSyncService::new(patient().build().unwrap().layer(reqwest(plain()))),
    });
    let url = server.url();
    let called = tokio::spawn(async move { orders.client.clone().oneshot(order(&url)).await });
    let body = called.await.unwrap().unwrap().into_body();
    assert_eq!(body.collect().await.unwrap().to_bytes(), "ok");
    assert_eq!(support::asked(&seen).len(), 3);
}

/// A future that must not be shared.
struct Unshared(Ready<Result<::reqwest::Response, Infallible>>, PhantomData<Cell<()>>);

assert_impl_all!(Unshared: Send);
assert_not_impl_any!(Unshared: Sync);

impl Future for Unshared {
    type Output = Result<::reqwest::Response, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

// HTP-08
#[tokio::test]
async fn a_service_whose_future_is_not_shared_is_welcome() {
    let inner = service_fn(|_: ::reqwest::Request| {
        Unshared(ready(Ok(Response::new("ok").into())), PhantomData)
    });
    let stack = patient().replay(ReqwestReplay::record(0)).build().unwrap();
    let client = BoxCloneSyncService::new(as_reqwest(stack.layer(reqwest(inner))));
    let request = plain().get("http://localhost/").build().unwrap();
    assert_eq!(client.oneshot(request).await.unwrap().text().await.unwrap(), "ok");
}

// HTP-08
#[tokio::test]
async fn layers_of_ours_go_around_reqwests_connector() {
    // No TLS comes about with it.
    let silent = silent().await;
    let bulkhead = Bulkhead::new(BulkheadSettings::new(1)).unwrap();
    let attempts = building().connector_layer(TimeoutLayer::new(ms(50))).build().unwrap();
    let connects = building().connector_layer(ConnectTimeoutLayer::new(ms(50))).build().unwrap();
    for (inner, limit) in [(attempts, Limit::Attempt), (connects, Limit::Connect)] {
        let client = patient().build().unwrap().layer(reqwest(inner));
        let url = format!("https://{}/", silent.addr);
        let post = Request::post(url).body(Full::<Bytes>::from("tea")).unwrap();
        let error = client.oneshot(post).await.map(drop).unwrap_err();
        assert_eq!(find::<Elapsed>(&*error), Some(&Elapsed::new(limit, ms(50))), "{error:?}");
    }

    let (server, _) = third_time("ok").await;
    let inner = building()
        .connector_layer(BulkheadLayer::new(bulkhead.clone()))
        .pool_max_idle_per_host(0)
        .build()
        .unwrap();
    let client = patient().build().unwrap().layer(reqwest(inner));
    let response = client.oneshot(order(&server.url())).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!((server.accepted(), bulkhead.in_flight()), (3, 0));
    drop(response);
}
