//! The long form of the simulation of elections: the tests run ten thousand terms of it, and this as many as
//! somebody has patience for.

use std::collections::BTreeMap;

use crate::command::Cmd;

/// Runs the simulation for so many terms, with seeds from that one on.
pub(crate) fn run(terms: u64, seed: u64) -> Result<(), String> {
    let again = format!("cargo xtask simulate --terms {terms} --seed {seed}");
    let mut told = BTreeMap::new();
    Cmd::cargo("test -p buttress-leadership --all-features --lib simulation:: -- --nocapture")
        .env("BUTTRESS_TERMS", terms.to_string())
        .env("BUTTRESS_SEED", seed.to_string())
        .env("BUTTRESS_STORIES", (terms / 1000).max(1).to_string())
        .read(|line| told.extend(progress(line)))
        .map_err(|why| {
            format!("{why}: what was wrong, and with which seed, stands above; {again}")
        })?;
    if told.is_empty() {
        return Err("no simulation ran".to_owned());
    }
    let told: Vec<_> =
        told.iter().map(|(what, terms)| format!("{terms} terms of {what}")).collect();
    println!("\nnothing is wrong in {}, with seeds from {seed} on", told.join(", "));
    Ok(())
}

/// What is simulated, and how many terms of it there were so far, when `line` says so.
fn progress(line: &str) -> Option<(String, u64)> {
    let (what, count) = line.strip_suffix(" terms")?.split_once(": ")?;
    let (done, _) = count.split_once(" of ")?;
    Some((what.to_lowercase(), done.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_that_count_terms_are_read() {
        let line = "Weather: 20013 of 100000 terms";
        assert_eq!(progress(line), Some(("weather".to_owned(), 20_013)));
        for other in
            ["AnchorAtAnswer, after 17 terms: P1", "test result: ok. 3 passed", "a: b of c terms"]
        {
            assert_eq!(progress(other), None, "{other}");
        }
    }
}
