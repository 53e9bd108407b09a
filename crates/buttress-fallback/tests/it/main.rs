//! What the fallback promises.

mod bounds;
mod cause;
mod contract;
mod failing;
mod passing;
mod service;
mod support;
