//! Where the request enters.

use std::{convert::Infallible, time::Duration};

use buttress_core::Deadline;
use buttress_core::edge;
use buttress_deadline::{DeadlineLayer, EntryLayer};
use buttress_test::Readiness;
use tokio::time::{advance, sleep};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, buffer::Buffer, service_fn};

use crate::support::{due_in, echo, elapsed, poll_ready, secs, seen, silent, total};

#[tokio::test(start_paused = true)]
async fn what_waits_above_the_deadline_counts() {
    let waits = |inner| {
        service_fn(move |n: u32| {
            let queued = ServiceExt::<u32>::oneshot(DeadlineLayer::new(secs(30)).layer(inner), n);
            async move {
                sleep(secs(20)).await;
                queued.await
            }
        })
    };
    let start = edge::now();
    let answer = EntryLayer::new(secs(30)).layer(waits(silent())).oneshot(1).await;
    assert_eq!(elapsed(answer), total(secs(10)), "what was left of it");
    assert_eq!(edge::now() - start, secs(30));
    let answer = waits(silent()).oneshot(1).await;
    assert_eq!(elapsed(answer), total(secs(30)), "without it, the wait does not count");
    assert_eq!(edge::now() - start, secs(80));
}

#[tokio::test(start_paused = true)]
async fn others_beneath_look_at_the_clock_themselves_and_ours_take_its_look() {
    let called = service_fn(async |()| Ok::<_, Infallible>(()));
    let looks = |entry: EntryLayer| {
        let mut seen = None;
        let looks = tower::util::MapRequest::new(called, |()| seen = Some(edge::called()));
        drop(entry.layer(looks).call(()));
        seen
    };
    let before = edge::now();
    advance(secs(1)).await;
    let told = |entry| edge::within_call(Some(before), || looks(entry));
    assert_eq!(told(EntryLayer::new(secs(30))), Some(edge::now()));
    assert_eq!(told(EntryLayer::new(secs(30)).above_ours()), Some(before));
}

#[tokio::test(start_paused = true)]
async fn it_makes_the_deadline_known_and_enforces_nothing() {
    let start = edge::now();
    let late = service_fn(|()| async {
        sleep(secs(60)).await;
        Ok::<_, Infallible>(Deadline::current())
    });
    let seen = EntryLayer::new(secs(5)).layer(late).oneshot(()).await.unwrap();
    assert_eq!(seen, Some(Deadline::at(start + secs(5))));
    assert_eq!(edge::now() - start, secs(60));
    assert_eq!(Deadline::current(), None);
}

#[tokio::test(start_paused = true)]
async fn it_shortens_what_the_request_came_with_and_never_stretches_it() {
    let start = edge::now();
    for (came_with, own, is) in [(3, 5, 3), (5, 3, 3)] {
        let call = EntryLayer::new(secs(own)).layer(seen()).oneshot(());
        let is = Some(Deadline::at(start + secs(is)));
        assert_eq!(due_in(secs(came_with)).scope(call).await, Ok((is, is)));
    }
}

#[tokio::test(start_paused = true)]
async fn beneath_a_buffer_it_sees_the_requests_deadline_when_it_is_polled() {
    let start = edge::now();
    let buffered = ServiceBuilder::new().layer(EntryLayer::new(secs(30))).service(seen());
    let call = Buffer::new(buffered, 4).oneshot(());
    let (in_call, in_poll) = due_in(secs(5)).scope(call).await.unwrap();
    assert_eq!(in_call, Some(Deadline::at(start + secs(30))), "a buffer calls elsewhere");
    assert_eq!(in_poll, Some(Deadline::at(start + secs(5))));
}

#[tokio::test(start_paused = true)]
async fn its_readiness_is_the_inner_services() {
    let probe = echo();
    probe.set_readiness(Readiness::Pending);
    let mut entry = EntryLayer::new(secs(5)).layer(probe.clone());
    assert!(poll_ready(&mut entry).await.is_pending());
    probe.set_readiness(Readiness::Ready);
    assert!(poll_ready(&mut entry).await.is_ready());
    assert_eq!(entry.call(1).await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_was_fixed_above_reads_as_it_was_set() {
    let beneath = service_fn(|n: u32| async move {
        // Between the two the clock goes on, if only by some microseconds.
        advance(Duration::from_micros(12)).await;
        DeadlineLayer::new(secs(1)).layer(silent()).oneshot(n).await
    });
    let answer = EntryLayer::new(secs(1)).layer(beneath).oneshot(1).await;
    assert_eq!(elapsed(answer), total(secs(1)));
}
