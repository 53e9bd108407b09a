//! A stack under a generated client, whose requests cannot be cloned, and that is to clone them.
// GRP-08
//~ `GrpcReplay` does, but for `clone_bodies()`

use buttress::{
    Standard,
    http::{GrpcHeadLayer, GrpcReplay, tonic},
};
use http::Request;
use tonic::{body::Body, transport::Channel};
use tower::Layer;

fn main() {
    let channel = Channel::from_static("http://orders:50051").connect_lazy();
    let stack = Standard::grpc("orders").replay(GrpcReplay::none().clone_bodies()).build().unwrap();
    let client = stack.layer(GrpcHeadLayer::new().layer(tonic(channel)));
    buttress::check::<Request<Body>, _>(&client); //~ `GrpcCloneReplay` cannot send `http::Request<
}
