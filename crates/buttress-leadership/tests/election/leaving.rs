//! How a leader leaves by itself.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use buttress_core::edge;
use buttress_leadership::{
    Event, Fault, FaultyStore, LeaseStore, MemoryStore, NotLeading, OnDrainTimeout, Operation,
    ResignReason, State, TermEnd,
};
use tokio::time::{Instant, sleep};

use crate::common::*;

fn released(told: &Told) -> Option<Instant> {
    told.all()
        .into_iter()
        .find_map(|(at, event)| matches!(event, Event::Released { .. }).then_some(at))
}

async fn holder(store: &Store) -> bool {
    store.inner().inspect(&name()).await.unwrap().is_some_and(|record| record.leader().is_some())
}

#[tokio::test(start_paused = true)]
async fn whoever_leaves_lets_nobody_in_holds_on_for_those_who_are_in_and_then_lets_go() {
    let store = store();
    let leader = Candidate::stands(&store, config());
    let fence = leader.leads().await;
    let inside = leader.leadership.admit(secs(1)).unwrap();
    leader.leadership.resign();
    sleep(TICK).await;
    assert_eq!(leader.leadership.check(), Err(NotLeading::Resigning));
    assert_eq!(leader.leadership.admit(secs(0)).unwrap_err(), NotLeading::Resigning);
    sleep(secs(8)).await;
    assert!(store.count(Operation::Renew) > 0 && holder(&store).await, "it is held, and renewed");
    assert_eq!(inside.check(secs(1)), Ok(fence), "for those who are in");
    let one_more = inside.clone();
    drop(inside);
    sleep(TICK).await;
    assert!(holder(&store).await, "work that was spawned is waited for");
    drop(one_more);
    sleep(TICK).await;
    assert!(!holder(&store).await);
    let end = TermEnd::Resigned(ResignReason::Operator);
    assert_eq!(leader.told.ended().unwrap().1, end);
    let events = leader.told.all().into_iter().map(|(_, event)| match event {
        Event::Resigning { .. } => "resigning",
        Event::TermEnded { .. } => "ended",
        Event::Released { .. } => "released",
        _ => "",
    });
    let events: Vec<_> = events.filter(|event| !event.is_empty()).collect();
    assert_eq!(events, ["resigning", "ended", "released"]);
}

// kubernetes/kubernetes#139504
#[tokio::test(start_paused = true)]
async fn a_lease_is_not_given_back_while_somebody_is_in() {
    let store = store();
    let leader = Candidate::stands(&store, config());
    leader.leads().await;
    sleep(secs(40)).await;
    let inside = leader.leadership.hold().unwrap();
    let start = edge::now();
    leader.leadership.resign();
    inside.over().await;
    let told = edge::now() - start;
    assert!(secs(10) <= told && told <= secs(10) + TICK, "who is in is told to go: {told:?}");
    assert!(inside.check(secs(0)).is_err());
    sleep(secs(2)).await;
    let renewals = store.count(Operation::Renew);
    assert_eq!(leader.told.terms(), ["started", "resigned"]);
    while holder(&store).await {
        sleep(millis(10)).await;
    }
    let held = edge::now() - start;
    assert!(secs(15) <= held && held <= secs(27), "it ended by itself: {held:?}");
    assert_eq!((store.count(Operation::Renew), store.count(Operation::Release)), (renewals, 0));
}

#[tokio::test(start_paused = true)]
async fn what_ends_late_is_still_a_reason_to_give_the_lease_back() {
    let store = store();
    let leader = Candidate::stands(&store, config());
    leader.leads().await;
    let inside = leader.leadership.hold().unwrap();
    leader.leadership.resign();
    sleep(secs(13)).await;
    assert!(holder(&store).await);
    drop(inside);
    sleep(TICK).await;
    assert!(!holder(&store).await);
}

#[tokio::test(start_paused = true)]
async fn whoever_asks_for_it_gives_the_lease_back_beside_what_goes_on() {
    let store = store();
    let anyway =
        config().on_drain_timeout(OnDrainTimeout::ReleaseAnyway).drain(secs(2), millis(500));
    let leader = Candidate::stands(&store, anyway);
    leader.leads().await;
    let _inside = leader.leadership.hold().unwrap();
    let start = edge::now();
    leader.leadership.resign();
    sleep(secs(3)).await;
    let took = released(&leader.told).unwrap() - start;
    assert!(millis(2_500) <= took && took <= millis(2_500) + 2 * TICK, "{took:?}");
}

