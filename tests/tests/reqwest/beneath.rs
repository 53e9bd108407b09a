//! reqwest beneath a stack of `http` messages.

use std::{
    convert::Infallible,
    future::poll_fn,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use buttress::{
    Elapsed, Limit, Standard, find,
    http::{HttpReplay, reqwest},
};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, Full, StreamBody};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::JoinSet,
};
use tower::{Layer, ServiceExt};

use crate::support::{
    self, Server, building, ms, patient, plain, request, serve, third_time, until,
};

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

// TMO-07
#[tokio::test]
async fn a_call_that_timed_out_resets_its_stream() {
    let (reset, asked) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (reset.clone(), asked.clone());
    let server = serve(move |socket| {
        let (reset, asked) = counts.clone();
        async move {
            // It may be so slow that many streams are reset before it has looked at them.
            let mut server = h2::server::Builder::new();
            server.max_pending_accept_reset_streams(1000);
            let mut streams = server.handshake::<_, Bytes>(socket).await.unwrap();
            let mut waiting = JoinSet::new();
            while let Some(Ok((_request, mut answer))) = streams.accept().await {
                asked.fetch_add(1, SeqCst);
                let reset = reset.clone();
                waiting.spawn(async move {
                    let reason = poll_fn(|cx| answer.poll_reset(cx)).await.unwrap();
                    assert_eq!(reason, h2::Reason::CANCEL);
                    reset.fetch_add(1, SeqCst);
                });
            }
        }
    })
    .await;
    let stack = Standard::http().total(ms(300)).attempt(ms(300)).attempts(1).build().unwrap();
    let client = stack.layer(reqwest(building().http2_prior_knowledge().build().unwrap()));
    let mut calls = JoinSet::new();
    for _ in 0..100 {
        calls.spawn(client.clone().oneshot(order(Method::POST, &server)));
    }
    while let Some(result) = calls.join_next().await {
        result.unwrap().expect_err("nobody answers");
    }
    assert!(asked.load(SeqCst) > 0 && server.accepted() == 1);
    until("every stream is reset", || reset.load(SeqCst) == asked.load(SeqCst)).await;
    drop(client);
}

// RET-08
#[tokio::test]
async fn discarded_answers_give_their_connection_back() {
    let (server, seen) = third_time("ok").await;
    let inner = building().pool_max_idle_per_host(1).build().unwrap();
    let client = patient().build().unwrap().layer(reqwest(inner));
    for _ in 0..5 {
        let response = client.clone().oneshot(order(Method::PUT, &server)).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        response.into_body().collect().await.unwrap();
    }
    assert_eq!((support::asked(&seen).len(), server.accepted()), (2 + 5, 1));
}

/// A head in time, and then a byte each so often for ever, or none.
async fn drips(every: Option<Duration>) -> Server {
    serve(move |mut socket| async move {
        request(&mut socket).await;
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        socket.write_all(head.as_bytes()).await.unwrap();
        while let Some(every) = every
            && socket.write_all(b"1\r\nx\r\n").await.is_ok()
        {
            tokio::time::sleep(every).await;
        }
        // Until the client lets go of it.
        let _ = socket.read_to_end(&mut Vec::new()).await;
    })
    .await
}

// TMO-02
#[tokio::test]
async fn the_deadline_and_the_idle_limit_hold_to_the_end_of_the_body() {
    let stack = Standard::http().total(ms(1000)).attempt(ms(900)).attempts(1).build().unwrap();
    let inner = reqwest(plain());
    let idle = |limit| inner.clone().idle(limit).unwrap();
    let table = [
        (Some(ms(10)), inner.clone(), Limit::Total),
        (None, inner.clone(), Limit::Total),
        (Some(ms(10)), idle(ms(900)), Limit::Total),
        (None, idle(ms(20)), Limit::Idle),
        (None, idle(ms(1500)).head_only(), Limit::Idle),
    ];
    for (every, inner, limit) in table {
        let server = drips(every).await;
        let client = stack.layer(inner);
        let response = client.oneshot(order(Method::POST, &server)).await.unwrap();
        assert_eq!(
            response.status(),
            StatusCode::OK,
            "the head is there, whatever becomes of the body"
        );
        let error = response.into_body().collect().await.unwrap_err();
        assert_eq!(find::<Elapsed>(&*error).map(Elapsed::which), Some(limit));
        until("the connection is let go of", || server.open() == 0).await;
    }
}

