//! A server of fixed concurrency under an open load of twice what it can do, in virtual time.
//!
//! Capacity is 24 places / 25 ms = 960 requests a second; callers come by a Poisson process and wait for
//! 300 ms. They do not tell when they leave: work that has begun is done to its end. The dice are seeded,
//! so every number here is the outcome of the seed; what is asserted leaves a margin.

use std::{cell::RefCell, rc::Rc, time::Duration};

use buttress_core::{BoxError, edge};
use buttress_shed::{Priority, Shed, ShedLayer, ShedSettings};
use tokio::{task::LocalSet, time::sleep};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::support::{ms, with};

const PLACES: usize = 24;
const MEAN: f64 = 0.025;
const PATIENCE: Duration = Duration::from_millis(300);
const LASTS: Duration = Duration::from_secs(10);
const CAPACITY: f64 = PLACES as f64 / MEAN;

/// What became of one request.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ended {
    priority: Priority,
    at: Duration,
    took: Duration,
    is_served: bool,
}

#[derive(Debug)]
struct Outcome {
    ended: Vec<Ended>,
}

impl Outcome {
    fn served(&self) -> impl Iterator<Item = &Ended> {
        self.ended.iter().filter(|ended| ended.is_served && ended.took <= PATIENCE)
    }

    /// Those who were served in time, as a share of what the server could have done.
    fn goodput(&self) -> f64 {
        let in_time = self.served().filter(|ended| ended.at <= LASTS).count();
        in_time as f64 / (CAPACITY * LASTS.as_secs_f64())
    }

    /// The 99th percentile of all answers that the server worked for.
    fn p99(&self) -> Duration {
        let worked = self.ended.iter().filter(|ended| ended.is_served);
        let mut took: Vec<_> = worked.map(|ended| ended.took).collect();
        took.sort();
        took[took.len() * 99 / 100]
    }

    fn slowest_refusal(&self) -> Duration {
        let refused = self.ended.iter().filter(|ended| !ended.is_served);
        refused.map(|ended| ended.took).max().unwrap_or_default()
    }

    /// The share of those of that priority who were served in time.
    fn success(&self, priority: Priority) -> f64 {
        let of = |ended: &&Ended| ended.priority == priority;
        self.served().filter(of).count() as f64 / self.ended.iter().filter(of).count() as f64
    }
}

fn exponential(mean: f64) -> Duration {
    Duration::from_secs_f64(-(1.0 - edge::unit()).ln() * mean)
}

/// Ten seconds of `load` times the capacity; `mix` makes a priority of a number from 0 to 1.
fn simulate(shed: &Shed, load: f64, mix: fn(f64) -> Priority, seed: u64) -> Outcome {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(LocalSet::new().run_until(async {
        edge::seed(seed);
        let work = service_fn(|(_, work): (Priority, Duration)| async move {
            sleep(work).await;
            Ok::<_, BoxError>(())
        });
        let by_itself = |(priority, _): &(Priority, Duration)| *priority;
        let server = ShedLayer::new(shed.clone()).prioritize(by_itself).layer(work);
        let ended = Rc::new(RefCell::new(Vec::new()));
        let start = edge::now();
        let mut next = start;
        let mut callers = Vec::new();
        while next - start < LASTS {
            next += exponential(1.0 / (CAPACITY * load));
            tokio::time::sleep_until(next).await;
            let priority = mix(edge::unit());
            // The clock ticks in milliseconds, and rounds up: half of one on average.
            let work = exponential(MEAN - 0.0005);
            let (mut server, ended) = (server.clone(), ended.clone());
            callers.push(tokio::task::spawn_local(async move {
                let came = edge::now();
                let is_served = server.ready().await.unwrap().call((priority, work)).await.is_ok();
                let (at, took) = (edge::now() - start, edge::now() - came);
                ended.borrow_mut().push(Ended { priority, at, took, is_served });
            }));
        }
        for caller in callers {
            caller.await.unwrap();
        }
        Outcome { ended: ended.take() }
    }))
}

fn all_alike(_: f64) -> Priority {
    Priority::Critical
}

/// 20 % are critical, and 40 % each of the sheddable ones.
fn mixed(unit: f64) -> Priority {
    match unit {
        u if u < 0.2 => Priority::Critical,
        u if u < 0.6 => Priority::SheddablePlus,
        _ => Priority::Sheddable,
    }
}

/// The fault: a queue without end, first come, first served.
fn fifo() -> ShedSettings {
    ShedSettings::default().target(Duration::MAX).interval(Duration::MAX).max_queue(usize::MAX)
}

#[test]
fn at_twice_the_load_nearly_all_capacity_serves_callers_who_are_still_there() {
    for seed in [1, 2, 3] {
        let ours = simulate(&with(PLACES, ShedSettings::default()), 2.0, all_alike, seed);
        let fifo = simulate(&with(PLACES, fifo()), 2.0, all_alike, seed);
        println!(
            "seed {seed}: {:.3} {:?} {:?}; fifo {:.3} {:?}",
            ours.goodput(),
            ours.p99(),
            ours.slowest_refusal(),
            fifo.goodput(),
            fifo.p99()
        );
        assert!(ours.goodput() >= 0.90, "{:.3}", ours.goodput());
        assert!(ours.p99() < ms(200), "{:?}", ours.p99());
        assert!(ours.slowest_refusal() <= ms(101), "{:?}", ours.slowest_refusal());
        assert!(fifo.goodput() < 0.15, "the test must tell them apart: {:.3}", fifo.goodput());
        assert!(fifo.p99() > Duration::from_secs(5), "{:?}", fifo.p99());
    }
}

#[test]
fn a_run_can_be_repeated() {
    let run = || simulate(&with(PLACES, ShedSettings::default()), 2.0, mixed, 5);
    let (one, other) = (run(), run());
    assert!(one.ended == other.ended, "to the nanosecond");
}

#[test]
fn at_twice_the_load_those_who_matter_do_not_notice() {
    let outcome = simulate(&with(PLACES, ShedSettings::default()), 2.0, mixed, 1);
    let [critical, plus, sheddable] =
        [Priority::Critical, Priority::SheddablePlus, Priority::Sheddable]
            .map(|priority| outcome.success(priority));
    println!("{critical:.3} {plus:.3} {sheddable:.3} {:.3}", outcome.goodput());
    assert!(critical >= 0.99, "{critical:.3}");
    assert!((0.5..0.95).contains(&plus), "{plus:.3}");
    assert!(sheddable <= 0.15, "{sheddable:.3}");
    assert!(outcome.goodput() >= 0.90, "{:.3}", outcome.goodput());
}

#[test]
fn a_load_that_fits_is_served_and_nobody_is_refused() {
    let shed = with(PLACES, ShedSettings::default());
    let outcome = simulate(&shed, 0.7, all_alike, 1);
    assert_eq!(outcome.served().count(), outcome.ended.len());
    let stats = shed.stats();
    assert_eq!((stats.overloaded, stats.expired, stats.in_flight), (0, 0, 0));
}
