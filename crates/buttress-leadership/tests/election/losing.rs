//! How terms end that nobody wanted to end.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::Poll,
};

use buttress_core::{BoxError, edge};
use buttress_leadership::{
    AcquireOutcome, AcquireRequest, Changes, Elector, Fault, FaultyStore, LeaseName, LeaseRecord,
    LeaseStore, MemoryStore, NotLeading, Operation, ReleaseOutcome, ReleaseRequest, RenewOutcome,
    RenewRequest, ResignPolicy, StoreCapabilities, StoreError, TermEnd,
};
use futures_util::StreamExt as _;
use tokio::time::sleep;

use crate::common::*;

// kubernetes/kubernetes#23731, LDR-01
#[tokio::test(start_paused = true)]
async fn the_first_no_of_the_store_ends_the_term_before_anything_else() {
    let store = store();
    let leader = Candidate::stands(&store, config());
    let fence = leader.leads().await;
    store.inner().evict(&name());
    let (thief, _) = takes_over(&store, secs(60)).await;
    leader.is_done().await;
    let (at, end) = leader.told.ended().unwrap();
    let TermEnd::Lost { by: Some(by) } = end else { panic!("{end}") };
    assert!(by.identity == thief && by.fence > fence && by.payload == "thief");
    assert_eq!(at, *begun(&store, Operation::Renew).last().unwrap(), "in the poll that heard it");
    let error = leader.leadership.check().unwrap_err();
    assert_eq!(error.leader().map(|leader| &leader.identity), Some(&thief));
}

// kubernetes/kubernetes#44887
#[tokio::test(start_paused = true)]
async fn a_term_that_is_over_is_not_renewed() {
    let store = store();
    let leader = Candidate::stands(&store, config());
    leader.leads().await;
    store.inner().evict(&name());
    takes_over(&store, secs(600)).await;
    leader.is_done().await;
    let renewals = store.count(Operation::Renew);
    sleep(secs(60)).await;
    assert_eq!(store.count(Operation::Renew), renewals);
    assert!(store.count(Operation::Acquire) > 40, "it stands again");
}

// hashicorp/consul#18271
#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_does_not_keep_a_term_alive() {
    for fault in [Fault::black_hole(), Fault::black_hole_back()] {
        let store = store();
        let leader = Candidate::stands(&store, config());
        leader.leads().await;
        store.plan(move |_| fault);
        let valid_for = leader.valid_for();
        sleep(valid_for - millis(1)).await;
        assert!(leader.leadership.is_leader());
        sleep(millis(1)).await;
        assert!(!leader.leadership.is_leader(), "to the nanosecond: the gate reads the clock");
        sleep(TICK).await;
        assert_eq!(leader.told.terms(), ["started", "expired locally"]);
    }
}

// fabric8io/kubernetes-client#2860
#[tokio::test(start_paused = true)]
async fn a_store_that_can_only_be_read_makes_no_leader() {
    let store = store();
    let leader = Candidate::stands(&store, config());
    leader.leads().await;
    store.plan(|operation| match operation {
        Operation::Inspect => Fault::default(),
        _ => Fault::fatal(),
    });
    sleep(leader.valid_for() + TICK).await;
    assert_eq!(leader.told.terms(), ["started", "expired locally"]);
}

// etcd-io/etcd#12528, sibson/redbeat#163
#[tokio::test(start_paused = true)]
async fn a_record_that_is_gone_ends_the_term_with_the_next_renewal() {
    let store = store();
    let leader = Candidate::stands(&store, config());
    let start = edge::now();
    leader.leads().await;
    store.inner().clear();
    leader.is_done().await;
    assert_eq!(leader.told.ended().unwrap().1, TermEnd::Lost { by: None });
    assert!(edge::now() - start <= secs(5) + TICK);
}

