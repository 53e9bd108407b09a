use std::{
    fmt,
    pin::{Pin, pin},
    sync::atomic::Ordering::Relaxed,
    task::{Context, Poll},
    time::Duration,
};

use buttress_core::{Context as Ambient, Fence, InvalidSetting, edge};
use bytes::Bytes;
use tokio::{
    runtime::Handle,
    sync::oneshot,
    task::{AbortHandle, JoinError, JoinHandle},
    time::{Sleep, sleep, timeout},
};

use crate::{
    AcquireOutcome, AcquireRequest, BootTime, Changes, DegradedBy, Event, FencingToken, LeaderInfo,
    LeaderTerm, Leadership, LeaseClock, LeaseConfig, LeaseRecord, LeaseStore, Operation,
    ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest, ResignPolicy, ResignReason,
    RuntimeLag, State, StoreCapabilities, StoreError, TermEnd,
    foreign::{Foreign, guarded, text_of},
    gate::{Shut, Term},
    interlock::Interlock,
    leadership::Shared,
    machine::{Answer, Effect, Failure, Machine, Op, Running, Step},
    metrics::{Ended, count},
    planted::{Plant, is_planted},
    resign::{Candidacy, Vigil},
    sync::Arc,
};

/// Stands for election again and again, and holds the lease while it leads.
///
/// After a term that was lost, expired or given up it stands again, by itself: an elector that ends with its
/// first loss leaves a system without a leader, and nobody notices.
///
/// # Examples
///
/// Work that exactly one process does:
///
/// ```
/// use buttress_leadership::{Elector, LeaderTerm, LeaseConfig, LeaseName, MemoryStore};
/// use std::time::Duration;
///
/// async fn schedule(term: LeaderTerm) {
///     loop {
///         tokio::select! {
///             () = term.cancelled() => return,
///             () = tokio::time::sleep(Duration::from_secs(10)) => {
///                 println!("what is due, with the token {}", term.fence());
///             }
///         }
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = LeaseConfig::new(LeaseName::new("scheduler")?).payload("10.0.0.7:8080");
/// let elector = Elector::new(MemoryStore::new(), config)?.lead(schedule);
/// let leadership = elector.leadership();
/// let running = elector.spawn();
/// tokio::time::sleep(Duration::from_secs(60)).await;
/// assert!(leadership.is_leader());
/// running.stop().await;
/// assert_eq!(leadership.metrics().terms_ended, 1);
/// # Ok(())
/// # }
/// ```
///
/// Without work it leads all the same: for the requests that are let in by its [`Leadership`].
#[must_use = "an elector does nothing unless it runs"]
pub struct Elector<S> {
    store: std::sync::Arc<S>,
    can: StoreCapabilities,
    config: LeaseConfig,
    leadership: Leadership,
    work: Option<Work>,
    work_on: Option<Handle>,
    /// Whether somebody wants to know how late the work's runtime is.
    is_probed: bool,
    observer: Option<Observer>,
    policy: Option<ResignPolicy>,
    /// Whether it ends with its first term.
    is_once: bool,
    ends: Ends,
}

/// Says that the election is over, when the elector is gone: it need never have run.
struct Ends(Leadership);

/// An elector that runs in a task of its own. Dropped, it stops at once: nobody leads here any more, and the
/// lease ends by itself. To give it back, [`stop`](Self::stop).
#[derive(Debug)]
#[must_use = "an elector whose task is dropped stops"]
pub struct ElectorTask {
    leadership: Leadership,
    stop: Option<oneshot::Sender<()>>,
    /// It is there until somebody takes it to let it run on.
    task: Option<JoinHandle<()>>,
}

type Work = Box<dyn FnMut(LeaderTerm) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;
type Observer = Box<dyn FnMut(&Event) + Send>;

// === impl Elector ===

impl<S: LeaseStore> Elector<S> {
    /// An elector with that store and those settings, by the [default clock](LeaseClock::default).
    ///
    /// # Errors
    ///
    /// Names the setting that cannot work, or cannot with this store.
    pub fn new(store: S, config: LeaseConfig) -> Result<Self, InvalidSetting> {
        Self::with_clock(store, config, LeaseClock::default())
    }

