//! The example of leadership, run as its users run it. A run takes half a minute, most of which it waits.

#![cfg(target_os = "linux")]

#[path = "../common/mod.rs"]
mod common;
mod stores;

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Output, Stdio},
    sync::OnceLock,
};

use common::{Folder, drained, output, text};

const PROGRAM: &str = env!("CARGO_BIN_EXE_leader");

/// One run, for all who look at what came of it.
fn run() -> &'static Output {
    static RUN: OnceLock<Output> = OnceLock::new();
    RUN.get_or_init(|| {
        let folder = Folder::new("leader-run");
        let mut program = Command::new(PROGRAM);
        program.env("TMPDIR", folder.arg());
        let output = output(program);
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0, "the leases are gone");
        output
    })
}

/// What the table says in that row.
fn figure(label: &str) -> &'static str {
    let stdout = text(&run().stdout);
    let line = stdout.lines().find_map(|line| line.strip_prefix(label));
    line.unwrap_or_else(|| panic!("no {label:?} in {stdout}")).trim()
}

/// Starts the program, and returns once somebody leads.
fn begin(folder: &Folder) -> (Child, impl Read + Send + use<>) {
    let mut program = Command::new(PROGRAM)
        .env("TMPDIR", folder.arg())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
    lines.find(|line| line.as_ref().unwrap().contains("leads, with fence 1")).unwrap().unwrap();
    // Whoever writes on gets no error for it.
    std::thread::spawn(move || lines.for_each(drop));
    let stderr = program.stderr.take().unwrap();
    (program, stderr)
}

/// The candidates of a run.
fn candidates(program: &Child) -> Vec<String> {
    let children = format!("/proc/{0}/task/{0}/children", program.id());
    let children = fs::read_to_string(children).unwrap();
    let children: Vec<_> = children.split_whitespace().map(str::to_owned).collect();
    assert_eq!(children.len(), 3);
    children
}

fn signal(signal: &str, process: &str) {
    assert!(Command::new("kill").args([signal, process]).status().unwrap().success());
}

#[test]
fn each_leader_that_breaks_is_followed_by_another_and_never_are_there_two() {
    let stdout = text(&run().stdout);
    assert_eq!(run().status.code(), Some(0), "{stdout}{}", text(&run().stderr));
    for fault in ["1 the ledger hangs", "2 the leader is killed", "3 the leader is stopped"] {
        let line = stdout.lines().find(|line| line.starts_with(fault)).unwrap();
        // From the right: no write for, no leader for, the next leader, the leader.
        let mut cells = line.split_whitespace().rev().filter(|cell| *cell != "s");
        let times = [cells.next().unwrap(), cells.next().unwrap()];
        assert!(times.iter().all(|time| time.parse::<f64>().is_ok()), "{line}");
        let (next, leader) = (cells.next().unwrap(), cells.next().unwrap());
        assert!(["A", "B", "C"].contains(&next) && next != leader, "{line}");
    }
    assert_eq!(figure("overlaps (two leaders at a time)"), "0");
}

#[test]
fn who_goes_on_after_its_lease_writes_nothing_beside_its_successor() {
    assert_eq!(figure("  with a fence less than the one before"), "0");
    let refused = figure("stale writes refused");
    let (count, _) = refused.split_once(':').unwrap();
    // It was stopped while it worked on some.
    assert!(count.parse::<u32>().unwrap() > 0, "{refused}");
}

#[test]
fn away_from_a_terminal_there_are_only_lines() {
    for text in [text(&run().stdout), text(&run().stderr)] {
        let control = text.chars().find(|c| c.is_control() && *c != '\n');
        assert_eq!(control, None, "{text:?}");
    }
    assert_eq!(text(&run().stderr), "");
}

#[test]
fn what_cannot_work_is_refused_in_one_line() {
    for args in [&["--colour"][..], &["-x"], &["serve"], &["--leases", "x"]] {
        let mut program = Command::new(PROGRAM);
        program.args(args);
        let output = output(program);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{args:?}: {stderr}");
        assert!(stderr.starts_with("error: "), "{args:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn no_candidate_outlives_a_parent_that_is_killed_not_even_one_that_stands_still() {
    let folder = Folder::new("leader-killed");
    let (mut program, stderr) = begin(&folder);
    signal("-STOP", &candidates(&program)[0]);
    program.kill().unwrap();
    program.wait().unwrap();
    drained(stderr);
}

#[test]
fn a_candidate_that_dies_by_itself_ends_the_run_with_one_line() {
    let folder = Folder::new("leader-dead");
    let (mut program, mut stderr) = begin(&folder);
    signal("-KILL", &candidates(&program)[1]);
    assert_eq!(program.wait().unwrap().code(), Some(1));
    let mut said = String::new();
    stderr.read_to_string(&mut said).unwrap();
    assert!(
        said.starts_with("error: candidate ") && said.trim_end().ends_with("SIGKILL)"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn a_run_that_is_broken_off_takes_its_candidates_along() {
    for how in ["-INT", "-TERM"] {
        let folder = Folder::new(&format!("leader-broken-off{how}"));
        let (mut program, stderr) = begin(&folder);
        signal(how, &program.id().to_string());
        assert_eq!(program.wait().unwrap().code(), Some(130));
        drained(stderr);
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0, "the leases are gone");
    }
}
