use std::fmt;

use buttress_core::ErrorsAsFailures;
use tower_layer::Layer;

use crate::{Ask, ByClass, Cause, FallbackService, Keep, NoFallback, Respond, TryRespond, Value};

/// Answers where the callee did not.
///
/// It belongs outermost, where everything else has given up. What it may answer with:
///
/// | | answers with |
/// |---|---|
/// | [`respond_with`](Self::respond_with) | what a function makes of the cause |
/// | [`try_respond_with`](Self::try_respond_with) | the same, unless that fails |
/// | [`value`](Self::value) | a value that is made anew each time |
/// | [`keep`](Self::keep) | what a function makes of something kept of the request, and of the cause |
/// | [`service`](Self::service) | what another service says |
///
/// | setting | default | says |
/// |---|---|---|
/// | [`classify`](Self::classify) | errors are failures | what an answer or an error means, and how answers are marked |
/// | [`when`](Self::when), [`when_by`](Self::when_by) | [`ByClass`] | for which of them to answer |
///
/// Answer, classifier and predicate are cloned for each call, so keep them small.
///
/// # Errors
///
/// The service passes on the error that it does not answer for. If the fallback fails, the error is a
/// [`Both`](buttress_core::Both): the fallback's, and the one that led to it (a
/// [`FailedResponse`](crate::FailedResponse) where that was a response).
///
/// Readiness is the inner service's. An error of it is final, and is passed on: there is no request yet
/// that could be answered.
///
/// # Cancel safety
///
/// The inner future is dropped before the fallback is asked, so its permits are free. Whoever drops the
/// response future drops what runs, be it the call or the fallback.
///
/// # Examples
///
/// ```
/// use buttress_core::{Reason, Rejected};
/// use buttress_fallback::{Cause, FallbackLayer};
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
///
/// fn busy(_: &Cause<String>) -> String {
///     "we are busy, come again".into()
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let client = ServiceBuilder::new()
///     .layer(FallbackLayer::respond_with(busy).when(|cause| {
///         matches!(cause.reason(), Some(Reason::CircuitOpen | Reason::BulkheadFull))
///     }))
///     .service(service_fn(async |()| Err(Rejected::new(Reason::BulkheadFull, "bulkhead"))));
/// assert_eq!(client.oneshot(()).await.unwrap(), "we are busy, come again");
/// # }
/// ```
#[derive(Clone, Copy)]
pub struct FallbackLayer<A, C = ErrorsAsFailures, W = ByClass> {
    policy: Policy<A, C, W>,
}

/// What to answer, and when.
#[derive(Clone, Copy)]
pub(crate) struct Policy<A, C, W> {
    pub(crate) answer: A,
    pub(crate) classify: C,
    pub(crate) when: W,
}

// The constructors stand on one concrete type, so that the compiler need not guess the parameters.
impl FallbackLayer<NoFallback> {
    /// Answers with what `respond` makes of the cause.
    ///
    /// ```
    /// use buttress_fallback::FallbackLayer;
    ///
    /// let layer = FallbackLayer::respond_with(|cause| format!("{:?}", cause.class()));
    /// # let _ = layer;
    /// ```
    pub const fn respond_with<Res, F>(respond: F) -> FallbackLayer<Respond<F>>
    where
        F: Fn(&Cause<Res>) -> Res,
    {
        FallbackLayer::new(Respond::new(respond))
    }

    /// Answers with what `respond` makes of the cause. Its error does not hide the one that led to it.
    ///
    /// ```
    /// use buttress_fallback::FallbackLayer;
    ///
    /// let read = |_: &_| std::fs::read_to_string("the/page/of/yesterday.html");
    /// let layer = FallbackLayer::try_respond_with(read);
    /// # let _ = layer;
    /// ```
    pub const fn try_respond_with<Res, E, F>(respond: F) -> FallbackLayer<TryRespond<F>>
    where
        F: Fn(&Cause<Res>) -> Result<Res, E>,
    {
        FallbackLayer::new(TryRespond::new(respond))
    }

    /// Answers with a value. It is made anew for each answer, so that responses need not be [`Clone`].
    ///
    /// ```
    /// use buttress_fallback::FallbackLayer;
    ///
    /// let layer = FallbackLayer::value(Vec::<u64>::new);
    /// # let _ = layer;
    /// ```
    pub const fn value<Res, F>(make: F) -> FallbackLayer<Value<F>>
    where
        F: Fn() -> Res,
    {
        FallbackLayer::new(Value::new(make))
    }

