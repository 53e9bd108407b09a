//! Clients, and servers that count.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, Once,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use buttress::{
    BudgetSettings, NoFallback, PerKey, RetrySettings, Standard, StandardBuilder, edge,
    http::{Authority, ByAuthority, HttpClass, HttpReplay},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

pub(crate) const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// reqwest's client, with its defaults.
pub(crate) fn plain() -> reqwest::Client {
    building().build().unwrap()
}

pub(crate) fn building() -> reqwest::ClientBuilder {
    static TLS: Once = Once::new();
    TLS.call_once(|| rustls::crypto::ring::default_provider().install_default().unwrap());
    reqwest::Client::builder().no_proxy()
}

pub(crate) const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const BUSY: &str = "HTTP/1.1 503 Busy\r\ntransfer-encoding: chunked\r\n\r\n4\r\nbusy\r\n0\r\n\r\n";

type Builder = StandardBuilder<HttpClass, HttpReplay, PerKey<Authority, ByAuthority>, NoFallback>;

/// Short waits, and as much budget as it wants.
pub(crate) fn patient() -> Builder {
    Standard::http()
        .total(ms(60_000))
        .attempt(ms(10_000))
        .retry(RetrySettings::default().base(ms(1)).cap(ms(2)))
        .budget(BudgetSettings::default().reserve(1000))
}

/// Waits for what must come to pass, and tells how long that took.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = edge::now();
    while !holds() {
        assert!(edge::now() - start < ms(30_000), "it never came to pass that {what}");
        tokio::time::sleep(ms(5)).await;
    }
    println!("{what}: after {:?}", edge::now() - start);
}

/// A server that counts its connections: in all, and those that are open.
pub(crate) struct Server {
    pub(crate) addr: SocketAddr,
    pub(crate) accepted: Arc<AtomicUsize>,
    pub(crate) open: Arc<AtomicUsize>,
}

impl Server {
    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.addr)
    }

    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(SeqCst)
    }

    pub(crate) fn open(&self) -> usize {
        self.open.load(SeqCst)
    }
}

pub(crate) async fn serve<F>(on_connection: impl Fn(TcpStream) -> F + Send + 'static) -> Server
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let server = Server { addr, accepted: Arc::default(), open: Arc::default() };
    let (accepted, open) = (server.accepted.clone(), server.open.clone());
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            accepted.fetch_add(1, SeqCst);
            open.fetch_add(1, SeqCst);
            let (connection, open) = (on_connection(socket), open.clone());
            tokio::spawn(async move {
                connection.await;
                open.fetch_sub(1, SeqCst);
            });
        }
    });
    server
}

/// A server that reads, and never says a word.
pub(crate) async fn silent() -> Server {
    serve(async |mut socket| {
        let _ = socket.read_to_end(&mut Vec::new()).await;
    })
    .await
}

/// The whole requests that a server was asked.
type Asked = Arc<Mutex<Vec<String>>>;

pub(crate) fn asked(asked: &Asked) -> Vec<String> {
    asked.lock().unwrap().clone()
}

/// Refuses twice, then answers with that body.
pub(crate) async fn third_time(body: &'static str) -> (Server, Asked) {
    let asked = Asked::default();
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
                let answer = if n < 3 { BUSY } else { &*answer(body) };
                socket.write_all(answer.as_bytes()).await.unwrap();
            }
        }
    })
    .await;
    (server, asked)
}

/// A response with that body.
pub(crate) fn answer(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// One request as it came over the wire, with its body; `None` at the end of the connection.
pub(crate) async fn request(socket: &mut TcpStream) -> Option<String> {
    let mut read = Vec::new();
    loop {
        if let Some(end) = whole(&read) {
            assert_eq!(end, read.len(), "nothing is pipelined here");
            return Some(String::from_utf8(read).unwrap());
        }
        if socket.read_buf(&mut read).await.ok()? == 0 {
            return None;
        }
    }
}

/// The length of the request, if all of it is there.
fn whole(read: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(read).unwrap();
    let head = text.find("\r\n\r\n")? + 4;
    let headers = text[..head].to_ascii_lowercase();
    if headers.contains("transfer-encoding: chunked") {
        // The last chunk, with or without trailers after it.
        let last = text[head..].find("0\r\n")? + head;
        let last = if last == head || text[..last].ends_with("\r\n") { last } else { return None };
        return text[last..].find("\r\n\r\n").map(|end| last + end + 4);
    }
    let length = headers.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length = length.map_or(0, |length| length.parse().unwrap());
    (read.len() >= head + length).then_some(head + length)
}
