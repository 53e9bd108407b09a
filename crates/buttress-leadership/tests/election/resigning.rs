//! How a leader leaves since it cannot do its job, and who comes next.

use std::{
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use buttress_core::{BoxError, Health, HealthSignal, Reading, Reason, Rejected, edge};
use buttress_leadership::{
    AcquireOutcome, AcquireRequest, DegradedBy, Elector, Event, Expiry, LeadershipLayer, LeaseName,
    LeaseRecord, LeaseStore, MemoryStore, OnDegraded, Operation, ReleaseOutcome, ReleaseRequest,
    RenewOutcome, RenewRequest, ResignPolicy, ResignReason, ServerClock, SignalRole,
    StoreCapabilities, StoreError, StoreTime, TermEnd,
};
use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceExt, service_fn};

use crate::common::*;

/// A dependency, as well as a test wants it.
#[derive(Clone, Debug)]
struct Database(Arc<Mutex<Reading>>);

impl Database {
    fn new() -> Self {
        let long_ago = edge::now().checked_sub(secs(3600));
        Self(Arc::new(Mutex::new(Reading { health: Health::Healthy, since: long_ago })))
    }

    fn is(&self, health: Health) {
        *self.0.lock().unwrap() = Reading { health, since: Some(edge::now()) };
    }

    fn is_well(&self) -> bool {
        self.0.lock().unwrap().health == Health::Healthy
    }
}

impl HealthSignal for Database {
    fn sample(&self, _: Instant) -> Reading {
        *self.0.lock().unwrap()
    }
}

/// What goes by the database: it is asked, and it tells.
fn policy(database: &Database) -> ResignPolicy {
    let asked = database.clone();
    let ask = move || {
        let is_well = asked.is_well();
        async move { if is_well { Ok(()) } else { Err("down") } }
    };
    ResignPolicy::new().readiness("ping", ask).critical("database", database.clone())
}

fn stands(store: &Store, policy: ResignPolicy) -> Candidate {
    Candidate::with(store, config(), |elector| elector.resign_when(policy).unwrap())
}

/// Some candidates, each with a database of its own.
fn some(store: &Store, n: usize) -> (Vec<Candidate>, Vec<Database>) {
    let databases: Vec<_> = (0..n).map(|_| Database::new()).collect();
    (databases.iter().map(|database| stands(store, policy(database))).collect(), databases)
}

/// Which of them leads.
async fn leader_of(candidates: &[Candidate]) -> usize {
    loop {
        let leads = |candidate: &Candidate| candidate.leadership.is_leader();
        if let Some(leader) = candidates.iter().position(leads) {
            return leader;
        }
        sleep(millis(1)).await;
    }
}

/// When it was told so for the first time.
fn told(candidate: &Candidate, is: impl Fn(&Event) -> bool) -> Option<Instant> {
    candidate.told.all().into_iter().find_map(|(at, event)| is(&event).then_some(at))
}

// jlevesy/prometheus-elector#35, patroni/patroni#1826
#[tokio::test(start_paused = true)]
async fn a_leader_that_is_ill_makes_room_for_one_that_is_not() {
    let store = store();
    let (many, databases) = some(&store, 3);
    let ill = leader_of(&many).await;
    sleep(secs(60)).await;
    let inside = many[ill].leadership.hold().unwrap();
    let fell = edge::now();
    databases[ill].is(Health::Unhealthy);
    while told(&many[ill], |event| matches!(event, Event::Resigning { .. })).is_none() {
        sleep(millis(1)).await;
    }
    let held = edge::now() - fell;
    assert!(secs(2) <= held && held <= secs(2) + TICK, "{held:?}");
    sleep(secs(3)).await;
    let released = |event: &Event| matches!(event, Event::Released { .. });
    assert_eq!(told(&many[ill], released), None, "for those who are in it is held");
    drop(inside);
    let start = edge::now();
    let next = leader_of(&many).await;
    assert!(edge::now() - start <= millis(1_200) + TICK);
    assert_ne!(next, ill);
    let ended = many[ill].told.ended().unwrap().1;
    // Both say so, and the one that was named first is first.
    let TermEnd::Resigned(ResignReason::Unhealthy(signal)) = &ended else { panic!("{ended}") };
    assert_eq!(signal, "database");
    for _ in 0..3_000 {
        sleep(secs(1)).await;
        assert!(!many[ill].leadership.is_leader(), "it stays away while it is ill");
    }
    assert_eq!(leader_of(&many).await, next);
}

