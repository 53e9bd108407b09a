//! An elector beside its work, and not on the runtime of it.

use std::{
    hint::spin_loop,
    panic::resume_unwind,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{self, Receiver},
    },
    thread,
    time::Duration,
};

use buttress_core::{Health, HealthSignal, edge};
use buttress_leadership::{
    AcquireOutcome, AcquireRequest, Elector, ElectorThread, Event, LeaseClock, LeaseConfig,
    LeaseName, LeaseRecord, LeaseStore, MemoryStore, Operation, ReleaseOutcome, ReleaseRequest,
    RenewOutcome, RenewRequest, ResignPolicy, ResignReason, State, StoreCapabilities, StoreError,
    TermEnd,
};
use tokio::{
    runtime::{Builder, Runtime},
    time::{Instant, sleep},
};

use crate::common::*;

/// On whatever machine.
const PATIENT: Duration = secs(60);

/// Two runtimes with paused clocks: the elector's, and that of its work.
struct Two {
    home: Runtime,
    work: Runtime,
}

/// So far they go at a time.
const STEP: Duration = millis(20);

impl Two {
    fn new() -> Self {
        let runtime = || Builder::new_current_thread().enable_time().start_paused(true).build();
        Self { home: runtime().unwrap(), work: runtime().unwrap() }
    }

    fn run(&self, time: Duration) {
        for _ in 0..time.div_duration_f64(STEP).ceil() as u32 {
            self.home.block_on(async { sleep(STEP).await });
            self.work.block_on(async { sleep(STEP).await });
        }
    }

    /// The work's runtime stands still.
    fn run_home_alone(&self, time: Duration) {
        self.home.block_on(async { sleep(time).await });
    }

    /// The elector stands still.
    fn run_work_alone(&self, time: Duration) {
        self.work.block_on(async { sleep(time).await });
    }

    /// A candidate there, whose work is here.
    fn stands(&self, store: &Store, config: LeaseConfig) -> Candidate {
        let _in = self.home.enter();
        Candidate::with(store, config, |elector| elector.work_on(self.work.handle().clone()))
    }

    fn now(&self) -> Instant {
        self.ask(edge::now)
    }

    /// By the clock of the elector. Outside of a runtime, time is the machine's.
    fn ask<T>(&self, f: impl FnOnce() -> T) -> T {
        let _in = self.home.enter();
        f()
    }

    /// As many requests as there may be are let in, and hang.
    fn ten_thousand_calls_hang(&self, candidate: &Candidate) {
        self.work.block_on(async {
            for _ in 0..10_000 {
                let inside = candidate.leadership.admit(secs(1)).unwrap();
                tokio::spawn(async move {
                    inside.over().await;
                });
            }
        });
    }
}

/// Runs a test that a fault could keep from ever ending: a paused clock stands still as long as somebody is awake.
fn in_time(test: impl FnOnce() + Send + 'static) {
    let (ends, ended) = mpsc::channel::<()>();
    let test = thread::spawn(move || {
        let _ends = ends;
        test();
    });
    // Nobody says anything there. It is closed when the test is over, or has panicked.
    let ended = ended.recv_timeout(PATIENT);
    assert_ne!(ended, Err(mpsc::RecvTimeoutError::Timeout), "the elector never rests");
    if let Err(panic) = test.join() {
        resume_unwind(panic);
    }
}

fn resigned(told: &Told) -> Option<(Instant, ResignReason)> {
    told.all().into_iter().find_map(|(at, event)| match event {
        Event::Resigning { reason, .. } => Some((at, reason)),
        _ => None,
    })
}

// kubernetes-sigs/controller-runtime#3092
#[test]
fn calls_that_are_stuck_cost_no_renewal() {
    let two = Two::new();
    let store = two.home.block_on(async { store() });
    let leader = two.stands(&store, config());
    two.run(secs(1));
    two.ten_thousand_calls_hang(&leader);
    two.run(secs(600));
    assert_eq!(leader.leadership.metrics().requests_in_flight, 10_000);
    assert_eq!(leader.told.terms(), ["started"]);
    let renewals = begun(&store, Operation::Renew);
    assert!(renewals.windows(2).all(|pair| pair[1] - pair[0] <= secs(5) + STEP));
    assert!(renewals.len() >= 120 && leader.leadership.metrics().renewals_failed == 0);
    drop(two.home);
}

