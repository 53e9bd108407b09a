use std::time::Duration;

use buttress_leadership::{
    AcquireOutcome, Identity, LeaseClock, LeaseStore, ReleaseRequest,
    testing::{self, Subject},
};
use buttress_lease_kubernetes::KubernetesStore;
use buttress_servers::FakeKubernetes;
use futures_util::future::join;

use crate::server::{acquire, acquired, lease, open, options};

/// Two ways to the leases, as two processes have, by a clock that jumps.
struct Pair {
    one: KubernetesStore,
    other: KubernetesStore,
    clock: LeaseClock,
}

impl Subject for Pair {
    type Store = KubernetesStore;

    fn store(&self) -> &KubernetesStore {
        &self.one
    }

    fn another_way(&self) -> &KubernetesStore {
        &self.other
    }

    fn takes_any_name(&self) -> bool {
        false
    }

    async fn pass(&self, time: Duration) {
        self.clock.suspend(time);
    }

    fn rounds(&self) -> usize {
        40
    }

    /// The clock runs on while the machine is slow. What it is told to jump is a minute and more.
    fn ttl(&self) -> Duration {
        Duration::from_secs(600)
    }
}

async fn pair(server: &FakeKubernetes) -> Pair {
    let clock = LeaseClock::simulated();
    let open = || options(server.addr()).clock(clock.clone()).open();
    Pair { one: open().await.unwrap(), other: open().await.unwrap(), clock: clock.clone() }
}

#[tokio::test]
async fn it_keeps_to_the_rules() {
    let server = FakeKubernetes::new().await;
    testing::conformance(&pair(&server).await).await.assert();
}

/// Its connections are dead then, and what it has answered is there.
#[tokio::test]
async fn it_keeps_to_the_rules_after_the_server_was_killed() {
    let mut server = FakeKubernetes::new().await;
    let pair = pair(&server).await;
    let (me, you) = (Identity::generate(), Identity::generate());
    let mine = acquired(&pair.one, &me).await;
    server.kill();
    server.start().await;
    let AcquireOutcome::Held(seen) = acquire(&pair.one, &you).await.unwrap() else {
        panic!("it was forgotten");
    };
    assert!(seen.is_held_by(&me) && seen.fence == mine.fence);
    testing::conformance(&pair).await.assert();
}

// kube-leader-election 0.44: a patch without a version, by which both have it.
#[tokio::test]
async fn of_two_who_have_read_the_same_one_gets_it() {
    let server = FakeKubernetes::new().await;
    let [one, other] = [open(&server).await, open(&server).await];
    let [me, you] = [Identity::generate(), Identity::generate()];
    let mut last = 0;
    for round in 0..1000 {
        // Neither writes before both have read. In the first round both make the object, and read it again.
        server.write_together(2);
        let outcomes = join(acquire(&one, &me), acquire(&other, &you)).await;
        server.write_together(1);
        let won: Vec<_> = [(outcomes.0, &one, &me), (outcomes.1, &other, &you)]
            .into_iter()
            .filter_map(|(outcome, store, who)| match outcome.unwrap() {
                AcquireOutcome::Acquired(record) => Some((record, store, who)),
                AcquireOutcome::Held(record) => {
                    assert!(record.leader().is_some(), "{record:?}");
                    None
                }
            })
            .collect();
        let [(record, store, who)] = &won[..] else {
            panic!("{} have it in round {round}", won.len());
        };
        assert!(last < record.fence.get(), "token {} after {last}", record.fence);
        last = record.fence.get();
        store.release(ReleaseRequest::new(lease(), who, record.fence)).await.unwrap();
    }
}
