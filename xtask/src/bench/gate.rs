//! Whether a call of ours costs more than it did.
//!
//! Counts are held against a record in the repository, and not against the last run, so that many small
//! steps add up to one that fails.

use std::{collections::BTreeMap, fs, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::counts::{Counts, Row};
use crate::{command::Cmd, workspace};

/// The record, from the root of the checkout.
pub(super) const FILE: &str = "benches/baseline.json";

/// What moves the record.
pub(super) const RECORD: &str = "cargo xtask bench --record";

/// A count may be above its record by this share: every change nearby moves a few instructions.
const SLACK: f64 = 0.03;

/// Or by so much: what comes once in many calls, as a window that slides with the clock, comes more often on
/// a machine that is slower.
const RARE: f64 = 0.5;

/// What our paths cost when it was recorded.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Baseline {
    tools: Tools,
    paths: BTreeMap<String, Counts>,
}

/// With others the same source counts otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tools {
    pub(super) rustc: String,
    pub(super) target: String,
    pub(super) valgrind: String,
}

/// What there is to say of a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Judgement {
    /// Why it fails.
    pub(super) faults: Vec<String>,
    pub(super) notes: Vec<String>,
}

/// Holds `rows` against `baseline`, which `tools` may have to renew first.
pub(super) fn judge(baseline: &Baseline, tools: &Tools, rows: &[Row]) -> Judgement {
    let mut judgement = Judgement::default();
    for row in rows.iter().filter(|row| !row.refuses && row.counts.allocations > 0.0) {
        judgement.faults.push(format!(
            "{}: {} allocations a call, where a call that is answered makes none",
            row.name(),
            row.counts.allocations
        ));
    }
    if baseline.tools != *tools {
        let Tools { rustc, target, valgrind } = &baseline.tools;
        judgement.notes.push(format!(
            "not compared: the record is of {rustc} for {target} with {valgrind}, and here is {} for {} with {}; \
             make a new one: {RECORD}",
            tools.rustc, tools.target, tools.valgrind
        ));
        return judgement;
    }
    let now = counts(rows);
    for name in baseline.paths.keys().filter(|name| !now.contains_key(*name)) {
        judgement.faults.push(format!("{name}: is no longer counted; to take it out: {RECORD}"));
    }
    for (name, counts) in &now {
        let Some(recorded) = baseline.paths.get(name) else {
            judgement.faults.push(format!("{name}: has no record; to make one: {RECORD}"));
            continue;
        };
        for ((what, now), (_, before)) in counts.named().into_iter().zip(recorded.named()) {
            let change = || format!("{name}: {before} {what} a call before, {now} now");
            let slack = (before * SLACK).max(RARE);
            if now > before + slack {
                judgement.faults.push(change());
            } else if now < before - slack {
                judgement.notes.push(format!("{}; to hold it: {RECORD}", change()));
            }
        }
    }
    judgement
}

fn counts(rows: &[Row]) -> BTreeMap<String, Counts> {
    rows.iter().map(|row| (row.name(), row.counts)).collect()
}

// === impl Baseline ===

impl Baseline {
    pub(super) fn new(tools: Tools, rows: &[Row]) -> Self {
        Self { tools, paths: counts(rows) }
    }

    pub(super) fn read() -> Result<Self, String> {
        let text = fs::read_to_string(Self::file()).map_err(|error| format!("{FILE}: {error}"))?;
        serde_json::from_str(&text).map_err(|error| format!("{FILE}: {error}"))
    }

    pub(super) fn write(&self) -> Result<(), String> {
        let text = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        fs::write(Self::file(), text + "\n").map_err(|error| format!("{FILE}: {error}"))
    }

    fn file() -> PathBuf {
        workspace::root().join(FILE)
    }
}

// === impl Tools ===

