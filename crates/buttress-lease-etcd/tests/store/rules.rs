use std::time::Duration;

use buttress_leadership::testing::{self, Subject};
use buttress_lease_etcd::EtcdStore;
use buttress_servers::Server;
use tokio::time::sleep;

use crate::server::open;

/// Two ways to one server, as two processes have. Nobody sets its clock: the suite waits.
struct Pair {
    one: EtcdStore,
    other: EtcdStore,
    _server: Server,
}

impl Pair {
    async fn on(server: Server) -> Self {
        Self { one: open(&server).await, other: open(&server).await, _server: server }
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
