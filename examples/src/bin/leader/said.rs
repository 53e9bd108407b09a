//! What a candidate tells its parent of: each event is a line of text on its standard output.

use std::{
    fmt,
    io::{self, Write},
    net::SocketAddr,
    str::FromStr,
};

use buttress::leadership::{BootTime, Event, LeaseClock, TermEnd};

/// An event, and when it was, by the clock that all processes of a machine share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) at: BootTime,
    pub(crate) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Its front listens.
    Listens(SocketAddr),
    /// A term began, and is valid so long.
    Started { fence: u64, until: BootTime },
    /// It was renewed.
    Renewed { fence: u64, until: BootTime },
    /// The gate is closed: the leader leaves.
    Resigns { fence: u64, why: String },
    /// A term ended.
    Ended { fence: u64, how: String },
}

/// Tells the parent of it. Nobody hears it if that is gone: then this process ends anyway.
pub(crate) fn tell(what: What) {
    let said = Said { at: LeaseClock::system().now(), what };
    let _ = writeln!(io::stdout(), "{said}");
}

// === impl What ===

impl What {
    /// What there is to tell of an event.
    pub(crate) fn of(event: &Event) -> Option<Self> {
        Some(match event {
            Event::TermStarted { fence, valid_until } => {
                Self::Started { fence: fence.get(), until: *valid_until }
            }
            Event::Renewed { fence, valid_until } => {
                Self::Renewed { fence: fence.get(), until: *valid_until }
            }
            Event::Resigning { fence, reason } => {
                Self::Resigns { fence: fence.get(), why: reason.to_string() }
            }
            Event::TermEnded { fence, end } => {
                let how = match end {
                    TermEnd::Resigned(reason) => format!("resigned ({reason})"),
                    end => end.to_string(),
                };
                Self::Ended { fence: fence.get(), how }
            }
            _ => return None,
        })
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.at.as_nanos())?;
        match &self.what {
            What::Listens(front) => write!(f, "listens {front}"),
            What::Started { fence, until } => write!(f, "started {fence} {}", until.as_nanos()),
            What::Renewed { fence, until } => write!(f, "renewed {fence} {}", until.as_nanos()),
            What::Resigns { fence, why } => write!(f, "resigns {fence} {why}"),
            What::Ended { fence, how } => write!(f, "ended {fence} {how}"),
        }
    }
}

impl FromStr for Said {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let read = || {
            let (at, rest) = line.split_once(' ')?;
            let (what, rest) = rest.split_once(' ')?;
            let what = if what == "listens" {
                What::Listens(rest.parse().ok()?)
            } else {
                let (fence, rest) = rest.split_once(' ')?;
                let fence = fence.parse().ok()?;
                match what {
                    "started" => What::Started { fence, until: instant(rest)? },
                    "renewed" => What::Renewed { fence, until: instant(rest)? },
                    "resigns" => What::Resigns { fence, why: rest.to_owned() },
                    "ended" => What::Ended { fence, how: rest.to_owned() },
                    _ => return None,
                }
            };
            Some(Self { at: instant(at)?, what })
        };
        read().ok_or_else(|| format!("a candidate says {line:?}"))
    }
}

fn instant(nanos: &str) -> Option<BootTime> {
    nanos.parse().ok().map(BootTime::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_what_is_heard() {
        let until = BootTime::from_nanos(u64::MAX);
        for what in [
            What::Listens("127.0.0.1:80".parse().unwrap()),
            What::Started { fence: 1, until },
            What::Renewed { fence: u64::MAX, until },
            What::Resigns { fence: 2, why: "the ledger's breaker".to_owned() },
            What::Ended { fence: 2, how: "expired locally".to_owned() },
        ] {
            let said = Said { at: BootTime::from_nanos(7), what };
            assert_eq!(said.to_string().parse(), Ok(said));
        }
    }

    #[test]
    fn a_line_that_says_nothing_is_an_error() {
        for line in ["", "7", "7 listens", "7 started 1", "x started 1 2", "7 sings 1 2"] {
            assert!(line.parse::<Said>().unwrap_err().contains(line));
        }
    }
}