// etcd-io/etcd#16028
#[tokio::test(start_paused = true)]
async fn nobody_leads_with_a_token_that_is_no_greater_than_one_before() {
    let store = FaultyStore::new(MemoryStore::new().numbering_writes());
    let leader = Candidate::stands(&store, config());
    leader.leads().await;
    for _ in 0..3 {
        store.inner().evict(&name());
        leader.is_done().await;
        leader.leads().await;
    }
    let fence = leader.leadership.fence().unwrap();
    assert_eq!(fence.get(), 4);
    store.inner().clear();
    leader.is_done().await;
    assert_eq!(leader.leads().await.get(), 5, "the smaller ones are passed over");
    let regressions = leader.told.all().into_iter().filter_map(|(_, event)| match event {
        buttress_leadership::Event::FenceRegression { fence, highest } => {
            Some((fence.get(), highest.get()))
        }
        _ => None,
    });
    assert_eq!(regressions.collect::<Vec<_>>(), [(1, 4), (2, 4), (3, 4), (4, 4)]);
}

// etcd-io/etcd#16028
#[tokio::test(start_paused = true)]
async fn tokens_that_a_store_has_forgotten_are_remembered_by_who_saw_them() {
    let store = store();
    let leader = Candidate::stands(&store, config());
    for term in 1..=4 {
        assert_eq!(leader.leads().await.get(), term);
        if term < 4 {
            store.inner().evict(&name());
            leader.is_done().await;
        }
    }
    let follower = Candidate::stands(&store.another_way(), config());
    sleep(secs(2)).await;
    // The one that counted is cut off as the store comes back without its data.
    store.plan(|_| Fault::not_applied());
    store.inner().clear();
    assert_eq!(follower.leads().await.get(), 5);
    assert_eq!(follower.told.terms(), ["started"], "and no smaller one was passed over");
}

// triggerdotdev/trigger.dev#4918, kuberhealthy/kuberhealthy#1533
#[tokio::test(start_paused = true)]
async fn whoever_loses_a_hundred_times_stands_a_hundred_times() {
    let store = store();
    let leader = Candidate::stands(&store, config());
    for term in 1..=100 {
        assert_eq!(leader.leads().await.get(), term);
        if term % 2 == 0 {
            store.inner().evict(&name());
        } else {
            store.plan(|_| Fault::not_applied());
        }
        leader.is_done().await;
        store.heal();
    }
    let terms = leader.told.terms();
    assert_eq!(terms.len(), 200);
    assert!(terms.chunks(2).all(|term| term[0] == "started" && term[1] != "started"));
}

// apache/iceberg#2034
#[tokio::test(start_paused = true)]
async fn a_panic_of_the_store_ends_the_term_and_not_the_elector() {
    let store = store();
    let leader = Candidate::stands(&store, config());
    leader.leads().await;
    store.next(Operation::Renew, Fault::panic());
    leader.is_done().await;
    assert_eq!(leader.told.ended().unwrap().1, TermEnd::StorePanicked);
    let again = leader.leads().await;
    assert_eq!(again.get(), 2, "under a new token, once the old lease was given back");
    assert!(!leader.task.is_finished());
}

/// Where a store of somebody's panics.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Acquire,
    Renew,
    Release,
    Inspect,
    /// A call that is given up, as it is dropped.
    CallDropped,
    /// An error, as it is asked for its text.
    ErrorText,
    Changes,
    /// What it answers, as it is asked for the next change.
    Change,
    /// As it is dropped.
    ChangesDropped,
}

/// A store that panics there, the first three times.
#[derive(Clone, Debug)]
struct Panics {
    inner: MemoryStore,
    place: Place,
    times: Arc<AtomicUsize>,
}

/// Something of such a store's.
#[derive(Debug)]
struct Thing(Panics, Place);

impl Panics {
    fn is_to(&self, place: Place) -> bool {
        self.place == place
            && self.times.fetch_update(Relaxed, Relaxed, |n| (n < 3).then_some(n + 1)).is_ok()
    }

