//! A circuit breaker for tower services: sliding windows, epochs, leased probes.
//!
//! A callee that is down or drowning is not helped by more calls, and neither are the callers: each call
//! costs a timeout, a connection and the patience of somebody. A breaker watches how calls end. Once too
//! many failed or were slow it **opens**, and refuses calls at once. After a while it is **half-open**:
//! a few probes are let through, and if they succeed it **closes** again.
//!
//! - [`Breaker`]: the handle, to be shared, asked, watched, and forced by hand;
//! - [`BreakerSettings`], [`Window`]: when it opens and what closes it;
//! - [`Breakers`], [`Select`]: one breaker for each callee, told apart by the request;
//! - [`BreakerLayer`]: what puts it before a service;
//! - [`State`], [`Stats`]: what can be seen.
//!
//! # Events
//!
//! By `tracing`, with this crate's name as the target:
//!
//! | level | message | fields |
//! |---|---|---|
//! | info | `circuit breaker changed state` | `breaker`, `key`, `from`, `to`, `reason`, `shadow` |
//! | debug | `circuit breaker refused a call` | `breaker`, `key`, `retry_in` |
//!
//! `from` and `to` are `closed`, `open` or `half-open`. `reason` is `failure rate`, `slow rate`, `consecutive
//! failures`, `open time over`, `probes succeeded`, `probe failed`, `probes slow`, `probes expired`, `forced`
//! or `reset`. `breaker` is the [name](BreakerSettings::name) if there is one. `key` comes from requests,
//! and is there only if you [ask for it](Breakers::label): it is no label for metrics.

mod breaker;
mod future;
mod gate;
mod keyed;
mod layer;
mod machine;
mod moment;
mod select;
mod service;
mod settings;
mod stats;
mod sync;
mod window;

#[cfg(all(test, buttress_loom))]
mod loom;

pub use self::{
    breaker::{Admission, Breaker},
    future::ResponseFuture,
    keyed::Breakers,
    layer::BreakerLayer,
    select::Select,
    service::BreakerService,
    settings::{BreakerSettings, Window},
    stats::{State, Stats, Tally},
};
