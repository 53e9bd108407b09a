//! What came of runs, in figures.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use crate::{
    candidate::TTL,
    faults::Kind,
    verdict::{SLACK, Strike, Verdict},
};

/// A run, a line for each kind of fault.
#[must_use]
pub fn table(verdict: &Verdict) -> String {
    let mut text = String::new();
    let mut line = |line: String| {
        text.push_str(line.trim_end());
        text.push('\n');
    };
    let (name, seed) = (verdict.arena.name(), verdict.seed);
    line(format!("{name}, seed {seed}: leases of {}", seconds(TTL)));
    line("  nobody leads for: from a leader that was hit to the next one".to_owned());
    line(format!(
        "  back after: from when anybody could lead again, at worst; allowed: that, and {} for a busy machine",
        seconds(SLACK)
    ));
    line(row(["fault", "times", "of a leader", "nobody leads for", "back after", "allowed"]));
    for (kind, strikes) in by_kind(verdict) {
        let led: Vec<_> = strikes.iter().filter(|strike| strike.hits_leader).collect();
        let worst = strikes.iter().map(|strike| strike.back_after).max().unwrap_or_default();
        let without = led.iter().map(|strike| strike.without).collect();
        line(row([
            kind.as_str(),
            &strikes.len().to_string(),
            &if kind.is_of_process() { led.len().to_string() } else { "-".to_owned() },
            &median_and_worst(without),
            &seconds(worst),
            &seconds(verdict.arena.allows(kind) + SLACK),
        ]));
    }
    let excused = verdict.excused.iter().max().map_or_else(String::new, |worst| {
        let many = verdict.excused.len();
        format!(", and {many} of a lease that was ended from outside ({} at most)", seconds(*worst))
    });
    let overlaps = verdict.overlaps;
    line(format!("terms {}, overlaps {overlaps}{excused}", verdict.terms));
    line(format!(
        "writes taken {}, stale writes refused {}, stale writes taken {}",
        verdict.taken, verdict.stale_refused, verdict.stale_taken
    ));
    for strike in verdict.late() {
        let (kind, time) = (strike.kind, seconds(strike.back_after));
        line(format!("too late: after {kind}, nobody led for {time} although somebody could"));
    }
    verdict.breaches.iter().for_each(|breach| line(breach.clone()));
    if let Some(history) = &verdict.history {
        line(format!("history: {}", history.display()));
    }
    text
}

/// For the docs: how long nobody leads, on each store.
#[must_use]
pub fn markdown(verdicts: &[Verdict]) -> String {
    let kinds = [Kind::Resignation, Kind::Crash, Kind::Partition];
    let mut text = String::from("| store |");
    kinds.iter().for_each(|kind| write!(text, " {kind} |").expect("it is a string"));
    text.push_str("\n|---|---|---|---|\n");
    for verdict in verdicts {
        write!(text, "| {} |", verdict.arena.name()).expect("it is a string");
        let by_kind = by_kind(verdict);
        for kind in kinds {
            let strikes = by_kind.get(&kind).into_iter().flatten();
            // One that is over before the lease costs nobody anything.
            let led = strikes.filter(|strike| strike.hits_leader && !strike.without.is_zero());
            let without = median_and_worst(led.map(|strike| strike.without).collect());
            write!(text, " {without} |").expect("it is a string");
        }
        text.push('\n');
    }
    text
}

fn by_kind(verdict: &Verdict) -> BTreeMap<Kind, Vec<&Strike>> {
    let mut by_kind = BTreeMap::<_, Vec<_>>::new();
    verdict.strikes.iter().for_each(|strike| by_kind.entry(strike.kind).or_default().push(strike));
    by_kind
}

fn row(cells: [&str; 6]) -> String {
    let [fault, times, leader, without, back, allowed] = cells;
    format!("  {fault:<24}{times:>6}{leader:>13}{without:>25}{back:>13}{allowed:>10}")
}

fn median_and_worst(mut times: Vec<Duration>) -> String {
    times.sort();
    match times[..] {
        [] => "-".to_owned(),
        [one] => seconds(one),
        _ => format!(
            "{}, {} at most",
            seconds(times[times.len() / 2]),
            seconds(times[times.len() - 1])
        ),
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}
