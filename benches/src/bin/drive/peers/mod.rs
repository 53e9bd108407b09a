//! What others have made of the same patterns, each at settings that match ours as nearly as it can.

mod breakers;
mod seatbelt;
mod tower;
mod tower_resilience;

use std::{mem, time::Duration};

use crate::{
    inner::Works,
    subject::{Subject, runtime},
    threads::pair,
};

const ATTEMPT: Duration = Duration::from_secs(10);
const TOTAL: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3600);

pub(crate) fn subjects() -> Vec<Subject> {
    let mut subjects = tower::subjects();
    subjects.extend(tower_resilience::subjects());
    subjects.extend(seatbelt::subjects());
    subjects.extend(breakers::subjects());
    subjects
}

pub(crate) fn shared(inner: Works) -> Vec<[Subject; 2]> {
    let runtime = runtime();
    let in_it = runtime.enter();
    let pairs = vec![
        pair(("recloser", "breaker"), &breakers::last_calls(inner)),
        pair(("tower", "stack of five"), &tower::stack(inner)),
        pair(("best of each", "stack"), &tower::best(inner)),
        pair(("tower-resilience", "stack"), &tower_resilience::stack(inner)),
        pair(("seatbelt", "stack of five"), &seatbelt::stack(inner)),
    ];
    // The task of seatbelt's clock lives in it.
    drop(in_it);
    mem::forget(runtime);
    pairs
}
