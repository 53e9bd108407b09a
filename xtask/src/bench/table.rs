//! What was measured, as Markdown.

use std::{fmt::Write, fs};

use super::{
    counts::{Counts, Row},
    gate::Tools,
};
use crate::workspace;

/// Between these lines a chapter holds what was measured.
const BEGIN: &str = "<!-- What follows is written by `cargo xtask bench`. -->";
const END: &str = "<!-- What was written by `cargo xtask bench` ends here. -->";

/// Those whose version is told.
const PEERS: &[&str] = &["tower", "tower-resilience", "seatbelt", "failsafe", "recloser"];

/// All that was measured. What programs said is as they said it: a line each, with tabs.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) rows: Vec<Row>,
    pub(super) time: String,
    pub(super) threads: String,
    pub(super) memory: String,
    pub(super) tools: Tools,
}

/// `chapter` with `text` in the place for it.
pub(super) fn put(chapter: &str, text: &str) -> Result<String, String> {
    let parts = chapter.split_once(BEGIN).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(END)?;
        Some((before, after))
    });
    let (before, after) =
        parts.ok_or_else(|| format!("the chapter has no `{BEGIN}` and `{END}`"))?;
    Ok(format!("{before}{BEGIN}\n\n{}\n\n{END}{after}", text.trim()))
}

// === impl Report ===

impl Report {
    pub(super) fn markdown(&self) -> Result<String, String> {
        let mut text = self.machine();
        text += "\n### One thread\n\n";
        text += &self.calls()?;
        text += "\n### Two threads on one handle\n\n";
        text += &self.threads()?;
        text += "\n### Many requests, many keys\n\n";
        text += &self.memory()?;
        Ok(text)
    }

    fn machine(&self) -> String {
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        let model = model.map_or("a processor without a name", |(_, model)| model);
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let lock = fs::read_to_string(workspace::root().join("Cargo.lock")).unwrap_or_default();
        let versions =
            PEERS.iter().filter_map(|name| Some(format!("{name} {}", version(&lock, name)?)));
        let versions = versions.collect::<Vec<_>>().join(", ");
        let Tools { rustc, target, valgrind } = &self.tools;
        format!(
            "- {threads} threads of {model}\n- {rustc} for {target}, {valgrind}\n- {versions}\n"
        )
    }

    /// One table, grouped by what is done.
    fn calls(&self) -> Result<String, String> {
        let mut text = String::from(
            "| | whose | ns | ours / theirs | instructions | allocations | locked | clock reads | copies | timers \
             | service | future |\n|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
        );
        let mut paths: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !paths.contains(&row.path.as_str()) {
                paths.push(&row.path);
            }
        }
        for path in paths {
            let mut title = path;
            for row in self.rows.iter().filter(|row| row.path == path) {
                let (ns, ratio) = self.time_of(row)?;
                let Counts { instructions, allocations, locked, clock_reads, copies, timers } =
                    row.counts;
                let whose = match (row.maker.as_str(), row.form.as_str()) {
                    (maker, "") => maker.to_owned(),
                    (maker, form) => format!("{maker}: {form}"),
                };
                let _ = write!(
                    text,
                    "| {title} | {whose} | {} | {ratio} | {instructions:.0} ",
                    short(ns)
                );
                for count in [allocations, locked, clock_reads, copies, timers] {
                    let _ = write!(text, "| {} ", short((count * 10.0).round() / 10.0));
                }
                let _ = writeln!(text, "| {} | {} |", row.service, row.future);
                title = "";
            }
        }
        Ok(text)
    }

    /// Nanoseconds, and how many of them ours takes for each of its own.
    fn time_of(&self, row: &Row) -> Result<(f64, String), String> {
        let key = format!("{}\t{}\t{}\t", row.path, row.maker, row.form);
        let line = self.time.lines().find_map(|line| line.strip_prefix(&key));
        let words = line.and_then(|line| line.split_once('\t'));
        let (ns, ratio) = words.ok_or_else(|| format!("{}: was not timed", row.name()))?;
        let ratio = ratio.parse().map(|ratio: f64| match ratio {
            ..0.01 => format!("{ratio:.3}"),
            _ => format!("{ratio:.2}"),
        });
        let ratio = ratio.unwrap_or_default();
        Ok((number(ns)?, ratio))
    }

    fn threads(&self) -> Result<String, String> {
        let mut text = String::from(
            "| work inside | whose | ns, one thread | throughput of two, one is 1 |\n|---|---|--:|--:|\n",
        );
        let mut before = "";
        for line in self.threads.lines() {
            let words: Vec<_> = line.split('\t').collect();
            let [turns, maker, form, ns, times] = words[..] else { return Err(odd(line)) };
            let work = match turns {
                _ if turns == before => "",
                "0" => "none",
                turns => &format!("{turns} turns"),
            };
            before = turns;
            let whose = match (maker, form) {
                ("", "") => "nothing around it".to_owned(),
                ("", form) => form.to_owned(),
                _ => format!("{maker}: {form}"),
            };
            // Where the machine was not left alone for long enough, they are not known.
            let ns = if ns.is_empty() { String::new() } else { short(number(ns)?) };
            let _ = writeln!(text, "| {work} | {whose} | {ns} | {times} |");
        }
        Ok(text)
    }

    fn memory(&self) -> Result<String, String> {
        let mut lines = self.memory.lines().map(|line| line.split('\t').collect::<Vec<_>>());
        let (Some(requests), Some(keys)) = (lines.next(), lines.next()) else {
            return Err(odd(&self.memory));
        };
        let ([requests, bare, bare_ms, stacked, ms], [keys, bytes]) = (&requests[..], &keys[..])
        else {
            return Err(odd(&self.memory));
        };
        let more = number(stacked)? - number(bare)?;
        Ok(format!(
            "Requests in flight, a task each, around a service that never answers. Bytes are those on the heap.\n\n\
             | {requests} requests | bytes each | all cancelled in |\n|---|--:|--:|\n\
             | nothing around it | {bare} | {bare_ms} ms |\n\
             | buttress: stack | {stacked}, which is {more} more | {ms} ms |\n\n\
             A breaker by key, one of {keys}, takes {bytes} bytes with its part of the map.\n"
        ))
    }
}

