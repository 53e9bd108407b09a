//! Servers that do as they are told, byte by byte.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use h2::Reason;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
};

/// What a server does with each connection.
#[derive(Clone, Debug)]
pub(crate) enum Does {
    /// Nothing listens there.
    Nothing,
    /// It does not let anybody in.
    LetsNobodyIn,
    /// It resets the connection at once.
    ResetsUnread,
    /// It reads a request, and writes that. Then it is gone: by an end, or a reset.
    Writes(Vec<u8>),
    Resets(Vec<u8>),
    /// The same, and it stays, and says nothing more.
    Stays(Vec<u8>),
    /// It closes the connection when a TLS handshake begins.
    CutsTls,
    /// It speaks no TLS.
    NoTls,
    /// It has a certificate that nobody knows.
    UnknownTls,
    /// It answers one request on each connection, without a word that there will be no more.
    AnswersOne,
}

#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) addr: SocketAddr,
    seen: Arc<AtomicUsize>,
    /// What keeps others off the address.
    _held: Arc<Vec<TcpSocket>>,
    _queue: Arc<Vec<TcpStream>>,
}

/// A frame of HTTP/2.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [length[1], length[2], length[3], kind, flags];
    [&head[..], &stream.to_be_bytes(), payload].concat()
}

pub(crate) fn rst_stream(reason: Reason) -> Vec<u8> {
    frame(3, 0, 1, &u32::from(reason).to_be_bytes())
}

pub(crate) fn goaway(last: u32, reason: Reason) -> Vec<u8> {
    frame(7, 0, 0, &[last.to_be_bytes(), u32::from(reason).to_be_bytes()].concat())
}

/// `:status: 200`, and more to come.
pub(crate) fn head() -> Vec<u8> {
    frame(1, 4, 1, &[0x88])
}

pub(crate) async fn server(does: Does, http2: bool) -> Server {
    let seen = Arc::new(AtomicUsize::new(0));
    let mut held = Vec::new();
    let mut queue = Vec::new();
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = socket.local_addr().unwrap();
    match does {
        Does::Nothing => held.push(socket),
        Does::LetsNobodyIn => {
            // The queue of those who wait to be let in is full.
            let listener = socket.listen(0).unwrap();
            let join =
                || tokio::time::timeout(Duration::from_millis(100), TcpStream::connect(addr));
            while let Ok(Ok(stream)) = join().await {
                queue.push(stream);
            }
            tokio::spawn(async move {
                std::future::pending::<()>().await;
                drop(listener);
            });
        }
        does => {
            let listener = socket.listen(64).unwrap();
            tokio::spawn(serve(listener, does, http2, seen.clone()));
        }
    }
    Server { addr, seen, _held: Arc::new(held), _queue: Arc::new(queue) }
}

impl Server {
    /// How many requests it has read.
    pub(crate) fn seen(&self) -> usize {
        self.seen.load(SeqCst)
    }

    /// `localhost` for TLS, which wants a name.
    pub(crate) fn url(&self, scheme: &str) -> String {
        format!("{scheme}://localhost:{}/", self.addr.port())
    }
}

async fn serve(listener: TcpListener, does: Does, http2: bool, seen: Arc<AtomicUsize>) {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(certified.signing_key.serialize_der());
    let tls = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key.unwrap())
        .unwrap();
    let tls = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
    while let Ok((stream, _)) = listener.accept().await {
        let (does, seen, tls) = (does.clone(), seen.clone(), tls.clone());
        tokio::spawn(async move { answer(stream, does, http2, &seen, &tls).await });
    }
}

async fn answer(
    mut stream: TcpStream,
    does: Does,
    http2: bool,
    seen: &AtomicUsize,
    tls: &tokio_rustls::TlsAcceptor,
) {
    match does {
        Does::Nothing | Does::LetsNobodyIn => unreachable!("it does not listen"),
        Does::ResetsUnread => reset(stream),
        Does::CutsTls => {
            let _ = stream.read(&mut [0; 1024]).await;
        }
        Does::NoTls => {
            let _ = stream.read(&mut [0; 1024]).await;
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
            let _ = stream.shutdown().await;
            drain(stream).await;
        }
        Does::UnknownTls => {
            let _ = tls.accept(stream).await;
        }
        Does::Writes(bytes) | Does::Resets(bytes) | Does::Stays(bytes)
            if !request(&mut stream, http2).await =>
        {
            drop(bytes);
        }
        Does::Writes(bytes) => {
            seen.fetch_add(1, SeqCst);
            let _ = stream.write_all(&bytes).await;
            let _ = stream.shutdown().await;
            drain(stream).await;
        }
        Does::Resets(bytes) => {
            seen.fetch_add(1, SeqCst);
            let _ = stream.write_all(&bytes).await;
            reset(stream);
        }
        Does::Stays(bytes) => {
            seen.fetch_add(1, SeqCst);
            let _ = stream.write_all(&bytes).await;
            while http2 && let Ok(id) = next_stream(&mut stream).await {
                seen.fetch_add(1, SeqCst);
                let _ = stream.write_all(&of_stream(&bytes, id)).await;
            }
            drain(stream).await;
        }
        Does::AnswersOne => {
            if request(&mut stream, http2).await {
                seen.fetch_add(1, SeqCst);
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                let _ = stream.write_all(answer).await;
                tokio::task::yield_now().await;
                // Was there another one under way?
                if matches!(stream.try_read(&mut [0; 1]), Ok(1)) {
                    seen.fetch_add(1, SeqCst);
                }
            }
        }
    }
}

/// Reads to the end of a request with a body of one byte. Whether one came.
async fn request(stream: &mut TcpStream, http2: bool) -> bool {
    if http2 {
        return stream_of_http2(stream).await.is_ok();
    }
    let mut read = Vec::new();
    while !read.windows(5).any(|end| end == b"\r\n\r\nx") {
        if stream.read_buf(&mut read).await.unwrap_or(0) == 0 {
            return false;
        }
    }
    true
}

async fn stream_of_http2(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(&frame(4, 0, 0, &[])).await?;
    stream.read_exact(&mut [0; 24]).await?;
    next_stream(stream).await.map(drop)
}

/// Reads until a stream ends. Which one.
async fn next_stream(stream: &mut TcpStream) -> std::io::Result<u32> {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        stream.read_exact(&mut vec![0; length as usize]).await?;
        let ends = head[3] <= 1 && head[4] & 1 == 1;
        if ends {
            return Ok(u32::from_be_bytes([head[5], head[6], head[7], head[8]]));
        }
    }
}

/// Frames of the first stream, as those of that one.
fn of_stream(mut bytes: &[u8], id: u32) -> Vec<u8> {
    let mut frames = Vec::new();
    while let [a, b, c, kind, flags, _, _, _, stream, rest @ ..] = bytes {
        let (payload, others) = rest.split_at(u32::from_be_bytes([0, *a, *b, *c]) as usize);
        frames.extend(frame(*kind, *flags, if *stream == 1 { id } else { 0 }, payload));
        bytes = others;
    }
    frames
}

async fn drain(mut stream: impl AsyncRead + Unpin) {
    while stream.read(&mut [0; 1024]).await.is_ok_and(|n| n > 0) {}
}

fn reset(stream: TcpStream) {
    #[expect(deprecated, reason = "zero does not block")]
    stream.set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
}
