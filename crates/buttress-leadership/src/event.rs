use std::{borrow::Cow, fmt, sync::Arc};

use crate::{BootTime, DegradedBy, FencingToken, LeaderInfo, Operation, StoreError};

/// What an elector is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// It waits, and somebody else leads or nobody.
    #[default]
    Follower,
    /// It has asked for the lease.
    Candidate,
    /// It leads. The one state in which the gate can be open.
    Leader,
    /// It leaves: the gate is closed, the lease is held until the work has ended.
    Resigning,
    /// It has left, and lets others lead for a while.
    CoolDown,
    /// It has stopped, and will do nothing more.
    Stopped,
}

/// Why a leader leaves by itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResignReason {
    /// Somebody [asked](crate::Leadership::resign) for it.
    Operator,
    /// The program [asked](crate::Leadership::resign_because) for it, and said why.
    Program(Cow<'static, str>),
    /// It stops.
    Shutdown,
    /// Its work returned.
    WorkReturned,
    /// Its work panicked.
    WorkPanicked,
    /// It cannot do its job, as this signal says.
    Unhealthy(Cow<'static, str>),
    /// The runtime of its work does not run.
    StuckRuntime,
}

/// How a term ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TermEnd {
    /// The store said that it is not ours any more.
    Lost {
        /// Whose it is, if the store said so.
        by: Option<LeaderInfo>,
    },
    /// No renewal was answered for so long that it could be over.
    ExpiredLocally,
    /// The leader left by itself.
    Resigned(ResignReason),
    /// The wall clock jumped: this machine may have been frozen for longer than any clock of it tells.
    ClockAnomaly,
    /// The store's code panicked.
    StorePanicked,
    /// The elector was dropped. The lease is not given back.
    Dropped,
}

/// What an elector tells of, once each and in order. See [`Elector::observe`](crate::Elector::observe).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// Another one leads than before, or nobody is known to. It tells of this process's own terms, too.
    NewLeader(Option<LeaderInfo>),
    /// A term of this process began. Its gate is open.
    TermStarted {
        /// Its token.
        fence: FencingToken,
        /// Until when it is valid unless it is renewed.
        valid_until: BootTime,
    },
    /// A term of this process was renewed.
    Renewed {
        /// Its token.
        fence: FencingToken,
        /// Until when it is valid now.
        valid_until: BootTime,
    },
    /// The leader leaves by itself. The gate is closed, and the lease is held.
    Resigning {
        /// The term's token.
        fence: FencingToken,
        /// Why.
        reason: ResignReason,
    },
    /// A term of this process ended. Once for each that began, after its gate was closed and its work was
    /// told.
    TermEnded {
        /// Its token.
        fence: FencingToken,
        /// How.
        end: TermEnd,
    },
    /// A leader that should not lead does all the same, from now on.
    Degraded {
        /// The term's token.
        fence: FencingToken,
        /// Why.
        by: DegradedBy,
    },
    /// All is well with the leader again.
    Recovered {
        /// The term's token.
        fence: FencingToken,
    },
    /// The leader would have left for that signal, but the last leaders have as well: whatever it tells of
    /// is ill with everybody. Somebody should look after it.
    CorrelatedFailure {
        /// The term's token.
        fence: FencingToken,
        /// The signal's name.
        signal: Cow<'static, str>,
    },
    /// The lease was given back.
    Released {
        /// The token of the term.
        fence: FencingToken,
    },
    /// A call got no answer.
    StoreFailed {
        /// Which one.
        operation: Operation,
        /// Why. `None` if it took too long.
        error: Option<Arc<StoreError>>,
    },
    /// The store gave a token that is no greater than one seen before: it has lost what it knew. This process
    /// does not lead with it, and resources would refuse it.
    FenceRegression {
        /// The token.
        fence: FencingToken,
        /// The greatest that was seen.
        highest: FencingToken,
    },
    /// The store names this process by a token that nobody here has asked for: another elector has the same
    /// [identity](crate::Identity), or one before had. (A store that repeats calls within, and takes what it did itself
    /// for somebody else's, looks the same.) Told once for each token. It is left alone, and waited for.
    IdentityInUse {
        /// The token of the other one.
        fence: FencingToken,
    },
    /// The store granted too little time to renew the lease in. This process does not lead with it.
    GrantTooShort {
        /// How much.
        granted: std::time::Duration,
    },
}

// === impl State ===

impl State {
    /// The state as a short name, for events and labels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Follower => "follower",
            Self::Candidate => "candidate",
            Self::Leader => "leader",
            Self::Resigning => "resigning",
            Self::CoolDown => "cool-down",
            Self::Stopped => "stopped",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// === impl ResignReason ===

impl ResignReason {
    /// The reason in a few words, for events: of a signal its name, of a program what it said.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Operator => "operator",
            Self::Program(why) => why,
            Self::Shutdown => "shutdown",
            Self::WorkReturned => "work returned",
            Self::WorkPanicked => "work panicked",
            Self::Unhealthy(signal) => signal,
            Self::StuckRuntime => "stuck runtime",
        }
    }
}

impl fmt::Display for ResignReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// === impl TermEnd ===

impl TermEnd {
    /// The end as a short name, for events and labels.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Lost { .. } => "lost",
            Self::ExpiredLocally => "expired locally",
            Self::Resigned(ResignReason::Shutdown) => "shutdown",
            Self::Resigned(_) => "resigned",
            Self::ClockAnomaly => "clock anomaly",
            Self::StorePanicked => "store panicked",
            Self::Dropped => "dropped",
        }
    }
}

impl fmt::Display for TermEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
