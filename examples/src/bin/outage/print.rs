//! Words for whoever reads standard output and standard error.
//!
//! `println!` panics when it cannot write. A reader who has seen enough and closes the pipe is
//! no reason to; a disk that is full is one to say so and to fail.

use std::{
    fmt::Display,
    io::{self, ErrorKind, Write},
};

/// Writes a line on standard output.
pub(crate) fn say(line: impl Display) -> io::Result<()> {
    write(io::stdout(), line)
        .map_err(|error| io::Error::new(error.kind(), format!("cannot write the output: {error}")))
}

/// Writes a line on standard error.
pub(crate) fn note(line: impl Display) -> io::Result<()> {
    write(io::stderr(), line)
}

/// Writes the line that says why the program ends. Where that fails too there is nobody to tell,
/// and the exit code alone has to do.
pub(crate) fn complain(line: impl Display) {
    let _ = note(line);
}

fn write(mut to: impl Write, line: impl Display) -> io::Result<()> {
    unless_gone(writeln!(to, "{line}").and_then(|()| to.flush()))
}

/// A reader who has gone misses nothing.
pub(crate) fn unless_gone(written: io::Result<()>) -> io::Result<()> {
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
    fn a_line_ends_as_lines_do() {
        let mut out = Vec::new();
        write(&mut out, "table").unwrap();
        assert_eq!(out, b"table\n");
    }
}
