use std::{
    convert::Infallible,
    fmt,
    future::{Ready, ready},
};

use buttress_core::BoxError;

use crate::Cause;

/// Answers where the callee did not.
///
/// [`FallbackLayer`](crate::FallbackLayer) makes one of a function, of a value or of another service. An
/// implementation of your own is for what none of them can: it is asked twice, once when the request
/// enters, for what to keep of it, and once when there is no answer.
///
/// It is cloned for each call. Put what is large behind an [`Arc`](std::sync::Arc).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no fallback for `{Res}`",
    label = "a fallback in here answers with it",
    note = "a function goes to `.fallback(..)` or `FallbackLayer::respond_with(..)`: \
            `|cause: &Cause<{Res}>| ..`, and it returns `{Res}`"
)]
pub trait Answer<Req, Res> {
    /// What is kept of a request.
    type Kept;
    /// Resolves to the answer, or to why there is none.
    type Future: Future<Output = Result<Res, BoxError>>;

    /// What to keep of a request to answer it. `None`: it will not be answered, and nothing is asked of
    /// the classifier.
    fn keep(&self, request: &Req) -> Option<Self::Kept>;

    /// Answers. The callee's future is gone by now; its response, if there was one, goes when this
    /// returns.
    fn answer(&self, kept: Self::Kept, cause: &Cause<Res>) -> Self::Future;
}

/// Never answers, and costs nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFallback;

/// Answers with what a function makes of the cause.
/// See [`FallbackLayer::respond_with`](crate::FallbackLayer::respond_with).
#[derive(Clone, Copy)]
pub struct Respond<F> {
    respond: F,
}

/// Answers with what a function makes of the cause, unless that fails.
/// See [`FallbackLayer::try_respond_with`](crate::FallbackLayer::try_respond_with).
#[derive(Clone, Copy)]
pub struct TryRespond<F> {
    respond: F,
}

/// Answers with a value that is made for it. See [`FallbackLayer::value`](crate::FallbackLayer::value).
#[derive(Clone, Copy)]
pub struct Value<F> {
    make: F,
}

/// Answers with what a function makes of the cause and of what was kept of the request.
/// See [`FallbackLayer::keep`](crate::FallbackLayer::keep).
#[derive(Clone, Copy)]
pub struct Keep<K, F> {
    keep: K,
    respond: F,
}

// === impl NoFallback ===

impl<Req, Res> Answer<Req, Res> for NoFallback {
    type Kept = Infallible;
    type Future = Ready<Result<Res, BoxError>>;

    #[inline]
    fn keep(&self, _: &Req) -> Option<Infallible> {
        None
    }

    fn answer(&self, kept: Infallible, _: &Cause<Res>) -> Self::Future {
        match kept {}
    }
}

// === impl Respond ===

impl<F> Respond<F> {
    /// Answers with what `respond` makes of the cause.
    pub const fn new<Res>(respond: F) -> Self
    where
        F: Fn(&Cause<Res>) -> Res,
    {
        Self { respond }
    }
}

impl<F, Req, Res> Answer<Req, Res> for Respond<F>
where
    F: Fn(&Cause<Res>) -> Res,
{
    type Kept = ();
    type Future = Ready<Result<Res, BoxError>>;

    #[inline]
    fn keep(&self, _: &Req) -> Option<()> {
        Some(())
    }

    fn answer(&self, (): (), cause: &Cause<Res>) -> Self::Future {
        ready(Ok((self.respond)(cause)))
    }
}

impl<F> fmt::Debug for Respond<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Respond").finish_non_exhaustive()
    }
}

// === impl TryRespond ===

impl<F> TryRespond<F> {
    /// Answers with what `respond` makes of the cause, unless that fails.
    pub const fn new<Res, E>(respond: F) -> Self
    where
        F: Fn(&Cause<Res>) -> Result<Res, E>,
    {
        Self { respond }
    }
}

impl<F, Req, Res, E> Answer<Req, Res> for TryRespond<F>
where
    F: Fn(&Cause<Res>) -> Result<Res, E>,
    E: Into<BoxError>,
{
    type Kept = ();
    type Future = Ready<Result<Res, BoxError>>;

    #[inline]
    fn keep(&self, _: &Req) -> Option<()> {
        Some(())
    }

    fn answer(&self, (): (), cause: &Cause<Res>) -> Self::Future {
        ready((self.respond)(cause).map_err(Into::into))
    }
}

impl<F> fmt::Debug for TryRespond<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TryRespond").finish_non_exhaustive()
    }
}

// === impl Value ===

impl<F> Value<F> {
    /// Answers with what `make` makes, anew each time.
    pub const fn new<Res>(make: F) -> Self
    where
        F: Fn() -> Res,
    {
        Self { make }
    }
}

impl<F, Req, Res> Answer<Req, Res> for Value<F>
where
    F: Fn() -> Res,
{
    type Kept = ();
    type Future = Ready<Result<Res, BoxError>>;

    #[inline]
    fn keep(&self, _: &Req) -> Option<()> {
        Some(())
    }

    fn answer(&self, (): (), _: &Cause<Res>) -> Self::Future {
        ready(Ok((self.make)()))
    }
}

impl<F> fmt::Debug for Value<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Value").finish_non_exhaustive()
    }
}

// === impl Keep ===

impl<K, F> Keep<K, F> {
    /// Keeps what `keep` makes of the request, and answers with what `respond` makes of that and of the
    /// cause.
    pub const fn new<Req, Res, T>(keep: K, respond: F) -> Self
    where
        K: Fn(&Req) -> T,
        F: Fn(T, &Cause<Res>) -> Res,
    {
        Self { keep, respond }
    }
}

impl<K, F, Req, Res, T> Answer<Req, Res> for Keep<K, F>
where
    K: Fn(&Req) -> T,
    F: Fn(T, &Cause<Res>) -> Res,
{
    type Kept = T;
    type Future = Ready<Result<Res, BoxError>>;

    fn keep(&self, request: &Req) -> Option<T> {
        Some((self.keep)(request))
    }

    fn answer(&self, kept: T, cause: &Cause<Res>) -> Self::Future {
        ready(Ok((self.respond)(kept, cause)))
    }
}

impl<K, F> fmt::Debug for Keep<K, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keep").finish_non_exhaustive()
    }
}
