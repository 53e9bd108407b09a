//! What a leader bears, and from when its lease counts.

use buttress_core::edge;
use buttress_leadership::{Event, Fault, LeaseStore, MemoryStore, Operation, TermEnd};
use tokio::time::sleep;

use crate::common::*;

// golemcloud/golem#3824, golemcloud/golem#3834
#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_late_makes_the_lease_no_longer() {
    for late in [secs(0), millis(1), millis(1_300), millis(2_400)] {
        let store = store();
        store.next(Operation::Acquire, Fault::default().delay_after(late));
        let leader = Candidate::stands(&store, config());
        let start = edge::now();
        leader.leads().await;
        assert_eq!(edge::now() - start, late);
        assert_eq!(leader.valid_for(), secs(12) - late, "of the acquire");

        store.next(Operation::Renew, Fault::default().delay_after(late));
        let renewals = store.count(Operation::Renew);
        while leader.leadership.metrics().renewals_accepted <= renewals as u64 {
            sleep(millis(1)).await;
        }
        let sent = *begun(&store, Operation::Renew).last().unwrap();
        let valid_until = edge::now() + leader.valid_for();
        assert_eq!(valid_until - sent, secs(12), "of the renewal");
    }
}

// golemcloud/golem#3834
#[tokio::test(start_paused = true)]
async fn a_client_that_repeats_inside_makes_terms_shorter_and_never_longer() {
    let store = store();
    let leader = Candidate::stands(&store, config());
    leader.leads().await;
    sleep(secs(20)).await;
    // What it sent at first was lost, and the one that arrived was sent two seconds later.
    store.next(Operation::Renew, Fault::default().delay_before(secs(2)));
    let accepted = leader.leadership.metrics().renewals_accepted;
    while leader.leadership.metrics().renewals_accepted == accepted {
        sleep(millis(1)).await;
    }
    let sent = *begun(&store, Operation::Renew).last().unwrap();
    assert_eq!(edge::now() + leader.valid_for() - sent, secs(12));
}

// etcd-io/etcd#11456
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_won_too_long_ago_is_not_led_with() {
    let store = store();
    store.next(Operation::Acquire, Fault::default().delay_after(secs(2)));
    let leader = Candidate::stands(&store, config());
    sleep(secs(1)).await;
    assert!(leader.store.inspect(&name()).await.unwrap().is_some(), "it is won");
    // The store did not see that this process stood still.
    leader.clock.suspend(secs(12));
    sleep(secs(1) + TICK).await;
    assert!(!leader.leadership.is_leader() && leader.told.terms().is_empty());
    assert_eq!(leader.leads().await.get(), 2, "it was given back, and won again");
}

// Cotal-AI/Cotal#498, hashicorp/consul#912
#[tokio::test(start_paused = true)]
async fn no_answer_is_no_loss() {
    for fault in [Fault::lost_answer(), Fault::lost_request(), Fault::not_applied(), Fault::fatal()]
    {
        let store = store();
        let leader = Candidate::stands(&store, config());
        let fence = leader.leads().await;
        store.plan(move |_| fault);
        // From the first renewal on, which is due after 5 s at most. The next one then is within 1.2 s.
        sleep(millis(10_700)).await;
        assert!(leader.leadership.is_leader());
        store.heal();
        sleep(secs(30)).await;
        assert_eq!(leader.leadership.fence(), Some(fence), "the same term goes on");
        assert_eq!(leader.told.terms(), ["started"]);
    }
}

// ovn-kubernetes/ovn-kubernetes#3959
#[tokio::test(start_paused = true)]
async fn one_call_that_hangs_and_one_that_takes_as_long_as_it_may_do_not_cost_the_lease() {
    let store = store();
    let leader = Candidate::stands(&store, config());
    leader.leads().await;
    for hangs in [Fault::black_hole(), Fault::black_hole_back()] {
        for _ in 0..50 {
            store.next(Operation::Renew, hangs);
            store.next(Operation::Renew, Fault::default().delay_after(millis(2_499)));
            sleep(secs(20)).await;
        }
    }
    assert_eq!(leader.told.terms(), ["started"]);
}

