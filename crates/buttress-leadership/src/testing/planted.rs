//! The suite against stores that break one rule each: a case that nothing fails is decoration.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use bytes::Bytes;
use tokio::task::yield_now;

use super::{RealTime, Report, Simulated, conformance};
use crate::{
    AcquireOutcome, AcquireRequest, Expiry, FencingToken, Identity, LeaseClock, LeaseName,
    LeaseRecord, LeaseStore, MemoryStore, ReleaseOutcome, ReleaseRequest, RenewOutcome,
    RenewRequest, StoreCapabilities, StoreError, StoreTime,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    Nothing,
    // Rule 1.
    ReadsAndThenWrites,
    EndsEarly,
    NeverEnds,
    FoldsTheCaseOfNames,
    ComparesTheBeginningOfIdentities,
    // Rule 2.
    DeletesTheTokenWithARelease,
    KeepsTheTokenAfterARelease,
    KeepsTheTokenAfterTheEnd,
    KeepsTheTokenForTheSameHolder,
    DoesNotAskWhatTokenWasSeen,
    // Rule 3.
    RenewsForWhoAsksAgain,
    TakesThePayloadOfWhoAsksAgain,
    // Rule 4.
    RenewsWhatHasExpired,
    RenewsWithAnyToken,
    RenewsForAnybody,
    TakesTheTokenOfEachRenewalForANewOne,
    DropsThePayloadAtARenewal,
    CountsARenewalFromTheLastEnd,
    // Rule 5.
    ReleasesWithAnyToken,
    ReleasesForAnybody,
    RefusesTheSecondRelease,
    DropsTheMemoAtARelease,
    // Rule 6.
    SaysTheTimeOfAnotherClock,
    SaysWhatWasBefore,
    WritesAsItLooks,
    // Rule 7.
    WritesHolderAndTokenInTwoSteps,
    TakesALockThatADropKeeps,
    // Rule 8.
    GrantsMoreThanItEnforces,
    GrantsMoreAtARenewal,
    CapsARenewalAndDoesNotSaySo,
}

struct Store {
    planted: Planted,
    clock: LeaseClock,
    rows: Mutex<HashMap<String, Row>>,
}

#[derive(Clone)]
struct Row {
    holder: Option<Identity>,
    fence: u64,
    acquired: u64,
    renewed: u64,
    expires: u64,
    said: Duration,
    payload: Bytes,
    memo: Bytes,
    revision: u64,
    before: Option<Box<Row>>,
    is_locked: bool,
}

impl Store {
    fn has(&self, planted: Planted) -> bool {
        self.planted == planted
    }

    fn now(&self) -> u64 {
        self.clock.now().as_nanos()
    }

    fn rows(&self) -> MutexGuard<'_, HashMap<String, Row>> {
        self.rows.lock().unwrap()
    }

    fn key(&self, name: &LeaseName) -> String {
        let name = name.as_str();
        let folds = self.has(Planted::FoldsTheCaseOfNames);
        if folds { name.to_lowercase() } else { name.to_owned() }
    }

    fn is_held(&self, row: &Row, now: u64) -> bool {
        let expires = match self.planted {
            Planted::EndsEarly => row.expires - (row.expires - row.renewed) / 2,
            Planted::NeverEnds => u64::MAX,
            _ => row.expires,
        };
        row.holder.is_some() && now < expires
    }

    fn is_holder(&self, row: &Row, who: &Identity) -> bool {
        row.holder.as_ref().is_some_and(|holder| {
            let prefix = self.has(Planted::ComparesTheBeginningOfIdentities);
            holder == who || prefix && who.as_str().starts_with(holder.as_str())
        })
    }

    fn record(&self, name: &LeaseName, row: &Row, now: u64) -> LeaseRecord {
        let says_other = self.has(Planted::SaysTheTimeOfAnotherClock);
        let shift = if says_other { 100_000_000_000 } else { 0 };
        let at = StoreTime::from_nanos;
        let fence = FencingToken::new(row.fence).unwrap();
        let mut record = LeaseRecord::vacant(name.clone(), fence, at(now - shift));
        record.holder.clone_from(&row.holder);
        record.granted_ttl = row.said;
        record.acquired_at = at(row.acquired);
        record.renewed_at = at(row.renewed);
        // What it says it grants, it says of the end too.
        record.expires_at = match row.holder {
            Some(_) => at(row.renewed + row.said.as_nanos() as u64),
            None => at(now),
        };
        record.payload = row.payload.clone();
        record.memo = row.memo.clone();
        record.revision = row.revision;
        record
    }
}

