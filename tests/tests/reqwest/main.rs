//! The standard stack around reqwest's client: real sockets on loopback, real errors.
//!
//! Nothing here asserts how long anything takes. What must come to pass is waited for.

mod beneath;
mod costs;
mod errors;
mod fits;
mod front;
mod secrets;
mod support;
