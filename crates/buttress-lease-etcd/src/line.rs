//! One connection, served by whoever waits for its answer.
//!
//! A call that is dropped on its way takes the connection with it. So nothing of it is sent later, when
//! somebody else makes the next call, one that hangs is not used again, and what is answered is answered to the
//! call that asks: the answers of etcd to renewals say only which lease they are of.

use std::{
    future::poll_fn,
    mem,
    pin::{Pin, pin},
    sync::{Arc, Mutex, PoisonError, Weak},
    task::{Context, Poll},
    time::Duration,
};

use buttress_leadership::{FencingToken, Identity, LeaseName, RenewRequest};
use etcd_client::{
    Channel, Client, ConnectOptions, Error, LeaseKeepAliveStream, LeaseKeeper, Txn, TxnResponse,
    WatchFilterType, WatchOptions, WatchStream,
};
use hyper::{
    Request, Response, Uri,
    client::conn::http2::{self, SendRequest},
    http::uri::{PathAndQuery, Scheme},
    rt::Executor,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    runtime::{Handle, Id},
    sync::MutexGuard,
};
use tonic::body::Body;
use tower::{BoxError, util::BoxCloneSyncService};
use tower_service::Service;

use crate::{
    connect::{Endpoint, Handshake, connect},
    error::{Failure, Why},
};

pub(crate) struct Wire {
    client: Client,
    drive: Drive,
    is_dead: bool,
    keeper: Option<Keeper>,
    /// That has its socket and its timers, and takes them along.
    runtime: Option<Id>,
}

/// Carries the questions there and the answers back, while it is polled.
struct Drive {
    /// Ready at the connection's end.
    connection: Task,
    tasks: Arc<Tasks>,
}

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What the client would have run by itself: the ways there of what is sent in parts.
type Tasks = Mutex<Vec<Task>>;

/// Hands over what is to be run to whoever holds the connection.
#[derive(Clone)]
struct Spawner(Weak<Tasks>);

/// What gRPC is spoken over: one connection, and no other after it.
#[derive(Clone)]
struct Way {
    to: SendRequest<Body>,
    authority: hyper::http::uri::Authority,
}

/// Where a lease is kept alive. There is one question at a time, and each waits for its answer.
struct Keeper {
    of: (LeaseName, FencingToken, Identity),
    lease: i64,
    questions: LeaseKeeper,
    answers: LeaseKeepAliveStream,
}

/// The answer of etcd to one that keeps a lease alive.
pub(crate) struct Kept {
    pub(crate) ttl: Duration,
    /// The leader of the cluster that has answered is that of this term, or was.
    pub(crate) raft_term: u64,
}

/// The connection of a store, for one call.
pub(crate) struct Line<'a> {
    pub(crate) slot: MutexGuard<'a, Slot>,
}

/// Where the connection is while nobody uses it.
#[derive(Default)]
pub(crate) struct Slot {
    pub(crate) wire: Option<Wire>,
}

/// When a quiet connection is asked whether it is alive. More often than every five seconds is an attack to etcd.
const ASK_AFTER: Duration = Duration::from_secs(6);
/// So long a dead one is listened to.
const DEAD_AFTER: Duration = Duration::from_secs(10);

// === impl Wire ===

impl Wire {
    /// Connects, says who we are, and looks whether it is a member that can be asked.
    pub(crate) async fn new(
        at: &Endpoint,
        tls: Option<&Handshake>,
        user: Option<&(String, String)>,
    ) -> Result<Self, Why> {
        let stream = connect(at, tls).await?;
        let tasks = Arc::<Tasks>::default();
        let spawner = Spawner(Arc::downgrade(&tasks));
        let (to, connection) = http2::Builder::new(spawner)
            .timer(TokioTimer::new())
            .keep_alive_interval(ASK_AFTER)
            .keep_alive_timeout(DEAD_AFTER - ASK_AFTER)
            .handshake(TokioIo::new(stream))
            .await?;
        let connection = async { drop(connection.await) };
        let mut drive = Drive { connection: Box::pin(connection), tasks };
        let authority = at.authority().parse().map_err(|_| "an endpoint that is none")?;
        let channel = Channel::Custom(BoxCloneSyncService::new(Way { to, authority }));
        let mut is_dead = false;
        let mut options = ConnectOptions::new().with_require_leader(true);
        if let Some((name, password)) = user {
            options = options.with_user(name, password);
        }
        let introduced = async {
            let mut client = Client::from_channel(channel, Some(options)).await?;
            // One that knows of no leader says so.
            client.status().await?;
            Ok(client)
        };
        let client = carried(&mut drive, &mut is_dead, introduced).await?;
        Ok(Self { client, drive, is_dead, keeper: None, runtime: runtime() })
    }

