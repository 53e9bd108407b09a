//! What the leader writes to: a register that takes nothing from a former leader, and sees all who write.

use std::{io, net::SocketAddr, sync::Arc};

use buttress_core::{FenceGuard, FencingToken, LeaseId};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::Mutex,
    task::JoinSet,
};

use crate::history::{Pen, What, now};

/// Serves the register until it is dropped. What is written stands in the history in the order in which it was.
///
/// One that is not `fenced` takes everything: a fault that a judge must find.
///
/// # Errors
///
/// If there is no port for it.
pub async fn serve(
    lease: LeaseId,
    pen: Pen,
    fenced: bool,
) -> io::Result<(SocketAddr, JoinSet<()>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let addr = listener.local_addr()?;
    let register = Arc::new(Mutex::new((FenceGuard::new(lease), pen)));
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        let mut writers = JoinSet::new();
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            let register = Arc::clone(&register);
            writers.spawn(async move {
                // Who is gone is told nothing.
                let _ = take(stream, &register, fenced).await;
            });
        }
    });
    Ok((addr, serving))
}

/// A line is a writer and its token; the answer is whether the write was taken.
async fn take(
    stream: TcpStream,
    register: &Mutex<(FenceGuard, Pen)>,
    fenced: bool,
) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while stream.read_line(&mut line).await? > 0 {
        let write = line.trim().split_once(' ');
        let write = write.and_then(|(who, fence)| Some((who, fence.parse().ok()?)));
        let Some((who, fence)) = write else { return Err(io::ErrorKind::InvalidData.into()) };
        let accepted = {
            let register = register.lock().await;
            let (guard, pen) = &*register;
            let accepted = guard.admit(fence).is_ok() || !fenced;
            pen.note_at(now(), who, What::Wrote { fence, accepted });
            accepted
        };
        stream.write_all(if accepted { b"taken\n" } else { b"stale\n" }).await?;
        line.clear();
    }
    Ok(())
}

/// A writer's way to the register.
#[derive(Debug)]
pub struct Writer {
    who: String,
    stream: BufReader<TcpStream>,
}

impl Writer {
    /// Connects, as `who`.
    ///
    /// # Errors
    ///
    /// If nobody is there.
    pub async fn connect(register: SocketAddr, who: &str) -> io::Result<Self> {
        let stream = BufReader::new(TcpStream::connect(register).await?);
        Ok(Self { who: who.to_owned(), stream })
    }

    /// Writes, and says whether that was taken.
    ///
    /// # Errors
    ///
    /// If the register is gone.
    pub async fn write(&mut self, fence: FencingToken) -> io::Result<bool> {
        let line = format!("{} {fence}\n", self.who);
        self.stream.write_all(line.as_bytes()).await?;
        let mut answer = String::new();
        self.stream.read_line(&mut answer).await?;
        match answer.trim() {
            "taken" => Ok(true),
            "stale" => Ok(false),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}
