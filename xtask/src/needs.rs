//! What the steps need beside cargo, and how it comes onto the machine.

use crate::{command::Cmd, steps::Step};

/// A program that some steps need.
#[derive(Debug)]
struct Need {
    /// Shows that it is there.
    probe: (&'static str, &'static str),
    from: From,
    /// What for.
    why: &'static str,
    steps: &'static [Step],
    /// Where it cannot be installed, the steps are skipped, and say so.
    spared: bool,
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
        probe: ("cargo", "fmt --version"),
        from: From::Component("rustfmt"),
        why: "it formats the code",
        steps: &[Step::Fmt],
        spared: false,
    },
    Need {
        probe: ("cargo", "clippy --version"),
        from: From::Component("clippy"),
        why: "it lints the code",
        steps: &[Step::Clippy, Step::Features],
        spared: false,
    },
    Need {
        probe: ("cc", "--version"),
        // Most machines link this very program with it: there, `.ci/run` has seen to it before. The package
        // `gcc` only recommends the headers and start files that every link wants.
        from: From::Debian("gcc libc6-dev"),
        why: "it links programs, and compiles the stack switch of loom",
        steps: &[Step::Tests, Step::Loom, Step::Examples, Step::Speed],
        spared: false,
    },
    Need {
        probe: ("valgrind", "--version"),
        from: From::Debian("valgrind"),
        why: "it counts instructions",
        steps: &[Step::Speed],
        spared: true,
    },
    Need {
        probe: ("objdump", "--version"),
        from: From::Debian("binutils"),
        why: "it shows which instructions lock",
        steps: &[Step::Speed],
        spared: true,
    },
];

/// Installs what `steps` need and this machine lacks, or says how to.
pub(crate) fn meet(steps: &[Step]) -> Result<(), String> {
    let wanted = |need: &&Need| need.steps.iter().any(|step| steps.contains(step));
    for need in NEEDS.iter().filter(wanted) {
        let (program, args) = need.probe;
        let probe = Cmd::new(program, args);
        if probe.works() || need.spared && !need.installable() && !on_ci() {
            continue;
        }
        need.install()?;
        if !probe.works() {
            return Err(format!("`{probe}` does not run, although it was installed"));
        }
    }
    Ok(())
}

/// What `step` has to do without.
pub(crate) fn missing(step: Step) -> Option<&'static str> {
    let wanted = NEEDS.iter().filter(|need| need.steps.contains(&step));
    let (program, _) =
        wanted.map(|need| need.probe).find(|(program, args)| !Cmd::new(program, args).works())?;
    Some(program)
}

impl Need {
    fn installable(&self) -> bool {
        match self.from {
            From::Component(_) => true,
            From::Debian(_) => is_root() && Cmd::new("apt-get", "--version").works(),
        }
    }

    fn install(&self) -> Result<(), String> {
        let (program, why) = (self.probe.0, self.why);
        match self.from {
            From::Component(name) => {
                println!("installing the component {name}: {why}");
                Cmd::new("rustup", &format!("component add {name}")).run()
            }
            From::Debian(packages) if is_root() => {
                println!("installing the Debian packages {packages}: {why}");
                Cmd::new("apt-get", "update").run()?;
                Cmd::new("apt-get", &format!("install --yes --no-install-recommends {packages}"))
                    .env("DEBIAN_FRONTEND", "noninteractive")
                    .run()
            }
            From::Debian(packages) => Err(format!(
                "`{program}` is missing, and {why}; run: sudo apt-get install {packages}"
            )),
        }
    }
}

/// Where nobody reads that a step was skipped.
fn on_ci() -> bool {
    std::env::var_os("CI").is_some()
}

fn is_root() -> bool {
    let id = std::process::Command::new("id").arg("-u").output();
    id.is_ok_and(|id| id.stdout.trim_ascii() == b"0")
}