// agno-agi/agno#9512
#[test]
fn a_leader_whose_work_stands_still_leaves_at_half_its_lease_and_not_before() {
    let two = Two::new();
    let store = two.home.block_on(async { store() });
    let leader = two.stands(&store, config());
    two.run(secs(40));
    two.ten_thousand_calls_hang(&leader);
    let (stopped, renewed) = (two.now(), store.count(Operation::Renew));
    two.run_home_alone(millis(6_900));
    assert_eq!(leader.told.terms(), ["started"]);
    assert!(store.count(Operation::Renew) > renewed, "it is renewed until then");
    two.run_home_alone(millis(700));
    let (at, reason) = resigned(&leader.told).unwrap();
    assert_eq!(reason, ResignReason::StuckRuntime);
    // The last tick came half a second before at the most.
    assert!(millis(7_000) <= at - stopped && at - stopped <= millis(7_500) + TICK);
    assert!(!two.ask(|| leader.leadership.is_leader()));

    // Nobody can end there. What the store has granted runs out, and somebody else leads.
    let (other, _, other_told) =
        two.home.block_on(async { elector(&store.another_way(), config()) });
    let running = two.home.block_on(async { other.spawn() });
    two.run_home_alone(secs(1) + secs(15) + millis(1_200));
    assert_eq!(leader.told.ended().unwrap().1, TermEnd::Resigned(ResignReason::StuckRuntime));
    assert_eq!(other_told.terms(), ["started"]);
    let metrics = leader.leadership.metrics();
    assert_eq!((metrics.runtime_standstills, metrics.renewals_failed), (1, 0));
    assert!(metrics.runtime_lag.is_some());
    drop((running, two.home));
}

#[test]
fn work_ends_with_its_term_though_its_elector_gets_no_turn() {
    let two = Two::new();
    let store = two.home.block_on(async { store() });
    let (begins, began) = mpsc::channel();
    let leader = {
        let _in = two.home.enter();
        Candidate::with(&store, config(), |elector| {
            elector.work_on(two.work.handle().clone()).lead(move |term| {
                let (gone, is_gone) = mpsc::channel::<()>();
                begins.send((term, is_gone)).unwrap();
                // It listens to nobody.
                async move {
                    std::future::pending::<()>().await;
                    drop(gone);
                }
            })
        })
    };
    two.run(secs(1));
    let (term, is_gone) = began.try_recv().unwrap();
    let inside = leader.leadership.hold().unwrap();
    let left = two.work.block_on(async { term.remaining() });
    let told = [
        two.work.spawn(async move { inside.over().await }),
        two.work.spawn(async move { term.cancelled().await }),
    ];
    two.run_work_alone(left - millis(1));
    assert!(told.iter().all(|told| !told.is_finished()));
    assert_eq!(is_gone.try_recv(), Err(mpsc::TryRecvError::Empty));
    two.run_work_alone(millis(1) + TICK);
    assert!(told.iter().all(tokio::task::JoinHandle::is_finished));
    assert_eq!(is_gone.try_recv(), Err(mpsc::TryRecvError::Disconnected));
    // So far its elector believes that it leads, and so it does not any more.
    two.run_home_alone(TICK);
    assert_eq!(leader.told.terms(), ["started", "expired locally"]);
    drop(two.home);
}

#[test]
fn a_runtime_that_has_stood_still_leads_again_once_it_has_run_for_as_long() {
    let two = Two::new();
    let store = two.home.block_on(async { store() });
    let leader = two.stands(&store, config().cooldown(millis(1), millis(1)));
    two.run_home_alone(secs(7));
    assert_eq!(store.count(Operation::Acquire), 0, "nobody has heard of the runtime yet");
    two.run(secs(2));
    assert!(two.ask(|| leader.leadership.is_leader()));
    two.run_home_alone(secs(60));
    let asked = store.count(Operation::Acquire);
    assert!(!two.ask(|| leader.leadership.is_leader()));
    two.run_home_alone(secs(60));
    two.run(secs(7));
    assert_eq!(store.count(Operation::Acquire), asked, "it does not stand");
    two.run(secs(3));
    assert!(two.ask(|| leader.leadership.is_leader()));
    assert_eq!(leader.leadership.metrics().runtime_standstills, 1);
    drop(two.home);
}