#[tokio::test(start_paused = true)]
async fn a_leader_by_itself_finds_out_whatever_way_it_is_not_ready() {
    type Ask = fn() -> std::pin::Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;
    let ways: [(&str, Ask, Duration); 5] = [
        ("says so", || Box::pin(async { Err("down".into()) }), secs(0)),
        ("panics as it is asked why", || Box::pin(async { Err(Mute.into()) }), secs(0)),
        ("panics", || Box::pin(async { panic!("planted") }), secs(0)),
        ("panics before", || panic!("planted"), secs(0)),
        ("hangs", || Box::pin(pending()), secs(1)),
    ];
    for (way, ask, takes) in ways {
        let store = store();
        let is_ill = Arc::new(AtomicBool::new(false));
        let ill = Arc::clone(&is_ill);
        let ready = move || match ill.load(Relaxed) {
            true => ask(),
            false => Box::pin(async { Ok(()) }),
        };
        let leader = stands(&store, ResignPolicy::new().readiness("ready", ready));
        leader.leads().await;
        sleep(secs(60)).await;
        is_ill.store(true, Relaxed);
        let fell = edge::now();
        leader.is_done().await;
        let took = edge::now() - fell;
        let most = secs(2) + takes + secs(2) + TICK;
        assert!(secs(2) + takes <= took && took <= most, "{way}: {took:?}");
        let reason = ResignReason::Unhealthy("ready".into());
        assert_eq!(leader.told.ended().unwrap().1, TermEnd::Resigned(reason), "{way}");
    }
}

/// An error that panics when it is asked for its text.
#[derive(Debug)]
struct Mute;

impl std::fmt::Display for Mute {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("planted")
    }
}

impl std::error::Error for Mute {}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_does_not_run_is_not_ready_and_is_not_flooded() {
    let store = store();
    // Nobody drives it.
    let stuck = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let ready = || async { Ok::<_, BoxError>(()) };
    // By its readiness alone, and no interlock.
    let config = config().probe_deadline(std::time::Duration::MAX);
    let candidate = Candidate::with(&store, config, |elector| {
        elector
            .work_on(stuck.handle().clone())
            .resign_when(ResignPolicy::new().readiness("ready", ready))
            .unwrap()
    });
    sleep(secs(25)).await;
    assert!(!candidate.leadership.is_leader());
    let signals = candidate.leadership.status().signals;
    assert_eq!(signals[0].health, Health::Unhealthy);
    assert_eq!(stuck.metrics().num_alive_tasks(), 1, "it is asked again when it is gone");
    drop(candidate);
    stuck.shutdown_background();
}

#[tokio::test(start_paused = true)]
async fn an_elector_that_is_dropped_asks_no_more() {
    let store = store();
    let held = Arc::new(());
    let hold = Arc::clone(&held);
    let ask = move || {
        let hold = Arc::clone(&hold);
        async move {
            let _hold = hold;
            pending::<Result<(), BoxError>>().await
        }
    };
    let candidate = stands(&store, ResignPolicy::new().readiness("ready", ask));
    sleep(millis(500)).await;
    assert_eq!(Arc::strong_count(&held), 3, "one call is under way");
    drop(candidate);
    sleep(millis(1)).await;
    assert_eq!(Arc::strong_count(&held), 1);
}

#[tokio::test(start_paused = true)]
async fn a_readiness_function_is_not_asked_more_often_than_it_should_be() {
    let store = store();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let ask = move || {
        count.fetch_add(1, Relaxed);
        async { Ok::<_, BoxError>(()) }
    };
    let leader = stands(&store, ResignPolicy::new().readiness("ready", ask));
    sleep(secs(601)).await;
    assert!(leader.leadership.is_leader());
    assert_eq!(asked.load(Relaxed), 301);
}

