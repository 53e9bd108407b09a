use std::{fmt, time::Duration};

use buttress_core::{CloneReplay, ErrorsAsFailures, InvalidSetting};
use tower_layer::Layer;

use crate::{
    Backoff, Budget, RetryService, RetrySettings, machine::Schedule, settings::check_attempts,
};

/// Sends a request again that failed, within bounds. See the [crate](crate) for what they are.
///
/// | after an attempt | what happens |
/// |---|---|
/// | it succeeded | the budget earns a share of a token, the answer is returned |
/// | it failed, and the class says that a repeat cannot help | the answer is returned |
/// | it failed, and the request may have been carried out but must not be twice | the answer is returned |
/// | one of our own layers refused it (an open breaker, a full bulkhead) | never repeated, no wait |
/// | no attempt, no token, no copy, or no time is left | the answer is returned at once, as it is |
/// | else | the answer is let go of, a wait is drawn, the request is sent again as it entered |
///
/// What a failed attempt says is for the [classifier](Self::classify), whether and how a request is sent
/// again for the [replay](Self::replay). Without them every error may pass and every request may be sent
/// twice, as a clone.
///
/// # The last answer
///
/// What is returned is the last attempt's own response or error, by value, unless that is a word of our own that
/// the attempt was *not sent*: a refusal, as when a breaker has opened meanwhile, or an
/// [`Elapsed`](buttress_core::Elapsed) while the callee was not ready. Then the error of the attempt before it is
/// returned: it tells what is wrong, and not only that we stopped asking. Where that attempt was answered by a
/// response, which is gone, a [`Both`](buttress_core::Both) of our word and of [`Attempted`](crate::Attempted) is
/// returned. So a [`Rejected`](buttress_core::Rejected) that comes by itself means that nothing was ever sent.
///
/// An error of *readiness* ends the request as it is.
///
/// # One retry in charge
///
/// A retry numbers its attempts in the request's [`Context`](buttress_core::Context). One that finds itself
/// within another's attempt sends the request once and leaves repeating, and the budget, to the outer one: three
/// attempts over three make three, not nine. Whatever starts new work clears the mark, as the layers of a
/// server do. A `Buffer` between two retries loses it.
///
/// A retry that cannot repeat a request, because nothing of it can be kept or because one attempt is all there
/// are, does not take charge of it: one beneath may.
///
/// # Readiness
///
/// The service asks for `S: Clone` and is ready at once. What the inner service has to be waited for is
/// waited for in the response future, before each attempt anew, until the deadline in the request's
/// [`Context`](buttress_core::Context) at the latest: then nothing is sent any more. If nothing was before, the
/// answer is a [`Rejected`](buttress_core::Rejected) for
/// [`DeadlineExceeded`](buttress_core::Reason::DeadlineExceeded). A deadline layer above speaks first.
///
/// A first attempt that has to wait is made by a clone of its own, and so are all later attempts together. Where the
/// first did not have to wait, the later ones' is a clone of one idle instance, which all clones of the service share:
/// itself a clone, made at the first call that may be repeated. What a service keeps by value, as which host is next,
/// moves on from the second attempt to the third, and begins anew with the next request: what all requests are to move
/// belongs behind an `Arc`.
///
/// # Panics
///
/// The response future panics if it has to wait, for the next attempt or with a deadline for readiness, outside
/// of a tokio runtime with timers.
///
/// # Cancel safety
///
/// A response future may be dropped at any time. The token of an attempt that was not sent returns to the
/// budget in that instant.
#[derive(Clone)]
#[must_use = "a layer does nothing until it wraps a service"]
pub struct RetryLayer<C = ErrorsAsFailures, R = CloneReplay> {
    policy: Policy<C, R>,
}

/// What all calls of one layer have in common.
#[derive(Clone)]
pub(crate) struct Policy<C, R> {
    pub(crate) schedule: Schedule,
    pub(crate) budget: Budget,
    pub(crate) independent: bool,
    pub(crate) classify: C,
    pub(crate) replay: R,
}

