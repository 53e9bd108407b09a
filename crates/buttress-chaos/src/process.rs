//! A candidate's process, as the nemesis has it.

use std::{io, path::Path, process::Stdio, time::Duration};

use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::AsyncWriteExt,
    process::{Child, ChildStdin, Command},
    time::timeout,
};

/// One that runs. It ends with the nemesis, even if it stands still.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
}

/// How long one may take to give its lease back and to end: more than that takes.
const PATIENCE: Duration = Duration::from_secs(10);

impl Process {
    /// Starts `leadctl` with those arguments.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn spawn(leadctl: &Path, name: String, args: &[String]) -> io::Result<Self> {
        let mut child = Command::new(leadctl)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // A group that is orphaned while it stands still is hung up on by the system, so that none is left of it
            // (POSIX, `_exit`).
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let stdin = child.stdin.take();
        Ok(Self { name, child, stdin })
    }

    /// Who it is in the history.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Lets it stand still, or go on.
    ///
    /// # Errors
    ///
    /// If it is gone.
    pub fn stand_still(&self, still: bool) -> io::Result<()> {
        let gone = || io::Error::other(format!("{} is gone", self.name));
        let id = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed())).ok_or_else(gone)?;
        Ok(kill_process(id, if still { Signal::STOP } else { Signal::CONT })?)
    }

    /// Has its leader leave, if it leads.
    ///
    /// # Errors
    ///
    /// If it is gone.
    pub async fn resign(&mut self) -> io::Result<()> {
        let stdin = self.stdin.as_mut().expect("it has not been told to end");
        stdin.write_all(b"resign\n").await
    }

    /// An error if it has ended by itself, which it should not.
    ///
    /// # Errors
    ///
    /// If it has.
    pub fn check(&mut self) -> io::Result<()> {
        match self.child.try_wait()? {
            Some(status) => Err(io::Error::other(format!("{} is gone: {status}", self.name))),
            None => Ok(()),
        }
    }

    /// Kills it, and waits until it is gone.
    ///
    /// # Errors
    ///
    /// If that cannot be waited for.
    pub async fn kill(mut self) -> io::Result<()> {
        self.child.kill().await
    }

    /// Has it end in its own way.
    pub fn end(&mut self) {
        self.stdin = None;
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    ///
    /// If it does not, or failed.
    pub async fn ended(mut self) -> io::Result<()> {
        let failed = |what: &str| io::Error::other(format!("{} {what}", self.name));
        match timeout(PATIENCE, self.child.wait()).await {
            Ok(status) if status.as_ref().is_ok_and(|status| status.success()) => Ok(()),
            Ok(status) => Err(failed(&format!("failed: {}", status?))),
            Err(_) => Err(failed("was told to end, and does not")),
        }
    }
}