#[test]
fn a_runtime_that_nobody_drives_stands_still_and_that_is_told_once() {
    in_time(|| {
        let two = Two::new();
        let store = two.home.block_on(async { store() });
        let candidate = two.stands(&store, config());
        let standstills = || candidate.leadership.metrics().runtime_standstills;
        two.run_home_alone(millis(7_400));
        assert_eq!(standstills(), 0);
        two.run_home_alone(secs(60));
        assert_eq!((standstills(), store.count(Operation::Acquire)), (1, 0));
        two.run(secs(10));
        assert!(candidate.leadership.is_leader());
        drop(two.home);
    });
}

#[test]
fn who_worked_on_a_runtime_that_was_shut_down_leaves_for_good() {
    for works in [true, false] {
        let Two { home, work } = Two::new();
        let store = home.block_on(async { store() });
        let handle = work.handle().clone();
        let leader = {
            let _in = home.enter();
            Candidate::with(&store, config().cooldown(millis(1), millis(1)), |elector| {
                let elector = elector.work_on(handle);
                if works { elector.lead(|_| std::future::pending()) } else { elector }
            })
        };
        let two = Two { home, work };
        two.run(secs(2));
        assert_eq!(leader.leadership.metrics().work_active, works);
        let Two { home, work } = two;
        drop(work);
        home.block_on(async { sleep(millis(1)).await });
        assert!(!leader.leadership.is_leader(), "at once");
        home.block_on(async { sleep(secs(60)).await });
        assert_eq!(leader.told.terms(), ["started", "resigned"]);
        let metrics = leader.leadership.metrics();
        assert_eq!((metrics.resigned_for.stuck_runtime, metrics.runtime_standstills), (1, 1));
        assert!(!metrics.work_active && metrics.work_cancelled_still_active.is_none());
        drop(home);
    }
}

#[test]
fn a_process_that_stood_still_as_a_whole_goes_on_leading() {
    let two = Two::new();
    let store = two.home.block_on(async { store() });
    let leader = two.stands(&store, config());
    two.run(secs(31));
    for _ in 0..3 {
        while two.ask(|| leader.valid_for()) < millis(11_900) {
            two.run(STEP);
        }
        // For longer than the work may be silent nobody looks, and then the elector does so first.
        leader.clock.suspend(secs(9));
        two.run_home_alone(millis(1_100));
        two.run(secs(10));
    }
    assert_eq!((leader.told.terms(), resigned(&leader.told)), (vec!["started".to_owned()], None));
    drop(two.home);
}

#[test]
fn the_lag_of_the_works_runtime_is_a_signal_with_and_without_a_runtime_of_its_own() {
    let two = Two::new();
    let store = two.home.block_on(async { store() });
    for is_apart in [true, false] {
        let (elector, ..) = two.home.block_on(async { elector(&store, config()) });
        let mut elector =
            if is_apart { elector.work_on(two.work.handle().clone()) } else { elector };
        let lag = elector.runtime_lag();
        let health = || lag.sample(two.now()).health;
        assert_eq!(health(), Health::Unknown);
        let running = two.home.block_on(async { elector.spawn() });
        two.run(secs(2));
        let p99 = two.ask(|| lag.p99());
        assert_eq!((health(), p99), (Health::Healthy, Some(Duration::ZERO)));
        two.run_home_alone(secs(2));
        let expected = if is_apart { Health::Unhealthy } else { Health::Healthy };
        assert_eq!(health(), expected);
        two.home.block_on(running.stop());
    }
}

#[test]
fn a_runtime_that_is_late_is_a_reason_to_leave_long_before_it_stands_still() {
    let two = Two::new();
    let store = two.home.block_on(async { store() });
    let (elector, _, told) = two.home.block_on(async { elector(&store, config()) });
    let mut elector = elector.work_on(two.work.handle().clone());
    let policy = ResignPolicy::new()
        .readiness("ready", || async { Ok::<_, buttress_core::BoxError>(()) })
        .critical("runtime lag", elector.runtime_lag());
    let running = two.home.block_on(async { elector.resign_when(policy).unwrap().spawn() });
    two.run(secs(60));
    assert_eq!(told.terms(), ["started"]);
    // Once for less than two ticks, which is forgiven, and then for longer.
    two.run_home_alone(millis(900));
    two.run(secs(30));
    assert_eq!(resigned(&told), None);
    two.run_home_alone(millis(2_000));
    two.run(secs(5));
    let (_, reason) = resigned(&told).unwrap();
    assert_eq!(reason, ResignReason::Unhealthy("runtime lag".into()));
    assert_eq!(running.leadership().metrics().runtime_standstills, 0);
    drop((running, two.home));
}

