//! All times, in one place: shortened, so that it is over in half a minute. Who takes them along takes the defaults
//! instead, which the comments tell.

use std::time::Duration;

use buttress::{BreakerSettings, LeaseConfig, LeaseName, leadership::ResignPolicy};

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// What is led.
pub(crate) const NAME: &str = "ledger";

/// How long a lease is. 15 s by default.
pub(crate) const LEASE: Duration = millis(3_000);
/// 5 s by default.
const RENEW: Duration = millis(1_000);
/// 1 s by default.
const RETRY: Duration = millis(250);
/// 2.5 s by default.
const OPERATION: Duration = millis(500);
/// How long a call to the store waits for other processes. 1 s by default.
pub(crate) const BUSY: Duration = millis(200);
/// How long a leader that left does not come back. 30 s by default.
const COOL_DOWN: Duration = millis(2_000);

/// For how long what a leader needs is ill before it leaves. What a hand-over takes by default, and 2 s at least.
const RESIGN_AFTER: Duration = millis(1_000);
/// How long a leader stays at least. 30 s by default.
const MIN_TERM: Duration = millis(1_000);
/// For how long all that a leader needs is well before one stands for election. 5 s by default.
const ELIGIBLE_AFTER: Duration = millis(3_000);

/// How long one call to the ledger may take.
pub(crate) const ATTEMPT: Duration = millis(500);
/// For how long the breaker spares it. 5 s by default.
const OPEN: Duration = millis(1_000);
/// What a leader does before it writes.
pub(crate) const WORK: Duration = millis(200);

/// A write is asked for so often.
pub(crate) const EVERY: Duration = millis(50);
/// How long whoever asks waits.
pub(crate) const PATIENCE: Duration = millis(1_000);

pub(crate) fn lease(name: LeaseName) -> LeaseConfig {
    LeaseConfig::new(name)
        .lease_duration(LEASE)
        .renew_interval(RENEW)
        .retry_period(RETRY)
        .operation_timeout(OPERATION)
        .drain(millis(1_000), millis(100))
        .cooldown(COOL_DOWN, COOL_DOWN)
}

/// When a leader leaves, but for the signals.
pub(crate) fn policy() -> ResignPolicy {
    ResignPolicy::new().resign_after(RESIGN_AFTER).min_term(MIN_TERM).eligible_after(ELIGIBLE_AFTER)
}

/// A leader's breaker: five failures in a row open it.
pub(crate) fn breaker() -> BreakerSettings {
    BreakerSettings::quiet().name(NAME).open(OPEN).open_max(OPEN * 2)
}

/// For the reader of what follows.
pub(crate) fn introduction(place: &str) -> String {
    let seconds = |time: Duration| format!("{} s", time.as_secs_f64());
    let [lease, renew, retry, attempt, resign, work, every] =
        [LEASE, RENEW, RETRY, ATTEMPT, RESIGN_AFTER, WORK, EVERY].map(seconds);
    format!(
        "Three candidates, a process each, over {place}. Times are shortened:\n\
         \x20 lease    {lease}, renewed every {renew}; candidates look every {retry}\n\
         \x20 breaker  opens after 5 failures in a row; a call may take {attempt}\n\
         \x20 leader   resigns once its breaker has been open for {resign}\n\
         \x20 writes   one every {every}, to A, B and C in turn, which send to the leader;\n\
         \x20          each takes the leader {work}\n\
         \x20 ledger   refuses a fence that is less than one it has seen\n"
    )
}
