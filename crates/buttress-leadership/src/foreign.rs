//! Code that is not ours: of stores, of signals, of errors.
//!
//! An election that ends with a panic of theirs leaves a system without a leader, and nobody notices. So
//! whatever of theirs is run by an elector, down to what is dropped, is run here.

use std::{
    fmt::Display,
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
};

/// What is somebody else's, as long as it is there. A panic as it is dropped ends nothing.
pub(crate) struct Foreign<T>(Option<T>);

/// Runs it. The error is what it panicked with.
pub(crate) fn guarded<T>(run: impl FnOnce() -> T) -> thread::Result<T> {
    catch_unwind(AssertUnwindSafe(run))
}

/// What an error says.
pub(crate) fn text_of(error: &impl Display) -> String {
    guarded(|| error.to_string())
        .unwrap_or_else(|_| "an error that panics when it is asked for its text".to_owned())
}

// === impl Foreign ===

impl<T> Foreign<T> {
    pub(crate) const fn new(it: T) -> Self {
        Self(Some(it))
    }

    /// Runs something of it.
    pub(crate) fn run<O>(&mut self, run: impl FnOnce(&mut T) -> O) -> thread::Result<O> {
        let it = self.0.as_mut().expect("it is there until it is dropped");
        guarded(|| run(it))
    }
}

impl<T> Drop for Foreign<T> {
    fn drop(&mut self) {
        let it = self.0.take();
        let _ = guarded(|| drop(it));
    }
}
