//! reqwest beneath a stack of `http` messages.

use std::convert::Infallible;

use buttress::{
    Standard,
    http::{HttpReplay, reqwest},
};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use tokio::task::JoinSet;
use tower::{Layer, ServiceExt};

use crate::support::{self, Server, ms, patient, plain, request, serve, third_time, until};

fn order(method: Method, server: &Server) -> Request<Full<Bytes>> {
    Request::builder().method(method).uri(server.url()).body(Full::from("tea")).unwrap()
}

#[tokio::test]
async fn a_status_that_asks_for_it_is_repeated() {
    let (server, asked) = third_time("ok").await;
    let client = patient().build().unwrap().layer(reqwest(plain()));
    let response = client.oneshot(order(Method::PUT, &server)).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "ok");
    let asked = support::asked(&asked);
    assert!(
        asked[0].contains("content-length: 3\r\n") && asked[0].ends_with("\r\n\r\ntea"),
        "{asked:?}"
    );
    assert_eq!(asked[..], [asked[0].clone(), asked[0].clone(), asked[0].clone()]);
}

// TMO-07
#[tokio::test]
async fn a_call_that_timed_out_leaves_no_socket_open() {
    let server =
        serve(|mut socket| async move { while request(&mut socket).await.is_some() {} }).await;
    let stack = Standard::http().total(ms(50)).attempt(ms(50)).attempts(1).build().unwrap();
    let client = stack.layer(reqwest(plain()));
    let mut calls = JoinSet::new();
    for _ in 0..100 {
        calls.spawn(client.clone().oneshot(order(Method::POST, &server)));
    }
    while let Some(result) = calls.join_next().await {
        result.unwrap().expect_err("nobody answers");
    }
    assert!(server.accepted() > 0);
    until("all sockets are closed", || server.open() == 0).await;
    drop(client);
}

/// A body in frames, with trailers, that does not tell how long it is.
type Framed = StreamBody<stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>>;

fn framed() -> Framed {
    let mut trailers = HeaderMap::new();
    trailers.insert("checksum", "7".parse().unwrap());
    let frames =
        [Frame::data("two ".into()), Frame::data("teas".into()), Frame::trailers(trailers)];
    StreamBody::new(stream::iter(Vec::from(frames.map(Ok))))
}

// RET-05, RET-11
#[tokio::test]
async fn a_post_with_a_key_is_the_same_in_each_attempt_with_its_trailers() {
    for (key, attempts) in [(None, 1), (Some("8e03978e"), 3)] {
        let (server, seen) = third_time("ok").await;
        let stack = patient().replay(HttpReplay::record(1024)).build().unwrap();
        let client = stack.layer(reqwest(plain()));
        let mut request =
            Request::post(server.url()).header("trailer", "checksum").body(framed()).unwrap();
        if let Some(key) = key {
            request.headers_mut().insert("idempotency-key", key.parse().unwrap());
        }
        client.oneshot(request).await.unwrap();
        let seen = support::asked(&seen);
        assert_eq!(seen.len(), attempts);
        for request in &seen {
            assert!(
                request.ends_with("4\r\ntwo \r\n4\r\nteas\r\n0\r\nchecksum: 7\r\n\r\n"),
                "{request}"
            );
            assert_eq!(request, &seen[0]);
        }
    }
}
