//! What all requests together may repeat.

use crate::support::*;
use buttress_core::{BoxError, Class};
use buttress_retry::{Backoff, Budget, BudgetSettings, RetryLayer, RetrySettings};
use futures_util::future::join_all;
use tokio::time::advance;
use tower::{Layer, Service, ServiceExt};

// BUD-04
#[tokio::test(start_paused = true)]
async fn a_quiet_client_can_repeat_from_its_first_request_on_and_again_a_second_later() {
    let budget = budget(BudgetSettings::default().ratio(0.0).reserve(3).refill(3.0));
    let callee = Callee::always(BUSY);
    let mut service = over(&within(&budget).attempts(2), &callee);
    for _ in 0..2 {
        let before = callee.calls();
        for _ in 0..4 {
            send(&mut service).await.unwrap();
        }
        assert_eq!(callee.calls() - before, 4 + 3, "three failures of four are repeated");
        // Three tokens take a second, and the next step of 156.25 ms.
        advance(1094 * MS).await;
    }
}

// BUD-04
#[tokio::test(start_paused = true)]
async fn requests_that_fail_together_share_what_was_earned() {
    let budget = budget(BudgetSettings::default().ratio(0.5).reserve(0));
    let well = Callee::always(OK);
    let mut service = over(&within(&budget), &well);
    for _ in 0..6 {
        send(&mut service).await.unwrap();
    }
    let callee = Callee::always(later(SEC));
    let service = over(&within(&budget).attempts(2), &callee);
    let calls = join_all((0..6).map(|_| service.clone().oneshot("request")));
    let mut calls = tokio_test::task::spawn(calls);
    assert!(calls.poll().is_pending());
    assert_eq!(budget.balance(), 0.0, "a token is taken before the wait, and held through it");
    assert_eq!((budget.stats().granted, budget.stats().refused), (3, 3));
    calls.await;
    assert_eq!(callee.calls(), 6 + 3);
}

#[tokio::test(start_paused = true)]
async fn an_outage_ends_the_repeats_and_keeps_the_answers() {
    let budget = Budget::default();
    let callee = Callee::always(BUSY);
    let mut service = over(&within(&budget), &callee);
    for nth in 0..1000 {
        assert_eq!(send(&mut service).await.unwrap(), BUSY);
        assert_eq!(callee.calls(), nth + 1 + 2);
    }
    let stats = budget.stats();
    assert_eq!((stats.deposits, stats.granted, stats.refunded), (0, 2, 0));
    assert_eq!(stats.refused, 999, "the first request was out of attempts");
}

#[tokio::test(start_paused = true)]
async fn a_success_is_counted_once_however_many_attempts_it_took() {
    let budget = budget(BudgetSettings::default().ratio(1.0));
    let callee = Callee::new([failed(1), failed(2), Act::Answer(OK)]);
    send(&mut over(&within(&budget), &callee)).await.unwrap();
    assert_eq!((budget.stats().deposits, budget.balance()), (1, 1.0));
}

#[tokio::test(start_paused = true)]
async fn an_error_that_the_classifier_takes_for_a_success_earns_like_one() {
    let budget = budget(BudgetSettings::default().ratio(1.0));
    let layer = RetryLayer::new(Backoff::none(), budget.clone())
        .classify(|_: Result<&(), &BoxError>| Class::Success);
    let gone = tower::service_fn(async |()| Err::<(), _>("gone, as it should be"));
    layer.layer(gone).oneshot(()).await.unwrap_err();
    assert_eq!((budget.stats().deposits, budget.balance()), (1, 3.0));
}

#[tokio::test(start_paused = true)]
async fn what_fails_or_is_the_callers_mistake_earns_nothing() {
    let budget = Budget::default();
    for answer in [WRONG, BUSY, later(ZERO)] {
        send(&mut over(&within(&budget), &Callee::always(answer))).await.unwrap();
    }
    assert_eq!(budget.stats().deposits, 0);
}

