//! reqwest in a stack.
//!
//! reqwest serves requests and responses of its own, and a stack those of the `http` crate. [`reqwest()`] makes
//! the types meet beneath the stack, and [`as_reqwest()`] above it.

mod body;
mod client;
mod front;
mod replay;

use std::{error::Error, fmt};

pub use self::{
    client::{Reqwest, ReqwestFuture, reqwest},
    front::{AsReqwest, AsReqwestFuture, AsReqwestLayer, as_reqwest},
    replay::{KeptReqwest, ReqwestReplay},
};

/// Why a request is not sent: it is none in the other's types.
#[derive(Debug)]
struct Unfit {
    why: reqwest::Error,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("reqwest cannot send such a request")
    }
}

impl Error for Unfit {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.why)
    }
}