// TMO-02
#[tokio::test]
async fn a_body_in_time_keeps_its_length_and_its_trailers() {
    let server = serve(async |mut socket| {
        while let Some(request) = request(&mut socket).await {
            let answer = match request.starts_with("GET /long") {
                true => "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
                false => "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: checksum\r\n\r\n2\r\nok\r\n0\r\nchecksum: 7\r\n\r\n",
            };
            socket.write_all(answer.as_bytes()).await.unwrap();
        }
    })
    .await;
    let client = patient().build().unwrap().layer(reqwest(plain()));
    for (path, length, trailer) in [("long", Some(2), None), ("", None, Some("7"))] {
        let request = Request::get(server.url() + path).body(Full::<Bytes>::default()).unwrap();
        let response = client.clone().oneshot(request).await.unwrap();
        assert_eq!(response.body().size_hint().exact(), length);
        let body = response.into_body().collect().await.unwrap();
        let told =
            body.trailers().map(|trailers| trailers["checksum"].to_str().unwrap().to_owned());
        assert_eq!((told.as_deref(), &*body.to_bytes()), (trailer, &b"ok"[..]));
    }
}

#[tokio::test]
async fn of_what_reqwest_cannot_send_nothing_is_sent() {
    let (server, seen) = third_time("ok").await;
    let table = ["/orders", "*", &server.addr.to_string(), "localhost:80", "ftp://localhost/"];
    for uri in table {
        let client = patient().build().unwrap().layer(reqwest(plain()));
        let request = Request::get(uri).body(Full::<Bytes>::default()).unwrap();
        client.oneshot(request).await.map(drop).expect_err(uri);
    }
    assert!(support::asked(&seen).is_empty() && server.accepted() == 0);
}

#[tokio::test]
async fn a_redirect_is_followed_by_reqwest_within_one_attempt() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let asked = seen.clone();
    let server = serve(move |mut socket| {
        let asked = asked.clone();
        async move {
            while let Some(request) = request(&mut socket).await {
                let moved = request.contains(" /old ");
                asked.lock().unwrap().push(request);
                let answer = if moved {
                    "HTTP/1.1 307 Moved\r\nlocation: /new\r\ncontent-length: 0\r\n\r\n"
                } else {
                    support::OK
                };
                socket.write_all(answer.as_bytes()).await.unwrap();
            }
        }
    })
    .await;
    let stack = patient().replay(HttpReplay::record(1024)).build().unwrap();
    let post = || Request::post(server.url() + "old");
    // What is in memory reqwest sends a second time; a stream it cannot, and it hands out the redirect.
    let whole =
        stack.layer(reqwest(plain())).oneshot(post().body(Full::<Bytes>::from("tea")).unwrap());
    assert_eq!(whole.await.unwrap().status(), StatusCode::OK);
    let streamed = stack.layer(reqwest(plain())).oneshot(post().body(framed()).unwrap());
    assert_eq!(streamed.await.unwrap().status(), StatusCode::TEMPORARY_REDIRECT);
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 3);
    assert!(seen[0].ends_with("\r\n\r\ntea") && seen[1].ends_with("\r\n\r\ntea"), "{seen:?}");
    assert_eq!(stack.breakers().stats().started, 2, "one attempt each");
}

#[tokio::test]
async fn a_post_is_carried_out_once_if_no_redirect_is_followed_to_where_nobody_is() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let server = serve(move |mut socket| {
        let count = count.clone();
        async move {
            while request(&mut socket).await.is_some() {
                count.fetch_add(1, SeqCst);
                let answer = format!("HTTP/1.1 303 Done\r\nlocation: http://{nobody}/\r\n");
                let answer = answer + "content-length: 0\r\n\r\n";
                socket.write_all(answer.as_bytes()).await.unwrap();
            }
        }
    })
    .await;
    let inner = building().redirect(::reqwest::redirect::Policy::none()).build().unwrap();
    let client = patient().build().unwrap().layer(reqwest(inner));
    let response = client.oneshot(order(Method::POST, &server)).await.unwrap();
    assert_eq!((response.status(), asked.load(SeqCst)), (StatusCode::SEE_OTHER, 1));
}

// TMO-02
#[tokio::test]
async fn the_deadline_covers_all_redirects() {
    let server = serve(async |mut socket| {
        while request(&mut socket).await.is_some() {
            tokio::time::sleep(ms(50)).await;
            let answer = "HTTP/1.1 307 Moved\r\nlocation: /on\r\ncontent-length: 0\r\n\r\n";
            socket.write_all(answer.as_bytes()).await.unwrap();
        }
    })
    .await;
    // It would follow ten of them.
    let stack = Standard::http().total(ms(200)).attempt(ms(200)).attempts(1).build().unwrap();
    let error =
        stack.layer(reqwest(plain())).oneshot(order(Method::PUT, &server)).await.unwrap_err();
    assert_eq!(find::<Elapsed>(&*error).map(Elapsed::which), Some(Limit::Total), "{error:?}");
}
