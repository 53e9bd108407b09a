//! What a run shows: a heading and a time for each step, and a line for each at the end.

use std::{fmt, time::Duration, time::Instant};

use crate::steps::{Outcome, Step};

/// The steps of one run and how they ended.
#[derive(Debug)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    step: Step,
    end: Option<End>,
}

#[derive(Debug)]
struct End {
    took: Duration,
    word: &'static str,
    note: String,
}

impl Report {
    pub(crate) fn new(steps: &[Step]) -> Self {
        let rows = steps.iter().map(|&step| Row { step, end: None });
        Self { rows: rows.collect() }
    }

    pub(crate) fn heading(&self, step: Step) {
        let (done, all) = (self.done(), self.rows.len());
        println!("\n==> {step} ({} of {all}): {}", done + 1, step.what());
    }

    /// Notes how `step` ended: the next of the rows.
    pub(crate) fn close(&mut self, step: Step, took: Duration, outcome: &Outcome) {
        let (word, note) = match outcome {
            Ok(note) => ("ok", note.clone()),
            Err(_) => ("FAILED", String::new()),
        };
        println!("<== {step}: {word}, {}", Seconds(took));
        let next = self.done();
        self.rows[next].end = Some(End { took, word, note });
    }

    fn done(&self) -> usize {
        self.rows.iter().filter(|row| row.end.is_some()).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Row { step, end } in &self.rows {
            let step = step.to_string();
            match end {
                Some(End { took, word, note }) => {
                    let took = Seconds(*took).to_string();
                    let line = format!("{step:<10} {word:<8} {took:>9}  {note}");
                    writeln!(f, "{}", line.trim_end())?;
                }
                None => writeln!(f, "{step:<10} not run")?,
            }
        }
        let took = self.rows.iter().filter_map(|row| Some(row.end.as_ref()?.took));
        let took = Seconds(took.sum()).to_string();
        write!(f, "{:<10} {:<8} {took:>9}", "all", "")
    }
}

struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} s", self.0.as_secs_f64())
    }
}

/// The clock of this program.
#[expect(
    clippy::disallowed_methods,
    reason = "the door in `buttress_core` is for what users run; here real time is what is shown"
)]
pub(crate) fn clock() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_has_one_line_and_what_came_after_a_failure_was_not_run() {
        let mut report = Report::new(&[Step::Rules, Step::Fmt, Step::Clippy]);
        let took = Duration::from_millis(1250);
        report.close(Step::Rules, took, &Ok("13 crates".to_owned()));
        report.close(Step::Fmt, took, &Err("why".to_owned()));
        assert_eq!(
            report.to_string().lines().collect::<Vec<_>>(),
            [
                "rules      ok           1.2 s  13 crates",
                "fmt        FAILED       1.2 s",
                "clippy     not run",
                "all                     2.5 s",
            ]
        );
    }
}
