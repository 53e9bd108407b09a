//! What each of our errors is to gRPC.
//!
//! tonic makes a `Status` of whatever a service fails with: it looks for one in the chain of sources, and what
//! has none is UNKNOWN. So generated clients, and tonic's servers, would tell of a full bulkhead and of time
//! that is up as of an error that nobody has heard of. Each of our errors has the status that it is as its
//! source, and then neither needs to know us.

use std::sync::LazyLock;

use tonic::Status;

use crate::Reason;

/// A status that is made once, as `source` can only lend one.
macro_rules! lasting {
    ($code:ident, $message:expr) => {{
        static STATUS: LazyLock<Status> = LazyLock::new(|| Status::$code($message));
        &STATUS
    }};
}

/// What a refusal is. The same table is in `buttress-http`, for servers of any make, with a test that holds
/// the two together.
pub(crate) fn of_refusal(reason: Reason) -> &'static Status {
    match reason {
        Reason::CircuitOpen => lasting!(unavailable, Reason::CircuitOpen.as_str()),
        Reason::BulkheadFull => lasting!(resource_exhausted, Reason::BulkheadFull.as_str()),
        Reason::Overloaded => lasting!(resource_exhausted, Reason::Overloaded.as_str()),
        Reason::DeadlineExceeded => {
            lasting!(deadline_exceeded, Reason::DeadlineExceeded.as_str())
        }
        Reason::NotLeader => lasting!(unavailable, Reason::NotLeader.as_str()),
        Reason::Degraded => lasting!(unavailable, Reason::Degraded.as_str()),
        Reason::RateLimited => lasting!(resource_exhausted, Reason::RateLimited.as_str()),
        Reason::Draining => lasting!(unavailable, Reason::Draining.as_str()),
    }
}

/// What elapsed time is, whichever limit it was.
pub(crate) fn of_elapsed() -> &'static Status {
    lasting!(deadline_exceeded, "timed out")
}

/// What a term is that was over too early. It is the one code that says that all may have been done, and that clients
/// do not take for an invitation to try again.
pub(crate) fn of_term_over() -> &'static Status {
    lasting!(deadline_exceeded, "term over")
}

#[cfg(test)]
mod tests {
    use std::{error::Error, io, time::Duration};

    use tonic::Code;

    use super::*;
    use crate::{
        Both, BoxError, Class, Elapsed, ErrorsAsFailures, FencingToken, Limit, Rejected, TermOver,
        find, judge,
    };

    const OPEN: Rejected = Rejected::new(Reason::CircuitOpen, "breaker");
    const LATE: Elapsed = Elapsed::new(Limit::Attempt, Duration::from_secs(1));

    fn code(error: impl Into<BoxError>) -> Code {
        Status::from_error(error.into()).code()
    }

    // GRP-07
    #[test]
    fn tonic_finds_the_code_of_each_error_of_ours() {
        for (reason, expected) in [
            (Reason::CircuitOpen, Code::Unavailable),
            (Reason::BulkheadFull, Code::ResourceExhausted),
            (Reason::Overloaded, Code::ResourceExhausted),
            (Reason::DeadlineExceeded, Code::DeadlineExceeded),
            (Reason::NotLeader, Code::Unavailable),
            (Reason::Degraded, Code::Unavailable),
            (Reason::RateLimited, Code::ResourceExhausted),
            (Reason::Draining, Code::Unavailable),
        ] {
            let status = Status::from_error(Rejected::new(reason, "layer").into());
            assert_eq!((status.code(), status.message()), (expected, reason.as_str()));
        }
        for which in [Limit::Attempt, Limit::Total, Limit::Idle] {
            let elapsed = Elapsed::new(which, Duration::ZERO);
            assert_eq!(code(elapsed), Code::DeadlineExceeded, "{which:?}");
            assert_eq!(code(elapsed.unsent()), Code::DeadlineExceeded, "{which:?}");
        }
        let over = TermOver::new(FencingToken::new(7).unwrap());
        assert_eq!(code(over), Code::DeadlineExceeded);
    }

    // GRP-07
    #[test]
    fn of_two_errors_the_one_that_ended_it_decides() {
        assert_eq!(code(Both::new(LATE, OPEN)), Code::DeadlineExceeded);
        assert_eq!(code(Both::new(OPEN, LATE)), Code::Unavailable);
        assert_eq!(code(Both::new(Both::new(LATE, "x"), "x")), Code::DeadlineExceeded);
    }

    // GRP-07
    #[test]
    fn ours_is_still_there_beneath_the_status() {
        let status = Status::from_error(OPEN.into());
        assert_eq!(status.source().unwrap().downcast_ref(), Some(&OPEN));
        assert_eq!(find(&status), Some(&OPEN));
        let status = Status::from_error(Both::new(LATE, OPEN).into());
        assert_eq!((find(&status), find(&status)), (Some(&LATE), Some(&OPEN)));
    }

    #[test]
    fn among_ourselves_a_status_beneath_changes_nothing() {
        let judged = |error: BoxError| judge::<(), _>(&ErrorsAsFailures, Err(&error));
        assert_eq!(judged(OPEN.into()), Class::Refused);
        assert_eq!(judged(io::Error::other(OPEN).into()), Class::Transient { after: None });
        assert_eq!(judged(LATE.into()), Class::Transient { after: None });
        let pair: BoxError = Both::new(OPEN, Both::new(LATE, io::Error::other("x"))).into();
        assert_eq!((find(&*pair), find(&*pair)), (Some(&OPEN), Some(&LATE)));
        assert!(find::<io::Error>(&*pair).is_some(), "what comes after it is found too");
    }
}
