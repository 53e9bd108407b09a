//! Whether a store keeps to the rules: for those who write one.
//!
//! All that an elector promises it promises upon the rules of [`LeaseStore`]. [`conformance`] tries every one
//! of them, each by cases whose names say what is to be true: on a lease that nobody ever had, and again on
//! one that somebody has given back. A store that reads and then writes, that revives what has expired, or
//! counts tokens from one again, is told which case it failed and how.
//!
//! # Examples
//!
//! ```
//! use buttress_leadership::{LeaseClock, MemoryStore, testing::{self, Simulated}};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! let clock = LeaseClock::simulated();
//! let store = MemoryStore::with_clock(clock.clone());
//! let report = testing::conformance(&Simulated::new(store, clock)).await;
//! report.assert();
//! # }
//! ```
//!
//! A store with a server runs in [`RealTime`], with leases as short as it grants, for a minute or less.
//!
//! Whether a whole election went well while things were broken is for a [`history`].

use std::{fmt, time::Duration};

use tokio::time::sleep;

use crate::{Identity, LeaseClock, LeaseName, LeaseStore};

mod bench;
mod cases;
pub mod history;
#[cfg(all(test, not(buttress_loom)))]
mod observed;
#[cfg(all(test, not(buttress_loom)))]
mod planted;

/// A store under test, and what has to be known of it.
pub trait Subject: Sync {
    /// The store.
    type Store: LeaseStore;

    /// The store.
    fn store(&self) -> &Self::Store;

    /// Another way to the same leases, as a second process has. The same store unless there is one.
    fn another_way(&self) -> &Self::Store {
        self.store()
    }

    /// A name that no lease has had. By chance, unless names have to look otherwise.
    fn fresh_name(&self) -> LeaseName {
        let chance = Identity::with_prefix("conformance").expect("the prefix is short");
        LeaseName::new(chance.as_str()).expect("what is an identity is a name")
    }

    /// Whether any [`LeaseName`] will do: any letters, 253 bytes. It will unless the store takes fewer, and
    /// says so in its docs.
    fn takes_any_name(&self) -> bool {
        true
    }

    /// How long the leases are. A second or the shortest that the store grants, in its steps, unless set.
    fn ttl(&self) -> Duration {
        let able = self.store().capabilities();
        let shortest = able.min_ttl.max(Duration::from_secs(1));
        let step = able.ttl_granularity.max(Duration::from_nanos(1)).as_nanos();
        let nanos = shortest.as_nanos().div_ceil(step) * step;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// How long calls take, and how late a store may be to notice that a lease is over. A sixth of the
    /// [lease](Self::ttl) unless set, and no more.
    fn slack(&self) -> Duration {
        self.ttl() / 6
    }

    /// How often the cases that several race in are repeated. A hundred times unless set.
    fn rounds(&self) -> usize {
        100
    }

    /// How many cases run at the same time. One unless set: time that passes for one passes for all of them where a
    /// test sets the clock.
    fn at_once(&self) -> usize {
        1
    }

    /// Lets time pass, for the store too.
    fn pass(&self, time: Duration) -> impl Future<Output = ()> + Send;
}

/// A store whose clock a test sets.
#[derive(Clone, Debug)]
pub struct Simulated<S> {
    store: S,
    clock: LeaseClock,
}

/// A store whose clock nobody sets: the suite waits.
#[derive(Clone, Debug)]
pub struct RealTime<S> {
    store: S,
}

/// One case, on one kind of lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Case {
    /// The rule of [`LeaseStore`] that it tries, from 1 to 8.
    pub rule: u8,
    /// What is true of a store that passes it.
    pub moral: &'static str,
    /// The lease that it began with.
    pub start: Start,
}

/// The lease that a case begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Start {
    /// Nobody ever had it.
    New,
    /// Somebody had it, and gave it back.
    Used,
}

/// What came of the cases.
#[derive(Clone, Debug, Default)]
#[must_use = "a store that fails is none until somebody looks"]
pub struct Report {
    passed: Vec<Case>,
    failed: Vec<(Case, String)>,
}

/// Tries every rule of [`LeaseStore`] on a store, one case after the other, and goes on after one that
/// failed.
///
/// It leaves leases behind, with fresh names.
pub async fn conformance<S: Subject>(subject: &S) -> Report {
    cases::run(subject).await
}

// === impl Simulated, RealTime ===

impl<S> Simulated<S> {
    /// That store, whose clock is `clock`.
    pub const fn new(store: S, clock: LeaseClock) -> Self {
        Self { store, clock }
    }
}

impl<S: LeaseStore> Subject for Simulated<S> {
    type Store = S;

    fn store(&self) -> &S {
        &self.store
    }

    async fn pass(&self, time: Duration) {
        self.clock.suspend(time);
    }
}

impl<S> RealTime<S> {
    /// That store.
    pub const fn new(store: S) -> Self {
        Self { store }
    }
}

impl<S: LeaseStore> Subject for RealTime<S> {
    type Store = S;

    fn store(&self) -> &S {
        &self.store
    }

    fn at_once(&self) -> usize {
        8
    }

    async fn pass(&self, time: Duration) {
        sleep(time).await;
    }
}

// === impl Report ===

impl Report {
    /// The cases that the store passed.
    #[must_use]
    pub fn passed(&self) -> &[Case] {
        &self.passed
    }

    /// The cases that it failed, and why.
    #[must_use]
    pub fn failed(&self) -> &[(Case, String)] {
        &self.failed
    }

    /// Ends the test if there is one that failed.
    ///
    /// # Panics
    ///
    /// If there is. It names each.
    #[track_caller]
    pub fn assert(&self) {
        assert!(self.failed.is_empty(), "{self}");
    }

    fn note(&mut self, case: Case, verdict: Result<(), String>) {
        match verdict {
            Ok(()) => self.passed.push(case),
            Err(why) => self.failed.push((case, why)),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (passed, failed) = (self.passed.len(), self.failed.len());
        write!(f, "{failed} of {} cases failed", passed + failed)?;
        for (case, why) in &self.failed {
            write!(f, "\n  {case}: {why}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = match self.start {
            Start::New => "new",
            Start::Used => "used",
        };
        write!(f, "rule {}, {} (on a {start} lease)", self.rule, self.moral)
    }
}
