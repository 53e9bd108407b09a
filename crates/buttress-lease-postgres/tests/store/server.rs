use std::{
    error::Error,
    net::SocketAddr,
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use buttress_leadership::{
    AcquireOutcome, AcquireRequest, Identity, LeaseName, LeaseRecord, LeaseStore, StoreError,
};
use buttress_lease_postgres::{
    PostgresError, PostgresOptions, PostgresStore,
    tokio_postgres::{Client, Config, NoTls},
};
use buttress_servers::Server;
use bytes::Bytes;
use tokio::sync::OnceCell;

/// Longer than any test.
pub(crate) const TTL: Duration = Duration::from_secs(600);

/// One server for all tests that do it no harm. It goes with the process.
pub(crate) async fn shared() -> &'static Server {
    static SERVER: OnceCell<Server> = OnceCell::const_new();
    SERVER.get_or_init(Server::postgres).await
}

/// A database of a test's own.
pub(crate) struct Database {
    addr: SocketAddr,
    pub(crate) name: String,
}

impl Database {
    pub(crate) async fn new() -> Self {
        Self::on(shared().await, "").await
    }

    pub(crate) async fn on(server: &Server, with: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let admin = connect(&server.url()).await;
        admin.batch_execute(&format!("CREATE DATABASE {name} {with}")).await.unwrap();
        Self { addr: server.addr(), name }
    }

    pub(crate) fn config(&self) -> Config {
        self.url("postgres", self.addr).parse().unwrap()
    }

    /// With another user, or by another way.
    pub(crate) fn url(&self, user: &str, addr: SocketAddr) -> String {
        format!("postgres://{user}@{addr}/{}", self.name)
    }

    pub(crate) fn options(&self) -> PostgresOptions {
        self.options_by(self.addr)
    }

    pub(crate) fn options_by(&self, addr: SocketAddr) -> PostgresOptions {
        PostgresOptions::parse(&self.url("postgres", addr)).unwrap()
    }

    pub(crate) async fn store(&self) -> PostgresStore {
        self.options().create_table(true).open().await.unwrap()
    }

    /// Somebody at the database by hand.
    pub(crate) async fn hand(&self) -> Client {
        connect(&self.url("postgres", self.addr)).await
    }

    /// What errors call it.
    pub(crate) fn place(&self, addr: SocketAddr) -> String {
        format!("{addr}/{}", self.name)
    }
}

async fn connect(url: &str) -> Client {
    let (client, connection) =
        buttress_lease_postgres::tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

pub(crate) fn lease() -> &'static LeaseName {
    static NAME: LazyLock<LeaseName> = LazyLock::new(|| LeaseName::new("a").unwrap());
    &NAME
}

pub(crate) async fn acquire(
    store: &PostgresStore,
    who: &Identity,
) -> Result<AcquireOutcome, StoreError> {
    store.acquire(AcquireRequest::new(lease(), who, TTL, &Bytes::new())).await
}

pub(crate) async fn acquired(store: &PostgresStore, who: &Identity) -> LeaseRecord {
    match acquire(store, who).await.unwrap() {
        AcquireOutcome::Acquired(record) => record,
        AcquireOutcome::Held(record) => panic!("held: {record:?}"),
    }
}

/// The error's kind, and that it names the server and the call.
#[track_caller]
pub(crate) fn told(error: &StoreError, place: &str, operation: &str) -> (&'static str, String) {
    let cause: &PostgresError = error.source().unwrap().downcast_ref().unwrap();
    assert_eq!((cause.server(), cause.operation()), (place, operation));
    let text = error.to_string();
    assert!(text.contains(place) && text.contains(operation), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    let kind = match error {
        StoreError::NotApplied(_) => "not applied",
        StoreError::Ambiguous(_) => "ambiguous",
        StoreError::Fatal(_) => "fatal",
    };
    (kind, text)
}