impl LeaseStore for Store {
    fn capabilities(&self) -> StoreCapabilities {
        StoreCapabilities::new(Expiry::Server)
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome, StoreError> {
        let key = self.key(request.name);
        let seen = self.rows().get(&key).cloned();
        if self.has(Planted::ReadsAndThenWrites) {
            yield_now().await;
        }
        let before = if self.has(Planted::ReadsAndThenWrites) {
            seen
        } else {
            self.rows().get(&key).cloned()
        };
        let now = self.now();
        if let Some(mut row) = before.clone().filter(|row| self.is_held(row, now)) {
            if row.holder.as_ref() == Some(request.identity) {
                if self.has(Planted::RenewsForWhoAsksAgain) {
                    (row.renewed, row.expires) = (now, now + request.ttl.as_nanos() as u64);
                }
                if self.has(Planted::TakesThePayloadOfWhoAsksAgain) {
                    row.payload = request.payload.clone();
                }
            }
            let record = self.record(request.name, &row, now);
            self.rows().insert(key, row);
            return Ok(AcquireOutcome::Held(record));
        }
        let (mut last, was_released, was_mine) = before.as_ref().map_or((0, true, false), |row| {
            (row.fence, row.holder.is_none(), row.holder.as_ref() == Some(request.identity))
        });
        let keeps = match self.planted {
            Planted::KeepsTheTokenAfterARelease => was_released,
            Planted::KeepsTheTokenAfterTheEnd => !was_released,
            Planted::KeepsTheTokenForTheSameHolder => was_mine,
            _ => false,
        };
        if keeps && last > 0 {
            last -= 1;
        }
        if !self.has(Planted::DoesNotAskWhatTokenWasSeen) {
            last = last.max(request.after.map_or(0, FencingToken::get));
        }
        let ttl = request.ttl;
        let said = if self.has(Planted::GrantsMoreThanItEnforces) { 2 * ttl } else { ttl };
        let mut row = Row {
            holder: Some(request.identity.clone()),
            fence: last + 1,
            acquired: now,
            renewed: now,
            expires: now + ttl.as_nanos() as u64,
            said,
            payload: request.payload.clone(),
            memo: before.as_ref().map(|row| row.memo.clone()).unwrap_or_default(),
            revision: before.as_ref().map_or(0, |row| row.revision) + 1,
            before: None,
            is_locked: false,
        };
        if self.has(Planted::WritesHolderAndTokenInTwoSteps) {
            row.fence = last.max(1);
            self.rows().insert(key.clone(), row.clone());
            yield_now().await;
            row.fence = last + 1;
        }
        row.before = before.map(Box::new);
        let record = self.record(request.name, &row, now);
        self.rows().insert(key, row);
        Ok(AcquireOutcome::Acquired(record))
    }

    async fn renew(&self, request: RenewRequest<'_>) -> Result<RenewOutcome, StoreError> {
        let key = self.key(request.name);
        if self.has(Planted::TakesALockThatADropKeeps) {
            let was_locked = {
                let mut rows = self.rows();
                rows.get_mut(&key).is_some_and(|row| std::mem::replace(&mut row.is_locked, true))
            };
            if was_locked {
                return Err(StoreError::NotApplied("it is locked".into()));
            }
            yield_now().await;
            if let Some(row) = self.rows().get_mut(&key) {
                row.is_locked = false;
            }
        }
        let mut rows = self.rows();
        let now = self.now();
        let Some(row) = rows.get_mut(&key) else { return Ok(RenewOutcome::Lost(None)) };
        let is_held = self.is_held(row, now)
            || self.has(Planted::RenewsWhatHasExpired) && row.holder.is_some();
        let is_mine = self.is_holder(row, request.identity) || self.has(Planted::RenewsForAnybody);
        let is_it = row.fence == request.fence.get() || self.has(Planted::RenewsWithAnyToken);
        if !(is_held && is_mine && is_it) {
            return Ok(RenewOutcome::Lost(Some(self.record(request.name, row, now))));
        }
        row.before = Some(Box::new(Row { before: None, ..row.clone() }));
        let from = if self.has(Planted::CountsARenewalFromTheLastEnd) { row.expires } else { now };
        let ttl = match self.planted {
            Planted::CapsARenewalAndDoesNotSaySo => request.ttl.min(Duration::from_secs(1)),
            _ => request.ttl,
        };
        let says_more = self.has(Planted::GrantsMoreAtARenewal);
        row.said = if says_more { 2 * request.ttl } else { request.ttl };
        (row.renewed, row.expires) = (from, from + ttl.as_nanos() as u64);
        row.revision += 1;
        if self.has(Planted::TakesTheTokenOfEachRenewalForANewOne) {
            row.fence += 1;
        }
        match request.payload {
            Some(payload) => row.payload = payload.clone(),
            None if self.has(Planted::DropsThePayloadAtARenewal) => row.payload = Bytes::new(),
            None => {}
        }
        if let Some(memo) = request.memo {
            row.memo = memo.clone();
        }
        Ok(RenewOutcome::Renewed(self.record(request.name, row, now)))
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseOutcome, StoreError> {
        let key = self.key(request.name);
        let mut rows = self.rows();
        let now = self.now();
        let Some(row) = rows.get_mut(&key) else { return Ok(ReleaseOutcome::NotHolder(None)) };
        let is_it = row.fence == request.fence.get() || self.has(Planted::ReleasesWithAnyToken);
        let is_mine =
            self.is_holder(row, request.identity) || self.has(Planted::ReleasesForAnybody);
        if row.holder.is_some() && is_mine && is_it {
            row.before = Some(Box::new(Row { before: None, ..row.clone() }));
            row.holder = None;
            row.payload = Bytes::new();
            row.revision += 1;
            if let Some(memo) = request.memo {
                row.memo = memo.clone();
            }
            if self.has(Planted::DropsTheMemoAtARelease) {
                row.memo = Bytes::new();
            }
            if self.has(Planted::DeletesTheTokenWithARelease) {
                rows.remove(&key);
            }
            return Ok(ReleaseOutcome::Released);
        }
        let is_done = row.holder.is_none() && row.fence == request.fence.get();
        if is_done && !self.has(Planted::RefusesTheSecondRelease) {
            return Ok(ReleaseOutcome::Released);
        }
        Ok(ReleaseOutcome::NotHolder(Some(self.record(request.name, row, now))))
    }

    async fn inspect(&self, name: &LeaseName) -> Result<Option<LeaseRecord>, StoreError> {
        let mut rows = self.rows();
        let now = self.now();
        let Some(row) = rows.get_mut(&self.key(name)) else { return Ok(None) };
        if self.has(Planted::WritesAsItLooks) && row.holder.is_some() {
            (row.renewed, row.expires) = (now, now + (row.expires - row.renewed));
        }
        let row: &Row = match &row.before {
            Some(before) if self.has(Planted::SaysWhatWasBefore) => before,
            _ => row,
        };
        Ok(Some(self.record(name, row, now)))
    }
}

async fn tried(planted: Planted) -> Report {
    let clock = LeaseClock::simulated();
    let store = Store { planted, clock: clock.clone(), rows: Mutex::default() };
    conformance(&Simulated::new(store, clock)).await
}

#[tokio::test(start_paused = true)]
async fn every_broken_rule_fails_the_case_that_is_about_it() {
    use Planted::*;
    let told = [
        (ReadsAndThenWrites, "of_many_who_ask_at_the_same_time_one_gets_it"),
        (EndsEarly, "a_lease_is_held_to_its_end"),
        (NeverEnds, "a_lease_that_has_expired_goes_to_whoever_asks"),
        (FoldsTheCaseOfNames, "every_name_is_a_lease_of_its_own"),
        (ComparesTheBeginningOfIdentities, "every_name_is_a_lease_of_its_own"),
        (DeletesTheTokenWithARelease, "a_token_is_greater_after_a_release"),
        (KeepsTheTokenAfterARelease, "a_token_is_greater_after_a_release"),
        (KeepsTheTokenAfterTheEnd, "a_token_is_greater_after_the_end"),
        (KeepsTheTokenForTheSameHolder, "a_token_is_greater_for_the_same_holder_too"),
        (
            DoesNotAskWhatTokenWasSeen,
            "a_token_that_is_counted_is_greater_than_what_the_candidate_has_seen",
        ),
        (RenewsForWhoAsksAgain, "whoever_has_it_and_asks_again_renews_nothing"),
        (TakesThePayloadOfWhoAsksAgain, "whoever_has_it_and_asks_again_changes_nothing"),
        (RenewsWhatHasExpired, "what_has_expired_is_renewed_by_nobody"),
        (RenewsWithAnyToken, "another_token_renews_nothing"),
        (RenewsForAnybody, "somebody_elses_name_renews_nothing"),
        (TakesTheTokenOfEachRenewalForANewOne, "a_token_stays_as_long_as_its_term"),
        (DropsThePayloadAtARenewal, "a_renewal_changes_what_it_is_told_to_and_nothing_else"),
        (CountsARenewalFromTheLastEnd, "the_times_of_a_record_are_in_order"),
        (ReleasesWithAnyToken, "a_release_with_another_token_gives_nothing_back"),
        (ReleasesForAnybody, "a_release_by_somebody_else_gives_nothing_back"),
        (RefusesTheSecondRelease, "a_release_twice_is_as_once"),
        (DropsTheMemoAtARelease, "what_holders_leave_outlives_them"),
        (SaysTheTimeOfAnotherClock, "the_time_and_the_end_are_of_one_clock"),
        (SaysWhatWasBefore, "what_was_answered_is_seen"),
        (WritesAsItLooks, "to_look_changes_nothing"),
        (WritesHolderAndTokenInTwoSteps, "an_acquire_that_is_dropped_is_done_or_not"),
        (TakesALockThatADropKeeps, "a_renewal_that_is_dropped_is_done_or_not"),
        (GrantsMoreThanItEnforces, "what_is_granted_is_enforced"),
        (GrantsMoreAtARenewal, "what_a_renewal_grants_is_enforced"),
        (CapsARenewalAndDoesNotSaySo, "a_longer_renewal_is_enforced_or_not_granted"),
    ];
    for (planted, moral) in told {
        let report = tried(planted).await;
        let is_told = report.failed().iter().any(|(case, _)| case.moral == moral);
        assert!(is_told, "{planted:?} passes {moral}: {report}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_with_nothing_planted_fails_no_case() {
    tried(Planted::Nothing).await.assert();
}

#[tokio::test(start_paused = true)]
async fn the_store_in_memory_keeps_to_the_rules() {
    let clock = LeaseClock::simulated();
    let store = MemoryStore::with_clock(clock.clone());
    let report = conformance(&Simulated::new(store, clock)).await;
    report.assert();
    assert!(report.passed().len() >= 2 * 35, "{report}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_grants_less_than_is_asked_keeps_to_the_rules() {
    let clock = LeaseClock::simulated();
    let short = Duration::from_millis(700);
    let store = MemoryStore::with_clock(clock.clone()).grant_at_most(short);
    conformance(&Simulated::new(store, clock)).await.assert();
}

/// Time passes by itself, as with a server: here it is the paused clock that does not make us wait.
#[tokio::test(start_paused = true)]
async fn a_store_whose_clock_nobody_sets_keeps_to_the_rules() {
    conformance(&RealTime::new(MemoryStore::new())).await.assert();
}

#[tokio::test(start_paused = true)]
async fn a_report_says_which_case_failed_and_how() {
    let report = tried(Planted::RenewsWhatHasExpired).await;
    let text = report.to_string();
    assert!(
        text.contains("rule 4, what_has_expired_is_renewed_by_nobody (on a new lease): renewed")
    );
    assert!(std::panic::catch_unwind(|| report.assert()).is_err());
}
