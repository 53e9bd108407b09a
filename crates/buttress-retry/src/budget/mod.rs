use std::{fmt, sync::Arc};

use buttress_core::{InvalidSetting, edge};
use tokio::time::Instant;

use self::{
    bucket::Bucket,
    machine::{TICK_NANOS, TOKEN},
    pace::Pace,
};
use crate::sync::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

pub use self::settings::BudgetSettings;

mod bucket;
#[cfg(all(test, buttress_loom))]
mod loom;
mod machine;
mod pace;
mod settings;

/// How much repeats may add to the load, over all requests of a client.
///
/// A limit for each request is none for all of them: in an outage every request fails, so each is sent as often
/// as it may be, and the callee gets three times the load from which it is to recover. A budget lets
/// *successes* pay for repeats. Each adds a share of a token, each repeat takes a whole one, and where
/// nothing succeeds the tokens run out.
///
/// ```text
/// repeats in any interval <= cap + ratio * successes + refill * seconds
/// ```
///
/// in the order in which tokens are taken, whatever threads do, and to the step of 156.25 ms in which the refill
/// comes. Nor can a client save up for an outage: what is above the reserve decays with a time constant
/// of 10 s, so that a bucket holds about what the last ten seconds earned.
///
/// A [`RetryLayer`](crate::RetryLayer) looks at the clock for few of the successes that come fast. The others count as
/// if they were older, by about a step of the refill, so a bit more of them decays.
///
/// | setting | default | why |
/// |---|---|---|
/// | [`ratio`](BudgetSettings::ratio) | 0.1 of the successes | a tenth more load at most while things go well |
/// | [`reserve`](BudgetSettings::reserve) | 2 tokens | a fresh client can use the three attempts of its first request |
/// | [`refill`](BudgetSettings::refill) | 0.1 a second, up to the reserve | a client with little traffic earns next to nothing |
/// | [`cap`](BudgetSettings::cap) | 100 times the reserve | an outage that follows a rush |
///
/// Token buckets that successes fill are in gRPC ([retry throttling, A6](https://github.com/grpc/proposal/blob/master/A6-client-retries.md))
/// and in the AWS SDKs; ratio and a floor a second are Finagle's `RetryBudget`. Ours counts the ratio of
/// *successes* (not of requests, which in an outage would go on paying), and its floor is a hundredth of
/// Finagle's, since floors add up over a fleet.
///
/// It is a handle: clones share one bucket. Make one for each callee, for all clients of it.
///
/// # Examples
///
/// Of one's own, outside a [`RetryLayer`](crate::RetryLayer):
///
/// ```
/// use buttress_retry::{Budget, BudgetSettings};
///
/// # fn main() -> Result<(), buttress_core::InvalidSetting> {
/// let budget = Budget::new(BudgetSettings::default().reserve(1))?;
/// let token = budget.withdraw().expect("one in reserve");
/// assert!(budget.withdraw().is_none());
/// drop(token); // not sent after all
/// budget.withdraw().expect("it is back").spend();
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Budget {
    shared: Arc<Shared>,
}

/// The right to send one request again.
///
/// Taken before the wait and held through it, so that what waits is counted. Dropped, it goes back to the
/// budget: the request was not sent again.
#[must_use = "a token that is dropped goes back to its budget"]
pub struct Token {
    /// Taken out when it is spent.
    budget: Option<Budget>,
}

/// What a [`Budget`] has counted since it was made.
///
/// `granted + refused` is how often a token was asked for. `granted - refunded` is how many repeats were
/// sent, and how many are about to be; it is never less than zero, also while others go on.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct BudgetStats {
    /// How many tokens there are now.
    pub balance: f64,
    /// How many successes paid in, whether there was room or not.
    pub deposits: u64,
    /// How many tokens were given out.
    pub granted: u64,
    /// How often there was none.
    pub refused: u64,
    /// How many came back unused.
    pub refunded: u64,
}