// ray-project/ray#63773, redisson/redisson#7272
#[tokio::test(start_paused = true)]
async fn after_a_release_nothing_is_asked_of_the_store_but_who_leads_until_the_cooldown_is_over() {
    let store = store();
    let leader = Candidate::stands(&store, config());
    leader.leads().await;
    // One of the renewals is under way when the leader leaves.
    store.plan(|operation| match operation {
        Operation::Renew => Fault::default().delay_before(secs(2)),
        _ => Fault::default(),
    });
    sleep(secs(6)).await;
    leader.leadership.resign();
    while released(&leader.told).is_none() {
        sleep(millis(10)).await;
    }
    let (at, calls) = (edge::now(), store.calls().len());
    assert_eq!(store.calls().last().unwrap().operation, Operation::Release);
    sleep(secs(24) - millis(100)).await;
    let asked = store.calls().split_off(calls);
    assert!(asked.iter().all(|call| call.operation == Operation::Inspect), "{asked:?}");
    assert!(asked.windows(2).all(|pair| secs(1) <= pair[1].at - pair[0].at), "{asked:?}");
    leader.leads().await;
    let cooled = edge::now() - at;
    assert!(secs(24) - TICK <= cooled && cooled <= secs(36) + TICK, "{cooled:?}");
}

#[tokio::test(start_paused = true)]
async fn whoever_has_just_left_learns_who_leads_now() {
    for watches in [false, true] {
        let memory = MemoryStore::new();
        let store = FaultyStore::new(if watches { memory } else { memory.without_watch() });
        let leader = Candidate::stands(&store, config());
        leader.leads().await;
        let next = Candidate::stands(&store, config());
        leader.leadership.resign();
        next.leads().await;
        sleep(millis(1_200) + TICK).await;
        assert_eq!(leader.leadership.metrics().state, State::CoolDown);
        let seen = leader.leadership.leader().unwrap();
        assert_eq!(&seen.identity, next.leadership.identity());
    }
}

