use std::{error::Error, net::SocketAddr, sync::LazyLock, time::Duration};

use buttress_leadership::{
    AcquireOutcome, AcquireRequest, Identity, LeaseName, LeaseRecord, LeaseStore, StoreError,
};
use buttress_lease_etcd::{
    EtcdError, EtcdOptions, EtcdStore,
    etcd_client::{Client, LeaseTimeToLiveOptions},
};
use buttress_servers::Server;
use bytes::Bytes;

/// Longer than any test.
pub(crate) const TTL: Duration = Duration::from_secs(600);

pub(crate) fn options(addr: SocketAddr) -> EtcdOptions {
    EtcdOptions::parse(&format!("http://{addr}")).unwrap()
}

pub(crate) async fn open(server: &Server) -> EtcdStore {
    options(server.addr()).open().await.unwrap()
}

/// What errors call it.
pub(crate) fn place(addr: SocketAddr) -> String {
    addr.to_string()
}

/// Somebody at the server by hand.
pub(crate) async fn hand(server: &Server) -> Client {
    Client::connect([server.url()], None).await.unwrap()
}

/// Every lease of etcd that there is, and the keys that go with it.
pub(crate) async fn leases(hand: &Client) -> Vec<(i64, Vec<String>)> {
    let mut client = hand.lease_client();
    let mut all = Vec::new();
    for lease in client.leases().await.unwrap().leases() {
        let with_keys = Some(LeaseTimeToLiveOptions::new().with_keys());
        let is = client.time_to_live(lease.id(), with_keys).await.unwrap();
        let keys = is.keys().iter().map(|key| String::from_utf8_lossy(key).into_owned());
        all.push((lease.id(), keys.collect()));
    }
    all
}

pub(crate) fn lease() -> &'static LeaseName {
    static NAME: LazyLock<LeaseName> = LazyLock::new(|| LeaseName::new("a").unwrap());
    &NAME
}

pub(crate) async fn acquire(
    store: &EtcdStore,
    who: &Identity,
) -> Result<AcquireOutcome, StoreError> {
    store.acquire(AcquireRequest::new(lease(), who, TTL, &Bytes::new())).await
}

pub(crate) async fn acquired(store: &EtcdStore, who: &Identity) -> LeaseRecord {
    match acquire(store, who).await.unwrap() {
        AcquireOutcome::Acquired(record) => record,
        AcquireOutcome::Held(record) => panic!("held: {record:?}"),
    }
}

/// The error's kind, and that it names the cluster and the call.
#[track_caller]
pub(crate) fn told(error: &StoreError, place: &str, operation: &str) -> (&'static str, String) {
    let cause: &EtcdError = error.source().unwrap().downcast_ref().unwrap();
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