    /// Has the server tell when that key is deleted.
    pub(crate) async fn watch(&mut self, key: &str) -> Result<WatchStream, Why> {
        let mut client = self.client.watch_client();
        let options = WatchOptions::new().with_filters([WatchFilterType::NoPut]);
        let watching = async {
            let mut told = client.watch(key, Some(options)).await?;
            match told.message().await? {
                Some(first) if first.created() && !first.canceled() => Ok(told),
                _ => Err(Error::WatchError("it is not watched".to_owned())),
            }
        };
        carried(&mut self.drive, &mut self.is_dead, watching).await
    }

    /// Carries what is to be carried. Ready at the end.
    pub(crate) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.is_dead {
            self.is_dead = self.drive.poll(cx).is_ready();
        }
        if self.is_dead { Poll::Ready(()) } else { Poll::Pending }
    }
}

fn runtime() -> Option<Id> {
    Handle::try_current().ok().map(|runtime| runtime.id())
}

/// What is answered to `call`. Says as well whether that was the last answer of the connection.
async fn carried<T>(
    drive: &mut Drive,
    is_dead: &mut bool,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Why> {
    let mut call = pin!(call);
    let done = poll_fn(|cx| {
        // It first, so that there is something to be sent.
        if let Poll::Ready(done) = Pin::as_mut(&mut call).poll(cx) {
            return Poll::Ready(done);
        }
        if !*is_dead {
            *is_dead = drive.poll(cx).is_ready();
        }
        // It may have been answered right before the end, and is told of the end.
        Pin::as_mut(&mut call).poll(cx)
    })
    .await
    .map_err(Why::from);
    *is_dead |= done.as_ref().is_err_and(|why| !why.leaves_connection());
    done
}

// === impl Drive, Spawner, Way ===

impl Drive {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // It first, so that there is something to be sent.
        if self.connection.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let mut running = Vec::new();
        loop {
            let mut polled = mem::take(&mut *lock(&self.tasks));
            if polled.is_empty() {
                break;
            }
            polled.retain_mut(|task| task.as_mut().poll(cx).is_pending());
            running.append(&mut polled);
        }
        *lock(&self.tasks) = running;
        // One of them has read what there was, which may have been the end.
        self.connection.as_mut().poll(cx)
    }
}

fn lock(tasks: &Tasks) -> std::sync::MutexGuard<'_, Vec<Task>> {
    tasks.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Spawner {
    fn execute(&self, task: F) {
        if let Some(tasks) = self.0.upgrade() {
            lock(&tasks).push(Box::pin(task));
        }
    }
}

impl Service<Request<Body>> for Way {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.to.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let path = request.uri().path_and_query().cloned();
        let uri = Uri::builder()
            .scheme(Scheme::HTTP)
            .authority(self.authority.clone())
            .path_and_query(path.unwrap_or(PathAndQuery::from_static("/")));
        *request.uri_mut() = uri.build().expect("all of it is valid");
        let answer = self.to.send_request(request);
        Box::pin(async move { Ok(answer.await?.map(Body::new)) })
    }
}

// === impl Line ===

impl<'a> Line<'a> {
    /// Takes the connection that is there, unless it has ended: then nothing need be sent to find out. Nor if it was
    /// made on another runtime, which may be gone: its timers would panic.
    pub(crate) async fn of(mut slot: MutexGuard<'a, Slot>) -> Self {
        slot.wire.take_if(|wire| wire.runtime != runtime());
        if let Some(wire) = &mut slot.wire
            && poll_fn(|cx| Poll::Ready(wire.poll_end(cx).is_ready())).await
        {
            slot.wire = None;
        }
        Self { slot }
    }

    pub(crate) async fn txn(&mut self, txn: Txn) -> Result<TxnResponse, Failure> {
        let ask = |wire: &mut Wire| {
            let mut client = wire.client.kv_client();
            async move { client.txn(txn).await }
        };
        self.ask(ask).await
    }

