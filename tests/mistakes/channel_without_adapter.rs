//! A stack under a generated client, and a channel that serves no other body than tonic's own.
// GRP-08
//~ put it into its adapter, `buttress::http::tonic(channel)`

use buttress::{Standard, http::GrpcHeadLayer};
use http::Request;
use tonic::{body::Body, transport::Channel};
use tower::Layer;

fn main() {
    let channel = Channel::from_static("http://orders:50051").connect_lazy();
    let stack = Standard::grpc("orders").build().unwrap();
    let client = stack.layer(GrpcHeadLayer::new().layer(channel));
    buttress::check::<Request<Body>, _>(&client); //~ `Channel` does not answer `http::Request<ReplayBody<
}
