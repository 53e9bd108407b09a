//! How to read the figures: a few lines that say what this very run has shown.
//!
//! Pure, and computed: a line that is not true of a run is not printed under it.

use std::time::Duration;

use crate::{
    load::Client,
    script::Script,
    stack,
    stats::Summary,
    table::{seconds, wait},
};

/// As wide as a terminal that nobody has widened for this.
const WIDTH: usize = 96;

/// A client that is well again this much later is later for a reason, and not by chance.
const LATER: Duration = Duration::from_secs(1);

/// What `summaries`, in the order of [`Client::ALL`], have to say.
pub(crate) fn reading(summaries: &[Summary; Client::ALL.len()], script: &Script) -> Vec<String> {
    let [bare, retries, stack] = summaries;
    let mut lines = vec![terms(script)];
    lines.extend(load(bare, retries, stack));
    lines.extend(waits(bare, retries, stack));
    lines.push(storm(bare, retries));
    lines.push(price(bare, retries, stack));
    lines
}

/// `line` as an item of a list, on as many lines as it takes.
pub(crate) fn item(line: &str) -> String {
    let mut item = String::from("-");
    let mut width = item.len();
    for word in line.split(' ') {
        if width + 1 + word.len() > WIDTH {
            item.push_str("\n ");
            width = 1;
        }
        item.push(' ');
        item.push_str(word);
        width += 1 + word.len();
    }
    item
}

fn terms(script: &Script) -> String {
    format!(
        "Sick: hanging or failing, from {} to {}. Not slow: answers are good then, and late. \
         Well again: a second begins in which more than 99 % of the answers that come are good.",
        seconds(script.sick_from()),
        seconds(script.sick_until()),
    )
}

/// Who asked the sick server how often. Nothing where `buttress` did not ask it at all.
fn load(bare: &Summary, retries: &Summary, stack: &Summary) -> Option<String> {
    let times = |other: &Summary| {
        (stack.reached_sick > 0).then(|| other.reached_sick as f64 / stack.reached_sick as f64)
    };
    Some(format!(
        "`retries` sent the sick server {:.1} times what `buttress` sent it, `bare` {:.1} times.",
        times(retries)?,
        times(bare)?,
    ))
}

/// How long it took to know. Nothing where nobody asked.
fn waits(bare: &Summary, retries: &Summary, stack: &Summary) -> Option<String> {
    Some(format!(
        "Of those who asked then, half knew what they got within {} (`buttress`), {} (`bare`), \
         {} (`retries`).",
        within(stack.sick_p50?),
        within(bare.sick_p50?),
        within(retries.sick_p50?),
    ))
}

/// Whether the retries kept the server down. The two clients differ in nothing else.
fn storm(bare: &Summary, retries: &Summary) -> String {
    let compared = format!(
        "`retries` was well again {}, `bare` {}",
        after(retries.recovery),
        after(bare.recovery)
    );
    let stayed_down = bare
        .recovery
        .is_some_and(|bare| retries.recovery.is_none_or(|retries| retries >= bare + LATER));
    let moral = if stayed_down {
        "they differ only in asking again, so it was the repeats that kept the server down."
    } else {
        "in this run, the repeats did not keep the server down."
    };
    format!("{compared}: {moral}")
}

/// What the stack costs: the answers that it could have had while it did not ask.
fn price(bare: &Summary, retries: &Summary, stack: &Summary) -> String {
    let late = match (stack.recovery, bare.recovery) {
        (Some(stack), Some(bare)) if stack > bare => {
            format!("{} after `bare`", seconds(stack - bare))
        }
        (Some(_), Some(_)) => "no later than `bare`".to_owned(),
        (recovery, _) => after(recovery),
    };
    let compared = |name, other: &Summary| match (stack.good, other.good) {
        (ours, theirs) if ours > theirs => format!("{} more than `{name}`", ours - theirs),
        (ours, theirs) if ours < theirs => format!("{} fewer than `{name}`", theirs - ours),
        _ => format!("as many as `{name}`"),
    };
    format!(
        "The price: an open breaker may notice up to {} late that the server is back. `buttress` \
         was well again {late}, and got {} good answers in all: {}, {}.",
        seconds(stack::OPEN_MAX),
        stack.good,
        compared("bare", bare),
        compared("retries", retries),
    )
}

/// `wait`, where it need not be exact.
fn within(time: Duration) -> String {
    wait(Some(time)).trim_start_matches('<').to_owned()
}

