use std::{borrow::Cow, error::Error, fmt, io, time::Duration};

use tokio::time::Instant;

use crate::edge;

use crate::FencingToken;

/// What services of a composed stack fail with, as in tower, hyper, tonic and axum.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// One of our layers refused: **the callee never saw this request**.
///
/// It is one type for all refusals, so that layers recognise each other's: a refusal is not repeated
/// and says nothing of the callee's health.
///
/// ```
/// use buttress_core::{Reason, Rejected};
/// use std::time::Duration;
///
/// let rejected = Rejected::new(Reason::CircuitOpen, "breaker").retry_in(Duration::from_secs(5));
/// assert_eq!(rejected.to_string(), "refused by breaker: circuit open, try again in 5s");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Rejected {
    reason: Reason,
    layer: &'static str,
    again: Again,
}

/// When it is worth asking again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    NobodyKnows,
    In(Duration),
    At(Instant),
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The callee is ill, and is spared for a while.
    CircuitOpen,
    /// As many calls as may be are in flight, and there is no place to wait.
    BulkheadFull,
    /// The server has more work than it can do in time.
    Overloaded,
    /// There was no time left to send it.
    DeadlineExceeded,
    /// This process does not hold the lease.
    NotLeader,
    /// This process is the one to ask, and what it needs is ill: no other would do better.
    Degraded,
    /// The caller's rate is used up.
    RateLimited,
    /// The process is about to stop.
    Draining,
}

/// Time ran out: **the outcome is unknown**, for the request may have been carried out.
///
/// (Unless it says that it was [not sent](Elapsed::sent): then the callee did not even become ready.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Elapsed {
    which: Limit,
    limit: Duration,
    sent: bool,
}

/// Which limit it was that passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Limit {
    /// One attempt's. Another may follow.
    Attempt,
    /// The whole request's.
    Total,
    /// The wait for the next frame of a body. The answer had begun to come.
    Idle,
    /// The wait for a connection. Whatever was to go over it was not sent.
    Connect,
}

/// The leader's term was over before the call was: **the outcome is unknown**, for the request may have been
/// carried out.
///
/// What was sent was sent with the term's token, by which a resource can tell that it comes too late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct TermOver {
    fence: FencingToken,
}

/// Two errors, neither of which may be lost: the one that ended it, and the one that led to it.
///
/// The [source](Error::source) is the first; [`find`] looks into both.
#[derive(Debug)]
pub struct Both {
    error: BoxError,
    cause: BoxError,
}

/// A setting that cannot work, named.
///
/// ```
/// use buttress_core::InvalidSetting;
///
/// let error = InvalidSetting::new("ratio", "must be a number from 0 to 10");
/// assert_eq!(error.to_string(), "invalid setting `ratio`: must be a number from 0 to 10");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidSetting {
    setting: Cow<'static, str>,
    must: Cow<'static, str>,
}

/// Looks for an error of type `E`: the error itself, or any that lies beneath it.
///
/// It walks the whole chain of [sources](Error::source), looks into both halves of a [`Both`], and into
/// what an [`io::Error`] carries, which `source` alone would step over.
pub fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        if let Some(both) = error.downcast_ref::<Both>() {
            return find(&*both.error).or_else(|| find(&*both.cause));
        }
        next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(carried) => Some(carried),
            None => error.source(),
        };
    }
    None
}

// === impl Rejected ===

impl Rejected {
    /// A refusal by the layer of that name.
    pub const fn new(reason: Reason, layer: &'static str) -> Self {
        Self { reason, layer, again: Again::NobodyKnows }
    }

    /// The same, with the time after which it is worth asking again.
    pub const fn retry_in(mut self, after: Duration) -> Self {
        self.again = Again::In(after);
        self
    }

    /// The same, with the instant from which on it is worth asking again. So the clock is read by whoever wants to
    /// know how long that is, and by nobody else.
    pub const fn retry_at(mut self, at: Instant) -> Self {
        self.again = Again::At(at);
        self
    }

    /// Why it was refused.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// The layer that refused it.
    #[must_use]
    pub const fn layer(&self) -> &'static str {
        self.layer
    }

    /// After how long it is worth asking again, where the layer knows. If that is a matter of an instant, it is less
    /// the later one asks, and zero in the end.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.again {
            Again::NobodyKnows => None,
            Again::In(after) => Some(after),
            Again::At(at) => Some(at.saturating_duration_since(edge::now())),
        }
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refused by {}: {}", self.layer, self.reason)?;
        match self.retry_after() {
            Some(after) => write!(f, ", try again in {after:?}"),
            None => Ok(()),
        }
    }
}

impl Error for Rejected {
    /// What it is to gRPC, so that tonic finds it.
    #[cfg(feature = "tonic")]
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(crate::status::of_refusal(self.reason))
    }
}

// === impl Reason ===

impl Reason {
    /// The reason as a short name, for events and labels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CircuitOpen => "circuit open",
            Self::BulkheadFull => "bulkhead full",
            Self::Overloaded => "overloaded",
            Self::DeadlineExceeded => "deadline exceeded",
            Self::NotLeader => "not leader",
            Self::Degraded => "degraded",
            Self::RateLimited => "rate limited",
            Self::Draining => "draining",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// === impl Elapsed ===

impl Elapsed {
    /// The limit that passed, while an answer was waited for, or, with [`Limit::Connect`], a connection to
    /// send something over.
    pub const fn new(which: Limit, limit: Duration) -> Self {
        Self { which, limit, sent: !matches!(which, Limit::Connect) }
    }

    /// The same, while the callee was not even ready: nothing was sent.
    pub const fn unsent(mut self) -> Self {
        self.sent = false;
        self
    }

