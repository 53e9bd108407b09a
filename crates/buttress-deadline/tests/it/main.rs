//! What the layers of this crate promise, with exact instants under a paused clock.

mod bounds;
mod carry;
mod connect;
mod context;
mod contract;
mod deadline;
mod entry;
mod readiness;
mod settings;
mod stack;
mod support;
mod timeout;
