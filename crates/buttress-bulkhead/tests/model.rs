//! Any sequence of questions, answers, drops and new limits does what a plain list would do.

use std::{collections::VecDeque, task::Poll, time::Duration};

use buttress_bulkhead::{Acquire, Bulkhead, BulkheadSettings, Slot};
use proptest::prelude::*;
use tokio_test::task::{self, Spawn};

#[derive(Clone, Debug)]
enum Step {
    Try,
    Ask,
    Poll(prop::sample::Index),
    Leave(prop::sample::Index),
    Finish(prop::sample::Index),
    Resize(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let any = any::<prop::sample::Index>;
    prop_oneof![
        3 => Just(Step::Try),
        6 => Just(Step::Ask),
        6 => any().prop_map(Step::Poll),
        2 => any().prop_map(Step::Leave),
        5 => any().prop_map(Step::Finish),
        2 => (1_usize..6).prop_map(Step::Resize),
    ]
}

/// What a bulkhead is, with nothing clever about it.
struct Model {
    limit: usize,
    places: usize,
    in_flight: usize,
    /// Who waits, in order.
    queue: VecDeque<usize>,
    /// Who was called and has not come yet.
    called: Vec<usize>,
    abandoned: u64,
    rejected: u64,
    granted: u64,
}

impl Model {
    fn admits(&mut self) -> bool {
        let admits = self.queue.is_empty() && self.in_flight < self.limit;
        self.in_flight += usize::from(admits);
        self.granted += u64::from(admits);
        admits
    }

    fn call(&mut self) {
        while self.in_flight < self.limit
            && let Some(first) = self.queue.pop_front()
        {
            self.called.push(first);
            self.in_flight += 1;
            self.granted += 1;
        }
    }

    fn finish(&mut self) {
        self.in_flight -= 1;
        self.call();
    }

    fn leave(&mut self, who: usize) {
        if let Some(at) = self.called.iter().position(|called| *called == who) {
            self.called.remove(at);
            self.finish();
        } else {
            let before = self.queue.len();
            self.queue.retain(|waiting| *waiting != who);
            self.abandoned += (before - self.queue.len()) as u64;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn it_does_what_a_plain_list_would_do(
        limit in 1_usize..5,
        places in 0_usize..5,
        steps in prop::collection::vec(step(), 0..80),
    ) {
        let settings = BulkheadSettings::new(limit).max_waiting(places).max_wait(Duration::MAX);
        let bulkhead = Bulkhead::new(settings).unwrap();
        let mut model = Model {
            limit, places, in_flight: 0, queue: VecDeque::new(), called: Vec::new(),
            abandoned: 0, rejected: 0, granted: 0,
        };
        let mut slots: Vec<Slot> = Vec::new();
        let mut asking: Vec<(usize, Spawn<Acquire>)> = Vec::new();
        let mut started = 0;
        for step in steps {
            match step {
                Step::Try => {
                    started += 1;
                    let slot = bulkhead.try_acquire().ok();
                    let admits = model.admits();
                    model.rejected += u64::from(!admits);
                    prop_assert_eq!(slot.is_some(), admits);
                    slots.extend(slot);
                }
                Step::Ask => {
                    let who = started;
                    started += 1;
                    let mut acquire = task::spawn(bulkhead.acquire());
                    if model.admits() {
                        let Poll::Ready(Ok(slot)) = acquire.poll() else {
                            return Err(TestCaseError::fail("it was not admitted"));
                        };
                        slots.push(slot);
                    } else if model.queue.len() < model.places {
                        model.queue.push_back(who);
                        asking.push((who, acquire));
                    } else {
                        model.rejected += 1;
                        prop_assert!(matches!(acquire.poll(), Poll::Ready(Err(_))));
                    }
                }
                Step::Poll(which) if !asking.is_empty() => {
                    let at = which.index(asking.len());
                    let (who, acquire) = &mut asking[at];
                    let called = model.called.iter().position(|called| called == who);
                    match (acquire.poll(), called) {
                        (Poll::Ready(Ok(slot)), Some(nth)) => {
                            model.called.remove(nth);
                            slots.push(slot);
                            drop(asking.remove(at));
                        }
                        (Poll::Pending, None) => {}
                        (poll, called) => {
                            return Err(TestCaseError::fail(format!("{poll:?}, and called: {called:?}")));
                        }
                    }
                }
                Step::Leave(which) if !asking.is_empty() => {
                    let (who, acquire) = asking.remove(which.index(asking.len()));
                    drop(acquire);
                    model.leave(who);
                }
                Step::Finish(which) if !slots.is_empty() => {
                    drop(slots.swap_remove(which.index(slots.len())));
                    model.finish();
                }
                Step::Resize(limit) => {
                    bulkhead.set_limit(limit).unwrap();
                    model.limit = limit;
                    model.call();
                }
                Step::Poll(_) | Step::Leave(_) | Step::Finish(_) => {}
            }
            let stats = bulkhead.stats();
            prop_assert_eq!(
                (stats.in_flight, stats.waiting, stats.abandoned, stats.rejected, stats.granted),
                (model.in_flight, model.queue.len(), model.abandoned, model.rejected, model.granted)
            );
            prop_assert_eq!(stats.started, started as u64);
            prop_assert_eq!(bulkhead.room(), model.limit.saturating_sub(model.in_flight));
        }
        drop((asking, slots));
        prop_assert_eq!((bulkhead.in_flight(), bulkhead.waiting()), (0, 0));
    }
}
