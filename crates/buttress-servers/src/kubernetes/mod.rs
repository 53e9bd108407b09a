//! An API server of Kubernetes that is none: Debian has no package of one.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use axum::{Router, body::Body, extract::Request, http::StatusCode, response::Response};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    runtime::{Builder, Runtime},
    sync::{Barrier, watch},
};

use crate::server::free_port;

use self::leases::{Answer, Leases, Refused};

mod leases;
mod watching;

/// A server that does with leases what the API server of Kubernetes does, at an address of loopback, by HTTP.
///
/// It creates, reads, replaces, deletes and watches what is `coordination.k8s.io/v1`, in the namespace `default`, and
/// refuses what the real one refuses. It has a thread of its own, and goes with its handle.
///
/// ```no_run
/// use buttress_servers::{FakeKubernetes, Lie};
///
/// # async fn run() {
/// let mut server = FakeKubernetes::new().await;
/// println!("it answers at {}", server.url());
/// server.lie("PUT", Lie::After(504)); // done, and not answered
/// server.tell_the_truth();
/// server.kill();
/// server.start().await; // with its data, at the same address
/// # }
/// ```
#[derive(Debug)]
pub struct FakeKubernetes {
    addr: SocketAddr,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

/// What is answered instead of the truth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lie {
    /// That status, and nothing is done.
    Before(u16),
    /// That status, after it was done.
    After(u16),
    /// That text, as if it were what was asked for, after it was done.
    Text(String),
}

/// What somebody has asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// `GET`, `POST`, `PUT`, `DELETE`, or `PATCH`, which is refused.
    pub method: String,
    /// With what follows the question mark.
    pub path: String,
    /// Who says to be asking.
    pub agent: String,
}

#[derive(Debug)]
struct Shared {
    leases: Mutex<Leases>,
    manners: Mutex<Manners>,
    /// Whoever watches is told of each write.
    written: watch::Sender<()>,
    /// And that what it has seen is too old.
    gone: watch::Sender<()>,
    held: watch::Sender<Held>,
    waiting: AtomicUsize,
    watchers: AtomicUsize,
}

/// How it treats those who ask.
#[derive(Debug, Default)]
struct Manners {
    lie: Option<(&'static str, Lie)>,
    token: Option<String>,
    forbidden: Vec<&'static str>,
    together: Option<Arc<Barrier>>,
    asked: Vec<Asked>,
}

/// What is not answered for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Nothing,
    Writes,
    All,
}

const GROUP: &str = "/apis/coordination.k8s.io/v1";
/// More than any object is.
const BODY: usize = 4 * 1024 * 1024;
/// Whatever it does ends by then.
const LONGEST: Duration = Duration::from_secs(30);

// === impl FakeKubernetes ===

