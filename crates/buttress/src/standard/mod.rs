//! The six client patterns in their documented order.

mod settings;
mod stack;

#[cfg(feature = "http")]
pub use self::stack::{GrpcService, GrpcStandard, HttpService, HttpStandard};
pub use self::{
    settings::{StandardSettings, Warning},
    stack::{
        BreakerScope, Given, NamedBreaker, OneBreaker, PerKey, Standard, StandardBuilder,
        StandardService,
    },
};
