//! A body that cannot be cloned, under a retry that clones.
//~ record it: `.replay(HttpReplay::record(64 * 1024))`
//~ to repeat nothing: `.replay(NoReplay)`

use std::io;

use buttress::{Standard, http::hyper};
use bytes::Bytes;
use http::Request;
use http_body_util::combinators::BoxBody;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tower::Layer;

type Upload = BoxBody<Bytes, io::Error>;

fn main() {
    let client = Client::builder(TokioExecutor::new()).build_http::<Upload>();
    let client = Standard::http().build().unwrap().layer(hyper(client));
    buttress::check::<Request<Upload>, _>(&client); //~ `HttpReplay` cannot send `http::Request<
}
