//! The command line. What cannot work is refused with one line and exit code 2.

use std::{fs, io, ops::RangeInclusive, path::PathBuf, process::ExitCode};

use clap::Parser;

use crate::{limits, script::BEATS};

/// Shows what an outage looks like to three clients: bare hyper, hyper with retries, and hyper in
/// the standard stack.
///
/// Starts a server on loopback, in a process of its own, lets it hang, fail, be slow and get well,
/// and prints a table of what the clients made of it. Writes the timeline to `outage.svg` and
/// `outage.png`.
#[derive(Debug, Parser)]
#[command(name = "outage", version)]
pub(crate) struct Options {
    /// Requests a second, for each client.
    #[arg(long, default_value_t = 100.0, value_parser = rate, allow_negative_numbers = true)]
    pub(crate) rate: f64,

    /// Seed of the dice: when exactly requests start, how long the server takes.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,

    /// Length of the whole script in seconds.
    #[arg(long, default_value_t = f64::from(BEATS), value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) seconds: f64,

    /// Folder for the pictures.
    #[arg(long, default_value = "target/outage")]
    pub(crate) out: PathBuf,

    /// Be the server.
    #[arg(long, hide = true)]
    pub(crate) serve: bool,
}

/// Exit code for a command line that cannot work.
const USAGE: u8 = 2;

/// Below, there is nothing to take a percentile of; above, ports and sockets run out.
const RATES: RangeInclusive<f64> = 1.0..=500.0;
const SECONDS: RangeInclusive<f64> = 2.0..=600.0;

/// Sockets that all clients together hold at once, for each request a second: the bare client's
/// wait for 1 s, the retrying one's for 4 s, the stack's for 1.5 s.
const SOCKETS: f64 = 6.5;
/// Files that are open besides, and idle connections.
const SPARE: u64 = 100;

// === impl Options ===

impl Options {
    /// Reads the command line and sees that the run can be done. The error is the exit code;
    /// its reason has been printed.
    pub(crate) fn parse() -> Result<Self, ExitCode> {
        let options = Self::try_parse().map_err(|error| {
            if error.use_stderr() {
                refuse(&first_paragraph(&error.to_string()))
            } else {
                // Help, or the version. A reader who has seen enough may close the pipe.
                let _ = error.print();
                ExitCode::SUCCESS
            }
        })?;
        if !options.serve {
            options.writable().map_err(|error| {
                let out = options.out.display();
                refuse(&format!("error: cannot write to the folder {out}: {error}"))
            })?;
            limits::open_files((options.rate * SOCKETS) as u64 + SPARE)
                .map_err(|error| refuse(&format!("error: {error}")))?;
        }
        Ok(options)
    }

    /// Makes the folder, and sees that a file can be put there: before the run, not after it.
    fn writable(&self) -> io::Result<()> {
        fs::create_dir_all(&self.out)?;
        let probe = self.out.join(".outage");
        fs::write(&probe, [])?;
        fs::remove_file(&probe)
    }
}

fn rate(text: &str) -> Result<f64, String> {
    within(text, RATES, "requests a second")
}

fn seconds(text: &str) -> Result<f64, String> {
    within(text, SECONDS, "seconds")
}

fn within(text: &str, range: RangeInclusive<f64>, unit: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        // Not a number is in no range.
        .filter(|value| range.contains(value))
        .ok_or_else(|| {
            format!("must be a number of {unit} from {} to {}", range.start(), range.end())
        })
}

fn refuse(reason: &str) -> ExitCode {
    let line: String = reason.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    eprintln!("{line}");
    ExitCode::from(USAGE)
}

/// What went wrong, without the usage that clap prints after it.
fn first_paragraph(text: &str) -> String {
    let paragraph = text.split("\n\n").next().unwrap_or(text);
    paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_out_of_range_or_none_at_all_is_refused() {
        for text in ["0", "-1", "0.999", "500.1", "1e99", "inf", "-inf", "NaN", "", "many"] {
            assert!(rate(text).is_err(), "{text}");
        }
        assert_eq!(rate("500"), Ok(500.0));
        assert_eq!(rate("1"), Ok(1.0));
    }

    #[test]
    fn the_reason_fits_on_one_line() {
        let text = "error: no such\nthing\n\n  tip: try another\n\nUsage: outage";
        assert_eq!(first_paragraph(text), "error: no such thing");
    }
}
