//! A candidate's process, as its parent sees it.

use std::{io, net::SocketAddr, process::Stdio, time::Duration};

use tokio::{
    io::BufReader,
    process::{Child, ChildStdin, ChildStdout, Command},
    time,
};

use crate::store::Leases;

/// A candidate's process. It ends with its parent, even one that stands still.
pub(crate) struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
}

/// How long a candidate may take to give its lease back and to end: more than that takes.
const PATIENCE: Duration = Duration::from_secs(5);

// === impl Process ===

impl Process {
    /// Starts this very program again, as a candidate, and gives what it says.
    pub(crate) fn spawn(
        leases: &Leases,
        ledger: SocketAddr,
    ) -> io::Result<(Self, BufReader<ChildStdout>)> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["--ledger", &ledger.to_string()])
            .args(leases.args())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        // A group of its own: Ctrl-C is for the parent, which sees to the rest. And a group that is orphaned while it
        // stands still is hung up on by the system, so that none is left of it (POSIX, `_exit`).
        #[cfg(unix)]
        command.process_group(0);
        let mut child = command.spawn()?;
        let stdout = child.stdout.take().expect("standard output is piped");
        let stdin = child.stdin.take();
        Ok((Self { child, stdin }, BufReader::new(stdout)))
    }

    /// An error if it has ended by itself, which it should not.
    pub(crate) fn check(&mut self) -> io::Result<()> {
        match self.child.try_wait()? {
            Some(status) => Err(io::Error::other(format!("it is gone: {status}"))),
            None => Ok(()),
        }
    }

    /// Lets it stand still, or go on.
    #[cfg(unix)]
    pub(crate) fn stand_still(&self, still: bool) -> io::Result<()> {
        use rustix::process::{Pid, Signal, kill_process};

        let gone = || io::Error::other("it is gone");
        let id = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed())).ok_or_else(gone)?;
        Ok(kill_process(id, if still { Signal::STOP } else { Signal::CONT })?)
    }

    #[cfg(not(unix))]
    pub(crate) fn stand_still(&self, _: bool) -> io::Result<()> {
        Err(io::Error::other("only unix has SIGSTOP"))
    }

    /// Kills it, and waits until it is gone.
    pub(crate) async fn kill(mut self) -> io::Result<()> {
        self.child.kill().await
    }

    /// Has it end in its own way.
    pub(crate) fn end(&mut self) {
        self.stdin = None;
    }

    /// Waits until it has ended, for as long as that may take.
    pub(crate) async fn ended(mut self) -> io::Result<()> {
        match time::timeout(PATIENCE, self.child.wait()).await {
            Ok(ended) => ended.map(drop),
            Err(_) => self.kill().await,
        }
    }
}
