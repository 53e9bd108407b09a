//! Which errors of reqwest's and of ours are timeouts, and what they are as responses.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use ::reqwest::ClientBuilder;
use buttress::{
    BoxError, Class, Classify, ConnectTimeoutLayer, find,
    http::{HttpClass, is_connect, is_timeout, refusal, reqwest},
};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::io::AsyncWriteExt;
use tower::{Layer, ServiceExt, service_fn};

use crate::support::{Server, building, ms, patient, request, serve, silent};

/// How the limits of a client and its stack are set.
struct Limits {
    client: fn(ClientBuilder) -> ClientBuilder,
    attempt: Duration,
    total: Duration,
    idle: Duration,
}

const NONE: Limits =
    Limits { client: |client| client, attempt: ms(40_000), total: ms(60_000), idle: ms(60_000) };

/// Sends a head, and of the body nothing.
async fn stalls() -> Server {
    serve(async |mut socket| {
        while request(&mut socket).await.is_some() {
            let head = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n";
            socket.write_all(head.as_bytes()).await.unwrap();
        }
    })
    .await
}

/// The error of a POST to that URL, whether it is the head's or the body's, and how often it was sent.
async fn error_of(url: String, limits: Limits) -> (BoxError, usize) {
    let calls = Arc::new(AtomicUsize::new(0));
    let (count, inner) = (calls.clone(), (limits.client)(building()).build().unwrap());
    let counted = service_fn(move |request| {
        count.fetch_add(1, SeqCst);
        inner.clone().oneshot(request)
    });
    // Two where there is room for them.
    let attempts = if limits.attempt < limits.total { 2 } else { 1 };
    let stack = patient().total(limits.total).attempt(limits.attempt).attempts(attempts);
    let stack = stack.build().unwrap();
    let client = stack.layer(reqwest(counted).idle(limits.idle).unwrap());
    let post = Request::post(url).body(Full::<Bytes>::from("tea")).unwrap();
    let error = match client.oneshot(post).await {
        Ok(response) => response.into_body().collect().await.map(drop).unwrap_err(),
        Err(error) => error,
    };
    (error, calls.load(SeqCst))
}

fn class(error: &BoxError) -> Class {
    Classify::<http::Response<()>>::classify(&HttpClass, Err(error))
}

// HTP-05
#[tokio::test]
async fn every_timeout_is_one_whosever_it_is_and_wherever_it_comes() {
    let (silent, stalls) = (silent().await, stalls().await);
    // TLS is waited for, the head, the body.
    let (connect, head, body) = (format!("https://{}/", silent.addr), silent.url(), stalls.url());
    let unsent = Class::Unreachable;
    let unknown = Class::Transient { after: None };
    let table = [
        (
            "reqwest's, at connect",
            &connect,
            Limits { client: |c| c.connect_timeout(ms(50)), ..NONE },
            unsent,
        ),
        (
            "ours, at connect",
            &connect,
            Limits { client: |c| c.connector_layer(ConnectTimeoutLayer::new(ms(50))), ..NONE },
            unsent,
        ),
        (
            "reqwest's total, at the head",
            &head,
            Limits { client: |c| c.timeout(ms(50)), ..NONE },
            unknown,
        ),
        (
            "reqwest's of reading, at the head",
            &head,
            Limits { client: |c| c.read_timeout(ms(50)), ..NONE },
            unknown,
        ),
        (
            "reqwest's total, in the body",
            &body,
            Limits { client: |c| c.timeout(ms(50)), ..NONE },
            unknown,
        ),
        (
            "reqwest's of reading, in the body",
            &body,
            Limits { client: |c| c.read_timeout(ms(50)), ..NONE },
            unknown,
        ),
        ("an attempt's", &head, Limits { attempt: ms(50), ..NONE }, unknown),
        (
            "the deadline, at the head",
            &head,
            Limits { attempt: ms(50), total: ms(50), ..NONE },
            unknown,
        ),
        (
            "the deadline, in the body",
            &body,
            Limits { attempt: ms(300), total: ms(300), ..NONE },
            unknown,
        ),
        ("a body's, for silence", &body, Limits { idle: ms(50), ..NONE }, unknown),
    ];
    for (what, url, limits, expected) in table {
        let (error, calls) = error_of(url.clone(), limits).await;
        assert!(is_timeout(&*error), "{what}: {error:?}");
        assert_eq!(is_connect(&*error), expected == unsent, "{what}: {error:?}");
        assert_eq!(class(&error), expected, "{what}: {error:?}");
        let status = refusal(&*error).map(|refusal| refusal.status());
        assert_eq!(status, Some(StatusCode::GATEWAY_TIMEOUT), "{what}: {error:?}");
        // A POST: again only if it was not sent.
        assert_eq!(calls, if expected == unsent { 2 } else { 1 }, "{what}");
    }
}

#[tokio::test]
async fn what_reqwest_cannot_send_is_the_callers_error_and_is_not_tried_again() {
    for uri in ["/orders", "*", "localhost:80", "ftp://localhost/"] {
        let (error, calls) = error_of(uri.to_owned(), NONE).await;
        assert_eq!(class(&error), Class::CallerError, "{uri}: {error:?}");
        assert!(find::<::reqwest::Error>(&*error).unwrap().is_builder(), "{uri}: {error:?}");
        assert!(calls <= 1, "{uri}: {error:?}");
    }
}

#[tokio::test]
async fn too_many_redirects_are_not_followed_a_second_time() {
    let server = serve(async |mut socket| {
        while request(&mut socket).await.is_some() {
            let answer = "HTTP/1.1 302 Found\r\nlocation: /on\r\ncontent-length: 0\r\n\r\n";
            socket.write_all(answer.as_bytes()).await.unwrap();
        }
    })
    .await;
    let (error, calls) = error_of(server.url(), NONE).await;
    assert_eq!((class(&error), calls), (Class::CallerError, 1), "{error:?}");
}
