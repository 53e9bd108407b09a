//! What threads share, so that loom can take its place.

#[cfg(buttress_loom)]
pub(crate) use loom::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
#[cfg(not(buttress_loom))]
pub(crate) use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Holds what there is now, or nothing. To read it takes no lock and allocates nothing.
///
/// loom cannot look into `arc-swap`. In its models a lock stands for it, which gives no more than a swap
/// promises: whoever reads has one value that was stored, whole.
#[cfg(not(buttress_loom))]
pub(crate) struct Swap<T>(arc_swap::ArcSwapOption<T>);

#[cfg(buttress_loom)]
pub(crate) struct Swap<T>(loom::sync::Mutex<Option<Arc<T>>>);

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
        Self(loom::sync::Mutex::new(None))
    }

    pub(crate) fn read<R>(&self, f: impl FnOnce(Option<&Arc<T>>) -> R) -> R {
        let value = self.0.lock().expect("nothing panics under it").clone();
        f(value.as_ref())
    }

    pub(crate) fn store(&self, value: Option<Arc<T>>) {
        *self.0.lock().expect("nothing panics under it") = value;
    }
}
