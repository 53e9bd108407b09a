//! Settings that cannot work are refused when they are made, and the error says which.

use std::time::Duration;

use buttress_breaker::{Breaker, BreakerSettings, Breakers, Window};
use buttress_core::{Class, Permit};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn ours() -> BreakerSettings {
    BreakerSettings::default()
}

#[track_caller]
fn refused(settings: BreakerSettings, field: &str) {
    let error = Breaker::new(settings.clone()).expect_err(&format!("{settings:?}"));
    assert_eq!(error.setting(), field, "{error}");
    assert_eq!(settings.check().unwrap_err(), error);
    let error = Breakers::<u32, _>::new(settings, |key: &u32| *key).unwrap_err();
    assert_eq!(error.setting(), field, "a map of them: {error}");
}

#[track_caller]
fn works(settings: BreakerSettings) {
    // Not only made: used, through a whole outage.
    let breaker = Breaker::new(settings.clone()).unwrap_or_else(|error| panic!("{error}"));
    let calls = settings.consecutive.unwrap_or(0).max(settings.min_calls).min(1_000);
    for _ in 0..calls {
        if let Ok(admission) = breaker.admit() {
            admission.report(Class::Fatal);
        }
    }
    let _ = (breaker.admit(), breaker.state(), breaker.stats());
}

#[test]
fn defaults_and_presets_work() {
    works(ours());
    works(BreakerSettings::quiet());
    assert_eq!(BreakerSettings::quiet(), ours().consecutive(5));
    let breaker = Breaker::default();
    assert_eq!(breaker.settings(), &ours());
}

// BKO-10
#[test]
fn a_window_holds_at_least_a_call_and_not_all_of_them() {
    refused(ours().window(Window::calls(0)).min_calls(1), "window");
    refused(ours().window(Window::calls(100_001)), "window");
    refused(ours().window(Window::calls(u32::MAX)), "window");
    refused(ours().window(Window::time(Duration::ZERO)), "window");
    refused(ours().window(Window::time(Duration::from_nanos(999_999))), "window");
    refused(ours().window(Window::time(DAY + Duration::from_nanos(1))), "window");
    refused(ours().window(Window::time(Duration::MAX)), "window");
    works(ours().window(Window::calls(1)).min_calls(1));
    works(ours().window(Window::calls(100_000)));
    works(ours().window(Window::time(Duration::from_millis(1))));
    works(ours().window(Window::time(DAY)));
}

// CBK-10
#[test]
fn a_minimum_that_the_window_cannot_hold_would_never_open_it() {
    refused(ours().window(Window::calls(5)).min_calls(10), "min_calls");
    refused(ours().window(Window::calls(19)), "min_calls");
    refused(ours().min_calls(0), "min_calls");
    refused(ours().window(Window::calls(10)).min_calls(0), "min_calls");
    refused(ours().min_calls(1_000_001), "min_calls");
    refused(ours().min_calls(u32::MAX), "min_calls");
    works(ours().window(Window::calls(20)).min_calls(20));
    works(ours().min_calls(1_000_000));
}

#[test]
fn a_rate_is_a_share_and_not_nothing() {
    let (nan, infinity) = (f64::NAN, f64::INFINITY);
    for rate in [0.0, -0.0, -0.1, 1.000_001, 50.0, f64::MAX, f64::MIN, nan, infinity, -infinity] {
        refused(ours().failure_rate(rate), "failure_rate");
        refused(ours().slow_rate(rate), "slow_rate");
    }
    for rate in [f64::MIN_POSITIVE, 0.5, 1.0] {
        works(ours().failure_rate(rate));
        works(ours().slow_rate(rate));
    }
}

// BKO-10
#[test]
fn a_call_is_slow_after_some_time() {
    refused(ours().slow_call(Duration::ZERO), "slow_call");
    works(ours().slow_call(Duration::from_nanos(1)));
    works(ours().slow_call(Duration::MAX));
    works(ours().slow_call(None));
}

#[test]
fn a_run_is_of_at_least_one_failure() {
    refused(ours().consecutive(0), "consecutive");
    refused(ours().consecutive(1_000_001), "consecutive");
    refused(ours().consecutive(u32::MAX), "consecutive");
    works(ours().consecutive(1));
    works(ours().consecutive(1_000_000));
    works(ours().consecutive(None));
}

// BKO-10
#[test]
fn it_stays_open_for_some_time_and_at_most_the_longest() {
    refused(ours().open(Duration::ZERO), "open");
    refused(ours().open(Duration::ZERO).open_max(Duration::ZERO), "open");
    refused(ours().open(61 * SECOND), "open_max");
    refused(ours().open(Duration::MAX), "open_max");
    refused(ours().open_max(Duration::ZERO), "open_max");
    works(ours().open(60 * SECOND));
    works(ours().open(Duration::from_nanos(1)).open_max(Duration::from_nanos(1)));
    works(ours().open_max(Duration::MAX));
    works(ours().open(Duration::MAX).open_max(Duration::MAX));
}

