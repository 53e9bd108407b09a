//! The processes, the store between them, and what befalls them.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll},
    time::Duration,
};

use buttress_core::edge;
use tokio::{
    task::JoinHandle,
    time::{Instant, Sleep, sleep, sleep_until},
};

use super::history::{Fact, History, Who, world_skew};
use crate::{
    BootTime, Elector, Event, Fault, FaultyStore, FencingToken, Identity, Leadership, LeaseClock,
    LeaseConfig, LeaseName, LeaseStore, MemoryStore, TermEnd,
};

/// What befalls them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// Whatever a lease has to stand.
    Weather,
    /// The store forgets everything now and then, too, or somebody deletes the record.
    Amnesia,
    /// The same as [`Amnesia`](Self::Amnesia), and its tokens begin anew, whatever candidates remember.
    Rollback,
    /// The same as [`Weather`](Self::Weather), and there are two hundred of them.
    Crowd,
}

impl Plan {
    fn forgets(self) -> bool {
        matches!(self, Self::Amnesia | Self::Rollback)
    }
}

/// Chance for one part of the story, so that no other part changes it.
#[derive(Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// As in SplitMix64 (Steele, Lea and Flood, 2014).
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        (self.unit() * n as f64) as usize
    }

    /// A share of that.
    pub(super) fn of(&mut self, time: Duration) -> Duration {
        time.mul_f64(self.unit())
    }
}

/// What the network does to one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weather {
    Fine,
    Slow,
    Lossy,
    Cut,
    CutBack,
}

pub(super) type Facts = Arc<Mutex<Vec<(Instant, Who, Fact)>>>;

/// A process, as long as it runs.
struct Process {
    who: Who,
    leadership: Leadership,
    way: FaultyStore<MemoryStore>,
    weather: Arc<Mutex<Weather>>,
    stopped: Stopped,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    elector: JoinHandle<()>,
    requests: JoinHandle<()>,
}

/// Until when the elector gets no time, and until when the whole process does.
#[derive(Clone, Default)]
struct Stopped(Arc<Mutex<(Option<Instant>, Option<Instant>)>>);

struct World {
    plan: Plan,
    config: LeaseConfig,
    store: FaultyStore<MemoryStore>,
    facts: Facts,
    dice: Dice,
    processes: Vec<Process>,
    calls: std::collections::BTreeMap<Who, Vec<crate::Called>>,
    born: Who,
    /// The greatest token that the resource has seen.
    mark: Arc<Mutex<Option<FencingToken>>>,
}

/// One story.
pub(super) fn episode(seed: u64, plan: Plan) -> History {
    runtime(seed).block_on(async {
        let mut world = World::new(seed, plan);
        world.turns().await
    })
}

/// Where time passes as fast as may be, and chance is always the same.
pub(super) fn runtime(seed: u64) -> tokio::runtime::Runtime {
    edge::seed(seed);
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("there is a runtime")
}

/// Settings that pass the check, by chance.
fn settings(dice: &mut Dice) -> LeaseConfig {
    loop {
        let lease = Duration::from_millis(1_000 + dice.below(20_000) as u64);
        let mut config = LeaseConfig::new(LeaseName::new("a").expect("it is a name"))
            .lease_duration(lease)
            .renew_interval(lease.mul_f64(0.1 + 0.4 * dice.unit()))
            .retry_period(lease.mul_f64(0.1 + 0.2 * dice.unit()))
            .operation_timeout(lease.mul_f64(0.02 + 0.28 * dice.unit()))
            .drain(lease.mul_f64(dice.unit()), lease.mul_f64(0.2 * dice.unit()))
            .cooldown(lease.mul_f64(0.5 * dice.unit()), lease);
        if dice.below(2) == 0 {
            config = config.safety_margin(lease.mul_f64(0.02 + 0.45 * dice.unit()));
        }
        if config.check().is_ok() {
            return config;
        }
    }
}

