//! Who led when, a line a candidate and a column for each half second.

use std::{ops::Range, time::Duration};

use buttress::leadership::BootTime;

use crate::{
    history::{CANDIDATES, History, Kind, name},
    settings::EVERY,
};

const COLUMN: Duration = Duration::from_millis(500);
/// Columns from one time that is told to the next.
const SCALE: usize = 10;
/// Columns for what a line is of.
const LABEL: usize = 8;

/// What the signs mean.
pub(crate) const LEGEND: &str = "
        █ leads, from its fence on (the last digit)   ▒ leads, and cannot reach the ledger
        ~ cannot reach the ledger    = stopped   × dead   · stands by
        ! a write refused for its fence
";

/// The lines, until `now`: from the beginning, or if there is a `width` which that does not fit into, from a time on that
/// is told.
pub(crate) fn rows(history: &History, now: BootTime, width: Option<usize>) -> Vec<String> {
    let until = (now.since(history.origin).as_millis() / COLUMN.as_millis()) as usize + 1;
    let too_many = width.map_or(0, |width| (LABEL + until).saturating_sub(width));
    let columns = too_many.next_multiple_of(SCALE)..until;
    let row = |label: &str, sign: &dyn Fn(Column) -> char| {
        let signs = columns.clone().map(|n| sign(Column::new(history.origin, n)));
        format!("{label:<LABEL$}{}", signs.collect::<String>()).trim_end().to_owned()
    };
    let mut rows = vec![scale(columns.clone()), row("fault", &|column| fault(history, column))];
    for candidate in 0..CANDIDATES {
        let sign = |column| state(history, candidate, column);
        rows.push(row(&name(candidate).to_string(), &sign));
    }
    rows.push(row("written", &|column| written(history, column)));
    rows.push(row("refused", &|column| {
        let is_refused = history.refused.iter().any(|refused| column.has(refused.at));
        if is_refused { '!' } else { ' ' }
    }));
    rows
}

#[derive(Clone, Copy)]
struct Column {
    from: BootTime,
    until: BootTime,
}

// === impl Column ===

impl Column {
    fn new(origin: BootTime, n: usize) -> Self {
        let from = origin + COLUMN * n as u32;
        Self { from, until: from + COLUMN }
    }

    fn has(self, at: BootTime) -> bool {
        self.from <= at && at < self.until
    }

    /// Whether it lies in that time, for the most part.
    fn is_in(self, from: BootTime, until: Option<BootTime>) -> bool {
        let middle = self.from + COLUMN / 2;
        from <= middle && until.is_none_or(|until| middle < until)
    }
}

fn scale(columns: Range<usize>) -> String {
    let times = columns.step_by(SCALE).map(|n| {
        let seconds = (COLUMN * n as u32).as_secs();
        format!("{:<SCALE$}", format!("{seconds} s"))
    });
    format!("{:<LABEL$}{}", "", times.collect::<String>()).trim_end().to_owned()
}

/// The number of a fault where it begins, and a plus where it ends.
fn fault(history: &History, column: Column) -> char {
    for (n, fault) in (1..).zip(&history.faults) {
        if column.has(fault.at) {
            return char::from_digit(n, 10).unwrap_or('#');
        }
        if fault.healed.is_some_and(|healed| column.has(healed)) {
            return '+';
        }
    }
    ' '
}

fn state(history: &History, candidate: usize, column: Column) -> char {
    let suffers = |kind| {
        history.faults.iter().any(|fault| {
            (fault.candidate, fault.kind) == (candidate, kind)
                && column.is_in(fault.at, fault.healed)
        })
    };
    if suffers(Kind::Killed) {
        return '×';
    }
    if suffers(Kind::Stopped) {
        return '=';
    }
    let mut terms = history.terms.iter().filter(|term| term.candidate == candidate);
    let term = terms.rfind(|term| term.from < column.until && column.from < term.until());
    match term {
        Some(term) if column.has(term.from) => {
            char::from_digit((term.fence % 10) as u32, 10).expect("it is a digit")
        }
        Some(_) if suffers(Kind::Cut) => '▒',
        Some(_) => '█',
        None if suffers(Kind::Cut) => '~',
        None => '·',
    }
}

/// How much was written, as a share of what was asked for.
fn written(history: &History, column: Column) -> char {
    let written = history.written.iter().filter(|write| column.has(write.at)).count() as u128;
    let asked = COLUMN.as_millis() / EVERY.as_millis();
    match (written * 8 / asked) as u32 {
        0 if written == 0 => ' ',
        eighths => char::from_u32('▁' as u32 + eighths.clamp(1, 8) - 1).expect("there are eight"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        history::{Fault, Refused, Write, tests::at},
        said::What,
    };

    #[test]
    fn a_term_shows_its_fence_and_a_fault_what_it_does() {
        let mut history = History::new(at(0));
        history.hear(0, at(5), What::Started { fence: 1, until: at(40) });
        history.hear(1, at(45), What::Started { fence: 2, until: at(80) });
        let mut strike = |kind, candidate, from, healed| {
            let fault = Fault { kind, candidate, fence: 1, at: at(from), healed: Some(at(healed)) };
            history.faults.push(fault);
        };
        strike(Kind::Cut, 0, 20, 50);
        strike(Kind::Killed, 1, 60, 75);
        strike(Kind::Stopped, 2, 0, 10);
        history
            .written
            .extend((0..10).map(|n| Write { at: at(5) + Duration::from_millis(n), fence: 1 }));
        history.written.push(Write { at: at(10), fence: 1 });
        history.refused.push(Refused { at: at(46), fence: 1, candidate: 0, highest: 2 });
        assert_eq!(
            rows(&history, at(84), None),
            [
                "        0 s       5 s",
                "fault   3 + 1     + 2  +",
                "A       ·1██▒▒▒▒~~·······",
                "B       ·········2██×××█·",
                "C       ==···············",
                "written  █▁",
                "refused          !",
            ]
        );
    }

    #[test]
    fn what_does_not_fit_is_cut_off_where_it_is_old() {
        let mut history = History::new(at(0));
        history.hear(0, at(5), What::Started { fence: 1, until: at(84) });
        let leader = |width| {
            let rows = rows(&history, at(84), Some(width));
            [rows[0].clone(), rows[2].clone()]
        };
        let whole = ["        0 s       5 s", "A       ·1███████████████"];
        assert_eq!(leader(25), whole);
        assert_eq!(leader(24), ["        5 s", "A       ███████"]);
        assert_eq!(leader(3), ["", "A"]);
    }
}
