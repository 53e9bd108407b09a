use std::{
    borrow::Cow,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, SystemTime},
};

use buttress_core::{BoxError, Health, HealthSignal, Reading, edge};
use bytes::Bytes;
use tokio::{runtime::Handle, task::JoinHandle, time::Instant};

use super::{
    DegradedBy, ResignPolicy, ResignSettings, SignalRole, SignalStatus,
    judge::{Judge, Rules, Verdict},
    log::TermLog,
    policy::{Ask, CORRELATED_HOLDERS, LEAST_HOLD, Signal, Source},
};
use crate::{
    Expiry, FencingToken, Identity, LeaseConfig, LeaseRecord, ResignReason, ServerClock,
    StoreCapabilities, StoreTime,
    clock::nanos,
    foreign::{guarded, text_of},
    planted::{Plant, is_planted},
};

/// Looks at the signals of a policy for an elector, and keeps the log of terms.
pub(crate) struct Vigil {
    settings: ResignSettings,
    lease: Duration,
    me: Identity,
    watched: Vec<Watched>,
    judge: Judge,
    log: TermLog,
    /// The token that the store told of last, once it has told anything.
    told: Option<Option<FencingToken>>,
    /// The store's time as it was told last, and when that was. `None` where it has none for all.
    store_time: Option<(StoreTime, Instant)>,
    /// When to look again.
    next: Instant,
}

struct Watched {
    name: Cow<'static, str>,
    role: SignalRole,
    from: From,
    health: Health,
}

enum From {
    Signal(Arc<dyn HealthSignal + Send + Sync>),
    Check(Check),
}

/// Calls a readiness function again and again.
struct Check {
    ask: Ask,
    runtime: Handle,
    every: Duration,
    limit: Duration,
    reading: Reading,
    next: Instant,
    asked: Option<Asked>,
}

/// Beyond all waits, and within every clock's reach.
const FAR: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// A call that has not ended.
struct Asked {
    task: JoinHandle<Result<(), BoxError>>,
    until: Instant,
    /// It took too long, and was dropped. It may take its time to be gone.
    is_late: bool,
}

// === impl Vigil ===

impl Vigil {
    /// Readiness functions are called on that runtime.
    pub(crate) fn new(
        policy: ResignPolicy,
        config: &LeaseConfig,
        runtime: &Handle,
        can: StoreCapabilities,
    ) -> Self {
        let ResignPolicy { settings, signals } = policy;
        let rules = Rules {
            resign_after: settings.resign_after.unwrap_or(LEAST_HOLD),
            min_term: settings.min_term,
            budget: settings.budget as usize,
            budget_window: settings.budget_window,
            eligible_after: settings.eligible_after,
            last_resort_after: settings.last_resort(config),
        };
        let now = edge::now();
        let tells_time = can.expiry != Expiry::Observed && can.server_clock != ServerClock::Untold;
        // Those that decide come first, so that the judge knows them by the same numbers.
        let (deciding, advisory): (Vec<_>, Vec<_>) =
            signals.into_iter().partition(|signal| signal.role != SignalRole::Advisory);
        let judge = Judge::new(rules, deciding.len());
        let watched = deciding.into_iter().chain(advisory);
        let watched = watched.map(|signal| Watched::new(signal, &settings, runtime, now)).collect();
        Self {
            lease: config.lease_duration,
            me: config.identity.clone(),
            watched,
            judge,
            log: TermLog::default(),
            told: None,
            store_time: tells_time.then(|| (StoreTime::default(), now)),
            next: now,
            settings,
        }
    }

    /// What follows from what the signals say now, if it is time to look.
    pub(crate) fn look(&mut self, now: Instant) -> Option<Verdict> {
        for watched in &mut self.watched {
            if let From::Check(check) = &mut watched.from
                && check.turn(now)
            {
                self.next = now;
            }
        }
        if now < self.next {
            return None;
        }
        for (n, watched) in self.watched.iter_mut().enumerate() {
            let reading = watched.sample(now);
            if watched.role != SignalRole::Advisory {
                self.judge.read(n, now, reading);
            }
        }
        let at = self.store_now(now);
        let Self { judge, log, watched, settings, .. } = self;
        let verdict = judge.judge(now, |signal| {
            let (name, window) = (&watched[signal].name, settings.correlation_window);
            !is_planted(Plant::NoCorrelation)
                && log.is_correlated(name, at, window, CORRELATED_HOLDERS)
        });
        let every = now + self.settings.check_every;
        self.next = verdict.next.map_or(every, |next| next.min(every));
        Some(verdict)
    }

    /// When to look again, unless something happens before.
    pub(crate) fn next(&self) -> Instant {
        let checks = self.watched.iter().filter_map(|watched| match &watched.from {
            From::Check(check) => check.turns(),
            From::Signal(_) => None,
        });
        checks.fold(self.next, Instant::min)
    }

