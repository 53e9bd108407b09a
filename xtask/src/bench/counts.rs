//! What a call of each subject costs, in what can be counted.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::callgrind::{self, Part};

/// A subject of the benches, and what a call of it costs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Row {
    /// What it does: subjects that do the same are compared.
    pub(super) path: String,
    /// Who made it.
    pub(super) maker: String,
    /// Which of the maker's, where there are several.
    pub(super) form: String,
    /// Whether calls are refused, and none answered.
    pub(super) refuses: bool,
    /// Bytes of the service.
    pub(super) service: u64,
    /// Bytes of a call's future.
    pub(super) future: u64,
    pub(super) counts: Counts,
}

/// For one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Counts {
    pub(super) instructions: f64,
    pub(super) allocations: f64,
    pub(super) locked: f64,
    pub(super) clock_reads: f64,
    pub(super) copies: f64,
    pub(super) timers: f64,
}

/// Counts for all subjects that `drive` has.
pub(super) fn count(drive: &Path, folder: &Path) -> Result<Vec<Row>, String> {
    let (said, parts) = callgrind::run(drive, "count", "drive::cut", folder)?;
    rows(&said, &parts)
}

/// Each subject's line, and its three parts: what goes before, a short run and a long one.
fn rows(said: &str, parts: &[Part]) -> Result<Vec<Row>, String> {
    let lines: Vec<_> = said.lines().collect();
    if lines.len() * 3 != parts.len() {
        return Err(format!("{} subjects and {} parts do not match", lines.len(), parts.len()));
    }
    let row = |(line, parts): (&&str, &[Part])| {
        Row::read(line, parts[1], parts[2]).ok_or_else(|| format!("`{line}` is no subject"))
    };
    lines.iter().zip(parts.chunks(3)).map(row).collect()
}

// === impl Row ===

impl Row {
    /// What it does, and which of its maker's it is.
    pub(super) fn name(&self) -> String {
        match self.form.as_str() {
            "" => self.path.clone(),
            form => format!("{}, {form}", self.path),
        }
    }

    fn read(line: &str, short: Part, long: Part) -> Option<Self> {
        let words: Vec<_> = line.split('\t').collect();
        let [path, maker, form, end, service, future, less, more] = words[..] else { return None };
        let calls = more.parse::<u64>().ok()?.checked_sub(less.parse().ok()?)?;
        Some(Self {
            path: path.to_owned(),
            maker: maker.to_owned(),
            form: form.to_owned(),
            refuses: end == "refusal",
            service: service.parse().ok()?,
            future: future.parse().ok()?,
            counts: Counts::between(short, long, calls),
        })
    }
}

// === impl Counts ===

impl Counts {
    /// What `calls` more calls have cost. What both runs cost beside their calls is in neither.
    fn between(short: Part, long: Part, calls: u64) -> Self {
        // To a hundredth: what happens less often is not of the call.
        let per_call = |less: u64, more: u64| {
            let more = more as f64 - less as f64;
            (more / calls as f64 * 100.0).round() / 100.0 + 0.0
        };
        Self {
            instructions: per_call(short.instructions, long.instructions),
            allocations: per_call(short.allocations, long.allocations),
            locked: per_call(short.locked, long.locked),
            clock_reads: per_call(short.clock_reads, long.clock_reads),
            copies: per_call(short.copies, long.copies),
            timers: per_call(short.timers, long.timers),
        }
    }

    /// Each with its name.
    pub(super) fn named(&self) -> [(&'static str, f64); 6] {
        [
            ("instructions", self.instructions),
            ("allocations", self.allocations),
            ("locked operations", self.locked),
            ("clock reads", self.clock_reads),
            ("copies", self.copies),
            ("timers", self.timers),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "stack\tbuttress\t\tanswer\t104\t512\t1000\t3000";

    fn part(instructions: u64, allocations: u64) -> Part {
        Part { instructions, allocations, ..Part::default() }
    }

    #[test]
    fn what_a_run_costs_beside_its_calls_is_subtracted() {
        let rows =
            rows(LINE, &[part(9999, 99), part(5_000 + 1000 * 40, 7), part(5_000 + 3000 * 40, 7)]);
        let row = &rows.unwrap()[0];
        assert_eq!((row.path.as_str(), row.maker.as_str(), row.future), ("stack", "buttress", 512));
        assert_eq!((row.counts.instructions, row.counts.allocations), (40.0, 0.0));
    }

    #[test]
    fn a_subject_without_its_parts_is_refused() {
        assert!(rows(LINE, &[part(1, 0), part(2, 0)]).is_err());
        assert!(rows("stack\tbuttress", &[part(1, 0), part(2, 0), part(3, 0)]).is_err());
    }
}
