//! reqwest beneath a stack of `http` messages.

use std::sync::{Arc, Mutex};

use buttress::{Standard, http::reqwest};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::{io::AsyncWriteExt, task::JoinSet};
use tower::{Layer, ServiceExt};

use crate::support::{Server, ms, patient, plain, request, serve, until};

pub(crate) const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const BUSY: &str = "HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy";

/// Refuses twice, then answers; and tells what it was asked.
async fn third_time() -> (Server, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let seen = asked.clone();
    let server = serve(move |mut socket| {
        let seen = seen.clone();
        async move {
            while let Some(request) = request(&mut socket).await {
                let n = {
                    let mut seen = seen.lock().unwrap();
                    seen.push(request);
                    seen.len()
                };
                let answer = if n < 3 { BUSY } else { OK };
                socket.write_all(answer.as_bytes()).await.unwrap();
            }
        }
    })
    .await;
    (server, asked)
}

fn order(method: Method, server: &Server) -> Request<Full<Bytes>> {
    Request::builder().method(method).uri(server.url()).body(Full::from("tea")).unwrap()
}

#[tokio::test]
async fn a_status_that_asks_for_it_is_repeated() {
    let (server, asked) = third_time().await;
    let client = patient().build().unwrap().layer(reqwest(plain()));
    let response = client.oneshot(order(Method::PUT, &server)).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "ok");
    let asked = asked.lock().unwrap();
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
