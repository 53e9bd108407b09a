//! A stack that looks like reqwest's own client.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use ::reqwest::Client;
use buttress::{
    BoxError, Cause, Elapsed, HttpService, Limit, NoFallback, Reason, Rejected, find,
    http::{AsReqwest, Body, Reqwest, ReqwestReplay, as_reqwest, reqwest},
};
use bytes::Bytes;
use futures_util::stream;
use http::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tower::{Layer, Service, ServiceExt};

use crate::support::{OK, asked, ms, patient, plain, serve, third_time};

type Stack<A = NoFallback> = AsReqwest<HttpService<Reqwest<Client>, ReqwestReplay, A>>;

fn client(inner: &Client) -> Stack {
    let stack = patient().replay(ReqwestReplay::record(1024)).build().unwrap();
    as_reqwest(stack.layer(reqwest(inner.clone())))
}

#[tokio::test]
async fn json_goes_there_and_back_and_is_repeated_byte_for_byte() -> Result<(), BoxError> {
    let (server, seen) = third_time("{\"id\":7}").await;
    let inner = plain();
    let mut client = client(&inner);
    let request = inner.put(server.url()).json(&json!({ "tea": 2 })).build()?;
    let order: Value = client.ready().await?.call(request).await?.json().await?;
    assert_eq!(order["id"], 7);
    let seen = asked(&seen);
    assert!(seen[0].contains("content-type: application/json"), "{seen:?}");
    assert!(
        seen[0].contains("content-length: 9\r\n") && seen[0].ends_with("{\"tea\":2}"),
        "{seen:?}"
    );
    assert_eq!(seen[..], [seen[0].clone(), seen[0].clone(), seen[0].clone()]);
    Ok(())
}

// RET-04
#[tokio::test]
async fn what_is_in_memory_is_repeated_beyond_the_cap_and_a_stream_is_sent_once()
-> Result<(), BoxError> {
    let stream = |text: &'static str| {
        ::reqwest::Body::wrap_stream(stream::iter([Ok::<_, BoxError>(Bytes::from(text))]))
    };
    let long: &'static str = "x".repeat(5000).leak();
    let table = [
        ("long and in memory", ::reqwest::Body::from(long), long, 3),
        ("nothing", "".into(), "", 3),
        ("a short stream", stream("tea"), "tea", 3),
        ("a long stream", stream(long), long, 1),
    ];
    for (what, body, text, attempts) in table {
        let (server, seen) = third_time("ok").await;
        let inner = plain();
        let request = inner.put(server.url()).body(body).build()?;
        let response = client(&inner).oneshot(request).await?;
        let seen = asked(&seen);
        assert_eq!(seen.len(), attempts, "{what}");
        let ok = if attempts == 3 { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        assert_eq!(response.status(), ok, "{what}: an answer, and never an error of ours");
        for request in seen {
            assert!(
                request.contains(&format!("\r\n\r\n{text}"))
                    || request.contains(&format!("\r\n{text}\r\n0\r\n\r\n")),
                "{what}: {request}"
            );
        }
    }
    Ok(())
}

// RET-11
#[tokio::test]
async fn a_post_is_sent_once_and_one_with_a_key_again() -> Result<(), BoxError> {
    for (key, attempts) in [(None, 1), (Some("8e03978e"), 3)] {
        let (server, seen) = third_time("ok").await;
        let inner = plain();
        let mut request = inner.post(server.url()).json(&7);
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        client(&inner).oneshot(request.build()?).await?;
        assert_eq!(asked(&seen).len(), attempts, "{key:?}");
    }
    Ok(())
}

#[tokio::test]
async fn the_response_tells_where_it_came_from() -> Result<(), BoxError> {
    let server = serve(async |mut socket| {
        while let Some(request) = crate::support::request(&mut socket).await {
            let answer = match request.split(' ').nth(1) {
                Some("/old") => {
                    "HTTP/1.1 307 Moved\r\nlocation: /new?page=1\r\ncontent-length: 0\r\n\r\n"
                }
                _ => OK,
            };
            socket.write_all(answer.as_bytes()).await.unwrap();
        }
    })
    .await;
    let inner = plain();
    for (asked, told) in
        [("", ""), ("there?q=%20a+b#part", "there?q=%20a+b"), ("old#part", "new?page=1")]
    {
        let url = server.url();
        let bare = inner.get(format!("{url}{asked}")).send().await?;
        assert_eq!(bare.url().as_str(), format!("{url}{told}"), "reqwest itself");
        let request = inner.get(format!("{url}{asked}")).build()?;
        let response = client(&inner).oneshot(request).await?;
        assert_eq!(response.url(), bare.url());
        assert_eq!(response.remote_addr(), Some(server.addr), "its extensions are there too");
        assert_eq!(response.content_length(), Some(2));
        assert_eq!(response.version(), http::Version::HTTP_11);
    }
    Ok(())
}