    /// The same, by that clock.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_clock(
        store: S,
        config: LeaseConfig,
        clock: LeaseClock,
    ) -> Result<Self, InvalidSetting> {
        config.check_with(&store.capabilities())?;
        Ok(Self::checked(std::sync::Arc::new(store), config, clock))
    }

    fn checked(store: std::sync::Arc<S>, config: LeaseConfig, clock: LeaseClock) -> Self {
        let (can, leadership) = (store.capabilities(), Leadership::new(&config, clock));
        let (work, work_on, observer, policy) = (None, None, None, None);
        let (is_probed, is_once) = (false, false);
        let ends = Ends(leadership.clone());
        Self {
            store,
            can,
            config,
            leadership,
            work,
            work_on,
            is_probed,
            observer,
            policy,
            is_once,
            ends,
        }
    }

    /// One that ends with its first term. Its settings have been checked.
    pub(crate) fn once(store: std::sync::Arc<S>, config: LeaseConfig, clock: LeaseClock) -> Self {
        Self { is_once: true, ..Self::checked(store, config, clock) }
    }

    /// The election, to be asked from anywhere.
    #[must_use]
    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Sets what a leader does. It is begun once for each term, in a task of its own.
    ///
    /// When it returns, the leader leaves, and stands again two retry periods later. After a term that was shorter
    /// than a lease, that time doubles, up to [`cooldown_max`](LeaseConfig::cooldown_max): work that returns at once
    /// is begun less and less often, until a term lasts. What is to be done again and again is a loop in the work,
    /// and what is to be done once is for a [`Lock`](crate::Lock). When it panics, the leader leaves for a
    /// [cool-down](LeaseConfig::cooldown).
    ///
    /// When the leader leaves by itself, [`cancelled`](LeaderTerm::cancelled) tells it, and it is waited for. When the
    /// term is lost, or the wait is over, it is dropped at its next `await`; and so it is when the term's time is up,
    /// whatever the elector does: the clock is looked at before each poll. The next term does not begin before it is
    /// gone: work that blocks its thread keeps this process from leading again.
    ///
    /// It runs in no request's [context](buttress_core::Context), and has the term's token at hand as a request has that
    /// its leader let in.
    pub fn lead<F, Fut>(mut self, mut work: F) -> Self
    where
        F: FnMut(LeaderTerm) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.work = Some(Box::new(move |term| Box::pin(work(term))));
        self
    }

    /// Sets the runtime of the work, and watches it by an [interlock](crate::ElectorThread#the-interlock). It
    /// is the elector's own unless set, or where an elector is spawned that is
    /// [isolated](Self::spawn_isolated). It needs timers: without, the elector panics as it begins to run.
    pub fn work_on(mut self, runtime: Handle) -> Self {
        self.work_on = Some(runtime);
        self
    }

    /// Sets when a leader leaves by itself, and when a candidate may stand.
    ///
    /// # Errors
    ///
    /// Names the setting, or the signal, that cannot work.
    pub fn resign_when(mut self, policy: ResignPolicy) -> Result<Self, InvalidSetting> {
        policy.check(&self.config)?;
        self.policy = Some(policy);
        Ok(self)
    }

    /// Its own runtime is not that of its work.
    pub(crate) fn work_here(mut self) -> Self {
        self.work_on.get_or_insert_with(Handle::current);
        self
    }

    /// How late the runtime of the work is, as a signal. Where elector and work share one, it turns the
    /// [probe](RuntimeLag) on: a task that the elector spawns there as it begins to run.
    pub fn runtime_lag(&mut self) -> RuntimeLag {
        self.is_probed = true;
        RuntimeLag::new(std::sync::Arc::clone(&self.leadership.shared.probe))
    }

    /// Sets who is told of everything that happens, in order, each once. It is called by the elector between
    /// two steps, and must not block: the lease is not renewed meanwhile.
    pub fn observe(mut self, observer: impl FnMut(&Event) + Send + 'static) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }

    /// Stands for election until `shutdown`. Then, if it leads, it leaves as one that
    /// [resigns](Leadership::resign).
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers. A panic of the store's code ends the term and no more.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it closes the gate and drops the work in that instant. The lease ends by itself.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let mut shutdown = pin!(shutdown);
        let mut driver = Driver::new(self);
        while let Some(happened) = driver.next(shutdown.as_mut()).await {
            driver.take_in(happened);
        }
        driver.end().await;
    }

    /// Runs it in a task of its own.
    ///
    /// # Panics
    ///
    /// As [`run`](Self::run).
    pub fn spawn(self) -> ElectorTask {
        let leadership = self.leadership();
        let (stop, stopped) = oneshot::channel();
        let shutdown = async move {
            // Whoever has gone without a word has dropped the task as well.
            let _ = stopped.await;
        };
        let task = tokio::spawn(Ambient::detached(self.run(shutdown)));
        ElectorTask { leadership, stop: Some(stop), task: Some(task) }
    }
}

impl<S> fmt::Debug for Elector<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Elector").field("config", &self.config).finish_non_exhaustive()
    }
}

// === impl ElectorTask ===

impl ElectorTask {
    /// The election.
    #[must_use]
    pub const fn leadership(&self) -> &Leadership {
        &self.leadership
    }

    /// Whether it has ended: it was stopped, or its observer panicked.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.task.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops it: a leader leaves, its work ends, and the lease is given back.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it stops the elector at once, as if that were dropped.
    pub async fn stop(mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(task) = &mut self.task {
            // A panic in it has been told of, and the gate is closed.
            let _ = task.await;
        }
    }

    /// The same, and nobody waits for it.
    pub(crate) fn stop_in_background(mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        // Dropped, it is no longer ours to abort.
        self.task = None;
    }
}

