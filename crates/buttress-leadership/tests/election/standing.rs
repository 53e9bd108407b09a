//! Who gets the lease, and when.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use buttress_core::edge;
use buttress_leadership::{
    AcquireOutcome, AcquireRequest, Changes, Elector, Fault, FaultyStore, Fence, Identity,
    LeaseName, LeaseRecord, LeaseStore, MemoryStore, Operation, ReleaseOutcome, ReleaseRequest,
    RenewOutcome, RenewRequest, State, StoreCapabilities, StoreError,
};
use tokio::time::sleep;

use crate::common::*;

/// How long it takes until the one or the other leads.
async fn until_one_leads(candidates: &[Candidate]) -> Duration {
    let start = edge::now();
    while !candidates.iter().any(|candidate| candidate.leadership.is_leader()) {
        sleep(millis(1)).await;
    }
    edge::now() - start
}

fn leaders(candidates: &[Candidate]) -> usize {
    candidates.iter().filter(|candidate| candidate.leadership.is_leader()).count()
}

// kubernetes/kubernetes#22775
#[tokio::test(start_paused = true)]
async fn of_many_on_one_host_exactly_one_leads() {
    let store = store();
    let many: Vec<_> = (0..20).map(|_| Candidate::stands(&store, config())).collect();
    sleep(secs(60)).await;
    assert_eq!(leaders(&many), 1);
    let leads = many.iter().find(|candidate| candidate.leadership.is_leader()).unwrap();
    for candidate in &many {
        let seen = candidate.leadership.leader().unwrap();
        assert_eq!(&seen.identity, leads.leadership.identity());
        assert_eq!(Some(seen.fence), leads.leadership.fence());
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_that_ask_at_the_same_time_one_gets_it() {
    for round in 0..1_000 {
        let store = MemoryStore::new();
        let (name, payload) = (name(), Default::default());
        let (me, you) = (Identity::generate(), Identity::generate());
        let ask = |who| store.acquire(AcquireRequest::new(&name, who, secs(15), &payload));
        let (one, other) = tokio::join!(ask(&me), ask(&you));
        let won = |outcome| matches!(outcome, Ok(AcquireOutcome::Acquired(_)));
        assert!(won(one) != won(other), "round {round}");
    }
}

/// A store that counts those who listen to it.
struct Heard {
    inner: MemoryStore,
    listening: Arc<AtomicUsize>,
}

/// Somebody listens, while it is there.
struct Listening(Arc<AtomicUsize>);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl LeaseStore for Heard {
    fn capabilities(&self) -> StoreCapabilities {
        self.inner.capabilities()
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome, StoreError> {
        assert_eq!(self.listening.load(Relaxed), 1, "before it looks");
        assert_eq!(request.limit, Some(millis(2_500)));
        self.inner.acquire(request).await
    }

    async fn renew(&self, request: RenewRequest<'_>) -> Result<RenewOutcome, StoreError> {
        assert_eq!(request.limit, Some(millis(2_500)));
        self.inner.renew(request).await
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseOutcome, StoreError> {
        assert_eq!(request.limit, Some(millis(2_500)));
        self.inner.release(request).await
    }

    async fn inspect(&self, name: &LeaseName) -> Result<Option<LeaseRecord>, StoreError> {
        assert_eq!(self.listening.load(Relaxed), 1, "before it looks");
        self.inner.inspect(name).await
    }

    fn changes(&self, name: &LeaseName) -> Changes {
        assert_eq!(self.listening.fetch_add(1, Relaxed), 0, "it listens once");
        let (listening, mut inner) =
            (Listening(Arc::clone(&self.listening)), self.inner.changes(name));
        Box::pin(futures_util::stream::poll_fn(move |cx| {
            let _ = &listening;
            inner.as_mut().poll_next(cx)
        }))
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_listens_for_changes_and_who_leads_does_not() {
    let inner = MemoryStore::new();
    let stands = || {
        let listening = Arc::<AtomicUsize>::default();
        let store = Heard { inner: inner.clone(), listening: Arc::clone(&listening) };
        let task = Elector::new(store, config()).unwrap().spawn();
        (task, move || listening.load(Relaxed))
    };
    let (first, first_listens) = stands();
    first.leadership().watch().wait_for(|standing| standing.term.is_some()).await.unwrap();
    let (second, second_listens) = stands();
    sleep(secs(60)).await;
    assert_eq!((first_listens(), second_listens()), (0, 1));
    first.leadership().resign();
    sleep(TICK).await;
    assert!(second.leadership().is_leader(), "it was woken");
    sleep(secs(2)).await;
    assert_eq!((first_listens(), second_listens()), (1, 0), "each is what the other was");
    inner.evict(&name());
    sleep(secs(10)).await;
    assert!(second.leadership().is_leader(), "it stood again");
    assert_eq!((first_listens(), second_listens()), (1, 0));
    drop((first, second));
    sleep(TICK).await;
    assert_eq!((first_listens(), second_listens()), (0, 0));
}

// kubernetes-retired/contrib#690
#[tokio::test(start_paused = true)]
async fn what_followers_know_of_the_leader_has_an_age() {
    let store = store();
    let leader = Candidate::stands(&store, config());
    leader.leads().await;
    let way = store.another_way();
    let follower = Candidate::stands(&way, config());
    sleep(secs(3)).await;
    assert_eq!(follower.leadership.status().state, State::Follower);
    way.freeze();
    sleep(secs(60)).await;
    let status = follower.leadership.status();
    assert_eq!(status.leader.unwrap().identity, *leader.leadership.identity());
    assert!(secs(60) <= status.observation_age.unwrap());
    assert!(status.last_error.is_some());
}

// kubernetes/kubernetes#132599
#[tokio::test(start_paused = true)]
async fn a_leader_that_stops_is_replaced_by_the_next_look() {
    let store = store();
    let leader = Candidate::stands(&store, config());
    leader.leads().await;
    let others: Vec<_> = (0..2).map(|_| Candidate::stands(&store, config())).collect();
    sleep(secs(30)).await;
    leader.task.stop().await;
    let took = until_one_leads(&others).await;
    assert!(took <= millis(1_200) + TICK, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_stops_is_replaced_at_once_where_the_store_tells() {
    let store = FaultyStore::new(MemoryStore::new());
    let leader = Candidate::stands(&store, config());
    leader.leads().await;
    let way = store.another_way();
    let next = Candidate::stands(&way, config());
    sleep(secs(31)).await;
    let looks = way.count(Operation::Acquire);
    assert!(looks <= 8, "it need not look often: {looks}");
    // Not just after a look, which would be paced.
    let last = *begun(&way, Operation::Acquire).last().unwrap();
    tokio::time::sleep_until(last + millis(900)).await;
    leader.task.stop().await;
    let took = until_one_leads(&[next]).await;
    assert!(took <= TICK, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_dies_is_replaced_soon_after_its_lease() {
    for store in [store(), FaultyStore::new(MemoryStore::new())] {
        let leader = Candidate::stands(&store, config());
        leader.leads().await;
        let next = [Candidate::stands(&store, config())];
        sleep(secs(30)).await;
        let died = edge::now();
        let renewed = *begun(&store, Operation::Renew).last().unwrap();
        drop(leader);
        until_one_leads(&next).await;
        let from_renewal = edge::now() - renewed;
        assert!(secs(15) <= from_renewal, "{from_renewal:?}");
        assert!(from_renewal <= millis(16_200) + TICK && renewed <= died, "{from_renewal:?}");
    }
}

// kubernetes/client-go#448
#[tokio::test(start_paused = true)]
async fn when_all_are_started_anew_one_leads_soon_after_the_old_lease() {
    let store = store();
    let old: Vec<_> = (0..3).map(|_| Candidate::stands(&store, config())).collect();
    sleep(secs(30)).await;
    drop(old);
    let new: Vec<_> = (0..3).map(|_| Candidate::stands(&store, config())).collect();
    let took = until_one_leads(&new).await;
    assert!(took <= millis(16_200) + TICK, "{took:?}");
}

// etcd-io/etcd#13294
#[tokio::test(start_paused = true)]
async fn a_lease_that_lives_longer_than_it_should_is_waited_for() {
    let store = store();
    takes_over(&store, secs(100)).await;
    let follower = Candidate::stands(&store, config());
    sleep(secs(99)).await;
    assert!(follower.told.terms().is_empty());
    sleep(millis(2_300)).await;
    assert!(follower.leadership.is_leader());
}

// apache/curator#964
#[tokio::test(start_paused = true)]
async fn a_store_that_stands_still_makes_no_two_leaders() {
    let store = store();
    let many: Vec<_> = (0..3).map(|_| Candidate::stands(&store, config())).collect();
    sleep(secs(30)).await;
    for stands_still in [secs(1), secs(11), secs(15), secs(16), secs(60)] {
        store.freeze();
        let thaws = edge::now() + stands_still;
        while edge::now() < thaws {
            sleep(millis(50)).await;
            assert!(leaders(&many) <= 1);
        }
        store.thaw();
        for _ in 0..600 {
            sleep(millis(50)).await;
            assert!(leaders(&many) <= 1);
        }
        assert_eq!(leaders(&many), 1);
    }
}

// etcd-io/etcd#11457
#[tokio::test(start_paused = true)]
async fn what_a_paused_leader_had_in_hand_is_refused_by_its_token() {
    let store = store();
    let old = Candidate::stands(&store, config());
    let in_hand = old.leads().await;
    let way = store.another_way();
    let new = Candidate::stands(&way, config());
    store.plan(|_| Fault::black_hole());
    let next = new.leads().await;
    let (mut highest, mut writes) = (None, Vec::new());
    for (fence, text) in [(next, "new"), (in_hand, "old"), (next, "new again")] {
        if Some(fence) >= highest {
            highest = Some(fence);
            writes.push(text);
        }
    }
    assert_eq!(writes, ["new", "new again"]);
}

// greptimedb#7670, apache/curator#566
#[tokio::test(start_paused = true)]
async fn wherever_a_candidate_is_dropped_the_next_one_leads_in_time() {
    for after in (0..60).map(|n| millis(n * 200)) {
        let store = store();
        let slow = Fault::default().delay_before(millis(700)).delay_after(millis(700));
        store.plan(move |_| slow);
        let way = store.another_way();
        let first = Candidate::stands(&store, config());
        sleep(after).await;
        drop(first);
        let next = [Candidate::stands(&way, config())];
        let took = until_one_leads(&next).await;
        // A request that is under way when it is dropped may arrive all the same: here it does not.
        assert!(took <= millis(16_200) + TICK, "{took:?} after {after:?}");
        assert!(next[0].leadership.fence().unwrap().get() <= 2);
    }
}

// hashicorp/vault#2319
#[tokio::test(start_paused = true)]
async fn all_that_says_who_leads_says_the_same_at_every_instant() {
    let store = store();
    let leader = Candidate::stands(&store, config());
    leader.leads().await;
    store.plan(|_| Fault::black_hole());
    for _ in 0..13_000 {
        let (leadership, metrics) = (&leader.leadership, leader.leadership.metrics());
        let status = leadership.status();
        let says = [
            leadership.is_leader(),
            leadership.check().is_ok(),
            leadership.fence().is_some(),
            leadership.hold().is_ok(),
            status.is_leader,
            status.fence.is_some(),
            metrics.is_leader,
            metrics.lease_remaining.is_some(),
        ];
        assert!(says.iter().all(|one| *one == says[0]), "{says:?}");
        sleep(millis(1)).await;
    }
    assert!(!leader.leadership.is_leader());
}

#[tokio::test(start_paused = true)]
async fn the_work_of_a_term_has_its_token_at_hand() {
    let (tell, told) = tokio::sync::oneshot::channel();
    let mut tell = Some(tell);
    let candidate = Candidate::with(&store(), config(), |elector| {
        elector.lead(move |term| {
            let tell = tell.take();
            async move {
                let at_hand = Fence::current(name().id());
                tell.expect("there is one term").send((at_hand, term.fence())).unwrap();
                term.cancelled().await;
            }
        })
    });
    let (at_hand, fence) = told.await.unwrap();
    assert_eq!(at_hand, Some(fence));
    drop(candidate);
}

// kubernetes/kubernetes#22775, kubernetes-csi/external-provisioner#690
#[tokio::test(start_paused = true)]
async fn two_of_one_identity_do_not_take_the_lease_from_each_other() {
    let (store, config) = (store(), config());
    let one = Candidate::stands(&store, config.clone());
    let fence = one.leads().await;
    let other = Candidate::stands(&store, config);
    for _ in 0..600 {
        sleep(millis(100)).await;
        assert_eq!(one.leadership.fence(), Some(fence));
        assert!(!other.leadership.is_leader());
    }
    assert_eq!(store.count(Operation::Release), 0);
    one.task.stop().await;
    assert!(fence < other.leads().await, "once it is free, the other one leads");
}
