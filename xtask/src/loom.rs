//! The loom models: every interleaving of what threads share, and not only those that a test happens on.

use cargo_metadata::Package;

use crate::{
    command::Cmd,
    steps::{Outcome, passed},
    workspace::Workspace,
};

/// The crates that keep atomics or locks of their own, and so have models, in a module named `loom`.
const CRATES: &[&str] = &[
    "buttress-breaker",
    "buttress-bulkhead",
    "buttress-core",
    "buttress-leadership",
    "buttress-retry",
];

/// Runs the models of each crate.
///
/// The flag swaps atomics in our crates and turns on the dependency, so the folder is apart. The models are
/// optimised, since loom runs them many thousand times, but in the dev profile: debug assertions stay on, and
/// nothing waits for the release profile's link-time optimisation.
pub(crate) fn step(workspace: &Workspace) -> Outcome {
    let of_loom = |package: &&Package| package.dependencies.iter().any(|to| to.name == "loom");
    for package in workspace.members().into_iter().filter(of_loom) {
        if !CRATES.contains(&package.name.as_str()) {
            return Err(format!(
                "{} depends on loom and is not on the list in xtask/src/loom.rs: add it",
                package.name
            ));
        }
    }

    let target = workspace.target().join("loom");
    let mut total = 0;
    for name in CRATES {
        let mut models = 0;
        Cmd::cargo(&format!("test -p {name} --lib --config profile.dev.opt-level=2 -- loom"))
            .flags("RUSTFLAGS", "--cfg buttress_loom")
            .env("CARGO_TARGET_DIR", target.display().to_string())
            .read(|line| models += passed(line).unwrap_or(0))?;
        if models == 0 {
            return Err(format!(
                "{name} ran no loom model: put some into a module named `loom`, or take it off the list in \
                 xtask/src/loom.rs"
            ));
        }
        total += models;
    }
    Ok(format!("{total} models"))
}
