//! How long it takes until somebody leads who can, when what the leader calls hangs: with real layers, and
//! a store that wakes nobody.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use buttress::{
    BoxError, Breaker, BreakerLayer, BreakerSettings, Elector, Identity, Leadership,
    LeadershipLayer, LeaseConfig, LeaseName, ResignPolicy, State, TimeoutLayer, edge,
    leadership::{ElectorTask, Event, MemoryStore, ResignReason, TermEnd},
};
use tokio::time::{Instant, sleep};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// How a leader goes whose dependency hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By the policy, with that `resign_after`.
    Resigns(Option<Duration>),
    /// It renews no more once its breaker is open, and the lease ends by itself.
    Fades,
}

/// One that stands for election, and serves if it leads.
struct Process {
    leadership: Leadership,
    task: Option<ElectorTask>,
    breaker: Breaker,
    hangs: Arc<AtomicBool>,
    told: Arc<Mutex<Vec<(Instant, Event)>>>,
}

/// What took how long, from when the dependency began to hang.
#[derive(Clone, Copy, Debug)]
struct Took {
    /// Until the breaker was open.
    detect: Duration,
    /// From then on, until the gate was closed.
    hold: Duration,
    /// From then on, until the lease was given back.
    drain: Duration,
    /// From then on, until somebody else led.
    poll: Duration,
    /// All of it.
    leads: Duration,
    /// Until a request was answered.
    answers: Duration,
}

impl Process {
    fn new(store: &MemoryStore, way: Way) -> Self {
        let hangs = Arc::new(AtomicBool::new(false));
        let breaker = Breaker::new(BreakerSettings::quiet()).unwrap();
        let config = LeaseConfig::new(LeaseName::new("orders").unwrap());
        let elector = Elector::new(store.clone(), config.identity(Identity::generate())).unwrap();
        let told = Arc::new(Mutex::new(Vec::new()));
        let telling = Arc::clone(&told);
        let elector = elector
            .observe(move |event| telling.lock().unwrap().push((edge::now(), event.clone())));
        let leadership = elector.leadership();
        let mut process = Self { leadership, task: None, breaker, hangs, told };
        let calls = process.calls();
        let mut policy = ResignPolicy::new()
            .readiness("database", move || calls.clone().oneshot(()))
            .critical("database breaker", process.breaker.clone());
        policy = match way {
            Way::Resigns(Some(hold)) => policy.resign_after(hold),
            Way::Resigns(None) => policy,
            Way::Fades => policy.resign_after(Duration::MAX),
        };
        process.task = Some(elector.resign_when(policy).unwrap().spawn());
        process
    }

    /// The way to its dependency: the same for requests and for readiness.
    fn calls(
        &self,
    ) -> impl tower::Service<(), Response = (), Error = BoxError, Future: Send> + Clone + Sync + use<>
    {
        let hangs = Arc::clone(&self.hangs);
        ServiceBuilder::new()
            .layer(BreakerLayer::new(self.breaker.clone()))
            .layer(TimeoutLayer::new(secs(1)))
            .service(service_fn(move |()| {
                let hangs = hangs.load(Relaxed);
                async move {
                    sleep(millis(5)).await;
                    if hangs { std::future::pending().await } else { Ok::<_, BoxError>(()) }
                }
            }))
    }

    /// A request, and when it was answered.
    fn request(&self, answered: &Arc<Mutex<Vec<Instant>>>) {
        let service = LeadershipLayer::new(self.leadership.clone()).layer(self.calls());
        let answered = Arc::clone(answered);
        tokio::spawn(async move {
            if service.oneshot(()).await.is_ok() {
                answered.lock().unwrap().push(edge::now());
            }
        });
    }

    fn when(&self, is: impl Fn(&Event) -> bool) -> Option<Instant> {
        let told = self.told.lock().unwrap();
        told.iter().find_map(|(at, event)| is(event).then_some(*at))
    }
}