impl Drop for ElectorTask {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            // The task is dropped by its runtime, when that comes to it.
            self.leadership.shared.halt();
            task.abort();
        }
    }
}

// === The driver ===

/// Obeys the machine: it makes the calls, opens and closes the gate, and starts and drops the work.
struct Driver<S> {
    store: std::sync::Arc<S>,
    config: LeaseConfig,
    leadership: Leadership,
    machine: Machine,
    call: Option<Call>,
    term: Option<Arc<Term>>,
    work: Option<Work>,
    work_on: Option<Handle>,
    /// Where the work runs elsewhere.
    interlock: Option<Interlock>,
    probe: Option<AbortHandle>,
    task: Option<JoinHandle<WorkEnd>>,
    observer: Option<Observer>,
    vigil: Option<Vigil>,
    /// The lease as it was when we got it.
    record: Option<LeaseRecord>,
    is_once: bool,
    /// What is to be told to the store with the next renewal.
    payload: Option<Bytes>,
    memo: Option<Bytes>,
    changes: Option<Foreign<Changes>>,
    /// A change was told of, and nobody has looked since.
    is_changed: bool,
    is_stopping: bool,
    timer: Pin<Box<Sleep>>,
    _ends: Ends,
}

/// The call in flight.
struct Call {
    op: Op,
    sent: BootTime,
    /// What it tells the store.
    payload: Option<Bytes>,
    memo: Option<Bytes>,
    future: Foreign<Pin<Box<dyn Future<Output = Said> + Send>>>,
}

/// What came of a call.
type Said = Result<Answer, StoreError>;

/// How work ended by itself.
enum WorkEnd {
    Returned,
    /// Its time was up, and it was dropped.
    Over,
}

enum Happened {
    Answered(std::thread::Result<Said>),
    WorkEnded(Result<WorkEnd, JoinError>),
    Changed(bool),
    Stop,
    /// It is later, or somebody has asked for something.
    Woken,
}

impl<S: LeaseStore> Driver<S> {
    fn new(elector: Elector<S>) -> Self {
        let Elector {
            store,
            can,
            config,
            leadership,
            work,
            work_on,
            is_probed,
            observer,
            policy,
            is_once,
            ends,
        } = elector;
        let now = leadership.clock().now();
        let runtime = work_on.clone().unwrap_or_else(Handle::current);
        let deadline = config.stands_still_for();
        let interlock =
            (work_on.is_some() && deadline < Duration::MAX).then(|| Interlock::new(deadline, now));
        if work.is_some() {
            // Without timers it panics here, and not in each term.
            let _there = runtime.enter();
            drop(sleep(Duration::ZERO));
        }
        let probe = (is_probed || interlock.is_some())
            .then(|| leadership.shared.probe.spawn(&runtime, &leadership.shared));
        let machine = Machine::new(&config, can.watch, now);
        leadership.shared.counters.running.store(1, Relaxed);
        let vigil = policy.map(|policy| Vigil::new(policy, &config, &runtime, can));
        Self {
            store,
            config,
            leadership,
            machine,
            call: None,
            term: None,
            work,
            work_on,
            interlock,
            probe,
            task: None,
            observer,
            vigil,
            record: None,
            is_once,
            payload: None,
            memo: None,
            changes: None,
            is_changed: false,
            is_stopping: false,
            timer: Box::pin(sleep(Duration::ZERO)),
            _ends: ends,
        }
    }

    fn shared(&self) -> &Shared {
        &self.leadership.shared
    }

    fn now(&self) -> BootTime {
        self.leadership.clock().now()
    }

    /// Goes on until something happens. `None` is the end.
    async fn next(&mut self, mut shutdown: Pin<&mut impl Future<Output = ()>>) -> Option<Happened> {
        while !self.shared().is_halted() {
            self.take_orders();
            let now = self.now();
            if self.shared().clocks.look(self.leadership.clock()) {
                self.machine.anomaly(now, &mut edge::unit);
            }
            self.listen(now);
            self.keep_vigil(now);
            let step = self.machine.advance(now, &mut edge::unit, self.running());
            self.obey(now);
            match step {
                Step::Stop => return None,
                Step::Call(op) => self.begin(op),
                Step::Wait(until) => {
                    self.set_timer(now, until);
                    let (leadership, term) = (self.leadership.clone(), self.term.clone());
                    let mut woken = pin!(async {
                        let mut ordered = pin!(leadership.shared.wake.notified());
                        let mut empty = pin!(async {
                            match &term {
                                Some(term) => term.empty().notified().await,
                                None => std::future::pending().await,
                            }
                        });
                        std::future::poll_fn(|cx| {
                            let is_ready = ordered.as_mut().poll(cx).is_ready();
                            if is_ready { Poll::Ready(()) } else { empty.as_mut().poll(cx) }
                        })
                        .await;
                    });
                    let wait =
                        |cx: &mut Context<'_>| self.poll(shutdown.as_mut(), woken.as_mut(), cx);
                    return Some(std::future::poll_fn(wait).await);
                }
            }
        }
        None
    }

