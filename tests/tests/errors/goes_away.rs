//! A server that sends its clients away when their connection has reached its age.

use std::{
    collections::HashMap,
    convert::Infallible,
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Request, Response};
use http_body_util::{BodyExt, Empty, Full, StreamBody, combinators::BoxBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Notify,
};
use tower::{Layer, ServiceExt};

use crate::{
    clients::{HTTP2, Limits},
    retry,
};

/// How many requests a connection gets to see.
const AGE: usize = 7;

/// What it has seen.
#[derive(Debug, Default)]
struct Seen {
    times: Mutex<HashMap<String, usize>>,
    connections: AtomicUsize,
}

async fn server() -> (SocketAddr, Arc<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let seen = Arc::new(Seen::default());
    let shared = seen.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            shared.connections.fetch_add(1, SeqCst);
            tokio::spawn(serve(stream, shared.clone()));
        }
    });
    (addr, seen)
}

async fn serve(stream: TcpStream, seen: Arc<Seen>) {
    let old = Arc::new(Notify::new());
    let requests = Arc::new(AtomicUsize::new(0));
    let ages = old.clone();
    let answers = service_fn(move |request: Request<Incoming>| {
        let path = request.uri().path().to_owned();
        *seen.times.lock().unwrap().entry(path.clone()).or_default() += 1;
        if requests.fetch_add(1, SeqCst) + 1 == AGE {
            ages.notify_one();
        }
        async move {
            let body: BoxBody<Bytes, Infallible> = if path == "/stream" {
                BodyExt::boxed(StreamBody::new(stream::pending()))
            } else {
                Empty::new().boxed()
            };
            Ok::<_, Infallible>(Response::new(body))
        }
    });
    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), answers);
    let mut connection = pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => return,
        () = old.notified() => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

// GRP-09
#[tokio::test]
async fn a_server_that_sends_its_clients_away_costs_no_call_and_gets_none_twice() {
    for client in HTTP2 {
        for at_once in [1, 16] {
            let (addr, seen) = server().await;
            let url = format!("http://{addr}");
            let service = retry().layer(client.service(&url, Limits::None));
            // A stream is open while its connection is sent away.
            let open = Request::post(format!("{url}/stream")).body(Full::default()).unwrap();
            let open = service.clone().oneshot(open).await.unwrap();
            let mut calls = stream::iter(0..200)
                .map(|n| {
                    let request = Request::post(format!("{url}/{n}")).body(Full::from("x"));
                    service.clone().oneshot(request.unwrap())
                })
                .buffer_unordered(at_once);
            while let Some(answer) = calls.next().await {
                let answer = answer.unwrap_or_else(|error| panic!("{client:?}: {error:?}"));
                answer.into_body().collect().await.unwrap();
            }
            drop(open);
            let times = seen.times.lock().unwrap();
            let connections = seen.connections.load(SeqCst);
            println!("{client:?}, {at_once} at once: {connections} connections");
            assert_eq!(times.len(), 201);
            assert!(times.values().all(|times| *times == 1), "{client:?}: {times:?}");
            assert!(connections > 5, "{client:?}: {connections}");
        }
    }
}
