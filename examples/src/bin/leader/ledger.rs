//! What the leader writes to: a ledger that takes no entry of a former leader.
//!
//! Each candidate has a line of its own to it, which can be cut: then whatever it sends gets no answer.

use std::{io, net::SocketAddr, sync::Arc};

use axum::{
    Router,
    extract::{Request, State},
    http::StatusCode,
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use buttress::{
    Fence, FenceGuard, FencingToken, LeaseId,
    http::{FencingLayer, LEADERSHIP_FENCE},
};
use http::HeaderMap;
use tokio::{net::TcpListener, sync::watch};

use crate::{
    history::{CANDIDATES, Refused, Write},
    settings,
    stage::{Shared, now},
};

const LEASE: LeaseId = LeaseId::of(settings::NAME);

pub(crate) struct Ledger {
    lines: Vec<Line>,
}

/// A candidate's way to the ledger.
struct Line {
    addr: SocketAddr,
    is_cut: Arc<watch::Sender<bool>>,
}

/// What is behind a line.
#[derive(Clone)]
struct Counter {
    candidate: usize,
    is_cut: Arc<watch::Sender<bool>>,
    history: Shared,
}

// === impl Ledger ===

impl Ledger {
    pub(crate) async fn open(history: &Shared) -> io::Result<Self> {
        let guard = FenceGuard::new(LEASE);
        let mut lines = Vec::new();
        for candidate in 0..CANDIDATES {
            let is_cut = Arc::new(watch::Sender::new(false));
            let counter = Counter { candidate, is_cut: is_cut.clone(), history: history.clone() };
            let app = Router::new()
                // Whoever was followed by another leader does not get as far as the handler.
                .route("/entries", post(write).layer(FencingLayer::new(guard.clone())))
                .route("/health", get(async || "well"))
                .layer(from_fn_with_state(counter.clone(), pass))
                .with_state(counter);
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            lines.push(Line { addr: listener.local_addr()?, is_cut });
            tokio::spawn(axum::serve(listener, app).into_future());
        }
        Ok(Self { lines })
    }

    pub(crate) fn addr(&self, candidate: usize) -> SocketAddr {
        self.lines[candidate].addr
    }

    pub(crate) fn cut(&self, candidate: usize, is_cut: bool) {
        self.lines[candidate].is_cut.send_replace(is_cut);
    }
}

/// Writes an entry, and answers with its fence.
async fn write(State(counter): State<Counter>) -> Result<String, StatusCode> {
    let fence = Fence::current(LEASE).expect("the layer lets nobody in without");
    let mut history = counter.history.lock().unwrap();
    // The layer has compared, and a newer leader may have written since. So it is compared once more, in what is this
    // ledger's transaction.
    if history.written.last().is_some_and(|last| last.fence > fence.get()) {
        return Err(StatusCode::PRECONDITION_FAILED);
    }
    history.written.push(Write { at: now(), fence: fence.get() });
    Ok(fence.to_string())
}

/// The line: lets nothing through while it is cut, and keeps book of what the ledger refuses.
async fn pass(State(counter): State<Counter>, request: Request, next: Next) -> Response {
    let mut is_cut = counter.is_cut.subscribe();
    if is_cut.wait_for(|is_cut| !is_cut).await.is_err() {
        return StatusCode::BAD_GATEWAY.into_response();
    }
    let sent = token(request.headers());
    let response = next.run(request).await;
    if response.status() == StatusCode::PRECONDITION_FAILED {
        let mut history = counter.history.lock().unwrap();
        // The layer says which one it has seen; the handler has seen the last that was written.
        let written = history.written.last().map_or(0, |last| last.fence);
        let highest = token(response.headers()).map_or(written, FencingToken::get);
        let fence = sent.map_or(0, FencingToken::get);
        history.refuse(Refused { at: now(), candidate: counter.candidate, fence, highest });
    }
    response
}

fn token(headers: &HeaderMap) -> Option<FencingToken> {
    headers.get(LEADERSHIP_FENCE)?.to_str().ok()?.parse().ok()
}
