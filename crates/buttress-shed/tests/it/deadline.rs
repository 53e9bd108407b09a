use buttress_core::{Class, Context, Deadline, Permit as _, Reason, edge};
use buttress_shed::{Priority, Shed, ShedSettings};
use tokio::time::{advance, sleep};

use crate::support::{fill, ms, peek, shed, timed, wait, wait_within, with, within};

/// Eight calls that take `millis` each.
async fn serve(shed: &Shed, millis: u64) {
    let permits: Vec<_> = (0..8).map(|_| shed.try_admit(Priority::Critical).unwrap()).collect();
    advance(ms(millis)).await;
    permits.into_iter().for_each(|permit| permit.report(Class::Success));
}

fn left(shed: &Shed, millis: u64) -> Option<Reason> {
    within(millis).within(|| shed.try_admit(Priority::Critical)).err().map(|error| error.reason())
}

#[tokio::test(start_paused = true)]
async fn what_comes_at_its_deadline_or_later_is_refused_though_there_is_room() {
    let shed = shed(1);
    let now = edge::now();
    advance(ms(5)).await;
    for (at, refused) in [(4, true), (5, true), (6, false)] {
        let due = Context::default().with_deadline(Some(Deadline::at(now + ms(at))));
        let decided = due.scope(shed.admit(Priority::CriticalPlus)).await;
        assert_eq!(
            decided.err().map(|error| error.reason()),
            refused.then_some(Reason::DeadlineExceeded)
        );
    }
    assert_eq!(shed.stats().expired, 2);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_done_by_its_deadline_is_refused_before_any_work() {
    let shed = shed(100);
    serve(&shed, 80).await;
    assert_eq!(left(&shed, 79), Some(Reason::DeadlineExceeded));
    assert_eq!(left(&shed, 80), None, "half of the calls make it");
    assert!(shed.try_admit(Priority::Critical).is_ok(), "who sets no deadline waits");
}

#[tokio::test(start_paused = true)]
async fn what_became_hopeless_while_it_waited_is_passed_over() {
    let shed = with(8, ShedSettings::default().interval(ms(1_000)));
    serve(&shed, 80).await;
    let mut permits = fill(&shed);
    let mut hopeless = wait_within(100, &shed, Priority::CriticalPlus);
    let mut next = wait(&shed, Priority::Sheddable);
    advance(ms(21)).await;
    permits.pop();
    let refused = peek(&mut hopeless).unwrap().unwrap_err();
    assert_eq!(refused.reason(), Reason::DeadlineExceeded);
    assert_eq!(refused.retry_after(), None, "the same request will never be in time");
    assert!(peek(&mut next).unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_at_the_deadline() {
    let shed = shed(1);
    let _permit = shed.try_admit(Priority::Critical).unwrap();
    let (refused, waited) = timed(within(30).scope(shed.admit(Priority::Critical))).await;
    assert_eq!((refused.unwrap_err().reason(), waited), (Reason::DeadlineExceeded, ms(30)));
    assert_eq!((shed.stats().expired, shed.waiting()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_place_that_is_picked_up_after_the_deadline_goes_to_the_next() {
    let shed = shed(1);
    let permit = shed.try_admit(Priority::Critical).unwrap();
    let mut late = wait_within(50, &shed, Priority::Critical);
    let mut next = wait(&shed, Priority::Critical);
    drop(permit);
    advance(ms(50)).await;
    assert!(peek(&mut next).is_none(), "the place was granted to the first");
    assert_eq!(peek(&mut late).unwrap().unwrap_err().reason(), Reason::DeadlineExceeded);
    assert!(peek(&mut next).unwrap().is_ok());
    assert_eq!((shed.stats().expired, shed.stats().admitted), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn what_ends_at_its_deadline_or_later_is_counted_as_late() {
    let shed = shed(3);
    let permits = [20, 21, 30]
        .map(|millis| within(millis).within(|| shed.try_admit(Priority::Critical)).unwrap());
    sleep(ms(21)).await;
    let [first, second, third] = permits;
    first.report(Class::Success);
    drop(second);
    third.report(Class::Success);
    let stats = shed.stats();
    assert_eq!((stats.late, stats.finished, stats.dropped), (2, 2, 1));
}

#[tokio::test(start_paused = true)]
async fn refusals_from_within_and_what_is_dropped_say_nothing_of_how_long_work_takes() {
    let shed = shed(100);
    serve(&shed, 80).await;
    for _ in 0..64 {
        shed.try_admit(Priority::Critical).unwrap().report(Class::Refused);
        drop(shed.try_admit(Priority::Critical));
    }
    assert_eq!(left(&shed, 79), Some(Reason::DeadlineExceeded));
    for _ in 0..64 {
        shed.try_admit(Priority::Critical).unwrap().report(Class::CallerError);
    }
    assert_eq!(left(&shed, 79), None);
}
