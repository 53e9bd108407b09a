use std::{error::Error, fmt};

use buttress_core::{Both, BoxError, Class, Elapsed, Rejected, Repeat};

/// What earlier attempts at a request came to.
///
/// It is for the case that the last one was not sent: a breaker has opened, or the callee did not become
/// ready. That must not be passed on as if *nothing* had been sent.
///
/// Nearly every first attempt is the last one, so it takes no more of a request's future than a word.
#[derive(Debug, Default)]
pub(crate) struct Before(Option<Box<Earlier>>);

#[derive(Debug, Default)]
struct Earlier {
    /// The latest error that says something of the callee.
    error: Option<BoxError>,
    /// Whether one of them may have been carried out.
    sent: bool,
}

/// An earlier attempt at the request was sent, and may have been carried out.
///
/// It is the cause in a [`Both`] whose error says that the last attempt was *not* sent. So a [`Rejected`] that
/// comes out of a retry by itself still means that the callee never saw the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempted;

// === impl Before ===

impl Before {
    /// An attempt was answered, and the answer is about to be let go of.
    pub(crate) fn answered(&mut self) {
        **self.earlier() = Earlier { error: None, sent: true };
    }

    /// An attempt has failed.
    pub(crate) fn failed(&mut self, class: Class, error: BoxError) {
        let earlier = self.earlier();
        earlier.sent |= class.repeat() != Repeat::Always;
        if earlier.error.is_none() || !says_unsent(&error) {
            earlier.error = Some(error);
        }
    }

    /// What to return instead of the last attempt's error. That error itself, unless it is a word of our own
    /// that nothing was sent.
    pub(crate) fn rather_than(&mut self, last: BoxError) -> BoxError {
        let Some(earlier) = self.0.as_mut().filter(|_| says_unsent(&last)) else { return last };
        let error = earlier.error.take().unwrap_or(last);
        if earlier.sent && says_unsent(&error) { Both::new(error, Attempted).into() } else { error }
    }

    fn earlier(&mut self) -> &mut Box<Earlier> {
        self.0.get_or_insert_default()
    }
}

/// Whether it is one of our layers' word that the request was not sent.
fn says_unsent(error: &BoxError) -> bool {
    error.is::<Rejected>() || error.downcast_ref().is_some_and(|elapsed: &Elapsed| !elapsed.sent())
}

// === impl Attempted ===

impl fmt::Display for Attempted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an earlier attempt was sent, and may have been carried out")
    }
}

impl Error for Attempted {}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use buttress_core::{Limit, Reason};

    use super::*;

    #[test]
    fn what_was_sent_stays_sent_whatever_comes_after() {
        let mut before = Before::default();
        before.answered();
        let unready = Elapsed::new(Limit::Attempt, Duration::from_secs(1)).unsent();
        before.failed(Class::Unreachable, unready.into());
        let open = Rejected::new(Reason::CircuitOpen, "breaker").into();
        assert!(before.rather_than(open).is::<Both>());
    }
}