    fn take_in(&mut self, happened: Happened) {
        let now = self.now();
        // What is over by now is over, whatever is heard at last.
        let _ = self.machine.advance(now, &mut edge::unit, self.running());
        self.obey(now);
        match happened {
            Happened::Answered(said) => self.answered(now, said),
            Happened::WorkEnded(how) => self.work_ended(now, how),
            Happened::Changed(more) => {
                if !more {
                    self.changes = None;
                }
                self.is_changed = true;
                self.machine.changed(now);
            }
            Happened::Stop => {
                self.is_stopping = true;
                self.machine.stop(now);
            }
            Happened::Woken => {}
        }
        self.obey(now);
    }

    fn take_orders(&mut self) {
        let orders = std::mem::take(&mut *self.shared().orders());
        if let Some(reason) = orders.resign {
            self.machine.resign(self.now(), reason);
        }
        if let Some(payload) = orders.payload {
            self.config.payload = payload.clone();
            self.payload = Some(payload);
        }
    }

    /// Looks how well this process is, if it is time, and does what follows.
    fn keep_vigil(&mut self, now: BootTime) {
        let Some(vigil) = &mut self.vigil else { return };
        let Some(verdict) = vigil.look(edge::now()) else { return };
        let name = |signal: usize| vigil.name(signal).clone();
        let (resign, correlated) = (verdict.resign.map(name), verdict.correlated.map(name));
        let signals = vigil.signals();
        self.shared().show(signals);
        let before = self.machine.candidacy(now, verdict.candidacy);
        if before != Candidacy::LastResort && verdict.candidacy == Candidacy::LastResort {
            tracing::info!(
                target: "buttress_leadership", lease = %self.config.name,
                "stands as the last resort: nobody leads"
            );
        }
        let Some(fence) = self.shared().standing.borrow().term else { return };
        if let Some(signal) = correlated {
            count(&self.shared().counters.correlated_failures);
            tracing::warn!(
                target: "buttress_leadership", lease = %self.config.name, %fence, %signal,
                "leader stays: others left for the same signal"
            );
            self.tell(Event::CorrelatedFailure { fence, signal });
        }
        if self.shared().degrade(verdict.degraded) {
            self.told_of_degradation(fence, verdict.degraded);
        }
        if let Some(signal) = resign {
            self.machine.resign(now, ResignReason::Unhealthy(signal));
        }
    }

    fn told_of_degradation(&mut self, fence: FencingToken, by: Option<DegradedBy>) {
        let name = &self.config.name;
        if let Some(by) = by {
            count(&self.shared().counters.degradations);
            tracing::warn!(target: "buttress_leadership", lease = %name, %fence, %by, "term degraded");
            self.tell(Event::Degraded { fence, by });
        } else {
            tracing::info!(target: "buttress_leadership", lease = %name, %fence, "term degraded no longer");
            self.tell(Event::Recovered { fence });
        }
    }

    /// Whether the work's runtime is heard.
    fn listen(&mut self, now: BootTime) {
        let Some(interlock) = &mut self.interlock else { return };
        let shared = &self.leadership.shared;
        let stands_still = interlock.look(now, shared.probe.ticks(), shared.probe.is_gone());
        self.machine.stuck(!interlock.is_well());
        if stands_still {
            count(&shared.counters.standstills);
            let deadline = self.config.stands_still_for();
            tracing::warn!(
                target: "buttress_leadership", lease = %self.config.name, ?deadline,
                "the runtime of the work stands still"
            );
            self.machine.resign(now, ResignReason::StuckRuntime);
        }
    }

    fn running(&self) -> Running {
        let requests = self.term.as_ref().is_some_and(|term| term.in_flight() > 0);
        Running { work: self.task.is_some(), requests }
    }

    fn set_timer(&mut self, now: BootTime, until: Option<BootTime>) {
        // The timer stops while the machine is suspended: a leader looks often enough to find out soon.
        let is_leading = self.term.as_ref().is_some_and(|term| !term.is_over());
        let longest = if is_leading { self.config.retry_period } else { Duration::from_secs(3600) };
        let listens = self.interlock.as_ref().map(Interlock::next);
        let wait = [until, listens].into_iter().flatten().map(|until| until.since(now)).min();
        let at = edge::now() + wait.map_or(longest, |wait| wait.min(longest));
        let at = self.vigil.as_ref().map_or(at, |vigil| vigil.next().min(at));
        self.timer.as_mut().reset(at);
        self.shared().turns.expect(at);
    }

