//! The errors of real clients, row by row: each against a real socket, with the class that it has, and with how
//! often a POST is sent through a retry.
//!
//! Nothing here asserts how long anything takes. tonic's channel has no rows of HTTP/1: it does not speak it.

mod clients;
mod goes_away;
mod servers;

use std::{
    error::Error,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use buttress::{
    Backoff, BoxError, Budget, BudgetSettings, Class, Classify, RetryLayer,
    http::{HttpClass, HttpReplay, is_connect, is_timeout, refusal},
};
use bytes::Bytes;
use h2::Reason;
use http::Request;
use http_body::Frame;
use http_body_util::{BodyExt, Full};
use tower::{Layer, Service, ServiceExt, buffer::Buffer};

use clients::{ALL, Answer, Boxed, Client, HTTP1, HTTP2, Limits, Sent};
use servers::{Does, Server, frame, goaway, head, rst_stream, server};

const TRANSIENT: Class = Class::Transient { after: None };
const THROTTLED: Class = Class::Throttled { after: None };
/// Far longer than anything here takes: a test that needs it has failed.
const PATIENCE: Duration = Duration::from_secs(30);

fn post(url: &str) -> Sent {
    Request::post(url).body(Full::from("x")).unwrap()
}

fn class_of(error: &BoxError) -> Class {
    Classify::<Answer>::classify(&HttpClass, Err(error))
}

/// Keeps the client until it has answered: hyper sends no pings once its client is gone.
async fn call<S>(service: &S, url: &str) -> Result<Answer, BoxError>
where
    S: Service<Sent, Response = Answer, Error = BoxError> + Clone,
{
    let called = service.clone().oneshot(post(url));
    tokio::time::timeout(PATIENCE, called).await.expect("it ends by itself")
}

async fn fails(service: Boxed, url: &str) -> BoxError {
    call(&service, url).await.map(drop).expect_err("it fails")
}

/// Three attempts, with no waits, and as much budget as they want.
fn retry() -> RetryLayer<HttpClass, HttpReplay> {
    let budget = Budget::new(BudgetSettings::default().reserve(1000)).unwrap();
    RetryLayer::new(Backoff::none(), budget).classify(HttpClass).replay(HttpReplay)
}

/// The same error, in up to three more pointers.
fn wrapped(mut error: BoxError, times: usize) -> BoxError {
    for n in 0..times {
        error = if n % 2 == 0 {
            Box::new(Arc::<dyn Error + Send + Sync>::from(error))
        } else {
            Box::new(Box::new(io::Error::other(error)))
        };
    }
    error
}

/// One row for one client.
async fn row(name: &str, client: Client, url: &str, limits: Limits, class: Class) -> BoxError {
    for wraps in 0..=3 {
        let error = wrapped(fails(client.service(url, limits), url).await, wraps);
        assert_eq!(class_of(&error), class, "{name}, {client:?}, {wraps}: {error:?}");
    }
    let buffered = call(&Buffer::new(client.service(url, limits), 1), url).await;
    let error = buffered.map(drop).unwrap_err();
    assert_eq!(class_of(&error), class, "{name}, {client:?}, through a buffer: {error:?}");
    error
}

/// How often the server reads a POST that is sent through a retry.
async fn sent(client: Client, server: &Server, url: &str, limits: Limits) -> usize {
    let before = server.seen();
    let _ = call(&retry().layer(client.service(url, limits)), url).await;
    server.seen() - before
}

// HTP-01, HTP-02, RET-11
#[tokio::test]
async fn what_was_not_sent_is_sent_again_and_what_may_have_been_carried_out_is_not() {
    let h1 = |text: &str| text.as_bytes().to_vec();
    let table: [(&str, &[Client], Does, Class); 24] = [
        ("refused", ALL, Does::Nothing, Class::Unreachable),
        ("EOF after reading", ALL, Does::Writes(vec![]), TRANSIENT),
        ("reset after reading", ALL, Does::Resets(vec![]), TRANSIENT),
        ("a head that is cut off", HTTP1, Does::Writes(h1("HTTP/1.1 200 O")), TRANSIENT),
        ("no HTTP at all", HTTP1, Does::Writes(h1("gibberish\r\n\r\n")), TRANSIENT),
        (
            "no HTTP/2 at all",
            HTTP2,
            Does::Writes(h1("HTTP/1.1 400 Bad Request\r\n\r\n")),
            TRANSIENT,
        ),
        ("data without a head", HTTP2, Does::Stays(frame(0, 0, 1, b"data")), TRANSIENT),
        (
            "REFUSED_STREAM",
            HTTP2,
            Does::Stays(rst_stream(Reason::REFUSED_STREAM)),
            Class::Unreachable,
        ),
        ("CANCEL", HTTP2, Does::Stays(rst_stream(Reason::CANCEL)), TRANSIENT),
        ("NO_ERROR", HTTP2, Does::Stays(rst_stream(Reason::NO_ERROR)), TRANSIENT),
        ("INTERNAL_ERROR", HTTP2, Does::Stays(rst_stream(Reason::INTERNAL_ERROR)), TRANSIENT),
        ("PROTOCOL_ERROR", HTTP2, Does::Stays(rst_stream(Reason::PROTOCOL_ERROR)), TRANSIENT),
        ("calm", HTTP2, Does::Stays(rst_stream(Reason::ENHANCE_YOUR_CALM)), THROTTLED),
        ("HTTP/1.1", HTTP2, Does::Stays(rst_stream(Reason::HTTP_1_1_REQUIRED)), Class::CallerError),
        ("insecure", HTTP2, Does::Stays(rst_stream(Reason::INADEQUATE_SECURITY)), Class::Fatal),
        ("GOAWAY beyond", HTTP2, Does::Writes(goaway(0, Reason::NO_ERROR)), Class::Unreachable),
        ("... and it stays", HTTP2, Does::Stays(goaway(0, Reason::NO_ERROR)), Class::Unreachable),
        (
            "... and is reset",
            HTTP2,
            Does::Writes(goaway(0, Reason::PROTOCOL_ERROR)),
            Class::Unreachable,
        ),
        (
            "... for its load",
            HTTP2,
            Does::Stays(goaway(0, Reason::ENHANCE_YOUR_CALM)),
            Class::Unreachable,
        ),
        ("GOAWAY within", HTTP2, Does::Writes(goaway(1, Reason::NO_ERROR)), TRANSIENT),
        ("... of an error", HTTP2, Does::Writes(goaway(1, Reason::PROTOCOL_ERROR)), TRANSIENT),
        ("... that lies", HTTP2, Does::Writes(goaway(1, Reason::REFUSED_STREAM)), TRANSIENT),
        ("GOAWAY of age", HTTP2, Does::Writes(goaway(u32::MAX >> 1, Reason::NO_ERROR)), TRANSIENT),
        (
            "GOAWAY within, then CANCEL",
            HTTP2,
            Does::Stays([goaway(1, Reason::NO_ERROR), rst_stream(Reason::CANCEL)].concat()),
            TRANSIENT,
        ),
    ];
    for (name, clients, does, class) in table {
        for client in clients {
            let server = server(does.clone(), client.is_http2()).await;
            let url = format!("http://{}/", server.addr);
            let error = row(name, *client, &url, Limits::None, class).await;
            assert_eq!(is_connect(&*error), name == "refused", "{name}, {client:?}");
            assert!(!is_timeout(&*error), "{name}, {client:?}");
            let read = sent(*client, &server, &url, Limits::None).await;
            let expected = match class {
                Class::Unreachable if name == "refused" => 0,
                Class::Unreachable => 3,
                _ => 1,
            };
            assert_eq!(read, expected, "{name}, {client:?}");
        }
    }
}

// HTP-01
#[tokio::test]
async fn a_connection_that_is_reset_unread_is_never_the_peers_word_for_anything() {
    for client in ALL {
        let server = server(Does::ResetsUnread, client.is_http2()).await;
        let url = format!("http://{}/", server.addr);
        for _ in 0..20 {
            let error = fails(client.service(&url, Limits::None), &url).await;
            let class = class_of(&error);
            assert!(matches!(class, TRANSIENT | Class::Unreachable), "{client:?}: {error:?}");
        }
    }
}

// HTP-01
#[tokio::test]
async fn an_idle_connection_that_is_closed_under_us_never_makes_a_request_come_twice() {
    for client in HTTP1 {
        let server = server(Does::AnswersOne, false).await;
        let url = format!("http://{}/", server.addr);
        let service = retry().layer(client.service(&url, Limits::None));
        let (mut answered, mut perhaps) = (0, 0);
        for _ in 0..100 {
            match call(&service, &url).await {
                Ok(answer) => {
                    answered += 1;
                    answer.into_body().collect().await.unwrap();
                }
                Err(error) => {
                    assert_eq!(class_of(&error), TRANSIENT, "{error:?}");
                    perhaps += 1;
                }
            }
        }
        println!("{client:?}: {answered} answered, {perhaps} perhaps, {} seen", server.seen());
        assert!(answered > 0);
        assert!(server.seen() <= answered + perhaps, "{client:?}");
    }
}

// HTP-02
#[tokio::test]
async fn a_name_that_nobody_knows_was_not_sent_to() {
    for client in ALL {
        let url = "http://nobody.invalid:1/";
        let error = row("DNS", *client, url, Limits::None, Class::Unreachable).await;
        assert!(is_connect(&*error) && !is_timeout(&*error));
    }
}

// HTP-02
#[tokio::test]
async fn a_handshake_that_is_cut_off_may_do_better_next_time_and_a_bad_certificate_will_not() {
    for client in ALL {
        for (name, does, class) in [
            ("a certificate that does not verify", Does::UnknownTls, Class::Fatal),
            ("no TLS at all", Does::NoTls, Class::Fatal),
            ("a handshake that is cut off", Does::CutsTls, Class::Unreachable),
        ] {
            let server = server(does, client.is_http2()).await;
            let error = row(name, *client, &server.url("https"), Limits::None, class).await;
            assert!(is_connect(&*error), "{name}, {client:?}: {error:?}");
            assert_eq!(sent(*client, &server, &server.url("https"), Limits::None).await, 0);
        }
    }
}

// HTP-05
#[tokio::test]
async fn a_clients_own_limits_are_known_for_what_they_are() {
    let h1 = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf".to_vec();
    let h2 = [head(), frame(0, 0, 1, b"half")].concat();
    for client in ALL {
        let silent = server(Does::Stays(vec![]), client.is_http2()).await;
        let stalls = server(
            Does::Stays(if client.is_http2() { h2.clone() } else { h1.clone() }),
            client.is_http2(),
        )
        .await;
        let closed = server(Does::LetsNobodyIn, client.is_http2()).await;
        let mut rows = vec![("connect", &closed, Limits::Connect, Class::Unreachable)];
        if !matches!(client, Client::Hyper1 | Client::Hyper2) {
            // hyper's client has no such limit: that is a layer's.
            rows.push(("head", &silent, Limits::Answer, TRANSIENT));
        }
        if client.is_http2() {
            rows.push(("ping", &silent, Limits::Ping, TRANSIENT));
        }
        for (name, server, limits, class) in rows {
            let url = format!("http://{}/", server.addr);
            let error = row(name, *client, &url, limits, class).await;
            assert!(is_timeout(&*error), "{name}, {client:?}: {error:?}");
            assert_eq!(is_connect(&*error), name == "connect", "{name}, {client:?}");
            assert_eq!(refusal(&*error).unwrap().status(), 504, "{name}, {client:?}");
            let read = sent(*client, server, &url, limits).await;
            assert_eq!(read, usize::from(name != "connect"), "{name}, {client:?}");
        }
        // reqwest's limit is that of the body too. tonic's ends with the head.
        let url = format!("http://{}/", stalls.addr);
        let limits = match client {
            Client::Reqwest1 | Client::Reqwest2 => Limits::Answer,
            Client::Hyper2 | Client::Tonic => Limits::Ping,
            Client::Hyper1 => continue,
        };
        let service = client.service(&url, limits);
        let answer = call(&service, &url).await.unwrap();
        let body = tokio::time::timeout(PATIENCE, answer.into_body().collect()).await;
        let error = body.expect("it ends by itself").map(drop).unwrap_err();
        drop(service);
        assert_eq!(class_of(&error), TRANSIENT, "{client:?}: {error:?}");
        if limits == Limits::Answer {
            assert!(is_timeout(&*error), "{client:?}: {error:?}");
            assert_eq!(refusal(&*error).unwrap().status(), 504, "{client:?}");
        }
    }
}

// HTP-01
#[tokio::test]
async fn a_body_that_breaks_off_says_nothing_of_what_was_sent() {
    let h1 = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf".to_vec();
    let half = || [head(), frame(0, 0, 1, b"half")].concat();
    for client in ALL {
        let endings = if client.is_http2() {
            vec![
                Does::Writes(half()),
                Does::Resets(half()),
                Does::Stays([half(), rst_stream(Reason::CANCEL)].concat()),
                Does::Writes([half(), goaway(1, Reason::NO_ERROR)].concat()),
            ]
        } else {
            vec![Does::Writes(h1.clone())]
        };
        for does in endings {
            let server = server(does.clone(), client.is_http2()).await;
            let url = format!("http://{}/", server.addr);
            let Ok(answer) = call(&client.service(&url, Limits::None), &url).await else {
                // A reset may overtake the head.
                assert!(matches!(does, Does::Resets(_)), "{client:?}, {does:?}");
                continue;
            };
            assert_eq!(answer.status(), 200);
            let error = answer.into_body().collect().await.map(drop).unwrap_err();
            assert_eq!(class_of(&error), TRANSIENT, "{client:?}, {does:?}: {error:?}");
            assert!(!is_connect(&*error) && !is_timeout(&*error), "{client:?}, {does:?}");
        }
    }
}

/// A part of a body, and then an error that looks as if a connection had been refused: that of whoever it comes from.
struct BreaksOff(Option<Bytes>);

impl http_body::Body for BreaksOff {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let refused = || io::ErrorKind::ConnectionRefused.into();
        Poll::Ready(Some(self.0.take().map(Frame::data).ok_or_else(refused)))
    }
}

// HTP-01, RET-11
#[tokio::test]
async fn a_request_whose_body_breaks_off_was_sent_in_part_and_is_its_callers_affair() {
    for client in ALL {
        let server = server(Does::Stays(vec![]), client.is_http2()).await;
        let url = format!("http://{}/", server.addr);
        let request = Request::post(&url).body(BreaksOff(Some("half".into()))).unwrap();
        let called = client.service(&url, Limits::None).oneshot(request);
        let answer = tokio::time::timeout(PATIENCE, called).await.expect("it ends by itself");
        let error = answer.map(drop).unwrap_err();
        assert_eq!(class_of(&error), Class::CallerError, "{client:?}: {error:?}");
        assert!(!is_connect(&*error) && !is_timeout(&*error), "{client:?}: {error:?}");
    }
}
