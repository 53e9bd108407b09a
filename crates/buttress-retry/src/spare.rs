use std::sync::{Mutex, OnceLock, PoisonError};

/// An idle instance of the inner service, of which later attempts take clones.
///
/// One for all requests of a service. Nearly every first attempt is the last one, and a clone for each would clone,
/// and drop again, every handle in the stack beneath: counts that all threads share.
///
/// In a mutex, since a service need not be `Sync`. It is locked where a request is repeated, for a clone.
#[derive(Debug)]
pub(crate) struct Spare<S>(OnceLock<Mutex<S>>);

impl<S> Spare<S> {
    pub(crate) const fn new() -> Self {
        Self(OnceLock::new())
    }
}

impl<S: Clone> Spare<S> {
    /// Keeps a clone of `service`, the first time.
    #[inline]
    pub(crate) fn keep(&self, service: &S) {
        self.0.get_or_init(|| Mutex::new(service.clone()));
    }

    /// A fresh instance, if [one is kept](Self::keep).
    pub(crate) fn fresh(&self) -> Option<S> {
        // A clone that panicked has changed nothing.
        let spare = self.0.get()?.lock().unwrap_or_else(PoisonError::into_inner);
        Some(spare.clone())
    }
}
