use crate::{BoxError, Class, ErrorsAsFailures, Reason};

/// Why an answer is a substitute for the callee's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Substitute {
    /// What the attempt said that it stands for.
    pub class: Class,
    /// Why one of our layers refused, if one did.
    pub reason: Option<Reason>,
}

/// Marks substitutes, so that nobody takes them for the callee's own answers.
///
/// Implemented by the classifiers of those protocols whose responses have a place for it. Closures and
/// [`ErrorsAsFailures`] know of none, and mark nothing.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot mark `{Res}` as a substitute",
    label = "a fallback in here marks its answers with it",
    note = "implement `buttress::Mark<{Res}>` for the classifier: one that does nothing will do"
)]
pub trait Mark<Res> {
    /// Marks `response`.
    fn mark(&self, response: &mut Res, why: Substitute);
}

impl Substitute {
    /// A substitute for what `class` and `reason` tell of.
    #[must_use]
    pub const fn new(class: Class, reason: Option<Reason>) -> Self {
        Self { class, reason }
    }
}

#[diagnostic::do_not_recommend]
impl<F, Res> Mark<Res> for F
where
    F: Fn(Result<&Res, &BoxError>) -> Class,
{
    fn mark(&self, _: &mut Res, _: Substitute) {}
}

impl<Res> Mark<Res> for ErrorsAsFailures {
    fn mark(&self, _: &mut Res, _: Substitute) {}
}
