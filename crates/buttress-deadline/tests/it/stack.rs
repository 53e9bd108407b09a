//! Limits upon limits.

use std::{convert::Infallible, time::Duration};

use buttress_core::{BoxError, edge};
use buttress_deadline::{DeadlineLayer, Limit, TimeoutLayer};
use futures_util::future::BoxFuture;
use proptest::prelude::*;
use tokio::time::advance;
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneService};

use crate::support::{attempt, elapsed, ms, secs, silent, timed, total};

#[derive(Clone, Copy, Debug)]
enum Layered {
    Deadline(u64),
    Attempt(u64),
    CallOnly(u64),
}

impl Layered {
    const fn limit(self) -> u64 {
        match self {
            Self::Deadline(n) | Self::Attempt(n) | Self::CallOnly(n) => n,
        }
    }
}

fn layered() -> impl Strategy<Value = Layered> {
    (1..6_u64, 0..3).prop_map(|(n, kind)| match kind {
        0 => Layered::Deadline(n),
        1 => Layered::Attempt(n),
        _ => Layered::CallOnly(n),
    })
}

proptest! {
    /// Whatever is stacked upon whatever: it ends at the smallest limit, and the outermost of those that
    /// end there speaks.
    #[test]
    fn of_many_limits_the_smallest_ends_it_and_the_outermost_speaks(
        layers in prop::collection::vec(layered(), 1..6)
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        // Outermost first.
        let smallest = layers.iter().map(|layer| layer.limit()).min().unwrap();
        let speaks = layers.iter().find(|layer| layer.limit() == smallest).unwrap();
        let expected = match speaks {
            Layered::Deadline(n) => total(secs(*n)),
            Layered::Attempt(n) | Layered::CallOnly(n) => attempt(secs(*n)),
        };
        runtime.block_on(async {
            type Boxed = BoxCloneService<u32, u32, BoxError>;
            let mut service: Boxed = BoxCloneService::new(silent().map_err(Into::into));
            for layer in layers.iter().rev() {
                service = match *layer {
                    Layered::Deadline(n) => BoxCloneService::new(DeadlineLayer::new(secs(n)).layer(service)),
                    Layered::Attempt(n) => BoxCloneService::new(TimeoutLayer::new(secs(n)).layer(service)),
                    Layered::CallOnly(n) => BoxCloneService::new(TimeoutLayer::call_only(secs(n)).layer(service)),
                };
            }
            let (answer, took) = timed(service).await;
            prop_assert_eq!((elapsed(answer), took), (expected, secs(smallest)));
            Ok(())
        })?;
    }
}

/// Always has work, and uses up the whole of its task's budget in every poll.
fn glutton() -> BoxFuture<'static, Result<u32, Infallible>> {
    Box::pin(async {
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        loop {
            sender.send(()).unwrap();
            receiver.recv().await;
        }
    })
}

/// A paused clock stands still while a task is busy, so it is pushed on by hand.
async fn pushing_the_clock<T: Send + 'static>(
    busy: impl Future<Output = T> + Send + 'static,
) -> Option<(T, Duration)> {
    let start = edge::now();
    let mut busy = tokio::spawn(busy);
    for _ in 0..1000 {
        tokio::select! {
            biased;
            done = &mut busy => return Some((done.unwrap(), edge::now() - start)),
            () = advance(ms(1)) => {}
        }
    }
    busy.abort();
    None
}

#[tokio::test(start_paused = true)]
async fn an_inner_future_that_is_always_busy_cannot_put_off_the_end() {
    let busy = || service_fn(|_: u32| glutton());
    let attempts = DeadlineLayer::new(ms(200)).layer(TimeoutLayer::new(ms(50)).layer(busy()));
    let (answer, took) = pushing_the_clock(attempts.oneshot(1)).await.expect("an end");
    assert_eq!(elapsed(answer).which(), Limit::Attempt);
    assert!((ms(50)..ms(150)).contains(&took), "{took:?}");

    let request = DeadlineLayer::new(ms(50)).layer(busy());
    let (answer, _) = pushing_the_clock(request.oneshot(1)).await.expect("an end");
    assert_eq!(elapsed(answer), total(ms(50)));

    let only = TimeoutLayer::call_only(ms(50)).layer(busy());
    let (answer, _) = pushing_the_clock(only.oneshot(1)).await.expect("an end");
    assert_eq!(elapsed(answer), attempt(ms(50)));

    // That the glutton is one: it starves a bare timer.
    let starved = tower::timeout::TimeoutLayer::new(ms(50)).layer(busy());
    assert!(pushing_the_clock(starved.oneshot(1)).await.is_none());
}