#[test]
fn liveness_is_lost_when_the_elector_hangs_and_when_it_is_gone() {
    let two = Two::new();
    let store = two.home.block_on(async { store() });
    let (elector, ..) = two.home.block_on(async { elector(&store, config()) });
    let liveness = elector.leadership().liveness();
    let health = |now| liveness.sample(now).health;
    assert_eq!(health(two.now()), Health::Unknown);
    let running = two.home.block_on(async { elector.spawn() });
    for _ in 0..100 {
        two.run_home_alone(secs(1));
        assert_eq!(health(two.now()), Health::Healthy);
    }
    // Somebody else looks, and it does not move. It had to within a second, and has a lease's time for it.
    let hangs = two.now();
    assert_eq!(health(hangs + secs(15)), Health::Healthy);
    assert_eq!(health(hangs + secs(17)), Health::Unhealthy);
    two.run_home_alone(secs(60));
    assert_eq!(health(two.now()), Health::Healthy, "it goes on");
    two.home.block_on(running.stop());
    assert_eq!(health(two.now()), Health::Unhealthy);
}

#[tokio::test(start_paused = true)]
async fn liveness_is_lost_with_an_elector_that_never_ran() {
    let elector = || Elector::new(store(), config()).unwrap();
    let unspawned = elector();
    let [one, other] = [unspawned.leadership(), {
        let running = elector().spawn();
        running.leadership().clone()
    }];
    assert_eq!(one.liveness().sample(edge::now()).health, Health::Unknown);
    drop(unspawned);
    // The other's task is gone when its runtime comes to it.
    sleep(millis(1)).await;
    for leadership in [one, other] {
        assert_eq!(leadership.liveness().sample(edge::now()).health, Health::Unhealthy);
        let metrics = leadership.metrics();
        assert_eq!((metrics.running, metrics.state), (false, State::Stopped));
    }
}

#[tokio::test(start_paused = true)]
async fn liveness_is_lost_with_an_observer_that_panics() {
    let store = store();
    let elector = Elector::new(store, config()).unwrap().observe(|event| {
        assert!(!matches!(event, Event::Renewed { .. }), "planted");
    });
    let liveness = elector.leadership().liveness();
    let running = elector.spawn();
    sleep(secs(3)).await;
    assert_eq!(liveness.sample(edge::now()).health, Health::Healthy);
    sleep(secs(3)).await;
    assert!(running.is_finished());
    assert_eq!(liveness.sample(edge::now()).health, Health::Unhealthy);
}

// kuberhealthy/kuberhealthy#1533
#[tokio::test(start_paused = true)]
async fn an_election_without_a_leader_shows() {
    let store = store();
    let way = store.another_way();
    let follower = Candidate::stands(&way, config());
    let seen = follower.leadership.leader_seen(secs(30));
    let health = || seen.sample(edge::now()).health;
    // It is cut off from the beginning.
    way.plan(|_| buttress_leadership::Fault::black_hole());
    assert_eq!(health(), Health::Unknown);
    sleep(secs(30)).await;
    assert_eq!(health(), Health::Unknown);
    sleep(millis(1)).await;
    assert_eq!(health(), Health::Unhealthy);
    way.heal();
    let (thief, record) = takes_over(&store, secs(40)).await;
    sleep(secs(10)).await;
    assert_eq!(health(), Health::Healthy, "another one leads");
    // It is cut off again: what it last heard is of use for half a minute.
    way.plan(|_| buttress_leadership::Fault::black_hole());
    sleep(secs(31)).await;
    assert_eq!(health(), Health::Unhealthy, "nobody can tell");
    let since = seen.sample(edge::now()).since.unwrap();
    assert!(edge::now() - since <= secs(4), "{since:?}");
    store.inner().release(ReleaseRequest::new(&name(), &thief, record.fence)).await.unwrap();
    way.heal();
    follower.leads().await;
    assert_eq!(health(), Health::Healthy, "it leads itself");
}

