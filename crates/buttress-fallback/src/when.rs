use buttress_core::{Class, Verdict};

use crate::Cause;

/// For which causes a fallback answers.
///
/// Implemented by [`ByClass`], and by functions of the [`Cause`]. One of your own is set with
/// [`FallbackLayer::when_by`](crate::FallbackLayer::when_by).
pub trait When<Res> {
    /// Whether it answers for this one.
    fn applies(&self, cause: &Cause<Res>) -> bool;
}

/// Answers for refusals of our own layers and for failures of the callee's health, time that ran out among
/// them. The default.
///
/// | class | |
/// |---|---|
/// | `Refused`, `Transient`, `Fatal`, `Unreachable` | answers |
/// | `Success`, `CallerError`, `Throttled` | passes on what there is |
///
/// `Throttled` passes, for it says when to come again, and a caller that sees a good answer comes at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByClass;

impl<Res> When<Res> for ByClass {
    #[inline]
    fn applies(&self, cause: &Cause<Res>) -> bool {
        let class = cause.class();
        class == Class::Refused || class.health() == Verdict::Bad
    }
}

impl<F, Res> When<Res> for F
where
    F: Fn(&Cause<Res>) -> bool,
{
    #[inline]
    fn applies(&self, cause: &Cause<Res>) -> bool {
        self(cause)
    }
}
