//! How long may one attempt take?
//!
//! An attempt that hangs must end while there is time for another one. So it has a limit of its own,
//! beneath the retry, besides the request's [deadline](crate::deadline) above it; and it never has more
//! time than the request has left.
//!
//! [`TimeoutLayer`] counts the wait for readiness. [`CallTimeoutLayer`] limits the call alone, and so needs
//! no clone of the service.

mod call_only;
mod future;
mod layer;
mod service;

pub use self::{
    call_only::{CallFuture, CallTimeout, CallTimeoutLayer},
    future::ResponseFuture,
    layer::TimeoutLayer,
    service::TimeoutService,
};
