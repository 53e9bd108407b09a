//! The server's process, as its parent sees it.

use std::{io, process::Stdio, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time,
};

use crate::{load::Client, options::Options};

/// How long the server may take for a line: far more than it needs, and not for ever.
const PATIENCE: Duration = Duration::from_secs(10);

/// The server's process. It ends with its parent, for its standard input does; [`stop`] ends it
/// sooner and sees that it is gone.
///
/// [`stop`]: ServerProcess::stop
#[derive(Debug)]
pub(crate) struct ServerProcess {
    child: Child,
    orders: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

// === impl ServerProcess ===

impl ServerProcess {
    /// Starts this very program again, as the server.
    pub(crate) fn spawn(options: &Options) -> io::Result<Self> {
        let Options { rate, seconds, seed, .. } = options;
        let mut child = Command::new(std::env::current_exe()?)
            .arg("--serve")
            .args(["--rate", &rate.to_string()])
            .args(["--seconds", &seconds.to_string()])
            .args(["--seed", &seed.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let orders = child.stdin.take().expect("standard input is piped");
        let answers = child.stdout.take().expect("standard output is piped");
        Ok(Self { child, orders, lines: BufReader::new(answers).lines() })
    }

    /// The port that the server listens on.
    pub(crate) async fn port(&mut self) -> io::Result<u16> {
        let line = self.line().await?;
        line.strip_prefix("port ")
            .and_then(|port| port.parse().ok())
            .ok_or_else(|| unexpected(&line))
    }

    /// Begins the script.
    pub(crate) async fn start(&mut self) -> io::Result<()> {
        self.orders.write_all(b"start\n").await
    }

    /// What has reached the server, by client (in the order of [`Client::ALL`]) and beat.
    pub(crate) async fn report(&mut self) -> io::Result<Vec<Vec<u64>>> {
        self.orders.write_all(b"report\n").await?;
        let mut reached = Vec::new();
        for client in Client::ALL {
            let line = self.line().await?;
            let counts = line
                .strip_prefix("reached ")
                .and_then(|rest| rest.strip_prefix(client.name()))
                .map(|rest| rest.split_whitespace().map(str::parse).collect());
            match counts {
                Some(Ok(counts)) => reached.push(counts),
                _ => return Err(unexpected(&line)),
            }
        }
        Ok(reached)
    }

    /// Waits until the process has ended by itself, which it should not.
    pub(crate) async fn gone(&mut self) -> io::Error {
        match self.child.wait().await {
            Ok(status) => io::Error::other(format!("the server's process is gone: {status}")),
            Err(error) => error,
        }
    }

    /// Ends the process and waits until it is gone.
    pub(crate) async fn stop(mut self) {
        // An error means that it is gone already.
        let _ = self.child.kill().await;
    }

    async fn line(&mut self) -> io::Result<String> {
        match time::timeout(PATIENCE, self.lines.next_line()).await {
            Ok(line) => line?.ok_or_else(|| io::Error::other("the server's process is gone")),
            Err(_) => Err(io::Error::other("the server's process says nothing")),
        }
    }
}

fn unexpected(line: &str) -> io::Error {
    io::Error::other(format!("the server's process says {line:?}"))
}
