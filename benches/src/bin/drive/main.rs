//! Drives the subjects, for `cargo xtask bench` and the gate in `cargo xtask test` to measure.
//!
//! Each is a service around a trivial one, and each goes through the same loop: ready, call, and the answer.
//! What this program prints is for programs: a line for each subject, with tabs in it.

mod inner;
mod ours;
mod path;
#[cfg(feature = "peers")]
mod peers;
mod subject;
mod threads;
mod time;

use std::{env, process::ExitCode};

use crate::{inner::Works, subject::Subject};

/// So many calls go before, for what is made once.
const WARM: u64 = 2000;

/// Two lengths, so that what a run costs beside its calls can be subtracted.
const LENGTHS: [u64; 2] = [1000, 11_000];

fn main() -> ExitCode {
    match env::args().nth(1).as_deref() {
        Some("count") => count(subjects()),
        Some("time") => time::time(subjects(), 300),
        Some("threads") => threads::threads(shared),
        _ => {
            eprintln!("error: drive is for `cargo xtask bench`, which tells it what to do");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

fn subjects() -> Vec<Subject> {
    #[allow(unused_mut, reason = "without peers there are ours alone")]
    let mut subjects = ours::subjects();
    #[cfg(feature = "peers")]
    subjects.extend(peers::subjects());
    subjects
}

/// What is shared between threads.
fn shared(inner: Works) -> Vec<[Subject; 2]> {
    #[allow(unused_mut, reason = "without peers there are ours alone")]
    let mut pairs = ours::shared(inner);
    #[cfg(feature = "peers")]
    pairs.extend(peers::shared(inner));
    pairs
}

/// Runs under callgrind, which writes down what has happened since the last time at each [`cut`]: three files
/// a subject, the last two with so many calls as stand in its line.
fn count(subjects: Vec<Subject>) {
    for mut subject in subjects {
        let Subject { path, maker, form, end, service, future, .. } = subject;
        let [short, long] = LENGTHS;
        println!("{path}\t{maker}\t{form}\t{end}\t{service}\t{future}\t{short}\t{long}");
        subject.drive(WARM);
        cut();
        for calls in LENGTHS {
            subject.drive(calls);
            cut();
        }
    }
}

/// Known to callgrind by its name.
#[inline(never)]
fn cut() {
    std::hint::black_box(());
}
