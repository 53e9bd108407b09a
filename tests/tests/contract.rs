//! Every layer, and the whole stack, keeps the contract that all layers share.

use std::time::Duration;

use buttress::{
    Backoff, Breaker, BreakerLayer, Budget, Bulkhead, BulkheadLayer, BulkheadSettings, Cause,
    DeadlineLayer, FallbackLayer, FixedLimit, RetryLayer, Shed, ShedLayer, ShedSettings, Standard,
    TimeoutLayer,
    http::{GrpcHeadLayer, GrpcReplay, hyper},
};
use buttress_test::{Probe, Subject, contract};
use bytes::Bytes;
use http_body_util::Full;
use tower::{Layer, layer::layer_fn};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn deadline_keeps_the_contract() {
    contract(|| Subject::stateless(DeadlineLayer::new(SECOND)), || 1_u32, || 2_u32);
}

#[test]
fn timeout_keeps_the_contract() {
    contract(|| Subject::stateless(TimeoutLayer::new(SECOND)), || 1_u32, || 2_u32);
}

#[test]
fn retry_keeps_the_contract() {
    let layer = || RetryLayer::new(Backoff::default(), Budget::default());
    contract(|| Subject::stateless(layer()), || 1_u32, || 2_u32);
}

#[test]
fn breaker_keeps_the_contract() {
    let make = || {
        let breaker = Breaker::default();
        let handle = breaker.clone();
        Subject::new(BreakerLayer::new(breaker), move || in_flight(&handle))
    };
    contract(make, || 1_u32, || 2_u32);
}

fn in_flight(breaker: &Breaker) -> usize {
    usize::try_from(breaker.stats().in_flight()).unwrap()
}

#[test]
fn bulkhead_keeps_the_contract_with_a_queue_and_without() {
    for waiting in [0, 4] {
        let make = || {
            let settings = BulkheadSettings::new(3).max_waiting(waiting).max_wait(SECOND);
            let bulkhead = Bulkhead::new(settings).unwrap();
            let handle = bulkhead.clone();
            Subject::new(BulkheadLayer::new(bulkhead), move || handle.in_flight())
        };
        contract(make, || 1_u32, || 2_u32);
    }
}

#[test]
fn shed_keeps_the_contract() {
    let make = || {
        let shed = Shed::new(FixedLimit::new(3).unwrap(), ShedSettings::default()).unwrap();
        let handle = shed.clone();
        Subject::new(ShedLayer::new(shed), move || handle.in_flight())
    };
    contract(make, || 1_u32, || 2_u32);
}

#[test]
fn fallback_keeps_the_contract() {
    let layer = || FallbackLayer::respond_with(|_: &Cause<u32>| 3);
    contract(|| Subject::stateless(layer()), || 1_u32, || 2_u32);
}

// BLK-02, BLK-11
#[test]
fn the_whole_stack_keeps_the_contract() {
    let make = || {
        let stack = Standard::generic().build().unwrap();
        let (bulkhead, breaker) = (stack.bulkhead().clone(), stack.breakers().clone());
        Subject::new(stack, move || bulkhead.in_flight().max(in_flight(&breaker)))
    };
    contract(make, || 1_u32, || 2_u32);
}

// BLK-11
#[test]
fn the_whole_http_stack_keeps_the_contract() {
    type Request = http::Request<Full<Bytes>>;
    let make = || {
        let stack = Standard::http().build().unwrap();
        let bulkhead = stack.bulkhead().clone();
        let layer = layer_fn(move |probe: Probe<Request, http::Response<Full<Bytes>>>| {
            stack.layer(hyper(probe))
        });
        Subject::new(layer, move || bulkhead.in_flight())
    };
    let request = || Request::new(Full::from("ping"));
    contract(make, request, || http::Response::new(Full::from("pong")));
}

#[test]
fn the_whole_grpc_stack_keeps_the_contract() {
    type Request = http::Request<Full<Bytes>>;
    let make = || {
        let replay = GrpcReplay::none().clone_bodies();
        let stack = Standard::grpc("orders").replay(replay).build().unwrap();
        let (bulkhead, breaker) = (stack.bulkhead().clone(), stack.breakers().clone());
        let layer = layer_fn(move |probe: Probe<Request, http::Response<Full<Bytes>>>| {
            stack.layer(GrpcHeadLayer::new().layer(hyper(probe)))
        });
        Subject::new(layer, move || bulkhead.in_flight().max(in_flight(&breaker)))
    };
    let response = || {
        let head = http::Response::builder().header("grpc-status", "0");
        head.body(Full::from("pong")).unwrap()
    };
    contract(make, || Request::new(Full::from("ping")), response);
}
