//! Commands that are shown before they run, as a person would type them.

use std::{
    fmt,
    io::{self, BufRead, BufReader, IsTerminal},
    process::{Command, Output, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use crate::report::clock;

/// A command to run in the root of the workspace.
#[derive(Debug)]
pub(crate) struct Cmd {
    program: String,
    args: Vec<String>,
    env: Vec<(&'static str, String)>,
}

impl Cmd {
    /// `program` with `args`, which are split at spaces: none of ours holds one.
    pub(crate) fn new(program: &str, args: &str) -> Self {
        Self {
            program: program.to_owned(),
            args: args.split_whitespace().map(str::to_owned).collect(),
            env: Vec::new(),
        }
    }

    /// The same cargo that runs us.
    pub(crate) fn cargo(args: &str) -> Self {
        Self::new("cargo", args)
    }

    /// Adds one argument, which may hold spaces.
    pub(crate) fn arg(mut self, arg: impl fmt::Display) -> Self {
        self.args.push(arg.to_string());
        self
    }

    pub(crate) fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    /// Adds to a variable of compiler flags, and keeps what the person's shell has put there.
    pub(crate) fn flags(self, name: &'static str, more: &str) -> Self {
        let flags = match std::env::var(name) {
            Ok(set) if !set.is_empty() => format!("{set} {more}"),
            _ => more.to_owned(),
        };
        self.env(name, flags)
    }

    /// Shows the command and runs it on this terminal.
    pub(crate) fn run(&self) -> Result<(), String> {
        self.show();
        let status = self.std().status().map_err(|error| self.no_start(&error))?;
        self.judge(status.success(), status)
    }

    /// Shows the command, runs it, prints all it says and hands each line to `each`.
    pub(crate) fn read(&self, each: impl FnMut(&str)) -> Result<(), String> {
        self.follow(None, each)
    }

    /// As [`read`](Self::read), and ends the command when it takes longer than `limit`.
    pub(crate) fn read_within(
        &self,
        limit: Duration,
        each: impl FnMut(&str),
    ) -> Result<(), String> {
        self.follow(Some(limit), each)
    }

    fn follow(&self, limit: Option<Duration>, mut each: impl FnMut(&str)) -> Result<(), String> {
        self.show();
        let broken = |error: io::Error| format!("`{self}` cannot be read: {error}");
        // One pipe for both, so that cargo's headings stay above the tests they belong to.
        let (reader, writer) = io::pipe().map_err(broken)?;
        let mut command = self.std();
        command.stdout(writer.try_clone().map_err(broken)?);
        command.stderr(writer);
        if io::stdout().is_terminal() {
            command.env("CARGO_TERM_COLOR", "always");
        }
        let mut child = command.spawn().map_err(|error| self.no_start(&error))?;
        // It holds the other end of the pipe, which would never close.
        drop(command);

        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            let mut lines = BufReader::new(reader).split(b'\n');
            while lines.next().is_some_and(|line| sender.send(line).is_ok()) {}
        });
        // What a failed test has left running holds the pipe too: the end of the command is the end, once all it
        // said has been read.
        let mut ended = None;
        let start = clock();
        loop {
            if let Some(limit) = limit.filter(|limit| ended.is_none() && clock() - start > *limit) {
                child.kill().and_then(|()| child.wait()).map_err(broken)?;
                return Err(format!("`{self}` was ended: it took more than {limit:?}"));
            }
            match lines.recv_timeout(Duration::from_millis(100)) {
                Ok(line) => {
                    let line = line.map_err(broken)?;
                    let line = String::from_utf8_lossy(&line);
                    println!("{line}");
                    each(&line);
                }
                Err(RecvTimeoutError::Timeout) if ended.is_none() => {
                    ended = child.try_wait().map_err(broken)?;
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        let status = child.wait().map_err(broken)?;
        self.judge(status.success(), status)
    }

    /// Shows the command, runs it and gives back what it said, whatever its exit code.
    pub(crate) fn output(&self) -> Result<Output, String> {
        self.show();
        self.std().output().map_err(|error| self.no_start(&error))
    }

    /// Whether it runs and ends well, with nothing shown.
    pub(crate) fn works(&self) -> bool {
        self.std()
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    }

    fn show(&self) {
        println!("$ {self}");
    }

    fn judge(&self, success: bool, status: impl fmt::Display) -> Result<(), String> {
        if success { Ok(()) } else { Err(format!("`{self}` ended with {status}")) }
    }

    fn no_start(&self, error: &io::Error) -> String {
        format!("`{self}` does not start: {error}")
    }

    fn std(&self) -> Command {
        let mut command = match self.program.as_str() {
            "cargo" => Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())),
            program => Command::new(program),
        };
        // `cargo run` describes xtask's own package to us. Handed on, it would make build scripts that look at
        // these names run again, and a person's next `cargo test` would build what this one has built.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
                command.env_remove(&name);
            }
        }
        command
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir(crate::workspace::root());
        command
    }
}

impl fmt::Display for Cmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.env {
            if value.contains(' ') {
                write!(f, "{name}=\"{value}\" ")?;
            } else {
                write!(f, "{name}={value} ")?;
            }
        }
        f.write_str(&self.program)?;
        self.args.iter().try_for_each(|arg| write!(f, " {arg}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_a_person_would_type_it() {
        let command = Cmd::cargo("doc --no-deps").env("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(command.to_string(), "RUSTDOCFLAGS=\"-D warnings\" cargo doc --no-deps");
    }

    /// What is read of a script for the shell.
    fn read(script: &str) -> Vec<String> {
        let mut lines = Vec::new();
        let command = Cmd {
            program: "sh".to_owned(),
            args: vec!["-c".to_owned(), script.to_owned()],
            env: Vec::new(),
        };
        command.read(|line| lines.push(line.to_owned())).unwrap();
        lines
    }

    #[test]
    fn both_streams_are_read_in_the_order_in_which_they_were_written() {
        assert_eq!(read("echo one; echo two >&2; echo three"), ["one", "two", "three"]);
    }

    #[test]
    fn what_a_command_leaves_running_is_not_waited_for() {
        assert_eq!(read("(sleep 10; echo late) & echo one"), ["one"]);
    }

    #[test]
    fn a_command_that_is_silent_for_a_while_is_waited_for() {
        assert_eq!(read("echo one; sleep 0.5; echo two"), ["one", "two"]);
    }

    #[test]
    fn a_command_that_does_not_end_is_ended_whether_it_speaks_or_not() {
        let limit = Duration::from_millis(50);
        for command in [Cmd::new("sleep", "60"), Cmd::new("yes", "")] {
            let why = command.read_within(limit, |_| ()).unwrap_err();
            assert!(why.ends_with("was ended: it took more than 50ms"), "{why}");
        }
    }

    #[test]
    fn a_failure_names_its_command() {
        let why = Cmd::new("false", "").run().unwrap_err();
        assert!(why.starts_with("`false` ended with "), "{why}");
        let why = Cmd::new("no-such-program", "").run().unwrap_err();
        assert!(why.starts_with("`no-such-program` does not start"), "{why}");
    }
}
