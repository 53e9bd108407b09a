//! Errors that do not become a `BoxError`, under each layer. `fine/errors.rs` has those that do.
// HTP-07
//~ implement `std::error::Error` for it; it has to be `Send + Sync + 'static` too
//~ `ServiceBuilder::new().map_err(..).service(..)`

use std::{error::Error, future::pending, time::Duration};

use buttress::{
    Backoff, Breaker, BreakerLayer, BreakerSettings, Budget, Bulkhead, BulkheadLayer, Cause,
    ConnectTimeoutLayer, DeadlineLayer, EntryLayer, FallbackLayer, RetryLayer, Standard,
    TimeoutLayer, check,
    http::{
        GrpcHeadLayer, ReceiveDeadlineLayer, RejectedAsResponseLayer, SendDeadlineLayer, hyper,
        tonic,
    },
};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tower::{Layer, Service, service_fn};

type Question<B = Full<Bytes>> = Request<B>;
type Answer = Response<Full<Bytes>>;

/// What a service fails with, and is not made an error.
struct Broken;

/// An error, but none that another thread may have.
type Local = Box<dyn Error>;

fn fails<Req, Res, E>() -> impl Service<Req, Response = Res, Error = E> + Clone {
    service_fn(|_| pending::<Result<Res, E>>())
}

fn plain<E>() -> impl Service<u32, Response = u32, Error = E> + Clone {
    fails()
}

fn http<E>() -> impl Service<Question, Response = Answer, Error = E> + Clone {
    fails()
}

fn grpc<E>() -> impl Service<Question<tonic::body::Body>, Response = Answer, Error = E> + Clone {
    fails()
}

fn zero(_: &Cause<u32>) -> u32 {
    0
}

fn main() {
    let second = Duration::from_secs(1);
    // The innermost layer of it is a `TimeoutLayer`.
    let stack = Standard::generic().build().unwrap();
    let fallback = FallbackLayer::respond_with(zero);
    let bulkhead = BulkheadLayer::new(Bulkhead::default());
    let deadline = DeadlineLayer::new(second);
    let entry = EntryLayer::new(second);
    let connect = ConnectTimeoutLayer::default();
    let retry = RetryLayer::new(Backoff::default(), Budget::default());
    let breaker = BreakerLayer::new(Breaker::new(BreakerSettings::default()).unwrap());
    let call_only = TimeoutLayer::call_only(second);

    check::<u32, _>(&stack.layer(plain::<Broken>())); //~ the error `Broken` does not
    check::<u32, _>(&fallback.layer(plain::<Broken>())); //~ the error `Broken` does not
    check::<u32, _>(&bulkhead.layer(plain::<Broken>())); //~ the error `Broken` does not
    check::<u32, _>(&deadline.layer(plain::<Broken>())); //~ the error `Broken` does not
    check::<u32, _>(&entry.layer(plain::<Broken>())); //~ the error `Broken` does not
    check::<u32, _>(&retry.layer(plain::<Broken>())); //~ the error `Broken` does not
    check::<u32, _>(&breaker.layer(plain::<Broken>())); //~ the error `Broken` does not
    check::<u32, _>(&call_only.layer(plain::<Broken>())); //~ the error `Broken` does not
    check::<u32, _>(&connect.layer(plain::<Broken>())); //~ the error `Broken` does not

    check::<u32, _>(&stack.layer(plain::<Local>())); //~ the error `Box<
    check::<u32, _>(&fallback.layer(plain::<Local>())); //~ the error `Box<
    check::<u32, _>(&bulkhead.layer(plain::<Local>())); //~ the error `Box<
    check::<u32, _>(&deadline.layer(plain::<Local>())); //~ the error `Box<
    check::<u32, _>(&entry.layer(plain::<Local>())); //~ the error `Box<
    check::<u32, _>(&retry.layer(plain::<Local>())); //~ the error `Box<
    check::<u32, _>(&breaker.layer(plain::<Local>())); //~ the error `Box<
    check::<u32, _>(&call_only.layer(plain::<Local>())); //~ the error `Box<
    check::<u32, _>(&connect.layer(plain::<Local>())); //~ the error `Box<

    let refusals = RejectedAsResponseLayer::new();
    let receive = ReceiveDeadlineLayer::grpc();
    let send = SendDeadlineLayer::grpc();
    let head = GrpcHeadLayer::new();

    check::<Question, _>(&hyper(http::<Broken>())); //~ the error `Broken` does not
    check::<Question, _>(&tonic(grpc::<Broken>())); //~ the error `Broken` does not
    check::<Question, _>(&refusals.layer(http::<Broken>())); //~ the error `Broken` does not
    check::<Question, _>(&receive.layer(http::<Broken>())); //~ the error `Broken` does not
    check::<Question, _>(&send.layer(http::<Broken>())); //~ the error `Broken` does not
    check::<Question, _>(&head.layer(http::<Broken>())); //~ the error `Broken` does not

    check::<Question, _>(&hyper(http::<Local>())); //~ the error `Box<
    check::<Question, _>(&tonic(grpc::<Local>())); //~ the error `Box<
    check::<Question, _>(&refusals.layer(http::<Local>())); //~ the error `Box<
    check::<Question, _>(&receive.layer(http::<Local>())); //~ the error `Box<
    check::<Question, _>(&send.layer(http::<Local>())); //~ the error `Box<
    check::<Question, _>(&head.layer(http::<Local>())); //~ the error `Box<
}
