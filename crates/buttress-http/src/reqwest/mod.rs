//! reqwest in a stack.
//!
//! reqwest serves requests and responses of its own, and a stack those of the `http` crate. [`reqwest()`] makes
//! the types meet beneath the stack.

mod body;
mod client;

pub use self::client::{Reqwest, ReqwestFuture, reqwest};