// apache/curator#980
#[tokio::test(start_paused = true)]
async fn a_lease_counts_from_the_last_renewal_that_was_answered() {
    let store = store();
    let leader = Candidate::stands(&store, config());
    leader.leads().await;
    sleep(secs(20)).await;
    // These are done, and that is worth nothing as long as nobody hears of it.
    store.plan(|operation| match operation {
        Operation::Renew => Fault::lost_answer(),
        _ => Fault::default(),
    });
    let until = edge::now() + leader.valid_for();
    leader.is_done().await;
    let (at, end) = leader.told.ended().unwrap();
    assert_eq!(end, TermEnd::ExpiredLocally);
    assert!(until <= at && at <= until + TICK);
}

// triggerdotdev/trigger.dev#4918, apache/curator#566
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_won_unheard_is_found_and_counts_from_the_first_try() {
    for fault in [Fault::lost_answer(), Fault::black_hole_back()] {
        let store = store();
        store.next(Operation::Acquire, fault);
        let leader = Candidate::stands(&store, config());
        let start = edge::now();
        assert_eq!(leader.leads().await.get(), 1, "it is the one that was won");
        let took = edge::now() - start;
        assert!(took <= millis(2_500 + 1_200) + TICK, "{took:?}");
        assert_eq!(leader.valid_for(), secs(12) - took);
    }
}

// apache/curator#566
#[tokio::test(start_paused = true)]
async fn whoever_stops_does_not_leave_a_lease_that_it_won_unheard() {
    let store = store();
    store.next(Operation::Acquire, Fault::lost_answer());
    let candidate = Candidate::stands(&store, config());
    sleep(millis(1)).await;
    assert!(store.inspect(&name()).await.unwrap().unwrap().holder.is_some());
    candidate.task.stop().await;
    assert!(store.inspect(&name()).await.unwrap().unwrap().holder.is_none());
    assert!(candidate.told.terms().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_granted_time_counts_and_not_the_one_that_was_asked_for() {
    let short = MemoryStore::new().without_watch().grant_at_most(secs(10));
    let store = buttress_leadership::FaultyStore::new(short);
    let leader = Candidate::stands(&store, config());
    leader.leads().await;
    assert_eq!(leader.valid_for(), secs(7));
    sleep(secs(60)).await;
    assert_eq!(leader.told.terms(), ["started"]);
}

#[tokio::test(start_paused = true)]
async fn nobody_leads_with_less_time_than_a_renewal_needs() {
    let short = MemoryStore::new().without_watch().grant_at_most(secs(8));
    let store = buttress_leadership::FaultyStore::new(short);
    let leader = Candidate::stands(&store, config());
    sleep(secs(60)).await;
    assert!(leader.told.terms().is_empty());
    let told = leader.told.all();
    let is_told = |(_, event): &(_, Event)| matches!(event, Event::GrantTooShort { .. });
    assert!(told.iter().any(is_told));
    assert!(store.inspect(&name()).await.unwrap().unwrap().holder.is_none(), "it is given back");
}

#[tokio::test(start_paused = true)]
async fn a_payload_that_changes_is_told_with_the_next_renewal_and_once() {
    let store = store();
    let leader = Candidate::stands(&store, config().payload("one"));
    let follower = Candidate::stands(&store.another_way(), config());
    leader.leads().await;
    sleep(secs(2)).await;
    assert_eq!(follower.leadership.leader().unwrap().payload, "one");
    leader.leadership.set_payload("two").unwrap();
    let large = leader.leadership.set_payload(vec![0; 16 * 1024 + 1]).unwrap_err();
    assert_eq!(large.setting(), "payload", "and the other one stays");
    store.next(Operation::Renew, Fault::lost_request());
    sleep(secs(9)).await;
    assert_eq!(follower.leadership.leader().unwrap().payload, "two", "a lost one is repeated");
    let age = follower.leadership.status().observation_age.unwrap();
    assert!(age <= millis(1_200) + TICK, "{age:?}");
}

#[tokio::test(start_paused = true)]
async fn a_payload_that_changes_while_another_is_told_is_told_next() {
    let store = store();
    let leader = Candidate::stands(&store, config().payload("one"));
    leader.leads().await;
    store.next(Operation::Renew, Fault::default().delay_after(secs(1)));
    leader.leadership.set_payload("two").unwrap();
    while store.count(Operation::Renew) == 0 {
        sleep(millis(10)).await;
    }
    leader.leadership.set_payload("three").unwrap();
    let payload = async || store.inner().inspect(&name()).await.unwrap().unwrap().payload;
    assert_eq!(payload().await, "two");
    sleep(secs(7)).await;
    assert_eq!(payload().await, "three");
}