fn after(recovery: Option<Duration>) -> String {
    recovery.map_or_else(|| "not in this run".to_owned(), |took| format!("after {}", seconds(took)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::BEATS;

    fn script() -> Script {
        Script::new(Duration::from_secs(BEATS.into()))
    }

    /// A client whose figures are these, in a run of the usual length.
    fn client(recovery: Option<u64>, reached_sick: u64, sick_p50: u64, good: usize) -> Summary {
        Summary {
            recovery: recovery.map(Duration::from_millis),
            reached_sick,
            sick_p50: Some(Duration::from_millis(sick_p50)),
            good,
            ..Summary::new(&[], &[], &script())
        }
    }

    fn read(bare: &Summary, retries: &Summary, stack: &Summary) -> Vec<String> {
        reading(&[bare, retries, stack].map(Summary::clone), &script())
    }

    #[test]
    fn the_lines_say_what_the_figures_say() {
        let lines = read(
            &client(Some(0), 1_000, 1_000, 1_600),
            &client(Some(5_430), 3_950, 4_000, 1_090),
            &client(Some(2_260), 200, 20, 1_450),
        );
        assert_eq!(lines.len(), 5);
        assert!(lines[0].contains("from 4.0 s to 14.0 s"), "{}", lines[0]);
        assert!(lines[1].contains("server 19.8 times what `buttress` sent it, `bare` 5.0 times"));
        assert!(lines[2].contains("20 ms (`buttress`), 1.00 s (`bare`), 4.00 s (`retries`)"));
        assert!(lines[3].contains("`retries` was well again after 5.4 s, `bare` after 0.0 s"));
        assert!(lines[3].ends_with("repeats that kept the server down."), "{}", lines[3]);
        assert!(lines[4].contains("well again 2.3 s after `bare`"), "{}", lines[4]);
        assert!(
            lines[4].contains(
                "1450 good answers in all: 150 fewer than `bare`, 360 more than `retries`"
            )
        );
    }

    #[test]
    fn who_is_never_well_again_stayed_down() {
        let (well, never) = (client(Some(0), 9, 9, 9), client(None, 9, 9, 9));
        let lines = read(&well, &never, &never);
        assert!(lines[3].contains("`retries` was well again not in this run"), "{}", lines[3]);
        assert!(lines[3].ends_with("that kept the server down."), "{}", lines[3]);
        assert!(lines[4].contains("`buttress` was well again not in this run,"), "{}", lines[4]);
    }

    #[test]
    fn nothing_is_said_against_retries_that_did_no_harm() {
        for (bare, retries) in
            [(Some(0), Some(0)), (Some(500), Some(1_499)), (Some(9), Some(0)), (None, None)]
        {
            let (bare, retries) = (client(bare, 9, 9, 9), client(retries, 9, 9, 9));
            let lines = read(&bare, &retries, &bare);
            assert!(lines[3].ends_with("did not keep the server down."), "{}", lines[3]);
        }
    }

    #[test]
    fn a_price_that_was_not_paid_is_not_counted() {
        let same = client(Some(0), 9, 9, 9);
        let lines = read(&same, &same, &same);
        assert!(lines[4].contains("well again no later than `bare`"), "{}", lines[4]);
        assert!(lines[4].contains("as many as `bare`, as many as `retries`"), "{}", lines[4]);
    }

    #[test]
    fn an_item_keeps_its_words_within_the_width() {
        let line = "`retries` was well again after 5.5 s ".repeat(9);
        let item = item(line.trim_end());
        assert!(item.lines().count() > 1);
        assert!(item.lines().all(|line| line.len() <= WIDTH));
        assert!(item.lines().skip(1).all(|line| line.starts_with("  ")));
        let words: Vec<_> = item.split_whitespace().skip(1).collect();
        assert_eq!(words, line.split_whitespace().collect::<Vec<_>>());
    }

    #[test]
    fn a_wait_too_short_to_write_is_within_the_shortest_that_is_written() {
        assert_eq!(within(Duration::from_micros(20)), "0.1 ms");
        assert_eq!(within(Duration::from_millis(20)), "20 ms");
    }

    #[test]
    fn what_has_no_figure_is_not_compared() {
        let none = Summary::new(&[], &[], &script());
        let lines = read(&none, &none, &none);
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(!lines.concat().contains("NaN"));
    }
}