/// The version of `package` in a lock file; the highest where there are several.
fn version<'a>(lock: &'a str, package: &str) -> Option<&'a str> {
    let name = format!("name = \"{package}\"");
    let mut lines = lock.lines();
    let mut found = None;
    while let Some(line) = lines.next() {
        if line == name {
            found =
                lines.next()?.strip_prefix("version = ").map(|version| version.trim_matches('"'));
        }
    }
    found
}

fn number(word: &str) -> Result<f64, String> {
    word.parse().map_err(|_| odd(word))
}

fn odd(said: &str) -> String {
    format!("the benches said `{said}`, which is not understood")
}

/// Three digits, as far as there are so many.
fn short(value: f64) -> String {
    if value >= 10.0 || value.fract() == 0.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_takes_the_place_of_what_was_there() {
        let chapter = format!("# Title\n\n{BEGIN}\n\nold\n\n{END}\n\nend\n");
        let new = put(&chapter, "new\n").unwrap();
        assert_eq!(new, format!("# Title\n\n{BEGIN}\n\nnew\n\n{END}\n\nend\n"));
        assert_eq!(put(&new, "new").unwrap(), new);
        assert!(put("# Title", "new").is_err());
    }

    #[test]
    fn a_version_is_found_by_the_whole_name() {
        let lock = "name = \"tower-layer\"\nversion = \"0.3.3\"\n\nname = \"tower\"\nversion = \"0.5.3\"\n";
        assert_eq!(version(lock, "tower"), Some("0.5.3"));
        assert_eq!(version(lock, "seatbelt"), None);
    }

    #[test]
    fn each_subject_has_a_line_and_each_path_one_title() {
        let row = |maker: &str| Row {
            path: "stack".to_owned(),
            maker: maker.to_owned(),
            counts: Counts { instructions: 187.4, copies: 2.25, ..Counts::default() },
            ..Row::default()
        };
        let word = || String::new();
        let report = Report {
            rows: vec![row("buttress"), row("tower")],
            time: "stack\tbuttress\t\t70.3\t\nstack\ttower\t\t1.24\t0.5678\n".to_owned(),
            threads: word(),
            memory: word(),
            tools: Tools { rustc: word(), target: word(), valgrind: word() },
        };
        let table = report.calls().unwrap();
        assert_eq!(
            table.lines().skip(2).collect::<Vec<_>>(),
            [
                "| stack | buttress | 70 |  | 187 | 0 | 0 | 0 | 2.3 | 0 | 0 | 0 |",
                "|  | tower | 1.2 | 0.57 | 187 | 0 | 0 | 0 | 2.3 | 0 | 0 | 0 |",
            ]
        );
    }
}