    fn poll(
        &mut self,
        shutdown: Pin<&mut impl Future<Output = ()>>,
        woken: Pin<&mut impl Future<Output = ()>>,
        cx: &mut Context<'_>,
    ) -> Poll<Happened> {
        if let Some(call) = &mut self.call {
            match call.future.run(|call| call.as_mut().poll(cx)) {
                Ok(Poll::Ready(said)) => return Poll::Ready(Happened::Answered(Ok(said))),
                Ok(Poll::Pending) => {}
                Err(panic) => return Poll::Ready(Happened::Answered(Err(panic))),
            }
        }
        if let Some(task) = &mut self.task
            && let Poll::Ready(how) = Pin::new(task).poll(cx)
        {
            return Poll::Ready(Happened::WorkEnded(how));
        }
        if let Some(vigil) = &mut self.vigil
            && vigil.poll(cx).is_ready()
        {
            return Poll::Ready(Happened::Woken);
        }
        if !self.is_stopping && shutdown.poll(cx).is_ready() {
            return Poll::Ready(Happened::Stop);
        }
        if woken.poll(cx).is_ready() {
            return Poll::Ready(Happened::Woken);
        }
        // What is told while it looks is news to the answer.
        let looks = self.call.as_ref().is_some_and(|call| call.op == Op::Inspect);
        if !self.is_changed
            && !looks
            && matches!(self.machine.state(), State::Follower | State::CoolDown)
            && let Some(changes) = &mut self.changes
        {
            // One that panics has ended.
            let polled = changes.run(|changes| changes.as_mut().poll_next(cx));
            if let Poll::Ready(change) = polled.unwrap_or(Poll::Ready(None)) {
                return Poll::Ready(Happened::Changed(change.is_some()));
            }
        }
        self.timer.as_mut().poll(cx).map(|()| Happened::Woken)
    }

    // === Calls ===

    fn begin(&mut self, op: Op) {
        self.is_changed = false;
        let waits = matches!(op, Op::Acquire | Op::Inspect);
        if waits && self.changes.is_none() {
            // First, so that nothing is missed between the answer and the next look.
            let changes = guarded(|| self.store.changes(&self.config.name));
            self.changes = changes.ok().map(Foreign::new);
        }
        let (store, config) = (std::sync::Arc::clone(&self.store), self.config.clone());
        let payload = match op {
            Op::Acquire => Some(config.payload.clone()),
            _ => self.payload.clone(),
        };
        let memo = self.memo.clone();
        let seen = self.machine.highest();
        let told = (payload.clone(), memo.clone());
        let future = async move {
            let LeaseConfig { name, identity, lease_duration: ttl, .. } = &config;
            let limit = config.operation_timeout;
            match op {
                Op::Acquire => {
                    let request = AcquireRequest::new(name, identity, *ttl, &config.payload);
                    let request = request.after(seen).limit(limit);
                    store.acquire(request).await.map(|outcome| match outcome {
                        AcquireOutcome::Acquired(record) => Answer::Acquired(record),
                        AcquireOutcome::Held(record) => Answer::Held(record),
                    })
                }
                Op::Inspect => store.inspect(name).await.map(Answer::Inspected),
                Op::Renew(fence) => {
                    let mut request = RenewRequest::new(name, identity, fence, *ttl);
                    (request.payload, request.memo) = (payload.as_ref(), memo.as_ref());
                    store.renew(request.limit(limit)).await.map(|outcome| match outcome {
                        RenewOutcome::Renewed(record) => Answer::Renewed(record),
                        RenewOutcome::Lost(record) => Answer::Lost(record),
                    })
                }
                Op::Release(fence) => {
                    let mut request = ReleaseRequest::new(name, identity, fence);
                    request.memo = memo.as_ref();
                    store.release(request.limit(limit)).await.map(|outcome| match outcome {
                        ReleaseOutcome::Released => Answer::Released,
                        ReleaseOutcome::NotHolder(_) => Answer::NotHolder,
                    })
                }
            }
        };
        self.shared().counters.of(operation(op)).begin();
        // Now, and it is polled after this: the lease counts from here.
        let sent = self.now();
        self.machine.began(op, sent);
        let (payload, memo) = told;
        self.call = Some(Call { op, sent, payload, memo, future: Foreign::new(Box::pin(future)) });
        self.show_state();
    }