// kubernetes/kubernetes#65666
#[tokio::test(start_paused = true)]
async fn whoever_leaves_again_and_again_stays_away_for_longer_and_longer() {
    let store = store();
    let leader = Candidate::stands(&store, config());
    let mut away = Vec::new();
    for _ in 0..7 {
        leader.leads().await;
        leader.leadership.resign_because("database");
        leader.is_done().await;
        let left = edge::now();
        leader.leads().await;
        away.push((edge::now() - left).as_secs_f64());
        leader.leadership.resign();
        leader.is_done().await;
    }
    // The odd ones: 30, 120, 480 s, and then the most.
    for (away, base) in away.iter().zip([30.0, 120.0, 480.0, 600.0, 600.0, 600.0, 600.0]) {
        assert!((base * 0.8..=base * 1.2 + 0.01).contains(away), "{away} of {base}");
    }
    leader.leads().await;
    sleep(secs(600)).await;
    leader.leadership.resign();
    leader.is_done().await;
    let left = edge::now();
    leader.leads().await;
    let away = edge::now() - left;
    assert!(away <= millis(36_010), "a term that lasted is a new beginning: {away:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_never_to_come_back_stays_away_and_can_be_stopped() {
    for seed in 0..8 {
        edge::seed(seed);
        let store = store();
        let config = config().cooldown(Duration::MAX, Duration::MAX);
        let leader = Candidate::stands(&store, config);
        leader.leads().await;
        leader.leadership.resign();
        sleep(secs(10_000)).await;
        assert_eq!(leader.leadership.metrics().state, State::CoolDown);
        assert!(!leader.task.is_finished());
        leader.task.stop().await;
        assert_eq!(leader.leadership.metrics().state, State::Stopped);
    }
}

#[tokio::test(start_paused = true)]
async fn work_that_returns_gives_up_its_term() {
    let store = store();
    let leader = Candidate::with(&store, config(), |elector| elector.lead(|_| sleep(secs(7))));
    leader.leads().await;
    leader.is_done().await;
    let (at, end) = leader.told.ended().unwrap();
    assert_eq!(end, TermEnd::Resigned(ResignReason::WorkReturned));
    sleep(TICK).await;
    assert!(!holder(&store).await);
    leader.leads().await;
    assert!(secs(2) <= edge::now() - at, "others may come first");
}

#[tokio::test(start_paused = true)]
async fn work_that_panics_gives_up_its_term_and_stays_away() {
    let store = store();
    let in_making = AtomicUsize::new(0);
    let leader = Candidate::with(&store, config(), |elector| {
        elector.lead(move |_| {
            assert!(in_making.fetch_add(1, Relaxed) != 1, "planted");
            async { panic!("planted") }
        })
    });
    let start = edge::now();
    while leader.told.terms().len() < 6 {
        sleep(secs(1)).await;
    }
    let took = edge::now() - start;
    assert!(secs(72) <= took && took <= secs(110), "30 and then 60 s away: {took:?}");
    assert_eq!(leader.told.terms(), ["started", "resigned"].repeat(3));
    let panicked = TermEnd::Resigned(ResignReason::WorkPanicked);
    assert_eq!(leader.told.ended().unwrap().1, panicked);
    assert!(!leader.task.is_finished());
}

#[tokio::test(start_paused = true)]
async fn work_is_asked_to_end_and_has_time_for_it() {
    let store = store();
    let wound_up = Arc::new(AtomicUsize::new(0));
    let winding = Arc::clone(&wound_up);
    let leader = Candidate::with(&store, config(), |elector| {
        elector.lead(move |term| {
            let winding = Arc::clone(&winding);
            async move {
                term.cancelled().await;
                sleep(secs(9)).await;
                assert!(term.check(Duration::ZERO).is_ok(), "the lease is held for it");
                winding.fetch_add(1, Relaxed);
            }
        })
    });
    leader.leads().await;
    sleep(secs(30)).await;
    let start = edge::now();
    leader.leadership.resign();
    leader.is_done().await;
    assert_eq!(wound_up.load(Relaxed), 1);
    assert!(edge::now() - start <= secs(9) + 2 * TICK);
    sleep(TICK).await;
    assert!(!holder(&store).await && released(&leader.told).is_some());
}

// kubernetes/client-go#1187
#[tokio::test(start_paused = true)]
async fn a_term_ends_once_wherever_the_elector_is_dropped() {
    for dropped_after in [millis(1), secs(1), secs(11), millis(11_500), secs(13)] {
        let store = store();
        let leader = Candidate::stands(&store, config().drain(secs(10), secs(1)));
        leader.leads().await;
        let inside = leader.leadership.hold().unwrap();
        leader.leadership.resign();
        sleep(dropped_after).await;
        let Candidate { task, told, leadership, .. } = leader;
        drop(task);
        sleep(secs(1)).await;
        drop(inside);
        let terms = told.terms();
        assert!(terms.len() == 2 && terms[0] == "started", "{terms:?} after {dropped_after:?}");
        let metrics = leadership.metrics();
        assert_eq!((metrics.terms_started, metrics.terms_ended), (1, 1));
    }
}

// kubernetes/kubernetes#132599
#[tokio::test(start_paused = true)]
async fn who_stops_waits_for_its_work_gives_the_lease_back_and_ends() {
    let store = store();
    let leader = Candidate::with(&store, config(), |elector| {
        elector.lead(|term| async move {
            term.cancelled().await;
            sleep(secs(3)).await;
        })
    });
    leader.leads().await;
    let start = edge::now();
    leader.task.stop().await;
    assert!(edge::now() - start <= secs(3) + 2 * TICK);
    assert!(!holder(&store).await);
    assert_eq!(leader.told.terms(), ["started", "shutdown"]);
    assert!(!leader.leadership.metrics().running);
}

#[tokio::test(start_paused = true)]
async fn who_stops_keeps_the_lease_if_it_is_told_to() {
    let store = store();
    let leader = Candidate::stands(&store, config().release_on_stop(false));
    leader.leads().await;
    leader.task.stop().await;
    assert!(holder(&store).await && store.count(Operation::Release) == 0);
    assert_eq!(leader.told.terms(), ["started", "shutdown"]);
}

#[tokio::test(start_paused = true)]
async fn who_stops_does_so_although_the_store_does_not_answer() {
    let store = store();
    let leader = Candidate::stands(&store, config());
    leader.leads().await;
    store.plan(|_| Fault::black_hole());
    let start = edge::now();
    leader.task.stop().await;
    let took = edge::now() - start;
    assert!(took <= secs(15), "three tries, and no longer than the lease: {took:?}");
    assert_eq!(store.count(Operation::Release), 3);
}

// cirello-io/dynamolock#14
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_won_again_soon_is_renewed_again() {
    let store = store();
    let soon = config().cooldown(millis(1), millis(1));
    let leader = Candidate::stands(&store, soon);
    for _ in 0..5 {
        leader.leads().await;
        leader.leadership.resign();
        leader.is_done().await;
    }
    leader.leads().await;
    sleep(secs(60)).await;
    assert!(leader.leadership.is_leader());
}

// ray-project/ray#63773
#[tokio::test(start_paused = true)]
async fn work_that_is_slow_to_begin_delays_no_renewal() {
    let store = store();
    let leader = Candidate::with(&store, config(), |elector| {
        elector.lead(|_| async {
            sleep(secs(300)).await;
            std::future::pending::<()>().await;
        })
    });
    leader.leads().await;
    sleep(secs(100)).await;
    assert!(store.count(Operation::Renew) >= 20);
    assert_eq!(leader.told.terms(), ["started"]);
}

/// Says that it is gone, and panics as it goes.
struct Gone(Arc<AtomicUsize>, bool);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.fetch_add(1, Relaxed);
        assert!(!self.1, "planted");
    }
}

