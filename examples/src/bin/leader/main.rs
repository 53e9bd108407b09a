//! Three candidates and one leader, whom things happen to: it cannot reach what it writes to, it is killed, it is
//! stopped for longer than its lease. All the while requests come in, and whatever is written is checked.
//!
//! Each candidate is a process of its own ([`candidate`]: that is the file to copy from), and they elect their leader
//! over one SQLite file, or [whatever there is](store). What they write to, the [`ledger`], is in this process, as are those who ask: so it sees
//! everything, and by one clock, which all processes of a machine share.
//!
//! ```text
//! cargo run --release -p buttress-examples --bin leader
//! cargo run --release -p buttress-examples --bin leader -- --store redis --url redis://127.0.0.1/
//! ```

mod asking;
mod candidate;
mod history;
mod ledger;
mod live;
mod process;
mod said;
mod script;
mod settings;
mod stage;
mod store;
mod table;
mod timeline;

use std::{net::SocketAddr, process::ExitCode};

use buttress::BoxError;
use buttress_examples::cli::{self, INTERRUPTED, interrupted, say};
use clap::Parser;

use crate::{live::Live, stage::Stage, store::Leases};

/// Shows what becomes of a leader that cannot do its job, is killed, or stands still.
///
/// Starts three candidates on loopback, each in a process of its own, which elect a leader over one store, sends them
/// writes, and breaks the leader in three ways, one after the other. Shows on a timeline who leads, and prints a
/// table of what came of it. Takes half a minute.
#[derive(Debug, Parser)]
#[command(name = "leader", version)]
struct Options {
    #[command(flatten)]
    leases: Leases,

    /// Be a candidate, with the ledger there.
    #[arg(long, hide = true, requires = "url")]
    ledger: Option<SocketAddr>,
}

fn main() -> ExitCode {
    let options: Options = match cli::parse() {
        Ok(options) => options,
        Err(code) => return code,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let end = runtime.map_err(Into::into).and_then(|runtime| match options {
        Options { leases, ledger: Some(ledger) } => {
            runtime.block_on(candidate::run(leases, ledger)).map(|()| ExitCode::SUCCESS)
        }
        Options { leases, ledger: None } => runtime.block_on(show(leases)),
    });
    end.unwrap_or_else(|error| {
        cli::complain(format_args!("error: {error}"));
        ExitCode::FAILURE
    })
}

/// Plays the script and shows what came of it. Whatever happens, no candidate is left when this returns.
async fn show(leases: Leases) -> Result<ExitCode, BoxError> {
    say(settings::introduction(leases.place()))?;
    let mut stage = Stage::open(leases).await?;
    let mut live = Live::new(stage.history.clone());
    let played = tokio::select! {
        played = script::play(&mut stage) => played.map(Some),
        shown = live.run() => shown.map(|never| match never {}).map_err(Into::into),
        () = interrupted() => Ok(None),
    };
    let history = stage.close(matches!(played, Ok(Some(())))).await;
    live.finish()?;
    if played?.is_none() {
        return Ok(ExitCode::from(INTERRUPTED));
    }
    say(table::table(&history))?;
    if history.is_sound() {
        Ok(ExitCode::SUCCESS)
    } else {
        Err("that is not what it should show".into())
    }
}
