//! Processes whose dependencies fall ill: who leads meanwhile, and how often that changes. The store is well.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use buttress_core::{BoxError, Health, HealthSignal, Reading, edge};
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    history::{Fact, History, Promises, Who},
    world::{Dice, Facts, observer},
};
use crate::{
    Elector, ElectorTask, Event, FaultyStore, Identity, LeaseClock, LeaseConfig, LeaseName,
    LeaseStore, MemoryStore, ResignPolicy, ResignReason,
};

/// What falls ill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Illness {
    /// The same for all, for two minutes; some notice it later than others.
    Shared,
    /// The first leader, for good.
    One,
    /// The first leader, for 1.7 s of 3 s.
    Flapping,
    /// All, from the beginning on, for five minutes.
    All,
    /// Whoever leads, as it is the work that makes ill.
    Work,
    /// The same, and there is but one.
    Alone,
    /// Whatever comes to mind, each by itself.
    Chance,
}

/// The one signal of each process, and the reason why its leader leaves.
const SIGNAL: &str = "database";

struct World {
    illness: Illness,
    facts: Facts,
    store: FaultyStore<MemoryStore>,
    dice: Dice,
    processes: Vec<Process>,
    start: Instant,
}

struct Process {
    who: Who,
    way: FaultyStore<MemoryStore>,
    task: ElectorTask,
    health: Database,
}

/// How well a process's dependency is. What turns is written down.
#[derive(Clone)]
struct Database {
    who: Who,
    now: Arc<Mutex<Reading>>,
    facts: Facts,
}

impl Database {
    fn is(&self, health: Health) {
        let mut now = self.now.lock().expect("nobody panics");
        if now.health != health {
            *now = Reading { health, since: Some(edge::now()) };
            let fact = (edge::now(), self.who, Fact::Says(health));
            self.facts.lock().expect("nobody panics").push(fact);
        }
    }
}

impl HealthSignal for Database {
    fn sample(&self, _: Instant) -> Reading {
        *self.now.lock().expect("nobody panics")
    }
}

/// One story of that length.
pub(super) fn illness(seed: u64, illness: Illness, length: Duration) -> History {
    super::world::runtime(seed).block_on(async {
        let mut world = World::new(seed, illness);
        world.turns(length).await
    })
}

fn config() -> LeaseConfig {
    LeaseConfig::new(LeaseName::new("a").expect("it is a name"))
}

impl World {
    fn new(seed: u64, illness: Illness) -> Self {
        let memory = MemoryStore::new();
        let memory = if seed.is_multiple_of(2) { memory } else { memory.without_watch() };
        let mut world = Self {
            illness,
            facts: Facts::default(),
            store: FaultyStore::new(memory),
            dice: Dice::new(seed),
            processes: Vec::new(),
            start: edge::now(),
        };
        for who in 0..if illness == Illness::Alone { 1 } else { 3 } {
            let process = world.process(who);
            world.processes.push(process);
        }
        world
    }

    fn process(&mut self, who: Who) -> Process {
        let facts = Arc::clone(&self.facts);
        let health = match self.illness {
            Illness::All => Health::Unhealthy,
            _ => Health::Healthy,
        };
        let now = Arc::new(Mutex::new(Reading { health, since: Some(edge::now()) }));
        let database = Database { who, now, facts: Arc::clone(&facts) };
        facts.lock().expect("nobody panics").push((edge::now(), who, Fact::Says(health)));
        let way = self.store.another_way();
        let config = config().identity(Identity::generate());
        let clock = LeaseClock::simulated();
        let mut tell = observer(who, &self.store, &config, clock.clone(), Arc::clone(&facts));
        let observer = move |event: &Event| {
            let fact = match event {
                Event::Resigning { fence, reason: ResignReason::Unhealthy(_) } => {
                    Some(Fact::Resigns { fence: *fence })
                }
                _ => None,
            };
            facts.lock().expect("nobody panics").extend(fact.map(|fact| (edge::now(), who, fact)));
            tell(event);
        };
        let ready = || async { Ok::<_, BoxError>(()) };
        let policy =
            ResignPolicy::new().readiness("ready", ready).critical(SIGNAL, database.clone());
        let elector = Elector::with_clock(way.clone(), config, clock)
            .expect("the settings pass")
            .resign_when(policy)
            .expect("and so does the policy")
            .observe(observer);
        Process { who, way, task: elector.spawn(), health: database }
    }