#[tokio::test(start_paused = true)]
async fn whoever_is_told_that_nobody_leads_has_seen_no_leader() {
    let store = store();
    let way = store.another_way();
    let (thief, record) = takes_over(&store, secs(40)).await;
    // It looks, and does not stand.
    let follower = Candidate::with(&way, config(), |elector| {
        elector
            .resign_when(ResignPolicy::new().readiness("ill", async || Err::<(), _>("ill")))
            .unwrap()
    });
    let seen = follower.leadership.leader_seen(secs(30));
    let health = || seen.sample(edge::now()).health;
    sleep(secs(10)).await;
    assert_eq!(health(), Health::Healthy);
    way.plan(|_| buttress_leadership::Fault::black_hole());
    store.inner().release(ReleaseRequest::new(&name(), &thief, record.fence)).await.unwrap();
    sleep(secs(60)).await;
    assert_eq!(health(), Health::Unhealthy);
    way.heal();
    sleep(secs(4)).await;
    assert_eq!(follower.leadership.leader(), None, "it has been told");
    assert_eq!(health(), Health::Unhealthy);
}

// === On threads ===

/// Workers of a runtime that do nothing else until they are let go.
#[derive(Clone, Default)]
struct Blocked(Arc<(Mutex<bool>, Condvar)>);

impl Blocked {
    fn wait(&self) {
        let (is_open, opens) = &*self.0;
        drop(opens.wait_while(is_open.lock().unwrap(), |is_open| !*is_open).unwrap());
    }

    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }
}

/// Lets them go when it is dropped.
struct Opens(Blocked);