// BUD-02
#[tokio::test(start_paused = true)]
async fn every_setting_changes_what_is_granted() {
    async fn granted(settings: BudgetSettings) -> usize {
        let budget = budget(settings);
        (0..1000).for_each(|_| budget.deposit());
        let mut granted = 0;
        for _ in 0..2 {
            granted += (0..).take_while(|_| budget.withdraw().map(|t| t.spend()).is_some()).count();
            advance(1000 * SEC).await;
        }
        granted
    }
    let default = BudgetSettings::default;
    assert_eq!(granted(default()).await, 102 + 2);
    assert_eq!(granted(default().ratio(0.05)).await, 52 + 2);
    assert_eq!(granted(default().reserve(3)).await, 103 + 3);
    assert_eq!(granted(default().refill(0.0)).await, 102);
    assert_eq!(granted(default().cap(50)).await, 50 + 2);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_spent_goes_back_and_the_counters_add_up() {
    let budget = budget(BudgetSettings::default().refill(0.0));
    let (one, two) = (budget.withdraw().unwrap(), budget.withdraw().unwrap());
    assert!(budget.withdraw().is_none());
    drop(one);
    two.spend();
    assert_eq!(budget.balance(), 1.0);
    let stats = budget.stats();
    assert_eq!((stats.granted, stats.refused, stats.refunded), (2, 1, 1));
    assert_eq!(stats.balance, 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_pause_of_years_leaves_a_budget_in_use() {
    for years in [1, 5, 10, 11, 15, 20, 21] {
        let budget = Budget::default();
        (0..1000).for_each(|_| budget.deposit());
        while let Some(token) = budget.withdraw() {
            token.spend();
        }
        advance(years * 365 * 86_400 * SEC).await;
        assert_eq!(budget.balance(), 2.0, "after {years} years");
        (0..1000).for_each(|_| budget.deposit());
        assert_eq!(budget.balance(), 102.0);
        advance(3600 * SEC).await;
        assert_eq!(budget.balance(), 2.0);
    }
}

#[test]
fn a_budget_works_where_no_runtime_is() {
    let budget = Budget::default();
    budget.deposit();
    budget.withdraw().unwrap().spend();
    assert!(budget.balance() >= 1.0);
}

#[test]
fn a_budget_whose_clock_goes_back_gives_nothing_away() {
    let budget = budget(BudgetSettings::default().reserve(3));
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap()
    };
    // Two runtimes, each with a paused clock of its own: one is an hour ahead of the other.
    let (ahead, behind) = (runtime(), runtime());
    ahead.block_on(async {
        advance(3600 * SEC).await;
        (0..3).for_each(|_| budget.withdraw().unwrap().spend());
    });
    for _ in 0..10 {
        behind.block_on(async { assert!(budget.withdraw().is_none()) });
        ahead.block_on(async { assert!(budget.withdraw().is_none()) });
    }
}

// BUD-02
#[tokio::test(start_paused = true)]
async fn threads_that_ask_at_once_overdraw_nothing() {
    let budget = budget(BudgetSettings::default().reserve(1000).refill(0.0));
    let granted: usize = std::thread::scope(|scope| {
        let take = || (0..).take_while(|_| budget.withdraw().map(|t| t.spend()).is_some()).count();
        let all: Vec<_> = (0..8).map(|_| scope.spawn(take)).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!((granted, budget.stats().granted, budget.stats().refused), (1000, 1000, 8));
}

// BKO-10
#[test]
fn settings_are_refused_by_name() {
    let refused = |settings: RetrySettings| {
        let error = RetryLayer::from_settings(&settings, Budget::default()).unwrap_err();
        error.setting().to_owned()
    };
    let default = RetrySettings::default;
    assert_eq!(refused(default().attempts(0)), "attempts");
    assert_eq!(refused(default().base(6 * SEC)), "base");
    assert_eq!(refused(default().cap(ZERO)), "base");
    let max = std::time::Duration::MAX;
    for works in [
        default(),
        default().attempts(u32::MAX),
        default().base(ZERO).cap(ZERO),
        default().base(max).cap(max),
        default().max_retry_after(ZERO),
        default().max_retry_after(max),
    ] {
        assert!(RetryLayer::from_settings(&works, Budget::default()).is_ok(), "{works:?}");
    }
    let error = Budget::new(BudgetSettings::default().ratio(f64::NAN)).unwrap_err();
    assert_eq!(error.setting(), "ratio");
}

#[test]
#[should_panic(expected = "invalid setting `attempts`: must be at least 1")]
fn no_attempts_in_the_code_are_a_panic() {
    let _ = RetryLayer::new(Backoff::none(), Budget::default()).attempts(0);
}

#[tokio::test(start_paused = true)]
async fn settings_and_setters_make_the_same_layer() {
    let settings = RetrySettings::default().attempts(2).base(ZERO).max_retry_after(SEC);
    let callee = Callee::new([later(SEC), later(2 * SEC)].map(Act::Answer));
    let layer = RetryLayer::from_settings(&settings, rich()).unwrap();
    let layer = layer.classify(classify as Classifier);
    let answer: Result<_, BoxError> =
        layer.layer(callee.clone()).ready().await.unwrap().call("x").await;
    assert_eq!((answer.unwrap(), callee.calls(), callee.elapsed()), (later(2 * SEC), 2, SEC));
}

#[cfg(feature = "serde")]
mod files {
    use super::*;

    #[test]
    fn settings_survive_a_file_and_unknown_fields_are_refused() {
        let retry = RetrySettings::default().attempts(7).base(250 * MS);
        let written = serde_json::to_string(&retry).unwrap();
        assert!(written.contains(r#""base":"250ms""#), "{written}");
        assert_eq!(serde_json::from_str::<RetrySettings>(&written).unwrap(), retry);
        assert_eq!(serde_json::from_str::<RetrySettings>("{}").unwrap(), RetrySettings::default());
        assert!(serde_json::from_str::<RetrySettings>(r#"{"retries":3}"#).is_err());

        let budget = BudgetSettings::default().ratio(0.25).cap(9);
        let written = serde_json::to_string(&budget).unwrap();
        assert_eq!(serde_json::from_str::<BudgetSettings>(&written).unwrap(), budget);
        assert_eq!(
            serde_json::from_str::<BudgetSettings>("{}").unwrap(),
            BudgetSettings::default()
        );
        assert!(serde_json::from_str::<BudgetSettings>(r#"{"ratios":1}"#).is_err());
    }
}
