use std::{borrow::Cow, fmt, marker::PhantomData, time::Duration};

use buttress_breaker::{Breaker, BreakerLayer, BreakerService, BreakerSettings, Breakers};
use buttress_bulkhead::{Bulkhead, BulkheadLayer, BulkheadService, BulkheadSettings};
use buttress_core::{CloneReplay, ErrorsAsFailures, InvalidSetting, KeyOf, timer::RareAlarm};
use buttress_deadline::{
    DeadlineLayer, DeadlineService, EntryLayer, EntryService, TimeoutLayer, TimeoutService,
};
use buttress_fallback::{Cause, FallbackLayer, FallbackService, NoFallback, Respond};
use buttress_retry::{Budget, BudgetSettings, RetryLayer, RetryService, RetrySettings};
use tower_layer::Layer;

use super::{StandardSettings, Warning};

#[cfg(feature = "http")]
use buttress_http::{AtEnd, Authority, ByAuthority, GrpcClass, GrpcReplay, HttpClass, HttpReplay};

/// The six client patterns in their documented order, around any service.
///
/// A stack that is put together by hand has a hundred ways to be wrong that all compile: the layers in
/// another order, an attempt that is longer than the whole, waits that no deadline has room for. This is
/// one that is right, and its settings are checked as a whole before it is used.
///
/// It is a [`Layer`]: every service it makes shares its bulkhead, its breakers and its budget, and so do
/// clones of it. [Order](crate#order) says what stands where, and why.
///
/// | setting | default |
/// |---|---|
/// | in flight, waiting | 1000, none |
/// | total | 30 s |
/// | attempts | 3 in all |
/// | waits between them | 100 ms, doubling to 5 s, full jitter |
/// | budget of repeats | a tenth of what succeeds |
/// | `Retry-After` | obeyed to 60 s, and if the deadline has room |
/// | what is repeated | what may happen twice; what was never sent |
/// | breaker | opens at 50 % of at least 20 failed, or 80 % slow, in 10 s, for 5 s, doubling to 60 s |
/// | a call is slow | after half of an attempt |
/// | attempt | 10 s |
/// | fallback | none |
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use buttress::Standard;
/// use tower::{Layer, Service, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), buttress::BoxError> {
/// let echo = service_fn(|n: u32| async move { Ok::<_, std::io::Error>(n) });
/// let stack = Standard::generic().total(Duration::from_secs(5)).attempt(Duration::from_secs(1)).build()?;
/// let mut service = stack.layer(echo);
/// assert_eq!(service.ready().await?.call(7).await?, 7);
/// assert_eq!(stack.breakers().stats().success, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Standard<C = ErrorsAsFailures, R = CloneReplay, B = Breaker, A = NoFallback, O = C> {
    settings: StandardSettings,
    warnings: Vec<Warning>,
    bulkhead: Bulkhead,
    budget: Budget,
    breakers: B,
    observe: O,
    fallback: FallbackLayer<A, C>,
    retry: RetryLayer<C, R>,
}

/// Makes a [`Standard`]. Nothing is checked before [`build`](Self::build).
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct StandardBuilder<C, R, K, A, O = C> {
    settings: StandardSettings,
    bulkhead: Option<Bulkhead>,
    budget: Option<Budget>,
    classify: C,
    observe: O,
    replay: R,
    scope: K,
    answer: A,
}

/// What a [`Standard`] makes of `S`. There is no box in it, and no closure but your own, so that a struct can hold it:
/// as [`HttpService`]`<Hyper<Client<..>>>` without a fallback, and with one as
/// `HttpService<Hyper<Client<..>>, HttpReplay, Respond<fn(&Cause<Response>) -> Response>>`, where the function was
/// passed `as fn(&_) -> _`.
pub type StandardService<
    S,
    C = ErrorsAsFailures,
    R = CloneReplay,
    B = Breaker,
    A = NoFallback,
    O = C,
> = FallbackService<
    EntryService<
        BulkheadService<
            DeadlineService<RetryService<BreakerService<TimeoutService<S, RareAlarm>, B, O>, C, R>>,
        >,
    >,
    A,
    C,
>;

/// A [`Standard`] for HTTP, as [`Standard::http`] makes it.
#[cfg(feature = "http")]
pub type HttpStandard<R = HttpReplay, A = NoFallback> =
    Standard<HttpClass, R, Breakers<Authority, ByAuthority>, A>;

/// What an [`HttpStandard`] makes of `S`.
#[cfg(feature = "http")]
pub type HttpService<S, R = HttpReplay, A = NoFallback> =
    StandardService<S, HttpClass, R, Breakers<Authority, ByAuthority>, A>;

