//! The store against the rules, against files that are none, against other processes, and in elections.
#![cfg(target_os = "linux")]

mod elections;
mod files;
mod folder;
mod processes;
mod rules;
