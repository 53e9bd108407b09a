//! Fencing tokens from a leader's election to what it writes to: over real sockets, and into a database.
//!
//! Nothing here asserts how long anything takes. What must come to pass is waited for.

mod elsewhere;
mod paused;
mod recipes;

use std::{net::SocketAddr, sync::Once};

use axum::Router;
use buttress::{
    Leadership, LeaseConfig, LeaseName,
    http::{Hyper, hyper},
};
use bytes::Bytes;
use http_body_util::Full;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::net::TcpListener;

const NAME: &str = "orders";

/// A lease that does not end while a test runs, on whatever machine.
fn config() -> LeaseConfig {
    LeaseConfig::new(LeaseName::new(NAME).unwrap())
        .lease_duration(std::time::Duration::from_secs(600))
}

/// Waits until the process leads.
async fn leads(leadership: &Leadership) -> u64 {
    let mut watch = leadership.watch();
    let standing = watch.wait_for(|standing| standing.term.is_some()).await.unwrap();
    standing.term.unwrap().get()
}

fn client() -> Hyper<Client<HttpConnector, Full<Bytes>>> {
    hyper(Client::builder(TokioExecutor::new()).build_http())
}

/// One that follows where it is sent.
fn browser() -> reqwest::Client {
    static TLS: Once = Once::new();
    TLS.call_once(|| rustls::crypto::ring::default_provider().install_default().unwrap());
    reqwest::Client::builder().no_proxy().build().unwrap()
}

/// A free port on loopback.
async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

fn serve(listener: TcpListener, app: Router) {
    tokio::spawn(axum::serve(listener, app).into_future());
}