/// A [`Standard`] for gRPC, as [`Standard::grpc`] makes it.
#[cfg(feature = "http")]
pub type GrpcStandard<R = GrpcReplay, A = NoFallback> =
    Standard<GrpcClass, R, Breaker, A, AtEnd<GrpcClass>>;

/// What a [`GrpcStandard`] makes of `S`.
#[cfg(feature = "http")]
pub type GrpcService<S, R = GrpcReplay, A = NoFallback> =
    StandardService<S, GrpcClass, R, Breaker, A, AtEnd<GrpcClass>>;

/// Which calls share a breaker.
pub trait BreakerScope {
    /// The breaker, or the breakers.
    type Breakers;

    /// Makes them.
    ///
    /// # Errors
    ///
    /// The setting that cannot work.
    fn breakers(self, settings: BreakerSettings) -> Result<Self::Breakers, InvalidSetting>;
}

/// All calls share one. See [`BreakerScope`].
#[derive(Clone, Copy, Debug, Default)]
pub struct OneBreaker;

/// All calls share one, of this name, unless the breaker's settings have another. See [`BreakerScope`].
#[derive(Clone, Debug)]
pub struct NamedBreaker(Cow<'static, str>);

/// Those calls share one that have the same key. See [`BreakerScope`].
#[derive(Debug)]
pub struct PerKey<K, F> {
    key_of: F,
    _key: PhantomData<fn() -> K>,
}

/// The breakers exist already, and may be shared with other stacks. See [`BreakerScope`].
#[derive(Clone, Copy, Debug)]
pub struct Given<B>(B);

// === impl Standard ===

impl Standard {
    /// A stack for services of any kind: errors are failures, requests are cloned and may be sent twice, and
    /// all calls share one breaker.
    ///
    /// Requests that must not be carried out twice take
    /// [`replay`](StandardBuilder::replay)`(`[`NoReplay`](crate::NoReplay)`)`, or a
    /// [`Replay`](crate::Replay) of their own.
    pub fn generic() -> StandardBuilder<ErrorsAsFailures, CloneReplay, OneBreaker, NoFallback> {
        StandardBuilder::new(ErrorsAsFailures, CloneReplay, OneBreaker)
    }

    /// A stack for HTTP clients: statuses are classified, only what may happen twice is repeated,
    /// `Retry-After` is obeyed, and each authority has a breaker of its own.
    ///
    /// The request's body is [`Clone`], as `Full<Bytes>` is; for one that streams there is
    /// [`HttpReplay::record`]. The client stands in an adapter, as in [`hyper`](crate::http::hyper).
    #[cfg(feature = "http")]
    pub fn http()
    -> StandardBuilder<HttpClass, HttpReplay, PerKey<Authority, ByAuthority>, NoFallback> {
        StandardBuilder::new(HttpClass, HttpReplay, PerKey::new(ByAuthority))
    }

    /// A stack for gRPC clients: statuses are classified wherever they stand, in the head or in the trailers,
    /// and all calls share one breaker of that name, as most of them are to one service.
    ///
    /// The retry decides at the head, the breaker when the body has ended. So that the retry sees a status
    /// that comes right after the head, the client stands in [`GrpcHead`](crate::http::GrpcHead). What is
    /// repeated are calls that were never sent: name the methods that may be carried out twice by
    /// [`replay`](StandardBuilder::replay)`(`[`GrpcReplay::methods`]`([..]))`. Bodies are recorded while they
    /// pass, up to 64 KiB, as those of generated clients cannot be cloned.
    ///
    #[cfg_attr(feature = "tonic", doc = "```")]
    #[cfg_attr(not(feature = "tonic"), doc = "```ignore")]
    /// use buttress::{
    ///     GrpcService, InvalidSetting, Standard,
    ///     http::{GrpcHead, GrpcHeadLayer, GrpcReplay, SendDeadline, SendDeadlineLayer, Tonic, tonic},
    /// };
    /// use tonic::transport::Channel;
    /// use tower::ServiceBuilder;
    ///
    /// /// What a generated client is made of: `OrdersClient::new(orders(channel)?)`.
    /// type Orders = GrpcService<GrpcHead<SendDeadline<Tonic<Channel>>>>;
    ///
    /// fn orders(channel: Channel) -> Result<Orders, InvalidSetting> {
    ///     let replay = GrpcReplay::methods(["/shop.Orders/Get", "/shop.Orders/List"]);
    ///     Ok(ServiceBuilder::new()
    ///         .layer(Standard::grpc("orders").replay(replay).build()?)
    ///         .layer(GrpcHeadLayer::new())
    ///         .layer(SendDeadlineLayer::grpc())
    ///         .service(tonic(channel)))
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # orders(Channel::from_static("http://orders:50051").connect_lazy()).unwrap();
    /// # }
    /// ```
    ///
    /// A call lasts until its body has ended. So a stream that is well, but runs for more than
    /// [half of an attempt](StandardSettings::breaker), is slow to the breaker, and one that its client drops
    /// teaches it nothing: give streams a stack of their own, with [`observe`](StandardBuilder::observe)`(GrpcClass)`.
    ///
    /// A table of your own goes to both ends: `.classify(class.clone()).observe(AtEnd(class))`.
    #[cfg(feature = "http")]
    pub fn grpc(
        name: impl Into<Cow<'static, str>>,
    ) -> StandardBuilder<GrpcClass, GrpcReplay, NamedBreaker, NoFallback, AtEnd<GrpcClass>> {
        StandardBuilder::new(GrpcClass, GrpcReplay::none(), NamedBreaker(name.into()))
            .observe(AtEnd(GrpcClass))
    }
}

impl<C, R, B, A, O> Standard<C, R, B, A, O> {
    /// The settings that it was made of.
    pub const fn settings(&self) -> &StandardSettings {
        &self.settings
    }

    /// What works, but hardly as it was meant. Log them.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// The bulkhead that all its services share.
    pub const fn bulkhead(&self) -> &Bulkhead {
        &self.bulkhead
    }

    /// The budget of repeats that all its services share.
    pub const fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The breaker or the breakers that all its services share.
    pub const fn breakers(&self) -> &B {
        &self.breakers
    }
}

impl<S, C, R, B, A, O> Layer<S> for Standard<C, R, B, A, O>
where
    C: Clone,
    R: Clone,
    B: Clone,
    A: Clone,
    O: Clone,
{
    type Service = StandardService<S, C, R, B, A, O>;

    fn layer(&self, inner: S) -> Self::Service {
        let StandardSettings { total, attempt, .. } = self.settings;
        let service = TimeoutLayer::new(attempt).beneath_deadline().layer(inner);
        let service =
            BreakerLayer::new(self.breakers.clone()).classify(self.observe.clone()).layer(service);
        let service = self.retry.layer(service);
        let service = DeadlineLayer::new(total).layer(service);
        let service = BulkheadLayer::new(self.bulkhead.clone()).layer(service);
        // The wait in the bulkhead's queue counts.
        let service = EntryLayer::new(total).above_ours().layer(service);
        self.fallback.layer(service)
    }
}

impl<C, R, B: fmt::Debug, A, O> fmt::Debug for Standard<C, R, B, A, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Standard")
            .field("settings", &self.settings)
            .field("bulkhead", &self.bulkhead)
            .field("budget", &self.budget)
            .field("breakers", &self.breakers)
            .finish_non_exhaustive()
    }
}

