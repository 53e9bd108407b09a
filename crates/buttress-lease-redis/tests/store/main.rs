//! The store against the rules, against a real server and what happens to it, and against keys that are none.
#![cfg(target_os = "linux")]

mod connections;
mod election;
mod forgetting;
mod keys;
mod rules;
mod server;
mod tls;