    fn answered(&mut self, now: BootTime, said: std::thread::Result<Said>) {
        let Some(Call { op, sent, payload, memo, .. }) = self.call.take() else { return };
        let took = now.since(sent);
        let counters = &self.shared().counters;
        let answer = match said {
            Ok(Ok(answer)) => {
                let ended = match &answer {
                    Answer::Held(_) | Answer::Lost(_) | Answer::NotHolder => Ended::Expected,
                    _ => Ended::Answered,
                };
                counters.of(operation(op)).end(ended, took);
                self.shared().failed(None);
                answer
            }
            Ok(Err(error)) => {
                counters.of(operation(op)).end(Ended::Failed, took);
                let failure = match &error {
                    StoreError::NotApplied(_) => Failure::NotApplied,
                    StoreError::Ambiguous(_) => Failure::Ambiguous,
                    StoreError::Fatal(_) => Failure::Fatal,
                };
                self.told_of_failure(op, Some(error));
                Answer::Failed(failure)
            }
            Err(panic) => {
                counters.of(operation(op)).end(Ended::Failed, took);
                let what = panic.downcast_ref::<&str>().map_or("it panicked", |what| what);
                self.told_of_failure(op, Some(StoreError::Ambiguous(what.into())));
                Answer::Failed(Failure::Panicked)
            }
        };
        match (op, &answer) {
            (Op::Renew(_), Answer::Renewed(_)) => {
                count(&counters_of(&self.leadership).renewed);
                counters_of(&self.leadership).renewed_at.store(sent.as_nanos(), Relaxed);
                self.is_told(payload, memo);
            }
            (Op::Acquire, Answer::Acquired(_)) => self.is_told(payload, None),
            (Op::Release(_), Answer::Released) => self.is_told(None, memo),
            _ => {}
        }
        if let Some(vigil) = &mut self.vigil
            && !self.machine.is_apart(now)
        {
            match &answer {
                Answer::Acquired(record) | Answer::Held(record) => {
                    vigil.heard(Some(record));
                    self.record = Some(record.clone());
                }
                Answer::Renewed(record) => vigil.heard(Some(record)),
                Answer::Inspected(record) | Answer::Lost(record) => vigil.heard(record.as_ref()),
                Answer::Released | Answer::NotHolder | Answer::Failed(_) => {}
            }
        }
        let is_said = !matches!(answer, Answer::Failed(_));
        self.machine.answer(now, &mut edge::unit, answer);
        self.obey(now);
        if is_said {
            // The machine says only what is new, and has by now. This is when it was seen.
            let leader = self.leadership.leader();
            self.shared().see(leader, now);
        }
    }

    /// What the store was told need not be told again, unless it was changed meanwhile.
    fn is_told(&mut self, payload: Option<Bytes>, memo: Option<Bytes>) {
        self.payload.take_if(|current| Some(&*current) == payload.as_ref());
        self.memo.take_if(|current| Some(&*current) == memo.as_ref());
    }

    fn told_of_failure(&mut self, op: Op, error: Option<StoreError>) {
        let operation = operation(op);
        if operation == Operation::Renew {
            count(&self.shared().counters.renewals_failed);
        }
        let name = &self.config.name;
        let text = match &error {
            Some(error) => {
                let text = text_of(error);
                if error.is_fatal() {
                    tracing::warn!(target: "buttress_leadership", lease = %name, ?operation, error = text, "lease store refuses");
                } else {
                    tracing::debug!(target: "buttress_leadership", lease = %name, ?operation, error = text, "lease store failed");
                }
                text
            }
            None => {
                tracing::debug!(target: "buttress_leadership", lease = %name, ?operation, "lease store took too long");
                "the lease store did not answer in time".to_owned()
            }
        };
        self.shared().failed(Some(text));
        let error = error.map(std::sync::Arc::new);
        let last = Foreign::new(error.clone());
        self.tell(Event::StoreFailed { operation, error });
        drop(last);
    }

    // === Effects ===

    fn obey(&mut self, now: BootTime) {
        loop {
            let effects = self.machine.effects();
            if effects.is_empty() {
                break;
            }
            effects.into_iter().for_each(|effect| self.take_effect(now, effect));
        }
        self.show_state();
    }

    fn take_effect(&mut self, now: BootTime, effect: Effect) {
        match effect {
            Effect::Start { fence, valid_until } => self.start(now, fence, valid_until),
            Effect::Extend { fence, valid_until } => {
                if let Some(term) = &self.term {
                    term.extend(valid_until);
                }
                self.tell(Event::Renewed { fence, valid_until });
            }
            Effect::Close { fence, reason } => self.close(now, fence, reason),
            Effect::Cancel => self.cancel(now),
            Effect::End { fence, end } => self.end_term(now, fence, end),
            Effect::Abandon { op } => {
                if let Some(call) = self.call.take() {
                    let counters = self.shared().counters.of(operation(op));
                    counters.end(Ended::TimedOut, now.since(call.sent));
                }
                self.told_of_failure(op, None);
            }
            Effect::Released { fence } => {
                tracing::info!(target: "buttress_leadership", lease = %self.config.name, %fence, "lease released");
                self.tell(Event::Released { fence });
            }
            Effect::Leader(leader) => {
                if leader.is_some() {
                    count(&self.shared().counters.leader_changes);
                }
                self.shared().see(leader.clone(), now);
                let name = &self.config.name;
                if let Some(LeaderInfo { identity, fence, .. }) = &leader {
                    tracing::info!(target: "buttress_leadership", lease = %name, %identity, %fence, "new leader");
                } else {
                    tracing::info!(target: "buttress_leadership", lease = %name, "nobody leads");
                }
                self.tell(Event::NewLeader(leader));
            }
            Effect::Regression { fence, highest } => {
                tracing::error!(
                    target: "buttress_leadership", lease = %self.config.name, %fence, %highest,
                    "lease store went back: its tokens are of no use until they are greater again"
                );
                self.tell(Event::FenceRegression { fence, highest });
            }
            Effect::Namesake { fence } => {
                let LeaseConfig { name, identity, .. } = &self.config;
                tracing::error!(
                    target: "buttress_leadership", lease = %name, %identity, %fence,
                    "another elector has this identity"
                );
                self.tell(Event::IdentityInUse { fence });
            }
            Effect::ShortGrant { granted } => {
                tracing::error!(
                    target: "buttress_leadership", lease = %self.config.name, ?granted,
                    "lease store grants too little time"
                );
                self.tell(Event::GrantTooShort { granted });
            }
        }
    }

