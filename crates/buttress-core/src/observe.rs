use crate::{BoxError, Class, Classify, judge};

/// A promise to report how a call ended.
///
/// Whoever was admitted holds one. Dropped, it reports that *nothing was learned*, and gives back what
/// it holds: so a caller that walks away needs no code of its own.
pub trait Permit {
    /// Fulfils the promise.
    fn report(self, class: Class);
}

/// When it is known how a call ended: at the head of the response, or only when its body has ended.
///
/// Every [`Classify`] observes at the head. To observe to the end of a body, the permit moves into the
/// response, whose type changes with it: `AtEnd` of `buttress-http` does that.
pub trait Observe<Res> {
    /// The response, with what carries the permit in it where it is not reported at the head.
    type Response<P: Permit>;

    /// Reports the permit, or moves it into the response.
    ///
    /// # Errors
    ///
    /// Passes on the error of `result`; it is reported at once.
    fn observe<P: Permit>(
        &self,
        result: Result<Res, BoxError>,
        permit: P,
    ) -> Result<Self::Response<P>, BoxError>;
}

impl<C, Res> Observe<Res> for C
where
    C: Classify<Res>,
{
    type Response<P: Permit> = Res;

    // Always: where a layer knows that there is an answer, next to nothing of this is left.
    #[inline(always)]
    fn observe<P: Permit>(
        &self,
        result: Result<Res, BoxError>,
        permit: P,
    ) -> Result<Res, BoxError> {
        permit.report(judge(self, result.as_ref()));
        result
    }
}
