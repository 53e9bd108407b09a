//! How a leader leaves by itself: what it is told to look at, what follows from that, and what others have
//! to know.

mod judge;
mod log;
mod policy;
mod vigil;

pub use self::policy::{ResignPolicy, ResignSettings, SignalRole, SignalStatus};
pub(crate) use self::{judge::Candidacy, vigil::Vigil};

/// Why a term is led by a leader that should not lead. See [`ResignPolicy`](ResignPolicy#a-degraded-term).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DegradedBy {
    /// Nobody else did.
    LastResort,
    /// Whoever comes next would be as ill.
    CorrelatedFailure,
    /// It has left too often.
    ResignBudget,
}

// === impl DegradedBy ===

impl DegradedBy {
    /// It as a short name, for events and labels.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LastResort => "last resort",
            Self::CorrelatedFailure => "correlated failure",
            Self::ResignBudget => "resign budget",
        }
    }
}

impl std::fmt::Display for DegradedBy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
