//! The steps of `cargo xtask test`.
//!
//! They share one set of features and one target folder, so that each builds on what the one before it has
//! built. Only loom, whose flag reaches every crate, keeps a folder of its own.

use std::{fmt, time::Duration};

use clap::ValueEnum;

use crate::{bench, command::Cmd, features, loom, rules, workspace::Workspace};

/// All but the benches, one of whose features brings the peers that `cargo xtask bench` compares us with.
const EVERYTHING: &str = "--workspace --exclude buttress-benches --all-features";

/// How a step ended: a few words for the summary, or why it failed.
pub(crate) type Outcome = Result<String, String>;

/// A step, in the order in which all of them run: cheap checks first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Step {
    /// Who may depend on whom, and what may stand in the files
    Rules,
    /// The code is formatted
    Fmt,
    /// Clippy finds nothing in any target
    Clippy,
    /// The docs build without a warning
    Docs,
    /// Every test and every example in the docs
    Tests,
    /// Each feature alone, none of them, and all
    Features,
    /// The models of what is shared between threads, under every interleaving
    Loom,
    /// The example programs help and refuse bad arguments, and the examples show what they are for
    Examples,
    /// No call of ours costs more than it did
    Speed,
}

impl Step {
    pub(crate) const ALL: &[Self] = &[
        Self::Rules,
        Self::Fmt,
        Self::Clippy,
        Self::Docs,
        Self::Tests,
        Self::Features,
        Self::Loom,
        Self::Examples,
        Self::Speed,
    ];

    pub(crate) fn run(self, workspace: &Workspace) -> Outcome {
        match self {
            Self::Rules => rules::step(workspace),
            Self::Fmt => plain(&Cmd::cargo("fmt --all --check")),
            Self::Clippy => {
                let deny = "--all-targets -- -D warnings";
                plain(&Cmd::cargo(&format!("clippy {EVERYTHING} {deny}")))?;
                plain(&Cmd::cargo(&format!("clippy -p {} {deny}", bench::PACKAGE)))
            }
            Self::Docs => plain(
                &Cmd::cargo(&format!("doc {EVERYTHING} --no-deps"))
                    .flags("RUSTDOCFLAGS", "-D warnings"),
            ),
            Self::Tests => tests(),
            Self::Features => features::step(workspace),
            Self::Loom => loom::step(workspace),
            Self::Examples => examples(workspace),
            Self::Speed => bench::step(workspace),
        }
    }

    /// What it shows, in a few words: the same that `--help` and `--list` say.
    pub(crate) fn what(self) -> String {
        self.to_possible_value()
            .and_then(|value| value.get_help().map(ToString::to_string))
            .expect("every step has a doc comment, and none is hidden")
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().expect("no step is hidden");
        f.write_str(value.get_name())
    }
}

/// The steps, a line each.
pub(crate) fn list() -> String {
    let line = |step: &Step| format!("{:<10} {}\n", step.to_string(), step.what());
    Step::ALL.iter().map(line).collect()
}

fn plain(command: &Cmd) -> Outcome {
    command.run().map(|()| String::new())
}

/// How many tests passed, when `line` is a closing line of a test program.
pub(crate) fn passed(line: &str) -> Option<u64> {
    let rest = line.strip_prefix("test result: ")?;
    let (_, rest) = rest.split_once(". ")?;
    rest.split_once(" passed")?.0.parse().ok()
}

fn tests() -> Outcome {
    let mut total = 0;
    Cmd::cargo(&format!("test {EVERYTHING}")).read(|line| {
        total += passed(line).unwrap_or(0);
    })?;
    Ok(format!("{total} passed"))
}

/// An example takes a second or two: one that takes longer hangs.
const LONGEST_EXAMPLE: Duration = Duration::from_secs(120);

/// Runs the programs the way the README tells a person to, which is not how `tests` built them: a feature that
/// only another member asks for is missing here.
fn examples(workspace: &Workspace) -> Outcome {
    const PACKAGE: &str = "buttress-examples";
    let package =
        workspace.member(PACKAGE).ok_or_else(|| format!("there is no package {PACKAGE}"))?;
    Cmd::cargo(&format!("build -p {PACKAGE} --bins --examples")).run()?;

    let mut programs = 0;
    for bin in package.targets.iter().filter(|target| target.is_bin()) {
        let bin = &bin.name;
        // Quiet, so that what is left on stderr is the program's own.
        let run = format!("run --quiet -p {PACKAGE} --bin {bin} --");

        let help = Cmd::cargo(&format!("{run} --help"));
        let said = help.output()?;
        print!("{}", String::from_utf8_lossy(&said.stdout));
        if !said.status.success() || !String::from_utf8_lossy(&said.stdout).contains("Usage") {
            return Err(format!("`{help}` shows no help ({})", said.status));
        }

        let bad = Cmd::cargo(&format!("{run} --no-such-argument"));
        let said = bad.output()?;
        let line = String::from_utf8_lossy(&said.stderr);
        print!("{line}");
        if said.status.code() != Some(2) || line.lines().count() != 1 {
            return Err(format!(
                "`{bad}` must end with exit code 2 and one line on stderr, and gave {} and {} lines",
                said.status,
                line.lines().count(),
            ));
        }
        programs += 1;
    }
    let mut examples = 0;
    for example in package.targets.iter().filter(|target| target.is_example()) {
        // Each starts what it needs, fails unless it saw what it shows, and ends by itself.
        let run = Cmd::cargo(&format!("run --quiet -p {PACKAGE} --example {}", example.name));
        let mut is_silent = true;
        run.read_within(LONGEST_EXAMPLE, |line| is_silent &= line.trim().is_empty())?;
        if is_silent {
            return Err(format!("`{run}` shows nothing"));
        }
        examples += 1;
    }
    if programs == 0 || examples == 0 {
        return Err(format!("{PACKAGE} has {programs} programs and {examples} examples"));
    }
    Ok(format!("{} and {}", counted(programs, "program"), counted(examples, "example")))
}

fn counted(count: u32, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_everything_leaves_no_step_out() {
        assert_eq!(Step::ALL, Step::value_variants());
    }

    #[test]
    fn only_closing_lines_are_counted() {
        let line = "test result: ok. 41 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out";
        assert_eq!(passed(line), Some(41));
        let line = "test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured";
        assert_eq!(passed(line), Some(3));
        assert_eq!(passed("test half_open::probe ... ok"), None);
        assert_eq!(passed("running 3 tests"), None);
    }
}
