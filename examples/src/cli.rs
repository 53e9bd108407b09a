//! The command line, and words for whoever reads standard output and standard error.
//!
//! What cannot work is refused with one line and exit code 2.
//!
//! `println!` panics when it cannot write. A reader who has seen enough and closes the pipe is
//! no reason to; a disk that is full is one to say so and to fail.

use std::{
    fmt::Display,
    io::{self, ErrorKind, Write},
    process::ExitCode,
};

use clap::Parser;

/// Exit code for a command line that cannot work.
const USAGE: u8 = 2;

/// Exit code of a run that was broken off, as shells have it for Ctrl-C.
pub const INTERRUPTED: u8 = 130;

/// Reads the command line.
///
/// # Errors
///
/// The exit code; its reason has been printed.
pub fn parse<O: Parser>() -> Result<O, ExitCode> {
    O::try_parse().map_err(|error| {
        if error.use_stderr() {
            refuse(&first_paragraph(&error.to_string()))
        } else {
            // Help, or the version.
            unless_gone(error.print()).map_or_else(
                |error| {
                    complain(format_args!("error: cannot write the output: {error}"));
                    ExitCode::FAILURE
                },
                |()| ExitCode::SUCCESS,
            )
        }
    })
}

/// Says on one line why the command line cannot work. The exit code that goes with it.
#[must_use]
pub fn refuse(reason: &str) -> ExitCode {
    let line: String = reason.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    complain(line);
    ExitCode::from(USAGE)
}

/// What went wrong, without the usage that clap prints after it.
fn first_paragraph(text: &str) -> String {
    let paragraph = text.split("\n\n").next().unwrap_or(text);
    paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Waits until somebody wants this program to end.
pub async fn interrupted() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};

        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    let _ = tokio::signal::ctrl_c().await;
}

/// Writes a line on standard output.
///
/// # Errors
///
/// It cannot be written, though there is somebody who reads.
pub fn say(line: impl Display) -> io::Result<()> {
    write(io::stdout(), line)
        .map_err(|error| io::Error::new(error.kind(), format!("cannot write the output: {error}")))
}

/// Writes a line on standard error.
///
/// # Errors
///
/// As [`say`].
pub fn note(line: impl Display) -> io::Result<()> {
    write(io::stderr(), line)
}

/// Writes the line that says why the program ends. Where that fails too there is nobody to tell,
/// and the exit code alone has to do.
pub fn complain(line: impl Display) {
    let _ = note(line);
}

fn write(mut to: impl Write, line: impl Display) -> io::Result<()> {
    unless_gone(writeln!(to, "{line}").and_then(|()| to.flush()))
}

/// A reader who has gone misses nothing.
fn unless_gone(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes no byte, for a reason.
    struct Shut(ErrorKind);

    impl Write for Shut {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_who_has_gone_is_no_error_and_a_full_disk_is() {
        assert!(write(Shut(ErrorKind::BrokenPipe), "table").is_ok());
        let error = write(Shut(ErrorKind::StorageFull), "table").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
    }

    #[test]
    fn the_reason_fits_on_one_line() {
        let text = "error: no such\nthing\n\n  tip: try another\n\nUsage: outage";
        assert_eq!(first_paragraph(text), "error: no such thing");
    }

    #[test]
    fn a_line_ends_as_lines_do() {
        let mut out = Vec::new();
        write(&mut out, "table").unwrap();
        assert_eq!(out, b"table\n");
    }
}
