use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use crate::{
    BootTime, DegradedBy, FencingToken, Identity, LeaderInfo, Operation, ResignReason,
    SignalStatus, State, TermEnd, clock::nanos,
};

/// What is known of an election at one instant. See [`Leadership::status`](crate::Leadership::status).
///
/// With the feature `serde` it can be shown on a page: durations as `"250ms"`, and a payload that is not text with `\u{fffd}`
/// for what is not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Status {
    /// Who this process is.
    pub identity: Identity,
    /// What its elector is doing.
    pub state: State,
    /// Whether it leads, at this instant.
    pub is_leader: bool,
    /// The token of its term, if it leads.
    pub fence: Option<FencingToken>,
    /// For how long its term is valid still, if it leads.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub valid_for: Option<Duration>,
    /// For how long it does not stand still, if it left by itself.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub cooldown_remaining: Option<Duration>,
    /// Who leads, as the store said last.
    pub leader: Option<LeaderInfo>,
    /// How long ago the store said so. `None` if it has not said anything yet.
    #[cfg_attr(feature = "serde", serde(with = "humantime_serde"))]
    pub observation_age: Option<Duration>,
    /// Why the last call to the store got no answer, if none has got one since.
    pub last_error: Option<String>,
    /// Why this process should not lead, if it does.
    pub degraded: Option<DegradedBy>,
    /// The signals of its [policy](crate::ResignPolicy), as they were last looked at.
    pub signals: Vec<SignalStatus>,
}

/// What changes now and then, to be watched. See [`Leadership::watch`](crate::Leadership::watch).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Standing {
    /// What the elector is doing.
    pub state: State,
    /// The token of this process's term, from its beginning until it is over. Whether it is valid at an
    /// instant is what [`check`](crate::Leadership::check) is for.
    pub term: Option<FencingToken>,
    /// Who leads, as the store said last.
    pub leader: Option<LeaderInfo>,
    /// Why the leader of that term should not lead, if so.
    pub degraded: Option<DegradedBy>,
}

/// What an election has done so far. Counts only grow.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct LeadershipMetrics {
    /// Whether the elector runs.
    pub running: bool,
    /// What it is doing.
    pub state: State,
    /// For how long it does not stand still, since it left by itself.
    pub cooldown_remaining: Option<Duration>,
    /// Whether this process leads, at this instant.
    pub is_leader: bool,
    /// The token of its term, if it leads.
    pub fence: Option<FencingToken>,
    /// For how long its term is valid still.
    pub lease_remaining: Option<Duration>,
    /// How long ago the last renewal that succeeded was sent; or, until there is one, the term began.
    pub last_renewal_age: Option<Duration>,
    /// How long ago the store last said who leads.
    pub observation_age: Option<Duration>,
    /// Whether the last call to the store got no answer.
    pub has_error: bool,
    /// How often another one led than before.
    pub leader_changes_observed: u64,
    /// Terms of this process that began.
    pub terms_started: u64,
    /// Those that ended, for whatever reason.
    pub terms_ended: u64,
    /// Of those, the ones that the store said were lost.
    pub lease_losses: u64,
    /// Of those, the ones that ended for want of an answer.
    pub local_expirations: u64,
    /// Of those, the ones that the leader gave up by itself, a shutdown among them.
    pub resignations: u64,
    /// And why.
    pub resigned_for: ResignationMetrics,
    /// Of those that ended, the ones that did as the clocks disagreed.
    pub clock_anomalies: u64,
    /// The ones that did as the store's code panicked.
    pub store_panics: u64,
    /// The ones that did as the elector was dropped.
    pub dropped: u64,
    /// Whether it leads although it should not.
    pub is_degraded: bool,
    /// How often a term became degraded.
    pub degradations: u64,
    /// How often a leader stayed since others had left for the same signal.
    pub correlated_failures: u64,
    /// Renewals that succeeded.
    pub renewals_accepted: u64,
    /// Renewals that got no answer.
    pub renewals_failed: u64,
    /// Whether the work of a term runs.
    pub work_active: bool,
    /// For how long it has run on although it was asked to end. This is the dangerous time.
    pub work_cancelled_still_active: Option<Duration>,
    /// How often the runtime of the work stood still for longer than it
    /// [may](crate::ElectorThread#the-interlock).
    pub runtime_standstills: u64,
    /// By how much timers are late on the runtime of the work: the 99th percentile over the last minute.
    /// `None` without a [probe](crate::RuntimeLag).
    pub runtime_lag: Option<Duration>,
    /// Requests that were let in and have not ended.
    pub requests_in_flight: u64,
    /// What became of requests.
    pub requests: RequestMetrics,
    /// What became of calls to the store.
    pub store: StoreMetrics,
}

