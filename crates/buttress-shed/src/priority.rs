/// How much it hurts when a request is not served.
///
/// The four classes of Google's *Site Reliability Engineering* (chapter 21, "Handling Overload"): there
/// criticality is part of every call, and four values proved to be enough to tell any two calls apart
/// that must not be treated alike. A greater one is more important.
// Exhaustive on purpose: the four are the source's, and a fifth would be another scale. Whoever maps them to
// metrics or to a header should hear of it from the compiler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Nobody minds if it is not served now and then, as with what is fetched ahead.
    Sheddable,
    /// It may be served later, as a batch job that is started anew.
    SheddablePlus,
    /// A user sees it if it is not served. The default: what nobody has thought about is not shed before
    /// what somebody has called sheddable.
    #[default]
    Critical,
    /// Many users see it, or money is lost.
    CriticalPlus,
}

/// Which [`Priority`] a request has.
///
/// A [`Priority`] gives itself to every request. Closures are the short form of what looks at the request:
///
/// ```
/// use buttress_shed::{Priority, Prioritize};
///
/// let by_path = |path: &&str| match *path {
///     "/checkout" => Priority::CriticalPlus,
///     "/prefetch" => Priority::Sheddable,
///     _ => Priority::Critical,
/// };
/// assert_eq!(by_path.priority(&"/prefetch"), Priority::Sheddable);
/// assert_eq!(Priority::SheddablePlus.priority(&"/prefetch"), Priority::SheddablePlus);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` gives no priority to `{Req}`",
    label = "a shed layer in here asks it",
    note = "a `Priority` gives itself to every request, a closure says it of each: \
            `|request: &{Req}| Priority::Critical`, its type written"
)]
pub trait Prioritize<Req: ?Sized> {
    /// The request's priority. Asked once a request, when it arrives.
    fn priority(&self, request: &Req) -> Priority;
}

impl Priority {
    /// How many there are.
    pub(crate) const COUNT: usize = 4;

    /// The priority as a short name, for events and labels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sheddable => "sheddable",
            Self::SheddablePlus => "sheddable plus",
            Self::Critical => "critical",
            Self::CriticalPlus => "critical plus",
        }
    }
}

#[diagnostic::do_not_recommend]
impl<F, Req: ?Sized> Prioritize<Req> for F
where
    F: Fn(&Req) -> Priority,
{
    fn priority(&self, request: &Req) -> Priority {
        self(request)
    }
}

impl<Req: ?Sized> Prioritize<Req> for Priority {
    fn priority(&self, _: &Req) -> Priority {
        *self
    }
}
