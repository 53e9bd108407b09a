//! A server that goes and comes back: what was never sent is sent again, whatever the method.

use futures_util::stream;
use tokio::net::TcpListener;
use tonic::transport::{Server, server::TcpIncoming};

use super::{client, ms, patient, standard};
use crate::shop::{Shop, listen, order};

// GRP-09
#[tokio::test]
async fn a_server_that_comes_back_is_found_and_nobody_notices() {
    let shop = Shop::default();
    let (addr, incoming) = listen().await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = Server::builder().add_service(shop.server());
    let served =
        tokio::spawn(server.serve_with_incoming_shutdown(incoming, async { drop(stopped.await) }));
    let mut settings = patient();
    settings.attempt = ms(5_000);
    settings.retry.attempts = 10;
    settings.retry.cap = ms(100);
    let mut orders = client(&standard(settings), addr);
    orders.get(order("tea")).await.unwrap();
    stop.send(()).unwrap();
    served.await.unwrap().unwrap();
    let back = tokio::spawn({
        let shop = shop.clone();
        async move {
            tokio::time::sleep(ms(20)).await;
            let incoming = TcpIncoming::from(TcpListener::bind(addr).await.unwrap());
            Server::builder().add_service(shop.server()).serve_with_incoming(incoming).await
        }
    });
    // Not named as safe: what was never sent is sent again all the same.
    let answer = orders.place(stream::iter([order("tea")])).await.unwrap().into_inner();
    assert_eq!((answer.text.as_str(), shop.calls()), ("tea", 2));
    back.abort();
}

// GRP-09
#[tokio::test]
async fn a_server_that_ends_its_connections_by_age_is_not_noticed() {
    let shop = Shop::default();
    let (addr, incoming) = listen().await;
    let server = Server::builder().max_connection_age(ms(5)).add_service(shop.server());
    tokio::spawn(server.serve_with_incoming(incoming));
    let mut settings = patient();
    settings.attempt = ms(5_000);
    settings.retry.attempts = 10;
    let mut orders = client(&standard(settings), addr);
    let mut open = orders.clone();
    let open = tokio::spawn(async move { open.get(order("hang")).await });
    for n in 0..200 {
        let answer = orders.place(stream::iter([order("tea")])).await;
        assert_eq!(answer.unwrap_or_else(|s| panic!("{n}: {s}")).into_inner().text, "tea");
    }
    assert_eq!(shop.calls(), 201, "none was carried out twice");
    open.abort();
}
