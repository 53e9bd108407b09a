//! What is told of requests whose URLs have a password in them.

use std::{
    convert::Infallible,
    error::Error,
    fmt::{self, Write},
    sync::{Arc, Mutex},
};

use buttress::http::{RejectedAsResponseLayer, reqwest};
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, header::AUTHORIZATION};
use http_body_util::Full;
use tokio::net::TcpListener;
use tower::{Layer, Service, ServiceExt};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

use crate::support::{building, patient, plain, request, serve};

const USER: &str = "s3cret-user";
const PASSWORD: &str = "s3cret-word";

/// Keeps what our events say.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl Visit for Log {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        writeln!(self.0.lock().unwrap(), "{field}: {value:?}").unwrap();
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("buttress")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// URLs that fail in all ways in which reqwest tells the URL.
async fn uris() -> Vec<String> {
    let closes = serve(async |mut socket| {
        request(&mut socket).await;
    })
    .await;
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let secret = format!("{USER}:{PASSWORD}");
    vec![
        format!("http://{secret}@{nobody}/"),
        format!("http://{secret}@{}/", closes.addr),
        format!("ftp://{secret}@{nobody}/"),
        format!("{secret}@{nobody}"),
    ]
}

#[tokio::test]
async fn neither_errors_nor_events_nor_futures_tell_a_password() {
    let log = Log::default();
    let _here = tracing::subscriber::set_default(log.clone());
    let stack = patient().build().unwrap();
    for uri in uris().await {
        let request = || Request::get(&uri).body(Full::<Bytes>::default()).unwrap();
        let calling = reqwest(plain()).call(request());
        let mut told = format!("{calling:?}");
        let error = stack.layer(reqwest(plain())).oneshot(request()).await.map(drop).unwrap_err();
        write!(told, "{error:?}").unwrap();
        let mut link: Option<&dyn Error> = Some(&*error);
        while let Some(error) = link {
            writeln!(told, "{error}").unwrap();
            link = error.source();
        }

        let server = RejectedAsResponseLayer::new().layer(stack.layer(reqwest(plain())));
        let Ok::<_, Infallible>(answer) = server.oneshot(request()).await;
        assert!(
            answer.status().is_server_error() && answer.status() != StatusCode::NOT_IMPLEMENTED
        );
        told += &log.0.lock().unwrap();
        assert!(told.contains("request failed"), "{told}");
        assert!(!told.contains(USER) && !told.contains(PASSWORD), "{uri}: {told}");
    }
}

#[test]
fn a_stack_does_not_tell_what_its_client_sends_with_each_request() {
    let headers = HeaderMap::from_iter([(AUTHORIZATION, PASSWORD.parse().unwrap())]);
    let client = building().default_headers(headers).build().unwrap();
    let stack = patient().build().unwrap().layer(reqwest(client.clone()));
    let told = format!("{stack:?} {:?}", reqwest(client));
    assert!(told.contains("Reqwest { .. }") && !told.contains(PASSWORD), "{told}");
}
