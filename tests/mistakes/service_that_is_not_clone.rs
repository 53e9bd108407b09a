//! A service that is one connection, in layers that call clones of it.
//~ implement `Clone` for it, or put it into a `tower::buffer::Buffer`
//~ the one limit that clones nothing is `TimeoutLayer::call_only`

use std::{
    future::{Ready, ready},
    io,
    task::{Context, Poll},
    time::Duration,
};

use buttress::{Backoff, Budget, Bulkhead, BulkheadLayer, DeadlineLayer, RetryLayer, Standard};
use tower::{Layer, Service};

struct Connection;

impl Service<u32> for Connection {
    type Response = u32;
    type Error = io::Error;
    type Future = Ready<io::Result<u32>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, n: u32) -> Self::Future {
        ready(Ok(n))
    }
}

fn main() {
    // The innermost layer of it is a `TimeoutLayer`.
    let service = Standard::generic().build().unwrap().layer(Connection);
    buttress::check::<u32, _>(&service); //~ the service `Connection` is not `Clone`

    let service = DeadlineLayer::new(Duration::from_secs(1)).layer(Connection);
    buttress::check::<u32, _>(&service); //~ the service `Connection` is not `Clone`

    let service = RetryLayer::new(Backoff::default(), Budget::default()).layer(Connection);
    buttress::check::<u32, _>(&service); //~ the service `Connection` is not `Clone`

    let service = BulkheadLayer::new(Bulkhead::default()).layer(Connection);
    buttress::check::<u32, _>(&service); //~ the service `Connection` is not `Clone`
}
