use std::{fmt, time::Duration};

use buttress_core::InvalidSetting;
use buttress_deadline::{DeadlineLayer, DeadlineService};
use buttress_http::{
    ByCode, ByReason, ReceiveDeadline, ReceiveDeadlineLayer, RejectedAsResponse,
    RejectedAsResponseLayer,
};
use buttress_shed::{FixedLimit, Shed, ShedLayer, ShedService, ShedSettings};
use http::HeaderName;
use tower_layer::Layer;

/// What every server wants around its handlers, in its documented order, with settings that are checked as a
/// whole.
///
/// ```text
/// refusals as responses > received deadline > shed > deadline > handler
/// ```
///
/// It is a [`Layer`], and what it makes cannot fail: its error is [`Infallible`](std::convert::Infallible), as
/// axum wants it. Every service it makes shares its [shed](Self::shed), and so do clones of it.
///
/// | setting | default |
/// |---|---|
/// | in flight | none: nobody can know it but you |
/// | queue | as in [`ShedSettings`]: four for each place, 100 ms, and 20 ms under overload |
/// | the caller's deadline | `grpc-timeout`, no margin |
/// | a handler's time | 30 s |
///
/// # Examples
///
/// ```
/// use axum::{Router, routing::get};
/// use buttress::ServerStandard;
///
/// # fn main() -> Result<(), buttress::InvalidSetting> {
/// let server = ServerStandard::http(64).build()?;
/// let app: Router = Router::new().route("/", get(async || "hello")).layer(server.clone());
/// assert_eq!(server.shed().limit(), 64);
/// # drop(app);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ServerStandard<T = ByReason> {
    refusals: RejectedAsResponseLayer<T>,
    receive: ReceiveDeadlineLayer,
    shed: Shed,
    deadline: DeadlineLayer,
}

/// Makes a [`ServerStandard`]. Nothing is checked before [`build`](Self::build).
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is built"]
pub struct ServerBuilder<T = ByReason> {
    refusals: RejectedAsResponseLayer<T>,
    limit: usize,
    queue: ShedSettings,
    receive: ReceiveDeadlineLayer,
    margin: Duration,
    total: Duration,
}

/// What a [`ServerStandard`] makes of `S`.
pub type ServerService<S, T = ByReason> =
    RejectedAsResponse<ReceiveDeadline<ShedService<DeadlineService<S>>>, T>;

// === impl ServerStandard ===

impl ServerStandard {
    /// For a server of HTTP, as axum's and hyper's: `limit` requests at a time, and refusals by the table of
    /// [`refusal`](buttress_http::refusal).
    pub fn http(limit: usize) -> ServerBuilder {
        ServerBuilder::new(limit, RejectedAsResponseLayer::new())
    }

    /// For a server of gRPC, as tonic's: `limit` calls at a time, and refusals by the table of
    /// [`grpc_refusal`](buttress_http::grpc_refusal).
    pub fn grpc(limit: usize) -> ServerBuilder<ByCode> {
        ServerBuilder::new(limit, RejectedAsResponseLayer::grpc())
    }
}

impl<T> ServerStandard<T> {
    /// The shed that all its services share.
    #[must_use]
    pub const fn shed(&self) -> &Shed {
        &self.shed
    }
}

impl<S, T: Clone> Layer<S> for ServerStandard<T> {
    type Service = ServerService<S, T>;

    fn layer(&self, inner: S) -> Self::Service {
        let inner = ShedLayer::new(self.shed.clone()).layer(self.deadline.layer(inner));
        self.refusals.layer(self.receive.layer(inner))
    }
}

impl<T> fmt::Debug for ServerStandard<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerStandard")
            .field("receive", &self.receive)
            .field("shed", &self.shed)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

/// It is none, but can say so: without this, the compiler knows of no more than a method that is missing.
#[doc(hidden)]
impl<T, S> Layer<S> for ServerBuilder<T>
where
    Self: crate::check::Built,
{
    type Service = S;

    fn layer(&self, inner: S) -> S {
        inner
    }
}

// === impl ServerBuilder ===

impl<T> ServerBuilder<T> {
    fn new(limit: usize, refusals: RejectedAsResponseLayer<T>) -> Self {
        Self {
            refusals,
            limit,
            queue: ShedSettings::default(),
            receive: ReceiveDeadlineLayer::grpc(),
            margin: Duration::ZERO,
            total: Duration::from_secs(30),
        }
    }

    /// Sets how long requests may wait for their place, and how many.
    pub fn queue(mut self, queue: ShedSettings) -> Self {
        self.queue = queue;
        self
    }

    /// Reads the caller's deadline from the header `name`, in whole milliseconds, instead of `grpc-timeout`.
    pub fn deadline_header(mut self, name: HeaderName) -> Self {
        self.receive = ReceiveDeadlineLayer::millis(name);
        self
    }

    /// Takes `margin` off the time that a caller has left: what the way here and back takes.
    pub fn margin(mut self, margin: Duration) -> Self {
        self.margin = margin;
        self
    }

    /// Sets how long a handler may work, for callers that name no time or more than that.
    pub fn total(mut self, total: Duration) -> Self {
        self.total = total;
        self
    }

    /// Checks the settings, alone and against each other.
    ///
    /// # Errors
    ///
    /// The setting that cannot work: a `limit` of none; what [`Shed::new`] and [`ReceiveDeadlineLayer::margin`]
    /// refuse; a `total` of zero; and a wait in the queue that may take as long as `total`.
    pub fn build(self) -> Result<ServerStandard<T>, InvalidSetting> {
        let Self { refusals, limit, queue, receive, margin, total } = self;
        let wait = queue.interval;
        let may_wait = wait != Duration::MAX && queue.max_queue != Some(0);
        let limit = FixedLimit::new(limit)?;
        let server = ServerStandard {
            refusals,
            receive: receive.margin(margin)?,
            shed: Shed::new(limit, queue).map_err(|error| error.within("queue"))?,
            deadline: DeadlineLayer::try_new(total)?,
        };
        if may_wait && wait >= total {
            let must = format!("must be shorter than `total` ({wait:?} >= {total:?})");
            return Err(InvalidSetting::new("queue.interval", must));
        }
        Ok(server)
    }
}
