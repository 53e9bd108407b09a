//! A candidate: a service that runs three times, and writes once.
//!
//! Everybody may ask any of the three. Whoever leads writes to the ledger; the others say where to go. From the outside
//! in:
//!
//! ```text
//! refusals as responses > redirect > LeadershipLayer > enter > breaker > timeout > fence > hyper > the ledger
//! ```

use std::{net::SocketAddr, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    routing::post_service,
};
use buttress::{
    BoxError, Breaker, BreakerLayer, Context, Elector, Leadership, LeadershipLayer, LeaseId,
    LeaseName, Reason, Rejected, TimeoutLayer,
    http::{HttpClass, RedirectToLeaderLayer, RejectedAsResponseLayer, SendFenceLayer, hyper},
};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::{
    io::{copy, sink, stdin},
    net::TcpListener,
    time::sleep,
};
use tower::{ServiceBuilder, ServiceExt, util::BoxCloneSyncService};

use crate::{
    said::{What, tell},
    settings,
    store::Leases,
};

/// Runs one until its standard input ends.
pub(crate) async fn run(leases: Leases, ledger: SocketAddr) -> Result<(), BoxError> {
    let lease = LeaseName::new(settings::NAME)?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let front = listener.local_addr()?;

    // === What the leader writes to ===
    let breaker = Breaker::new(settings::breaker())?;
    let ledger = Ledger::new(ledger, breaker.clone(), lease.id());

    // === Who leads ===
    let store = leases.open().await?;
    let config = settings::lease(lease).payload(front.to_string()); // where others send their callers
    let asked = ledger.clone();
    let policy = settings::policy()
        .readiness("ledger", move || asked.clone().ping()) // asks through the breaker
        .critical("ledger's breaker", breaker);
    let elector = Elector::new(store, config)?
        .resign_when(policy)?
        .observe(|event| What::of(event).into_iter().for_each(tell));
    let leadership = elector.leadership();
    let running = elector.spawn_isolated()?; // whatever the handlers do, the lease is renewed

    // === What is asked for ===
    let asked = leadership.clone();
    let leader = move || Some(asked.check().err()?.leader()?.payload.clone());
    let entries = ServiceBuilder::new()
        .layer(RejectedAsResponseLayer::new()) // whatever fails beneath is a response
        .layer(RedirectToLeaderLayer::new(leader)) // where to go, if not here
        .layer(LeadershipLayer::new(leadership.clone())) // does this process lead?
        .service_fn(move |request| enter(leadership.clone(), ledger.clone(), request));
    let app = Router::new().route("/entries", post_service(entries));
    tell(What::Listens(front));
    // The gate is closed first and the listener last: until the lease is given back, others send their callers here.
    let shutdown = async move {
        _ = copy(&mut stdin(), &mut sink()).await;
        running.stop().await;
    };
    Ok(axum::serve(listener, app).with_graceful_shutdown(shutdown).await?)
}

/// Writes an entry.
///
/// What has begun is not left half done, whoever hangs up. So it is a task of its own, to which nobody says when the
/// term is over. It takes the term along: the ledger sees its fence, and a leader that leaves waits for it.
async fn enter(
    leadership: Leadership,
    ledger: Ledger,
    request: Request<Body>,
) -> Result<Entered, BoxError> {
    let entry = to_bytes(request.into_body(), 1024).await?;
    let held = leadership.hold().map_err(|refused| refused.rejected())?;
    let write = Context::current().scope(async move {
        sleep(settings::WORK).await; // some work, for the sake of the example
        let entered = ledger.write(entry).await?;
        if entered.status() != StatusCode::PRECONDITION_FAILED {
            return Ok(entered);
        }
        // The ledger has seen a later term than this one. If this one goes on all the same, its fence is worth nothing.
        if held.check(Duration::ZERO).is_ok() {
            leadership.resign_because("refused by the ledger");
        }
        Err(Rejected::new(Reason::NotLeader, settings::NAME).into()) // nothing was written: ask whoever leads
    });
    tokio::spawn(write).await?
}

/// The ledger, as a leader sees it.
#[derive(Clone)]
struct Ledger {
    uri: String,
    client: BoxCloneSyncService<Request<Full<Bytes>>, Entered, BoxError>,
}

type Entered = Response<buttress::http::Body<Incoming>>;

// === impl Ledger ===

impl Ledger {
    fn new(ledger: SocketAddr, breaker: Breaker, lease: LeaseId) -> Self {
        let client = ServiceBuilder::new()
            .layer(BreakerLayer::new(breaker).classify(HttpClass)) // is it worth asking at all?
            .layer(TimeoutLayer::new(settings::ATTEMPT)) // how long may it take?
            .layer(SendFenceLayer::new(lease)) // in which term is it?
            .service(hyper(Client::builder(TokioExecutor::new()).build_http()));
        Self { uri: format!("http://{ledger}"), client: BoxCloneSyncService::new(client) }
    }

    async fn write(self, entry: Bytes) -> Result<Entered, BoxError> {
        let request = Request::post(format!("{}/entries", self.uri)).body(Full::new(entry))?;
        self.client.oneshot(request).await
    }

    /// Whether it is there. What asks goes through the breaker, and closes it where nobody writes.
    async fn ping(self) -> Result<(), BoxError> {
        let request = Request::get(format!("{}/health", self.uri)).body(Full::default())?;
        let status = self.client.oneshot(request).await?.status();
        if status.is_success() { Ok(()) } else { Err(status.to_string().into()) }
    }
}
