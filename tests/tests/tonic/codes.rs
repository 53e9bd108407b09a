//! What gRPC hears of what happens to a channel: a server of HTTP/2 that fails in all the ways there are.

use std::{error::Error, net::SocketAddr};

use buttress::{
    BoxError, Reason as Why, Rejected,
    http::{ChannelError, Tonic, tonic},
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use h2::{Reason, RecvStream, server::SendResponse};
use http_body::Frame;
use http_body_util::StreamBody;
use tokio::net::{TcpListener, TcpStream};
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint, Uri},
};
use tower::{ServiceExt, service_fn};

use super::{channel, ours, serve};
use crate::shop::{OrdersClient, Shop, order};

type Connection = h2::server::Connection<TcpStream, Bytes>;
type Call = (http::Request<RecvStream>, SendResponse<Bytes>);

/// Does `fails` to the first call of each connection.
async fn server<F>(fails: impl Fn(Connection, Call) -> F + Copy + Send + 'static) -> SocketAddr
where
    F: Future<Output = ()> + Send,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(socket).await.unwrap();
                if let Some(Ok(call)) = connection.accept().await {
                    fails(connection, call).await;
                }
            });
        }
    });
    addr
}

/// How a call over nothing but the channel fails.
async fn failed(addr: SocketAddr) -> Status {
    let mut orders = OrdersClient::new(tonic(channel(addr)));
    let status = orders.get(order("tea")).await.unwrap_err();
    println!("{status}");
    status
}

async fn drive(mut connection: Connection) {
    while connection.accept().await.is_some() {}
}

const TABLE: [(Reason, Code); 14] = [
    (Reason::NO_ERROR, Code::Internal),
    (Reason::PROTOCOL_ERROR, Code::Internal),
    (Reason::INTERNAL_ERROR, Code::Internal),
    (Reason::FLOW_CONTROL_ERROR, Code::Internal),
    (Reason::SETTINGS_TIMEOUT, Code::Internal),
    (Reason::STREAM_CLOSED, Code::Internal),
    (Reason::FRAME_SIZE_ERROR, Code::Internal),
    (Reason::REFUSED_STREAM, Code::Unavailable),
    (Reason::CANCEL, Code::Cancelled),
    (Reason::COMPRESSION_ERROR, Code::Internal),
    (Reason::CONNECT_ERROR, Code::Internal),
    (Reason::ENHANCE_YOUR_CALM, Code::ResourceExhausted),
    (Reason::INADEQUATE_SECURITY, Code::PermissionDenied),
    (Reason::HTTP_1_1_REQUIRED, Code::Internal),
];

// GRP-07
#[tokio::test]
async fn a_stream_that_the_server_resets_has_the_code_of_the_reason() {
    for (reason, code) in TABLE {
        let reset = move |connection, (_, mut answer): Call| async move {
            answer.send_reset(reason);
            drive(connection).await;
        };
        let status = failed(server(reset).await).await;
        assert_eq!(status.code(), code, "{reason:?}: {status}");
        assert_eq!(ours::<h2::Error>(&status).unwrap().reason(), Some(reason), "nothing is cut");
    }
}

// GRP-07
#[tokio::test]
async fn a_stream_that_is_reset_in_the_middle_of_its_body_too() {
    // hyper takes NO_ERROR for an end, and an end without a status is UNKNOWN.
    for (reason, code) in TABLE.into_iter().skip(1) {
        let reset = move |connection: Connection, (_, mut answer): Call| async move {
            let head = http::Response::builder().header("content-type", "application/grpc");
            let mut body = answer.send_response(head.body(()).unwrap(), false).unwrap();
            let message = Bytes::from_static(b"\0\0\0\0\x05\x0a\x03tea");
            body.send_data(message, false).unwrap();
            let sent = tokio::spawn(drive(connection));
            tokio::time::sleep(super::ms(5)).await;
            body.send_reset(reason);
            sent.await.unwrap();
        };
        let addr = server(reset).await;
        let mut orders = OrdersClient::new(tonic(channel(addr)));
        let answer = orders.list(order("tea")).await.unwrap().into_inner();
        let answer = answer.map(|receipt| receipt.map(|receipt| receipt.text)).take(2);
        let [first, last] = answer.collect::<Vec<_>>().await.try_into().unwrap();
        assert_eq!(first.unwrap(), "tea");
        let status = last.unwrap_err();
        assert_eq!(status.code(), code, "{reason:?}: {status}");
        assert!(ours::<ChannelError>(&status).is_some());
    }
}