#[tokio::test(start_paused = true)]
async fn what_advises_is_shown_and_nothing_more() {
    let store = store();
    let (database, cache) = (Database::new(), Database::new());
    let leader = stands(&store, policy(&database).advisory("cache", cache.clone()));
    cache.is(Health::Unhealthy);
    leader.leads().await;
    sleep(secs(600)).await;
    assert!(leader.leadership.is_leader() && !leader.leadership.is_degraded());
    let signals = leader.leadership.status().signals;
    let shown = signals.iter().map(|signal| (&*signal.name, signal.role, signal.health));
    let is = [
        ("ping", SignalRole::Readiness, Health::Healthy),
        ("database", SignalRole::Critical, Health::Healthy),
        ("cache", SignalRole::Advisory, Health::Unhealthy),
    ];
    assert_eq!(shown.collect::<Vec<_>>(), is);
}

#[tokio::test(start_paused = true)]
async fn a_signal_that_panics_says_nothing() {
    let store = store();
    let database = Database::new();
    let panics = Arc::new(AtomicBool::new(false));
    let panicking = Arc::clone(&panics);
    let signal = move |_: Instant| {
        assert!(!panicking.load(Relaxed), "planted");
        Reading { health: Health::Healthy, since: None }
    };
    let leader = stands(&store, policy(&database).critical("panics", signal));
    leader.leads().await;
    sleep(secs(60)).await;
    panics.store(true, Relaxed);
    sleep(secs(600)).await;
    assert!(leader.leadership.is_leader(), "what nobody knows makes no leader leave");
    leader.leadership.resign();
    leader.is_done().await;
    sleep(secs(50)).await;
    assert!(!leader.leadership.is_leader(), "and nobody stand");
}

#[tokio::test(start_paused = true)]
async fn whoever_may_not_stand_looks_and_does_not_ask() {
    let store = store();
    let (healthy, _databases) = some(&store, 1);
    healthy[0].leads().await;
    let way = store.another_way();
    let database = Database::new();
    database.is(Health::Unhealthy);
    let ill = stands(&way, policy(&database));
    sleep(secs(60)).await;
    let leader = ill.leadership.leader().unwrap();
    assert_eq!(leader.identity, *healthy[0].leadership.identity(), "it knows who leads");
    assert_eq!(way.count(Operation::Acquire), 0);
    let looks = way.count(Operation::Inspect);
    assert!((50..=61).contains(&looks), "as often as it would ask: {looks}");
    database.is(Health::Healthy);
    sleep(secs(60)).await;
    assert!(way.count(Operation::Acquire) > 45, "then it does");
}

#[tokio::test(start_paused = true)]
async fn where_all_are_ill_one_leads_as_the_last_resort_and_stays() {
    let store = store();
    let start = edge::now();
    let (many, databases) = some(&store, 3);
    databases.iter().for_each(|database| database.is(Health::Unhealthy));
    let leader = leader_of(&many).await;
    let took = edge::now() - start;
    assert!(secs(30) <= took && took <= secs(30) + millis(1_200) + TICK, "{took:?}");
    let Candidate { leadership, told, .. } = &many[leader];
    assert!(leadership.is_degraded() && leadership.metrics().is_degraded);
    assert_eq!(leadership.status().degraded, Some(DegradedBy::LastResort));
    assert_eq!(leadership.watch().borrow().degraded, Some(DegradedBy::LastResort));
    sleep(secs(3600)).await;
    assert_eq!(told.terms(), ["started"], "what it began with does not end it");

    let inner = service_fn(|()| async { Ok::<_, BoxError>(()) });
    let serves = LeadershipLayer::new(leadership.clone());
    let sheds = serves.clone().on_degraded(OnDegraded::Shed).layer(inner);
    assert!(serves.layer(inner).oneshot(()).await.is_ok());
    let error = sheds.clone().oneshot(()).await.unwrap_err();
    let rejected: &Rejected = error.downcast_ref().unwrap();
    assert_eq!((rejected.reason(), rejected.layer()), (Reason::Degraded, "leadership"));
    assert_eq!(leadership.metrics().requests.degraded, 1);

    databases[leader].is(Health::Healthy);
    sleep(secs(8)).await;
    assert!(leadership.is_leader() && !leadership.is_degraded());
    assert!(sheds.oneshot(()).await.is_ok());
    let events = told.all().into_iter().filter_map(|(_, event)| match event {
        Event::Degraded { by, .. } => Some(by.as_str()),
        Event::Recovered { .. } => Some("recovered"),
        _ => None,
    });
    assert_eq!(events.collect::<Vec<_>>(), ["last resort", "recovered"]);
    assert_eq!(leadership.metrics().degradations, 1);
}

