use buttress_core::{BoxError, Class, Classify, Reason, Rejected, Substitute, judge};

/// Why a fallback is asked: how the call ended, and what the classifier said of it.
///
/// One can be made by hand, to try a fallback before it is needed:
///
/// ```
/// use buttress_core::{Class, Reason, Rejected};
/// use buttress_fallback::Cause;
///
/// fn busy(cause: &Cause<String>) -> String {
///     match cause.reason() {
///         Some(Reason::CircuitOpen) => "come back in a minute".into(),
///         _ => "something went wrong".into(),
///     }
/// }
///
/// let open = Rejected::new(Reason::CircuitOpen, "breaker");
/// let cause = Cause::new(Err(open.into()), Class::Refused);
/// assert_eq!(busy(&cause), "come back in a minute");
/// ```
#[derive(Debug)]
pub struct Cause<Res> {
    result: Result<Res, BoxError>,
    class: Class,
}

impl<Res> Cause<Res> {
    /// A call that ended with `result`, which is of that class.
    #[must_use]
    pub const fn new(result: Result<Res, BoxError>, class: Class) -> Self {
        Self { result, class }
    }

    /// A call that ended with `result`.
    pub(crate) fn judged<C>(classify: &C, result: Result<Res, BoxError>) -> Self
    where
        C: Classify<Res>,
    {
        let class = judge(classify, result.as_ref());
        Self { result, class }
    }

    /// What the classifier said of it.
    #[must_use]
    pub const fn class(&self) -> Class {
        self.class
    }

    /// Why one of our layers refused, if one did: the error *is* a [`Rejected`]. One that lies deeper in
    /// somebody's error is the callee's.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        self.error()?.downcast_ref().map(Rejected::reason)
    }

    /// The error, if there was no response.
    #[must_use]
    pub const fn error(&self) -> Option<&BoxError> {
        match &self.result {
            Ok(_) => None,
            Err(error) => Some(error),
        }
    }

    /// The response, if there was one.
    #[must_use]
    pub const fn response(&self) -> Option<&Res> {
        match &self.result {
            Ok(response) => Some(response),
            Err(_) => None,
        }
    }

    /// What whoever reads the answer is to know.
    pub(crate) fn substitute(&self) -> Substitute {
        Substitute::new(self.class, self.reason())
    }

    pub(crate) fn into_result(self) -> Result<Res, BoxError> {
        self.result
    }
}
