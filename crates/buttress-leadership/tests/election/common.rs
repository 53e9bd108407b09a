use std::{
    panic::Location,
    sync::{Arc, Mutex},
    time::Duration,
};

use buttress_core::edge;
use buttress_leadership::{
    AcquireOutcome, AcquireRequest, Elector, ElectorTask, Event, FaultyStore, FencingToken,
    Identity, Leadership, LeaseClock, LeaseConfig, LeaseName, LeaseRecord, LeaseStore, MemoryStore,
    Operation, TermEnd,
};
use tokio::time::{Instant, sleep, timeout};

pub(crate) const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(crate) const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// What a timer may be late by.
pub(crate) const TICK: Duration = millis(2);

pub(crate) type Store = FaultyStore<MemoryStore>;

/// What was told, and when.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told(Arc<Mutex<Vec<(Instant, Event)>>>);

/// One of those who stand for election.
pub(crate) struct Candidate {
    pub(crate) store: Store,
    pub(crate) leadership: Leadership,
    pub(crate) clock: LeaseClock,
    pub(crate) told: Told,
    pub(crate) task: ElectorTask,
}

pub(crate) fn name() -> LeaseName {
    LeaseName::new("a").unwrap()
}

pub(crate) fn config() -> LeaseConfig {
    LeaseConfig::new(name())
}

/// A store that tells nobody of changes, as most do.
pub(crate) fn store() -> Store {
    FaultyStore::new(MemoryStore::new().without_watch())
}

/// An elector that has a clock of its own, and tells what happens.
pub(crate) fn elector(store: &Store, config: LeaseConfig) -> (Elector<Store>, LeaseClock, Told) {
    let (clock, told) = (LeaseClock::simulated(), Told::default());
    let elector = Elector::with_clock(store.clone(), config, clock.clone()).unwrap();
    let telling = told.clone();
    let elector = elector.observe(move |event| telling.add(event.clone()));
    (elector, clock, told)
}

impl Candidate {
    pub(crate) fn stands(store: &Store, config: LeaseConfig) -> Self {
        Self::with(store, config, |elector| elector)
    }

    /// One that does something when it leads.
    pub(crate) fn with(
        store: &Store,
        config: LeaseConfig,
        with: impl FnOnce(Elector<Store>) -> Elector<Store>,
    ) -> Self {
        let (elector, clock, told) = elector(store, config);
        let elector = with(elector);
        let leadership = elector.leadership();
        let task = elector.spawn();
        Self { store: store.clone(), leadership, clock, told, task }
    }

    /// Waits until it leads.
    pub(crate) async fn leads(&self) -> FencingToken {
        leads(&self.leadership).await
    }

    /// Waits until its term is over.
    pub(crate) async fn is_done(&self) {
        is_done(&self.leadership).await;
    }

    /// For how long its term is valid.
    pub(crate) fn valid_for(&self) -> Duration {
        self.leadership.status().valid_for.unwrap_or_default()
    }
}

/// Longer than anybody stays away. Without, what never happens would be waited for in silence: a paused clock goes on
/// only to what somebody waits for.
const FOREVER: Duration = secs(24 * 60 * 60);

/// Waits until this process leads.
#[track_caller]
pub(crate) fn leads(leadership: &Leadership) -> impl Future<Output = FencingToken> {
    let mut watch = leadership.watch();
    let at = Location::caller();
    async move {
        let waits = timeout(FOREVER, watch.wait_for(|standing| standing.term.is_some()));
        let standing = waits.await.unwrap_or_else(|_| panic!("nobody leads here, at {at}"));
        standing.unwrap().term.unwrap()
    }
}

/// Waits until its term is over.
#[track_caller]
pub(crate) fn is_done(leadership: &Leadership) -> impl Future<Output = ()> {
    let mut watch = leadership.watch();
    let at = Location::caller();
    async move {
        let waits = timeout(FOREVER, watch.wait_for(|standing| standing.term.is_none()));
        waits.await.unwrap_or_else(|_| panic!("the term goes on, at {at}")).unwrap();
    }
}

impl Told {
    fn add(&self, event: Event) {
        self.0.lock().unwrap().push((edge::now(), event));
    }

    pub(crate) fn all(&self) -> Vec<(Instant, Event)> {
        self.0.lock().unwrap().clone()
    }

    /// The terms that began and ended, in order.
    pub(crate) fn terms(&self) -> Vec<String> {
        let terms = self.all().into_iter().filter_map(|(_, event)| match event {
            Event::TermStarted { .. } => Some("started".to_owned()),
            Event::TermEnded { end, .. } => Some(end.to_string()),
            _ => None,
        });
        terms.collect()
    }

    /// When the last term ended, and how.
    pub(crate) fn ended(&self) -> Option<(Instant, TermEnd)> {
        self.all().into_iter().rev().find_map(|(at, event)| match event {
            Event::TermEnded { end, .. } => Some((at, end)),
            _ => None,
        })
    }
}

/// Somebody else takes the lease behind everybody's back, as soon as it is free.
pub(crate) async fn takes_over(store: &Store, ttl: Duration) -> (Identity, LeaseRecord) {
    let (store, name, thief) = (store.inner(), name(), Identity::generate());
    let payload = "thief".into();
    loop {
        let request = AcquireRequest::new(&name, &thief, ttl, &payload);
        if let AcquireOutcome::Acquired(record) = store.acquire(request).await.unwrap() {
            return (thief, record);
        }
        sleep(millis(1)).await;
    }
}

/// When calls of that kind were begun.
pub(crate) fn begun(store: &Store, operation: Operation) -> Vec<Instant> {
    let calls = store.calls();
    calls.iter().filter(|call| call.operation == operation).map(|call| call.at).collect()
}
