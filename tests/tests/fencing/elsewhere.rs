//! Requests that come to a process which does not lead: real servers, and clients that follow or do not.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, body::Body, extract::Request, http::HeaderMap, routing::post};
use buttress::{
    BoxError, Elector, Leadership, LeadershipLayer, LeaseName,
    http::{ForwardedOnce, LEADERSHIP_FORWARDED, RedirectToLeaderLayer, RejectedAsResponseLayer},
    leadership::{
        AcquireRequest, ElectorTask, ForwardToLeaderLayer, Identity, LeaderInfo, LeaseStore,
        MemoryStore, State,
    },
};
use bytes::Bytes;
use http::{Response, Uri};
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::{net::TcpListener, sync::Notify};
use tower::{ServiceBuilder, ServiceExt, service_fn, util::BoxCloneSyncService};

use super::{NAME, browser, client, config, leads, listen, serve};

/// What a process does with what it may not answer.
#[derive(Clone, Copy)]
enum Does {
    Redirects,
    Forwards,
}

/// One of those that stand for election, and its server.
struct Process {
    leadership: Leadership,
    addr: SocketAddr,
    _task: ElectorTask,
}

type ToLeader = BoxCloneSyncService<Request, Response<Body>, BoxError>;

fn to_leader(leader: &LeaderInfo) -> Option<ToLeader> {
    let address = String::from_utf8(leader.payload.to_vec()).ok()?;
    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    Some(BoxCloneSyncService::new(service_fn(move |mut request: Request| {
        let (client, path) = (client.clone(), request.uri().path_and_query().cloned());
        let uri = format!("http://{address}{}", path.expect("it came by HTTP"));
        async move {
            *request.uri_mut() = uri.parse::<Uri>()?;
            Ok(client.oneshot(request).await?.map(Body::new))
        }
    })))
}

impl Process {
    /// Whoever answers says who it is, and how the request came.
    async fn starts(store: &MemoryStore, does: Does) -> Self {
        Self::starts_on(listen().await, store, does)
    }

    fn starts_on(
        (listener, addr): (TcpListener, SocketAddr),
        store: &MemoryStore,
        does: Does,
    ) -> Self {
        let config = config().payload(addr.to_string());
        let elector = Elector::new(store.clone(), config).unwrap();
        let leadership = elector.leadership();
        let answer = async move |headers: HeaderMap, uri: Uri, body: String| {
            let forwarded = headers.contains_key(LEADERSHIP_FORWARDED);
            format!("{addr} {uri} {body} {forwarded}")
        };
        let gate = LeadershipLayer::new(leadership.clone());
        let app = Router::new().route("/orders", post(answer));
        let app = match does {
            Does::Redirects => {
                let elsewhere = leadership.clone();
                let find = move || Some(elsewhere.check().err()?.leader()?.payload.clone());
                app.layer(
                    ServiceBuilder::new()
                        .layer(RejectedAsResponseLayer::new())
                        .layer(RedirectToLeaderLayer::new(find))
                        .layer(gate),
                )
            }
            Does::Forwards => app.layer(
                ServiceBuilder::new()
                    .layer(RejectedAsResponseLayer::new())
                    .layer(ForwardToLeaderLayer::new(leadership.clone(), ForwardedOnce, to_leader))
                    .layer(gate),
            ),
        };
        serve(listener, app);
        Self { leadership, addr, _task: elector.spawn() }
    }

    /// Waits until it knows who leads, if that is not itself.
    async fn follows(&self) {
        let mut watch = self.leadership.watch();
        watch.wait_for(|standing| standing.leader.is_some()).await.unwrap();
    }

    fn url(&self) -> String {
        format!("http://{}/orders?dry=1", self.addr)
    }

    async fn asked(&self) -> Response<Bytes> {
        let request = Request::post(self.url()).body(Full::from("tea")).unwrap();
        let (head, body) = client().oneshot(request).await.unwrap().into_parts();
        Response::from_parts(head, body.collect().await.unwrap().to_bytes())
    }
}

/// A leader, and one that follows.
async fn two(does: Does) -> [Process; 2] {
    let store = MemoryStore::new();
    let leader = Process::starts(&store, does).await;
    leads(&leader.leadership).await;
    let other = Process::starts(&store, does).await;
    other.follows().await;
    [leader, other]
}

