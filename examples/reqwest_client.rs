//! reqwest's client in the standard stack: requests and responses stay reqwest's, JSON among them.
//!
//! `cargo run -p buttress-examples --example reqwest_client`

use std::{
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::Duration,
};

use axum::{Router, routing::post};
use buttress::{
    BoxError, ConnectTimeoutLayer, Elapsed, Standard, find,
    http::{ReqwestReplay, as_reqwest, reqwest},
};
use bytes::Bytes;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tower::{Layer, Service, ServiceExt};

#[derive(Debug, Deserialize, PartialEq, Serialize)]
struct Order {
    item: String,
    cups: u32,
}

static CALLS: AtomicU32 = AtomicU32::new(0);

/// Fails every other time, and else sends back what it got.
async fn flaky(body: Bytes) -> Result<Bytes, StatusCode> {
    let is_well = CALLS.fetch_add(1, Relaxed) % 2 == 1;
    if is_well { Ok(body) } else { Err(StatusCode::SERVICE_UNAVAILABLE) }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    // === What wraps the client ===
    let connect = ConnectTimeoutLayer::default();
    let plain = ::reqwest::Client::builder().connector_layer(connect).build()?;
    let replay = ReqwestReplay::record(64 * 1024);
    let stack = Standard::http().attempt(Duration::from_millis(300)).replay(replay).build()?;
    let mut client = as_reqwest(stack.layer(reqwest(plain.clone())));

    let hang = post(std::future::pending::<()>);
    let app = Router::new().route("/orders", post(flaky)).route("/hangs", hang);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(axum::serve(listener, app).into_future());

    let order = Order { item: "tea".to_owned(), cups: 3 };
    let build = || plain.post(format!("{url}/orders")).json(&order);

    // A POST may not be carried out twice, unless it says so.
    let once = client.ready().await?.call(build().build()?).await?.status();
    println!("POST: {once} after {} attempt", CALLS.swap(0, Relaxed));
    let keyed = build().header("idempotency-key", "42").build()?;
    let echo: Order = client.ready().await?.call(keyed).await?.json().await?;
    let attempts = CALLS.load(Relaxed);
    println!("POST with a key: {echo:?} after {attempts} attempts");

    let hangs = plain.post(format!("{url}/hangs")).build()?;
    let error = client.ready().await?.call(hangs).await.unwrap_err();
    println!("POST to a server that hangs: {error}");

    let is_late = find::<Elapsed>(&*error).is_some();
    let is_shown = once == 503 && echo == order && attempts == 2 && is_late;
    if is_shown { Ok(()) } else { Err("that is not what it should show".into()) }
}
