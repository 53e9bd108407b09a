//! Whoever waits can walk away at every `await`, and nothing is left behind that it had begun.

use std::{future::poll_fn, task::Poll, time::Duration};

use buttress_core::edge;
use buttress_leadership::{Fault, LeadershipLayer, Lock, Operation};
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn};

use crate::common::*;

/// Polls it so often, and drops it then. What it has said by then.
async fn polled<F: Future>(mut polls: usize, future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    poll_fn(move |cx| {
        if polls == 0 {
            return Poll::Ready(None);
        }
        polls -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(said) => Poll::Ready(Some(said)),
            Poll::Pending if polls == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// A store each of whose calls waits twice, and a way to it that does not wait.
fn slow_store() -> (Store, Store) {
    let store = store();
    store.plan(|_| Fault::default().delay_before(millis(300)).delay_after(millis(300)));
    let way = store.another_way();
    (store, way)
}

/// One that begins to stand now leads in time.
async fn is_free_for(way: &Store, limit: Duration, after: usize) {
    let start = edge::now();
    let next = Candidate::stands(way, config());
    next.leads().await;
    let took = edge::now() - start;
    assert!(took <= limit + TICK, "{took:?} after {after} polls");
    next.task.stop().await;
}

/// A lease, and a look of whoever waits.
const AFTER_A_DROP: Duration = millis(15_000 + 1_200);

#[tokio::test(start_paused = true)]
async fn wherever_an_elector_is_dropped_nothing_of_it_goes_on() {
    for polls in 0.. {
        let (store, _) = slow_store();
        let (elector, _, told) = elector(&store, config().cooldown(secs(1), secs(1)));
        let elector = elector.lead(|term| async move {
            term.cancelled().await;
            sleep(secs(1)).await;
        });
        let (leadership, resigns) = (elector.leadership(), elector.leadership());
        let shutdown = async move {
            sleep(secs(8)).await;
            resigns.resign();
            sleep(secs(8)).await;
        };
        let has_ended = polled(polls, elector.run(shutdown)).await.is_some();
        assert!(leadership.check().is_err() && leadership.hold().is_err(), "{polls}");
        let metrics = leadership.metrics();
        assert!(!metrics.running && metrics.terms_started == metrics.terms_ended, "{polls}");
        assert_eq!(told.terms().len() as u64, 2 * metrics.terms_ended, "{polls}");
        let operations = [metrics.store.acquire, metrics.store.renew, metrics.store.release];
        assert!(operations.iter().all(|calls| calls.in_flight == 0), "{polls}");
        let calls = store.calls().len();
        sleep(secs(30)).await;
        assert_eq!(store.calls().len(), calls, "{polls}");
        assert!(!leadership.metrics().work_active, "{polls}");
        if has_ended {
            assert!(metrics.terms_ended == 2 && polls > 20, "{polls}");
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn wherever_an_elector_is_dropped_the_next_one_leads_after_its_lease() {
    for polls in 0.. {
        let (store, way) = slow_store();
        let (elector, _, _) = elector(&store, config());
        let has_ended = polled(polls, elector.run(sleep(secs(12)))).await.is_some();
        is_free_for(&way, AFTER_A_DROP, polls).await;
        if has_ended {
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_does_not_wait_for_a_stop_has_dropped_the_elector() {
    for polls in 0.. {
        let (store, way) = slow_store();
        let leader = Candidate::with(&store, config(), |elector| {
            elector.lead(|term| async move {
                term.cancelled().await;
                sleep(secs(1)).await;
            })
        });
        leader.leads().await;
        let has_ended = polled(polls, leader.task.stop()).await.is_some();
        assert!(leader.leadership.check().is_err());
        sleep(TICK).await;
        assert!(!leader.leadership.metrics().work_active);
        assert_eq!(leader.told.terms().len(), 2, "{polls}");
        is_free_for(&way, AFTER_A_DROP, polls).await;
        if has_ended {
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_walks_away_from_a_lock_leaves_it_free_soon() {
    // What is under way is waited for, and then it is given back: there is no lease to be waited for.
    let soon = millis(600 + 600 + 1_200);
    for polls in 0.. {
        let (store, way) = slow_store();
        let lock = Lock::new(store, config()).unwrap();
        let tried = polled(polls, lock.try_acquire()).await;
        let has_ended = tried.is_some();
        drop(tried);
        is_free_for(&way, soon, polls).await;
        if has_ended {
            break;
        }
    }
    for polls in 0.. {
        let (store, way) = slow_store();
        let lock = Lock::new(store, config()).unwrap();
        let other = lock.acquire().await;
        let got = async {
            let got = lock.acquire();
            other.release().await;
            got.await
        };
        let has_ended = polled(polls, got).await.is_some();
        is_free_for(&way, soon, polls).await;
        if has_ended {
            break;
        }
    }
    for polls in 0.. {
        let (store, way) = slow_store();
        let guard = Lock::new(store, config()).unwrap().acquire().await;
        let has_ended = polled(polls, guard.release()).await.is_some();
        is_free_for(&way, soon, polls).await;
        if has_ended {
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_walks_away_from_a_call_gives_its_place_in_the_term_back() {
    let (store, _) = slow_store();
    let leader = Candidate::stands(&store, config());
    leader.leads().await;
    let in_flight = || leader.leadership.metrics().requests_in_flight;
    let service = LeadershipLayer::new(leader.leadership.clone()).layer(service_fn(|()| async {
        for _ in 0..3 {
            sleep(millis(10)).await;
        }
        Ok::<_, std::io::Error>(())
    }));
    for polls in 0.. {
        let has_ended = polled(polls, service.clone().oneshot(())).await.is_some();
        assert_eq!(in_flight(), 0, "{polls}");
        if has_ended {
            break;
        }
    }
    let place = leader.leadership.hold().unwrap();
    for polls in 0..3 {
        let one_more = place.clone();
        let waits = async { tokio::join!(place.over(), one_more.over()) };
        assert!(polled(polls, waits).await.is_none());
        drop(one_more);
        assert_eq!(in_flight(), 1, "{polls}");
    }
    drop(place);
    leader.task.stop().await;
    assert_eq!(store.count(Operation::Release), 1);
}