#[tokio::test(start_paused = true)]
async fn a_term_is_known_to_be_degraded_before_anybody_is_let_in() {
    let store = store();
    let database = Database::new();
    database.is(Health::Unhealthy);
    let known = Arc::new(Mutex::new(None));
    let knows = Arc::clone(&known);
    let candidate = Candidate::with(&store, config(), |elector| {
        let leadership = elector.leadership();
        let elector = elector.resign_when(policy(&database)).unwrap();
        elector.observe(move |event| {
            if matches!(event, Event::TermStarted { .. }) {
                *knows.lock().unwrap() = Some(leadership.is_degraded());
            }
        })
    });
    candidate.leads().await;
    assert_eq!(*known.lock().unwrap(), Some(true));
}

/// Lets whoever leads be ill, and nobody else: it is in the work.
fn poisoned<S: LeaseStore>(elector: Elector<S>) -> Elector<S> {
    let leadership = elector.leadership();
    let poisoned = move |_: Instant| {
        let health = if leadership.is_leader() { Health::Unhealthy } else { Health::Healthy };
        Reading { health, since: None }
    };
    let ready = || async { Ok::<_, BoxError>(()) };
    let policy = ResignPolicy::new().readiness("ready", ready).critical("work", poisoned);
    elector.resign_when(policy).unwrap()
}

#[tokio::test(start_paused = true)]
async fn for_what_two_others_left_nobody_leaves() {
    let store = store();
    let many: Vec<_> = (0..3).map(|_| Candidate::with(&store, config(), poisoned)).collect();
    sleep(secs(3600)).await;
    let left: usize = many.iter().map(|one| one.leadership.metrics().resignations as usize).sum();
    assert_eq!(left, 2);
    let leader = &many[leader_of(&many).await].leadership;
    assert_eq!(leader.status().degraded, Some(DegradedBy::CorrelatedFailure));
    assert_eq!(leader.metrics().correlated_failures, 1);
    let record = store.inner().inspect(&name()).await.unwrap().unwrap();
    let memo = String::from_utf8(record.memo.to_vec()).unwrap();
    let ends: Vec<_> = memo.lines().skip(1).map(|line| line.split('\t').nth(3).unwrap()).collect();
    assert_eq!(ends, ["unhealthy", "unhealthy", "-"], "as it is kept with the lease");
}

/// A store that has no clock for all: what a process is told is by its own.
struct NoClock {
    store: MemoryStore,
    ahead: Duration,
    can: StoreCapabilities,
}

impl NoClock {
    fn ours(&self, mut record: LeaseRecord) -> LeaseRecord {
        let LeaseRecord { acquired_at, renewed_at, expires_at, store_now, .. } = &mut record;
        for time in [acquired_at, renewed_at, expires_at, store_now] {
            let ahead = u64::try_from(self.ahead.as_nanos()).unwrap();
            *time = StoreTime::from_nanos(time.as_nanos() + ahead);
        }
        record
    }
}

