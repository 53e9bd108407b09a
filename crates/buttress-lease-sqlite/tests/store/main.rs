//! The store against the rules, against files that are none, and against other processes.
#![cfg(target_os = "linux")]

mod files;
mod folder;
mod processes;
mod rules;
