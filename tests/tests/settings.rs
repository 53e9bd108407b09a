//! Settings of the whole stack: what cannot work is refused, and the error names what is wrong. What is wrong
//! with one pattern's settings alone is tested where they are.

use std::time::Duration;

use buttress::{
    BreakerSettings, BudgetSettings, BulkheadSettings, InvalidSetting, RetrySettings, Standard,
    StandardSettings, Warning, Window,
};
use tower::{Layer, ServiceExt, service_fn};

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn refused(settings: StandardSettings) -> InvalidSetting {
    Standard::generic().settings(settings).build().expect_err("it cannot work")
}

fn with(change: impl FnOnce(&mut StandardSettings)) -> StandardSettings {
    let mut settings = StandardSettings::default();
    change(&mut settings);
    settings
}

#[test]
fn the_defaults_work_and_fit() {
    let stack = Standard::generic().build().unwrap();
    assert_eq!(stack.warnings(), []);
    assert_eq!(stack.settings(), &StandardSettings::default());
}

// BKO-10
#[test]
fn every_setting_that_cannot_work_is_named() {
    let nan = f64::NAN;
    let table = [
        ("total", with(|s| s.total = Duration::ZERO)),
        ("attempt", with(|s| s.attempt = Duration::ZERO)),
        ("attempt", with(|s| s.attempt = Duration::MAX)),
        ("attempt", with(|s| s.attempt = secs(31))),
        (
            "bulkhead.max_wait",
            with(|s| s.bulkhead = BulkheadSettings::new(1).max_waiting(1).max_wait(secs(30))),
        ),
        ("bulkhead.limit", with(|s| s.bulkhead = BulkheadSettings::new(0))),
        ("bulkhead.limit", with(|s| s.bulkhead = BulkheadSettings::new(usize::MAX))),
        ("retry.attempts", with(|s| s.retry = RetrySettings::default().attempts(0))),
        ("retry.base", with(|s| s.retry = RetrySettings::default().base(secs(6)))),
        ("total", with(|s| s.retry = RetrySettings::default().attempts(4))),
        ("total", with(|s| s.retry = RetrySettings::default().attempts(u32::MAX))),
        ("budget.ratio", with(|s| s.budget = BudgetSettings::default().ratio(nan))),
        ("budget.ratio", with(|s| s.budget = BudgetSettings::default().ratio(10.1))),
        (
            "breaker.failure_rate",
            with(|s| s.breaker = BreakerSettings::default().failure_rate(nan)),
        ),
        (
            "breaker.min_calls",
            with(|s| s.breaker = BreakerSettings::default().window(Window::calls(5))),
        ),
    ];
    for (name, settings) in table {
        let error = refused(settings);
        assert_eq!(error.setting(), name, "{error}");
    }
}

#[test]
fn rules_between_two_settings_name_both() {
    let error = refused(with(|s| s.attempt = secs(31))).to_string();
    assert!(error.contains("`attempt`") && error.contains("`total`"), "{error}");
    let error = refused(with(|s| s.retry = RetrySettings::default().attempts(4))).to_string();
    assert!(error.contains("`total`") && error.contains("`retry.attempts`"), "{error}");
    let bulkhead = BulkheadSettings::new(1).max_waiting(1).max_wait(secs(60));
    let error = refused(with(|s| s.bulkhead = bulkhead)).to_string();
    assert!(error.contains("`bulkhead.max_wait`") && error.contains("`total`"), "{error}");
}

#[test]
fn a_wait_that_is_never_made_needs_no_room() {
    // One attempt gets what there is; a queue of none has no longest wait.
    let once = with(|s| {
        s.attempt = s.total;
        s.retry = RetrySettings::default().attempts(1);
        s.bulkhead = BulkheadSettings::new(1).max_wait(secs(60));
    });
    Standard::generic().settings(once).build().unwrap();
    // Many attempts fit if each is short.
    let many = with(|s| {
        s.attempt = Duration::from_millis(1);
        s.retry =
            RetrySettings::default().attempts(100_000).base(Duration::ZERO).cap(Duration::ZERO);
        s.total = secs(100);
    });
    Standard::generic().settings(many).build().unwrap();
}

