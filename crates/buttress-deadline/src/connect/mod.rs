//! How long may it take to get a connection?
//!
//! A host that is down often says nothing: what is sent to it is dropped on the way, and the system goes on
//! trying for minutes. An attempt's [timeout](crate::timeout) ends that, too late and with the wrong word: ten
//! seconds are for an answer, a connection takes a few round trips, and `Elapsed` of an attempt means that the
//! request may have been carried out. Without a connection nothing was sent, and whatever the method is, it
//! may be sent again.
//!
//! [`ConnectTimeoutLayer`] limits the connector of a client, and its error says that there was no connection.

mod future;
mod layer;
mod service;

pub use self::{future::ConnectFuture, layer::ConnectTimeoutLayer, service::ConnectTimeout};
