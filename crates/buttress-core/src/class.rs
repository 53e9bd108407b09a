use std::time::Duration;

use crate::{BoxError, Rejected};

/// What a finished attempt says.
///
/// One classifier serves a whole stack, because it gives evidence and not a verdict: each layer asks
/// its own question of it. A breaker asks for [`health`](Class::health), a retry whether to
/// [`repeat`](Class::repeat).
///
/// | class | health | repeat |
/// |---|---|---|
/// | `Success` | good | never |
/// | `CallerError` | neutral | never |
/// | `Throttled` | neutral | if it is safe, not before `after` |
/// | `Transient` | bad | if it is safe, not before `after` |
/// | `Fatal` | bad | never |
/// | `Unreachable` | bad | always |
/// | `Refused` | neutral | never |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Class {
    /// The callee did its job.
    Success,
    /// The request itself was wrong. That says nothing of the callee's health, and it would be wrong
    /// again.
    CallerError,
    /// The callee asks for fewer requests.
    Throttled {
        /// How long it asks us to wait.
        after: Option<Duration>,
    },
    /// It failed, and a repeat may work.
    Transient {
        /// How long the callee asks us to wait.
        after: Option<Duration>,
    },
    /// It failed, and would fail again.
    Fatal,
    /// Nothing was sent, as when no connection could be made. So even what must not happen twice may
    /// be sent again.
    Unreachable,
    /// One of our own layers said no: the callee never saw the request.
    Refused,
}

/// What a [`Class`] says of the callee's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It is well.
    Good,
    /// It is ill.
    Bad,
    /// Nothing was learned.
    Neutral,
}

/// What a [`Class`] says of sending the request again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Repeat {
    /// It would not help.
    Never,
    /// It may help, and the request may have been carried out: only what may happen twice.
    IfSafe,
    /// The request cannot have been carried out.
    Always,
}

/// Tells what a finished attempt says.
///
/// Implemented by named types, and by closures:
///
/// ```
/// use buttress_core::{BoxError, Class, Classify};
///
/// let classify = |result: Result<&u32, &BoxError>| match result {
///     Ok(0) => Class::Transient { after: None },
///     Ok(_) => Class::Success,
///     Err(_) => Class::Unreachable,
/// };
/// assert_eq!(classify.classify(Ok(&7)), Class::Success);
/// ```
///
/// Call it through [`judge`]: our own refusals are none of its business.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot say what `{Res}` means",
    label = "a layer in here asks it",
    note = "`HttpClass` and `GrpcClass` know `http::Response`s, `ErrorsAsFailures` is for all others",
    note = "a closure can say it, too: `|result: Result<&{Res}, &BoxError>| Class::Success`, its types written"
)]
pub trait Classify<Res> {
    /// What `result` says. Called once an attempt, when its head is there.
    fn classify(&self, result: Result<&Res, &BoxError>) -> Class;
}

/// Every answer is a success, and every error may go away: the default for services of unknown kind.
#[derive(Clone, Copy, Debug, Default)]
pub struct ErrorsAsFailures;

/// Classifies a result, our own refusals first.
///
/// Only an error that *is* a [`Rejected`] is ours. One deeper in somebody's error is the callee's
/// failure: it may have written before it was refused.
#[inline]
pub fn judge<Res, C>(classify: &C, result: Result<&Res, &BoxError>) -> Class
where
    C: Classify<Res> + ?Sized,
{
    match result {
        Err(error) if error.is::<Rejected>() => Class::Refused,
        result => classify.classify(result),
    }
}

// === impl Class ===

impl Class {
    /// What it says of the callee's health.
    #[inline]
    #[must_use]
    pub const fn health(self) -> Verdict {
        match self {
            Self::Success => Verdict::Good,
            Self::Transient { .. } | Self::Fatal | Self::Unreachable => Verdict::Bad,
            Self::CallerError | Self::Throttled { .. } | Self::Refused => Verdict::Neutral,
        }
    }

    /// What it says of sending the request again.
    ///
    /// `Throttled` is [`Repeat::IfSafe`], not `Always`: a limiter deep in the callee may speak after
    /// half of the work was done.
    #[must_use]
    pub const fn repeat(self) -> Repeat {
        match self {
            Self::Unreachable => Repeat::Always,
            Self::Throttled { .. } | Self::Transient { .. } => Repeat::IfSafe,
            Self::Success | Self::CallerError | Self::Fatal | Self::Refused => Repeat::Never,
        }
    }

    /// How long the callee asks us to wait before we come again.
    #[must_use]
    pub const fn after(self) -> Option<Duration> {
        match self {
            Self::Throttled { after } | Self::Transient { after } => after,
            _ => None,
        }
    }
}

// === impl Classify ===

#[diagnostic::do_not_recommend]
impl<F, Res> Classify<Res> for F
where
    F: Fn(Result<&Res, &BoxError>) -> Class,
{
    fn classify(&self, result: Result<&Res, &BoxError>) -> Class {
        self(result)
    }
}

impl<Res> Classify<Res> for ErrorsAsFailures {
    fn classify(&self, result: Result<&Res, &BoxError>) -> Class {
        match result {
            Ok(_) => Class::Success,
            Err(_) => Class::Transient { after: None },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Elapsed, Limit, Reason};

    /// An error that a callee's client made of one of our refusals, after it had written.
    #[derive(Debug)]
    struct Wrote(Rejected);

    impl std::fmt::Display for Wrote {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("wrote, then failed")
        }
    }

    impl std::error::Error for Wrote {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }

    fn judged(error: impl Into<BoxError>) -> Class {
        judge::<(), _>(&ErrorsAsFailures, Err(&error.into()))
    }

    #[test]
    fn only_the_error_that_is_a_refusal_is_ours() {
        let rejected = || Rejected::new(Reason::CircuitOpen, "breaker");
        assert_eq!(judged(rejected()), Class::Refused);
        assert_eq!(
            judged(Wrote(rejected())),
            Class::Transient { after: None },
            "what lies deeper is the callee's failure, and its request was sent"
        );
    }

    #[test]
    fn time_that_ran_out_proves_nothing_of_what_was_sent() {
        let elapsed = Elapsed::new(Limit::Attempt, Duration::from_secs(1));
        assert_eq!(judged(elapsed), Class::Transient { after: None });
        assert_eq!(
            judged(elapsed.unsent()),
            Class::Transient { after: None },
            "whoever wrote may have handed on the error of a call of its own"
        );
    }
}