    /// Ready when a readiness function has answered.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut polled = Poll::Pending;
        for watched in &mut self.watched {
            if let From::Check(check) = &mut watched.from
                && check.poll(&watched.name, cx).is_ready()
            {
                polled = Poll::Ready(());
            }
        }
        if polled.is_ready() {
            self.look_soon();
        }
        polled
    }

    /// Something has happened that the verdict depends upon.
    fn look_soon(&mut self) {
        self.next = edge::now();
    }

    pub(crate) fn signals(&self) -> Vec<SignalStatus> {
        let status = |watched: &Watched| SignalStatus {
            name: watched.name.clone(),
            role: watched.role,
            health: watched.health,
        };
        self.watched.iter().map(status).collect()
    }

    pub(crate) fn name(&self, signal: usize) -> &Cow<'static, str> {
        &self.watched[signal].name
    }

    // === What happens ===

    /// The store has said this.
    pub(crate) fn heard(&mut self, record: Option<&LeaseRecord>) {
        let now = edge::now();
        let fence = record.map(|record| record.fence);
        if self.told.replace(fence).is_some_and(|before| before != fence) {
            // Somebody led since, if only between two looks.
            self.judge.saw(now, false);
        }
        self.judge.saw(now, record.and_then(LeaseRecord::leader).is_none());
        if let (Some(record), Some(time)) = (record, &mut self.store_time) {
            *time = (record.store_now, now);
        }
        self.look_soon();
    }

    /// A term of this process begins, by that record. What is to be left with the lease, and why it is
    /// degraded, if it is.
    pub(crate) fn started(&mut self, record: &LeaseRecord) -> (Bytes, Option<DegradedBy>) {
        let degraded = self.judge.term_started(edge::now());
        self.log = TermLog::parse(&record.memo);
        let is_measured = self.store_time.is_some();
        let started = if is_measured { record.acquired_at } else { self.store_now(edge::now()) };
        self.log.begin(record.fence, &self.me, started);
        if self.settings.resign_after.is_none() && is_measured {
            let measured = self.log.hand_over(self.lease).unwrap_or_default();
            self.judge.hold(measured.max(LEAST_HOLD));
        }
        self.look_soon();
        (self.log.to_memo(), degraded)
    }

    /// Its leader is about to leave. What is to be left with the lease.
    pub(crate) fn leaves(&mut self, reason: &ResignReason) -> Bytes {
        let now = edge::now();
        self.judge.leaves(now, matches!(reason, ResignReason::Unhealthy(_)));
        self.left(reason)
    }

    /// It has left, and gives the lease back. What is to be left with it.
    pub(crate) fn left(&mut self, reason: &ResignReason) -> Bytes {
        let at = self.store_now(edge::now());
        self.log.end(at, reason);
        self.log.to_memo()
    }

    pub(crate) fn ended(&mut self) {
        self.judge.term_ended();
        self.look_soon();
    }

    /// The time by the clock of the log, as far as it can be known.
    fn store_now(&self, now: Instant) -> StoreTime {
        let (told, since) = match self.store_time {
            Some((told, at)) => (told, now.saturating_duration_since(at)),
            None => {
                let wall = edge::wall().duration_since(SystemTime::UNIX_EPOCH);
                (StoreTime::default(), wall.unwrap_or_default())
            }
        };
        StoreTime::from_nanos(told.as_nanos().saturating_add(nanos(since)))
    }
}

// === impl Watched ===

impl Watched {
    fn new(signal: Signal, settings: &ResignSettings, runtime: &Handle, now: Instant) -> Self {
        let Signal { name, role, source } = signal;
        let from = match source {
            Source::Asked(ask) => From::Check(Check {
                ask,
                runtime: runtime.clone(),
                every: settings.readiness_every,
                limit: settings.readiness_limit,
                reading: Reading { health: Health::Unknown, since: None },
                next: now,
                asked: None,
            }),
            Source::Sampled(signal) => From::Signal(signal),
        };
        Self { name, role, from, health: Health::Unknown }
    }

    fn sample(&mut self, now: Instant) -> Reading {
        let unknown = Reading { health: Health::Unknown, since: None };
        let reading = match &self.from {
            From::Check(check) => check.reading,
            // It is somebody else's code, and an elector outlives it.
            From::Signal(signal) => guarded(|| signal.sample(now)).unwrap_or(unknown),
        };
        self.health = reading.health;
        reading
    }
}

// === impl Check ===

impl Check {
    /// Begins a call, or gives one up, if it is time. Whether it is known to be late.
    fn turn(&mut self, now: Instant) -> bool {
        match &mut self.asked {
            Some(asked) if !asked.is_late && asked.until <= now && !asked.task.is_finished() => {
                asked.is_late = true;
                asked.task.abort();
                self.says(now, Health::Unhealthy);
                true
            }
            None if self.next <= now => {
                let ask = Arc::clone(&self.ask);
                // A panic as it is made is one in the task.
                let task = self.runtime.spawn(async move { ask().await });
                self.asked = Some(Asked { task, until: now + self.limit.min(FAR), is_late: false });
                self.next = now + self.every.min(FAR);
                false
            }
            _ => false,
        }
    }

    /// When it is time for that. `None` while nothing can be done but wait until it is gone.
    fn turns(&self) -> Option<Instant> {
        match &self.asked {
            None => Some(self.next),
            Some(asked) => (!asked.is_late).then_some(asked.until),
        }
    }

    fn poll(&mut self, name: &str, cx: &mut Context<'_>) -> Poll<()> {
        let Some(asked) = &mut self.asked else { return Poll::Pending };
        let Poll::Ready(answer) = Pin::new(&mut asked.task).poll(cx) else { return Poll::Pending };
        let is_late = asked.is_late;
        self.asked = None;
        if !is_late {
            let error = match answer {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(text_of(&error)),
                Err(error) => Some(error.to_string()),
            };
            let health = if error.is_none() { Health::Healthy } else { Health::Unhealthy };
            if let Some(error) = error {
                tracing::debug!(target: "buttress_leadership", signal = name, error, "not ready");
            }
            self.says(edge::now(), health);
        }
        Poll::Ready(())
    }

    fn says(&mut self, now: Instant, health: Health) {
        if self.reading.health != health {
            self.reading = Reading { health, since: Some(now) };
        }
    }
}

/// A call that is under way is dropped.
impl Drop for Check {
    fn drop(&mut self) {
        if let Some(asked) = &self.asked {
            asked.task.abort();
        }
    }
}
