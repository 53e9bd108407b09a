//! Nanoseconds a call, on one thread.
//!
//! They move with the machine, so what is told is mostly ratios within one run: all subjects take turns, in
//! slices that are short beside whatever disturbs them, and each round gives one ratio. The clock is the CPU
//! time of this thread, which stands still while another program runs.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::subject::Subject;

/// What a subject runs for in a round.
const SLICE: Duration = Duration::from_millis(1);

/// Prints nanoseconds a call of each subject, and how many of them ours takes for one of its own.
pub(crate) fn time(mut subjects: Vec<Subject>, rounds: usize) {
    let calls: Vec<_> = subjects.iter_mut().map(|subject| in_a_slice(subject, SLICE)).collect();
    let mut took = vec![Vec::with_capacity(rounds); subjects.len()];
    for _ in 0..rounds {
        for ((subject, took), &calls) in subjects.iter_mut().zip(&mut took).zip(&calls) {
            let start = clock(ClockId::ThreadCPUTime);
            subject.drive(calls);
            let slice = clock(ClockId::ThreadCPUTime) - start;
            took.push(slice.as_nanos() as f64 / calls as f64);
        }
    }
    for (subject, own) in subjects.iter().zip(&took) {
        let ours = subjects.iter().position(|ours| subject.is_compared_with(ours));
        let ratio = ours.map(|ours| {
            let ratios = took[ours].iter().zip(own).map(|(ours, own)| ours / own);
            quantile(ratios.collect(), 0.5)
        });
        let Subject { path, maker, form, .. } = subject;
        let ns = quantile(own.clone(), 0.2);
        let ratio = ratio.map(|ratio| format!("{ratio:.3}")).unwrap_or_default();
        println!("{path}\t{maker}\t{form}\t{ns:.2}\t{ratio}");
    }
}

/// How many calls fill a slice. By the clock on the wall: one that waits for a timer shall not wait for long.
pub(crate) fn in_a_slice(subject: &mut Subject, slice: Duration) -> u64 {
    let mut took = |calls| {
        let start = clock(ClockId::Monotonic);
        subject.drive(calls);
        clock(ClockId::Monotonic) - start
    };
    let mut calls = 1;
    // Not once but each time: what interrupts one run makes it look long.
    while (0..5).any(|_| took(calls) * 2 < slice) {
        calls *= 2;
    }
    calls
}

pub(crate) fn clock(id: ClockId) -> Duration {
    let now = clock_gettime(id);
    // Neither clock is ever negative.
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// The value below which a share of `values` lies.
pub(crate) fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share) as usize]
}