    /// Answers with what `respond` makes of the cause, and of what `keep` made of the request when it
    /// entered. Nothing else of the request is kept.
    ///
    /// `keep` runs for every request, so let it take little.
    ///
    /// ```
    /// use buttress_fallback::FallbackLayer;
    ///
    /// struct Query { user: u64 }
    ///
    /// let layer = FallbackLayer::keep(
    ///     |query: &Query| query.user,
    ///     |user, _cause| format!("nothing new for user {user}"),
    /// );
    /// # let _ = layer;
    /// ```
    pub const fn keep<Req, Res, T, K, F>(keep: K, respond: F) -> FallbackLayer<Keep<K, F>>
    where
        K: Fn(&Req) -> T,
        F: Fn(T, &Cause<Res>) -> Res,
    {
        FallbackLayer::new(Keep::new(keep, respond))
    }

    /// Answers with what `service` says, called with what `keep` made of the request when it entered.
    ///
    /// The response future waits until a clone of it is ready. It runs in the context of the request: if
    /// the request's deadline has passed, layers of the service refuse. So give the fallback its share of
    /// the time: a [deadline](buttress_core::Deadline) beneath this layer that is shorter than the one
    /// above.
    ///
    /// `keep` runs for every request, so let it take little.
    ///
    /// ```
    /// use buttress_fallback::FallbackLayer;
    /// use std::convert::Infallible;
    /// use tower::service_fn;
    ///
    /// let cache = service_fn(async |key: u64| Ok::<_, Infallible>(format!("what {key} was")));
    /// let layer = FallbackLayer::service(|request: &(u64, String)| request.0, cache);
    /// # let _ = layer;
    /// ```
    pub fn service<Req, Sent, K, S>(keep: K, service: S) -> FallbackLayer<Ask<K, S>>
    where
        K: Fn(&Req) -> Sent,
    {
        FallbackLayer::new(Ask::new(keep, service))
    }
}

impl<A> FallbackLayer<A> {
    /// Answers with `answer`, an [`Answer`](crate::Answer) of your own, or [`NoFallback`].
    #[must_use]
    pub const fn new(answer: A) -> Self {
        Self { policy: Policy { answer, classify: ErrorsAsFailures, when: ByClass } }
    }
}

impl<A, C, W> FallbackLayer<A, C, W> {
    /// Says what an answer or an error means, and marks the fallback's answers: a
    /// [`Classify`](buttress_core::Classify) that is a [`Mark`](buttress_core::Mark) as well, as closures
    /// are.
    #[must_use]
    pub fn classify<D>(self, classify: D) -> FallbackLayer<A, D, W> {
        let Policy { answer, when, .. } = self.policy;
        FallbackLayer { policy: Policy { answer, classify, when } }
    }

    /// Answers only where the function `predicate` says so, instead of [`ByClass`].
    #[must_use]
    pub fn when<Res, P>(self, predicate: P) -> FallbackLayer<A, C, P>
    where
        P: Fn(&Cause<Res>) -> bool,
    {
        self.when_by(predicate)
    }

    /// The same, for any [`When`](crate::When): a type of your own, which has a name and can be kept in a
    /// struct, or [`ByClass`] again.
    ///
    /// A method of its own, because the types of a closure are found only where its `Fn` bound stands.
    ///
    /// ```
    /// use buttress_fallback::{ByClass, Cause, FallbackLayer, When};
    ///
    /// /// Answers for what the default does, but not for what is merely slow.
    /// #[derive(Clone)]
    /// struct UnlessSlow;
    ///
    /// impl<Res> When<Res> for UnlessSlow {
    ///     fn applies(&self, cause: &Cause<Res>) -> bool {
    ///         let is_slow = cause.error().is_some_and(|error| error.is::<buttress_core::Elapsed>());
    ///         ByClass.applies(cause) && !is_slow
    ///     }
    /// }
    ///
    /// let layer = FallbackLayer::value(String::new).when_by(UnlessSlow);
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn when_by<V>(self, when: V) -> FallbackLayer<A, C, V> {
        let Policy { answer, classify, .. } = self.policy;
        FallbackLayer { policy: Policy { answer, classify, when } }
    }
}

// By hand: they are closures, as a rule, which are not `Debug`.
impl<A, C, W> fmt::Debug for FallbackLayer<A, C, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FallbackLayer").finish_non_exhaustive()
    }
}

impl<S, A, C, W> Layer<S> for FallbackLayer<A, C, W>
where
    A: Clone,
    C: Clone,
    W: Clone,
{
    type Service = FallbackService<S, A, C, W>;

    fn layer(&self, inner: S) -> Self::Service {
        FallbackService::new(inner, self.policy.clone())
    }
}
