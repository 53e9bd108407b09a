//! A server on axum that refuses what it cannot do in time, and a burst of callers who are told so.
//!
//! `cargo run -p buttress-examples --example axum_server`

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{Router, routing::get, serve::ListenerExt};
use buttress::{
    BoxError, Bulkhead, BulkheadLayer, BulkheadSettings, DeadlineLayer, FixedLimit, Shed,
    ShedLayer, ShedSettings,
    http::{ReceiveDeadlineLayer, RejectedAsResponseLayer},
};
use http::HeaderName;
use tokio::{net::TcpListener, task::JoinSet, time::sleep};
use tower::ServiceBuilder;

/// How long a caller waits, in milliseconds. Both sides agree on the name.
const LEFT: HeaderName = HeaderName::from_static("x-time-left-ms");

async fn page() -> &'static str {
    sleep(Duration::from_millis(50)).await;
    "here it is"
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let shed = Shed::new(FixedLimit::new(4)?, ShedSettings::default())?;
    let reports = Bulkhead::new(BulkheadSettings::new(1))?;

    // === What wraps the whole server ===
    let whole = ServiceBuilder::new()
        .layer(RejectedAsResponseLayer::new()) // whatever is refused beneath is a response
        .layer(ReceiveDeadlineLayer::millis(LEFT)) // how long does the caller wait?
        .layer(ShedLayer::new(shed.clone())) // 4 at a time; others wait a little, or are refused
        .layer(DeadlineLayer::new(Duration::from_secs(5))); // nothing runs for longer

    // === What wraps one route ===
    let narrow = ServiceBuilder::new()
        .layer(RejectedAsResponseLayer::new())
        .layer(BulkheadLayer::new(reports.clone())); // 1 of those 4, and nobody waits

    let app = Router::new()
        .route("/page", get(page))
        .route("/report", get(page).layer(narrow))
        .layer(whole);

    let connections = Arc::new(AtomicU64::new(0));
    let accepted = connections.clone();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    let listener = listener.tap_io(move |_| _ = accepted.fetch_add(1, Relaxed));
    tokio::spawn(axum::serve(listener, app).into_future());

    // 40 callers who ask 10 times each. A quarter of them wait for 20 ms, and a page takes 50.
    let client = reqwest::Client::new();
    let mut callers = JoinSet::new();
    for n in 0..40 {
        let client = client.clone();
        let (path, left) = [("page", 1000), ("page", 1000), ("report", 1000), ("page", 20)][n % 4];
        callers.spawn(async move {
            let mut answers = Vec::new();
            for _ in 0..10 {
                let url = format!("http://{addr}/{path}");
                let response = client.get(url).header(LEFT, left).send().await?;
                let when = response.headers().contains_key("retry-after");
                answers.push((path, left, response.status().as_u16(), when));
                response.bytes().await?; // read to its end, so that the connection serves again
            }
            Ok::<_, reqwest::Error>(answers)
        });
    }
    let mut counts = BTreeMap::new();
    while let Some(answers) = callers.join_next().await {
        for answer in answers?? {
            *counts.entry(answer).or_insert(0) += 1;
        }
    }

    for ((path, left, status, when), count) in &counts {
        let when = if *when { ", with Retry-After" } else { "" };
        println!("/{path:<6} with {left:>4} ms: {count:>3} times {status}{when}");
    }
    let (connections, shed) = (connections.load(Relaxed), shed.stats());
    println!("{} requests on {connections} connections", shed.arrived);
    println!(
        "the server worked on {} of them, the route on {}",
        shed.admitted,
        reports.stats().granted
    );

    let refused: u64 =
        counts.iter().filter(|((.., code, _), _)| *code == 503).map(|(_, n)| n).sum();
    let seen = |code, when| counts.keys().any(|(.., c, w)| (*c, *w) == (code, when));
    // If a refusal closed its connection, each of them would have cost another one.
    let is_shown = seen(200, false) && seen(503, true) && seen(504, false) && connections < refused;
    if is_shown { Ok(()) } else { Err("that is not what it should show".into()) }
}
