//! The links of an error's chain, the outermost first.
//!
//! `source` alone steps over errors: over what an [`io::Error`] carries, and over what lies in a `Box` or
//! an `Arc`, which answer with the source of what they hold and not with what they hold. HTTP/2's says nothing
//! of the [`io::Error`] in it.

use std::{error::Error, io, sync::Arc};

type Link<'a> = &'a (dyn Error + 'static);

pub(crate) struct Chain<'a> {
    next: Option<Link<'a>>,
}

pub(crate) const fn chain<'a>(error: Link<'a>) -> Chain<'a> {
    Chain { next: Some(error) }
}

/// The link as an `E`, bare or in up to three pointers.
pub(crate) fn peel<E: Error + 'static>(error: Link<'_>) -> Option<&E> {
    bare_or_in::<E>(error)
        .or_else(|| bare_or_in::<Box<E>>(error).map(|e| &**e))
        .or_else(|| bare_or_in::<Arc<E>>(error).map(|e| &**e))
        .or_else(|| bare_or_in::<Box<Box<E>>>(error).map(|e| &***e))
        .or_else(|| bare_or_in::<Box<Arc<E>>>(error).map(|e| &***e))
        .or_else(|| bare_or_in::<Arc<Box<E>>>(error).map(|e| &***e))
        .or_else(|| bare_or_in::<Arc<Arc<E>>>(error).map(|e| &***e))
}

fn bare_or_in<E: Error + 'static>(error: Link<'_>) -> Option<&E> {
    error
        .downcast_ref::<E>()
        .or_else(|| error.downcast_ref::<Box<E>>().map(|e| &**e))
        .or_else(|| error.downcast_ref::<Arc<E>>().map(|e| &**e))
}

/// Whether the link is nothing but a pointer to the next.
pub(crate) fn is_pointer(error: Link<'_>) -> bool {
    error.is::<Arc<dyn Error + Send + Sync>>()
}

fn beneath(error: Link<'_>) -> Option<Link<'_>> {
    if let Some(carried) = peel::<io::Error>(error).and_then(io::Error::get_ref) {
        return Some(carried);
    }
    if let Some(shared) = error.downcast_ref::<Arc<dyn Error + Send + Sync>>() {
        return Some(&**shared);
    }
    #[cfg(feature = "hyper")]
    if let Some(carried) = peel::<h2::Error>(error).and_then(h2::Error::get_io) {
        return Some(carried);
    }
    error.source()
}

impl<'a> Iterator for Chain<'a> {
    type Item = Link<'a>;

    fn next(&mut self) -> Option<Link<'a>> {
        let link = self.next?;
        self.next = beneath(link);
        Some(link)
    }
}

#[cfg(test)]
mod tests {
    use buttress_core::{BoxError, Elapsed, Limit};

    use super::*;

    const LATE: Elapsed = Elapsed::new(Limit::Attempt, std::time::Duration::ZERO);

    #[test]
    fn no_pointer_hides_what_it_holds() {
        let shared: Arc<dyn Error + Send + Sync> = Arc::new(LATE);
        let wrapped: [BoxError; 8] = [
            LATE.into(),
            Box::new(Box::new(LATE)),
            Box::new(Arc::new(LATE)),
            Box::new(Arc::new(Box::new(LATE))),
            Box::new(Box::new(Arc::new(Box::new(LATE)))),
            Box::new(Arc::new(Box::new(Box::new(LATE)))),
            Box::new(shared),
            Box::new(Arc::new(io::Error::other(io::Error::other(Arc::new(LATE))))),
        ];
        for error in wrapped {
            assert_eq!(chain(&*error).find_map(peel::<Elapsed>), Some(&LATE), "{error:?}");
        }
    }
}
