//! The file in which everybody writes down what happens: a line of JSON each, in no particular order.

use std::{
    fs::File,
    io::{self, Read, Write},
    path::Path,
};

use buttress_leadership::{BootTime, FencingToken, LeaseClock};
use serde::{Deserialize, Serialize};

use crate::faults::Kind;

/// What happened to whom, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// By the clock that all processes of a machine share, in nanoseconds.
    pub at: u64,
    /// A process, from its start to its end: one that is started anew has another name.
    pub who: String,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
#[non_exhaustive]
pub enum What {
    /// It leads, and believes that it may until then unless it is renewed.
    Believes {
        /// The term's token.
        fence: FencingToken,
        /// Until when, in nanoseconds.
        until: u64,
    },
    /// It closes its gate, and holds the lease for what is under way.
    Leaves {
        /// The term's token.
        fence: FencingToken,
        /// Why.
        why: String,
    },
    /// It leads no more.
    Ended {
        /// The term's token.
        fence: FencingToken,
        /// How that came.
        how: String,
    },
    /// The lease was given back.
    Released {
        /// The term's token.
        fence: FencingToken,
    },
    /// The process is no more.
    Gone,
    /// It lets somebody in who will write.
    Admitted {
        /// The token of the term.
        fence: FencingToken,
    },
    /// It wrote to the register, which took it or did not.
    Wrote {
        /// The token that came along.
        fence: FencingToken,
        /// Whether it was taken.
        accepted: bool,
    },
    /// A call to the store got no answer.
    Failed {
        /// Which one.
        operation: String,
        /// Why.
        why: String,
    },
    /// The store went back, and it does not lead with what that gave.
    WentBack {
        /// The token that it gave.
        fence: FencingToken,
    },
    /// The nemesis breaks something.
    Breaks {
        /// In which way.
        kind: Kind,
        /// Whether it is the leader's.
        hits_leader: bool,
    },
    /// All that was broken is well again.
    Heals,
    /// The members of the store have elected another leader of theirs since it was looked last.
    Elected,
}

/// Writes into the file. Many may at the same time, from many processes.
#[derive(Debug)]
pub struct Pen {
    file: File,
    who: String,
}

/// Reads it, as far as it is written.
#[derive(Debug)]
pub struct Reader {
    file: File,
    /// The beginning of a line whose end is not there yet.
    rest: Vec<u8>,
}

/// The time by the clock that all processes share.
#[must_use]
pub fn now() -> BootTime {
    LeaseClock::system().now()
}

// === impl Pen ===

impl Pen {
    /// Writes as `who`.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened.
    pub fn new(path: &Path, who: impl Into<String>) -> io::Result<Self> {
        let file = File::options().create(true).append(true).open(path)?;
        Ok(Self { file, who: who.into() })
    }

    /// It happens now.
    ///
    /// # Panics
    ///
    /// If it cannot be written: a history with gaps proves nothing.
    pub fn note(&self, what: What) {
        self.note_at(now(), &self.who, what);
    }

    /// It happened then, to `who`.
    ///
    /// # Panics
    ///
    /// As [`note`](Self::note).
    pub fn note_at(&self, at: BootTime, who: &str, what: What) {
        let line = Line { at: at.as_nanos(), who: who.to_owned(), what };
        let mut line = serde_json::to_vec(&line).expect("it is plain data");
        line.push(b'\n');
        // In one piece, so that it stands between the lines of others.
        let written = (&self.file).write(&line).expect("the history can be written");
        assert_eq!(written, line.len(), "the history can be written");
    }

    /// Who writes.
    #[must_use]
    pub fn who(&self) -> &str {
        &self.who
    }
}

// === impl Reader ===

impl Reader {
    /// Begins at the first line.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened.
    pub fn new(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::open(path)?, rest: Vec::new() })
    }

    /// The lines that were written since.
    ///
    /// # Errors
    ///
    /// If they cannot be read, or are none of ours.
    pub fn more(&mut self) -> io::Result<Vec<Line>> {
        self.file.read_to_end(&mut self.rest)?;
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else {
            return Ok(Vec::new());
        };
        let whole: Vec<u8> = self.rest.drain(..=end).collect();
        let lines = whole.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let parsed = lines.map(|line| {
            serde_json::from_slice(line).map_err(|error| {
                let line = String::from_utf8_lossy(line);
                io::Error::new(io::ErrorKind::InvalidData, format!("no history: {line}: {error}"))
            })
        });
        parsed.collect()
    }

    /// All lines of a file, in the order in which things happened.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new) and [`more`](Self::more).
    pub fn all(path: &Path) -> io::Result<Vec<Line>> {
        let mut lines = Self::new(path)?.more()?;
        lines.sort_by_key(|line| line.at);
        Ok(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_half_a_line_when_its_end_is_there() {
        let path = std::env::temp_dir().join(format!("buttress-history-{}", std::process::id()));
        let pen = Pen::new(&path, "a.1").unwrap();
        let mut reader = Reader::new(&path).unwrap();
        let fence = FencingToken::new(u64::MAX).unwrap();
        pen.note_at(BootTime::from_nanos(7), "b.2", What::Believes { fence, until: u64::MAX });
        let line =
            Line { at: 7, who: "b.2".into(), what: What::Believes { fence, until: u64::MAX } };
        assert_eq!(reader.more().unwrap(), [line]);
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(br#"{"at":9,"who":"c","what":"#).unwrap();
        assert_eq!(reader.more().unwrap(), []);
        file.write_all(b"\"gone\"}\nhello\n").unwrap();
        assert!(reader.more().unwrap_err().to_string().contains("hello"));
        std::fs::remove_file(path).unwrap();
    }
}
