use std::{
    future::pending,
    io,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
    time::sleep,
    try_join,
};

/// A network between a client and a server, each of whose ways a test can disturb by itself.
///
/// What matters most is the way back: the server has done it, and nobody hears of it.
///
/// ```
/// use buttress_servers::{Proxy, Way};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// # let server = tokio::net::TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
/// let proxy = Proxy::to(server).await;
/// println!("clients connect to {}", proxy.addr());
/// proxy.set_back(Way::Blackhole);
/// // Now what clients ask arrives, and what they are answered does not.
/// proxy.set_both(Way::Open);
/// # Ok(())
/// # }
/// ```
///
/// It runs in a task that it spawns, and ends with the handle.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    there: watch::Sender<Way>,
    back: watch::Sender<Way>,
    cut: watch::Sender<()>,
    stranded: watch::Sender<()>,
    task: JoinHandle<()>,
}

/// What becomes of what is sent one way, on connections that are and on those to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It arrives.
    Open,
    /// It arrives so much later.
    Delay(Duration),
    /// It does not arrive, nor does the end of the connection. As on a network that drops packets, it is sent
    /// again: what still waits when the way is open arrives then.
    Blackhole,
    /// It does not arrive, and the connection is reset, at both ends.
    Reset,
}

/// A connection that ends without being closed.
struct Broken;

// === impl Proxy ===

impl Proxy {
    /// Starts one, on a free port of this host. Both ways are open.
    ///
    /// # Panics
    ///
    /// If there is no port, or outside of a tokio runtime.
    pub async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port is free");
        let addr = listener.local_addr().expect("it is bound");
        let (there, back) = (watch::Sender::new(Way::Open), watch::Sender::new(Way::Open));
        let (cut, stranded) = (watch::Sender::new(()), watch::Sender::new(()));
        let ways = [there.subscribe(), back.subscribe()];
        let ends = [cut.subscribe(), stranded.subscribe()];
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((client, _)) = listener.accept().await else { continue };
                while connections.try_join_next().is_some() {}
                connections.spawn(connection(client, server, ways.clone(), ends.clone()));
            }
        });
        Self { addr, there, back, cut, stranded, task }
    }

    /// Where clients connect to.
    #[must_use]
    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Sets the way to the server.
    pub fn set_there(&self, way: Way) {
        self.there.send_replace(way);
    }

    /// Sets the way back to the client.
    pub fn set_back(&self, way: Way) {
        self.back.send_replace(way);
    }

    /// Sets both.
    pub fn set_both(&self, way: Way) {
        self.set_there(way);
        self.set_back(way);
    }

    /// Resets the connections that are now.
    pub fn cut(&self) {
        self.cut.send_replace(());
    }

    /// Has the connections that are now carry nothing any more, and never end, as behind a router that has
    /// forgotten them. New ones work.
    pub fn strand(&self) {
        self.stranded.send_replace(());
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

// === A connection ===

async fn connection(
    mut client: TcpStream,
    server: SocketAddr,
    [there, back]: [watch::Receiver<Way>; 2],
    [mut cut, mut stranded]: [watch::Receiver<()>; 2],
) {
    cut.mark_unchanged();
    stranded.mark_unchanged();
    let Ok(mut server) = TcpStream::connect(server).await else {
        let _ = client.set_zero_linger();
        return;
    };
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let both = async {
        try_join!(pump(from_client, to_server, there), pump(from_server, to_client, back))
    };
    let is_broken = tokio::select! {
        // What is said first comes first: a way that is opened thereafter is open to others.
        biased;
        _ = cut.changed() => true,
        _ = stranded.changed() => pending().await,
        done = both => done.is_err(),
    };
    if is_broken {
        // Closed now, it sends a reset instead of an end.
        let _ = (client.set_zero_linger(), server.set_zero_linger());
    }
}

/// Carries one way, up to its end.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut way: watch::Receiver<Way>,
) -> Result<(), Broken> {
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let many = from.read(&mut bytes).await?;
        loop {
            let now = *way.borrow_and_update();
            match now {
                Way::Open => break,
                Way::Delay(time) => break sleep(time).await,
                Way::Blackhole => way.changed().await.map_err(|_| Broken)?,
                Way::Reset => return Err(Broken),
            }
        }
        if many == 0 {
            return Ok(to.shutdown().await?);
        }
        to.write_all(&bytes[..many]).await?;
    }
}

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Self {
        Self
    }
}