impl World {
    fn new(seed: u64, plan: Plan) -> Self {
        let mut dice = Dice(seed);
        let config = settings(&mut dice);
        let skew = 0.99 * world_skew(&config) * dice.unit();
        let memory = MemoryStore::with_clock(LeaseClock::skewed(1.0 + skew));
        let memory = if dice.below(2) == 0 { memory } else { memory.without_watch() };
        let memory = if plan == Plan::Rollback { memory.numbering_writes() } else { memory };
        let mut world = Self {
            plan,
            config,
            store: FaultyStore::new(memory),
            facts: Facts::default(),
            dice,
            processes: Vec::new(),
            calls: std::collections::BTreeMap::new(),
            born: 0,
            mark: Arc::default(),
        };
        let some = 2 + world.dice.below(3);
        for _ in 0..if plan == Plan::Crowd { 200 } else { some } {
            let process = world.process();
            world.processes.push(process);
        }
        world
    }

    fn process(&mut self) -> Process {
        let who = self.born;
        self.born += 1;
        let skew = 0.99 * world_skew(&self.config);
        let clock = LeaseClock::skewed(1.0 + skew * (2.0 * self.dice.unit() - 1.0));
        let config = self.config.clone().identity(Identity::generate());
        let way = self.store.another_way();
        let weather = Arc::new(Mutex::new(Weather::Fine));
        let (sees, mut dice) = (Arc::clone(&weather), Dice(self.dice.next()));
        let limit = config.operation_timeout;
        way.plan(move |_| fault(*sees.lock().expect("nobody panics"), &mut dice, limit));

        let stopped = Stopped::default();
        let facts = Arc::clone(&self.facts);
        let observer = observer(who, &self.store, &config, clock.clone(), Arc::clone(&facts));
        let works = Arc::clone(&facts);
        let mut dice = Dice(self.dice.next());
        let lease = config.lease_duration;
        let elector = Elector::with_clock(way.clone(), config, clock)
            .expect("the settings pass")
            .observe(observer)
            .lead(move |term| {
                let working = Working::new(who, term.fence(), Arc::clone(&works));
                let (kind, time) = (dice.below(4), dice.of(10 * lease));
                async move {
                    let _working = working;
                    match kind {
                        0 => sleep(time).await,
                        1 => std::future::pending().await,
                        _ => {
                            term.cancelled().await;
                            sleep(time / 20).await;
                        }
                    }
                }
            });
        let leadership = elector.leadership();
        let (stop, stops) = tokio::sync::oneshot::channel();
        let shutdown = async move {
            let _ = stops.await;
        };
        let elector = tokio::spawn(stopped.clone().elector(elector.run(shutdown)));
        let requests = requests(
            who,
            leadership.clone(),
            Arc::clone(&facts),
            Arc::clone(&self.mark),
            Dice(self.dice.next()),
            self.config.clone(),
        );
        let requests = tokio::spawn(stopped.clone().all(requests));
        let stop = Some(stop);
        Process { who, leadership, way, weather, stopped, stop, elector, requests }
    }

    async fn turns(&mut self) -> History {
        let start = edge::now();
        let lease = self.config.lease_duration;
        // In a crowd more happens at a time, and it need not last as long.
        let (leases, often) = if self.plan == Plan::Crowd { (20, 0.01) } else { (300, 0.6) };
        let end = start + leases * lease;
        while edge::now() < end {
            sleep(self.dice.of(lease.mul_f64(often))).await;
            self.turn();
        }
        let leaders_at_last = self.calm().await;
        for process in std::mem::take(&mut self.processes) {
            self.kill(process);
        }
        tokio::task::yield_now().await;
        History {
            config: self.config.clone(),
            has_amnesia: self.plan.forgets(),
            begins_anew: self.plan == Plan::Rollback,
            wakes: self.store.capabilities().watch,
            start,
            facts: self.facts.lock().expect("nobody panics").clone(),
            calls: std::mem::take(&mut self.calls),
            leaders_at_last,
            promises: None,
        }
    }

