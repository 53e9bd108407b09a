//! Ten thousand callers, of whom most walk away: whatever they had is given back, and every count adds up.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use buttress::{
    BoxError, BreakerSettings, BudgetSettings, BulkheadSettings, Context, RetrySettings, Standard,
    Window, edge,
};
use tokio::time::{sleep, timeout};
use tower::{Layer, ServiceExt, service_fn};

fn below(n: u32) -> u32 {
    (edge::unit() * f64::from(n)) as u32
}

/// Does what a callee does on a bad day. Counts the attempts that are not the first.
async fn moody(repeats: Arc<AtomicU64>) -> Result<u32, BoxError> {
    if Context::current().attempt() > 1 {
        repeats.fetch_add(1, Relaxed);
    }
    match below(8) {
        0 | 1 => Ok(1),
        2 => {
            sleep(Duration::from_millis(u64::from(below(50)))).await;
            Ok(2)
        }
        3 | 4 => Err("no".into()),
        5 => std::future::pending().await,
        6 => {
            tokio::task::yield_now().await;
            Err("not now".into())
        }
        _ => {
            sleep(Duration::from_millis(u64::from(below(20)))).await;
            panic!("planted")
        }
    }
}

// OPS-02
#[test]
fn whoever_walks_away_leaves_nothing_behind() {
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info.payload().downcast_ref() != Some(&"planted") {
            loud(info);
        }
    }));
    edge::seed(11);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let stack = Standard::generic()
            .total(Duration::from_millis(200))
            .attempt(Duration::from_millis(40))
            .retry(RetrySettings::default().base(Duration::from_millis(2)))
            .budget(BudgetSettings::default().ratio(1.0).refill(100.0))
            .bulkhead(BulkheadSettings::new(20).max_waiting(10).max_wait(Duration::from_millis(30)))
            .breaker(
                BreakerSettings::default()
                    .window(Window::time(Duration::from_millis(100)))
                    .failure_rate(0.65)
                    .open(Duration::from_millis(50))
                    .open_max(Duration::from_millis(100)),
            )
            .build()
            .unwrap();
        let repeats = Arc::new(AtomicU64::new(0));
        let counted = repeats.clone();
        let service = stack.layer(service_fn(move |_: u32| moody(counted.clone())));

        let mut callers = tokio::task::JoinSet::new();
        for n in 0..10_000 {
            let call = service.clone().oneshot(n);
            let patience = Duration::from_micros(u64::from(below(100_000)));
            let polls = 1 + below(12);
            callers.spawn(async move {
                // Some walk away after a while, some after so many polls, some stay.
                let mut call = std::pin::pin!(call);
                match n % 3 {
                    0 => drop(timeout(patience, call).await),
                    1 => {
                        for _ in 0..polls {
                            if futures_util::poll!(call.as_mut()).is_ready() {
                                break;
                            }
                            sleep(Duration::from_millis(1)).await;
                        }
                    }
                    _ => drop(call.await),
                }
            });
            if n % 4 == 0 {
                sleep(Duration::from_millis(1)).await;
            }
        }
        while callers.join_next().await.is_some() {}

        let bulkhead = stack.bulkhead().stats();
        assert_eq!((bulkhead.in_flight, bulkhead.waiting), (0, 0));
        assert_eq!(bulkhead.started, 10_000, "every caller asked once");
        assert_eq!(bulkhead.granted, bulkhead.finished);
        let refused =
            bulkhead.rejected + bulkhead.timed_out + bulkhead.expired + bulkhead.abandoned;
        assert_eq!(bulkhead.granted + refused, 10_000, "and got one answer");
        assert!(bulkhead.rejected > 0 && bulkhead.abandoned > 0, "{bulkhead:?}");

        let breaker = stack.breakers().stats();
        assert_eq!(breaker.in_flight(), 0, "{breaker:?}");
        assert!(breaker.rejected > 0 && breaker.dropped > 0 && breaker.opened > 1, "{breaker:?}");
        assert!(breaker.started < 10_000 * 3 && breaker.failure > 0);

        let budget = stack.budget().stats();
        assert_eq!(budget.granted - budget.refunded, repeats.load(Relaxed), "{budget:?}");
        assert!(budget.refunded > 0 && repeats.load(Relaxed) > 0);

        // And it still works.
        let mut tries = 0;
        while !matches!(tokio::spawn(service.clone().oneshot(0)).await, Ok(Ok(_))) {
            sleep(Duration::from_millis(50)).await;
            tries += 1;
            assert!(tries < 1_000, "no call succeeds any more");
        }
    });
}
