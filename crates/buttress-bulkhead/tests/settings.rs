//! Settings that cannot work are refused by name.

use std::{task::Poll, time::Duration};

use buttress_bulkhead::{Bulkhead, BulkheadSettings};
use buttress_core::{Reason, edge};

const MS: Duration = Duration::from_millis(1);

fn refused(settings: BulkheadSettings) -> (String, String) {
    let error = Bulkhead::new(settings).unwrap_err();
    (error.setting().to_owned(), error.to_string())
}

// BLK-05
#[test]
fn a_limit_that_admits_nobody_or_cannot_be_counted_is_refused_by_name() {
    for limit in [0, Bulkhead::MAX_LIMIT + 1, usize::MAX] {
        let (setting, text) = refused(BulkheadSettings::new(limit));
        assert_eq!(setting, "limit");
        assert!(text.contains("unlimited()"), "it says how no limit is spelled: {text}");
        let bulkhead = Bulkhead::default();
        assert_eq!(bulkhead.set_limit(limit).unwrap_err().setting(), "limit");
        assert_eq!(bulkhead.limit(), 1000, "a limit that is refused changes nothing");
    }
    for limit in [1, Bulkhead::MAX_LIMIT] {
        assert_eq!(Bulkhead::new(BulkheadSettings::new(limit)).unwrap().room(), limit);
    }
}

// BKO-10
#[test]
fn a_queue_in_which_nobody_may_wait_is_refused_and_both_settings_are_named() {
    for places in [1, usize::MAX] {
        let (setting, text) =
            refused(BulkheadSettings::new(1).max_waiting(places).max_wait(Duration::ZERO));
        assert_eq!(setting, "max_wait");
        assert!(text.contains("`max_waiting`"), "{text}");
    }
}

#[test]
fn where_nobody_may_wait_the_longest_wait_may_be_anything() {
    for wait in [Duration::ZERO, Duration::MAX] {
        let bulkhead = Bulkhead::new(BulkheadSettings::new(1).max_wait(wait)).unwrap();
        let _slot = bulkhead.try_acquire().unwrap();
        assert_eq!(bulkhead.try_acquire().unwrap_err().reason(), Reason::BulkheadFull);
    }
}

// BKO-10
#[tokio::test(start_paused = true)]
async fn the_shortest_wait_ends_with_the_timers_next_tick() {
    let settings = BulkheadSettings::new(1).max_waiting(1).max_wait(Duration::from_nanos(1));
    let bulkhead = Bulkhead::new(settings).unwrap();
    let _slot = bulkhead.try_acquire().unwrap();
    let start = edge::now();
    assert_eq!(bulkhead.acquire().await.unwrap_err().reason(), Reason::BulkheadFull);
    assert_eq!(edge::now() - start, MS, "tokio's timers tick once a millisecond");
}

// BKO-10
#[tokio::test(start_paused = true)]
async fn waits_beyond_the_clocks_reach_or_close_to_it_never_end() {
    let century = Duration::from_secs(100 * 365 * 24 * 60 * 60);
    let half = Duration::from_secs(u64::MAX / 2 - 1_000_000_000);
    for wait in [Duration::MAX, half, century] {
        let settings = BulkheadSettings::new(1).max_waiting(usize::MAX).max_wait(wait);
        let bulkhead = Bulkhead::new(settings).unwrap();
        let slot = bulkhead.try_acquire().unwrap();
        let mut waiting = tokio_test::task::spawn(bulkhead.acquire());
        assert_eq!(waiting.poll().map(drop), Poll::Pending);
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(waiting.poll().map(drop), Poll::Pending);
        drop(slot);
        assert!(waiting.await.is_ok());
    }
}

#[test]
fn the_defaults_are_a_thousand_and_no_queue() {
    assert_eq!(
        BulkheadSettings::default(),
        BulkheadSettings::new(7).limit(1000).max_waiting(0).max_wait(Duration::from_secs(1))
    );
    assert_eq!(Bulkhead::default().limit(), 1000);
}

#[cfg(feature = "serde")]
mod files {
    use super::*;

    fn read(text: &str) -> Result<BulkheadSettings, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_says_only_what_differs_and_durations_as_people_write_them() {
        assert_eq!(read("{}"), Ok(BulkheadSettings::default()));
        let settings = read(r#"{"limit": 10, "max_waiting": 5, "max_wait": "250ms"}"#).unwrap();
        assert_eq!(settings, BulkheadSettings::new(10).max_waiting(5).max_wait(250 * MS));
        let text = serde_json::to_string(&settings).unwrap();
        assert_eq!(read(&text), Ok(settings));
    }

    #[test]
    fn a_field_that_does_not_exist_is_refused() {
        let error = read(r#"{"limit": 10, "max_wating": 5}"#).unwrap_err();
        assert!(error.contains("max_wating"), "{error}");
    }
}
