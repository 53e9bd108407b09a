//! One leader among many processes: an election over leases, a gate that is checked when it is used, and a
//! token for what is written.
//!
//! Many tasks need exactly one active instance: a scheduler, a writer of a partition, a controller. Whoever
//! holds a **lease** in a common store leads, renews it, and stops shortly before it could be over. It sounds
//! simple, and goes wrong in known ways: a lease that counts from the answer and not from the request, so
//! that two lead while an answer was slow; a flag that says "leader" in a process which stood still for a
//! minute; a clock that stops while the machine sleeps; a lease that is given back while its work goes on; an
//! election that ends with its first loss. This crate is built around them.
//!
//! - [`Elector`]: stands for election, holds the lease, runs the [work](Elector::lead) of each term;
//! - [`ElectorThread`]: a thread for it, that the work cannot hold up;
//! - [`Leadership`]: the handle that says whether this process leads, now;
//! - [`LeadershipLayer`]: lets requests in only while it does;
//! - [`ForwardToLeaderLayer`]: hands them on to whoever does, meanwhile;
//! - [`ResignPolicy`]: when a leader that cannot do its job leaves by itself, and who may stand;
//! - [`Lock`]: one term by hand;
//! - [`LeaseStore`]: where leases are kept; [`MemoryStore`] keeps them in memory, [`ErasedStore`] is any of them;
//! - [`FaultyStore`]: a store that fails as a test tells it to; [`LeaseClock`] is the clock that a test sets;
//! - [`testing`]: whether a store keeps to the rules;
//! - [`FencingToken`]: what a resource tells a leader from a former one by.
//!
//! # What is promised, and what is not
//!
//! By the clocks of those that take part, there are never two leaders, as long as no clock runs more wrong
//! than the
//! [margin](LeaseConfig#the-margin) bears, and the store keeps what it has said. The gate looks at the clock as it is
//! asked. Between that look and the effect of what follows, a process can still be stopped for as long as you
//! like. **No lease helps against that.** Send the [token](FencingToken) along with what you write, and let
//! the resource refuse what is less than the greatest it has seen.
//!
//! # Events
//!
//! By `tracing`, with this crate's name as the target, and the field `lease`:
//!
//! | level | message | fields |
//! |---|---|---|
//! | error | `lease store went back: ..` | `fence`, `highest` |
//! | error | `lease store grants too little time` | `granted` |
//! | error | `another elector has this identity`: each needs one of its own | `identity`, `fence` |
//! | warn | `lease store refuses` | `operation`, `error` |
//! | warn | `the runtime of the work stands still` | `deadline` |
//! | info | `new leader`, as the store says: this process or another | `identity`, `fence` |
//! | info | `nobody leads` | |
//! | info | `stands as the last resort: ..` | |
//! | info | `term started` | `identity`, `fence` |
//! | info | `leader leaves` | `fence`, `reason` |
//! | info | `term ended` | `fence`, `end`, and `reason` of who left |
//! | info | `lease released` | `fence` |
//! | warn | `leader stays: others left for the same signal` | `fence`, `signal` |
//! | warn | `term degraded` | `fence`, `by` |
//! | info | `term degraded no longer` | `fence` |
//! | debug | `lease store failed`, `lease store took too long` | `operation`, `error` |
//! | debug | `refused`, `term over before the call was` | `why`, `fence` |
//! | debug | `not ready` | `signal`, `error` |
//!
//! Whoever has to hear of each [`Event`] [observes](Elector::observe) the elector.
//!
//! # Coming from the Go module `leaderelection`
//!
//! | there | here |
//! |---|---|
//! | `New(Config)` | [`Elector::new`] |
//! | `DefaultLeaseDuration`, `DefaultRenewInterval`, `DefaultRetryPeriod`, `DefaultOperationTimeout` | [`LeaseConfig::DEFAULT_LEASE_DURATION`], [`DEFAULT_RENEW_INTERVAL`](LeaseConfig::DEFAULT_RENEW_INTERVAL), [`DEFAULT_RETRY_PERIOD`](LeaseConfig::DEFAULT_RETRY_PERIOD), [`DEFAULT_OPERATION_TIMEOUT`](LeaseConfig::DEFAULT_OPERATION_TIMEOUT) |
//! | `DefaultSafetyMarginFraction`, `MinSafetyMargin` | [`LeaseConfig::DEFAULT_SAFETY_MARGIN_FRACTION`], [`MIN_SAFETY_MARGIN`](LeaseConfig::MIN_SAFETY_MARGIN) |
//! | `ErrAlreadyRunning` | cannot happen: [`Elector::run`] takes the elector |
//! | `ErrLeaseExpiredLocally` | [`TermEnd::ExpiredLocally`] |
//! | `ErrLeaseLost` | [`TermEnd::Lost`] |
//! | `ErrNoLease` | `None` of [`LeaseStore::inspect`], and of [`RenewOutcome::Lost`] |
//! | `GenerateIdentity` | [`Identity::generate`] |
//! | `Callbacks.OnNewLeader` | [`Event::NewLeader`]; [`Leadership::watch`] |
//! | `Callbacks.OnStartedLeading` | [`Elector::lead`]; [`Event::TermStarted`] |
//! | `Callbacks.OnStoppedLeading` | [`Event::TermEnded`] |
//! | `Config` | [`LeaseConfig`]: `LeaseDuration`, `RenewInterval`, `RetryPeriod`, `OperationTimeout`, `SafetyMargin`, `Identity`, `Name`, `Payload` by the same names |
//! | `Config.DisableRelease` | [`LeaseConfig::release_on_stop`] |
//! | `Config.Logger` | `tracing` |
//! | `Config.Store` | the first argument of [`Elector::new`] |
//! | `Config.Validate`, `ConfigError` | [`LeaseConfig::check`], [`InvalidSetting`](buttress_core::InvalidSetting) |
//! | `Elector.Run` | [`Elector::run`], [`spawn`](Elector::spawn), [`spawn_isolated`](Elector::spawn_isolated) |
//! | `Elector.IsLeader` | [`Leadership::is_leader`], [`check`](Leadership::check), [`admit`](Leadership::admit) |
//! | `Elector.Fence` | [`Leadership::fence`] |
//! | `Elector.Status`, `Status` | [`Leadership::status`], [`Status`] |
//! | `Status.Leader`, `LeaderFence`, `LeaderPayload` | [`leader`](Status::leader); `Identity`, `IsLeader`, `Fence`, `LastError` by the same names |
//! | `Status.ValidUntil`, `ObservedAt` | [`valid_for`](Status::valid_for), [`observation_age`](Status::observation_age): for how long, and how long ago |
//! | `Elector.Metrics`, `Metrics` | [`Leadership::metrics`], [`LeadershipMetrics`]: `Running`, `IsLeader`, `HasError` and all that ends in `Total` by the same names without it |
//! | `Metrics.Election` | [`Leadership::name`] |
//! | `Metrics.HasObservation`, `ObservationAgeSeconds` | [`observation_age`](LeadershipMetrics::observation_age), `None` without |
//! | `Metrics.HasSuccessfulRenewal`, `LastSuccessfulRenewalAgeSeconds` | [`last_renewal_age`](LeadershipMetrics::last_renewal_age), `None` without |
//! | `Metrics.LeaseRemainingSeconds` | [`lease_remaining`](LeadershipMetrics::lease_remaining) |
//! | `Metrics.LeaderWorkActive`, `LeaderWorkCanceled` | [`work_active`](LeadershipMetrics::work_active), [`work_cancelled_still_active`](LeadershipMetrics::work_cancelled_still_active): since when |
//! | `StoreMetrics`, `OperationMetrics` | [`StoreMetrics`], [`OperationMetrics`], by the same names without `Total`; `CanceledTotal` is [`cancelled`](OperationMetrics::cancelled), `DurationSecondsTotal` [`duration_total`](OperationMetrics::duration_total), `LastDurationSeconds` [`last_duration`](OperationMetrics::last_duration) |
//! | `Lease` | [`LeaseRecord`], by the same names; `Now` is [`store_now`](LeaseRecord::store_now) |
//! | `Lease.Expired`, `HeldBy`, `TTL` | [`LeaseRecord::is_expired`], [`is_held_by`](LeaseRecord::is_held_by), [`remaining`](LeaseRecord::remaining) |
//! | `Store.Acquire`, `Renew`, `Release`, `Inspect` | [`LeaseStore::acquire`], [`renew`](LeaseStore::renew), [`release`](LeaseStore::release), [`inspect`](LeaseStore::inspect) |