    fn start(&mut self, now: BootTime, fence: FencingToken, valid_until: BootTime) {
        let term = Arc::new(Term::of(self.leadership.clone(), fence, valid_until));
        // A leader does not listen, and whoever tells it holds a connection for that.
        self.changes = None;
        let shared = self.shared();
        shared.counters.renewed_at.store(now.as_nanos(), Relaxed);
        let mut degraded = None;
        if let (Some(vigil), Some(record)) = (&mut self.vigil, self.record.take()) {
            let (memo, by) = vigil.started(&record);
            (self.memo, degraded) = (Some(memo), by);
        }
        let shared = &self.leadership.shared;
        // Before anybody is let in.
        shared.degrade(degraded);
        if !shared.open(&term) {
            // Whoever holds us has let go. We are dropped as soon as we wait.
            return term.end();
        }
        count(&shared.counters.terms_started);
        shared.stand(|standing| {
            standing.state = State::Leader;
            standing.term = Some(fence);
        });
        self.term = Some(Arc::clone(&term));
        let LeaseConfig { name, identity, .. } = &self.config;
        tracing::info!(target: "buttress_leadership", lease = %name, %identity, %fence, "term started");
        self.tell(Event::TermStarted { fence, valid_until });
        if degraded.is_some() {
            self.told_of_degradation(fence, degraded);
        }
        let Some(work) = &mut self.work else { return };
        match guarded(|| work(LeaderTerm::new(Arc::clone(&term)))) {
            Ok(work) => {
                let runtime = self.work_on.clone().unwrap_or_else(Handle::current);
                let fence = Fence::new(self.config.name.id(), fence);
                let ambient = Ambient::default().with_fence(Some(fence));
                let working = Working::new(&self.leadership.shared);
                let task = runtime.spawn(counted(working, ambient.scope(while_valid(term, work))));
                self.shared().works(task.abort_handle());
                self.task = Some(task);
            }
            Err(_) => self.machine.resign(now, ResignReason::WorkPanicked),
        }
    }

    fn close(&mut self, now: BootTime, fence: FencingToken, reason: ResignReason) {
        if let Some(term) = &self.term {
            term.close(Shut::Leaving);
        }
        self.shared().asked_to_end(now);
        if let Some(vigil) = &mut self.vigil {
            self.memo = Some(vigil.leaves(&reason));
        }
        self.shared().state(State::Resigning);
        tracing::info!(target: "buttress_leadership", lease = %self.config.name, %fence, %reason, "leader leaves");
        self.tell(Event::Resigning { fence, reason });
    }

    /// Closes the gate, drops the work, and tells requests to go: in this order, and before anything else.
    fn cancel(&mut self, now: BootTime) {
        if let Some(term) = &self.term {
            term.end();
        }
        self.shared().asked_to_end(now);
        if let Some(task) = &self.task
            && !is_planted(Plant::WorkIsNotDropped)
        {
            task.abort();
        }
    }

    fn end_term(&mut self, now: BootTime, fence: FencingToken, end: TermEnd) {
        if let Some(term) = &self.term {
            count_many(&self.shared().counters.expired_in_flight, term.in_flight());
        }
        self.cancel(now);
        let shared = self.shared();
        shared.gate.set(None);
        shared.degrade(None);
        shared.stand(|standing| standing.term = None);
        if let Some(vigil) = &mut self.vigil {
            vigil.ended();
            self.memo = match &end {
                TermEnd::Resigned(reason) => Some(vigil.left(reason)),
                // It is not ours to write into any more.
                _ => None,
            };
        }
        self.shared().counters.ended(&end);
        let reason = match &end {
            TermEnd::Resigned(reason) => Some(tracing::field::display(reason)),
            _ => None,
        };
        tracing::info!(
            target: "buttress_leadership", lease = %self.config.name, %fence, %end, reason, "term ended"
        );
        self.tell(Event::TermEnded { fence, end });
        if self.is_once {
            self.is_stopping = true;
            self.machine.stop(now);
        }
    }

    fn work_ended(&mut self, now: BootTime, how: Result<WorkEnd, JoinError>) {
        self.task = None;
        let reason = match how {
            // Our own look at the clock was a moment before, and is not what counts.
            Ok(WorkEnd::Over) => return self.machine.over(now, &mut edge::unit),
            Ok(WorkEnd::Returned) => ResignReason::WorkReturned,
            Err(error) if error.is_panic() => ResignReason::WorkPanicked,
            // While it led, nobody has but the runtime, as it was shut down.
            Err(_) => ResignReason::StuckRuntime,
        };
        // Whoever does not lead any more has nothing to leave.
        self.machine.resign(now, reason);
    }