/// Why leaders left by themselves: how many terms ended so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResignationMetrics {
    /// Somebody asked for it.
    pub operator: u64,
    /// The program asked for it, and said why.
    pub program: u64,
    /// The elector was stopped.
    pub shutdown: u64,
    /// The work returned.
    pub work_returned: u64,
    /// The work panicked.
    pub work_panicked: u64,
    /// A [signal](crate::ResignPolicy) said so.
    pub unhealthy: u64,
    /// The runtime of the work [stood still](crate::ElectorThread#the-interlock).
    pub stuck_runtime: u64,
}

/// What became of requests at the gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestMetrics {
    /// They were let in.
    pub admitted: u64,
    /// This process did not lead.
    pub not_leader: u64,
    /// It was about to leave.
    pub resigning: u64,
    /// It led, but not for as long as was asked.
    pub low_validity: u64,
    /// The clocks disagreed.
    pub clock_anomaly: u64,
    /// It led although it should not, and [sheds](crate::OnDegraded::Shed) then.
    pub degraded: u64,
    /// Of those that were let in, the ones whose term was over before they were.
    pub expired_in_flight: u64,
}

/// What became of calls to the store.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct StoreMetrics {
    /// Of calls to acquire.
    pub acquire: OperationMetrics,
    /// Of calls to renew.
    pub renew: OperationMetrics,
    /// Of calls to release.
    pub release: OperationMetrics,
    /// Of calls to inspect.
    pub inspect: OperationMetrics,
}

/// What became of calls of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct OperationMetrics {
    /// How many were begun.
    pub calls: u64,
    /// How many were answered by no: held, lost, not the holder. That is no error.
    pub expected_outcomes: u64,
    /// How many failed.
    pub errors: u64,
    /// Of those, how many took too long.
    pub timeouts: u64,
    /// How many were dropped before they ended: the elector was.
    pub cancelled: u64,
    /// How many are under way: one at most.
    pub in_flight: u64,
    /// How long all that ended have taken together.
    pub duration_total: Duration,
    /// How long the last one took.
    pub last_duration: Duration,
    /// How many took how long: no longer than each of the [bounds](Self::DURATION_BOUNDS), and longer than the one
    /// before it; and at last, longer than all of them. Together they are all that ended.
    pub durations: [u64; Self::DURATION_BOUNDS.len() + 1],
}

impl OperationMetrics {
    /// The bounds of [`durations`](Self::durations): from what a store beside us takes to the default limit of a call,
    /// two to three steps a decade, as is usual with Prometheus. What takes longer is late whatever it takes.
    pub const DURATION_BOUNDS: [Duration; 11] = [
        Duration::from_millis(1),
        Duration::from_micros(2_500),
        Duration::from_millis(5),
        Duration::from_millis(10),
        Duration::from_millis(25),
        Duration::from_millis(50),
        Duration::from_millis(100),
        Duration::from_millis(250),
        Duration::from_millis(500),
        Duration::from_secs(1),
        Duration::from_millis(2_500),
    ];
}