// GRP-07, GRP-09
#[tokio::test]
async fn a_connection_that_ends_is_unavailable() {
    let goes_away = |mut connection: Connection, _call: Call| async move {
        connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
        drive(connection).await;
    };
    let closes = |connection, _call| async move { drop::<Connection>(connection) };
    for addr in [server(goes_away).await, server(closes).await] {
        let status = failed(addr).await;
        assert_eq!(status.code(), Code::Unavailable, "{status}");
    }
}

// GRP-07
#[tokio::test]
async fn a_connection_that_is_lost_in_the_middle_of_a_body_is_unavailable() {
    let closes = |mut connection: Connection, (_, mut answer): Call| async move {
        let head = http::Response::builder().header("content-type", "application/grpc");
        let mut body = answer.send_response(head.body(()).unwrap(), false).unwrap();
        body.send_data(Bytes::from_static(b"\0\0\0\0\x05\x0a\x03tea"), false).unwrap();
        tokio::select! {
            _ = connection.accept() => {}
            () = tokio::time::sleep(super::ms(20)) => {}
        }
    };
    let mut orders = OrdersClient::new(tonic(channel(server(closes).await)));
    let mut answer = orders.list(order("tea")).await.unwrap().into_inner();
    assert_eq!(answer.message().await.unwrap().unwrap().text, "tea");
    let status = answer.message().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
}

/// Whoever listens there does not speak HTTP/2.
#[tokio::test]
async fn a_peer_that_speaks_something_else_is_not_unknown() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            use tokio::io::AsyncWriteExt;
            drop(socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await);
        }
    });
    let status = failed(addr).await;
    assert!([Code::Internal, Code::Unavailable].contains(&status.code()), "{status}");
}

/// A channel whose connector fails so.
fn unconnected(error: fn() -> BoxError) -> Tonic<Channel> {
    let connector = service_fn(move |_: Uri| {
        std::future::ready(Err::<hyper_util::rt::TokioIo<TcpStream>, _>(error()))
    });
    tonic(Endpoint::from_static("http://nobody").connect_with_connector_lazy(connector))
}

// GRP-07
#[tokio::test]
async fn what_a_connector_fails_of_is_unavailable_whatever_it_is() {
    let name: fn() -> BoxError = || "no such name".into();
    let refused: fn() -> BoxError = || Rejected::new(Why::BulkheadFull, "connections").into();
    for (error, told) in [(name, "no such name"), (refused, "connections")] {
        let status = OrdersClient::new(unconnected(error)).get(order("tea")).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(status.message().contains(told), "{status}");
    }
}

// GRP-07
#[tokio::test]
async fn a_refusal_beneath_the_channel_comes_out_as_it_is() {
    const FULL: Rejected = Rejected::new(Why::BulkheadFull, "connections");
    // This connector stands right beneath the channel, and its error right beneath the channel's.
    let connector =
        service_fn(|_: Uri| std::future::ready(Err::<hyper_util::rt::TokioIo<TcpStream>, _>(FULL)));
    let channel = Channel::new(connector, Endpoint::from_static("http://nobody"));
    let request = http::Request::new(tonic::body::Body::empty());
    let error = tonic(channel.clone()).oneshot(request).await.map(drop).unwrap_err();
    assert_eq!(error.downcast_ref(), Some(&FULL));
    let status = OrdersClient::new(tonic(channel)).get(order("tea")).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.source().unwrap().downcast_ref(), Some(&FULL));
}

// GRP-07
#[tokio::test]
async fn a_request_whose_body_fails_is_internal() {
    // hyper keeps the body's error to itself: all that it says is that our side has reset the stream.
    let addr = serve(&Shop::default()).await;
    let frames = [Ok(Frame::data(Bytes::from_static(b"\0"))), Err(Status::data_loss("x"))];
    let request = http::Request::post("/shop.Orders/Place");
    let request = request.header("content-type", "application/grpc");
    let request = request.body(StreamBody::new(stream::iter(frames))).unwrap();
    let error = tonic(channel(addr)).oneshot(request).await.map(drop).unwrap_err();
    assert_eq!(Status::from_error(error).code(), Code::Internal);
}