    fn tell(&mut self, event: Event) {
        if let Some(observer) = &mut self.observer {
            observer(&event);
        }
    }

    fn show_state(&self) {
        let until = self.machine.cools_until().map_or(0, BootTime::as_nanos);
        self.shared().counters.cools_until.store(until, Relaxed);
        self.shared().state(self.machine.state());
    }

    /// Waits for what was dropped, but not for ever: it may block its thread.
    async fn end(&mut self) {
        let now = self.now();
        if let Some(task) = &mut self.task {
            self.leadership.shared.asked_to_end(now);
            task.abort();
            let _ = timeout(self.config.cancel_grace, task).await;
        }
    }
}

/// Fails closed: however the elector ends, nobody leads here any more.
impl<S> Drop for Driver<S> {
    fn drop(&mut self) {
        if let Some(term) = &self.term {
            term.end();
        }
        self.leadership.shared.asked_to_end(self.leadership.clock().now());
        if let Some(task) = &self.task {
            task.abort();
        }
        if let Some(probe) = &self.probe {
            probe.abort();
        }
        let shared = &self.leadership.shared;
        shared.gate.set(None);
        // It is told of until it is told to have ended.
        let untold = shared.standing.borrow().term;
        if let Some(fence) = untold {
            let end = TermEnd::Dropped;
            shared.counters.ended(&end);
            let event = Event::TermEnded { fence, end };
            if let Some(observer) = &mut self.observer {
                // It may be its own panic that drops us.
                let _ = guarded(|| observer(&event));
            }
        }
        if let Some(call) = &self.call {
            let counters = shared.counters.of(operation(call.op));
            counters.end(Ended::Cancelled, self.leadership.clock().now().since(call.sent));
        }
    }
}

/// Counts as work that runs, until it is gone: whether or not there is an elector still to see it go.
struct Working(std::sync::Arc<Shared>);

async fn counted<T>(_working: Working, work: impl Future<Output = T>) -> T {
    work.await
}

impl Working {
    fn new(shared: &std::sync::Arc<Shared>) -> Self {
        shared.counters.cancelled_at.store(0, Relaxed);
        shared.counters.work_active.store(1, Relaxed);
        Self(std::sync::Arc::clone(shared))
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.0.counters.work_active.store(0, Relaxed);
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        let shared = &self.0.shared;
        shared.counters.running.store(0, Relaxed);
        shared.stand(|standing| {
            standing.state = State::Stopped;
            standing.term = None;
            standing.degraded = None;
        });
    }
}

/// Polls the work while its term is valid, and drops it then, by itself: the elector may get no turn in time.
async fn while_valid(term: Arc<Term>, work: impl Future<Output = ()>) -> WorkEnd {
    let (mut work, mut over) = (pin!(work), pin!(term.over()));
    let how = std::future::poll_fn(|cx| {
        // Whatever woke it, and however long this process stood still.
        if !is_planted(Plant::WorkIsNotDropped) && over.as_mut().poll(cx).is_ready() {
            return Poll::Ready(WorkEnd::Over);
        }
        work.as_mut().poll(cx).map(|()| WorkEnd::Returned)
    })
    .await;
    if matches!(how, WorkEnd::Over) {
        // A renewal that is heard at this instant does not bring it back.
        term.end();
    }
    how
}

const fn operation(op: Op) -> Operation {
    match op {
        Op::Acquire => Operation::Acquire,
        Op::Inspect => Operation::Inspect,
        Op::Renew(_) => Operation::Renew,
        Op::Release(_) => Operation::Release,
    }
}

fn counters_of(leadership: &Leadership) -> &crate::metrics::Counters {
    &leadership.shared.counters
}

fn count_many(counter: &std::sync::atomic::AtomicU64, many: u64) {
    counter.fetch_add(many, Relaxed);
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use super::*;
    use crate::{LeaseName, MemoryStore};

    #[tokio::test(start_paused = true)]
    async fn nothing_is_kept_alive_once_nobody_asks_any_more() {
        let config = LeaseConfig::new(LeaseName::new("a").unwrap());
        for is_stopped in [true, false] {
            let store = MemoryStore::new();
            let elector = Elector::new(store, config.clone()).unwrap().lead(|term| async move {
                term.cancelled().await;
            });
            let leadership = elector.leadership();
            let alive = std::sync::Arc::downgrade(&leadership.shared);
            let task = elector.spawn();
            let mut watch = leadership.watch();
            watch.wait_for(|standing| standing.term.is_some()).await.unwrap();
            drop((leadership.hold().unwrap(), leadership));
            if is_stopped {
                task.stop().await
            } else {
                drop(task)
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(alive.upgrade().is_none());
        }
    }
}
