//! The store against the rules, against a server of the API and what happens to it, against objects that are no leases,
//! and beside candidates of client-go.
#![cfg(unix)]

mod connections;
mod objects;
mod rules;
mod server;
