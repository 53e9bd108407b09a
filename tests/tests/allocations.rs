//! What succeeds costs no heap.
//!
//! Counted by an allocator of this test binary's own, around a whole call: readiness, `call`, polls, and
//! the drop of all that it used. The inner service answers at once; its requests are `u64`, whose clone is
//! free.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
    time::Duration,
};

use allocation_counter::measure;
use buttress::{
    Backoff, Breaker, BreakerLayer, BreakerSettings, Breakers, Budget, Bulkhead, BulkheadLayer,
    Cause, DeadlineLayer, FallbackLayer, Fence, FenceGuard, FencingToken, FixedLimit, LeaseId,
    RetryLayer, Select, Shed, ShedLayer, ShedSettings, Standard, TimeoutLayer,
    http::{
        ByAuthority, FencingLayer, GrpcHeadLayer, GrpcReplay, LEADERSHIP_FENCE, SendFenceLayer,
        hyper, tonic as tonic_adapter,
    },
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

/// Answers when it is polled again, as who asks a network does: so timers are armed.
#[derive(Clone, Copy, Debug)]
struct Later;

impl Service<u64> for Later {
    type Response = u64;
    type Error = Infallible;
    type Future = Pending;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: u64) -> Pending {
        Pending { request, is_polled: false }
    }
}

struct Pending {
    request: u64,
    is_polled: bool,
}

impl Future for Pending {
    type Output = Result<u64, Infallible>;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        if std::mem::replace(&mut self.is_polled, true) {
            return Poll::Ready(Ok(self.request));
        }
        Poll::Pending
    }
}

/// Allocations of one call to `inner`, after two that warm up what is made once.
fn allocations<L, S>(layer: &L, inner: S) -> u64
where
    L: Layer<S, Service: Service<u64, Response = u64, Error: std::fmt::Debug>>,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _in = runtime.enter();
    let mut service = layer.layer(inner);
    let mut cx = Context::from_waker(Waker::noop());
    let mut call = || {
        assert!(matches!(service.poll_ready(&mut cx), Poll::Ready(Ok(()))));
        let mut call = pin!(service.call(7));
        let mut answer = call.as_mut().poll(&mut cx);
        if answer.is_pending() {
            answer = call.poll(&mut cx);
        }
        assert!(matches!(answer, Poll::Ready(Ok(7))));
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
        ("deadline", allocations(&DeadlineLayer::new(SECOND), Echo)),
        ("timeout", allocations(&TimeoutLayer::new(SECOND), Echo)),
        ("retry", allocations(&RetryLayer::new(Backoff::default(), Budget::default()), Echo)),
        ("breaker", allocations(&BreakerLayer::new(Breaker::default()), Echo)),
        ("bulkhead", allocations(&BulkheadLayer::new(Bulkhead::default()), Echo)),
        ("shed", allocations(&ShedLayer::new(shed), Echo)),
        ("fallback", allocations(&FallbackLayer::respond_with(|_: &Cause<u64>| 0), Echo)),
        ("all six", allocations(&Standard::generic().build().unwrap(), Echo)),
    ];
    for (layer, count) in counted {
        assert_eq!(count, 0, "{layer}");
    }
}

#[test]
fn nor_does_a_limit_or_the_stack_where_the_answer_comes_later() {
    let counted = [
        ("deadline", allocations(&DeadlineLayer::new(SECOND), Later)),
        ("timeout", allocations(&TimeoutLayer::new(SECOND), Later)),
        ("all six", allocations(&Standard::generic().build().unwrap(), Later)),
    ];
    for (layer, count) in counted {
        assert_eq!(count, 0, "{layer}");
    }
    let alone = TimeoutLayer::new(SECOND).beneath_deadline();
    assert_eq!(allocations(&alone, Later), 1, "with no deadline above there is no timer to borrow");
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

/// Answers at once with the request's body, as tonic's channel would.
#[derive(Clone, Copy)]
struct TonicEcho;

impl Service<http::Request<tonic::body::Body>> for TonicEcho {
    type Response = http::Response<tonic::body::Body>;
    type Error = tonic::transport::Error;
    type Future = Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        ready(Ok(http::Response::new(request.into_body())))
    }
}

/// Allocations of one call, its answer read to the end: those of the service alone, for the request is made
/// before.
fn of_call<S, B, ResB>(mut service: S, request: impl Fn() -> http::Request<B>) -> u64
where
    S: Service<http::Request<B>, Response = http::Response<ResB>, Error: std::fmt::Debug>,
    ResB: http_body::Body<Error: std::fmt::Debug>,
{
    let mut cx = Context::from_waker(Waker::noop());
    let mut call = |request| {
        assert!(matches!(service.poll_ready(&mut cx), Poll::Ready(Ok(()))));
        let Poll::Ready(answer) = pin!(service.call(request)).poll(&mut cx) else { panic!() };
        let mut body = pin!(answer.unwrap().into_body());
        while let Poll::Ready(Some(frame)) = body.as_mut().poll_frame(&mut cx) {
            frame.unwrap();
        }
    };
    call(request());
    let request = request();
    measure(|| call(request)).count_total
}

#[test]
fn to_compare_a_token_costs_nothing_and_to_send_one_its_header() {
    const LEASE: LeaseId = LeaseId::of("orders");
    let bare = || http::Request::new(Full::<Bytes>::default());
    let told = || {
        let mut request = bare();
        request.headers_mut().insert(LEADERSHIP_FENCE, 34_u64.into());
        request
    };
    let resource = FencingLayer::new(FenceGuard::new(LEASE)).layer(HttpEcho);
    assert_eq!(of_call(resource, told), 0);
    let term = FencingToken::new(34).map(|token| Fence::new(LEASE, token));
    let client = SendFenceLayer::new(LEASE).layer(HttpEcho);
    let sent = Fence::within(term, || of_call(client, bare));
    assert_eq!(sent, measure(|| drop(told())).count_total);
}

#[test]
fn a_call_through_tonics_adapter_costs_one_box_for_a_body_that_is_not_tonics() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _in = runtime.enter();
    let message = || Full::<bytes::Bytes>::from("message");
    let tonics = || http::Request::new(tonic::body::Body::new(message()));
    assert_eq!(of_call(TonicEcho, tonics), 0);
    assert_eq!(of_call(tonic_adapter(TonicEcho), tonics), 0, "it is tonic's already");
    assert_eq!(of_call(tonic_adapter(TonicEcho), || http::Request::new(message())), 1);
    let empty = || http::Request::new(Full::<bytes::Bytes>::default());
    assert_eq!(of_call(tonic_adapter(TonicEcho), empty), 0);
}

#[test]
fn a_generated_clients_call_costs_its_copy_its_record_and_one_box_an_attempt() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _in = runtime.enter();
    let stack = Standard::grpc("orders").build().unwrap();
    let request = || {
        http::Request::post("/shop.Orders/Get")
            .body(tonic::body::Body::new(Full::<bytes::Bytes>::from("message")))
            .unwrap()
    };
    let service = stack.layer(GrpcHeadLayer::new().layer(tonic_adapter(TonicEcho)));
    let (head, _) = request().into_parts();
    let copy = measure(|| drop(head.clone())).count_total;
    // The body's own place, what both halves of the record share, and a list of frames.
    let record = 3;
    assert_eq!(of_call(service, request), copy + record + 1);
}
