use std::{convert::Infallible, time::Duration};

use buttress_core::{Context, Deadline, Reason};
use buttress_shed::{Priority, ShedLayer};
use tokio::time::{advance, sleep, timeout};
use tower::{Layer, Service, ServiceExt, buffer::Buffer, service_fn};

use crate::support::{ms, peek, reason, shed, timed, wait};

type Seen = [Context; 2];

/// Answers with what is current in `call`, and in the poll after a while.
fn mirror(
    millis: u64,
) -> impl Service<(), Response = Seen, Error = Infallible, Future: Send> + Clone {
    service_fn(move |()| {
        let in_call = Context::current();
        async move {
            sleep(ms(millis)).await;
            Ok([in_call, Context::current()])
        }
    })
}

#[tokio::test(start_paused = true)]
async fn no_retry_is_in_charge_within_and_the_deadline_is_that_of_the_call() {
    let shed = shed(1);
    let server = ShedLayer::new(shed.clone()).layer(mirror(5));
    let deadline = Deadline::after(Duration::from_secs(9));
    let outer = Context::default().with_deadline(deadline).with_attempt(2);
    let expected = Context::default().with_deadline(deadline);

    // One is admitted at once, the other waits; both are polled outside of what they came in.
    let calls = outer.within(|| [(); 2].map(|()| server.clone()).map(|mut s| s.call(())));
    assert_eq!(shed.waiting(), 1);
    let [first, second] = calls;
    let elsewhere = Context::default().with_attempt(7);
    let both = elsewhere.scope(async { tokio::join!(first, second) });
    let (first, second) = both.await;
    assert_eq!(first.unwrap(), [expected; 2]);
    assert_eq!(second.unwrap(), [expected; 2]);
}

#[tokio::test(start_paused = true)]
async fn behind_a_buffer_the_deadline_is_that_of_whoever_polls() {
    let shed = shed(1);
    let server = Buffer::new(ShedLayer::new(shed.clone()).layer(mirror(5)), 8);
    let deadline = Deadline::after(ms(50));
    let outer = Context::default().with_deadline(deadline);
    let [_, in_poll] = outer.scope(server.clone().oneshot(())).await.unwrap();
    assert_eq!(in_poll.deadline(), deadline);
    assert_eq!(shed.stats().late, 0);

    let permit = shed.try_admit(Priority::Critical).unwrap();
    let (refused, waited) = timed(outer.scope(server.clone().oneshot(()))).await;
    assert_eq!(reason(&refused.unwrap_err()), Reason::DeadlineExceeded);
    assert_eq!(waited, ms(45));
    drop(permit);
}

#[tokio::test(start_paused = true)]
async fn behind_a_buffer_the_queue_knows_who_is_too_late() {
    let shed = shed(1);
    let server = Buffer::new(ShedLayer::new(shed.clone()).layer(mirror(5)), 8);
    let permit = shed.try_admit(Priority::Critical).unwrap();
    let outer = Context::default().with_deadline(Deadline::after(ms(50)));
    let mut late = Box::pin(outer.scope(server.clone().oneshot(())));
    assert!(timeout(ms(1), &mut late).await.is_err());
    let mut next = wait(&shed, Priority::Critical);
    advance(ms(49)).await;
    drop(permit);
    assert!(peek(&mut next).unwrap().is_ok());
    assert_eq!(reason(&late.await.unwrap_err()), Reason::DeadlineExceeded);
}

#[tokio::test(start_paused = true)]
async fn behind_a_buffer_it_is_known_who_was_late() {
    let shed = shed(1);
    let server = Buffer::new(ShedLayer::new(shed.clone()).layer(mirror(60)), 8);
    let outer = Context::default().with_deadline(Deadline::after(ms(50)));
    outer.scope(server.oneshot(())).await.unwrap();
    assert_eq!(shed.stats().late, 1);
}
