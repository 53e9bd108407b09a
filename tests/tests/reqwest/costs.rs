//! What both ends allocate for a request, beside what reqwest itself does.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    pin::pin,
    task::{Context, Poll, Waker},
};

use ::reqwest::{Body, Request, Response, ResponseBuilderExt};
use allocation_counter::measure;
use buttress::http::{as_reqwest, reqwest};
use bytes::Bytes;
use http_body_util::Full;
use tower::Service;

/// reqwest's client, as it were: it answers at once.
#[derive(Clone, Copy)]
struct Client;

impl Service<Request> for Client {
    type Response = Response;
    type Error = Infallible;
    type Future = Ready<Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        // As reqwest does, it says where it comes from: from where it was asked.
        let answer = http::Response::builder().url(request.url().clone()).body(Body::default());
        let mut answer = Response::from(answer.unwrap());
        answer.extensions_mut().insert(7);
        ready(Ok(answer))
    }
}

/// Allocations of one call, in which the request is used up and the answer is there.
fn allocations<S: Service<R>, R>(mut service: S, request: R) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _in = runtime.enter();
    let mut cx = Context::from_waker(Waker::noop());
    let call = || {
        let answer = pin!(service.call(request));
        assert!(matches!(answer.poll(&mut cx), Poll::Ready(Ok(_))));
    };
    measure(call).count_total
}

fn get<B>(body: B) -> http::Request<B> {
    http::Request::get("http://example.com:8080/orders?page=1").body(body).unwrap()
}

fn of_reqwest(body: &'static str) -> Request {
    get(body).try_into().unwrap()
}

#[test]
fn the_types_cost_a_url_and_a_box_beneath_and_as_much_again_above() {
    let bare = allocations(Client, of_reqwest("tea"));
    let beneath = |count: u64| count - bare;
    // The URL, which is written out (3) and parsed (1), and a box around the response's body.
    assert_eq!(beneath(allocations(reqwest(Client), get(Full::<Bytes>::default()))), 5);
    assert_eq!(beneath(allocations(reqwest(Client), get(Body::from("tea")))), 5);
    // A body that is not reqwest's own is in a box while it is looked into.
    assert_eq!(beneath(allocations(reqwest(Client), get(Full::<Bytes>::from("tea")))), 6);
    // Above: the URL is copied (1) and parsed (2), the response bears it (3), and is made anew (3).
    assert_eq!(beneath(allocations(as_reqwest(reqwest(Client)), of_reqwest("tea"))), 5 + 9);
}