// === impl StandardBuilder ===

impl<C: Clone, R, K> StandardBuilder<C, R, K, NoFallback> {
    fn new(classify: C, replay: R, scope: K) -> Self {
        let settings = StandardSettings::default();
        let (bulkhead, budget, answer) = (None, None, NoFallback);
        let observe = classify.clone();
        Self { settings, bulkhead, budget, classify, observe, replay, scope, answer }
    }
}

impl<C, R, K, A, O> StandardBuilder<C, R, K, A, O> {
    /// All settings at once, as from a file.
    pub fn settings(mut self, settings: StandardSettings) -> Self {
        self.settings = settings;
        self
    }

    /// How long an answer is worth having, from the moment on that it is asked for.
    pub const fn total(mut self, total: Duration) -> Self {
        self.settings.total = total;
        self
    }

    /// How long one attempt may take.
    pub const fn attempt(mut self, attempt: Duration) -> Self {
        self.settings.attempt = attempt;
        self
    }

    /// How often a request may be sent in all.
    pub const fn attempts(mut self, attempts: u32) -> Self {
        self.settings.retry.attempts = attempts;
        self
    }

    /// How many requests may be in flight, and how many may wait for that.
    ///
    /// It is one number for all that the stack sends to, so one host that hangs can take all of it. Where
    /// that matters, make a stack for each.
    pub fn bulkhead(mut self, bulkhead: BulkheadSettings) -> Self {
        self.settings.bulkhead = bulkhead;
        self
    }

