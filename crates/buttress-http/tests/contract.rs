//! The contract that every layer keeps.
#![cfg(feature = "hyper")]

use std::convert::Infallible;

use buttress_core::{BoxError, FenceGuard, FenceStore, FencingToken, LeaseId, RaiseError};
use buttress_http::{
    FencingLayer, GrpcHeadLayer, Hyper, ReceiveDeadlineLayer, RedirectToLeaderLayer,
    RejectedAsResponse, RejectedAsResponseLayer, SendDeadlineLayer, SendFenceLayer, hyper,
};
use buttress_test::{
    Subject, Violation, calls_what_was_readied, contract, dropped_calls_give_all_back,
    idle_clones_hold_nothing, panics_give_all_back, state_is_shared,
};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body_util::Full;
use tower::{
    Layer,
    util::{MapErr, MapErrLayer},
};

fn request() -> Request<()> {
    Request::new(())
}

fn response() -> Response<Full<Bytes>> {
    Response::new(Full::from("pong"))
}

struct Adapter;

impl<S> Layer<S> for Adapter {
    type Service = Hyper<S>;

    fn layer(&self, client: S) -> Hyper<S> {
        hyper(client)
    }
}

#[test]
fn the_adapter_keeps_the_contract() {
    contract(|| Subject::stateless(Adapter), request, response);
}

#[test]
fn a_look_at_the_first_frame_keeps_the_contract() {
    contract(|| Subject::stateless(GrpcHeadLayer::new()), request, response);
}

#[test]
fn both_halves_of_a_deadline_that_goes_from_hop_to_hop_keep_the_contract() {
    let told = || Request::builder().header("grpc-timeout", "1S").body(()).unwrap();
    for request in [request, told] {
        contract(|| Subject::stateless(SendDeadlineLayer::grpc()), request, response);
        contract(|| Subject::stateless(ReceiveDeadlineLayer::grpc()), request, response);
    }
}

const ORDERS: LeaseId = LeaseId::of("orders");

/// Asks a task of its own, as a store does that has a server.
#[derive(Clone)]
struct Remote(FenceGuard);

impl FenceStore for Remote {
    type Raise = BoxFuture<'static, Result<(), RaiseError>>;

    fn lease(&self) -> LeaseId {
        self.0.lease()
    }

    fn raise(&self, token: FencingToken) -> Self::Raise {
        let guard = self.0.clone();
        Box::pin(async move {
            tokio::task::yield_now().await;
            guard.admit(token).map_err(RaiseError::Stale)
        })
    }
}

#[test]
fn both_halves_of_fencing_keep_the_contract() {
    let told = || Request::builder().header("leadership-fence", "34").body(()).unwrap();
    let guard = || FenceGuard::new(ORDERS);
    for request in [request, told] {
        contract(|| Subject::stateless(SendFenceLayer::new(ORDERS)), request, response);
        contract(|| Subject::stateless(FencingLayer::new(guard()).optional()), request, response);
    }
    contract(|| Subject::stateless(FencingLayer::new(guard())), told, response);
    contract(|| Subject::stateless(FencingLayer::new(Remote(guard()))), told, response);
}

#[test]
fn a_layer_that_sends_clients_to_the_leader_keeps_the_contract() {
    let nobody = || None::<Bytes>;
    contract(|| Subject::stateless(RedirectToLeaderLayer::new(nobody)), request, response);
}

type Make<T> = fn() -> T;
type Check = fn(
    Make<Subject<Failing>>,
    Make<Request<()>>,
    Make<Response<Full<Bytes>>>,
) -> Result<(), Violation>;

/// Gives the service an error to fail with, which it never does.
struct Failing;

impl<S> Layer<S> for Failing {
    type Service = MapErr<RejectedAsResponse<S>, fn(Infallible) -> BoxError>;

    fn layer(&self, inner: S) -> Self::Service {
        let never: fn(Infallible) -> BoxError = |never| match never {};
        MapErrLayer::new(never).layer(RejectedAsResponseLayer::new().layer(inner))
    }
}

// All of it but one: that an error of readiness is passed on. This service cannot fail, and answers
// for it instead; its own tests show that it leaves the inner one alone from then on.
#[test]
fn a_service_that_cannot_fail_keeps_the_rest_of_the_contract() {
    let subject: Make<Subject<Failing>> = || Subject::stateless(Failing);
    let checks: [Check; 5] = [
        calls_what_was_readied,
        idle_clones_hold_nothing,
        dropped_calls_give_all_back,
        panics_give_all_back,
        state_is_shared,
    ];
    for check in checks {
        check(subject, request, response).unwrap();
    }
}
