use std::{error::Error, net::SocketAddr, sync::LazyLock, time::Duration};

use buttress_leadership::{
    AcquireOutcome, AcquireRequest, Identity, LeaseName, LeaseRecord, LeaseStore, StoreError,
};
use buttress_lease_redis::{
    RedisError, RedisOptions, RedisStore,
    redis::{self, FromRedisValue, aio::MultiplexedConnection},
};
use buttress_servers::Server;
use bytes::Bytes;

/// Longer than any test.
pub(crate) const TTL: Duration = Duration::from_secs(600);

/// How it would be if the server had run for a while: it keeps all, too.
pub(crate) fn options(addr: SocketAddr) -> RedisOptions {
    RedisOptions::parse(&format!("redis://{addr}")).unwrap().keeps_all(true)
}

pub(crate) async fn open(server: &Server) -> RedisStore {
    options(server.addr()).open().await.unwrap()
}

/// What errors call it.
pub(crate) fn place(addr: SocketAddr) -> String {
    format!("{addr}/0")
}

/// Somebody at the server by hand.
pub(crate) struct Hand(MultiplexedConnection);

impl Hand {
    pub(crate) async fn at(server: &Server) -> Self {
        let client = redis::Client::open(server.url()).unwrap();
        Self(client.get_multiplexed_async_connection().await.unwrap())
    }

    /// Words, with spaces between.
    pub(crate) async fn ask<T: FromRedisValue>(&self, command: &str) -> redis::RedisResult<T> {
        let mut words = command.split(' ');
        let mut cmd = redis::cmd(words.next().unwrap());
        words.for_each(|word| {
            cmd.arg(word);
        });
        cmd.query_async(&mut self.0.clone()).await
    }

    pub(crate) async fn tell(&self, command: &str) {
        let done: redis::RedisResult<redis::Value> = self.ask(command).await;
        done.unwrap();
    }

    /// How many connections there are besides this one.
    pub(crate) async fn others(&self) -> usize {
        self.ask::<String>("CLIENT LIST").await.unwrap().lines().count() - 1
    }
}

pub(crate) fn lease() -> &'static LeaseName {
    static NAME: LazyLock<LeaseName> = LazyLock::new(|| LeaseName::new("a").unwrap());
    &NAME
}

pub(crate) async fn acquire(
    store: &RedisStore,
    who: &Identity,
) -> Result<AcquireOutcome, StoreError> {
    store.acquire(AcquireRequest::new(lease(), who, TTL, &Bytes::new())).await
}

pub(crate) async fn acquired(store: &RedisStore, who: &Identity) -> LeaseRecord {
    match acquire(store, who).await.unwrap() {
        AcquireOutcome::Acquired(record) => record,
        AcquireOutcome::Held(record) => panic!("held: {record:?}"),
    }
}

/// The error's kind, and that it names the server and the call.
#[track_caller]
pub(crate) fn told(error: &StoreError, place: &str, operation: &str) -> (&'static str, String) {
    let cause: &RedisError = error.source().unwrap().downcast_ref().unwrap();
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
