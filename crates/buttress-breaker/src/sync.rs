//! What threads share, so that loom can take its place.

#[cfg(buttress_loom)]
pub(crate) use loom::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};
#[cfg(not(buttress_loom))]
pub(crate) use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};

use std::sync::PoisonError;

/// Locks, whoever panicked before. Nothing of a user's runs under these locks, so that what they guard is
/// never half written.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Holds a handle, or none. To read it takes no lock, and writes no word that other readers look at.
///
/// Who reads need not be counted: but whoever replaces the value counts those who still look at it, before it gives
/// its own handle back. So one whose count is 1 is looked at by nobody.
///
/// loom cannot look into `arc-swap`. In its models a lock stands for it, and readers are counted.
#[cfg(not(buttress_loom))]
pub(crate) struct Swap<T>(arc_swap::ArcSwapOption<T>);

#[cfg(buttress_loom)]
pub(crate) struct Swap<T>(Mutex<Option<Arc<T>>>);

#[cfg(not(buttress_loom))]
impl<T> Swap<T> {
    pub(crate) const fn empty() -> Self {
        Self(arc_swap::ArcSwapOption::const_empty())
    }

    #[inline]
    pub(crate) fn read<R>(&self, f: impl FnOnce(Option<&Arc<T>>) -> R) -> R {
        f(self.0.load().as_ref())
    }

    pub(crate) fn store(&self, value: Option<Arc<T>>) {
        self.0.store(value);
    }
}

#[cfg(buttress_loom)]
impl<T> Swap<T> {
    pub(crate) fn empty() -> Self {
        Self(Mutex::new(None))
    }

    pub(crate) fn read<R>(&self, f: impl FnOnce(Option<&Arc<T>>) -> R) -> R {
        let value = lock(&self.0).clone();
        f(value.as_ref())
    }

    pub(crate) fn store(&self, value: Option<Arc<T>>) {
        let _dropped_unlocked = std::mem::replace(&mut *lock(&self.0), value);
    }
}
