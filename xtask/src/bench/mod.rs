//! What our calls cost: the gate, and the comparison with the peers.

mod callgrind;
mod counts;
mod gate;
mod table;

use std::{fs, path::PathBuf};

use self::{
    counts::Row,
    gate::{Baseline, Tools},
    table::Report,
};
use crate::{
    command::Cmd,
    needs,
    steps::{Outcome, Step},
    workspace::{self, Workspace},
};

pub(crate) const PACKAGE: &str = "buttress-benches";

/// The chapter that shows the comparison, and the picture in it.
const CHAPTER: &str = "docs/performance.md";
const PICTURE: &str = "docs/performance.png";

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
    Cmd::cargo(&format!("build --release -p {PACKAGE} --bin drive")).run()?;
    counts::count(&program(workspace, "drive"), &workspace.target().join("callgrind"))
}

/// Measures ours and the peers, prints what came out, and writes it into the docs.
pub(crate) fn run() -> Result<(), String> {
    needs::meet(&[Step::Speed])?;
    let workspace = Workspace::read()?;
    Cmd::cargo(&format!("build --release -p {PACKAGE} --features peers")).run()?;
    let drive = program(&workspace, "drive");
    let said = |program: PathBuf, task: &str| -> Result<String, String> {
        let command = Cmd::new(&program.display().to_string(), task);
        let said = command.output()?;
        if !said.status.success() {
            return Err(format!("`{command}` ended with {}", said.status));
        }
        Ok(String::from_utf8_lossy(&said.stdout).into_owned())
    };
    let report = Report {
        rows: counts::count(&drive, &workspace.target().join("callgrind"))?,
        time: said(drive.clone(), "time")?,
        threads: said(drive, "threads")?,
        memory: said(program(&workspace, "memory"), "")?,
        tools: Tools::read()?,
    };
    let text = report.markdown()?;
    println!("\n{text}");

    let chapter = workspace::root().join(CHAPTER);
    let broken = |error: std::io::Error| format!("{CHAPTER}: {error}");
    let before = fs::read_to_string(&chapter).map_err(broken)?;
    fs::write(&chapter, table::put(&before, &text)?).map_err(broken)?;

    let figures = workspace.target().join("performance.tsv");
    fs::write(&figures, &report.time).map_err(|error| format!("{}: {error}", figures.display()))?;
    let picture = program(&workspace, "picture").display().to_string();
    Cmd::new(&picture, "").arg(figures.display()).arg(PICTURE).run()?;
    println!("written: {CHAPTER}, {PICTURE}");
    Ok(())
}

fn program(workspace: &Workspace, name: &str) -> PathBuf {
    workspace.target().join("release").join(name)
}
