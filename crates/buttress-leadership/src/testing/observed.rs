//! The suite where candidates see for themselves that a lease is over, as with Kubernetes: against a store that
//! keeps the rules so, and against two that do not.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;

use super::{Report, Subject, conformance};
use crate::{
    AcquireOutcome, AcquireRequest, BootTime, Expiry, FencingToken, Identity, LeaseClock,
    LeaseName, LeaseRecord, LeaseStore, ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest,
    StoreCapabilities, StoreError, StoreTime,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    Nothing,
    TakesAtFirstSight,
    CountsFromTheFirstSightOfTheTerm,
}

/// What is common to all: states without times.
type Rows = Arc<Mutex<HashMap<LeaseName, Row>>>;

#[derive(Clone)]
struct Row {
    holder: Option<Identity>,
    fence: u64,
    revision: u64,
    ttl: Duration,
    payload: Bytes,
    memo: Bytes,
}

/// One process's way to them, and what it has seen.
struct Store {
    planted: Planted,
    clock: LeaseClock,
    rows: Rows,
    seen: Mutex<HashMap<LeaseName, Seen>>,
}

#[derive(Clone, Copy)]
struct Seen {
    fence: u64,
    revision: u64,
    term_since: BootTime,
    since: BootTime,
    is_new: bool,
}

impl Store {
    fn see(&self, name: &LeaseName, row: &Row) -> Seen {
        let now = self.clock.now();
        let mut all = self.seen.lock().unwrap();
        let before = all.get(name);
        let term = before.filter(|before| before.fence == row.fence);
        let same = term.filter(|before| before.revision == row.revision);
        let seen = Seen {
            fence: row.fence,
            revision: row.revision,
            term_since: term.map_or(now, |before| before.term_since),
            since: same.map_or(now, |before| before.since),
            is_new: before.is_none(),
        };
        all.insert(name.clone(), seen);
        seen
    }

    fn is_over(&self, row: &Row, seen: Seen) -> bool {
        let since = match self.planted {
            Planted::TakesAtFirstSight if seen.is_new => return true,
            Planted::CountsFromTheFirstSightOfTheTerm => seen.term_since,
            _ => seen.since,
        };
        row.holder.is_none() || row.ttl <= self.clock.now().since(since)
    }

    fn record(&self, name: &LeaseName, row: &Row) -> LeaseRecord {
        let seen = self.see(name, row);
        let at = |time: BootTime| StoreTime::from_nanos(time.as_nanos());
        let fence = FencingToken::new(row.fence).unwrap();
        let mut record = LeaseRecord::vacant(name.clone(), fence, at(self.clock.now()));
        record.holder.clone_from(&row.holder);
        record.granted_ttl = row.ttl;
        (record.acquired_at, record.renewed_at) = (at(seen.term_since), at(seen.since));
        if row.holder.is_some() {
            record.expires_at = at(seen.since + row.ttl);
        }
        (record.payload, record.memo) = (row.payload.clone(), row.memo.clone());
        record.revision = row.revision;
        record
    }
}

impl LeaseStore for Store {
    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities::new(Expiry::Observed)
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome, StoreError> {
        let mut rows = self.rows.lock().unwrap();
        let before = rows.get(request.name);
        if let Some(row) = before
            && !self.is_over(row, self.see(request.name, row))
        {
            return Ok(AcquireOutcome::Held(self.record(request.name, row)));
        }
        let seen = request.after.map_or(0, FencingToken::get);
        let row = Row {
            holder: Some(request.identity.clone()),
            fence: before.map_or(0, |row| row.fence).max(seen) + 1,
            revision: before.map_or(1, |row| row.revision + 1),
            ttl: request.ttl,
            payload: request.payload.clone(),
            memo: before.map(|row| row.memo.clone()).unwrap_or_default(),
        };
        rows.insert(request.name.clone(), row.clone());
        Ok(AcquireOutcome::Acquired(self.record(request.name, &row)))
    }

    async fn renew(&self, request: RenewRequest<'_>) -> Result<RenewOutcome, StoreError> {
        let mut rows = self.rows.lock().unwrap();
        let Some(row) = rows.get_mut(request.name) else { return Ok(RenewOutcome::Lost(None)) };
        if row.holder.as_ref() != Some(request.identity) || row.fence != request.fence.get() {
            return Ok(RenewOutcome::Lost(Some(self.record(request.name, row))));
        }
        (row.revision, row.ttl) = (row.revision + 1, request.ttl);
        row.payload = request.payload.unwrap_or(&row.payload).clone();
        row.memo = request.memo.unwrap_or(&row.memo).clone();
        Ok(RenewOutcome::Renewed(self.record(request.name, row)))
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseOutcome, StoreError> {
        let mut rows = self.rows.lock().unwrap();
        let Some(row) = rows.get_mut(request.name) else {
            return Ok(ReleaseOutcome::NotHolder(None));
        };
        let is_it = row.fence == request.fence.get();
        if is_it && row.holder.as_ref() == Some(request.identity) {
            (row.holder, row.revision) = (None, row.revision + 1);
            row.memo = request.memo.unwrap_or(&row.memo).clone();
        }
        if is_it && row.holder.is_none() {
            return Ok(ReleaseOutcome::Released);
        }
        Ok(ReleaseOutcome::NotHolder(Some(self.record(request.name, row))))
    }

    async fn inspect(&self, name: &LeaseName) -> Result<Option<LeaseRecord>, StoreError> {
        Ok(self.rows.lock().unwrap().get(name).map(|row| self.record(name, row)))
    }
}

/// Two processes.
struct Pair {
    one: Store,
    other: Store,
    clock: LeaseClock,
}

impl Subject for Pair {
    type Store = Store;

    fn store(&self) -> &Store {
        &self.one
    }

    fn another_way(&self) -> &Store {
        &self.other
    }

    async fn pass(&self, time: Duration) {
        self.clock.suspend(time);
    }
}

async fn tried(planted: Planted) -> Report {
    let (clock, rows) = (LeaseClock::simulated(), Rows::default());
    let way =
        || Store { planted, clock: clock.clone(), rows: Arc::clone(&rows), seen: Mutex::default() };
    conformance(&Pair { one: way(), other: way(), clock: clock.clone() }).await
}

#[tokio::test(start_paused = true)]
async fn a_store_that_leaves_the_end_to_candidates_keeps_to_the_rules() {
    tried(Planted::Nothing).await.assert();
}

#[tokio::test(start_paused = true)]
async fn who_takes_what_it_has_not_watched_fails_the_case_that_is_about_it() {
    for (planted, moral) in [
        (
            Planted::TakesAtFirstSight,
            "whoever_is_to_see_for_itself_that_it_is_over_takes_nothing_at_first_sight",
        ),
        (Planted::CountsFromTheFirstSightOfTheTerm, "a_renewal_counts_from_when_it_is_made"),
    ] {
        let report = tried(planted).await;
        let is_told = report.failed().iter().any(|(case, _)| case.moral == moral);
        assert!(is_told, "{planted:?} passes {moral}: {report}");
    }
}
