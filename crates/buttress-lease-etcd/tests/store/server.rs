use std::net::SocketAddr;

use buttress_lease_etcd::{EtcdOptions, EtcdStore};
use buttress_servers::Server;

pub(crate) fn options(addr: SocketAddr) -> EtcdOptions {
    EtcdOptions::parse(&format!("http://{addr}")).unwrap()
}

pub(crate) async fn open(server: &Server) -> EtcdStore {
    options(server.addr()).open().await.unwrap()
}
