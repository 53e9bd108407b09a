//! A client that was built for another body than the request's, as it is once bodies are recorded.
//~ hyper's client takes the type of body for which it was built
//~ `build_http::<ReplayBody<B>>()` where a body `B` is recorded

use std::io;

use buttress::{
    Standard,
    http::{HttpReplay, hyper},
};
use bytes::Bytes;
use http::Request;
use http_body_util::{Empty, Full, combinators::BoxBody};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tower::Layer;

type Upload = BoxBody<Bytes, io::Error>;

fn main() {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let client = Standard::http().build().unwrap().layer(hyper(client));
    buttress::check::<Request<Empty<Bytes>>, _>(&client); //~ Full<bytes::Bytes>>` does not answer `

    let client = Client::builder(TokioExecutor::new()).build_http::<Upload>();
    let stack = Standard::http().replay(HttpReplay::record(64 * 1024)).build().unwrap();
    let client = stack.layer(hyper(client));
    buttress::check::<Request<Upload>, _>(&client); //~ does not answer `http::Request<ReplayBody<
}
