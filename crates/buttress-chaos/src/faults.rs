//! What is broken, and in which order.

use std::{fmt, time::Duration};

use buttress_core::edge;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::candidate::TTL;

/// One way to break things.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum,
)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Kind {
    /// A process is killed, and started anew a while later.
    Crash,
    /// An operator has it leave.
    Resignation,
    /// A process is stopped, and goes on.
    Pause,
    /// Nothing gets through between a process and the store, in either direction.
    Partition,
    /// What it asks does not arrive.
    LostRequests,
    /// What it is answered does not.
    LostAnswers,
    /// What it is answered does not, and its connections are reset.
    ResetAnswers,
    /// Its connections carry nothing any more, and never end. New ones work.
    Stranded,
    /// All takes its time, both ways.
    Slow,
    /// The store is stopped, and goes on: or somebody holds the lock on its file.
    StorePause,
    /// Nobody gets through to the store.
    StoreCut,
    /// The store is killed, and started with its data.
    StoreRestart,
    /// The store is killed, and started without its data.
    StoreLoss,
    /// Of the members of the store, the one that leads them is stopped, and goes on.
    MemberPause,
    /// Somebody takes the lease away by hand.
    Removal,
    /// The server's wall clock is two minutes ahead for a while.
    ClockAhead,
    /// The server's wall clock is two minutes behind for a while.
    ClockBehind,
}

/// How far a clock is set off: farther than any lease is long.
pub const STEP: Duration = Duration::from_secs(120);

/// The kinds in the order in which they happen: all of them before any again.
#[derive(Debug)]
pub struct Deck {
    all: Vec<Kind>,
    left: Vec<Kind>,
    was_set: bool,
}

// === impl Kind ===

impl Kind {
    /// A few words.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Crash => "crash",
            Self::Resignation => "resignation",
            Self::Pause => "process paused",
            Self::Partition => "partition",
            Self::LostRequests => "requests lost",
            Self::LostAnswers => "answers lost",
            Self::ResetAnswers => "answers lost, reset",
            Self::Stranded => "connections stranded",
            Self::Slow => "latency",
            Self::StorePause => "store paused",
            Self::StoreCut => "store cut off",
            Self::StoreRestart => "store restarted",
            Self::StoreLoss => "store lost its data",
            Self::MemberPause => "member's leader paused",
            Self::Removal => "lease removed by hand",
            Self::ClockAhead => "server's clock +120 s",
            Self::ClockBehind => "server's clock -120 s",
        }
    }

    /// Whether it befalls one process, and not the store.
    #[must_use]
    pub const fn is_of_process(self) -> bool {
        matches!(
            self,
            Self::Crash
                | Self::Resignation
                | Self::Pause
                | Self::Partition
                | Self::LostRequests
                | Self::LostAnswers
                | Self::ResetAnswers
                | Self::Stranded
                | Self::Slow
        )
    }

    /// Whether somebody else can lead from the moment on in which it begins. Where it is the store that is broken,
    /// or a process can still renew its lease and not hear of it, nobody can before it is well again.
    #[must_use]
    pub const fn leaves_others_free(self) -> bool {
        matches!(
            self,
            Self::Crash
                | Self::Resignation
                | Self::Pause
                | Self::Partition
                | Self::LostRequests
                | Self::Stranded
                | Self::MemberPause
        )
    }

    /// Whether it sets the server's clock.
    #[must_use]
    pub const fn sets_clock(self) -> bool {
        matches!(self, Self::ClockAhead | Self::ClockBehind)
    }

    /// How long it lasts this time, by chance.
    #[must_use]
    pub fn lasts(self) -> Duration {
        let chance = edge::unit();
        match self {
            Self::Resignation | Self::Removal | Self::Stranded => Duration::ZERO,
            Self::Crash | Self::StoreRestart | Self::StoreLoss => TTL.mul_f64(0.1 + 0.5 * chance),
            _ => TTL.mul_f64(0.4 + 1.2 * chance),
        }
    }

    /// How long all is to be well afterwards, so that what is broken next does not suffer from it.
    #[must_use]
    pub fn rests(self) -> Duration {
        let least = match self {
            // What was set right again is right with the next renewal: a lease of two minutes is not to be left behind by a
            // leader that fails before.
            Self::ClockAhead | Self::ClockBehind => TTL / 2,
            // Of a Redis that has just started nobody takes a lease.
            Self::StoreRestart | Self::StoreLoss => TTL,
            _ => TTL / 20,
        };
        least + TTL.mul_f64(0.2 * edge::unit())
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

// === impl Deck ===

impl Deck {
    /// Of those kinds.
    #[must_use]
    pub const fn new(all: Vec<Kind>) -> Self {
        Self { all, left: Vec::new(), was_set: false }
    }

    /// The next one.
    pub fn deal(&mut self) -> Kind {
        if self.left.is_empty() {
            self.left = self.shuffled();
        }
        let kind = self.left.pop().expect("there are some");
        self.was_set |= kind.sets_clock();
        kind
    }

    /// Tokens that come from a server's clock do not fall while the server remembers the last one, or its clock was not
    /// set back. Nobody promises more, so the data is lost before the clock is set, and not after that.
    fn shuffled(&self) -> Vec<Kind> {
        let mut kinds = self.all.clone();
        if self.was_set && kinds.len() > 1 {
            kinds.retain(|kind| *kind != Kind::StoreLoss);
        }
        for n in (1..kinds.len()).rev() {
            kinds.swap(n, (edge::unit() * (n + 1) as f64) as usize);
        }
        // They are dealt from the end.
        let loss = kinds.iter().position(|kind| *kind == Kind::StoreLoss);
        let clock = kinds.iter().rposition(|kind| kind.sets_clock());
        if let (Some(loss), Some(clock)) = (loss, clock)
            && loss < clock
        {
            kinds.swap(loss, clock);
        }
        kinds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: &[Kind] =
        &[Kind::Crash, Kind::ClockAhead, Kind::StoreLoss, Kind::ClockBehind, Kind::Pause];

    #[test]
    fn all_are_dealt_before_any_again_and_no_data_is_lost_once_a_clock_was_set() {
        for seed in 0..100 {
            edge::seed(seed);
            let mut deck = Deck::new(SOME.to_vec());
            let mut first: Vec<_> = (0..SOME.len()).map(|_| deck.deal()).collect();
            let loss = first.iter().position(|kind| *kind == Kind::StoreLoss).unwrap();
            let clock = first.iter().position(|kind| kind.sets_clock()).unwrap();
            assert!(loss < clock, "{first:?}");
            first.sort();
            let mut all = SOME.to_vec();
            all.sort();
            assert_eq!(first, all);
            assert!((0..20).all(|_| deck.deal() != Kind::StoreLoss));
        }
    }
}