/// What is counted.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) leader_changes: AtomicU64,
    pub(crate) terms_started: AtomicU64,
    pub(crate) terms_ended: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) expired: AtomicU64,
    resigned: [AtomicU64; 7],
    pub(crate) anomalies: AtomicU64,
    pub(crate) store_panics: AtomicU64,
    pub(crate) dropped: AtomicU64,
    /// Until when it does not stand. Zero unless it cools down.
    pub(crate) cools_until: AtomicU64,
    pub(crate) degradations: AtomicU64,
    pub(crate) correlated_failures: AtomicU64,
    pub(crate) renewed: AtomicU64,
    pub(crate) renewals_failed: AtomicU64,
    /// When the last renewal that succeeded was sent, and when the work was asked to end that runs on. Zero
    /// is never.
    pub(crate) renewed_at: AtomicU64,
    pub(crate) cancelled_at: AtomicU64,
    pub(crate) work_active: AtomicU64,
    pub(crate) standstills: AtomicU64,
    pub(crate) running: AtomicU64,
    pub(crate) admitted: AtomicU64,
    pub(crate) not_leader: AtomicU64,
    pub(crate) resigning: AtomicU64,
    pub(crate) low_validity: AtomicU64,
    pub(crate) anomaly: AtomicU64,
    pub(crate) degraded: AtomicU64,
    pub(crate) expired_in_flight: AtomicU64,
    pub(crate) operations: [OperationCounters; 4],
}

#[derive(Debug, Default)]
pub(crate) struct OperationCounters {
    calls: AtomicU64,
    expected: AtomicU64,
    errors: AtomicU64,
    timeouts: AtomicU64,
    cancelled: AtomicU64,
    in_flight: AtomicU64,
    total: AtomicU64,
    last: AtomicU64,
    durations: [AtomicU64; OperationMetrics::DURATION_BOUNDS.len() + 1],
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Answered,
    Expected,
    Failed,
    TimedOut,
    Cancelled,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// How long ago that was; `None` is never.
pub(crate) fn age(of: &AtomicU64, now: BootTime) -> Option<Duration> {
    let at = of.load(Relaxed);
    (at > 0).then(|| now.since(BootTime::from_nanos(at)))
}

/// How long it is until then; `None` is never, or over.
pub(crate) fn left(of: &AtomicU64, now: BootTime) -> Option<Duration> {
    let left = BootTime::from_nanos(of.load(Relaxed)).since(now);
    (!left.is_zero()).then_some(left)
}

impl Counters {
    /// A term began that has ended so.
    pub(crate) fn ended(&self, end: &TermEnd) {
        count(&self.terms_ended);
        count(match end {
            TermEnd::Lost { .. } => &self.lost,
            TermEnd::ExpiredLocally => &self.expired,
            TermEnd::ClockAnomaly => &self.anomalies,
            TermEnd::StorePanicked => &self.store_panics,
            TermEnd::Dropped => &self.dropped,
            TermEnd::Resigned(reason) => {
                &self.resigned[match reason {
                    ResignReason::Operator => 0,
                    ResignReason::Shutdown => 1,
                    ResignReason::WorkReturned => 2,
                    ResignReason::WorkPanicked => 3,
                    ResignReason::Unhealthy(_) => 4,
                    ResignReason::StuckRuntime => 5,
                    ResignReason::Program(_) => 6,
                }]
            }
        });
    }

    pub(crate) fn resigned_for(&self) -> ResignationMetrics {
        let [operator, shutdown, work_returned, work_panicked, unhealthy, stuck_runtime, program] =
            std::array::from_fn(|at| self.resigned[at].load(Relaxed));
        ResignationMetrics {
            operator,
            program,
            shutdown,
            work_returned,
            work_panicked,
            unhealthy,
            stuck_runtime,
        }
    }

    pub(crate) fn resigned(&self) -> u64 {
        self.resigned.iter().map(|counter| counter.load(Relaxed)).sum()
    }

    pub(crate) const fn of(&self, operation: Operation) -> &OperationCounters {
        &self.operations[match operation {
            Operation::Acquire => 0,
            Operation::Renew => 1,
            Operation::Release => 2,
            Operation::Inspect => 3,
        }]
    }

    pub(crate) fn requests(&self) -> RequestMetrics {
        RequestMetrics {
            admitted: self.admitted.load(Relaxed),
            not_leader: self.not_leader.load(Relaxed),
            resigning: self.resigning.load(Relaxed),
            low_validity: self.low_validity.load(Relaxed),
            clock_anomaly: self.anomaly.load(Relaxed),
            degraded: self.degraded.load(Relaxed),
            expired_in_flight: self.expired_in_flight.load(Relaxed),
        }
    }

