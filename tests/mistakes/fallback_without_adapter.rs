//! A fallback, and a client that answers with a body which only the client can make.
//~ Cause<Response<hyper::body::incoming::Incoming>>
//~ Cause<Response<Body<_>>>

use buttress::{Cause, Standard, http::Body};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tower::Layer;

fn busy<B>(_: &Cause<Response<Body<B>>>) -> Response<Body<B>> {
    Response::new(Body::from("we are busy, come again"))
}

fn main() {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let client = Standard::http().fallback(busy).build().unwrap().layer(client);
    buttress::check::<Request<Full<Bytes>>, _>(&client); //~ type mismatch in function arguments
}
