//! A candidate: a service that runs three times, and writes once.
//!
//! Everybody may ask any of the three. Whoever leads writes to the ledger; the others say where to go. From the outside
//! in:
//!
//! ```text
//! refusals as responses > redirect > LeadershipLayer > handler > breaker > timeout > fence > hyper > the ledger
//! ```

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use axum::{
    Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use buttress::{
    BoxError, Breaker, BreakerLayer, Context, Elector, Leadership, LeadershipLayer, LeaseName,
    TimeoutLayer,
    http::{
        Body, HttpClass, RedirectToLeaderLayer, RejectedAsResponseLayer, SendFenceLayer, hyper,
        refusal,
    },
    lease_sqlite::SqliteOptions,
};
use bytes::Bytes;
use http::Request;
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
};

/// Runs one until its standard input ends.
pub(crate) async fn run(leases: PathBuf, ledger: SocketAddr) -> Result<(), BoxError> {
    let lease = LeaseName::new(settings::NAME)?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let front = listener.local_addr()?;

    // === What the leader writes to ===
    let breaker = Breaker::new(settings::breaker())?;
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let client = ServiceBuilder::new()
        .layer(BreakerLayer::new(breaker.clone()).classify(HttpClass)) // is it worth asking at all?
        .layer(TimeoutLayer::new(settings::ATTEMPT)) // how long may it take?
        .layer(SendFenceLayer::new(lease.id())) // of which term is it?
        .service(hyper(client));
    let ledger =
        Ledger { uri: format!("http://{ledger}"), client: BoxCloneSyncService::new(client) };

    // === Who leads ===
    let store = SqliteOptions::new(leases).create(true).busy_timeout(settings::BUSY).open().await?;
    let config = settings::lease(lease).payload(format!("http://{front}"));
    let ready = ledger.clone();
    let policy = settings::policy()
        .readiness("ledger", move || ready.clone().ping()) // asks through the breaker
        .critical("ledger's breaker", breaker);
    let elector = Elector::new(store, config)?
        .resign_when(policy)?
        .observe(|event| What::of(event).into_iter().for_each(tell));
    let leadership = elector.leadership();
    let running = elector.spawn_isolated()?; // whatever the handlers do, the lease is renewed

    // === The front ===
    let asked = leadership.clone();
    let leader = move || Some(asked.check().err()?.leader()?.payload.clone());
    let writer = Arc::new(Writer { leadership: leadership.clone(), ledger });
    let app = Router::new().route("/entries", post(enter)).with_state(writer).layer(
        ServiceBuilder::new()
            .layer(RejectedAsResponseLayer::new()) // whatever is refused beneath is a response
            .layer(RedirectToLeaderLayer::new(leader)) // where to go instead
            .layer(LeadershipLayer::new(leadership)), // does this process lead?
    );
    tell(What::Listens(front));
    axum::serve(listener, app)
        .with_graceful_shutdown(async { _ = copy(&mut stdin(), &mut sink()).await })
        .await?;
    // What is under way ends, and the lease is given back: the next one leads at once.
    running.stop().await;
    Ok(())
}

/// What a handler needs.
struct Writer {
    leadership: Leadership,
    ledger: Ledger,
}

#[derive(Clone)]
struct Ledger {
    uri: String,
    client: BoxCloneSyncService<Request<Full<Bytes>>, http::Response<Body<Incoming>>, BoxError>,
}

/// Writes an entry.
///
/// What has begun is not left half done, whoever hangs up. So it is a task of its own, to which nobody says when the
/// term is over. It takes the term along: the ledger sees its fence, and a leader that leaves waits for it.
async fn enter(State(writer): State<Arc<Writer>>, entry: Bytes) -> Response {
    let Ok(held) = writer.leadership.hold() else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let write = Context::current().scope(async move {
        let _held = held;
        sleep(settings::WORK).await;
        writer.ledger.write(entry).await
    });
    match tokio::spawn(write).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => refusal(&*error)
            .map_or(StatusCode::BAD_GATEWAY, |refusal| refusal.status())
            .into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

// === impl Ledger ===

impl Ledger {
    async fn write(&self, entry: Bytes) -> Result<Response, BoxError> {
        let request = Request::post(format!("{}/entries", self.uri)).body(Full::new(entry))?;
        Ok(self.client.clone().oneshot(request).await?.into_response())
    }

    /// Whether it is there. What asks goes through the breaker, and closes it where nobody writes.
    async fn ping(self) -> Result<(), BoxError> {
        let request = Request::get(format!("{}/health", self.uri)).body(Full::default())?;
        let status = self.client.oneshot(request).await?.status();
        if status.is_success() { Ok(()) } else { Err(status.to_string().into()) }
    }
}
