//! What a shed promises, seen from outside.

mod admission;
mod context;
mod contract;
mod deadline;
mod overload;
mod service;
mod support;
mod threads;
mod wakers;
