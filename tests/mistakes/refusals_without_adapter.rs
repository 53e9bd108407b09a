//! Refusals as responses, and a client that answers with a body which only the client can make.
//~ in its adapter, as in `buttress::http::hyper(client)`

use buttress::http::RejectedAsResponseLayer;
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tower::Layer;

fn main() {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let client = RejectedAsResponseLayer::new().layer(client);
    buttress::check::<Request<Full<Bytes>>, _>(&client); //~ `RejectedAsResponseLayer` has no way to make a response
}
