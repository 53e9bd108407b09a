//! What is counted adds up.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use buttress_leadership::{Fault, LeaseStore, Operation, ReleaseRequest, State};
use tokio::time::sleep;

use crate::common::*;

#[tokio::test(start_paused = true)]
async fn each_term_that_ended_is_counted_once_and_by_how_it_did() {
    let store = store();
    let soon = config().cooldown(millis(1), millis(1));
    let terms = AtomicUsize::new(0);
    let leader = Candidate::with(&store, soon, |elector| {
        elector.lead(move |term| {
            let nth = terms.fetch_add(1, Relaxed);
            async move {
                match nth {
                    2 => {}
                    3 => panic!("planted"),
                    _ => term.cancelled().await,
                }
            }
        })
    });
    leader.leads().await;
    leader.leadership.resign();
    leader.is_done().await;
    leader.leads().await;
    leader.leadership.resign_because("refused by the ledger");
    leader.is_done().await;
    // Two whose work ends by itself.
    while leader.leadership.metrics().terms_ended < 4 {
        sleep(millis(10)).await;
    }
    // Lost, expired, and by a clock that jumped.
    let fence = leader.leads().await;
    let me = leader.leadership.identity().clone();
    store.inner().release(ReleaseRequest::new(&name(), &me, fence)).await.unwrap();
    leader.is_done().await;
    leader.leads().await;
    store.plan(|_| Fault::black_hole());
    leader.is_done().await;
    store.heal();
    leader.leads().await;
    leader.clock.jump_wall(secs(60));
    leader.is_done().await;
    leader.leads().await;
    store.next(Operation::Renew, Fault::panic());
    leader.is_done().await;
    leader.leads().await;
    let leadership = leader.leadership.clone();
    leader.task.stop().await;

    let metrics = leadership.metrics();
    let by = metrics.resigned_for;
    assert_eq!((by.operator, by.shutdown, by.work_returned, by.work_panicked), (1, 1, 1, 1));
    assert_eq!((by.program, metrics.resignations), (1, 5));
    assert_eq!((metrics.lease_losses, metrics.local_expirations), (1, 1));
    assert_eq!((metrics.clock_anomalies, metrics.store_panics, metrics.dropped), (1, 1, 0));
    assert_eq!((metrics.terms_started, metrics.terms_ended), (9, 9));
    assert_eq!((metrics.state, metrics.running), (State::Stopped, false));
}

#[tokio::test(start_paused = true)]
async fn an_elector_that_is_dropped_as_it_leads_has_dropped_its_term() {
    let store = store();
    let leader = Candidate::stands(&store, config());
    leader.leads().await;
    let Candidate { task, leadership, .. } = leader;
    drop(task);
    sleep(TICK).await;
    let metrics = leadership.metrics();
    assert_eq!((metrics.terms_ended, metrics.dropped, metrics.resignations), (1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn who_has_left_shows_for_how_long_it_stays_away() {
    let store = store();
    let leader = Candidate::stands(&store, config());
    leader.leads().await;
    assert_eq!(leader.leadership.metrics().cooldown_remaining, None);
    leader.leadership.resign();
    sleep(TICK).await;
    let metrics = leader.leadership.metrics();
    let left = metrics.cooldown_remaining.unwrap();
    assert!(secs(24) - 2 * TICK <= left && left <= secs(36), "{left:?}");
    assert_eq!(metrics.state, State::CoolDown);
    assert_eq!(leader.leadership.status().cooldown_remaining, Some(left));
    sleep(secs(10)).await;
    assert_eq!(leader.leadership.metrics().cooldown_remaining, Some(left - secs(10)));
    leader.leads().await;
    assert_eq!(leader.leadership.metrics().cooldown_remaining, None);
}

#[tokio::test(start_paused = true)]
async fn who_is_in_as_its_term_ends_is_counted_once() {
    let store = store();
    let leader = Candidate::stands(&store, config());
    leader.leads().await;
    let places = [(); 3].map(|()| leader.leadership.admit(secs(1)).unwrap());
    let [left, stays @ ..] = places;
    drop(left);
    store.plan(|_| Fault::black_hole());
    leader.is_done().await;
    let metrics = leader.leadership.metrics();
    assert_eq!((metrics.requests.admitted, metrics.requests.expired_in_flight), (3, 2));
    drop(stays);
    store.heal();
    leader.leads().await;
    leader.leadership.resign();
    leader.is_done().await;
    assert_eq!(leader.leadership.metrics().requests.expired_in_flight, 2);
}
