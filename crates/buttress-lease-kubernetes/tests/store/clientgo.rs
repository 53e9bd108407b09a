//! Beside candidates of client-go on the same lease: the requests that those make, and what they believe of the answers.

use std::time::Duration;

use buttress_leadership::{
    AcquireOutcome, AcquireRequest, Identity, LeaseClock, LeaseRecord, LeaseStore, ReleaseRequest,
    RenewOutcome, RenewRequest,
};
use buttress_lease_kubernetes::{
    KubernetesStore,
    kube::{Client, Error},
};
use buttress_servers::FakeKubernetes;
use bytes::Bytes;
use http::{Method, Request};
use serde_json::{Value, json};

use crate::server::{TTL, acquire, acquired, config, lease, options};

/// One of them: a lease of 15 seconds, taken and renewed in the steps of its `LeaderElector` over a `LeaseLock`.
struct Go {
    client: Client,
    identity: String,
    clock: LeaseClock,
    /// The object as it has it, and the record that it saw in it last.
    object: Value,
    record: Value,
    seen: buttress_leadership::BootTime,
    /// Its wall clock, in seconds of an hour.
    now: u32,
}

const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
const LEASE: Duration = Duration::from_secs(15);

impl Go {
    fn new(server: &FakeKubernetes, clock: &LeaseClock, identity: &str) -> Self {
        Self {
            client: Client::try_from(config(server.addr())).unwrap(),
            identity: identity.to_owned(),
            clock: clock.clone(),
            object: Value::Null,
            record: Value::Null,
            seen: clock.now(),
            now: 0,
        }
    }

    /// Whether it leads, and goes on to.
    async fn try_acquire_or_renew(&mut self) -> bool {
        let now = self.time();
        let mut record = json!({
            "holderIdentity": self.identity,
            "leaseDurationSeconds": LEASE.as_secs(),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": 0,
        });
        if self.leads() && self.is_valid() {
            for kept in ["acquireTime", "leaseTransitions"] {
                record[kept] = self.record[kept].clone();
            }
            if self.update(&record).await {
                return true;
            }
        }
        match self.ask(Method::GET, "/a", &Value::Null).await {
            Ok(object) => self.object = object,
            Err(404) => {
                let object =
                    json!({ "metadata": { "name": "a", "namespace": "default" }, "spec": record });
                let Ok(object) = self.ask(Method::POST, "", &object).await else { return false };
                self.object = object;
                self.observe(record);
                return true;
            }
            Err(_) => return false,
        }
        let found = record_of(&self.object["spec"]);
        if self.record != found {
            self.observe(found);
        }
        let is_held = !self.record["holderIdentity"].as_str().unwrap().is_empty();
        if is_held && self.is_valid() && !self.leads() {
            return false;
        }
        if self.leads() {
            for kept in ["acquireTime", "leaseTransitions"] {
                record[kept] = self.record[kept].clone();
            }
        } else {
            record["leaseTransitions"] =
                (self.record["leaseTransitions"].as_i64().unwrap() + 1).into();
        }
        self.update(&record).await
    }

    /// As at a cancelled context, with `ReleaseOnCancel`.
    async fn release(&mut self) -> bool {
        let now = self.time();
        let record = json!({
            "holderIdentity": "",
            "leaseDurationSeconds": 1,
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": self.record["leaseTransitions"],
        });
        self.update(&record).await
    }

    async fn update(&mut self, record: &Value) -> bool {
        self.object["spec"] = record.clone();
        match self.ask(Method::PUT, "/a", &self.object).await {
            Ok(object) => {
                self.object = object;
                self.observe(record.clone());
                true
            }
            Err(_) => false,
        }
    }

    async fn ask(&self, method: Method, path: &str, object: &Value) -> Result<Value, u16> {
        let mut body = Vec::new();
        if !object.is_null() {
            let mut object = object.clone();
            object["kind"] = "Lease".into();
            object["apiVersion"] = "coordination.k8s.io/v1".into();
            body = serde_json::to_vec(&object).unwrap();
        }
        let request = Request::builder().method(method).uri(format!("{PATH}{path}"));
        let request = request.header("content-type", "application/json").body(body).unwrap();
        self.client.request(request).await.map_err(|error| match error {
            Error::Api(status) => status.code,
            error => panic!("{error}"),
        })
    }

    fn observe(&mut self, record: Value) {
        (self.record, self.seen) = (record, self.clock.now());
    }

    fn leads(&self) -> bool {
        self.record["holderIdentity"] == *self.identity
    }

    fn is_valid(&self) -> bool {
        let seconds = self.record["leaseDurationSeconds"].as_u64().unwrap_or_default();
        self.clock.now().since(self.seen) < Duration::from_secs(seconds)
    }

    fn time(&mut self) -> String {
        self.now += 1;
        format!("2026-01-01T00:{:02}:{:02}.000000Z", self.now / 60, self.now % 60)
    }
}

/// What it takes out of a spec: what is not there is nothing.
fn record_of(spec: &Value) -> Value {
    let mut record =
        json!({ "holderIdentity": "", "leaseDurationSeconds": 0, "leaseTransitions": 0 });
    for (field, value) in spec.as_object().unwrap() {
        record[field] = value.clone();
    }
    record
}

struct Both {
    server: FakeKubernetes,
    clock: LeaseClock,
    store: KubernetesStore,
    me: Identity,
    go: Go,
}

async fn both() -> Both {
    let server = FakeKubernetes::new().await;
    let clock = LeaseClock::simulated();
    let store = options(server.addr()).clock(clock.clone()).open().await.unwrap();
    let go = Go::new(&server, &clock, "pod-b_5a1d");
    Both { server, clock, store, me: Identity::generate(), go }
}