    /// Something happens to somebody.
    fn turn(&mut self) {
        let at = self.dice.below(self.processes.len());
        let lease = self.config.lease_duration;
        let (what, time) = (self.dice.below(100), self.dice.of(2 * lease));
        match what {
            0..50 => {
                let weathers = [
                    Weather::Fine,
                    Weather::Fine,
                    Weather::Slow,
                    Weather::Lossy,
                    Weather::Cut,
                    Weather::CutBack,
                ];
                let weather = weathers[self.dice.below(weathers.len())];
                *self.processes[at].weather.lock().expect("nobody panics") = weather;
            }
            50..60 => self.stops(at, time, false),
            60..70 => self.stops(at, time, true),
            70..80 => self.processes[at].leadership.resign(),
            80..85 => {
                let process = self.processes.swap_remove(at);
                self.kill(process);
                let new = self.process();
                self.processes.push(new);
            }
            // It stops in good order, and another one comes beside it.
            85..90 => {
                if let Some(stop) = self.processes[at].stop.take() {
                    let _ = stop.send(());
                    let new = self.process();
                    self.processes.push(new);
                }
            }
            90..93 if self.plan.forgets() => self.store.inner().clear(),
            93..96 if self.plan.forgets() => self.store.inner().evict(&self.config.name),
            _ => {}
        }
        // Those that have stopped are no more.
        while let Some(at) = self.processes.iter().position(|one| one.elector.is_finished()) {
            let process = self.processes.swap_remove(at);
            self.kill(process);
        }
    }

    fn stops(&mut self, at: usize, time: Duration, whole: bool) {
        let (process, until) = (&self.processes[at], edge::now() + time);
        let mut stopped = process.stopped.lock();
        stopped.0 = Some(until);
        if whole {
            stopped.1 = Some(until);
        }
        drop(stopped);
        self.add(self.processes[at].who, Fact::Stopped { until });
    }

    fn kill(&mut self, process: Process) {
        process.elector.abort();
        process.requests.abort();
        self.add(process.who, Fact::Gone);
        self.calls.insert(process.who, process.way.calls());
    }

    /// All is well from now on. How many lead once there has been time enough.
    async fn calm(&mut self) -> usize {
        for process in &self.processes {
            *process.weather.lock().expect("nobody panics") = Weather::Fine;
        }
        let LeaseConfig { lease_duration: lease, retry_period: retry, .. } = self.config;
        // Those that stop still do so; a leader that leaves drains; a late call is late.
        sleep(8 * lease).await;
        let time = lease.mul_f64(1.3) + retry.mul_f64(2.4);
        let mut best = 0;
        for _ in 0..100 {
            sleep(time / 100).await;
            let leaders = self.processes.iter().filter(|one| one.leadership.is_leader());
            best = best.max(leaders.count());
        }
        best
    }

    fn add(&self, who: Who, fact: Fact) {
        self.facts.lock().expect("nobody panics").push((edge::now(), who, fact));
    }
}

/// What goes wrong with a call.
fn fault(weather: Weather, dice: &mut Dice, limit: Duration) -> Fault {
    let some = [
        Fault::not_applied(),
        Fault::lost_request(),
        Fault::lost_answer(),
        Fault::black_hole(),
        Fault::black_hole_back(),
    ];
    match weather {
        Weather::Fine => Fault::default().delay_after(dice.of(limit / 50)),
        Weather::Slow => {
            Fault::default().delay_before(dice.of(limit)).delay_after(dice.of(limit.mul_f64(1.2)))
        }
        Weather::Lossy => match dice.below(2) {
            0 => some[dice.below(some.len())].delay_before(dice.of(limit / 2)),
            _ => Fault::default().delay_after(dice.of(limit)),
        },
        Weather::Cut => Fault::black_hole(),
        Weather::CutBack => Fault::black_hole_back(),
    }
}