    async fn turns(&mut self, length: Duration) -> History {
        match self.illness {
            Illness::Shared => self.shared().await,
            Illness::One => {
                let leader = self.leader_after(60).await;
                self.processes[leader].health.is(Health::Unhealthy);
            }
            Illness::Flapping => self.flapping(length).await,
            Illness::All => {
                self.until(300).await;
                self.all_are(Health::Healthy).await;
            }
            Illness::Work | Illness::Alone => self.work(length).await,
            Illness::Chance => self.chance(length).await,
        }
        sleep_until(self.start + length).await;
        // It may be about to change.
        let leads = |one: &&Process| one.task.leadership().is_leader();
        let mut leaders_at_last = 0;
        for _ in 0..80 {
            leaders_at_last = self.processes.iter().filter(leads).count().max(leaders_at_last);
            sleep(Duration::from_secs(1)).await;
        }
        let (end, processes) = (edge::now(), std::mem::take(&mut self.processes));
        let calls = processes.iter().map(|one| (one.who, one.way.calls())).collect();
        let policy = ResignPolicy::new().settings;
        let promises = Promises {
            last_resort: 2 * config().lease_duration,
            end,
            flaps: matches!(self.illness, Illness::Flapping | Illness::Chance),
            policy,
        };
        let facts = self.facts.lock().expect("nobody panics").clone();
        History {
            config: config(),
            has_amnesia: false,
            begins_anew: false,
            wakes: self.store.capabilities().watch,
            start: self.start,
            facts,
            calls,
            leaders_at_last,
            promises: Some(promises),
        }
    }

    async fn until(&self, secs: u64) {
        sleep_until(self.start + Duration::from_secs(secs)).await;
    }

    async fn leader_after(&self, secs: u64) -> usize {
        self.until(secs).await;
        let leads = |one: &Process| one.task.leadership().is_leader();
        self.processes.iter().position(leads).expect("somebody leads by then")
    }

    /// Each of them, within 3 s.
    async fn all_are(&mut self, health: Health) {
        for n in 0..self.processes.len() {
            sleep(self.dice.of(Duration::from_secs(1))).await;
            self.processes[n].health.is(health);
        }
    }

    async fn shared(&mut self) {
        self.until(60).await;
        self.all_are(Health::Unhealthy).await;
        self.until(180).await;
        self.all_are(Health::Healthy).await;
    }

    async fn flapping(&mut self, length: Duration) {
        let leader = self.leader_after(60).await;
        while edge::now() < self.start + length {
            self.processes[leader].health.is(Health::Unhealthy);
            sleep(Duration::from_millis(1_700)).await;
            self.processes[leader].health.is(Health::Healthy);
            sleep(Duration::from_millis(1_300)).await;
        }
    }

    /// Whoever has led for a while is ill, and well soon after.
    async fn work(&mut self, length: Duration) {
        let mut leads_since = vec![None; self.processes.len()];
        while edge::now() < self.start + length {
            sleep(self.dice.of(Duration::from_secs(2))).await;
            for (since, one) in leads_since.iter_mut().zip(&self.processes) {
                let leads = one.task.leadership().is_leader();
                let since = *since.insert(since.filter(|_| leads).unwrap_or_else(edge::now));
                let is_ill = leads && Duration::from_secs(20) <= edge::now() - since;
                one.health.is(if is_ill { Health::Unhealthy } else { Health::Healthy });
            }
        }
    }

    async fn chance(&mut self, length: Duration) {
        while edge::now() < self.start + length {
            let longest = [2, 10, 40][self.dice.below(3)];
            sleep(self.dice.of(Duration::from_secs(longest))).await;
            let one = &self.processes[self.dice.below(3)];
            let healths = [Health::Healthy, Health::Unhealthy, Health::Degraded, Health::Unknown];
            match self.dice.below(20) {
                0 => one.task.leadership().resign(),
                1..10 => one.health.is(Health::Healthy),
                n => one.health.is(healths[n % 4]),
            }
        }
    }
}