    /// Whose limit it was: the attempt's, the whole request's, that of a body which fell silent, or that of a
    /// connection which did not come about.
    #[must_use]
    pub const fn which(&self) -> Limit {
        self.which
    }

    /// How long the limit was.
    #[must_use]
    pub const fn limit(&self) -> Duration {
        self.limit
    }

    /// Whether the request was handed over. If so, it may have been carried out.
    ///
    /// It is true of *some* call: whoever wrote, and then failed to ask another, may have handed on the other's
    /// error as it was. So no classifier of ours takes it for a proof that a request may be sent again.
    #[must_use]
    pub const fn sent(&self) -> bool {
        self.sent
    }
}

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (which, missing) = match self.which {
            Limit::Attempt => ("attempt", "no answer"),
            Limit::Total => ("request", "no answer"),
            Limit::Idle => ("body", "nothing came"),
            Limit::Connect => ("connect", "no connection"),
        };
        let is_ready = self.sent || self.which == Limit::Connect;
        let waited_for = if is_ready { missing } else { "not ready" };
        write!(f, "{which} timed out: {waited_for} within {:?}", self.limit)
    }
}

impl Error for Elapsed {
    /// What it is to gRPC, so that tonic finds it.
    #[cfg(feature = "tonic")]
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(crate::status::of_elapsed())
    }
}

// === impl TermOver ===

impl TermOver {
    /// The term of that token was over.
    pub const fn new(fence: FencingToken) -> Self {
        Self { fence }
    }

    /// The token of the term.
    #[must_use]
    pub const fn fence(&self) -> FencingToken {
        self.fence
    }
}

impl fmt::Display for TermOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the leader's term {} was over before the call was", self.fence)
    }
}

impl Error for TermOver {
    /// What it is to gRPC, so that tonic finds it.
    #[cfg(feature = "tonic")]
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(crate::status::of_term_over())
    }
}

// === impl Both ===

impl Both {
    /// `error` ended it, `cause` led to it.
    #[must_use]
    pub fn new(error: impl Into<BoxError>, cause: impl Into<BoxError>) -> Self {
        Self { error: error.into(), cause: cause.into() }
    }

    /// The error that ended it.
    #[must_use]
    pub fn error(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.error
    }

    /// The error that led to it.
    #[must_use]
    pub fn cause(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.cause
    }
}

impl fmt::Display for Both {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (after: {})", self.error, self.cause)
    }
}

impl Error for Both {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.error)
    }
}

// === impl InvalidSetting ===

impl InvalidSetting {
    /// The setting's name as it is written, and what it must be.
    #[must_use]
    pub fn new(setting: impl Into<Cow<'static, str>>, must: impl Into<Cow<'static, str>>) -> Self {
        Self { setting: setting.into(), must: must.into() }
    }

    /// The same, where the setting is one of a group: `ratio` of `budget` is `budget.ratio`.
    #[must_use]
    pub fn within(mut self, group: &str) -> Self {
        self.setting = format!("{group}.{}", self.setting).into();
        self
    }

    /// The name of the setting.
    #[must_use]
    pub fn setting(&self) -> &str {
        &self.setting
    }
}

impl fmt::Display for InvalidSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid setting `{}`: {}", self.setting, self.must)
    }
}

impl Error for InvalidSetting {}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: Rejected = Rejected::new(Reason::CircuitOpen, "breaker");
    const LATE: Elapsed = Elapsed::new(Limit::Attempt, Duration::from_secs(1));

    #[test]
    fn both_errors_of_a_pair_are_found() {
        let pair: BoxError = Both::new(LATE, Both::new(io::Error::other(OPEN), "x")).into();
        assert_eq!(find(&*pair), Some(&LATE));
        assert_eq!(
            find(&*pair),
            Some(&OPEN),
            "through the pair, and through what io::Error carries"
        );
        assert!(find::<fmt::Error>(&*pair).is_none());
    }

    #[test]
    fn a_body_that_fell_silent_is_no_attempt_that_had_no_answer() {
        let silent = Elapsed::new(Limit::Idle, Duration::from_secs(1));
        assert_eq!(silent.to_string(), "body timed out: nothing came within 1s");
        let class = crate::judge::<(), _>(&crate::ErrorsAsFailures, Err(&silent.into()));
        assert_eq!(class, crate::Class::Transient { after: None });
    }

    #[test]
    fn without_a_connection_nothing_was_sent() {
        let alone = Elapsed::new(Limit::Connect, Duration::from_secs(1));
        assert_eq!(alone.to_string(), "connect timed out: no connection within 1s");
        assert!(!alone.sent());
        assert_eq!(alone, alone.unsent());
    }

    #[tokio::test(start_paused = true)]
    async fn of_an_instant_less_is_left_the_later_one_asks() {
        let second = Duration::from_secs(1);
        let refused = OPEN.retry_at(edge::now() + 3 * second);
        for left in [3, 1, 0] {
            assert_eq!(refused.retry_after(), Some(left * second));
            assert_eq!(OPEN.retry_in(second).retry_after(), Some(second));
            tokio::time::advance(2 * second).await;
        }
    }

    #[test]
    fn nothing_that_is_shown_ends_in_a_full_stop() {
        let silent = Elapsed::new(Limit::Idle, Duration::ZERO);
        let late = [LATE, LATE.unsent(), silent].map(|late| late.to_string());
        let over = TermOver::new(FencingToken::new(7).unwrap());
        let shown =
            [OPEN.to_string(), over.to_string()].into_iter().chain(late).collect::<Vec<_>>();
        assert!(shown.iter().all(|s| !s.ends_with('.') && s.starts_with(char::is_lowercase)));
    }
}