    pub(crate) fn store(&self) -> StoreMetrics {
        let [acquire, renew, release, inspect] =
            [0, 1, 2, 3].map(|at| self.operations[at].snapshot());
        StoreMetrics { acquire, renew, release, inspect }
    }
}

impl OperationCounters {
    pub(crate) fn begin(&self) {
        count(&self.calls);
        count(&self.in_flight);
    }

    pub(crate) fn end(&self, how: Ended, took: Duration) {
        match how {
            Ended::Answered => {}
            Ended::Expected => count(&self.expected),
            Ended::Failed => count(&self.errors),
            Ended::TimedOut => {
                count(&self.errors);
                count(&self.timeouts);
            }
            Ended::Cancelled => count(&self.cancelled),
        }
        self.in_flight.fetch_sub(1, Relaxed);
        self.total.fetch_add(nanos(took), Relaxed);
        self.last.store(nanos(took), Relaxed);
        let bounds = &OperationMetrics::DURATION_BOUNDS;
        count(&self.durations[bounds.partition_point(|bound| *bound < took)]);
    }

    fn snapshot(&self) -> OperationMetrics {
        OperationMetrics {
            calls: self.calls.load(Relaxed),
            expected_outcomes: self.expected.load(Relaxed),
            errors: self.errors.load(Relaxed),
            timeouts: self.timeouts.load(Relaxed),
            cancelled: self.cancelled.load(Relaxed),
            in_flight: self.in_flight.load(Relaxed),
            duration_total: Duration::from_nanos(self.total.load(Relaxed)),
            last_duration: Duration::from_nanos(self.last.load(Relaxed)),
            durations: std::array::from_fn(|at| self.durations[at].load(Relaxed)),
        }
    }
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_counted_by_the_least_bound_that_it_did_not_pass() {
        let bounds = OperationMetrics::DURATION_BOUNDS;
        assert!(bounds.is_sorted_by(|one, other| one < other));
        let beyond = Duration::from_nanos(1);
        let past_all = [bounds[10] + beyond, Duration::MAX];
        let times = [Duration::ZERO].into_iter();
        let times = times.chain(bounds.iter().flat_map(|bound| [*bound, *bound + beyond]));
        for took in times.chain(past_all) {
            let counters = OperationCounters::default();
            counters.begin();
            assert_eq!(counters.snapshot().durations, [0; 12], "it has not ended");
            counters.end(Ended::Answered, took);
            let OperationMetrics { durations, .. } = counters.snapshot();
            let mut expected = [0; 12];
            expected[bounds.iter().take_while(|bound| took > **bound).count()] = 1;
            assert_eq!(durations, expected, "{took:?}");
        }
    }

    #[test]
    fn each_reason_to_leave_is_counted_as_itself() {
        let one = |reason: ResignReason| {
            let counters = Counters::default();
            counters.ended(&TermEnd::Resigned(reason));
            assert_eq!((counters.terms_ended.load(Relaxed), counters.resigned()), (1, 1));
            counters.resigned_for()
        };
        let none = ResignationMetrics::default;
        for (reason, expected) in [
            (ResignReason::Operator, ResignationMetrics { operator: 1, ..none() }),
            (ResignReason::Program("x".into()), ResignationMetrics { program: 1, ..none() }),
            (ResignReason::Shutdown, ResignationMetrics { shutdown: 1, ..none() }),
            (ResignReason::WorkReturned, ResignationMetrics { work_returned: 1, ..none() }),
            (ResignReason::WorkPanicked, ResignationMetrics { work_panicked: 1, ..none() }),
            (ResignReason::Unhealthy("x".into()), ResignationMetrics { unhealthy: 1, ..none() }),
            (ResignReason::StuckRuntime, ResignationMetrics { stuck_runtime: 1, ..none() }),
        ] {
            assert_eq!(one(reason), expected);
        }
    }
}