#[test]
fn a_window_shorter_than_an_attempt_is_a_warning_and_no_error() {
    let breaker = BreakerSettings::default().window(Window::time(secs(9)));
    let stack = Standard::generic().breaker(breaker).build().unwrap();
    let warning = Warning::WindowShorterThanAttempt { window: secs(9), attempt: secs(10) };
    assert_eq!(stack.warnings(), std::slice::from_ref(&warning));
    assert!(warning.to_string().contains("`breaker.window`"));
}

// BKO-10
#[test]
fn a_probe_keeps_its_place_for_longer_than_an_attempt_may_take() {
    let lease = |breaker: BreakerSettings| {
        let stack = Standard::generic().breaker(breaker).build().unwrap();
        (stack.breakers().settings().probe_lease, stack.warnings().to_vec())
    };
    assert_eq!(lease(BreakerSettings::default()), (Some(secs(11)), vec![]));
    let patient = BreakerSettings::default().open(secs(20));
    assert_eq!(lease(patient), (Some(secs(20)), vec![]));
    let short = BreakerSettings::default().probe_lease(secs(10));
    let warning = Warning::LeaseWithinAttempt { lease: secs(10), attempt: secs(10) };
    assert!(warning.to_string().contains("`breaker.probe_lease`"));
    assert_eq!(lease(short), (Some(secs(10)), vec![warning]));
}

#[tokio::test(start_paused = true)]
async fn never_is_a_total_and_a_nanosecond_an_attempt() {
    let never = Standard::generic().total(Duration::MAX).attempt(Duration::MAX).attempts(1);
    let echo = service_fn(|n: u32| async move { Ok::<_, std::io::Error>(n) });
    assert_eq!(never.build().unwrap().layer(echo).oneshot(7).await.unwrap(), 7);

    let short = Standard::generic().attempt(Duration::from_nanos(1)).attempts(1).build().unwrap();
    let hangs = service_fn(|_: u32| std::future::pending::<Result<u32, std::io::Error>>());
    let error = short.layer(hangs).oneshot(7).await.unwrap_err();
    assert_eq!(error.to_string(), "attempt timed out: no answer within 1ns");
}

#[test]
fn a_slow_call_is_half_an_attempt_unless_it_is_said_otherwise() {
    let slow = |builder: buttress::BreakerSettings| {
        let stack = Standard::generic().attempt(secs(8)).breaker(builder).build().unwrap();
        stack.breakers().settings().slow_call
    };
    assert_eq!(slow(BreakerSettings::default()), Some(secs(4)));
    assert_eq!(slow(BreakerSettings::default().slow_call(secs(1))), Some(secs(1)));
    assert_eq!(slow(BreakerSettings::default().slow_call(Duration::MAX)), Some(Duration::MAX));
}

#[test]
fn settings_come_from_a_file_and_a_typing_error_in_it_is_found() {
    let file = r#"{
        "total": "2s",
        "attempt": "500ms",
        "bulkhead": { "limit": 10, "max_waiting": 5, "max_wait": "100ms" },
        "retry": { "attempts": 2, "base": "10ms", "cap": "1s" },
        "budget": { "ratio": 0.2 },
        "breaker": { "window": { "time": "3s" }, "open": "1s", "open_max": "4s" }
    }"#;
    let settings: StandardSettings = serde_json::from_str(file).unwrap();
    let expected = with(|s| {
        s.total = secs(2);
        s.attempt = Duration::from_millis(500);
        s.bulkhead = BulkheadSettings::new(10).max_waiting(5).max_wait(Duration::from_millis(100));
        s.retry = RetrySettings::default().attempts(2).base(Duration::from_millis(10)).cap(secs(1));
        s.budget = BudgetSettings::default().ratio(0.2);
        s.breaker = BreakerSettings::default()
            .window(Window::time(secs(3)))
            .open(secs(1))
            .open_max(secs(4));
    });
    assert_eq!(settings, expected);
    Standard::generic().settings(settings.clone()).build().unwrap();

    let written = serde_json::to_string(&settings).unwrap();
    assert_eq!(serde_json::from_str::<StandardSettings>(&written).unwrap(), settings);

    for (typo, word) in [
        (r#"{ "totl": "2s" }"#, "totl"),
        (r#"{ "breaker": { "windw": "2s" } }"#, "windw"),
        (r#"{ "total": 2 }"#, "duration"),
        (r#"{ "budget": { "ratio": "a lot" } }"#, "f64"),
    ] {
        let error = serde_json::from_str::<StandardSettings>(typo).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}