    /// When a request is sent again.
    pub fn retry(mut self, retry: RetrySettings) -> Self {
        self.settings.retry = retry;
        self
    }

    /// How much all requests together may repeat.
    pub fn budget(mut self, budget: BudgetSettings) -> Self {
        self.settings.budget = budget;
        self
    }

    /// When a callee is spared.
    pub fn breaker(mut self, breaker: BreakerSettings) -> Self {
        self.settings.breaker = breaker;
        self
    }

    /// A bulkhead that exists already, as one that several stacks share or [`Bulkhead::unlimited`]. The
    /// bulkhead's settings are not used then.
    pub fn with_bulkhead(mut self, bulkhead: Bulkhead) -> Self {
        self.bulkhead = Some(bulkhead);
        self
    }

    /// A budget that exists already, as one that several stacks share. The budget's settings are not used
    /// then.
    pub fn with_budget(mut self, budget: Budget) -> Self {
        self.budget = Some(budget);
        self
    }

    /// A breaker, or breakers, that exist already. The breaker's settings are not used then.
    ///
    /// ```
    /// use buttress::{Breaker, BreakerSettings, Standard};
    ///
    /// # fn main() -> Result<(), buttress::InvalidSetting> {
    /// let breaker = Breaker::new(BreakerSettings::quiet().name("orders"))?;
    /// let stack = Standard::generic().with_breakers(breaker.clone()).build()?;
    /// breaker.force_open();
    /// assert_eq!(stack.breakers().state(), buttress::State::Open);
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_breakers<B>(self, breakers: B) -> StandardBuilder<C, R, Given<B>, A, O> {
        self.scope(Given(breakers))
    }

    /// A breaker for each key.
    ///
    /// ```
    /// use buttress::Standard;
    ///
    /// struct Query {
    ///     tenant: u32,
    /// }
    ///
    /// # fn main() -> Result<(), buttress::InvalidSetting> {
    /// let stack = Standard::generic().breaker_by(|query: &Query| query.tenant).build()?;
    /// assert!(stack.breakers().get(&7).is_none(), "made with the first request");
    /// # Ok(())
    /// # }
    /// ```
    pub fn breaker_by<Req, Key, F>(self, key_of: F) -> StandardBuilder<C, R, PerKey<Key, F>, A, O>
    where
        F: KeyOf<Req, Key = Key>,
    {
        self.scope(PerKey::new(key_of))
    }

    fn scope<K2>(self, scope: K2) -> StandardBuilder<C, R, K2, A, O> {
        let Self { settings, bulkhead, budget, classify, observe, replay, answer, .. } = self;
        StandardBuilder { settings, bulkhead, budget, classify, observe, replay, scope, answer }
    }

    /// What an answer or an error says, for the retry, the breaker and the fallback. The types of a closure's
    /// argument have to be written:
    ///
    /// ```
    /// use buttress::{BoxError, Class, Standard};
    ///
    /// let builder = Standard::generic().classify(|result: Result<&u16, &BoxError>| match result {
    ///     Ok(200..400) => Class::Success,
    ///     Ok(400..500) => Class::CallerError,
    ///     Ok(_) => Class::Transient { after: None },
    ///     Err(_) => Class::Unreachable,
    /// });
    /// # builder.build().unwrap();
    /// ```
    pub fn classify<C2: Clone>(self, classify: C2) -> StandardBuilder<C2, R, K, A> {
        let Self { settings, bulkhead, budget, replay, scope, answer, .. } = self;
        let observe = classify.clone();
        StandardBuilder { settings, bulkhead, budget, classify, observe, replay, scope, answer }
    }

    /// What says to the breaker how a call ended, where that is not known at the head, as with
    /// `http::AtEnd`. The retry and the fallback decide at the head all the same. It comes after
    /// [`classify`](Self::classify), which sets both.
    ///
    #[cfg_attr(feature = "http", doc = "```")]
    #[cfg_attr(not(feature = "http"), doc = "```ignore")]
    /// use buttress::{
    ///     Standard,
    ///     http::{AtEnd, HttpClass},
    /// };
    ///
    /// // Counts responses that break off in their bodies.
    /// let builder = Standard::http().observe(AtEnd(HttpClass));
    /// # builder.build().unwrap();
    /// ```
    pub fn observe<O2>(self, observe: O2) -> StandardBuilder<C, R, K, A, O2> {
        let Self { settings, bulkhead, budget, classify, replay, scope, answer, .. } = self;
        StandardBuilder { settings, bulkhead, budget, classify, observe, replay, scope, answer }
    }

