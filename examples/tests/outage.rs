//! The outage example, run as its users run it, only shorter.

mod common;

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Output, Stdio},
};

use common::{Folder, drained, output, text};

const PROGRAM: &str = env!("CARGO_BIN_EXE_outage");

fn outage(args: &[&str]) -> Output {
    let mut program = Command::new(PROGRAM);
    program.args(args);
    output(program)
}

/// Starts the program, and returns once its clients are at work.
fn begin(folder: &Folder) -> (Child, BufReader<impl Read + Send + 'static>) {
    let mut program = Command::new(PROGRAM)
        .args(["--seconds", "300", "--rate", "10", "--out", folder.arg()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(program.stderr.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    assert!(line.contains("the server is healthy"), "{line}");
    (program, lines)
}

#[test]
fn a_run_leaves_a_table_two_pictures_and_no_server() {
    let folder = Folder::new("run");
    let output = outage(&["--seconds", "6", "--rate", "40", "--out", folder.arg()]);

    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stdout.contains("server  7 workers"), "{stdout}");
    let mut rows = stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    assert!(rows.any(|row| row == ["bare", "retries", "buttress"]), "{stdout}");
    for figure in [
        "requests that reached the sick server",
        "wait for an answer or an error",
        "good answers",
        "well again after",
        "- Sick: ",
        "- The price: ",
    ] {
        assert!(stdout.lines().any(|line| line.starts_with(figure)), "{figure}: {stdout}");
    }

    let png = fs::read(folder.0.join("outage.png")).unwrap();
    assert!(png.starts_with(b"\x89PNG\r\n\x1a\n"));
    assert!(png.ends_with(b"IEND\xaeB`\x82"), "the picture is whole");
    let svg = fs::read_to_string(folder.0.join("outage.svg")).unwrap();
    assert!(svg.starts_with("<svg"));
    assert!(svg.trim_end().ends_with("</svg>"), "the picture is whole");
    for word in ["bare", "retries", "buttress", "hanging", "failing", "slow", "half-open"] {
        assert!(svg.contains(word), "{word}");
    }
    // Nothing else: no file that was only there to see whether one could be.
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 2);
}

#[test]
fn away_from_a_terminal_nothing_is_drawn_in_place() {
    let folder = Folder::new("plain");
    let output = outage(&["--seconds", "6", "--rate", "10", "--out", folder.arg()]);
    for text in [text(&output.stdout), text(&output.stderr)] {
        let control = text.chars().find(|c| c.is_control() && *c != '\n');
        assert_eq!(control, None, "{text:?}");
    }
}

#[test]
fn what_cannot_work_is_refused_in_one_line() {
    let folder = Folder::new("refused");
    let file = folder.0.join("file");
    fs::write(&file, []).unwrap();
    let (file, below) = (file.to_str().unwrap(), file.join("below"));

    for args in [
        &["--rate", "0"][..],
        &["--rate", "-1"],
        &["--rate=-1"],
        &["--rate", "NaN"],
        &["--rate", "inf"],
        &["--rate", "1e12"],
        &["--rate", "fast"],
        &["--rate", ""],
        &["--rate", "1\n2"],
        &["--rate", "\x1b[31m1"],
        &["--rate"],
        &["--rate", "10", "--rate", "20"],
        &["--seconds", "0"],
        &["--seconds", "1e300"],
        &["--seconds", "NaN"],
        &["--seconds", "5.9"],
        &["--seed", "x"],
        &["--seed", "1.5"],
        &["--seed", "-1"],
        &["--seed", "18446744073709551616"],
        &["--out", file],
        &["--out", below.to_str().unwrap()],
        &["--out", ""],
        &["--colour"],
        &["-x"],
        &["serve"],
        &["--", "--rate"],
    ] {
        let output = outage(args);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{args:?}: {stderr}");
        assert!(stderr.starts_with("error: "), "{args:?}: {stderr}");
        assert!(!stderr.trim_end().contains(char::is_control), "{args:?}: {stderr:?}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn a_seed_that_is_none_is_told_what_one_is() {
    for seed in ["x", "-1", "1.5"] {
        let output = outage(&["--seed", seed]);
        let stderr = text(&output.stderr);
        assert!(stderr.contains("a whole number from 0"), "{seed}: {stderr}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_table_that_cannot_be_written_is_an_error_and_no_panic() {
    let folder = Folder::new("full");
    for args in [&["--help"][..], &["--seconds", "6", "--rate", "10", "--out", folder.arg()]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = Command::new(PROGRAM).args(args).stdout(full).output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
        assert_eq!(stderr.matches("error: cannot write the output").count(), 1, "{stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn an_error_that_cannot_be_written_still_has_its_exit_code() {
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let code = |args: &[&str], stdout: Stdio| {
        let mut program = Command::new(PROGRAM);
        program.args(args).stdout(stdout).stderr(full()).status().unwrap().code()
    };
    assert_eq!(code(&["--rate", "0"], Stdio::null()), Some(2));
    assert_eq!(code(&["--help"], full().into()), Some(1));
}

#[test]
fn a_reader_who_has_gone_is_no_error() {
    let folder = Folder::new("gone");
    let mut program = Command::new(PROGRAM)
        .args(["--seconds", "6", "--rate", "10", "--out", folder.arg()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(program.stdout.take());
    drop(program.stderr.take());
    assert_eq!(program.wait().unwrap().code(), Some(0));
    assert!(folder.0.join("outage.png").exists());
}

#[test]
fn help_tells_every_option_but_the_hidden_one() {
    let output = outage(&["--help"]);
    let stdout = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0));
    for option in ["--rate", "--seed", "--seconds", "--out"] {
        assert!(stdout.contains(option), "{option}: {stdout}");
    }
    assert!(!stdout.contains("--serve"), "{stdout}");
}

#[test]
fn a_server_does_not_outlive_a_parent_that_is_killed() {
    let folder = Folder::new("killed");
    let (mut program, lines) = begin(&folder);
    program.kill().unwrap();
    program.wait().unwrap();
    drained(lines);
}

#[cfg(target_os = "linux")]
#[test]
fn a_server_that_dies_ends_the_run_with_one_line() {
    let folder = Folder::new("dead-server");
    let (mut program, mut lines) = begin(&folder);
    let children = format!("/proc/{0}/task/{0}/children", program.id());
    let server = fs::read_to_string(children).unwrap();
    assert!(Command::new("kill").args(["-KILL", server.trim()]).status().unwrap().success());
    assert_eq!(program.wait().unwrap().code(), Some(1));
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert!(rest.trim_end().ends_with("SIGKILL)"), "{rest}");
    assert_eq!(rest.matches("error: ").count(), 1, "{rest}");
}

#[cfg(unix)]
#[test]
fn a_run_that_is_broken_off_takes_its_server_along() {
    for signal in ["-INT", "-TERM"] {
        let folder = Folder::new(&format!("broken-off{signal}"));
        let (mut program, lines) = begin(&folder);
        let id = program.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
        assert_eq!(program.wait().unwrap().code(), Some(130));
        drained(lines);
    }
}
