use std::time::Duration;

use buttress_core::{BoxError, Deadline, Elapsed, InvalidSetting, Limit, Reason, Rejected, edge};
use tokio::time::Instant;

/// Until when a call may take, and whose limit that is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    start: Instant,
    until: Option<Deadline>,
    which: Limit,
    /// Whether it is not our own limit, but a deadline that was found.
    is_inherited: bool,
    /// Whether the request's deadline has been looked for where it would be.
    is_settled: bool,
    /// Whether it was over before there was a call.
    is_refused: bool,
}

impl Bound {
    /// A limit that starts now, or what is left of the request's deadline where that is less.
    #[inline]
    pub(crate) fn start(limit: Duration, which: Limit) -> Self {
        let start = edge::called();
        let until = Deadline::from_now(start, limit);
        let mut bound =
            Self { start, until, which, is_inherited: false, is_settled: false, is_refused: false };
        bound.is_settled = bound.inherit();
        // A limit of our own is more than zero.
        bound.is_refused =
            bound.is_inherited && bound.until.is_some_and(|until| until.has_passed(start));
        bound
    }

    /// Looks for the request's deadline at the first poll, if it was not there in `call`: a buffer calls in
    /// a task of its own, and only polls come from where the request is.
    #[inline]
    pub(crate) fn settle(&mut self) -> Option<Deadline> {
        if !self.is_settled {
            self.inherit();
            self.is_settled = true;
        }
        self.until
    }

    /// Obeys the request's deadline, if there is one. At the same instant it is the deadline that ends
    /// the call: nothing may follow.
    #[inline]
    fn inherit(&mut self) -> bool {
        let Some(deadline) = Deadline::current() else { return false };
        if self.until.is_none_or(|until| deadline <= until) {
            self.until = Some(deadline);
            self.which = Limit::Total;
            self.is_inherited = true;
        }
        true
    }

    /// `None` is never.
    pub(crate) const fn until(&self) -> Option<Deadline> {
        self.until
    }

    /// Whether there was no time at all, not even for a call.
    #[inline]
    pub(crate) const fn is_refused(&self) -> bool {
        self.is_refused
    }

    /// What to answer when the time is up.
    #[cold]
    pub(crate) fn error(&self, is_sent: bool, layer: &'static str) -> BoxError {
        if self.which == Limit::Total && !is_sent {
            let reason = Reason::DeadlineExceeded;
            tracing::debug!(layer, %reason, "refused");
            return Rejected::new(reason, layer).into();
        }
        // Without an instant there is no end, and nobody asks.
        let limit = self.until.map_or(Duration::MAX, |until| match self.is_inherited {
            true => until.limit_from(self.start),
            false => until.left(self.start),
        });
        let elapsed = Elapsed::new(self.which, limit);
        let elapsed = if is_sent { elapsed } else { elapsed.unsent() };
        tracing::debug!(layer, which = ?self.which, ?limit, sent = elapsed.sent(), "time ran out");
        elapsed.into()
    }
}

/// Panics over a limit of zero, which would end every call before it began.
#[track_caller]
pub(crate) const fn assert_more_than_zero(limit: Duration) -> Duration {
    assert!(
        !limit.is_zero(),
        "a limit must be more than zero: to have none, leave the layer out or give it `Duration::MAX`"
    );
    limit
}

/// Refuses it, by name.
pub(crate) fn more_than_zero(
    setting: &'static str,
    limit: Duration,
) -> Result<Duration, InvalidSetting> {
    if limit.is_zero() {
        return Err(InvalidSetting::new(setting, "must be more than zero"));
    }
    Ok(limit)
}