#[test]
fn jitter_is_less_than_the_whole() {
    for jitter in [1.0, -0.1, 2.0, f64::MAX, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        refused(ours().open_jitter(jitter), "open_jitter");
    }
    works(ours().open_jitter(0.0));
    works(ours().open_jitter(0.999));
}

// BKO-10
#[test]
fn there_is_at_least_one_probe_and_no_herd_of_them() {
    refused(ours().probes(0), "probes");
    refused(ours().probes(1_001), "probes");
    refused(ours().probes(u32::MAX), "probes");
    refused(ours().probe_lease(Duration::ZERO), "probe_lease");
    works(ours().probes(1));
    works(ours().probes(1_000));
    works(ours().probe_lease(Duration::from_nanos(1)));
    works(ours().probe_lease(Duration::MAX));
    works(ours().probe_lease(None));
}

#[test]
fn a_map_has_room_for_at_least_one() {
    let with_capacity =
        |capacity| Breakers::<u32, _>::with_capacity(capacity, ours(), |key: &u32| *key);
    for capacity in [0, 10_000_001, usize::MAX] {
        assert_eq!(with_capacity(capacity).unwrap_err().setting(), "capacity");
    }
    assert_eq!(with_capacity(1).unwrap().capacity(), 1);
    assert_eq!(with_capacity(10_000_000).unwrap().capacity(), 10_000_000);
    assert_eq!(Breakers::<u32, _>::new(ours(), |key: &u32| *key).unwrap().capacity(), 10_000);
}

// CBK-10
#[test]
fn the_documented_defaults_are_those_of_the_code() {
    let defaults = ours();
    let Window::Time(window) = defaults.window else { panic!("a time window") };
    let off = |none: bool| if none { "off" } else { "on" }.to_owned();
    let seconds = |time: Duration| format!("{} s", time.as_secs());
    let rows = [
        ("window", seconds(window)),
        ("min_calls", defaults.min_calls.to_string()),
        ("failure_rate", defaults.failure_rate.to_string()),
        ("slow_call", off(defaults.slow_call.is_none())),
        ("slow_rate", defaults.slow_rate.to_string()),
        ("consecutive", off(defaults.consecutive.is_none())),
        ("open", seconds(defaults.open)),
        ("open_max", seconds(defaults.open_max)),
        ("open_jitter", defaults.open_jitter.to_string()),
        ("probes", defaults.probes.to_string()),
        ("throttled_is_failure", if defaults.throttled_is_failure { "yes" } else { "no" }.into()),
    ];
    let root = env!("CARGO_MANIFEST_DIR");
    for file in ["src/settings.rs", "../../docs/breaker.md"] {
        let text = std::fs::read_to_string(format!("{root}/{file}")).unwrap();
        for (setting, value) in &rows {
            let row = format!("| `{setting}` | {value} |");
            assert!(text.contains(&row), "{file} does not say: {row}");
        }
    }
}

#[cfg(feature = "serde")]
mod from_files {
    use super::*;

    fn read(json: &str) -> Result<BreakerSettings, serde_json::Error> {
        serde_json::from_str(json)
    }

    #[test]
    fn what_is_not_said_is_as_by_default() {
        assert_eq!(read("{}").unwrap(), ours());
        let some = read(r#"{ "name": "orders", "slow_call": "250ms", "consecutive": 5 }"#).unwrap();
        let expected = BreakerSettings::quiet().name("orders").slow_call(SECOND / 4);
        assert_eq!(some, expected);
    }

    #[test]
    fn windows_are_of_calls_or_of_time() {
        let calls = read(r#"{ "window": { "calls": 100 } }"#).unwrap();
        assert_eq!(calls.window, Window::calls(100));
        let time = read(r#"{ "window": { "time": "1m 30s" } }"#).unwrap();
        assert_eq!(time.window, Window::time(90 * SECOND));
    }

    #[test]
    fn what_is_written_is_read_back() {
        let all = BreakerSettings::quiet()
            .name("orders")
            .window(Window::calls(64))
            .slow_call(SECOND)
            .probe_lease(3 * SECOND)
            .throttled_is_failure(true)
            .shadow(true);
        for settings in [all, ours()] {
            let written = serde_json::to_string(&settings).unwrap();
            assert_eq!(read(&written).unwrap(), settings, "{written}");
        }
    }

    #[test]
    fn an_unknown_field_or_a_bare_number_is_refused() {
        for json in [
            r#"{ "failure_rat": 0.5 }"#,
            r#"{ "open": 5 }"#,
            r#"{ "open": "5" }"#,
            r#"{ "window": { "count": 5 } }"#,
            r#"{ "window": "10s" }"#,
            r#"{ "window": { "calls": 5, "time": "5s" } }"#,
            r#"{ "min_calls": -1 }"#,
        ] {
            assert!(read(json).is_err(), "{json}");
        }
    }
}
