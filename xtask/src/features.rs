//! Every feature alone: what `--all-features` hides is code that compiles only in company.

use std::collections::BTreeMap;

use crate::{command::Cmd, steps::Outcome, workspace::Workspace};

/// Checks every set of every published crate.
///
/// Warnings count here too: most faults of a lone feature are an import that nothing uses. `-D warnings` in
/// `RUSTFLAGS` would build every dependency again for each change of the flags. Clippy hands what stands behind
/// `--` to our own crates alone, so that everything outside is checked once and shared with the `clippy` step.
pub(crate) fn step(workspace: &Workspace) -> Outcome {
    let mut count = 0;
    for package in workspace.published() {
        for set in sets(&package.features) {
            let name = &package.name;
            Cmd::cargo(&format!("clippy --quiet -p {name} {set} -- -D warnings")).run()?;
            count += 1;
        }
    }
    Ok(format!("{count} sets"))
}

/// The arguments for no feature, each alone, the default ones, and all; equal sets once.
fn sets(features: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let named: Vec<_> = features.keys().filter(|name| *name != "default").collect();
    let mut sets = vec!["--no-default-features".to_owned()];
    sets.extend(named.iter().map(|name| format!("--no-default-features --features {name}")));
    if features.get("default").is_some_and(|list| !list.is_empty()) {
        sets.push(String::new());
    }
    // With a single feature, "all" is that one.
    if named.len() > 1 {
        sets.push("--all-features".to_owned());
    }
    sets
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(features: &[(&str, &[&str])]) -> Vec<String> {
        let own = |list: &[&str]| list.iter().map(|&name| name.to_owned()).collect();
        let features = features.iter().map(|&(name, list)| (name.to_owned(), own(list)));
        sets(&features.collect())
    }

    #[test]
    fn a_crate_without_features_has_one_set() {
        assert_eq!(of(&[]), ["--no-default-features"]);
        assert_eq!(of(&[("default", &[])]), ["--no-default-features"]);
    }

    #[test]
    fn one_feature_is_not_checked_twice() {
        assert_eq!(
            of(&[("serde", &["dep:serde"])]),
            ["--no-default-features", "--no-default-features --features serde"]
        );
    }

    #[test]
    fn none_each_default_and_all_are_checked() {
        assert_eq!(
            of(&[("default", &["a"]), ("a", &[]), ("b", &[])]),
            [
                "--no-default-features",
                "--no-default-features --features a",
                "--no-default-features --features b",
                "",
                "--all-features",
            ]
        );
    }
}
