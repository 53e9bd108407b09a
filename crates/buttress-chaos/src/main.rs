//! `leadctl`: a candidate for the runs that break everything, and the runs themselves.
#![cfg(unix)]

use std::{env, path::PathBuf, process::ExitCode, time::Duration};

use buttress_chaos::{
    arena::Arena,
    candidate::Candidate,
    faults::Kind,
    run::Run,
    table::{markdown, table},
};
use buttress_core::BoxError;
use clap::Parser;

/// Elections on real stores while everything breaks.
#[derive(Debug, Parser)]
#[command(name = "leadctl", version)]
enum Task {
    /// Stand for election, and write while it leads, until standard input ends
    Candidate(Candidate),
    /// Run five candidates, break everything, and judge what came of it
    Chaos {
        /// Where; everywhere unless set
        #[arg(long)]
        store: Vec<Arena>,

        /// What is broken; all that can be there unless set
        #[arg(long)]
        fault: Vec<Kind>,

        /// For how long on each
        #[arg(long, default_value_t = 60)]
        seconds: u64,

        /// Where chance begins
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Task::parse() {
        Task::Candidate(candidate) => candidate.run().await,
        Task::Chaos { store, fault, seconds, seed } => {
            chaos(&store, &fault, Duration::from_secs(seconds), seed).await
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn chaos(
    arenas: &[Arena],
    wanted: &[Kind],
    lasts: Duration,
    seed: u64,
) -> Result<(), BoxError> {
    let arenas = if arenas.is_empty() { Arena::all() } else { arenas };
    let leadctl: PathBuf = env::current_exe()?;
    let mut verdicts = Vec::new();
    for &arena in arenas {
        let mut faults = arena.faults();
        faults.retain(|kind| wanted.is_empty() || wanted.contains(kind));
        if faults.is_empty() {
            println!("{}: there is nothing of that to break", arena.name());
            continue;
        }
        let run = Run { arena, faults, lasts, seed, leadctl: leadctl.clone(), plant: None };
        let verdict = run.judged().await?;
        println!("{}", table(&verdict));
        verdicts.push(verdict);
    }
    println!("{}", markdown(&verdicts));
    let broken = verdicts.iter().filter(|verdict| !verdict.is_sound() || verdict.is_late());
    match broken.count() {
        0 => Ok(()),
        broken => Err(format!("{broken} of {} are not as they should be", verdicts.len()).into()),
    }
}
