//! The store against the rules, against real servers and what happens to them, and against keys that are none.
#![cfg(target_os = "linux")]

mod rules;
mod server;
