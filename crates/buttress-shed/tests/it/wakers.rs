//! Wakers are other people's code, and may panic.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Wake, Waker},
    time::Duration,
};

use buttress_shed::{Admit, Priority, Shed, ShedSettings};
use tokio::time::advance;

use crate::support::{fill, peek, shed, wait, with};

/// Counts how often it is woken, and panics each time if it was made to.
struct Woken {
    times: AtomicUsize,
    panics: bool,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.times.fetch_add(1, SeqCst);
        assert!(!self.panics, "planted");
    }
}

/// Waits with such a waker.
fn wait_with(shed: &Shed, priority: Priority, panics: bool) -> (Pin<Box<Admit>>, Arc<Woken>) {
    let woken = Arc::new(Woken { times: AtomicUsize::new(0), panics });
    let waker = Waker::from(woken.clone());
    let mut admit = Box::pin(shed.admit(priority));
    assert!(admit.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    (admit, woken)
}

#[tokio::test(start_paused = true)]
async fn wakers_that_panic_keep_nobody_else_asleep() {
    let shed = shed(1);
    let permit = shed.try_admit(Priority::Critical).unwrap();
    // Two of them: the second panics while the panic of the first is under way.
    let waiting = [true, true, false].map(|panics| wait_with(&shed, Priority::Critical, panics));
    // Too old by half a millisecond, and their own timers come at a whole one.
    advance(Duration::from_micros(100_500)).await;
    let ends = catch_unwind(AssertUnwindSafe(|| drop(permit)));
    assert!(ends.is_err(), "whoever caused it is told of the panic");
    for (mut admit, woken) in waiting {
        assert_eq!(woken.times.load(SeqCst), 1);
        assert!(peek(&mut admit).unwrap().is_err(), "all were too old");
    }
    assert_eq!((shed.in_flight(), shed.waiting()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn whoever_is_to_wait_and_meets_a_waker_that_panics_leaves_no_place_taken() {
    let shed = with(1, ShedSettings::default().max_queue(1));
    let permits = fill(&shed);
    let (refused, _) = wait_with(&shed, Priority::Sheddable, true);
    let mut comes = Box::pin(shed.admit(Priority::Critical));
    assert!(catch_unwind(AssertUnwindSafe(|| peek(&mut comes))).is_err());
    drop((comes, refused));
    assert_eq!(shed.waiting(), 0);
    drop(permits);
    assert!(shed.try_admit(Priority::Sheddable).is_ok(), "the place was to come back");
}

#[tokio::test(start_paused = true)]
async fn a_waker_that_panics_leaves_the_queue_as_it_should_be() {
    let shed = shed(1);
    let mut permits = fill(&shed);
    let (granted, _) = wait_with(&shed, Priority::Critical, true);
    let mut next = wait(&shed, Priority::Critical);
    assert!(catch_unwind(AssertUnwindSafe(|| permits.clear())).is_err());
    assert!(peek(&mut next).is_none(), "the place is the first one's");
    drop(granted);
    assert!(peek(&mut next).unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_waker_that_panics_while_a_panic_unwinds_does_not_end_the_process() {
    let shed = shed(1);
    let permit = shed.try_admit(Priority::Critical).unwrap();
    let (mut granted, woken) = wait_with(&shed, Priority::Critical, true);
    let holds = AssertUnwindSafe(|| {
        let _permit = permit;
        panic!("planted");
    });
    assert!(catch_unwind(holds).is_err());
    assert_eq!(woken.times.load(SeqCst), 1);
    assert!(peek(&mut granted).unwrap().is_ok());
}
