//! The figures as a table.

use std::{fmt::Write, time::Duration};

use crate::{load::Client, plain, stats::Summary};

/// One row a figure, one column a client, in the order of [`Client::ALL`].
pub(crate) fn table(summaries: &[Summary]) -> String {
    let mut table = Table::default();
    let storm = Client::ALL
        .iter()
        .zip(summaries)
        .find(|(client, _)| **client == Client::Retries)
        .map_or(0, |(_, summary)| summary.reached_sick);

    table.row("", Client::ALL.map(|client| client.name().to_owned()));
    let mut row = |label: &str, figure: &dyn Fn(&Summary) -> String| {
        table.row(label, summaries.iter().map(figure));
    };
    row("requests that reached the sick server", &|s| s.reached_sick.to_string());
    row("  as a share of what `retries` sent it", &|s| {
        share((storm > 0).then(|| s.reached_sick as f64 / storm as f64))
    });
    row("wait for an answer or an error, p50", &|s| wait(s.p50));
    row("  p99", &|s| wait(s.p99));
    row("  asked while it was sick, p50", &|s| wait(s.sick_p50));
    row("  asked while it was sick, p99", &|s| wait(s.sick_p99));
    row("good answers", &|s| share(s.success));
    row(&format!("  that came within {}", seconds(plain::TIMEOUT)), &|s| share(s.prompt));
    row("  asked while the server was healthy", &|s| share(s.success_healthy));
    row("  asked while it was sick", &|s| share(s.success_sick));
    row("  asked while it was slow", &|s| share(s.success_slow));
    row("requests that callers made", &|s| s.requests.to_string());
    row("attempts for each of them", &|s| {
        s.attempts.map_or_else(nothing, |attempts| format!("{attempts:.2}"))
    });
    row("well again after the failing ended, in", &|s| {
        s.recovery.map_or_else(|| "not in this run".to_owned(), seconds)
    });
    table.text
}

#[derive(Default)]
struct Table {
    text: String,
}

// === impl Table ===

impl Table {
    fn row(&mut self, label: &str, cells: impl IntoIterator<Item = String>) {
        let mut line = format!("{label:<38}");
        for cell in cells {
            write!(line, "{cell:>17}").expect("a string takes all that is written");
        }
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }
}

fn nothing() -> String {
    "-".to_owned()
}

fn share(share: Option<f64>) -> String {
    share.map_or_else(nothing, |share| format!("{:.1} %", share * 100.0))
}

pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

pub(crate) fn wait(wait: Option<Duration>) -> String {
    wait.map_or_else(nothing, |wait| match wait.as_secs_f64() {
        s if s < 0.0001 => "<0.1 ms".to_owned(),
        s if s < 0.01 => format!("{:.1} ms", s * 1e3),
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s => format!("{s:.2} s"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::{BEATS, Script};

    #[test]
    fn a_run_without_answers_still_makes_a_table() {
        let none = Summary::new(&[], &[], &Script::new(Duration::from_secs(26)));
        let table = table(&[none.clone(), none.clone(), none]);
        for client in Client::ALL {
            assert!(table.lines().next().unwrap().contains(client.name()));
        }
        assert!(table.contains("not in this run"));
    }

    #[test]
    fn the_load_of_the_sick_server_is_compared_with_the_retrying_client() {
        let script = Script::new(Duration::from_secs(26));
        let reached = |each| Summary::new(&[], &[each; BEATS as usize], &script);
        let table = table(&[reached(100), reached(400), reached(2)]);
        let row = table.lines().find(|line| line.contains("`retries` sent it")).unwrap();
        let cells: Vec<_> = row.split_whitespace().rev().take(6).collect();
        assert_eq!(cells, ["%", "0.5", "%", "100.0", "%", "25.0"], "{row}");
    }

    #[test]
    fn waits_are_written_in_the_unit_that_fits() {
        let written = |ms| wait(Some(Duration::from_secs_f64(ms / 1e3)));
        assert_eq!(written(0.02), "<0.1 ms");
        assert_eq!(written(2.44), "2.4 ms");
        assert_eq!(written(404.4), "404 ms");
        assert_eq!(written(1002.0), "1.00 s");
    }
}