impl Tools {
    pub(super) fn read() -> Result<Self, String> {
        let said = |command: Cmd| -> Result<String, String> {
            Ok(String::from_utf8_lossy(&command.output()?.stdout).trim().to_owned())
        };
        let rustc = said(Cmd::new("rustc", "--version --verbose"))?;
        let value = |key: &str| rustc.lines().find_map(|line| line.strip_prefix(key));
        let target = value("host: ").ok_or("rustc does not say what it is")?.to_owned();
        Ok(Self {
            rustc: rustc.lines().next().unwrap_or_default().to_owned(),
            target,
            valgrind: said(Cmd::new("valgrind", "--version"))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools() -> Tools {
        let word = |word: &str| word.to_owned();
        Tools { rustc: word("rustc 1"), target: word("x86_64"), valgrind: word("valgrind-3") }
    }

    fn row(path: &str, counts: Counts) -> Row {
        Row { path: path.to_owned(), counts, ..Row::default() }
    }

    fn instructions(instructions: f64) -> Counts {
        Counts { instructions, locked: 10.0, ..Counts::default() }
    }

    /// What is said where a path cost `before`, and costs `now`.
    fn judged(before: Counts, now: Counts) -> Judgement {
        let baseline = Baseline::new(tools(), &[row("stack", before)]);
        judge(&baseline, &tools(), &[row("stack", now)])
    }

    #[test]
    fn what_grows_by_more_than_its_slack_fails() {
        assert_eq!(judged(instructions(1000.0), instructions(1030.0)), Judgement::default());
        assert_eq!(
            judged(instructions(1000.0), instructions(1031.0)).faults,
            ["stack: 1000 instructions a call before, 1031 now"]
        );
        let one_more = Counts { locked: 11.0, ..instructions(1000.0) };
        assert_eq!(judged(instructions(1000.0), one_more).faults.len(), 1);
    }

    #[test]
    fn what_shrinks_is_told_and_passes() {
        let judgement = judged(instructions(1000.0), instructions(900.0));
        assert_eq!((judgement.faults.len(), judgement.notes.len()), (0, 1));
    }

    #[test]
    fn an_allocation_fails_whatever_the_record_and_the_tools_say() {
        let allocates = Counts { allocations: 1.0, ..Counts::default() };
        assert_eq!(judged(allocates, allocates).faults.len(), 1);
        let baseline = Baseline::new(tools(), &[]);
        let others = Tools { rustc: "rustc 2".to_owned(), ..tools() };
        let rows = [row("stack", allocates)];
        assert_eq!(judge(&baseline, &others, &rows).faults.len(), 1);
        let refused = [Row { refuses: true, ..rows[0].clone() }];
        assert_eq!(judge(&baseline, &others, &refused).faults, [""; 0], "its error is boxed");
    }

    #[test]
    fn other_tools_ask_for_a_new_record_and_fail_nothing() {
        let baseline = Baseline::new(tools(), &[row("stack", instructions(1000.0))]);
        for others in [
            Tools { rustc: "rustc 2".to_owned(), ..tools() },
            Tools { target: "aarch64".to_owned(), ..tools() },
            Tools { valgrind: "valgrind-4".to_owned(), ..tools() },
        ] {
            let judgement = judge(&baseline, &others, &[row("stack", instructions(2000.0))]);
            assert_eq!((judgement.faults.len(), judgement.notes.len()), (0, 1), "{others:?}");
            assert!(judgement.notes[0].contains(RECORD), "{}", judgement.notes[0]);
        }
    }

    #[test]
    fn a_path_without_a_record_fails_and_so_does_a_record_without_a_path() {
        let baseline = Baseline::new(tools(), &[row("stack", instructions(1000.0))]);
        let judgement = judge(&baseline, &tools(), &[row("shed", instructions(1000.0))]);
        assert_eq!(judgement.faults.len(), 2, "{:?}", judgement.faults);
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let baseline = Baseline::new(tools(), &[row("stack", instructions(1000.25))]);
        let text = serde_json::to_string_pretty(&baseline).unwrap();
        assert_eq!(serde_json::from_str::<Baseline>(&text).unwrap(), baseline);
    }
}