#[tokio::test]
async fn a_client_that_follows_gets_its_answer_of_the_leader() {
    let [leader, other] = two(Does::Redirects).await;
    let told = other.asked().await;
    assert_eq!(told.status(), 307);
    assert_eq!(told.headers()["location"], format!("//{}/orders?dry=1", leader.addr));
    let answer = browser().post(other.url()).body("tea").send().await.unwrap();
    let expected = format!("{} /orders?dry=1 tea false", leader.addr);
    assert_eq!(answer.text().await.unwrap(), expected);
    assert_eq!(leader.asked().await.body(), expected.as_str(), "who leads answers by itself");
}

#[tokio::test]
async fn a_client_that_knows_of_no_leader_gets_the_leaders_answer() {
    let [leader, other] = two(Does::Forwards).await;
    for (asked, forwarded) in [(&other, true), (&other, true), (&leader, false)] {
        let answer = asked.asked().await;
        assert_eq!(answer.status(), 200);
        let expected = format!("{} /orders?dry=1 tea {forwarded}", leader.addr);
        assert_eq!(answer.body(), expected.as_str());
    }
}

#[tokio::test]
async fn while_nobody_leads_a_client_is_to_come_again() {
    let process = Process::starts(&MemoryStore::new(), Does::Redirects).await;
    leads(&process.leadership).await;
    process.leadership.resign();
    let mut watch = process.leadership.watch();
    watch.wait_for(|standing| standing.term.is_none()).await.unwrap();
    let told = process.asked().await;
    assert_eq!(
        (told.status().as_u16(), &told.headers()["retry-after"]),
        (503, &"1".parse().unwrap())
    );
}

#[tokio::test]
async fn a_leader_that_is_shut_down_answers_until_its_lease_is_given_back() {
    let store = MemoryStore::new();
    let (listener, addr) = listen().await;
    let elector = Elector::new(store.clone(), config()).unwrap();
    let (leadership, running) = (elector.leadership(), elector.spawn());
    leads(&leadership).await;

    let [begun, ended, shutdown, looked] = [(); 4].map(|()| Arc::new(Notify::new()));
    let work = {
        let (begun, ended) = (begun.clone(), ended.clone());
        async move || {
            begun.notify_one();
            ended.notified().await;
            "done"
        }
    };
    let elsewhere = leadership.clone();
    let server = ServiceBuilder::new()
        .layer(RejectedAsResponseLayer::new())
        .layer(RedirectToLeaderLayer::new(move || {
            Some(elsewhere.check().err()?.leader()?.payload.clone())
        }))
        .layer(LeadershipLayer::new(leadership.clone()));
    let app = Router::new().route("/", post(work)).layer(server);
    let stop = {
        let (shutdown, looked) = (shutdown.clone(), looked.clone());
        async move {
            shutdown.notified().await;
            running.stop().await;
            looked.notified().await; // until all others know
        }
    };
    let served =
        tokio::spawn(axum::serve(listener, app).with_graceful_shutdown(stop).into_future());

    let ask = move || {
        let request = Request::post(format!("http://{addr}")).body(Full::default()).unwrap();
        client().oneshot(request)
    };
    let first = tokio::spawn(ask());
    begun.notified().await;
    shutdown.notify_one();
    let mut watch = leadership.watch();
    watch.wait_for(|standing| standing.state == State::Resigning).await.unwrap();
    assert_eq!(ask().await.unwrap().status(), 503, "whoever is sent here is told to come again");
    ended.notify_one();
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
    watch.wait_for(|standing| standing.state == State::Stopped).await.unwrap();
    assert_eq!(ask().await.unwrap().status(), 503, "and after the lease was given back");
    looked.notify_one();
    served.await.unwrap().unwrap();
    let lease = store.inspect(leadership.name()).await.unwrap().unwrap();
    assert_eq!(lease.holder, None);
}

#[tokio::test]
async fn two_that_each_take_the_other_for_the_leader_refuse() {
    let [one, other] = [listen().await, listen().await];
    let (one_addr, other_addr) = (one.1, other.1);
    let mut processes = Vec::new();
    for (socket, leader) in [(one, other_addr), (other, one_addr)] {
        // A store that says so: each has its own, as nobody else would.
        let store = MemoryStore::new();
        let (name, identity) = (LeaseName::new(NAME).unwrap(), Identity::generate());
        let (ttl, payload) = (Duration::from_secs(600), Bytes::from(leader.to_string()));
        store.acquire(AcquireRequest::new(&name, &identity, ttl, &payload)).await.unwrap();
        processes.push(Process::starts_on(socket, &store, Does::Forwards));
    }
    for process in &processes {
        process.follows().await;
    }
    for process in &processes {
        assert_eq!(process.asked().await.status(), 421);
    }
}
