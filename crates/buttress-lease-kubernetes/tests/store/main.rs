//! The store against the rules, against a server of the API and what happens to it, against objects that are no leases,
//! and beside candidates of client-go.
#![cfg(unix)]

mod clientgo;
mod connections;
mod election;
mod objects;
mod rules;
mod server;
mod terms;
mod tls;