/// Writes down what an elector tells.
pub(super) fn observer(
    who: Who,
    store: &FaultyStore<MemoryStore>,
    config: &LeaseConfig,
    clock: LeaseClock,
    facts: Facts,
) -> impl FnMut(&Event) + Send + 'static {
    let (store, me, name) = (store.inner().clone(), config.identity.clone(), config.name.clone());
    // When an instant of its clock will have come.
    let comes = move |at: BootTime| edge::now() + (at - clock.now()).div_f64(clock.rate());
    move |event| {
        let fact = match event {
            Event::TermStarted { fence, valid_until } | Event::Renewed { fence, valid_until } => {
                Fact::Believes { fence: *fence, until: comes(*valid_until) }
            }
            Event::TermEnded { fence, end } => {
                let record = pin!(store.inspect(&name))
                    .poll(&mut Context::from_waker(std::task::Waker::noop()));
                let Poll::Ready(Ok(record)) = record else {
                    unreachable!("memory answers at once")
                };
                let has = record.is_some_and(|record| {
                    record.is_held_by(&me) && record.fence == *fence && !record.is_expired()
                });
                let lost = matches!(end, TermEnd::Lost { .. }).then_some(!has);
                Fact::Ended { fence: *fence, lost }
            }
            Event::Released { fence } => Fact::Released { fence: *fence },
            _ => return,
        };
        facts.lock().expect("nobody panics").push((edge::now(), who, fact));
    }
}

/// Requests that come to a process: they are let in or not, take their time, and write.
async fn requests(
    who: Who,
    leadership: Leadership,
    facts: Facts,
    mark: Arc<Mutex<Option<FencingToken>>>,
    mut dice: Dice,
    config: LeaseConfig,
) {
    loop {
        sleep(dice.of(config.lease_duration)).await;
        let Ok(permit) = leadership.admit(dice.of(config.lease_duration / 10)) else { continue };
        let fence = permit.fence();
        let inside = Inside::new(who, fence, &facts);
        // Most end when they are told to. Some do not listen.
        let work = sleep(dice.of(config.lease_duration / 3));
        if dice.below(5) > 0 {
            tokio::select! { biased; () = work => {}, () = permit.over() => {} }
        } else {
            work.await;
        }
        {
            let mut mark = mark.lock().expect("nobody panics");
            let accepted = *mark <= Some(fence);
            let wrote = Fact::Wrote { fence, accepted };
            facts.lock().expect("nobody panics").push((edge::now(), who, wrote));
            *mark = (*mark).max(Some(fence));
        }
        drop(inside);
        drop(permit);
    }
}

/// Tells that a request has left, however it does.
struct Inside(Who, FencingToken, Facts);

impl Inside {
    fn new(who: Who, fence: FencingToken, facts: &Facts) -> Self {
        facts.lock().expect("nobody panics").push((edge::now(), who, Fact::Admitted { fence }));
        Self(who, fence, Arc::clone(facts))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let fact = Fact::Left { fence: self.1 };
        self.2.lock().expect("nobody panics").push((edge::now(), self.0, fact));
    }
}

/// Tells when work begins and when it is gone.
struct Working(Who, FencingToken, Facts);

impl Working {
    fn new(who: Who, fence: FencingToken, facts: Facts) -> Self {
        facts.lock().expect("nobody panics").push((edge::now(), who, Fact::WorkBegan { fence }));
        Self(who, fence, facts)
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let fact = Fact::WorkGone { fence: self.1 };
        self.2.lock().expect("nobody panics").push((edge::now(), self.0, fact));
    }
}

impl Stopped {
    fn lock(&self) -> MutexGuard<'_, (Option<Instant>, Option<Instant>)> {
        self.0.lock().expect("nobody panics")
    }

    /// Runs an elector, while it gets time.
    async fn elector(self, inner: impl Future<Output = ()>) {
        self.run(inner, |stopped| stopped.0).await;
    }

    /// Runs what gets time unless the whole process stands still.
    async fn all(self, inner: impl Future<Output = ()>) {
        self.run(inner, |stopped| stopped.1).await;
    }

    async fn run(
        self,
        inner: impl Future<Output = ()>,
        until: impl Fn(&(Option<Instant>, Option<Instant>)) -> Option<Instant>,
    ) {
        let mut inner = pin!(inner);
        let mut timer: Pin<Box<Sleep>> = Box::pin(sleep(Duration::ZERO));
        poll_fn(|cx| {
            if let Some(until) = until(&self.lock()).filter(|until| edge::now() < *until) {
                if timer.deadline() != until {
                    timer.as_mut().set(sleep_until(until));
                }
                if timer.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
            }
            inner.as_mut().poll(cx)
        })
        .await;
    }
}
