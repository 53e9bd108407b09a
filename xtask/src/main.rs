//! The commands of the project itself: `cargo xtask help` lists them.
//!
//! What a person must see green before a change goes in is one command, `cargo xtask test`, and the same
//! command on every machine. It is Rust, so that it needs nothing that the project does not need anyway.

mod bench;
mod cases;
mod chaos;
mod command;
mod features;
mod files;
mod loom;
mod needs;
mod report;
mod rules;
mod simulate;
mod steps;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{report::Report, steps::Step, workspace::Workspace};

/// The commands of the project itself.
#[derive(Debug, Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", disable_version_flag = true)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Run everything that must be green, cheap checks first; stop at the first failure
    Test {
        /// Run these steps alone, in this order
        #[arg(value_name = "STEP")]
        steps: Vec<Step>,

        /// List the steps and run nothing
        #[arg(long)]
        list: bool,
    },

    /// Measure what our calls cost, and those of the peers; print it, and write it into the docs
    Bench {
        /// Count ours alone instead, and make that the record to which `cargo xtask test speed` holds them
        #[arg(long)]
        record: bool,
    },

    /// Hold elections on real stores, break everything meanwhile, and check that they keep what they promise
    Chaos(chaos::Chaos),

    /// Simulate elections for longer than the tests do, and check that there are never two leaders
    Simulate {
        /// Go on until there were so many terms
        #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
        terms: u64,

        /// Begin with this seed: what is found wrong names its own
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    let done = match cli.task {
        Task::Test { list: true, .. } => {
            print!("{}", steps::list());
            Ok(())
        }
        Task::Test { steps, .. } if steps.is_empty() => test(Step::ALL),
        Task::Test { steps, .. } => test(&steps),
        Task::Bench { record: true } => bench::record(),
        Task::Bench { record: false } => bench::run(),
        Task::Chaos(chaos) => chaos::run(&chaos),
        Task::Simulate { terms, seed } => simulate::run(terms, seed),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Runs `steps` in order, up to the first that fails.
fn test(steps: &[Step]) -> Result<(), String> {
    let workspace = Workspace::read()?;
    needs::meet(steps)?;
    let mut report = Report::new(steps);
    for &step in steps {
        report.heading(step);
        let start = report::clock();
        let outcome = step.run(&workspace);
        report.close(step, report::clock() - start, &outcome);
        if let Err(why) = outcome {
            println!("\n{report}");
            return Err(format!("step `{step}` failed: {why}; alone: cargo xtask test {step}"));
        }
    }
    println!("\n{report}");
    Ok(())
}

/// Help in full; anything else that clap says in one line, with exit code 2.
fn refuse(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand as NoCommand;
    if !error.use_stderr() || error.kind() == NoCommand {
        // Nobody is left to tell when the terminal is gone.
        let _ = error.print();
    } else {
        eprintln!("{}", one_line(error));
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// The first line of what clap says, which names the argument, and where to read on.
fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let first = text.lines().next().unwrap_or("error: bad arguments");
    format!("{first}; see `cargo xtask help`")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_bad_argument_is_named_in_one_line() {
        for bad in ["--nope", "clipy"] {
            let error = Cli::try_parse_from(["xtask", "test", bad]).unwrap_err();
            let line = one_line(&error);
            assert_eq!(line.lines().count(), 1, "{line}");
            assert!(line.starts_with("error: ") && line.contains(bad), "{line}");
            assert_eq!(error.exit_code(), 2);
        }
    }
}