mod changes;
mod clock;
mod config;
mod elector;
mod erased;
mod event;
mod faulty;
#[cfg(feature = "serde")]
mod file;
mod foreign;
mod forward;
mod future;
mod gate;
mod health;
mod interlock;
mod isolate;
mod layer;
mod leadership;
mod lock;
#[cfg(all(test, buttress_loom))]
mod loom;
mod machine;
mod memory;
mod metrics;
mod name;
mod observed;
mod permit;
mod planted;
mod probe;
mod record;
mod resign;
mod service;
#[cfg(all(test, not(buttress_loom)))]
mod simulation;
mod store;
mod sync;
pub mod testing;

pub use buttress_core::{Fence, FencingToken, LeaseId, NotAToken, TermOver};

pub use self::{
    changes::{Changes, changes_over, no_changes},
    clock::{BootTime, LeaseClock},
    config::{LeaseConfig, OnDrainTimeout},
    elector::{Elector, ElectorTask},
    erased::ErasedStore,
    event::{Event, ResignReason, State, TermEnd},
    faulty::{Called, Fault, FaultyStore, Operation},
    forward::{ForwardFuture, ForwardToLeader, ForwardToLeaderLayer},
    future::ResponseFuture,
    health::{LeaderSeen, Liveness},
    isolate::{ElectorThread, IsolatedElector},
    layer::{LeadershipLayer, OnDegraded, OnExpiry},
    leadership::{Leadership, NotLeading},
    lock::{Lock, LockGuard, NoAnswer},
    memory::MemoryStore,
    metrics::{
        LeadershipMetrics, OperationMetrics, RequestMetrics, ResignationMetrics, Standing, Status,
        StoreMetrics,
    },
    name::{Identity, LeaseName},
    observed::{Observation, Observations},
    permit::{LeaderTerm, TermPermit},
    probe::RuntimeLag,
    record::{LeaderInfo, LeaseRecord, StoreTime},
    resign::{DegradedBy, ResignPolicy, ResignSettings, SignalRole, SignalStatus},
    service::LeadershipService,
    store::{
        AcquireOutcome, AcquireRequest, Expiry, FenceSource, LeaseStore, ReleaseOutcome,
        ReleaseRequest, RenewOutcome, RenewRequest, ServerClock, StoreCapabilities, StoreError,
    },
};

/// What refusals call this layer.
const NAME: &str = "leadership";
