//! How much more two threads do than one, on one shared handle.
//!
//! Two threads that take turns do as much as two that share nothing, and look as good. So only those slices
//! count in which both ran at once, and neither was interrupted.

use std::{
    hint,
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    thread,
    time::Duration,
};

use rustix::time::ClockId;
use tower_service::Service;

use crate::{
    inner::Works,
    subject::{End, Subject},
    time::{clock, in_a_slice, quantile},
};

/// Long beside what it takes to start together, and short beside the time for which a busy machine lets two
/// threads run.
const SLICE: Duration = Duration::from_micros(200);

/// For so long slices are run. On a machine that others use too, few of them count.
const TIME: Duration = Duration::from_millis(1500);

/// How often it is tried again, where too few did.
const PATIENCE: usize = 4;

/// So much of a slice must its thread have had to itself.
const OWN: f64 = 0.9;

/// And so much of it at the same time as the other. Not all: of two that want the same line of a cache, one may
/// well have it more often.
const COMMON: f64 = 0.6;

/// Turns of work in the service inside: none, what decodes a small message, and what makes a small page. A turn takes
/// about a nanosecond.
pub(crate) const WORK: [u32; 3] = [0, 300, 3200];

/// Two clones of one service.
pub(crate) fn pair<S>(who: (&'static str, &'static str), service: &S) -> [Subject; 2]
where
    S: Service<u64, Response = u64, Future: Send> + Clone + Send + 'static,
{
    [(); 2].map(|()| Subject::new("shared", who, End::Answer, || service.clone()))
}

/// Prints, for each that `pairs` makes, what a call takes on one thread, and the throughput of two over that of
/// one, by work inside.
pub(crate) fn threads(pairs: impl Fn(Works) -> Vec<[Subject; 2]>) {
    for turns in WORK {
        for mut pair in pairs(Works(turns)) {
            let calls = in_a_slice(&mut pair[0], SLICE);
            let alone = (0..PATIENCE).find_map(|_| run(&mut pair[..1], calls));
            let both = (0..PATIENCE).find_map(|_| run(&mut pair, calls));
            let Subject { maker, form, .. } = pair[0];
            let (Some(alone), Some(both)) = (alone, both) else {
                println!("{turns}\t{maker}\t{form}\t\t");
                continue;
            };
            let ns = alone * 1e9 / calls as f64;
            println!("{turns}\t{maker}\t{form}\t{ns:.1}\t{:.2}", 2.0 * alone / both);
        }
    }
}

/// When a slice began and ended, and what its thread had of it.
#[derive(Clone, Copy)]
struct Slice {
    start: Duration,
    end: Duration,
    cpu: Duration,
}

/// The median of the seconds that an undisturbed slice took, with each subject in a thread of its own. `None`
/// if there were too few.
fn run(subjects: &mut [Subject], calls: u64) -> Option<f64> {
    let count = subjects.len();
    let until = clock(ClockId::Monotonic) + TIME;
    let (arrived, last) = (AtomicUsize::new(0), AtomicUsize::new(usize::MAX));
    let slice = |subject: &mut Subject, n: usize| {
        if clock(ClockId::Monotonic) > until {
            // Nobody is beyond this slice, so that everybody ends with it.
            last.fetch_min(n, SeqCst);
        }
        arrived.fetch_add(1, SeqCst);
        while arrived.load(SeqCst) < (n + 1) * count {
            // Not a yield: whoever has gone is seldom there when the other comes.
            hint::spin_loop();
        }
        if n >= last.load(SeqCst) {
            return None;
        }
        let (start, cpu) = (clock(ClockId::Monotonic), clock(ClockId::ThreadCPUTime));
        subject.drive(calls);
        let cpu = clock(ClockId::ThreadCPUTime) - cpu;
        Some(Slice { start, end: clock(ClockId::Monotonic), cpu })
    };
    let slice = &slice;
    let of_threads: Vec<Vec<Slice>> = thread::scope(|scope| {
        let mut threads = Vec::new();
        for subject in subjects {
            threads.push(
                scope.spawn(move || {
                    (0..).map_while(|n| slice(&mut *subject, n)).collect::<Vec<_>>()
                }),
            );
        }
        threads.into_iter().map(|thread| thread.join().expect("a call does not panic")).collect()
    });
    let slices = 0..of_threads[0].len();
    let at_once = slices.map(|n| of_threads.iter().map(|slices| slices[n]).collect::<Vec<_>>());
    let whole: Vec<_> = at_once.filter_map(|slices| undisturbed(&slices)).collect();
    (whole.len() >= 10).then(|| quantile(whole, 0.5))
}

/// The harmonic mean of the lengths of slices that ran at once, since it is rates that add up. `None` if they
/// were disturbed.
fn undisturbed(slices: &[Slice]) -> Option<f64> {
    let last_start = slices.iter().map(|slice| slice.start).max()?;
    let first_end = slices.iter().map(|slice| slice.end).min()?;
    let common = first_end.saturating_sub(last_start).as_secs_f64();
    let mut rates = 0.0;
    for slice in slices {
        let length = (slice.end - slice.start).as_secs_f64();
        if common < COMMON * length || slice.cpu.as_secs_f64() < OWN * length {
            return None;
        }
        rates += 1.0 / length;
    }
    Some(slices.len() as f64 / rates)
}
