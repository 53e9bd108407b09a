//! What many requests and many keys cost, for `cargo xtask bench`.
//!
//! A program of its own, since it counts with an allocator, which would slow down all that the others measure.

use std::{
    future::Future,
    pin::Pin,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    task::{Context, Poll, Waker},
    time::Duration,
};

use allocation_counter::measure;
use buttress::{BreakerSettings, Breakers, BulkheadSettings, Cause, Select, Standard};
use rustix::time::{ClockId, clock_gettime};
use tokio::{runtime::Builder, task::yield_now};
use tower_layer::Layer;
use tower_service::Service;

/// In flight at once.
const REQUESTS: usize = 100_000;

/// Each with a breaker of its own.
const KEYS: u64 = 50_000;

/// Never answers.
#[derive(Clone, Copy, Debug)]
struct Hangs;

/// Counts its polls in [`POLLS`].
#[derive(Debug)]
struct Never;

static POLLS: AtomicUsize = AtomicUsize::new(0);

impl Service<u64> for Hangs {
    type Response = u64;
    type Error = std::io::Error;
    type Future = Never;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), std::io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: u64) -> Never {
        Never
    }
}

impl Future for Never {
    type Output = Result<u64, std::io::Error>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        POLLS.fetch_add(1, Relaxed);
        Poll::Pending
    }
}

fn main() {
    let stack = Standard::generic()
        .bulkhead(BulkheadSettings::new(REQUESTS))
        .fallback(|_: &Cause<u64>| 0)
        .build()
        .expect("the settings are sound");
    let (bare, bare_cancelled) = in_flight(Hangs);
    let (stacked, cancelled) = in_flight(stack.layer(Hangs));
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    println!(
        "{REQUESTS}\t{bare:.0}\t{:.1}\t{stacked:.0}\t{:.1}",
        ms(bare_cancelled),
        ms(cancelled)
    );
    println!("{KEYS}\t{:.0}", bytes_a_key());
}

/// The bytes on the heap of each of many requests, a task each, and how long it takes to cancel them all.
fn in_flight<S>(mut service: S) -> (f64, Duration)
where
    S: Service<u64, Response = u64, Error: Send + 'static, Future: Send + 'static>,
{
    let runtime = Builder::new_current_thread().enable_time().build().expect("there are threads");
    let mut tasks = Vec::with_capacity(REQUESTS);
    POLLS.store(0, Relaxed);
    let held = measure(|| {
        runtime.block_on(async {
            let mut cx = Context::from_waker(Waker::noop());
            for request in 0..REQUESTS as u64 {
                assert!(service.poll_ready(&mut cx).is_ready());
                tasks.push(tokio::spawn(service.call(request)));
            }
            while POLLS.load(Relaxed) < REQUESTS {
                yield_now().await;
            }
        });
    });
    let start = now();
    runtime.block_on(async {
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
        for task in tasks {
            assert!(task.await.is_err_and(|error| error.is_cancelled()));
        }
    });
    (held.bytes_current as f64 / REQUESTS as f64, now() - start)
}

/// The bytes on the heap of each of many breakers by key, with the map.
fn bytes_a_key() -> f64 {
    let settings = BreakerSettings::default();
    let breakers = Breakers::with_capacity(KEYS as usize, settings, |key: &u64| *key);
    let breakers = breakers.expect("the settings are sound");
    let held = measure(|| (0..KEYS).for_each(|key| drop(breakers.select(&key))));
    assert_eq!(breakers.len() as u64, KEYS);
    held.bytes_current as f64 / KEYS as f64
}

fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
