//! The store against the rules, against real servers and what happens to them, and against keys that are none.
#![cfg(target_os = "linux")]

mod cluster;
mod connections;
mod election;
mod keys;
mod rules;
mod server;
mod tls;
