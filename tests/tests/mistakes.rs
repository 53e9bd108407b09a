//! The mistakes that are made first, and what the compiler says of them: each file of `tests/mistakes` is one that
//! must not compile, each of `tests/mistakes/fine` must.
//!
//! Where an error is expected, the line ends in `//~` and a part of its message. A line that is nothing but a `//~`
//! is a part of what the first error of the file says besides: mostly, what to do. All that is written there has
//! to be said, and no error may be elsewhere. What else the compiler prints differs between its versions, and is
//! left open.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;

/// What the compiler says of the files: cargo's messages, by target.
type Said = BTreeMap<String, Vec<Error>>;

/// One error.
struct Error {
    line: u64,
    message: String,
    /// Its labels and its notes.
    besides: Vec<String>,
}

/// The files with the extension `rs` in `folder`, by name.
fn files(folder: &Path) -> BTreeMap<String, PathBuf> {
    let entries = fs::read_dir(folder).expect("the folder is there");
    let paths = entries.map(|entry| entry.expect("an entry is readable").path());
    let sources = paths.filter(|path| path.extension().is_some_and(|ext| ext == "rs"));
    sources
        .map(|path| {
            let name = path.file_stem().expect("a file has a name").to_string_lossy().into_owned();
            (name, path)
        })
        .collect()
}

/// A package of its own, outside the workspace, with a program for each file. What it depends on is locked as in
/// the workspace, and built once: it is kept under the target folder.
fn package(programs: &BTreeMap<String, PathBuf>) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is in the workspace");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mistakes");
    fs::create_dir_all(&folder).expect("the target folder is writable");
    let buttress = root.join("crates/buttress");
    let mut manifest = format!(
        r#"
[package]
name = "mistakes"
edition = "2024"

[workspace]

[dependencies]
axum = {{ version = "*", default-features = false, features = ["tokio"] }}
buttress = {{ path = {buttress:?}, features = ["shed", "tonic"] }}
bytes = "*"
http = "*"
http-body-util = "*"
hyper = "*"
hyper-util = {{ version = "*", features = ["client-legacy", "http1", "tokio"] }}
tonic = {{ version = "*", default-features = false, features = ["channel"] }}
tower = {{ version = "*", default-features = false, features = ["util"] }}
"#
    );
    for (name, path) in programs {
        manifest += &format!("\n[[bin]]\nname = {name:?}\npath = {path:?}\n");
    }
    fs::write(folder.join("Cargo.toml"), manifest).expect("the target folder is writable");
    fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock")).expect("the lock file is there");
    folder
}

/// Checks all programs of the package in one run.
fn check(package: &Path) -> (Said, String) {
    let output = Command::new(env::var_os("CARGO").expect("cargo runs the tests"))
        .args(["check", "--offline", "--keep-going", "--message-format=json", "--bins"])
        .current_dir(package)
        .env("CARGO_TARGET_DIR", package.join("target"))
        // What is asked of the workspace's own code is not asked of these.
        .env_remove("RUSTFLAGS")
        .stdin(Stdio::null())
        .output()
        .expect("cargo runs");
    let mut said = Said::new();
    for line in String::from_utf8(output.stdout).expect("cargo writes UTF-8").lines() {
        let line: Value = serde_json::from_str(line).expect("cargo writes JSON");
        let message = &line["message"];
        if line["reason"] != "compiler-message" || message["level"] != "error" {
            continue;
        }
        let target = line["target"]["name"].as_str().expect("a target has a name").to_owned();
        // The last line counts the errors, and has no place.
        if let Some(error) = error(message) {
            said.entry(target).or_default().push(error);
        }
    }
    (said, String::from_utf8_lossy(&output.stderr).into_owned())
}

fn error(message: &Value) -> Option<Error> {
    let primary = list(message, "spans").iter().find(|span| span["is_primary"] == true)?;
    let line = primary["line_start"].as_u64().expect("a span has a line");
    let notes = list(message, "children").iter();
    let besides = notes.flat_map(|note| [text(&note["message"])].into_iter().chain(labels(note)));
    let besides = labels(message).chain(besides).collect();
    Some(Error { line, message: text(&message["message"]), besides })
}

fn labels(message: &Value) -> impl Iterator<Item = String> {
    list(message, "spans").iter().map(|span| text(&span["label"]))
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// What is amiss between what `source` asks for and the `errors` that were said of it.
fn faults(source: &str, errors: &[Error]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut expected = BTreeMap::new();
    for (line, number) in source.lines().zip(1..) {
        let Some((code, part)) = line.split_once("//~ ") else { continue };
        if !code.trim().is_empty() {
            expected.insert(number, part);
        } else if !errors.first().is_some_and(|e| e.besides.iter().any(|said| said.contains(part)))
        {
            faults.push(format!("the first error does not say `{part}`"));
        }
    }
    for (number, part) in &expected {
        match errors.iter().find(|error| error.line == *number) {
            None => faults.push(format!("no error on line {number}")),
            Some(error) if !error.message.contains(part) => {
                faults.push(format!("line {number} does not begin with `{part}`"));
            }
            Some(_) => {}
        }
    }
    let elsewhere = errors.iter().filter(|error| !expected.contains_key(&error.line));
    faults.extend(elsewhere.map(|error| format!("an error on line {}", error.line)));
    if expected.is_empty() {
        faults.push("no error is expected".to_owned());
    }
    faults
}

// HTP-06, HTP-07, GRP-08
#[test]
fn mistakes_are_met_with_what_to_do() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("mistakes");
    let (mistakes, fine) = (files(&folder), files(&folder.join("fine")));
    let programs = mistakes.clone().into_iter().chain(fine.clone()).collect();
    let (said, log) = check(&package(&programs));
    let said_of = |name: &str| said.get(name).map(Vec::as_slice).unwrap_or_default();

    let mut faults_found = String::new();
    for (name, path) in &mistakes {
        let source = fs::read_to_string(path).expect("the file is readable");
        let faults = faults(&source, said_of(name));
        if !faults.is_empty() {
            faults_found += &format!("{name}: {}\n", faults.join("; "));
            faults_found += &tell(said_of(name));
        }
    }
    for name in fine.keys().filter(|name| !said_of(name).is_empty()) {
        faults_found += &format!("fine/{name} does not compile:\n{}", tell(said_of(name)));
    }
    // A dependency that does not compile is neither.
    let strangers = said.keys().filter(|name| !programs.contains_key(*name));
    assert_eq!(strangers.count(), 0, "{log}");
    assert!(faults_found.is_empty(), "\n{faults_found}\n{log}");
}

fn tell(errors: &[Error]) -> String {
    errors
        .iter()
        .map(|Error { line, message, besides }| {
            format!("  line {line}: {message}\n    {}\n", besides.join("\n    "))
        })
        .collect()
}