#[tokio::test(start_paused = true)]
async fn work_that_panics_as_it_is_dropped_costs_its_term_and_no_more() {
    let store = store();
    let gone = Arc::new(AtomicUsize::new(0));
    let going = Arc::clone(&gone);
    let leader = Candidate::with(&store, config(), |elector| {
        elector.lead(move |_| {
            let gone = Gone(Arc::clone(&going), true);
            async move {
                std::future::pending::<()>().await;
                drop(gone);
            }
        })
    });
    // Dropped as the term expires, as it is lost, and as its leader leaves and it does not end.
    let first = leader.leads().await;
    store.plan(|_| Fault::black_hole());
    leader.is_done().await;
    store.heal();
    assert!(first < leader.leads().await);
    store.inner().evict(&name());
    leader.is_done().await;
    leader.leads().await;
    leader.leadership.resign();
    leader.is_done().await;
    let ends = ["started", "expired", "started", "lost", "started", "resigned"];
    assert_eq!(leader.told.terms().len(), ends.len(), "{:?}", leader.told.terms());
    assert_eq!(gone.load(Relaxed), 3);
    sleep(TICK).await;
    assert!(!holder(&store).await && !leader.task.is_finished());
    leader.leads().await;
}

#[test]
fn a_runtime_that_is_shut_down_takes_its_leader_along() {
    for workers in [0, 2] {
        let mut builder = match workers {
            0 => tokio::runtime::Builder::new_current_thread(),
            _ => tokio::runtime::Builder::new_multi_thread(),
        };
        let runtime = builder.worker_threads(2).enable_time().build().unwrap();
        let (store, gone) = (store(), Arc::new(AtomicUsize::new(0)));
        let going = Arc::clone(&gone);
        let leader = runtime.block_on(async {
            let leader = Candidate::with(&store, config(), |elector| {
                elector.lead(move |term| {
                    let gone = Gone(Arc::clone(&going), false);
                    async move {
                        term.cancelled().await;
                        drop(gone);
                    }
                })
            });
            leader.leads().await;
            leader
        });
        let place = leader.leadership.hold().unwrap();
        drop(runtime);
        assert!(leader.leadership.check().is_err() && place.check(Duration::ZERO).is_err());
        assert_eq!(gone.load(Relaxed), 1);
        let metrics = leader.leadership.metrics();
        assert_eq!((metrics.terms_started, metrics.terms_ended), (1, 1));
        assert!(!metrics.running && !metrics.work_active && leader.told.terms().len() == 2);
        drop((place, leader));
    }
}
