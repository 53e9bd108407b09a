//! hyper-util's client in the standard stack: what is sent again and what is not, and a server that never
//! accepts.
//!
//! `cargo run -p buttress-examples --example hyper_client`

use std::{
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::Duration,
};

use axum::{Router, routing::any};
use buttress::{BoxError, ConnectTimeoutLayer, Elapsed, Limit, Standard, find, http::hyper};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    time::timeout,
};
use tower::{Layer, ServiceExt};

/// How long a connection may take; here both ends are on one machine.
const QUICK: Duration = Duration::from_millis(100);

static CALLS: AtomicU32 = AtomicU32::new(0);

/// Fails every fourth time.
async fn flaky() -> Result<&'static str, StatusCode> {
    let is_well = CALLS.fetch_add(1, Relaxed) % 4 < 3;
    if is_well { Ok("tea") } else { Err(StatusCode::INTERNAL_SERVER_ERROR) }
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    // === What wraps the client ===
    let connector = ConnectTimeoutLayer::new(QUICK).layer(HttpConnector::new());
    let plain = Client::builder(TokioExecutor::new()).build::<_, Full<Bytes>>(connector);
    let stack = Standard::http().total(Duration::from_secs(30)).build()?;
    let client = stack.layer(hyper(plain));

    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    tokio::spawn(axum::serve(listener, Router::new().route("/", any(flaky))).into_future());

    let ask = async |method: &str, url: &str| {
        let before = CALLS.load(Relaxed);
        let request = Request::builder().method(method).uri(url).body(Full::default())?;
        let response = client.clone().oneshot(request).await?;
        let status = response.status().as_u16();
        response.into_body().collect().await?;
        Ok::<_, BoxError>((status, CALLS.load(Relaxed) - before))
    };
    let (mut repeated, mut failed) = (0, 0);
    for method in ["GET", "GET", "GET", "GET", "POST", "POST", "POST"] {
        let (status, attempts) = ask(method, &url).await?;
        println!("{method:<4} {status}, attempts: {attempts}");
        repeated += u32::from(method == "GET" && status == 200 && attempts == 2);
        failed += u32::from(method == "POST" && status == 500 && attempts == 1);
    }

    // A server that does not accept, and whose queue of connections is full.
    let socket = TcpSocket::new_v4()?;
    socket.bind("127.0.0.1:0".parse()?)?;
    let deaf = socket.listen(1)?;
    let mut queue = Vec::new();
    while let Ok(queued) = timeout(QUICK, TcpStream::connect(deaf.local_addr()?)).await {
        queue.push(queued?);
    }
    let error = ask("POST", &format!("http://{}/", deaf.local_addr()?)).await.unwrap_err();
    let elapsed = find::<Elapsed>(&*error).ok_or("it is not our limit that ended it")?;
    let attempts = stack.breakers().stats().failure - u64::from(repeated + failed);
    println!("POST, nobody accepts: {elapsed}; {attempts} attempts, as nothing was sent");

    let is_shown = (repeated, failed, elapsed.which()) == (1, 1, Limit::Connect) && attempts > 1;
    if is_shown { Ok(()) } else { Err("that is not what it should show".into()) }
}
