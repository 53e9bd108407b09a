//! The long form of the elections on real stores while everything breaks: the tests run a short one.

use crate::{command::Cmd, needs, steps::Step};

/// What is to be run.
#[derive(Debug, clap::Args)]
pub(crate) struct Chaos {
    /// On this store, as `leadctl` names it; on all of them unless set
    #[arg(long)]
    store: Vec<String>,

    /// Break this, as `leadctl` names it; all that can be there unless set
    #[arg(long)]
    fault: Vec<String>,

    /// For so long on each
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,

    /// Begin with this seed: it deals what is broken
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs it, and fails if an election did not keep what it promises.
pub(crate) fn run(chaos: &Chaos) -> Result<(), String> {
    // What stores the tests need.
    needs::meet(&[Step::Tests])?;
    let Chaos { store, fault, seconds, seed } = chaos;
    let run = "run -p buttress-chaos --bin leadctl -- chaos";
    let mut command = Cmd::cargo(&format!("{run} --seconds {seconds} --seed {seed}"));
    let stores = store.iter().map(|store| ("--store", store));
    for (what, which) in stores.chain(fault.iter().map(|fault| ("--fault", fault))) {
        command = command.arg(what).arg(which);
    }
    command.run()
}
