//! How large a service and the future of a call are: recorded, so that a growth is seen.
//!
//! Over an inner service of 8 bytes whose future takes 24 and whose request takes 8. What a layer adds is the
//! difference to the row before. A change here is no fault; it is to be made on purpose.

#![cfg(target_pointer_width = "64")]

use std::{
    convert::Infallible,
    future::{Ready, ready},
    task::{Context, Poll},
    time::Duration,
};

use buttress::{
    Backoff, Breaker, BreakerLayer, Budget, Bulkhead, BulkheadLayer, DeadlineLayer, EntryLayer,
    FallbackLayer, NoFallback, RetryLayer, Standard, TimeoutLayer,
};
use tower::{Layer, Service};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Clone)]
struct Tiny(#[expect(dead_code, reason = "a client is not nothing")] u64);

impl Service<u64> for Tiny {
    type Response = [u64; 2];
    type Error = Infallible;
    type Future = Ready<Result<[u64; 2], Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: u64) -> Self::Future {
        ready(Ok([request; 2]))
    }
}

/// Bytes of the service, and of the future of a call to it.
fn sizes<S: Service<u64>>(_: &S) -> (usize, usize) {
    (size_of::<S>(), size_of::<S::Future>())
}

#[test]
fn nothing_grows_by_accident() {
    let service = Tiny(7);
    let mut seen = vec![("inner", sizes(&service))];
    let service = TimeoutLayer::new(SECOND).layer(service);
    seen.push(("timeout", sizes(&service)));
    let service = BreakerLayer::new(Breaker::default()).layer(service);
    seen.push(("breaker", sizes(&service)));
    let service = RetryLayer::new(Backoff::default(), Budget::default()).layer(service);
    seen.push(("retry", sizes(&service)));
    let service = DeadlineLayer::new(SECOND).layer(service);
    seen.push(("deadline", sizes(&service)));
    let service = BulkheadLayer::new(Bulkhead::default()).layer(service);
    seen.push(("bulkhead", sizes(&service)));
    let service = EntryLayer::new(SECOND).layer(service);
    seen.push(("entry", sizes(&service)));
    let service = FallbackLayer::new(NoFallback).layer(service);
    seen.push(("fallback", sizes(&service)));
    seen.push(("standard", sizes(&Standard::generic().build().unwrap().layer(Tiny(7)))));

    assert_eq!(
        seen,
        [
            ("inner", (8, 24)),
            ("timeout", (32, 184)),
            ("breaker", (48, 224)),
            ("retry", (64, 296)),
            ("deadline", (88, 448)),
            ("bulkhead", (96, 456)),
            ("entry", (120, 480)),
            ("fallback", (120, 480)),
            // Its timeout keeps no timer of its own.
            ("standard", (120, 376)),
        ]
    );
}
