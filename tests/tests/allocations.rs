//! What succeeds costs no heap.
//!
//! Counted by an allocator of this test binary's own, around a whole call: readiness, `call`, polls, and
//! the drop of all that it used. The inner service answers at once; its requests are `u64`, whose clone is
//! free.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use allocation_counter::measure;
use buttress::{
    Backoff, Breaker, BreakerLayer, BreakerSettings, Breakers, Budget, Bulkhead, BulkheadLayer,
    Cause, DeadlineLayer, FallbackLayer, FixedLimit, RetryLayer, Select, Shed, ShedLayer,
    ShedSettings, Standard, TimeoutLayer,
    http::{ByAuthority, GrpcHeadLayer, GrpcReplay, hyper},
};
use bytes::Bytes;
use http_body_util::Full;
use tower::{Layer, Service};

const SECOND: Duration = Duration::from_secs(1);

/// Answers at once.
#[derive(Clone, Copy, Debug)]
struct Echo;

impl Service<u64> for Echo {
    type Response = u64;
    type Error = Infallible;
    type Future = Ready<Result<u64, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: u64) -> Self::Future {
        ready(Ok(request))
    }
}

/// Allocations of one call, after two that warm up what is made once.
fn allocations<L>(layer: &L) -> u64
where
    L: Layer<Echo, Service: Service<u64, Response = u64, Error: std::fmt::Debug>>,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _in = runtime.enter();
    let mut service = layer.layer(Echo);
    let mut cx = Context::from_waker(Waker::noop());
    let mut call = || {
        assert!(matches!(service.poll_ready(&mut cx), Poll::Ready(Ok(()))));
        let call = pin!(service.call(7));
        assert!(matches!(call.poll(&mut cx), Poll::Ready(Ok(7))));
    };
    call();
    call();
    measure(call).count_total
}

#[test]
fn the_count_counts() {
    assert_eq!(measure(|| drop(std::hint::black_box(Box::new(7)))).count_total, 1);
}

#[test]
fn no_layer_allocates_where_the_call_succeeds() {
    let shed = Shed::new(FixedLimit::new(3).unwrap(), ShedSettings::default()).unwrap();
    let counted = [
        ("deadline", allocations(&DeadlineLayer::new(SECOND))),
        ("timeout", allocations(&TimeoutLayer::new(SECOND))),
        ("retry", allocations(&RetryLayer::new(Backoff::default(), Budget::default()))),
        ("breaker", allocations(&BreakerLayer::new(Breaker::default()))),
        ("bulkhead", allocations(&BulkheadLayer::new(Bulkhead::default()))),
        ("shed", allocations(&ShedLayer::new(shed))),
        ("fallback", allocations(&FallbackLayer::respond_with(|_: &Cause<u64>| 0))),
        ("all six", allocations(&Standard::generic().build().unwrap())),
    ];
    for (layer, count) in counted {
        assert_eq!(count, 0, "{layer}");
    }
}

#[test]
fn a_breaker_that_is_there_is_found_without_allocating() {
    let breakers = Breakers::new(BreakerSettings::default(), ByAuthority).unwrap();
    let by_uri = http::Request::get("http://Example.com:8080/a").body(()).unwrap();
    let by_header = http::Request::get("/b").header("host", "example.COM:8080").body(()).unwrap();
    for request in [by_uri, by_header] {
        drop(breakers.select(&request));
        assert_eq!(measure(|| drop(breakers.select(&request))).count_total, 0);
    }
    assert_eq!(breakers.len(), 1, "both name one host");
}

type Request = http::Request<Full<Bytes>>;
type Response = http::Response<Full<Bytes>>;

/// Answers at once with the request's body.
#[derive(Clone, Copy)]
struct HttpEcho;

impl Service<Request> for HttpEcho {
    type Response = Response;
    type Error = Infallible;
    type Future = Ready<Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        ready(Ok(http::Response::new(request.into_body())))
    }
}

#[test]
fn a_grpc_call_costs_its_copy_and_nothing_else() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _in = runtime.enter();
    let replay = GrpcReplay::none().clone_bodies();
    let stack = Standard::grpc("orders").replay(replay).build().unwrap();
    let mut service = stack.layer(GrpcHeadLayer::new().layer(hyper(HttpEcho)));
    let mut cx = Context::from_waker(Waker::noop());
    let mut call = |request: Request| {
        assert!(matches!(service.poll_ready(&mut cx), Poll::Ready(Ok(()))));
        let call = pin!(service.call(request));
        assert!(matches!(call.poll(&mut cx), Poll::Ready(Ok(_))));
    };
    let request = || http::Request::post("/shop.Orders/Get").body(Full::from("message")).unwrap();
    call(request());
    let (sent, copied) = (request(), request());
    let copy = measure(|| drop(copied.clone())).count_total;
    assert_eq!(measure(|| call(sent)).count_total, copy);
    assert_eq!(stack.breakers().stats().started, 2);
}

#[test]
fn an_http_request_costs_its_copy_and_nothing_else() {
    let request = |headers: usize| {
        let mut request = http::Request::get("http://example.com/").body(Full::default()).unwrap();
        for n in 0..headers {
            let name = http::HeaderName::try_from(format!("x-{n}")).unwrap();
            request.headers_mut().insert(name, http::HeaderValue::from_static("7"));
        }
        request
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _in = runtime.enter();
    let mut service = Standard::http().build().unwrap().layer(hyper(HttpEcho));
    let mut cx = Context::from_waker(Waker::noop());
    let mut call = |request: Request| {
        assert!(matches!(service.poll_ready(&mut cx), Poll::Ready(Ok(()))));
        let call = pin!(service.call(request));
        assert!(matches!(call.poll(&mut cx), Poll::Ready(Ok(_))));
    };
    call(request(0));
    for headers in [0, 1, 8] {
        let (sent, copied) = (request(headers), request(headers));
        let copy = measure(|| drop(copied.clone())).count_total;
        assert_eq!(measure(|| call(sent)).count_total, copy, "{headers} headers");
        assert_eq!(copy > 0, headers > 0);
    }
}