impl Drop for Opens {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// Waits for an event that `f` makes something of.
fn until<T>(events: &Receiver<Event>, mut f: impl FnMut(Event) -> Option<T>) -> T {
    loop {
        let event = events.recv_timeout(PATIENT).expect("it happens at last");
        if let Some(is) = f(event) {
            return is;
        }
    }
}

fn started(event: Event) -> Option<()> {
    matches!(event, Event::TermStarted { .. }).then_some(())
}

fn told_of<S: LeaseStore>(elector: Elector<S>) -> (Elector<S>, Receiver<Event>) {
    let (tells, told) = mpsc::channel();
    (
        elector.observe(move |event| {
            let _ = tells.send(event.clone());
        }),
        told,
    )
}

/// A lease that bears much, and an interlock that is soon in.
fn quick() -> LeaseConfig {
    config()
        .lease_duration(secs(8))
        .renew_interval(millis(100))
        .retry_period(millis(100))
        .operation_timeout(secs(2))
        .drain(secs(20), millis(10))
        .cooldown(millis(1), millis(1))
        .probe_deadline(millis(800))
}

/// Threads that compute, until they are dropped.
struct Busy(Arc<AtomicBool>);

impl Busy {
    fn new(threads: usize) -> Self {
        let is_over = Arc::<AtomicBool>::default();
        for _ in 0..threads {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || {
                while !is_over.load(Relaxed) {
                    spin_loop();
                }
            });
        }
        Self(is_over)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

// agno-agi/agno#9512
#[test]
fn a_lease_is_renewed_beside_workers_that_block_until_the_interlock_ends_it() {
    outlives_workers_that_block(0);
}

// agno-agi/agno#9512
#[test]
fn a_lease_is_renewed_beside_threads_that_take_all_there_is_to_compute_with() {
    outlives_workers_that_block(64);
}

fn outlives_workers_that_block(busy: usize) {
    let work = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let _in = work.enter();
    let store =
        buttress_leadership::FaultyStore::new(MemoryStore::with_clock(LeaseClock::system()));
    let elector = Elector::with_clock(store.clone(), quick(), LeaseClock::system()).unwrap();
    let (elector, events) = told_of(elector);
    let running = elector.spawn_isolated().unwrap();
    let leadership = running.leadership();
    until(&events, started);
    for _ in 0..10_000 {
        let inside = leadership.hold().unwrap();
        work.spawn(async move { inside.over().await });
    }
    let blocked = Blocked::default();
    // Also where this fails: their runtime waits for them as it is dropped.
    let _opens = Opens(blocked.clone());
    let busy = Busy::new(busy);
    for _ in 0..2 {
        let blocked = blocked.clone();
        work.spawn(async move { blocked.wait() });
    }
    let mut renewed = 0;
    let reason = until(&events, |event| match event {
        Event::Renewed { .. } => {
            renewed += 1;
            assert!(renewed < 600, "it is renewed for a minute");
            None
        }
        Event::Resigning { reason, .. } => Some(reason),
        Event::TermEnded { end, .. } => panic!("{end}"),
        _ => None,
    });
    assert_eq!(reason, ResignReason::StuckRuntime);
    let metrics = leadership.metrics();
    assert!(renewed > 0 && metrics.renewals_failed == 0);
    assert_eq!(metrics.renewals_accepted, store.count(Operation::Renew) as u64, "none is missed");
    assert!(leadership.check().is_err());
    let end = until(&events, |event| match event {
        Event::TermEnded { end, .. } => Some(end),
        _ => None,
    });
    assert_eq!(end, TermEnd::Resigned(ResignReason::StuckRuntime));
    assert_eq!(store.count(Operation::Release), 0, "ten thousand are in");
    drop(busy);
    blocked.open();
    until(&events, started);
    assert_eq!(leadership.metrics().runtime_standstills, 1);
    work.block_on(running.stop());
    assert!(store.count(Operation::Release) >= 1);
}

/// Its renewals block their thread, from when they are told to. Dropped, it says so.
struct Blocks {
    inner: MemoryStore,
    blocked: Blocked,
    tells: mpsc::Sender<&'static str>,
}

impl LeaseStore for Blocks {
    fn capabilities(&self) -> StoreCapabilities {
        self.inner.capabilities()
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome, StoreError> {
        self.inner.acquire(request).await
    }

    async fn renew(&self, request: RenewRequest<'_>) -> Result<RenewOutcome, StoreError> {
        self.tells.send("hangs").unwrap();
        self.blocked.wait();
        self.inner.renew(request).await
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseOutcome, StoreError> {
        self.inner.release(request).await
    }

    async fn inspect(&self, name: &LeaseName) -> Result<Option<LeaseRecord>, StoreError> {
        self.inner.inspect(name).await
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        let _ = self.tells.send("store dropped");
    }
}

/// Says so when it is dropped.
struct Tells(mpsc::Sender<&'static str>);

impl Drop for Tells {
    fn drop(&mut self) {
        let _ = self.0.send("work dropped");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_leads_from_the_drop_on_though_its_thread_hangs() {
    let (tells, told) = mpsc::channel();
    let blocked = Blocked::default();
    let inner = MemoryStore::with_clock(LeaseClock::system());
    let store = Blocks { inner: inner.clone(), blocked: blocked.clone(), tells: tells.clone() };
    let elector = Elector::with_clock(store, quick(), LeaseClock::system()).unwrap();
    let (elector, events) = told_of(elector.lead(move |_| {
        let tells = Tells(tells.clone());
        async move {
            let _tells = tells;
            std::future::pending::<()>().await;
        }
    }));
    let running = elector.spawn_isolated().unwrap();
    let leadership = running.leadership().clone();
    until(&events, started);
    assert_eq!(told.recv_timeout(PATIENT), Ok("hangs"));
    let inside = leadership.hold().expect("it leads, and its thread hangs");
    drop(running);
    assert!(leadership.check().is_err() && leadership.hold().is_err());
    inside.over().await;
    // The work is here, and is dropped although the elector cannot see to it.
    while told.recv_timeout(PATIENT).unwrap() != "work dropped" {}
    drop(inside);
    blocked.open();
    let end = until(&events, |event| match event {
        Event::TermEnded { end, .. } => Some(end),
        _ => None,
    });
    assert_eq!(end, TermEnd::Dropped);
    // Its thread has ended: the store was there.
    while told.recv_timeout(PATIENT).unwrap() != "store dropped" {}
    assert!(
        inner.inspect(&name()).await.unwrap().unwrap().leader().is_some(),
        "nobody gave it back"
    );
    // It says so last.
    leadership.watch().wait_for(|standing| standing.state == State::Stopped).await.unwrap();
}

#[tokio::test]
async fn a_store_is_made_on_the_thread_and_the_work_runs_where_it_was_spawned() {
    let here = thread::current().id();
    let elects = ElectorThread::new().unwrap();
    let (store, there) = elects
        .make(async {
            // As what serves a connection does.
            tokio::spawn(std::future::pending::<()>());
            let there = thread::current();
            assert_eq!(there.name(), Some("buttress-elect"));
            (MemoryStore::with_clock(LeaseClock::system()), there.id())
        })
        .await;
    let (tells, told) = mpsc::channel();
    let elector = Elector::with_clock(store, quick(), LeaseClock::system()).unwrap();
    let observes = tells.clone();
    let elector = elector
        .observe(move |_| {
            let _ = observes.send(("observes", thread::current().id()));
        })
        .lead(move |term| {
            let tells = tells.clone();
            async move {
                tells.send(("works", thread::current().id())).unwrap();
                term.cancelled().await;
            }
        });
    let running = elects.spawn(elector);
    running.leadership().watch().wait_for(|standing| standing.term.is_some()).await.unwrap();
    let leadership = running.leadership().clone();
    running.stop().await;
    assert_eq!(leadership.status().state, State::Stopped);
    let all: Vec<_> = told.into_iter().collect();
    assert!(all.iter().any(|(what, _)| *what == "works"));
    assert!(all.iter().all(|(what, at)| *at == if *what == "works" { here } else { there }));
}

#[tokio::test]
async fn a_store_that_cannot_be_made_panics_here_and_the_thread_goes_on() {
    let elects = ElectorThread::new().unwrap();
    let making = tokio::spawn(async move {
        elects.make(async { panic!("planted") }).await;
    });
    assert!(making.await.unwrap_err().is_panic());
    let elects = ElectorThread::new().unwrap();
    let (tells, told) = mpsc::channel();
    let tells = Tells(tells);
    let mut waits = tokio_test::task::spawn(elects.make(async move {
        let _tells = tells;
        std::future::pending::<()>().await;
    }));
    assert!(waits.poll().is_pending());
    drop(waits);
    assert_eq!(told.recv_timeout(PATIENT), Ok("work dropped"), "nobody waits for it");
    assert_eq!(elects.make(async { 7 }).await, 7);
}

#[tokio::test]
async fn who_does_not_wait_for_the_stop_any_more_has_dropped_it() {
    let store = MemoryStore::with_clock(LeaseClock::system());
    let elector = Elector::with_clock(store, quick(), LeaseClock::system()).unwrap();
    let running = elector.spawn_isolated().unwrap();
    let leadership = running.leadership().clone();
    leadership.watch().wait_for(|standing| standing.term.is_some()).await.unwrap();
    let inside = leadership.hold().unwrap();
    let mut stops = tokio_test::task::spawn(running.stop());
    assert!(stops.poll().is_pending());
    drop(stops);
    assert!(leadership.check().is_err());
    inside.over().await;
}

/// Something of it hangs on a thread of its runtime.
struct Leaves(MemoryStore, Blocked);

impl LeaseStore for Leaves {
    fn capabilities(&self) -> StoreCapabilities {
        self.0.capabilities()
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome, StoreError> {
        let blocked = self.1.clone();
        tokio::task::spawn_blocking(move || blocked.wait());
        self.0.acquire(request).await
    }

    async fn renew(&self, request: RenewRequest<'_>) -> Result<RenewOutcome, StoreError> {
        self.0.renew(request).await
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseOutcome, StoreError> {
        self.0.release(request).await
    }

    async fn inspect(&self, name: &LeaseName) -> Result<Option<LeaseRecord>, StoreError> {
        self.0.inspect(name).await
    }
}

#[tokio::test]
async fn a_thread_whose_observer_panics_waits_for_nothing_that_hangs() {
    let blocked = Blocked::default();
    let store = Leaves(MemoryStore::with_clock(LeaseClock::system()), blocked.clone());
    let elector = Elector::with_clock(store, quick(), LeaseClock::system()).unwrap();
    let elector = elector.observe(|event| {
        assert!(!matches!(event, Event::TermStarted { .. }), "planted");
    });
    let running = elector.spawn_isolated().unwrap();
    let began = edge::now();
    while !running.is_finished() {
        assert!(edge::now() - began < PATIENT, "it waits for what hangs");
        sleep(millis(1)).await;
    }
    blocked.open();
}