    fn at(&self, place: Place) {
        assert!(!self.is_to(place), "planted");
    }
}

impl Drop for Thing {
    fn drop(&mut self) {
        self.0.at(self.1);
    }
}

impl std::fmt::Display for Thing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.at(Place::ErrorText);
        f.write_str("planted")
    }
}

impl std::error::Error for Thing {}

impl LeaseStore for Panics {
    fn capabilities(&self) -> StoreCapabilities {
        self.inner.capabilities()
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome, StoreError> {
        self.at(Place::Acquire);
        self.inner.acquire(request).await
    }

    async fn renew(&self, request: RenewRequest<'_>) -> Result<RenewOutcome, StoreError> {
        self.at(Place::Renew);
        let seldom = self.times.load(Relaxed) < 3;
        if self.place == Place::CallDropped && seldom {
            let _thing = Thing(self.clone(), Place::CallDropped);
            std::future::pending::<()>().await;
        }
        if self.place == Place::ErrorText && seldom {
            return Err(StoreError::NotApplied(Box::new(Thing(self.clone(), Place::ErrorText))));
        }
        self.inner.renew(request).await
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseOutcome, StoreError> {
        self.at(Place::Release);
        self.inner.release(request).await
    }

    async fn inspect(&self, name: &LeaseName) -> Result<Option<LeaseRecord>, StoreError> {
        self.at(Place::Inspect);
        self.inner.inspect(name).await
    }

    fn changes(&self, name: &LeaseName) -> Changes {
        self.at(Place::Changes);
        let (panics, mut inner) = (self.clone(), self.inner.changes(name));
        let thing = Thing(self.clone(), Place::ChangesDropped);
        Box::pin(futures_util::stream::poll_fn(move |cx| {
            let _ = &thing;
            panics.at(Place::Change);
            // It ends, so that it is dropped.
            let is_over = panics.place == Place::ChangesDropped;
            if is_over { Poll::Ready(None) } else { inner.poll_next_unpin(cx) }
        }))
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_panics_wherever_it_can_ends_no_election() {
    use Place::*;
    for place in
        [Acquire, Renew, Release, Inspect, CallDropped, ErrorText, Changes, Change, ChangesDropped]
    {
        let inner = MemoryStore::new();
        let other = Elector::new(inner.clone(), config()).unwrap().spawn();
        leads(other.leadership()).await;
        let store = Panics { inner, place, times: Arc::default() };
        let times = Arc::clone(&store.times);
        // Until its signal is known it looks, and does not ask.
        let ready = || async { Ok::<_, BoxError>(()) };
        let policy = ResignPolicy::new().readiness("ready", ready);
        let elector = Elector::new(store, config()).unwrap().resign_when(policy).unwrap();
        let task = elector.spawn();
        sleep(secs(60)).await;
        drop(other);
        leads(task.leadership()).await;
        sleep(secs(60)).await;
        leads(task.leadership()).await;
        task.leadership().resign();
        sleep(secs(60)).await;
        leads(task.leadership()).await;
        assert_eq!(times.load(Relaxed), 3, "{place:?}");
        assert!(!task.is_finished(), "{place:?}");
        task.stop().await;
    }
}

// LDR-01
#[tokio::test(start_paused = true)]
async fn an_elector_that_is_dropped_leaves_nobody_in_charge() {
    let store = store();
    let works = Arc::new(AtomicUsize::new(0));
    let leader = deaf(&store, &works);
    leader.leads().await;
    assert_eq!(works.load(Relaxed), 1);
    let Candidate { leadership, task, told, .. } = leader;
    drop(task);
    sleep(TICK).await;
    assert_eq!(told.terms(), ["started", "dropped"]);
    assert_eq!(leadership.check(), Err(NotLeading::NotLeader { leader: None }));
    assert_eq!(works.load(Relaxed), 0, "the work was dropped");
    assert!(store.inspect(&name()).await.unwrap().unwrap().holder.is_some(), "it ends by itself");
}

// apache/druid#16528
#[tokio::test(start_paused = true)]
async fn nobody_stands_again_while_the_work_of_the_last_term_goes_on() {
    let store = store();
    let mut other = tokio::runtime::Builder::new_multi_thread();
    let other = other.worker_threads(1).enable_time().build().unwrap();
    let runtime = other.handle().clone();
    let (began, begins) = std::sync::mpsc::channel();
    let (go_on, blocks) = std::sync::mpsc::channel::<()>();
    let mut blocks = Some(blocks);
    // That runtime's clock is not paused: it would not tick for what is a minute here.
    let unwatched = config().probe_deadline(std::time::Duration::MAX);
    let leader = Candidate::with(&store, unwatched, |elector| {
        elector.work_on(runtime).lead(move |_| {
            let (began, blocks) = (began.clone(), blocks.take());
            async move {
                began.send(()).unwrap();
                if let Some(blocks) = blocks {
                    // It blocks its thread: nobody can drop it.
                    let _ = blocks.recv();
                }
                std::future::pending::<()>().await;
            }
        })
    });
    leader.leads().await;
    begins.recv().unwrap();
    store.inner().evict(&name());
    leader.is_done().await;
    let asked = store.count(Operation::Acquire);
    sleep(secs(60)).await;
    assert_eq!(store.count(Operation::Acquire), asked);
    let goes_on = leader.leadership.metrics().work_cancelled_still_active.unwrap();
    assert!(secs(60) <= goes_on && goes_on <= secs(61), "{goes_on:?}");
    go_on.send(()).unwrap();
    // No timer: that runtime takes the machine's time for it, and this clock would be there first.
    let mut watch = leader.leadership.watch();
    let again = watch.wait_for(|standing| standing.term.is_some()).await.unwrap().term;
    assert_eq!(again.unwrap().get(), 2);
    assert_eq!(leader.leadership.metrics().work_cancelled_still_active, None);
    drop(leader);
    other.shutdown_background();
}

#[tokio::test(start_paused = true)]
async fn work_that_runs_on_after_its_elector_is_told_of_until_it_is_gone() {
    let store = store();
    let other = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_time()
        .build()
        .unwrap();
    let runtime = other.handle().clone();
    let (began, begins) = std::sync::mpsc::channel();
    let (go_on, blocks) = std::sync::mpsc::channel::<()>();
    let mut blocks = Some(blocks);
    let unwatched = config().probe_deadline(std::time::Duration::MAX);
    let leader = Candidate::with(&store, unwatched, |elector| {
        elector.work_on(runtime).lead(move |_| {
            let (began, blocks) = (began.clone(), blocks.take());
            async move {
                began.send(()).unwrap();
                let _ = blocks.expect("there is one term").recv();
                std::future::pending::<()>().await;
            }
        })
    });
    leader.leads().await;
    begins.recv().unwrap();
    let Candidate { leadership, task, .. } = leader;
    drop(task);
    sleep(secs(60)).await;
    let metrics = leadership.metrics();
    assert!(metrics.work_active && !metrics.running);
    assert_eq!(metrics.work_cancelled_still_active, Some(secs(60)));
    go_on.send(()).unwrap();
    // It waits for its workers.
    std::thread::spawn(move || drop(other)).join().unwrap();
    let metrics = leadership.metrics();
    assert!(!metrics.work_active && metrics.work_cancelled_still_active.is_none());
}

// cilium/cilium#42920, LDR-01
#[tokio::test(start_paused = true)]
async fn work_that_does_not_listen_is_dropped_when_the_lease_could_be_over() {
    let store = store();
    let works = Arc::new(AtomicUsize::new(0));
    let leader = deaf(&store, &works);
    leader.leads().await;
    assert!(leader.leadership.metrics().work_active);
    store.plan(|_| Fault::black_hole());
    sleep(leader.valid_for() + TICK).await;
    assert_eq!(works.load(Relaxed), 0);
    assert!(!leader.leadership.metrics().work_active);
}

// rust-lang/rust#87906
#[tokio::test(start_paused = true)]
async fn what_was_suspended_does_not_lead_on() {
    let store = store();
    let leader = Candidate::stands(&store, config());
    leader.leads().await;
    leader.clock.suspend(secs(3600));
    assert!(!leader.leadership.is_leader(), "no timer has fired yet");
    assert!(leader.leadership.admit(secs(0)).is_err());
    sleep(secs(1) + TICK).await;
    assert_eq!(leader.told.ended().unwrap().1, TermEnd::ExpiredLocally);
}

// rust-lang/rust#87906
#[tokio::test(start_paused = true)]
async fn work_that_was_suspended_does_not_take_another_step() {
    let store = store();
    let steps = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&steps);
    let leader = Candidate::with(&store, config(), |elector| {
        elector.lead(move |_| {
            let steps = Arc::clone(&counts);
            async move {
                loop {
                    sleep(millis(7)).await;
                    steps.fetch_add(1, Relaxed);
                }
            }
        })
    });
    leader.leads().await;
    let inside = leader.leadership.hold().unwrap();
    sleep(millis(1_100)).await;
    let taken = steps.load(Relaxed);
    assert!(taken > 100);
    // Its elector is not due for most of a second, by its timer.
    leader.clock.suspend(secs(3600));
    inside.over().await;
    sleep(millis(10)).await;
    assert_eq!(steps.load(Relaxed), taken);
    assert_eq!(leader.told.terms(), ["started", "expired locally"]);
}

// patroni/patroni#2787
#[tokio::test(start_paused = true)]
async fn who_wakes_after_its_successor_begins_anew() {
    let store = store();
    let fences = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = Arc::clone(&fences);
    let leader = Candidate::with(&store, config(), |elector| {
        elector.lead(move |term| {
            seen.lock().unwrap().push(term.fence().get());
            async move { term.cancelled().await }
        })
    });
    leader.leads().await;
    // It stands still, the store does not.
    leader.clock.suspend(secs(20));
    store.inner().evict(&name());
    takes_over(&store, secs(5)).await;
    leader.is_done().await;
    leader.leads().await;
    assert_eq!(*fences.lock().unwrap(), [1, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_wall_clock_that_jumps_closes_the_gate_before_anybody_is_let_in() {
    let store = store();
    let leader = Candidate::stands(&store, config());
    leader.leads().await;
    sleep(millis(150)).await;
    leader.clock.jump_wall(millis(1_400));
    assert!(leader.leadership.is_leader(), "half of the margin is borne");
    sleep(millis(1_200)).await;
    leader.clock.jump_wall(millis(1_600));
    assert_eq!(leader.leadership.check(), Err(NotLeading::ClockAnomaly));
    // Nor whoever comes next, who does not look at the wall clock again, before the elector has.
    assert_eq!(leader.leadership.admit(secs(0)).unwrap_err(), NotLeading::ClockAnomaly);
    sleep(TICK).await;
    assert_eq!(leader.told.ended().unwrap().1, TermEnd::ClockAnomaly);
    assert_eq!(leader.leads().await.get(), 2);
}

/// A candidate whose work listens to nobody, and counts itself in `works` while it runs.
fn deaf(store: &Store, works: &Arc<AtomicUsize>) -> Candidate {
    let works = Arc::clone(works);
    Candidate::with(store, config(), |elector| {
        elector.lead(move |_| {
            let working = Working::new(&works);
            async move {
                let _working = working;
                std::future::pending::<()>().await;
            }
        })
    })
}

/// Counts itself while it is there.
struct Working(Arc<AtomicUsize>);

impl Working {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
