use std::{error::Error, net::SocketAddr, sync::LazyLock, time::Duration};

use buttress_leadership::{
    AcquireOutcome, AcquireRequest, Identity, LeaseName, LeaseRecord, LeaseStore, StoreError,
};
use buttress_lease_kubernetes::{
    KubernetesError, KubernetesOptions, KubernetesStore, kube::Config,
};
use buttress_servers::FakeKubernetes;
use bytes::Bytes;

/// Longer than any test.
pub(crate) const TTL: Duration = Duration::from_secs(600);

/// Of the namespace `default`.
pub(crate) fn options(addr: SocketAddr) -> KubernetesOptions {
    KubernetesOptions::of(config(addr))
}

pub(crate) fn config(addr: SocketAddr) -> Config {
    Config::new(format!("http://{addr}").parse().unwrap())
}

pub(crate) async fn open(server: &FakeKubernetes) -> KubernetesStore {
    options(server.addr()).open().await.unwrap()
}

pub(crate) fn lease() -> &'static LeaseName {
    static NAME: LazyLock<LeaseName> = LazyLock::new(|| LeaseName::new("a").unwrap());
    &NAME
}

pub(crate) async fn acquire(
    store: &KubernetesStore,
    who: &Identity,
) -> Result<AcquireOutcome, StoreError> {
    store.acquire(AcquireRequest::new(lease(), who, TTL, &Bytes::new())).await
}

pub(crate) async fn acquired(store: &KubernetesStore, who: &Identity) -> LeaseRecord {
    match acquire(store, who).await.unwrap() {
        AcquireOutcome::Acquired(record) => record,
        AcquireOutcome::Held(record) => panic!("held: {record:?}"),
    }
}

/// The error's kind, and that it names the lease and the call.
#[track_caller]
pub(crate) fn told(
    error: &StoreError,
    addr: SocketAddr,
    operation: &str,
) -> (&'static str, String) {
    let cause: &KubernetesError = error.source().unwrap().downcast_ref().unwrap();
    assert_eq!((cause.namespace(), cause.operation()), ("default", operation));
    let text = error.to_string();
    let what = match cause.name() {
        Some(name) => format!("Kubernetes lease store {addr}/default/{name}: {operation}: "),
        None => format!("Kubernetes lease store {addr}/default: {operation}: "),
    };
    assert!(text.contains(&what), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    let kind = match error {
        StoreError::NotApplied(_) => "not applied",
        StoreError::Ambiguous(_) => "ambiguous",
        StoreError::Fatal(_) => "fatal",
    };
    (kind, text)
}