    /// A new lease of etcd: what it is called there, and how long it is.
    pub(crate) async fn grant(&mut self, ttl: i64) -> Result<(i64, Duration), Failure> {
        let ask = |wire: &mut Wire| {
            let mut client = wire.client.lease_client();
            async move { client.grant(ttl, None).await }
        };
        let granted = self.ask(ask).await?;
        Ok((granted.id(), seconds(granted.ttl())))
    }

    /// Ends a lease of etcd. One that cannot be ended ends by itself.
    pub(crate) async fn revoke(&mut self, lease: i64) {
        let ask = |wire: &mut Wire| {
            let mut client = wire.client.lease_client();
            async move { client.revoke(lease).await }
        };
        let _ = self.ask(ask).await;
    }

    /// How long a lease of etcd is, and how much is left: so many whole seconds, and less than one more. `None` if
    /// it is over.
    pub(crate) async fn left(
        &mut self,
        lease: i64,
    ) -> Result<Option<(Duration, Duration)>, Failure> {
        let ask = |wire: &mut Wire| {
            let mut client = wire.client.lease_client();
            async move { client.time_to_live(lease, None).await }
        };
        let is = self.ask(ask).await.map_err(Failure::without_effect)?;
        let granted = seconds(is.granted_ttl());
        Ok((granted > Duration::ZERO).then(|| (granted, seconds(is.ttl()))))
    }

    /// The lease of etcd that is kept alive here for that term, if one is.
    pub(crate) fn kept(&self, request: &RenewRequest<'_>) -> Option<i64> {
        let keeper = self.slot.wire.as_ref()?.keeper.as_ref()?;
        let (name, fence, who) = &keeper.of;
        let is_it = name == request.name && *fence == request.fence && who == request.identity;
        is_it.then_some(keeper.lease)
    }

    /// Keeps it alive, for as long as it is from now on. `None` if it is over.
    pub(crate) async fn keep_alive(
        &mut self,
        request: &RenewRequest<'_>,
        lease: i64,
    ) -> Result<Option<Kept>, Failure> {
        let of = (request.name.clone(), request.fence, request.identity.clone());
        let ask = |wire: &mut Wire| {
            let open = wire.keeper.take().filter(|keeper| keeper.lease == lease);
            let mut client = wire.client.lease_client();
            async move {
                let mut keeper = match open {
                    Some(keeper) => keeper,
                    // It asks once by itself, and does not tell what it was answered.
                    None => match client.keep_alive(lease).await {
                        Ok((questions, answers)) => Keeper { of, lease, questions, answers },
                        Err(Error::LeaseKeepAliveError(_)) => return Ok(None),
                        Err(error) => return Err(error),
                    },
                };
                keeper.questions.keep_alive().await?;
                let answer = keeper.answers.message().await?;
                Ok(Some((keeper, answer)))
            }
        };
        let Some((keeper, answer)) = self.ask(ask).await? else { return Ok(None) };
        let wrong = || Why::Passing("it does not say whether it keeps the lease".to_owned());
        let answer = answer.filter(|answer| answer.id() == lease);
        let Some((answer, header)) = answer.as_ref().and_then(|of| Some((of, of.header()?))) else {
            self.slot.wire = None;
            return Err(Failure::sent(wrong()));
        };
        if answer.ttl() <= 0 {
            return Ok(None);
        }
        let kept = Kept { ttl: seconds(answer.ttl()), raft_term: header.raft_term() };
        if let Some(wire) = &mut self.slot.wire {
            wire.keeper = Some(keeper);
        }
        Ok(Some(kept))
    }

    /// Asks, with the connection in hand: who is dropped here drops it.
    async fn ask<T, F>(&mut self, ask: impl FnOnce(&mut Wire) -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let gone = || Why::Passing("the connection has ended".to_owned());
        let mut wire = self.slot.wire.take().ok_or_else(gone)?;
        let call = ask(&mut wire);
        let done = carried(&mut wire.drive, &mut wire.is_dead, call).await;
        if !wire.is_dead {
            self.slot.wire = Some(wire);
        }
        done.map_err(Failure::sent)
    }
}

fn seconds(number: i64) -> Duration {
    Duration::from_secs(u64::try_from(number).unwrap_or_default())
}
