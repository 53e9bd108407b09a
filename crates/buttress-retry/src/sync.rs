//! The atomics: loom's while a model runs, else the standard library's.

#[cfg(not(buttress_loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(buttress_loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