struct Shared {
    bucket: Bucket,
    /// Where tick 0 began.
    origin: Instant,
    deposits: AtomicU64,
    pace: Pace,
    granted: AtomicU64,
    refused: AtomicU64,
    refunded: AtomicU64,
}

// === impl Budget ===

impl Budget {
    /// A budget with its reserve in it.
    ///
    /// # Errors
    ///
    /// Names the setting that cannot work: a `ratio` that is not 0 or from 0.000001 to 10, a `refill` that is not 0 or
    /// from 0.0000064 to 4294, more than 4294 tokens in `reserve` or `cap`, a `cap` of zero or less than
    /// `reserve`.
    pub fn new(settings: BudgetSettings) -> Result<Self, InvalidSetting> {
        let rules = settings.rules()?;
        let shared = Shared {
            bucket: Bucket::new(rules, 0),
            origin: edge::now(),
            deposits: AtomicU64::new(0),
            pace: Pace::new(rules),
            granted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            refunded: AtomicU64::new(0),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// A request succeeded: once for each, however many attempts it took.
    ///
    /// It looks at the clock.
    pub fn deposit(&self) {
        self.shared.deposits.fetch_add(1, Relaxed);
        // Without a share there is nothing to look at the clock for.
        if self.shared.bucket.earns() {
            self.shared.bucket.deposit(self.tick());
        }
    }

    /// The same as [`deposit`](Self::deposit), but the clock is looked at only now and then: see [`Pace`].
    #[inline]
    pub(crate) fn deposit_in_passing(&self) {
        let Shared { bucket, deposits, pace, .. } = &*self.shared;
        let nth = deposits.fetch_add(1, Relaxed);
        if pace.is_due(nth) { self.look(nth) } else { bucket.deposit_in_passing() }
    }

    #[cold]
    #[inline(never)]
    fn look(&self, nth: u64) {
        let now = self.tick();
        self.shared.bucket.deposit(now);
        self.shared.pace.looked(nth, now);
    }

    /// Takes a token, if there is one.
    pub fn withdraw(&self) -> Option<Token> {
        if self.shared.bucket.withdraw(self.tick()) {
            self.shared.granted.fetch_add(1, Relaxed);
            Some(Token { budget: Some(self.clone()) })
        } else {
            self.shared.refused.fetch_add(1, Relaxed);
            None
        }
    }

    /// How many tokens there are.
    #[must_use]
    pub fn balance(&self) -> f64 {
        f64::from(self.shared.bucket.balance(self.tick())) / f64::from(TOKEN)
    }

    /// What it has counted.
    #[must_use]
    pub fn stats(&self) -> BudgetStats {
        // In this order: who sees a token come back has seen it go.
        let refunded = self.shared.refunded.load(Acquire);
        BudgetStats {
            balance: self.balance(),
            deposits: self.shared.deposits.load(Relaxed),
            granted: self.shared.granted.load(Relaxed),
            refused: self.shared.refused.load(Relaxed),
            refunded,
        }
    }

    /// Puts a token back that was not used, also if that was learned only after it was spent.
    pub(crate) fn refund(&self) {
        self.shared.bucket.refund(self.tick());
        self.shared.refunded.fetch_add(1, Release);
    }

    fn tick(&self) -> u32 {
        let since = edge::now().saturating_duration_since(self.shared.origin);
        // Ticks wrap on purpose; see the machine.
        (since.as_nanos() as u64 / TICK_NANOS) as u32
    }
}

impl Default for Budget {
    /// A tenth of the successes, two tokens in reserve, 0.1 a second.
    fn default() -> Self {
        Self::new(BudgetSettings::default()).expect("the default settings work")
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

// === impl Token ===

impl Token {
    /// The request is sent again.
    pub fn spend(mut self) {
        self.budget = None;
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if let Some(budget) = self.budget.take() {
            budget.refund();
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").finish_non_exhaustive()
    }
}
