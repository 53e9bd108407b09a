//! How long is an answer worth having?
//!
//! Timeouts that are stacked add up: three attempts of ten seconds with waits between them are more than
//! half a minute, while whoever asked has left after five seconds. A deadline does not add up. It is an
//! instant, fixed once when the request enters, and it ends everything that is done for the request.
//! Nested deadlines only shorten it.
//!
//! [`DeadlineLayer`] fixes it, makes it [known](buttress_core::Deadline::current) to whatever runs
//! beneath, and enforces it. [`EntryLayer`] only fixes it, for stacks in which a queue stands
//! above the layer that enforces.

mod entry;
mod future;
mod layer;
mod service;

pub use self::{
    entry::{EntryFuture, EntryLayer, EntryService},
    future::ResponseFuture,
    layer::DeadlineLayer,
    service::DeadlineService,
};
