//! What may stand in the files of the repository.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::{cases, workspace};

/// A file that a reviewer cannot read and every clone pays for.
const MAX_BYTES: u64 = 1024 * 1024;

/// Where packages come from is a matter of the machine's cargo settings: a host written here would go round the
/// mirror of whoever builds behind one. Each is in two halves, so that this file obeys its own rule.
const REGISTRIES: &[&str] = &[
    concat!("crates", ".io"),
    concat!("static.rust-lang", ".org"),
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("npmjs", ".com"),
    concat!("npmjs", ".org"),
    concat!("rubygems", ".org"),
    concat!("proxy.golang", ".org"),
    concat!("repo.maven.apache", ".org"),
    concat!("repo1.maven", ".org"),
    concat!("deb.debian", ".org"),
    concat!("archive.ubuntu", ".com"),
    concat!("docker", ".io"),
    concat!("ghcr", ".io"),
    concat!("quay", ".io"),
];

/// The one source of packages that a lock file may name: the name of cargo's default, not a host it asks.
const DEFAULT_SOURCE: &str =
    concat!("registry+https://github.com/rust-lang/", "crates", ".io-index");

/// What is wrong with the files of the checkout, and how many were read.
pub(crate) fn check() -> Result<(Vec<String>, usize), String> {
    let root = workspace::root();
    let files = match tracked(root) {
        Some(files) => files,
        None => all(root).map_err(|error| format!("the checkout cannot be read: {error}"))?,
    };
    let mut faults = Vec::new();
    let mut count = 0;
    let mut texts = BTreeMap::new();
    for file in files {
        // Deleted here and not yet committed, or a link to a folder.
        let Some(bytes) = fs::metadata(root.join(&file)).ok().filter(|of| of.is_file()) else {
            continue;
        };
        count += 1;
        let name = file.display().to_string();
        if bytes.len() > MAX_BYTES {
            faults.push(format!(
                "{name} has {} bytes: {MAX_BYTES} is the most a file may have",
                bytes.len()
            ));
        } else if let Ok(text) = fs::read_to_string(root.join(&file)) {
            faults.extend(faults_of(&name, &text));
            if name.ends_with(".rs") || name == cases::CHAPTER {
                texts.insert(name, text);
            }
        }
    }
    faults.extend(cases::faults(&texts));
    Ok((faults, count))
}

/// What is wrong with one text.
fn faults_of(name: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let mut say = |what: String| faults.push(format!("{name}:{}: {what}", number + 1));
        if let Some(host) = registry(line) {
            say(format!("names the registry host {host}: leave it to cargo's settings"));
        }
        if name.ends_with("Cargo.lock")
            && let Some(source) = line.strip_prefix("source = ")
            && source.trim_matches('"') != DEFAULT_SOURCE
        {
            say(format!("a package comes from {source}"));
        }
        if name.ends_with(".rs") && ignores_without_reason(line) {
            say("switches a test off and does not say why: give a reason".to_owned());
        }
    }
    faults
}

/// The registry that `line` names as a host: whole, or with something before it, as in `static.`.
fn registry(line: &str) -> Option<&'static str> {
    let line = line.to_ascii_lowercase();
    let inside = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let named = |host: &&&str| {
        line.match_indices(**host).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = line[at + host.len()..].chars().next();
            !before.is_some_and(inside) && !after.is_some_and(inside)
        })
    };
    REGISTRIES.iter().find(named).copied()
}

fn ignores_without_reason(line: &str) -> bool {
    let code: String = line.chars().filter(|c| !c.is_whitespace()).collect();
    let bare = [concat!("#[", "ignore]"), concat!(",", "ignore)]"), concat!(",", "ignore,")];
    !code.starts_with("//")
        && (code.contains(bare[0])
            || code.starts_with("#[cfg_attr(") && bare[1..].iter().any(|end| code.contains(end)))
}

/// The files that git tracks; none where this is no checkout or git is not there.
fn tracked(root: &Path) -> Option<Vec<PathBuf>> {
    let said = Command::new("git")
        // A checkout of somebody else's is only read here: root may do so.
        .args(["-c", "safe.directory=*", "ls-files", "-z"])
        .current_dir(root)
        .output()
        .ok()
        .filter(|said| said.status.success() && !said.stdout.is_empty())?;
    let names = String::from_utf8(said.stdout).ok()?;
    Some(names.split_terminator('\0').map(PathBuf::from).collect())
}

/// Every file below `root` but what is built in it, for a copy without git. What cargo builds bears a tag.
fn all(root: &Path) -> std::io::Result<Vec<PathBuf>> {
    const SKIPPED: &[&str] = &[".git", "out"];
    let mut files = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                let skipped = SKIPPED.iter().any(|name| entry.file_name() == *name);
                if !skipped && !entry.path().join("CACHEDIR.TAG").exists() {
                    folders.push(entry.path());
                }
            } else if let Ok(file) = entry.path().strip_prefix(root) {
                files.push(file.to_owned());
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_is_found_wherever_it_stands() {
        let host = concat!("crates", ".io");
        for line in [
            format!("see https://{host}/buttress"),
            format!("index = \"sparse+https://index.{}/\"", host.to_uppercase()),
            host.to_owned(),
        ] {
            assert_eq!(registry(&line), Some(host), "{line}");
            assert_eq!(faults_of("README.md", &line).len(), 1);
        }
    }

    #[test]
    fn a_name_that_only_looks_like_a_registry_is_let_be() {
        let host = concat!("crates", ".io");
        for line in [format!("{host}-index"), format!("my{host}"), "docs.rs".to_owned()] {
            assert_eq!(registry(&line), None, "{line}");
        }
    }

    #[test]
    fn the_lock_may_name_the_default_source_only() {
        let usual = format!("source = \"{DEFAULT_SOURCE}\"");
        assert_eq!(faults_of("Cargo.lock", &usual), [""; 0]);
        let mirror = "source = \"sparse+https://mirror.example/index/\"";
        assert_eq!(
            faults_of("Cargo.lock", mirror),
            ["Cargo.lock:1: a package comes from \"sparse+https://mirror.example/index/\""]
        );
    }

    #[test]
    fn a_test_is_switched_off_with_a_reason_or_not_at_all() {
        for line in [
            concat!("#[", "ignore]"),
            concat!("    # [ ", "ignore ]"),
            concat!("#[cfg_attr(miri, ", "ignore)]"),
            concat!("#[cfg_attr(miri, ", "ignore, should_panic)]"),
        ] {
            let fault = &faults_of("tests/a.rs", line)[..];
            assert!(matches!(fault, [one] if one.contains("give a reason")), "{line}");
        }
        for line in [
            "#[ignore = \"needs a server\"]",
            "#[cfg_attr(miri, ignore = \"too slow\")]",
            concat!("// never a bare #[", "ignore]"),
            "match ignore { Some(ignore) => ignore, None => false }",
        ] {
            assert_eq!(faults_of("tests/a.rs", line), [""; 0], "{line}");
        }
    }

    #[test]
    fn a_copy_without_git_is_read_too() {
        let root = workspace::root();
        let files = all(root).unwrap();
        assert!(files.contains(&PathBuf::from("xtask/src/files.rs")));
        assert!(!files.iter().any(|file| file.starts_with("target")));
    }
}
