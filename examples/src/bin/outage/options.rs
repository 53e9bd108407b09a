//! The command line.

use std::{fs, io, ops::RangeInclusive, path::PathBuf, process::ExitCode};

use buttress_examples::cli::{self, refuse};
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
    /// Requests a second, for each client, from 1 to 250.
    ///
    /// The server's workers are 16 for each 100, rounded up: with few of them the rounding gives a
    /// retrying client room that it would not have with many.
    #[arg(long, default_value_t = 100.0, value_parser = rate, allow_negative_numbers = true)]
    pub(crate) rate: f64,

    /// Seed of all dice: when exactly requests start, how long the server works, how long the
    /// stack's breaker stays open and its retry waits.
    ///
    /// The machine's own timing has no seed: two runs come out alike, and not the same.
    #[arg(long, default_value_t = 1, value_parser = seed, allow_negative_numbers = true)]
    pub(crate) seed: u64,

    /// Length of the whole script in seconds, from 6 to 600.
    ///
    /// The phases scale with it. The clients' limits do not: two clients wait for 1 s, and the
    /// breaker is open for 1 to 4 s. In a script of a few seconds retries bridge the outage, and it
    /// is over before the breaker looks again.
    #[arg(long, default_value_t = f64::from(BEATS), value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) seconds: f64,

    /// Folder for the pictures.
    #[arg(long, default_value = "target/outage")]
    pub(crate) out: PathBuf,

    /// Be the server.
    #[arg(long, hide = true)]
    pub(crate) serve: bool,
}

/// Below, there is nothing to take a percentile of. Above, ports run out: each attempt that times
/// out leaves one behind for a minute (some 60 in all for each request a second), and some systems
/// have 16 000.
const RATES: RangeInclusive<f64> = 1.0..=250.0;
/// The hang is 5 of 26 beats, and must outlast the second for which the clients without us wait:
/// else nobody times out in it.
const SECONDS: RangeInclusive<f64> = 6.0..=600.0;

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
        let options: Self = cli::parse()?;
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

fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("must be a whole number from 0 to {}", u64::MAX))
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        plain,
        script::{Mood, Script},
    };

    #[test]
    fn a_number_out_of_range_or_none_at_all_is_refused() {
        for text in ["0", "-1", "0.999", "250.1", "1e99", "inf", "-inf", "NaN", "", "many"] {
            assert!(rate(text).is_err(), "{text}");
        }
        assert_eq!(rate("250"), Ok(250.0));
        assert_eq!(rate("1"), Ok(1.0));
    }

    #[test]
    fn a_seed_is_a_whole_number() {
        for text in ["-1", "1.5", "1e3", "x", "", "18446744073709551616"] {
            assert!(seed(text).unwrap_err().contains("a whole number from 0"), "{text}");
        }
        assert_eq!(seed("0"), Ok(0));
        assert_eq!(seed("18446744073709551615"), Ok(u64::MAX));
    }

    #[test]
    fn the_shortest_hang_outlasts_a_timeout() {
        let script = Script::new(Duration::from_secs_f64(*SECONDS.start()));
        let hang = script.phases().find(|phase| phase.mood == Mood::Hanging).unwrap();
        assert!(hang.until - hang.from > plain::TIMEOUT);
    }
}
