//! What the cases have at hand.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};

use bytes::Bytes;

use super::{Start, Subject};
use crate::{
    AcquireOutcome, AcquireRequest, Expiry, FencingToken, Identity, LeaseName, LeaseRecord,
    LeaseStore, ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest, ServerClock,
    StoreError,
};

/// A lease, the store that it is in, and two who want it.
pub(super) struct Bench<'a, S: Subject> {
    pub(super) subject: &'a S,
    pub(super) store: &'a S::Store,
    pub(super) name: LeaseName,
    pub(super) me: Identity,
    pub(super) you: Identity,
    pub(super) ttl: Duration,
    pub(super) slack: Duration,
    pub(super) payload: Bytes,
    /// The greatest token that the name has had so far, zero for none.
    pub(super) last: u64,
}

/// Why a case failed.
#[derive(Debug)]
pub(super) struct Fault(pub(super) String);

pub(super) type Verdict<T = ()> = Result<T, Fault>;

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self(error.to_string())
    }
}

macro_rules! ensure {
    ($holds:expr, $($why:tt)+) => {
        if !$holds {
            return Err(Fault(format!($($why)+)));
        }
    };
}
pub(super) use ensure;

impl<'a, S: Subject> Bench<'a, S> {
    pub(super) async fn new(subject: &'a S, start: Start) -> Verdict<Self> {
        Self::named(subject, start, subject.fresh_name()).await
    }

    pub(super) async fn named(subject: &'a S, start: Start, name: LeaseName) -> Verdict<Self> {
        let (me, you) = (Identity::generate(), Identity::generate());
        let (ttl, slack) = (subject.ttl(), subject.slack());
        let (store, payload) = (subject.store(), Bytes::from_static(b"10.0.0.7:8080"));
        let mut bench = Self { subject, store, name, me, you, ttl, slack, payload, last: 0 };
        if start == Start::Used {
            let who = Identity::generate();
            let fence = bench.take(&who).await?.fence;
            bench.free(&who, fence).await?;
            bench.last = fence.get();
        }
        Ok(bench)
    }

    pub(super) async fn pass(&self, time: Duration) {
        self.subject.pass(time).await;
    }

    /// Lets the lease end.
    pub(super) async fn expire(&self, record: &LeaseRecord) -> Verdict {
        if self.is_observed() {
            // Who never looked has not seen that nothing changed.
            for way in [self.store, self.subject.another_way()] {
                way.inspect(&self.name).await?;
            }
        }
        self.pass(record.granted_ttl + 2 * self.slack).await;
        Ok(())
    }

    /// Whether it is for each candidate to decide that a lease is over.
    pub(super) fn is_observed(&self) -> bool {
        self.store.capabilities().expiry == Expiry::Observed
    }

    pub(super) async fn ask(&self, who: &Identity) -> Verdict<AcquireOutcome> {
        self.ask_after(who, None).await
    }

    async fn ask_after(
        &self,
        who: &Identity,
        seen: Option<FencingToken>,
    ) -> Verdict<AcquireOutcome> {
        let request = AcquireRequest::new(&self.name, who, self.ttl, &self.payload);
        Ok(self.store.acquire(request.after(seen)).await?)
    }

    /// Takes it, and fails if somebody has it.
    pub(super) async fn take(&self, who: &Identity) -> Verdict<LeaseRecord> {
        self.take_after(who, None).await
    }

    /// The same, for who has seen that token.
    pub(super) async fn take_after(
        &self,
        who: &Identity,
        seen: Option<FencingToken>,
    ) -> Verdict<LeaseRecord> {
        match self.ask_after(who, seen).await? {
            AcquireOutcome::Acquired(record) => {
                ensure!(record.is_held_by(who), "acquired, by somebody else: {record:?}");
                ensure!(record.name == self.name, "acquired, another lease: {record:?}");
                Ok(record)
            }
            AcquireOutcome::Held(record) => {
                Err(Fault(format!("nobody holds it, and it was not acquired: {record:?}")))
            }
        }
    }

    /// Asks for it, and fails if it is acquired.
    pub(super) async fn held(&self, who: &Identity) -> Verdict<LeaseRecord> {
        match self.ask(who).await? {
            AcquireOutcome::Held(record) => Ok(record),
            AcquireOutcome::Acquired(record) => {
                Err(Fault(format!("it is held, and was acquired: {record:?}")))
            }
        }
    }

    pub(super) async fn renew(&self, who: &Identity, fence: FencingToken) -> Verdict<RenewOutcome> {
        let request = RenewRequest::new(&self.name, who, fence, self.ttl);
        Ok(self.store.renew(request).await?)
    }