    /// What is sent again, and whether it may be: [`CloneReplay`], [`NoReplay`](crate::NoReplay), or those
    /// of HTTP.
    pub fn replay<R2>(self, replay: R2) -> StandardBuilder<C, R2, K, A, O> {
        let Self { settings, bulkhead, budget, classify, observe, scope, answer, .. } = self;
        StandardBuilder { settings, bulkhead, budget, classify, observe, replay, scope, answer }
    }

    /// The answer for when there is none: a function of the cause.
    pub fn fallback<Res, F>(self, respond: F) -> StandardBuilder<C, R, K, Respond<F>, O>
    where
        F: Fn(&Cause<Res>) -> Res,
    {
        self.fallback_with(Respond::new(respond))
    }

    /// The same for answers of other kinds: one that may fail, one that uses the request, or another service.
    ///
    /// ```
    /// use buttress::{Standard, fallback::Keep};
    ///
    /// let stale = Keep::new(|key: &u64| *key, |key, _cause| format!("what {key} was yesterday"));
    /// let builder = Standard::generic().fallback_with(stale);
    /// # builder.build().unwrap();
    /// ```
    pub fn fallback_with<A2>(self, answer: A2) -> StandardBuilder<C, R, K, A2, O> {
        let Self { settings, bulkhead, budget, classify, observe, replay, scope, .. } = self;
        StandardBuilder { settings, bulkhead, budget, classify, observe, replay, scope, answer }
    }

    /// Checks all settings, alone and against each other, and makes the stack.
    ///
    /// # Errors
    ///
    /// The first setting that cannot work, and what it must be.
    pub fn build(self) -> Result<Standard<C, R, K::Breakers, A, O>, InvalidSetting>
    where
        C: Clone,
        K: BreakerScope,
    {
        let Self { settings, bulkhead, budget, classify, observe, replay, scope, answer } = self;
        let warnings = settings.check()?;
        let bulkhead = match bulkhead {
            Some(bulkhead) => bulkhead,
            None => within("bulkhead", Bulkhead::new(settings.bulkhead.clone()))?,
        };
        let budget = match budget {
            Some(budget) => budget,
            None => within("budget", Budget::new(settings.budget.clone()))?,
        };
        let retry = within("retry", RetryLayer::from_settings(&settings.retry, budget.clone()))?
            .classify(classify.clone())
            .replay(replay);
        Ok(Standard {
            breakers: within("breaker", scope.breakers(settings.effective_breaker()))?,
            fallback: FallbackLayer::new(answer).classify(classify),
            settings,
            warnings,
            bulkhead,
            budget,
            observe,
            retry,
        })
    }
}

/// Names the group that a setting belongs to.
fn within<T>(group: &str, made: Result<T, InvalidSetting>) -> Result<T, InvalidSetting> {
    made.map_err(|error| error.within(group))
}

/// It is none, but can say so: without this, the compiler knows of no more than a method that is missing.
#[doc(hidden)]
impl<S, C, R, K, A, O> Layer<S> for StandardBuilder<C, R, K, A, O>
where
    Self: crate::check::Built,
{
    type Service = S;

    fn layer(&self, inner: S) -> S {
        inner
    }
}

// === impl BreakerScope ===

impl BreakerScope for OneBreaker {
    type Breakers = Breaker;

    fn breakers(self, settings: BreakerSettings) -> Result<Breaker, InvalidSetting> {
        Breaker::new(settings)
    }
}

impl BreakerScope for NamedBreaker {
    type Breakers = Breaker;

    fn breakers(self, mut settings: BreakerSettings) -> Result<Breaker, InvalidSetting> {
        settings.name.get_or_insert(self.0);
        Breaker::new(settings)
    }
}

impl<K, F> BreakerScope for PerKey<K, F> {
    type Breakers = Breakers<K, F>;

    fn breakers(self, settings: BreakerSettings) -> Result<Self::Breakers, InvalidSetting> {
        Breakers::new(settings, self.key_of)
    }
}

impl<K, F> PerKey<K, F> {
    const fn new(key_of: F) -> Self {
        Self { key_of, _key: PhantomData }
    }
}

impl<K, F: Clone> Clone for PerKey<K, F> {
    fn clone(&self) -> Self {
        Self::new(self.key_of.clone())
    }
}

impl<B> BreakerScope for Given<B> {
    type Breakers = B;

    fn breakers(self, _: BreakerSettings) -> Result<B, InvalidSetting> {
        Ok(self.0)
    }
}
