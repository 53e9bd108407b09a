use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use buttress_core::{Class, Permit as _};
use buttress_shed::{Permit, Priority, ShedSettings};
use futures_util::future::{Either, select};

use crate::support::with;

const LIMIT: usize = 8;

/// Who is within, counted apart from the shed.
#[derive(Default)]
struct Within {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// Comes in with a permit, and leaves before it is given back.
struct Guest<'a> {
    within: &'a Within,
    permit: Option<Permit>,
    reports: bool,
}

impl<'a> Guest<'a> {
    fn enter(within: &'a Within, permit: Permit, reports: bool) -> Self {
        let now = within.now.fetch_add(1, SeqCst) + 1;
        within.most.fetch_max(now, SeqCst);
        Self { within, permit: Some(permit), reports }
    }
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        self.within.now.fetch_sub(1, SeqCst);
        if let Some(permit) = self.permit.take()
            && self.reports
        {
            permit.report(Class::Success);
        }
    }
}

// BLK-06
#[test]
fn whatever_sixteen_threads_do_no_more_than_the_limit_are_within_and_nothing_is_lost() {
    // Nobody waits for time here, so that the clock does not matter.
    let patient = ShedSettings::default().target(Duration::MAX).interval(Duration::MAX);
    let shed = with(LIMIT, patient.max_queue(6));
    let within = Arc::new(Within::default());
    let start = Barrier::new(16);
    std::thread::scope(|scope| {
        for thread in 0..16_u64 {
            let (shed, within, start) = (shed.clone(), within.clone(), &start);
            scope.spawn(move || {
                start.wait();
                let mut dice = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(thread + 1);
                let mut roll = move |below: u64| {
                    dice ^= dice << 13;
                    dice ^= dice >> 7;
                    dice ^= dice << 17;
                    dice % below
                };
                let priorities = [Priority::Sheddable, Priority::Critical, Priority::CriticalPlus];
                for _ in 0..1_000 {
                    let mut admit = Box::pin(shed.admit(priorities[roll(3) as usize]));
                    let mut cx = Context::from_waker(Waker::noop());
                    let decided = match roll(4) {
                        0 => shed.try_admit(Priority::Critical),
                        // Walks away once it has begun to wait.
                        1 => match admit.as_mut().poll(&mut cx) {
                            Poll::Pending => continue,
                            Poll::Ready(decided) => decided,
                        },
                        // Waits for its turn, for a while.
                        _ => {
                            let patience = async {
                                for _ in 0..50 {
                                    std::thread::yield_now();
                                    tokio::task::yield_now().await;
                                }
                            };
                            let patience = std::pin::pin!(patience);
                            match block_on(select(admit, patience)) {
                                Either::Left((decided, _)) => decided,
                                Either::Right(_) => continue,
                            }
                        }
                    };
                    if let Ok(permit) = decided {
                        let guest = Guest::enter(&within, permit, roll(2) == 0);
                        for _ in 0..roll(4) {
                            std::thread::yield_now();
                        }
                        drop(guest);
                    }
                }
            });
        }
    });
    let stats = shed.stats();
    assert!((1..=LIMIT).contains(&within.most.load(SeqCst)));
    assert_eq!((within.now.load(SeqCst), stats.in_flight, stats.waiting), (0, 0, 0));
    let told = stats.admitted + stats.overloaded + stats.expired + stats.abandoned;
    assert_eq!(stats.arrived, told);
    assert_eq!(stats.admitted, stats.finished + stats.dropped);
    assert!(stats.finished > 0 && stats.dropped > 0);
    let places: Vec<_> = (0..LIMIT).map(|_| shed.try_admit(Priority::Critical)).collect();
    assert!(places.iter().all(Result::is_ok), "every place is there again");
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}
