//! Errors that become a `BoxError`, under each layer, and any error under those that ask for none.
// HTP-07

use std::{convert::Infallible, error::Error, future::pending, io, time::Duration};

use buttress::{
    Backoff, BoxError, Breaker, BreakerLayer, BreakerSettings, Budget, Bulkhead, BulkheadLayer,
    CarryLayer, Cause, ConnectTimeoutLayer, DeadlineLayer, EntryLayer, FallbackLayer, ResumeLayer,
    RetryLayer, Standard, TimeoutLayer, check,
    http::{
        Body, GrpcHeadLayer, ReceiveDeadlineLayer, RejectedAsResponseLayer, SendDeadlineLayer,
        hyper, tonic,
    },
};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Layer, Service, service_fn};

type Answer = Response<Full<Bytes>>;

fn fails<Req, Res, E>() -> impl Service<Req, Response = Res, Error = E> + Clone {
    service_fn(|_| pending::<Result<Res, E>>())
}

fn zero(_: &Cause<u32>) -> u32 {
    0
}

fn each_layer<E: Into<BoxError>>() {
    let second = Duration::from_secs(1);
    let inner = || fails::<u32, u32, E>();
    let stack = Standard::generic().build().unwrap();
    let breaker = Breaker::new(BreakerSettings::default()).unwrap();
    check::<u32, _>(&stack.layer(inner()));
    check::<u32, _>(&FallbackLayer::respond_with(zero).layer(inner()));
    check::<u32, _>(&BulkheadLayer::new(Bulkhead::default()).layer(inner()));
    check::<u32, _>(&DeadlineLayer::new(second).layer(inner()));
    check::<u32, _>(&EntryLayer::new(second).layer(inner()));
    check::<u32, _>(&CarryLayer.layer(ResumeLayer.layer(inner())));
    check::<u32, _>(&RetryLayer::new(Backoff::default(), Budget::default()).layer(inner()));
    check::<u32, _>(&BreakerLayer::new(breaker).layer(inner()));
    check::<u32, _>(&TimeoutLayer::new(second).layer(inner()));
    check::<u32, _>(&TimeoutLayer::call_only(second).layer(inner()));
    check::<u32, _>(&ConnectTimeoutLayer::default().layer(inner()));

    let inner = || fails::<Request<()>, Answer, E>();
    check::<Request<()>, _>(&RejectedAsResponseLayer::new().layer(inner()));
    check::<Request<()>, _>(&ReceiveDeadlineLayer::grpc().layer(inner()));
    check::<Request<()>, _>(&SendDeadlineLayer::grpc().layer(inner()));
    check::<Request<()>, _>(&GrpcHeadLayer::new().layer(inner()));
    check::<Request<()>, _>(&hyper(inner()));
    let channel = fails::<Request<::tonic::body::Body>, Answer, E>();
    check::<Request<Body<Full<Bytes>>>, _>(&tonic(channel));
}

/// What asks nothing of the error passes on any.
fn any_error<E>() {
    fn serves<Req, E>(_: impl Service<Req, Error = E>) {}
    let second = Duration::from_secs(1);
    serves::<u32, E>(EntryLayer::new(second).layer(fails::<_, u32, E>()));
    serves::<u32, E>(CarryLayer.layer(ResumeLayer.layer(fails::<u32, u32, E>())));
    serves::<Request<()>, E>(SendDeadlineLayer::grpc().layer(fails::<_, Answer, E>()));
}

struct Broken;

fn main() {
    each_layer::<Infallible>();
    each_layer::<BoxError>();
    each_layer::<io::Error>();
    each_layer::<String>();
    each_layer::<&str>();
    any_error::<Broken>();
    any_error::<Box<dyn Error>>();
}
