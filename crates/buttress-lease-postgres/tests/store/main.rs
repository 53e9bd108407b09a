//! The store against the rules, against a real server and what happens to it, and against tables that are none.
#![cfg(target_os = "linux")]

mod connections;
mod election;
mod rules;
mod server;
mod tables;
mod tls;
