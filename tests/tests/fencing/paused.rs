//! Leaders that stand still, and what becomes of what they had in hand.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, http::StatusCode, routing::post};
use buttress::{
    Backoff, BoxError, Budget, CarryLayer, Context, Elector, Fence, FenceGuard, FencingToken,
    Leadership, LeadershipLayer, LeaseId, ResumeLayer, RetryLayer,
    http::{Body, FencingLayer, HttpClass, HttpReplay, LEADERSHIP_FENCE, SendFenceLayer},
    leadership::{ElectorTask, FaultyStore, LeaseClock, MemoryStore},
};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::sync::watch;
use tower::{
    Layer, Service, ServiceBuilder, ServiceExt, buffer::Buffer, service_fn, util::BoxCloneService,
};

use super::{NAME, client, config, leads, listen, serve};

const LEASE: LeaseId = LeaseId::of(NAME);

/// The tokens of what was written.
type Written = Arc<Mutex<Vec<u64>>>;

/// A server that notes what it was written.
async fn resource() -> (SocketAddr, Written) {
    let written = Written::default();
    let notes = written.clone();
    let write = async move || {
        let token = Fence::current(LEASE).expect("nobody comes in without");
        notes.lock().unwrap().push(token.get());
        StatusCode::CREATED
    };
    let fencing = FencingLayer::new(FenceGuard::new(LEASE));
    let (listener, addr) = listen().await;
    serve(listener, Router::new().route("/", post(write).layer(fencing)));
    (addr, written)
}

type Answer = Response<Body<hyper::body::Incoming>>;
type Writer = BoxCloneService<(), Answer, BoxError>;

/// A process that writes to `resource` while it leads.
struct Process {
    leadership: Leadership,
    /// Its own way to the store.
    store: FaultyStore<MemoryStore>,
    write: Writer,
    /// Whether it goes on between the check of the gate and the request.
    goes_on: watch::Sender<bool>,
    _task: ElectorTask,
}

impl Process {
    fn new(store: &FaultyStore<MemoryStore>, resource: SocketAddr) -> Self {
        let store = store.another_way();
        let elector =
            Elector::with_clock(store.clone(), config(), LeaseClock::simulated()).unwrap();
        let leadership = elector.leadership();
        let (goes_on, stands) = watch::channel(true);
        let client = SendFenceLayer::new(LEASE).layer(client());
        let write = service_fn(move |()| {
            let (client, mut stands) = (client.clone(), stands.clone());
            async move {
                stands.wait_for(|goes_on| *goes_on).await?;
                let request = Request::post(format!("http://{resource}/")).body(Full::default())?;
                client.oneshot(request).await
            }
        });
        let write = LeadershipLayer::new(leadership.clone()).layer(write);
        let write = BoxCloneService::new(write);
        Self { leadership, store, write, goes_on, _task: elector.spawn() }
    }

    async fn writes(&self) -> Answer {
        self.write.clone().oneshot(()).await.unwrap()
    }
}

// LDR-02
#[tokio::test]
async fn what_a_leader_had_in_hand_as_it_stood_still_is_refused_after_the_next_one_wrote() {
    let (resource, written) = resource().await;
    let clock = LeaseClock::simulated();
    let store = FaultyStore::new(MemoryStore::with_clock(clock.clone()));
    let first = Process::new(&store, resource);
    assert_eq!(leads(&first.leadership).await, 1);
    assert_eq!(first.writes().await.status(), 201);

    // It stands still: the gate has let the request in, nothing renews the lease, and no clock of its own goes on.
    first.store.freeze();
    first.goes_on.send_replace(false);
    let mut in_hand = tokio_test::task::spawn(first.writes());
    assert!(in_hand.poll().is_pending());
    clock.suspend(Duration::from_secs(601));

    let second = Process::new(&store, resource);
    assert_eq!(leads(&second.leadership).await, 2);
    assert_eq!(second.writes().await.status(), 201);

    // And goes on, sure to lead.
    assert!(first.leadership.is_leader());
    first.goes_on.send_replace(true);
    let refused = in_hand.await;
    assert_eq!(refused.status(), 412);
    assert_eq!(refused.headers()[LEADERSHIP_FENCE], "2");
    assert_eq!(*written.lock().unwrap(), [1, 2]);
    assert_eq!(second.writes().await.status(), 201, "nobody else is kept out");
}

/// A callee that notes the tokens which come, and answers the first request with 503.
fn callee(
    seen: &Arc<Mutex<Vec<Option<String>>>>,
) -> impl Service<
    Request<()>,
    Response = Response<Full<Bytes>>,
    Error = Infallible,
    Future: Future<Output = Result<Response<Full<Bytes>>, Infallible>> + Send,
> + Clone
+ use<> {
    let seen = seen.clone();
    service_fn(move |request: Request<()>| {
        let token = request.headers().get(LEADERSHIP_FENCE);
        let mut seen = seen.lock().unwrap();
        seen.push(token.map(|token| token.to_str().unwrap().to_owned()));
        let status = if seen.len() == 1 { 503 } else { 200 };
        async move { Ok(Response::builder().status(status).body(Full::default()).unwrap()) }
    })
}

fn in_term(number: u64) -> Context {
    let token = FencingToken::new(number).unwrap();
    Context::default().with_fence(Some(Fence::new(LEASE, token)))
}

#[tokio::test(start_paused = true)]
async fn each_attempt_bears_the_token() {
    let seen = Arc::default();
    let client = ServiceBuilder::new()
        .layer(
            RetryLayer::new(Backoff::none(), Budget::default())
                .classify(HttpClass)
                .replay(HttpReplay),
        )
        .layer(SendFenceLayer::new(LEASE))
        .service(callee(&seen));
    let answer = in_term(7).scope(client.oneshot(Request::new(()))).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(*seen.lock().unwrap(), [Some("7".to_owned()), Some("7".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn through_a_buffer_the_token_is_sent_if_the_context_is_carried() {
    let seen = Arc::default();
    let sends = || SendFenceLayer::new(LEASE).layer(callee(&seen));
    let bare = Buffer::new(sends(), 4);
    in_term(7).scope(bare.oneshot(Request::new(()))).await.unwrap();
    let carried = CarryLayer.layer(Buffer::new(ResumeLayer.layer(sends()), 4));
    in_term(7).scope(carried.oneshot(Request::new(()))).await.unwrap();
    assert_eq!(*seen.lock().unwrap(), [None, Some("7".to_owned())]);
}