// === impl RetryLayer ===

impl RetryLayer {
    /// Three attempts in all, with these waits, within this budget.
    ///
    /// Give all clients of one callee a clone of the same [`Budget`], and each callee its own.
    pub fn new(backoff: Backoff, budget: Budget) -> Self {
        let schedule = Schedule {
            attempts: RetrySettings::ATTEMPTS,
            backoff,
            max_retry_after: RetrySettings::MAX_RETRY_AFTER,
        };
        let policy = Policy {
            schedule,
            budget,
            independent: false,
            classify: ErrorsAsFailures,
            replay: CloneReplay,
        };
        Self { policy }
    }

    /// The layer that the settings describe.
    ///
    /// # Errors
    ///
    /// If there are no `attempts`, or `base` is longer than `cap`.
    pub fn from_settings(settings: &RetrySettings, budget: Budget) -> Result<Self, InvalidSetting> {
        Self::new(settings.backoff()?, budget)
            .max_retry_after(settings.max_retry_after)
            .try_attempts(settings.attempts)
    }
}

impl<C, R> RetryLayer<C, R> {
    /// Sets how many attempts are made in all, the first one too. One never repeats.
    ///
    /// For a fresh client to be able to make all of them, the budget's
    /// [reserve](crate::BudgetSettings::reserve) must be one less.
    ///
    /// # Panics
    ///
    /// If it is zero; see [`try_attempts`](Self::try_attempts).
    #[track_caller]
    pub fn attempts(self, attempts: u32) -> Self {
        match self.try_attempts(attempts) {
            Ok(layer) => layer,
            Err(error) => panic!("{error}"),
        }
    }

    /// The same as [`attempts`](Self::attempts), for values that come from elsewhere.
    ///
    /// # Errors
    ///
    /// If it is zero.
    pub fn try_attempts(mut self, attempts: u32) -> Result<Self, InvalidSetting> {
        check_attempts(attempts)?;
        self.policy.schedule.attempts = attempts;
        Ok(self)
    }

    /// Sets what tells how an attempt ended.
    pub fn classify<T>(self, classify: T) -> RetryLayer<T, R> {
        let Policy { schedule, budget, independent, classify: _, replay } = self.policy;
        RetryLayer { policy: Policy { schedule, budget, independent, classify, replay } }
    }

    /// Sets what makes the copies of a request, and lets go of a response.
    pub fn replay<T>(self, replay: T) -> RetryLayer<C, T> {
        let Policy { schedule, budget, independent, classify, replay: _ } = self.policy;
        RetryLayer { policy: Policy { schedule, budget, independent, classify, replay } }
    }

    /// Sets the longest wait that a callee may ask for (`Retry-After` in HTTP): 60 s.
    ///
    /// Where it asks for more, its answer is returned at once: to come earlier than asked would be a
    /// repeat that is known to fail. With zero, no wait that is asked for is made. [`Duration::MAX`] leaves it
    /// to the deadline.
    pub fn max_retry_after(mut self, after: Duration) -> Self {
        self.policy.schedule.max_retry_after = after;
        self
    }

    /// Repeats even within another retry's attempt: three attempts over three make nine.
    ///
    /// For an inner retry whose failures are its own, as one that goes to another replica while the outer one
    /// repeats a whole transaction.
    pub fn independent(mut self) -> Self {
        self.policy.independent = true;
        self
    }
}

impl<S, C: Clone, R: Clone> Layer<S> for RetryLayer<C, R> {
    type Service = RetryService<S, C, R>;

    fn layer(&self, inner: S) -> Self::Service {
        RetryService::new(inner, self.policy.clone())
    }
}

impl<C, R> fmt::Debug for RetryLayer<C, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryLayer").field("policy", &self.policy).finish()
    }
}

// === impl Policy ===

// By hand: classifiers are often closures, which are not `Debug`.
impl<C, R> fmt::Debug for Policy<C, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("schedule", &self.schedule)
            .field("budget", &self.budget)
            .field("independent", &self.independent)
            .finish_non_exhaustive()
    }
}