/// Two processes, ten requests a second, and a leader of a minute whose dependency begins to hang.
async fn hang(seed: u64, way: Way) -> Took {
    edge::seed(seed);
    let store = MemoryStore::new().without_watch();
    let mut processes = [Process::new(&store, way), Process::new(&store, way)];
    let answered = Arc::new(Mutex::new(Vec::new()));
    let leads = |process: &&Process| process.leadership.is_leader();
    let start = edge::now();
    let begins = start + secs(60) + millis(2_000).mul_f64(edge::unit());
    let (mut ill, mut opened, mut leads_since, mut next) = (None, None, None, start);
    let first = loop {
        // From when it matters, to the millisecond.
        sleep(millis(if edge::now() + millis(100) < begins { 50 } else { 1 })).await;
        let now = edge::now();
        assert!(now < begins + secs(60), "nobody leads");
        if next <= now {
            next += millis(100);
            if let Some(leader) = processes.iter().find(leads) {
                leader.request(&answered);
            }
        }
        if begins <= now && ill.is_none() {
            ill = processes.iter().position(|process| process.leadership.is_leader());
            processes[ill.expect("somebody leads for long")].hangs.store(true, Relaxed);
        }
        if let Some(ill) = ill
            && opened.is_none()
            && processes[ill].breaker.state() == State::Open
        {
            opened = Some(now);
            if way == Way::Fades {
                drop(processes[ill].task.take());
            }
        }
        let other = ill.map(|ill| &processes[1 - ill]);
        leads_since =
            leads_since.or_else(|| other?.when(|event| matches!(event, Event::TermStarted { .. })));
        let answered = answered.lock().unwrap();
        if let Some(first) =
            answered.iter().copied().find(|at| leads_since.is_some_and(|since| since <= *at))
        {
            break first;
        }
    };
    let old = &processes[ill.expect("somebody led")];
    let (opened, leads) = (opened.expect("it is found out"), leads_since.expect("it leads"));
    let resigning = old.when(|event| matches!(event, Event::Resigning { .. }));
    let released = old.when(|event| matches!(event, Event::Released { .. }));
    let (closed, released) = (resigning.unwrap_or(opened), released.unwrap_or(opened));
    assert!(old.told.lock().unwrap().iter().all(|(_, event)| match event {
        Event::TermEnded { end: TermEnd::Resigned(reason), .. } =>
            matches!(reason, ResignReason::Unhealthy(_)),
        _ => true,
    }));
    Took {
        detect: opened - begins,
        hold: closed - opened,
        drain: released - closed,
        poll: leads - released,
        leads: leads - begins,
        answers: first - begins,
    }
}

/// Twenty times: the one that took longest.
async fn longest(way: Way) -> Took {
    let mut all = Vec::new();
    for seed in 0..20 {
        all.push(hang(seed, way).await);
    }
    let longest = all.into_iter().max_by_key(|took| took.leads).expect("there are some");
    let Took { detect, hold, drain, poll, leads, answers } = longest;
    println!(
        "{way:?}: {leads:?} until somebody leads who can: detect {detect:?}, hold {hold:?}, drain {drain:?}, \
         poll {poll:?}; {answers:?} until a request is answered"
    );
    longest
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_dependency_hangs_has_made_room_in_six_seconds() {
    let took = longest(Way::Resigns(None)).await;
    assert!(took.leads <= secs(6) && took.answers <= secs(6), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_does_not_hold_on_has_made_room_in_four() {
    let took = longest(Way::Resigns(Some(Duration::ZERO))).await;
    assert!(took.leads <= millis(3_800), "{took:?}");
}

// What a leader does that does not leave by itself, at its best.
#[tokio::test(start_paused = true)]
async fn to_let_the_lease_end_takes_longer_than_it_is() {
    let took = longest(Way::Fades).await;
    assert!(LeaseConfig::DEFAULT_LEASE_DURATION < took.leads, "{took:?}");
}
