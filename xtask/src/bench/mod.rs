//! What our calls cost: the gate, and the comparison with the peers.

mod callgrind;
mod counts;
mod gate;

use self::{
    counts::Row,
    gate::{Baseline, Tools},
};
use crate::{
    command::Cmd,
    needs,
    steps::{Outcome, Step},
    workspace::Workspace,
};

/// The gate: no path of ours may cost more than its record says. Peers are not built.
pub(crate) fn step(workspace: &Workspace) -> Outcome {
    if let Some(missing) = needs::missing(Step::Speed) {
        return Ok(format!("SKIPPED: there is no {missing} on this machine"));
    }
    let rows = ours(workspace)?;
    let judgement = gate::judge(&Baseline::read()?, &Tools::read()?, &rows);
    for line in judgement.notes.iter().chain(&judgement.faults) {
        println!("{line}");
    }
    match (judgement.faults.len(), judgement.notes.len()) {
        (0, 0) => Ok(format!("{} paths", rows.len())),
        (0, _) => Ok(format!("{} paths, and there is more to say: see above", rows.len())),
        (faults, _) => Err(format!(
            "{faults} counts have grown, shown above; if that is the price of something, say so in the commit \
             that moves the record: {}",
            gate::RECORD
        )),
    }
}

/// Makes what our paths cost now the record.
pub(crate) fn record() -> Result<(), String> {
    needs::meet(&[Step::Speed])?;
    let rows = ours(&Workspace::read()?)?;
    Baseline::new(Tools::read()?, &rows).write()?;
    println!("{} paths are in {}", rows.len(), gate::FILE);
    Ok(())
}

/// Counts our own subjects, with nothing built but what is ours.
fn ours(workspace: &Workspace) -> Result<Vec<Row>, String> {
    Cmd::cargo("build --release -p buttress-benches --bin drive").run()?;
    let drive = workspace.target().join("release").join("drive");
    counts::count(&drive, &workspace.target().join("callgrind"))
}