#[tokio::test]
async fn what_a_fallback_answers_is_a_response_of_reqwests() -> Result<(), BoxError> {
    type Answer = Response<Body<::reqwest::Body>>;
    let busy = |_: &Cause<Answer>| Response::builder().status(203).body("[]".into()).unwrap();
    let stack = patient().replay(ReqwestReplay::record(1024)).fallback(busy).build()?;
    let (server, _) = third_time("ok").await;
    let inner = plain();
    let client = as_reqwest(stack.layer(reqwest(inner.clone())));
    let response = client.oneshot(inner.post(server.url()).build()?).await?;
    assert_eq!((response.status().as_u16(), response.url().as_str()), (203, &*server.url()));
    assert_eq!(response.json::<Value>().await?, json!([]));
    Ok(())
}

#[tokio::test]
async fn the_requests_own_timeout_limits_the_whole() -> Result<(), BoxError> {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let server = serve(move |mut socket| {
        let count = count.clone();
        async move {
            while crate::support::request(&mut socket).await.is_some() {
                count.fetch_add(1, SeqCst);
            }
        }
    })
    .await;
    let inner = plain();
    let stack = patient().replay(ReqwestReplay::record(0)).build()?;
    let client = as_reqwest(stack.layer(reqwest(inner.clone())));
    let request = inner.get(server.url()).timeout(ms(150)).build()?;
    let error = client.oneshot(request).await.unwrap_err();
    // It is not reqwest's own, of one attempt, after which there would be two more.
    assert_eq!(find::<Elapsed>(&*error).map(Elapsed::which), Some(Limit::Total), "{error:?}");
    assert!(calls.load(SeqCst) <= 1);
    Ok(())
}

#[tokio::test]
async fn a_request_whose_time_is_up_before_it_is_sent_is_refused() -> Result<(), BoxError> {
    let (server, seen) = third_time("ok").await;
    let inner = plain();
    let stack = patient().replay(ReqwestReplay::record(0)).build()?;
    let client = as_reqwest(stack.layer(reqwest(inner.clone())));
    let request = inner.post(server.url()).timeout(ms(0)).build()?;
    let error = client.oneshot(request).await.unwrap_err();
    // An `Elapsed` would say that it may have been carried out.
    let rejected = error.downcast_ref::<Rejected>().map(Rejected::reason);
    assert_eq!(rejected, Some(Reason::DeadlineExceeded), "{error:?}");
    assert!(asked(&seen).is_empty());
    Ok(())
}

// TMO-02, HTP-05
#[tokio::test]
async fn a_body_that_stalls_fails_with_a_timeout_that_reqwest_knows() -> Result<(), BoxError> {
    let server = serve(async |mut socket| {
        while crate::support::request(&mut socket).await.is_some() {
            let head = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no";
            socket.write_all(head.as_bytes()).await.unwrap();
        }
    })
    .await;
    let inner = plain();
    let stack = patient().total(ms(1000)).attempt(ms(900)).attempts(1);
    let stack = stack.replay(ReqwestReplay::record(0)).build()?;
    let deadline = as_reqwest(stack.layer(reqwest(inner.clone())));
    let idle = as_reqwest(stack.layer(reqwest(inner.clone()).idle(ms(20))?));
    for (client, limit) in [(deadline, Limit::Total), (idle, Limit::Idle)] {
        let response = client.oneshot(inner.get(server.url()).build()?).await?;
        assert_eq!(response.status(), StatusCode::OK, "the head is there");
        let error = response.text().await.unwrap_err();
        assert!(error.is_timeout(), "{error:?}");
        assert_eq!(find::<Elapsed>(&error).map(Elapsed::which), Some(limit));
    }
    Ok(())
}
