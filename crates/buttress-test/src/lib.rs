//! A contract kit for tower layers.
//!
//! What a layer promises besides its own purpose is easily broken and hard to see: it calls an instance
//! that was never polled ready, an idle clone of it keeps a slot, a caller who walks away takes a permit
//! along. Each works in a demonstration and fails in an outage. [`contract`] checks a layer for
//! all of them, around a [`Probe`] that watches every step:
//!
//! | check | a layer fails it that |
//! |---|---|
//! | [`calls_what_was_readied`] | calls another instance than the one that was ready, or one twice |
//! | [`readiness_errors_are_final`] | hides the inner service's failure, or makes one of a temporary refusal |
//! | [`idle_clones_hold_nothing`] | reserves in `poll_ready` what belongs to a call |
//! | [`dropped_calls_give_all_back`] | forgets a permit when a response future is dropped at some poll |
//! | [`panics_give_all_back`] | loses a permit, or its own use, when the inner service panics |
//! | [`state_is_shared`] | makes its state in `Layer::layer`, so that every application has its own |
//!
//! Every check is shown to catch a layer that is broken in just that way.
//!
//! # Examples
//!
//! ```
//! use buttress_test::{Subject, contract};
//! use tower::timeout::TimeoutLayer;
//!
//! // tower's timeout keeps the contract.
//! contract(|| Subject::stateless(TimeoutLayer::new(std::time::Duration::from_secs(1))), || "ping", || "pong");
//! ```
//!
//! All of it runs under a paused clock, in a runtime of its own.

mod contract;
mod probe;

pub use self::{
    contract::{
        Subject, Violation, calls_what_was_readied, contract, dropped_calls_give_all_back,
        idle_clones_hold_nothing, panics_give_all_back, readiness_errors_are_final,
        state_is_shared,
    },
    probe::{Act, Probe, ProbeFuture, Readiness},
};
