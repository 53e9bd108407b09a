use std::time::Duration;

use buttress_leadership::{
    AcquireOutcome, Identity,
    testing::{self, Subject},
};
use buttress_lease_etcd::EtcdStore;
use buttress_servers::Server;
use tokio::time::sleep;

use crate::server::{acquire, acquired, open};

/// Two ways to one server, as two processes have. Nobody sets its clock: the suite waits.
struct Pair {
    one: EtcdStore,
    other: EtcdStore,
    server: Server,
}

impl Pair {
    async fn on(server: Server) -> Self {
        Self { one: open(&server).await, other: open(&server).await, server }
    }
}

impl Subject for Pair {
    type Store = EtcdStore;

    fn store(&self) -> &EtcdStore {
        &self.one
    }

    fn another_way(&self) -> &EtcdStore {
        &self.other
    }

    async fn pass(&self, time: Duration) {
        sleep(time).await;
    }

    fn at_once(&self) -> usize {
        12
    }

    fn rounds(&self) -> usize {
        40
    }

    /// etcd looks for leases that are over every half second.
    fn ttl(&self) -> Duration {
        Duration::from_secs(3)
    }
}

#[tokio::test]
async fn it_keeps_to_the_rules() {
    testing::conformance(&Pair::on(Server::etcd().await).await).await.assert();
}

/// Its connections are dead then, and what it has answered is there.
#[tokio::test]
async fn it_keeps_to_the_rules_after_the_server_was_killed() {
    let mut pair = Pair::on(Server::etcd().await).await;
    let (me, you) = (Identity::generate(), Identity::generate());
    let mine = acquired(&pair.one, &me).await;
    pair.server.kill();
    pair.server.start().await;
    let AcquireOutcome::Held(seen) = acquire(&pair.one, &you).await.unwrap() else {
        panic!("it was forgotten");
    };
    assert!(seen.is_held_by(&me) && seen.fence == mine.fence);
    testing::conformance(&pair).await.assert();
}