impl LeaseStore for NoClock {
    fn capabilities(&self) -> StoreCapabilities {
        self.can
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome, StoreError> {
        Ok(match self.store.acquire(request).await? {
            AcquireOutcome::Acquired(record) => AcquireOutcome::Acquired(self.ours(record)),
            AcquireOutcome::Held(record) => AcquireOutcome::Held(self.ours(record)),
        })
    }

    async fn renew(&self, request: RenewRequest<'_>) -> Result<RenewOutcome, StoreError> {
        Ok(match self.store.renew(request).await? {
            RenewOutcome::Renewed(record) => RenewOutcome::Renewed(self.ours(record)),
            RenewOutcome::Lost(record) => {
                RenewOutcome::Lost(record.map(|record| self.ours(record)))
            }
        })
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseOutcome, StoreError> {
        self.store.release(request).await
    }

    async fn inspect(&self, name: &LeaseName) -> Result<Option<LeaseRecord>, StoreError> {
        Ok(self.store.inspect(name).await?.map(|record| self.ours(record)))
    }
}

#[tokio::test(start_paused = true)]
async fn clocks_of_two_processes_are_not_compared() {
    edge::set_wall(std::time::SystemTime::UNIX_EPOCH + secs(1_000_000_000));
    let own = StoreCapabilities::new(Expiry::Observed);
    let untold = StoreCapabilities::new(Expiry::Server).server_clock(ServerClock::Untold);
    for can in [own, untold] {
        let store = MemoryStore::new().without_watch();
        let candidate = |days: u64| {
            let store = NoClock { store: store.clone(), ahead: secs(days * 86_400), can };
            poisoned(Elector::new(store, config()).unwrap()).spawn()
        };
        let many = [candidate(0), candidate(7), candidate(700)];
        sleep(secs(3600)).await;
        let left = many.iter().map(|one| one.leadership().metrics().resignations);
        assert_eq!(left.sum::<u64>(), 2, "it is seen that two have left");
        let record = store.inspect(&name()).await.unwrap().unwrap();
        let memo = String::from_utf8(record.memo.to_vec()).unwrap();
        for line in memo.lines().skip(1) {
            let started: u64 = line.split('\t').nth(1).unwrap().parse().unwrap();
            let since = 1_000_000_000..1_000_008_000;
            assert!(since.contains(&(started / 1_000_000_000)), "{memo}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_holds_on_for_as_long_as_a_hand_over_takes() {
    let mut longest = secs(0);
    for seed in 0..8 {
        edge::seed(seed);
        let store = store();
        let databases: Vec<_> = (0..3).map(|_| Database::new()).collect();
        // They look every 4 s or so.
        let candidate = |database: &Database| {
            let policy = policy(database).min_term(secs(0));
            let slow = config().renew_interval(secs(4)).retry_period(secs(4));
            let slow = slow.operation_timeout(secs(1));
            Candidate::with(&store, slow, |elector| elector.resign_when(policy).unwrap())
        };
        let many: Vec<_> = databases.iter().map(candidate).collect();
        let first = leader_of(&many).await;
        sleep(secs(20)).await;
        databases[first].is(Health::Unhealthy);
        many[first].is_done().await;
        let released = edge::now();
        let second = leader_of(&many).await;
        let cost = edge::now() - released;
        sleep(secs(20)).await;
        let fell = edge::now();
        databases[second].is(Health::Unhealthy);
        many[second].is_done().await;
        let held = edge::now() - fell;
        assert!(held.abs_diff(cost.max(secs(2))) <= 3 * TICK, "{held:?} where it took {cost:?}");
        longest = longest.max(cost);
    }
    assert!(secs(3) < longest, "else it was no cost: {longest:?}");
}

#[tokio::test(start_paused = true)]
async fn in_a_cooldown_that_leaves_nobody_to_lead_the_last_resort_comes_first() {
    let store = store();
    let database = Database::new();
    let alone = stands(&store, policy(&database));
    let mut away = Vec::new();
    for _ in 0..5 {
        alone.leads().await;
        alone.leadership.resign();
        alone.is_done().await;
        let left = edge::now();
        alone.leads().await;
        away.push((edge::now() - left).as_secs_f64());
        alone.leadership.resign();
        alone.is_done().await;
    }
    // 30, 120, 480 s, and longer: but for the last resort.
    assert!((24.0..=36.1).contains(&away[0]), "{away:?}");
    assert!(away[1..].iter().all(|away| (66.0..=69.0).contains(away)), "{away:?}");
}
