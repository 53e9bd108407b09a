//! What came of it, in figures.

use std::{fmt::Write as _, time::Duration};

use crate::{
    history::{Fault, History, Kind, name},
    stage::now,
    timeline,
};

/// The timeline, a line for each fault, and what was promised beside what was seen.
pub(crate) fn table(history: &History) -> String {
    let mut text = String::from("\n");
    for row in timeline::rows(history, now(), None) {
        text.push_str(&row);
        text.push('\n');
    }
    text.push_str(timeline::LEGEND);
    text.push('\n');

    let mut row = |cells: [&str; 5]| {
        let [fault, leader, next, leaderless, unwritten] = cells;
        let line = format!("{fault:<38}{leader:<8}{next:<6}{leaderless:>13}{unwritten:>14}");
        text.push_str(line.trim_end());
        text.push('\n');
    };
    row(["fault", "leader", "next", "no leader for", "no write for"]);
    for (n, fault) in (1..).zip(&history.faults) {
        let next = history
            .successor(fault)
            .map_or_else(|| "-".to_owned(), |term| name(term.candidate).to_string());
        row([
            &format!("{n} {}", what(fault)),
            &name(fault.candidate).to_string(),
            &next,
            &seconds(history.without_leader(fault)),
            &seconds(history.without_write(fault)),
        ]);
    }

    let mut line = |label: &str, figure: String| {
        writeln!(text, "{label:<40}{figure}").expect("it is a string")
    };
    let answered = history.answers.iter().filter(|answer| answer.fence.is_some()).count();
    let written = history.written.len();
    let fences: Vec<_> = history
        .terms
        .iter()
        .map(|term| format!("{} {}", name(term.candidate), term.fence))
        .collect();
    line("\nleaders and their fences", fences.join(", "));
    line("writes asked for, each once", history.asked.to_string());
    line("  answered", answered.to_string());
    line("  not: no leader, or the ledger hung", (history.asked - answered).to_string());
    line("writes in the ledger", written.to_string());
    line("  written, and the answer lost", written.saturating_sub(answered).to_string());
    line("  with a fence less than the one before", history.decreases().to_string());
    line("overlaps (two leaders at a time)", history.overlaps().len().to_string());
    line("stale writes refused", refused(history));
    text
}

fn what(fault: &Fault) -> &'static str {
    match fault.kind {
        Kind::Cut => "the ledger hangs for the leader",
        Kind::Killed => "the leader is killed",
        Kind::Stopped => "the leader is stopped, and goes on",
    }
}

fn seconds(time: Option<Duration>) -> String {
    time.map_or_else(|| "-".to_owned(), |time| format!("{:.1} s", time.as_secs_f64()))
}

fn refused(history: &History) -> String {
    match &history.refused[..] {
        [] => "0: none was tried in this run".to_owned(),
        [first, ..] => format!(
            "{}: {}'s, with fence {} when {} was known",
            history.refused.len(),
            name(first.candidate),
            first.fence,
            first.highest,
        ),
    }
}