impl FakeKubernetes {
    /// Starts one, on a free port.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub async fn new() -> Self {
        let shared = Shared {
            leases: Mutex::new(Leases::new()),
            manners: Mutex::default(),
            written: watch::Sender::new(()),
            gone: watch::Sender::new(()),
            held: watch::Sender::new(Held::Nothing),
            waiting: AtomicUsize::new(0),
            watchers: AtomicUsize::new(0),
        };
        let mut server = Self { addr: free_port(), shared: Arc::new(shared), runtime: None };
        server.start().await;
        server
    }

    /// Where it listens, now and after every start.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// How its clients call it.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Has it answer nothing. Its connections stay, and new ones are made.
    pub fn pause(&self) {
        self.shared.held.send_replace(Held::All);
    }

    /// Has it write nothing. It answers what is read.
    pub fn pause_writes(&self) {
        self.shared.held.send_replace(Held::Writes);
    }

    /// Has it go on.
    pub fn resume(&self) {
        self.shared.held.send_replace(Held::Nothing);
    }

    /// How many wait for it to go on.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.waiting.load(Ordering::SeqCst)
    }

    /// Ends it in the middle of whatever it does.
    pub fn kill(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        // It waits, as who is asked by a task may not.
        let ending = thread::spawn(move || runtime.shutdown_timeout(LONGEST));
        ending.join().expect("it does not panic");
    }

    /// The same: there is no order in which it would end.
    pub async fn stop(&mut self) {
        self.kill();
    }

    /// Starts it again after [`kill`](Self::kill), with its data.
    ///
    /// # Panics
    ///
    /// If it does not start, or runs already.
    pub async fn start(&mut self) {
        assert!(self.runtime.is_none(), "it runs already");
        let mut builder = Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().expect("there are threads");
        let (addr, shared) = (self.addr, Arc::clone(&self.shared));
        let listener = runtime.spawn(TcpListener::bind(addr)).await.expect("it does not panic");
        let listener = listener.expect("the port is its own");
        let api = Router::new().fallback(move |request| answer(Arc::clone(&shared), request));
        runtime.spawn(async move { axum::serve(listener, api).await });
        self.runtime = Some(runtime);
    }

    /// Removes its data, as a disk that is lost. It counts from the beginning again, as etcd does then.
    ///
    /// # Panics
    ///
    /// If it runs.
    pub fn forget(&mut self) {
        assert!(self.runtime.is_none(), "it runs: kill it first");
        *self.shared.leases() = Leases::new();
    }

    /// Makes a namespace.
    pub fn create_namespace(&self, name: &str) {
        self.shared.leases().namespaces.insert(name.to_owned());
    }

    /// The lease of that name in the namespace `default`, if it is there.
    #[must_use]
    pub fn lease(&self, name: &str) -> Option<Value> {
        self.shared.leases().get(&key(name)).ok()
    }

    /// Changes it by hand, whatever comes of it: also to what the server would not let in.
    ///
    /// # Panics
    ///
    /// If it is not there.
    pub fn edit(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut leases = self.shared.leases();
        let mut lease = leases.get(&key(name)).expect("it is there");
        change(&mut lease);
        leases.force(key(name), lease);
        self.shared.written.send_replace(());
    }

    /// Deletes it by hand.
    ///
    /// # Panics
    ///
    /// If it is not there.
    pub fn delete(&self, name: &str) {
        self.shared.leases().delete(&key(name)).expect("it is there");
        self.shared.written.send_replace(());
    }

    /// Has it lie to all who ask by that method, until it is to [tell the truth](Self::tell_the_truth).
    pub fn lie(&self, to: &'static str, lie: Lie) {
        self.shared.manners().lie = Some((to, lie));
    }

    /// Has it answer what is so.
    pub fn tell_the_truth(&self) {
        self.shared.manners().lie = None;
    }

    /// Lets in only who has that token.
    pub fn require_token(&self, token: &str) {
        self.shared.manners().token = Some(token.to_owned());
    }

    /// Takes rights from all: `get`, `create`, `update`, `delete`, `watch`.
    pub fn forbid(&self, verbs: &[&'static str]) {
        self.shared.manners().forbidden = verbs.to_vec();
    }

    /// Has every write wait until so many are there.
    pub fn write_together(&self, many: usize) {
        self.shared.manners().together = (1 < many).then(|| Arc::new(Barrier::new(many)));
    }

    /// Ends all that watch, with the error that what they have seen is too old.
    pub fn end_watches(&self) {
        self.shared.gone.send_replace(());
    }

    /// How many watch.
    #[must_use]
    pub fn watchers(&self) -> usize {
        self.shared.watchers.load(Ordering::SeqCst)
    }

    /// All that was asked since it was last asked so.
    #[must_use]
    pub fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.shared.manners().asked)
    }
}

impl Drop for FakeKubernetes {
    fn drop(&mut self) {
        self.kill();
    }
}

fn key(name: &str) -> leases::Key {
    ("default".to_owned(), name.to_owned())
}

// === impl Shared ===

impl Shared {
    fn leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn manners(&self) -> MutexGuard<'_, Manners> {
        self.manners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits as long as it does not answer, or does not write.
    async fn open(&self, is_write: bool) {
        let is_open = |held: &Held| match held {
            Held::Nothing => true,
            Held::Writes => !is_write,
            Held::All => false,
        };
        if is_open(&self.held.borrow()) {
            return;
        }
        let _waiting = Counted::new(&self.waiting);
        let _ = self.held.subscribe().wait_for(is_open).await;
    }

    /// Lets whoever asks in, or says why not.
    fn let_in(&self, request: &Request, verb: &str, name: &str) -> Result<(), Refused> {
        let manners = self.manners();
        let said = request.headers().get("authorization").and_then(|said| said.to_str().ok());
        let wanted = manners.token.as_ref().map(|token| format!("Bearer {token}"));
        if wanted.is_some() && said != wanted.as_deref() {
            return Err(Refused::new(401, "Unauthorized", "Unauthorized"));
        }
        if manners.forbidden.contains(&verb) {
            let what = format!(
                "leases.coordination.k8s.io {name:?} is forbidden: User \"test\" cannot {verb} resource \"leases\" \
                in API group \"coordination.k8s.io\" in the namespace \"default\""
            );
            return Err(Refused::new(403, "Forbidden", what));
        }
        Ok(())
    }
}

