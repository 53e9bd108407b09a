//! The proxy does one way what it is told, and the other way nothing.
#![cfg(target_os = "linux")]

use std::{io::ErrorKind, time::Duration};

use buttress_servers::{Proxy, Way};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};

/// Both ends of a connection through a proxy.
struct Line {
    proxy: Proxy,
    client: TcpStream,
    server: TcpStream,
}

async fn line() -> Line {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::to(listener.local_addr().unwrap()).await;
    let client = TcpStream::connect(proxy.addr()).await.unwrap();
    let (server, _) = listener.accept().await.unwrap();
    Line { proxy, client, server }
}

async fn arrives(from: &mut TcpStream, to: &mut TcpStream, byte: u8) {
    from.write_u8(byte).await.unwrap();
    assert_eq!(to.read_u8().await.unwrap(), byte);
}

async fn is_silent(stream: &mut TcpStream) -> bool {
    timeout(Duration::from_millis(100), stream.read_u8()).await.is_err()
}

#[tokio::test]
async fn what_is_sent_arrives_and_so_does_the_end() {
    let Line { proxy: _proxy, mut client, mut server } = line().await;
    arrives(&mut client, &mut server, 1).await;
    arrives(&mut server, &mut client, 2).await;
    client.shutdown().await.unwrap();
    assert_eq!(server.read(&mut [0]).await.unwrap(), 0);
    // One way has ended, and the other goes on.
    arrives(&mut server, &mut client, 3).await;
    drop(server);
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn a_way_that_is_slow_loses_nothing_and_keeps_the_order() {
    let Line { proxy, mut client, mut server } = line().await;
    proxy.set_there(Way::Delay(Duration::from_millis(100)));
    client.write_all(b"ab").await.unwrap();
    assert!(timeout(Duration::from_millis(10), server.read_u8()).await.is_err());
    client.write_all(b"cd").await.unwrap();
    let mut all = [0; 4];
    server.read_exact(&mut all).await.unwrap();
    assert_eq!(&all, b"abcd");
}

#[tokio::test]
async fn the_server_has_heard_it_and_its_answer_is_lost_on_the_way_back() {
    let Line { proxy, mut client, mut server } = line().await;
    proxy.set_back(Way::Blackhole);
    arrives(&mut client, &mut server, 1).await;
    server.write_u8(2).await.unwrap();
    assert!(is_silent(&mut client).await);
    arrives(&mut client, &mut server, 3).await;
    // What was sent is sent again, once it can arrive.
    proxy.set_back(Way::Open);
    assert_eq!(client.read_u8().await.unwrap(), 2);
}

#[tokio::test]
async fn nobody_hears_of_an_end_behind_a_black_hole() {
    let Line { proxy, client, mut server } = line().await;
    proxy.set_there(Way::Blackhole);
    drop(client);
    assert!(is_silent(&mut server).await);
    proxy.set_there(Way::Open);
    assert_eq!(server.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn a_reset_comes_before_what_is_asked_or_after_it_as_the_way_is() {
    let Line { proxy, mut client, mut server } = line().await;
    proxy.set_there(Way::Reset);
    client.write_u8(1).await.unwrap();
    assert_eq!(server.read(&mut [0]).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(client.read(&mut [0]).await.unwrap_err().kind(), ErrorKind::ConnectionReset);

    let Line { proxy, mut client, mut server } = line().await;
    proxy.set_back(Way::Reset);
    arrives(&mut client, &mut server, 1).await;
    server.write_u8(2).await.unwrap();
    assert_eq!(client.read(&mut [0]).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn what_is_cut_is_reset_and_the_next_connection_is_not() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::to(listener.local_addr().unwrap()).await;
    for byte in 0..3 {
        let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        arrives(&mut client, &mut server, byte).await;
        proxy.cut();
        assert_eq!(client.read(&mut [0]).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
        assert_eq!(server.read(&mut [0]).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    }
}

#[tokio::test]
async fn what_is_stranded_hears_nothing_of_anything_and_the_next_connection_works() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::to(listener.local_addr().unwrap()).await;
    let connect = async || {
        let client = TcpStream::connect(proxy.addr()).await.unwrap();
        (client, listener.accept().await.unwrap().0)
    };
    let (mut client, mut server) = connect().await;
    arrives(&mut client, &mut server, 1).await;
    proxy.strand();
    client.write_u8(2).await.unwrap();
    assert!(is_silent(&mut server).await);
    drop(server);
    assert!(is_silent(&mut client).await);
    let (mut client, mut server) = connect().await;
    arrives(&mut client, &mut server, 3).await;
}

#[tokio::test]
async fn what_is_stranded_is_told_nothing_of_a_way_that_is_opened_right_after() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::to(listener.local_addr().unwrap()).await;
    // It would be told by chance.
    for byte in 0..20 {
        let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        arrives(&mut client, &mut server, byte).await;
        proxy.set_back(Way::Blackhole);
        server.write_u8(byte).await.unwrap();
        assert!(is_silent(&mut client).await);
        proxy.strand();
        proxy.set_back(Way::Open);
        assert!(is_silent(&mut client).await);
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_resets() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let proxy = Proxy::to(nobody).await;
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    assert_eq!(client.read(&mut [0]).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn its_connections_end_with_it() {
    let Line { proxy, mut client, mut server } = line().await;
    drop(proxy);
    assert!(!matches!(client.read(&mut [0]).await, Ok(1..)));
    assert!(!matches!(server.read(&mut [0]).await, Ok(1..)));
}