    /// Renews it, and fails if it is lost.
    pub(super) async fn renewed(
        &self,
        who: &Identity,
        fence: FencingToken,
    ) -> Verdict<LeaseRecord> {
        match self.renew(who, fence).await? {
            RenewOutcome::Renewed(record) => {
                ensure!(record.is_held_by(who), "renewed, for somebody else: {record:?}");
                ensure!(record.fence == fence, "renewed, another token: {record:?}");
                Ok(record)
            }
            RenewOutcome::Lost(record) => {
                Err(Fault(format!("its holder could not renew it: {record:?}")))
            }
        }
    }

    /// Renews it, and fails if that is done.
    pub(super) async fn lost(
        &self,
        who: &Identity,
        fence: FencingToken,
        why: &str,
    ) -> Verdict<Option<LeaseRecord>> {
        match self.renew(who, fence).await? {
            RenewOutcome::Lost(record) => Ok(record),
            RenewOutcome::Renewed(record) => Err(Fault(format!("renewed {why}: {record:?}"))),
        }
    }

    pub(super) async fn release(
        &self,
        who: &Identity,
        fence: FencingToken,
    ) -> Verdict<ReleaseOutcome> {
        Ok(self.store.release(ReleaseRequest::new(&self.name, who, fence)).await?)
    }

    /// Gives it back, and fails if that is not done.
    pub(super) async fn free(&self, who: &Identity, fence: FencingToken) -> Verdict {
        match self.release(who, fence).await? {
            ReleaseOutcome::Released => Ok(()),
            ReleaseOutcome::NotHolder(record) => {
                Err(Fault(format!("its holder could not give it back: {record:?}")))
            }
        }
    }

    pub(super) async fn look(&self) -> Verdict<Option<LeaseRecord>> {
        Ok(self.subject.another_way().inspect(&self.name).await?)
    }

    /// Looks, and fails if `who` does not hold it by that token.
    pub(super) async fn still(
        &self,
        who: &Identity,
        fence: FencingToken,
        why: &str,
    ) -> Verdict<LeaseRecord> {
        match self.look().await? {
            Some(record)
                if record.is_held_by(who) && record.fence == fence && !record.is_expired() =>
            {
                Ok(record)
            }
            record => Err(Fault(format!("{why} took it from its holder: {record:?}"))),
        }
    }

    /// Whether nothing was written between the two: the same revision, and the same times. Where each way to the
    /// store has a clock of its own, its times are when *it* saw what.
    pub(super) fn is_as(&self, seen: &LeaseRecord, before: &LeaseRecord) -> bool {
        let times = |of: &LeaseRecord| (of.acquired_at, of.renewed_at, of.expires_at);
        let is_own =
            self.is_observed() || self.store.capabilities().server_clock == ServerClock::Untold;
        seen.revision == before.revision && (is_own || times(seen) == times(before))
    }

    /// A token that is not `fence`.
    pub(super) fn not(&self, fence: FencingToken) -> [FencingToken; 2] {
        let number = fence.get();
        let greater = FencingToken::new(number + 1).expect("one more is not zero");
        [FencingToken::new(number - 1).unwrap_or(greater), greater]
    }
}

/// All answers of futures that run at the same time.
pub(super) async fn at_once<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    some_at_once(usize::MAX, futures).await
}

/// All answers of futures of which so many run at the same time. The others begin when one of those is ready.
pub(super) async fn some_at_once<F: Future>(
    many: usize,
    futures: impl IntoIterator<Item = F>,
) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.into_iter().map(|one| (Box::pin(one), None)).collect();
    poll_fn(|cx| {
        let mut pending = 0;
        for (one, answer) in &mut running {
            if pending == many {
                break;
            }
            if answer.is_none() {
                match one.as_mut().poll(cx) {
                    Poll::Ready(done) => *answer = Some(done),
                    Poll::Pending => pending += 1,
                }
            }
        }
        if pending == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    running.into_iter().filter_map(|(_, answer)| answer).collect()
}

/// Polls so many times, and drops it then if it is not ready: `None`.
pub(super) async fn dropped_after<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match Pin::as_mut(&mut future).poll(cx) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use std::cell::Cell;

    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn no_more_run_at_the_same_time_than_are_to_and_the_answers_are_in_order() {
        for (many, at_most) in [(1, 1), (3, 3), (usize::MAX, 10)] {
            let (running, most) = (Cell::new(0), Cell::new(0));
            let answers = some_at_once(
                many,
                (0..10_u64).map(|nth| {
                    let (running, most) = (&running, &most);
                    async move {
                        running.set(running.get() + 1);
                        most.set(most.get().max(running.get()));
                        sleep(Duration::from_secs(10 - nth)).await;
                        running.set(running.get() - 1);
                        nth
                    }
                }),
            );
            assert_eq!(answers.await, (0..10).collect::<Vec<_>>());
            assert_eq!(most.get(), at_most);
        }
    }
}