/// One more, until it is dropped.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

// === Answering ===

async fn answer(shared: Arc<Shared>, request: Request) -> Response {
    let (method, uri) = (request.method().as_str().to_owned(), request.uri().clone());
    let agent = request.headers().get("user-agent").and_then(|agent| agent.to_str().ok());
    let path = uri.path_and_query().map_or("", |path| path.as_str()).to_owned();
    let asked = Asked { method, path, agent: agent.unwrap_or_default().to_owned() };
    let method = asked.method.clone();
    shared.manners().asked.push(asked);

    let is_write = method != "GET";
    shared.open(is_write).await;
    let together = shared.manners().together.clone();
    if let Some(together) = together.filter(|_| is_write) {
        together.wait().await;
    }
    let lie = shared.manners().lie.clone().filter(|(to, _)| *to == method).map(|(_, lie)| lie);
    if let Some(Lie::Before(code)) = lie {
        return refusal(code);
    }
    let said = done(&shared, request, &method).await;
    // It may have been told to stand meanwhile.
    shared.open(false).await;
    match lie {
        Some(Lie::After(code)) => refusal(code),
        Some(Lie::Text(text)) => response(200, Body::from(text)),
        _ => said,
    }
}

async fn done(shared: &Arc<Shared>, request: Request, method: &str) -> Response {
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default().to_owned();
    let parts: Vec<_> = path.strip_prefix(GROUP).unwrap_or("/?").split('/').skip(1).collect();
    let (namespace, name) = match *parts {
        [] | [""] if method == "GET" => {
            return or_refused(shared.let_in(&request, "discover", "").map(|()| resources()));
        }
        ["namespaces", namespace, "leases"] => (namespace.to_owned(), None),
        ["namespaces", namespace, "leases", name] => (namespace.to_owned(), Some(name.to_owned())),
        _ => return response(404, Body::from("404 page not found")),
    };
    let is_watch = query.split('&').any(|part| part == "watch=true" || part == "watch=1");
    let verb = match (method, &name) {
        ("GET", None) if is_watch => "watch",
        ("GET", None) => "list",
        ("GET", Some(_)) => "get",
        ("POST", None) => "create",
        ("PUT", Some(_)) => "update",
        ("DELETE", Some(_)) => "delete",
        _ => return refusal(405),
    };
    if let Err(refused) = shared.let_in(&request, verb, name.as_deref().unwrap_or_default()) {
        return or_refused(Err(refused));
    }
    if is_watch {
        return response(200, Body::from_stream(watching::events(shared, namespace, &query)));
    }
    let Ok(body) = axum::body::to_bytes(request.into_body(), BODY).await else {
        return refusal(413);
    };
    let key = (namespace, name.unwrap_or_default());
    let said = {
        let mut leases = shared.leases();
        match verb {
            "list" => Ok(leases.list(&key.0)),
            "get" => leases.get(&key),
            "create" => leases.create(&key.0, &body),
            "update" => leases.update(&key, &body),
            _ => leases.delete(&key),
        }
    };
    if said.is_ok() {
        shared.written.send_replace(());
    }
    match (verb, said) {
        ("create", Ok(lease)) => response(201, Body::from(lease.to_string())),
        (_, said) => or_refused(said),
    }
}

/// What the group has, for who looks whether there is any.
fn resources() -> Value {
    let verbs = ["create", "delete", "get", "list", "update", "watch"];
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": "coordination.k8s.io/v1",
        "resources": [{
            "name": "leases",
            "singularName": "lease",
            "namespaced": true,
            "kind": "Lease",
            "verbs": verbs,
        }],
    })
}

fn or_refused(said: Answer) -> Response {
    match said {
        Ok(said) => response(200, Body::from(said.to_string())),
        Err(refused) => response(refused.code, Body::from(refused.status().to_string())),
    }
}

/// What a server says that does not say much.
fn refusal(code: u16) -> Response {
    or_refused(Err(Refused::new(code, "Unknown", "the server could not do it")))
}

fn response(code: u16, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).expect("it is a status");
    let json = "application/json".parse().expect("it is a header");
    response.headers_mut().insert("content-type", json);
    response
}
