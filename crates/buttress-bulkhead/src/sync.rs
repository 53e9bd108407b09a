//! What is shared between threads, from the standard library, or from loom when its models run.

#[cfg(not(buttress_loom))]
pub(crate) use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicU64, AtomicUsize},
};

#[cfg(buttress_loom)]
pub(crate) use ::loom::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicU64, AtomicUsize},
};
