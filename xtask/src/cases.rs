//! The ids above tests, and the chapter that tells what they stand for.
//!
//! An id that no reader can look up is noise, and so is a chapter whose tests were renamed.

use std::collections::{BTreeMap, BTreeSet};

/// The chapter: a heading for each case, and beneath it a bullet for each file, which names the tests after it.
pub(crate) const CHAPTER: &str = "docs/cases.md";

/// What an id begins with, before its two digits.
const GROUPS: &[&str] =
    &["RET", "BUD", "BKO", "TMO", "CBK", "BLK", "HDG", "FBK", "GRP", "HTP", "OPS", "LDR"];

/// What is wrong between the chapter and the Rust files, which are texts by name.
pub(crate) fn faults(texts: &BTreeMap<String, String>) -> Vec<String> {
    let chapter = texts.get(CHAPTER).map_or("", String::as_str);
    let cases: BTreeSet<_> = chapter.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let mut faults = Vec::new();
    for (file, text) in texts.iter().filter(|(file, _)| file.ends_with(".rs")) {
        for (number, line) in text.lines().enumerate() {
            for id in ids(line).filter(|id| !cases.contains(id)) {
                faults.push(format!("{file}:{}: {id} is no case of {CHAPTER}", number + 1));
            }
        }
    }
    for (file, test) in named(chapter) {
        match texts.get(file) {
            Some(text) if text.contains(&format!("fn {test}(")) => {}
            Some(_) => faults.push(format!("{CHAPTER}: {file} has no test {test}")),
            None => faults.push(format!("{CHAPTER}: there is no {file} with a test {test}")),
        }
    }
    faults
}

/// The ids in a line.
fn ids(line: &str) -> impl Iterator<Item = &str> {
    let inside = |c: char| c.is_ascii_alphanumeric() || c == '-';
    line.split(move |c| !inside(c)).filter(|word| {
        word.split_once('-').is_some_and(|(group, number)| {
            let digits = number.bytes().all(|b| b.is_ascii_digit());
            GROUPS.contains(&group) && number.len() == 2 && digits
        })
    })
}

/// The tests that the chapter's bullets name, each after its file.
fn named(chapter: &str) -> Vec<(&str, &str)> {
    let mut named = Vec::new();
    let mut file = None;
    for line in chapter.lines() {
        if line.is_empty() || line.starts_with("- ") {
            file = None;
        }
        // Every other part stands between two backticks.
        for code in line.split('`').skip(1).step_by(2) {
            match file {
                _ if code.ends_with(".rs") => file = Some(code),
                Some(file) => named.push((file, code)),
                None => {}
            }
        }
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "\
# Cases

Prose about `cargo xtask` and `one`.

### RET-01

- `a.rs`: `one`, `two`,
  `three`
- `b/c.rs`: `four`

### RET-02
";

    /// A sound chapter and its files after a change, and what is then wrong.
    fn planted(name: &str, from: &str, to: &str) -> Vec<String> {
        let mut texts = BTreeMap::from([
            (CHAPTER.to_owned(), SOUND.to_owned()),
            ("a.rs".to_owned(), "// RET-01\nfn one() {}\nasync fn two() {}\nfn three() {}".into()),
            ("b/c.rs".to_owned(), "// RET-01, RET-02: both\nfn four() {}".into()),
        ]);
        let text = texts.get_mut(name).unwrap();
        assert!(text.contains(from), "{from} is not in {name}");
        *text = text.replace(from, to);
        faults(&texts)
    }

    #[test]
    fn ids_with_a_case_and_tests_that_exist_are_sound() {
        assert_eq!(planted("a.rs", "one", "one"), [""; 0]);
    }

    #[test]
    fn an_id_without_a_case_is_found_wherever_it_stands() {
        // In two halves, so that this file obeys its own rule.
        let unknown = concat!("RET", "-99");
        for line in [format!("// RET-01, {unknown}"), format!("/* ({unknown}): */")] {
            let fault = format!("a.rs:1: {unknown} is no case of docs/cases.md");
            assert_eq!(planted("a.rs", "// RET-01", &line), [fault], "{line}");
        }
        assert_eq!(planted(CHAPTER, "### RET-02", "RET-02").len(), 1);
    }

    #[test]
    fn what_only_looks_like_an_id_is_let_be() {
        for word in ["RET-1", "RET-001", "XRET-99", "RET-99-1", "ret-99", "UTF-16", "RET-0x"] {
            assert_eq!(planted("a.rs", "RET-01", word), [""; 0], "{word}");
        }
    }

    #[test]
    fn a_test_that_was_renamed_or_moved_is_found() {
        let renamed = "docs/cases.md: a.rs has no test two";
        assert_eq!(planted("a.rs", "fn two(", "fn two_more("), [renamed]);
        let renamed = "docs/cases.md: a.rs has no test three";
        assert_eq!(planted("a.rs", "fn three(", "fn threes("), [renamed]);
        let moved = "docs/cases.md: there is no b/d.rs with a test four";
        assert_eq!(planted(CHAPTER, "b/c.rs", "b/d.rs"), [moved]);
    }
}
