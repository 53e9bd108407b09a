//! Real servers for tests.
//!
//! A mock of a store says what its author believes of the store. What a lease is worth shows when the real one
//! is stopped in the middle of a write, killed, started without its data, or cut off in one direction.
//!
//! [`Server`] starts etcd, PostgreSQL or Redis on a free port of this host, in a folder of its own, and waits
//! until it answers. Nothing is left of it when it is dropped, when its test panics, or when the whole test
//! program is killed. Kubernetes is no package: [`FakeKubernetes`] does what its API server does with leases, and is as
//! good as what is known of that. [`Proxy`] stands between a client and a server, and does what networks do.
//!
//! It is for this workspace's tests, and published nowhere. Time is real here: none of it works under tokio's
//! paused clock.
#![cfg(unix)]

mod home;
mod kind;
mod kubernetes;
mod proxy;
mod server;
mod wait;

pub use self::{
    kubernetes::{Asked, FakeKubernetes, Lie},
    proxy::{Proxy, Way},
    server::Server,
    wait::{soon, standing_still_until, until},
};
