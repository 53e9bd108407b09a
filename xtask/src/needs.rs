//! What the steps need beside cargo, and how it comes onto the machine.

use crate::{command::Cmd, steps::Step};

/// A program that some steps need.
#[derive(Debug)]
struct Need {
    probe: Probe,
    from: From,
    /// What for.
    why: &'static str,
    steps: &'static [Step],
    /// Where it cannot be installed, the steps are skipped, and say so.
    spared: bool,
}

/// What shows that a program is there.
#[derive(Debug)]
enum Probe {
    /// It runs with these arguments.
    Runs(&'static str, &'static str),
    /// It is not in the path: a line for the shell finds it.
    Found(&'static str, &'static str),
}

#[derive(Debug)]
enum From {
    /// Debian packages.
    Debian(&'static str),
    /// A component of the Rust toolchain.
    Component(&'static str),
}

const NEEDS: &[Need] = &[
    Need {
        probe: Probe::Runs("cargo", "fmt --version"),
        from: From::Component("rustfmt"),
        why: "it formats the code",
        steps: &[Step::Fmt],
        spared: false,
    },
    Need {
        probe: Probe::Runs("cargo", "clippy --version"),
        from: From::Component("clippy"),
        why: "it lints the code",
        steps: &[Step::Clippy, Step::Features],
        spared: false,
    },
    Need {
        probe: Probe::Runs("cc", "--version"),
        // Most machines link this very program with it: there, `.ci/run` has seen to it before. The package
        // `gcc` only recommends the headers and start files that every link wants.
        from: From::Debian("gcc libc6-dev"),
        why: "it links programs, and compiles the stack switch of loom",
        steps: &[Step::Tests, Step::Loom, Step::Examples, Step::Speed],
        spared: false,
    },
    Need {
        // Debian has what all files import in a package of its own.
        probe: Probe::Runs("protoc", "-o/dev/null google/protobuf/descriptor.proto"),
        from: From::Debian("protobuf-compiler libprotobuf-dev"),
        why: "the client of etcd is built with it",
        steps: &[Step::Clippy, Step::Docs, Step::Tests, Step::Features, Step::Examples],
        spared: false,
    },
    Need {
        probe: Probe::Runs("etcd", "--version"),
        from: From::Debian("etcd-server"),
        why: "leases are kept in it",
        steps: &[Step::Tests],
        spared: false,
    },
    Need {
        probe: Probe::Found(
            "postgres",
            "command -v postgres || ls /usr/lib/postgresql/*/bin/postgres",
        ),
        from: From::Debian("postgresql"),
        why: "leases are kept in it",
        steps: &[Step::Tests],
        spared: false,
    },
    Need {
        probe: Probe::Runs("redis-server", "--version"),
        from: From::Debian("redis-server"),
        why: "leases are kept in it",
        steps: &[Step::Tests],
        spared: false,
    },
    Need {
        probe: Probe::Runs("valgrind", "--version"),
        from: From::Debian("valgrind"),
        why: "it counts instructions",
        steps: &[Step::Speed],
        spared: true,
    },
    Need {
        probe: Probe::Runs("objdump", "--version"),
        from: From::Debian("binutils"),
        why: "it shows which instructions lock",
        steps: &[Step::Speed],
        spared: true,
    },
];

/// Installs what `steps` need and this machine lacks, or says how to.
pub(crate) fn meet(steps: &[Step]) -> Result<(), String> {
    let wanted = |need: &&Need| need.steps.iter().any(|step| steps.contains(step));
    let spared = |need: &Need| need.spared && !can_install() && !on_ci();
    let missing = NEEDS.iter().filter(wanted).filter(|need| !need.probe.command().works());
    let missing: Vec<_> = missing.filter(|need| !spared(need)).collect();
    install(&missing)?;
    for probe in missing.iter().map(|need| need.probe.command()) {
        if !probe.works() {
            return Err(format!("`{probe}` does not run, although it was installed"));
        }
    }
    Ok(())
}

/// What `step` has to do without.
pub(crate) fn missing(step: Step) -> Option<&'static str> {
    let wanted = NEEDS.iter().filter(|need| need.steps.contains(&step));
    wanted.map(|need| &need.probe).find(|probe| !probe.command().works()).map(Probe::program)
}

impl Probe {
    const fn program(&self) -> &'static str {
        match self {
            Self::Runs(program, _) | Self::Found(program, _) => program,
        }
    }

    fn command(&self) -> Cmd {
        match self {
            Self::Runs(program, args) => Cmd::new(program, args),
            Self::Found(_, line) => Cmd::new("sh", "-c").arg(line),
        }
    }
}

/// All packages in one go, and where that is not for us to do, all of them in one line.
fn install(missing: &[&Need]) -> Result<(), String> {
    let (mut programs, mut packages) = (Vec::new(), Vec::new());
    for need in missing {
        let (program, why) = (need.probe.program(), need.why);
        match need.from {
            From::Component(name) => {
                println!("installing the component {name}: {why}");
                Cmd::new("rustup", &format!("component add {name}")).run()?;
            }
            From::Debian(names) => {
                programs.push(format!("`{program}` is missing, and {why}"));
                packages.push(names);
            }
        }
    }
    if packages.is_empty() {
        return Ok(());
    }
    let (programs, packages) = (programs.join("; "), packages.join(" "));
    if !can_install() {
        return Err(format!("{programs}; run: sudo apt-get install {packages}"));
    }
    println!("installing the Debian packages {packages}: {programs}");
    Cmd::new("apt-get", "update").run()?;
    Cmd::new("apt-get", &format!("install --yes --no-install-recommends {packages}"))
        .env("DEBIAN_FRONTEND", "noninteractive")
        .run()
}

/// Whether it is for us to install packages.
fn can_install() -> bool {
    is_root() && Cmd::new("apt-get", "--version").works()
}

/// Where nobody reads that a step was skipped.
fn on_ci() -> bool {
    std::env::var_os("CI").is_some()
}

fn is_root() -> bool {
    let id = std::process::Command::new("id").arg("-u").output();
    id.is_ok_and(|id| id.stdout.trim_ascii() == b"0")
}