impl Both {
    async fn held(&self) -> LeaseRecord {
        match acquire(&self.store, &self.me).await.unwrap() {
            AcquireOutcome::Held(record) => record,
            AcquireOutcome::Acquired(record) => panic!("client-go has it: {record:?}"),
        }
    }

    fn go(&self) -> Identity {
        Identity::new(self.go.identity.clone()).unwrap()
    }
}

#[tokio::test]
async fn a_lease_of_theirs_is_held_as_long_as_they_renew_it() {
    let mut both = both().await;
    assert!(both.go.try_acquire_or_renew().await);
    let first = both.held().await;
    assert!(first.is_held_by(&both.go()) && first.granted_ttl == LEASE && !first.is_expired());
    for _ in 0..4 {
        both.clock.suspend(LEASE - Duration::from_secs(5));
        assert!(both.go.try_acquire_or_renew().await);
        let seen = both.held().await;
        assert_eq!((seen.fence, seen.acquired_at), (first.fence, first.acquired_at), "one term");
    }
    // It dies. As long as its object says, and not as long as we would have it.
    both.clock.suspend(LEASE);
    let mine = acquired(&both.store, &both.me).await;
    assert!(first.fence < mine.fence && mine.granted_ttl == TTL);
    // It comes to itself: what it writes is refused, and it sees who leads.
    assert!(!both.go.try_acquire_or_renew().await && !both.go.leads());
    let renew = RenewRequest::new(lease(), &both.me, mine.fence, TTL);
    assert!(matches!(both.store.renew(renew).await.unwrap(), RenewOutcome::Renewed(_)));
}

#[tokio::test]
async fn a_lease_that_they_release_is_ours_at_once_and_the_other_way_round() {
    let mut both = both().await;
    let mut last = 0;
    for _ in 0..3 {
        assert!(both.go.try_acquire_or_renew().await);
        let theirs = both.held().await;
        assert!(theirs.is_held_by(&both.go()) && last < theirs.fence.get(), "{theirs:?}");
        assert!(both.go.release().await);
        let free = both.store.inspect(lease()).await.unwrap().unwrap();
        assert!(free.holder.is_none() && theirs.fence <= free.fence, "{free:?}");
        let payload = Bytes::from_static(b"10.0.0.7:8080");
        let request = AcquireRequest::new(lease(), &both.me, TTL, &payload);
        let AcquireOutcome::Acquired(mine) = both.store.acquire(request).await.unwrap() else {
            panic!("nobody had it");
        };
        assert!(free.fence < mine.fence && mine.payload == payload);
        last = mine.fence.get();
        assert!(!both.go.try_acquire_or_renew().await, "it is ours");
        let release = ReleaseRequest::new(lease(), &both.me, mine.fence);
        both.store.release(release).await.unwrap();
    }
    let transitions = &both.server.lease("a").unwrap()["spec"]["leaseTransitions"];
    assert_eq!(transitions, 5, "each of six terms but the first");
}

#[tokio::test]
async fn a_lease_of_ours_that_is_over_is_theirs_and_we_are_told() {
    let mut both = both().await;
    let (payload, memo) = (Bytes::from_static(b"10.0.0.7:8080"), Bytes::from_static(b"memo"));
    let mine = acquired(&both.store, &both.me).await;
    let renew = RenewRequest::new(lease(), &both.me, mine.fence, TTL);
    both.store.renew(renew.payload(&payload).memo(&memo)).await.unwrap();
    assert!(!both.go.try_acquire_or_renew().await);
    both.clock.suspend(TTL - Duration::from_secs(60));
    both.store.renew(renew).await.unwrap();
    both.clock.suspend(TTL - Duration::from_secs(60));
    assert!(!both.go.try_acquire_or_renew().await, "it was renewed");
    both.clock.suspend(TTL);
    assert!(both.go.try_acquire_or_renew().await);
    let RenewOutcome::Lost(Some(seen)) = both.store.renew(renew).await.unwrap() else {
        panic!("two lead");
    };
    assert!(seen.is_held_by(&both.go()) && mine.fence < seen.fence, "{seen:?}");
    assert!(seen.payload.is_empty(), "what we said is not of them: {seen:?}");
    assert_eq!(seen.memo, memo, "what we left goes with the object");
    // With our annotations in it, it is renewed and released by them as ever.
    assert!(both.go.try_acquire_or_renew().await && both.go.release().await);
    let next = acquired(&both.store, &both.me).await;
    assert!(seen.fence < next.fence && next.memo == memo);
}

#[tokio::test]
async fn of_one_of_theirs_and_one_of_ours_one_has_it() {
    let mut both = both().await;
    assert!(both.go.try_acquire_or_renew().await && both.go.release().await);
    for round in 0..100 {
        // Neither writes before both have read.
        both.server.write_together(2);
        let ours = acquire(&both.store, &both.me);
        let (theirs, ours) = futures_util::future::join(both.go.try_acquire_or_renew(), ours).await;
        both.server.write_together(1);
        match ours.unwrap() {
            AcquireOutcome::Acquired(mine) => {
                assert!(!theirs, "both have it in round {round}");
                let release = ReleaseRequest::new(lease(), &both.me, mine.fence);
                both.store.release(release).await.unwrap();
            }
            AcquireOutcome::Held(seen) => {
                assert!(theirs && seen.is_held_by(&both.go()), "round {round}: {seen:?}");
                assert!(both.go.release().await);
            }
        }
    }
}
