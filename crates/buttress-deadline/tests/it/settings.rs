//! Limits that cannot work, and those at the edge of what can.

use std::time::Duration;

use buttress_core::InvalidSetting;
use buttress_deadline::{DeadlineLayer, EntryLayer, TimeoutLayer};
use buttress_test::Act;
use tower::{Layer, ServiceExt};

use crate::support::{attempt, due_in, echo, elapsed, ms, secs, silent, timed, total};

const NANO: Duration = Duration::from_nanos(1);

// BKO-10
#[test]
fn zero_is_refused_by_name() {
    fn setting<T>(made: Result<T, InvalidSetting>) -> String {
        made.map(drop).unwrap_err().setting().to_owned()
    }
    assert_eq!(setting(DeadlineLayer::try_new(Duration::ZERO)), "total");
    assert_eq!(setting(EntryLayer::try_new(Duration::ZERO)), "total");
    assert_eq!(setting(TimeoutLayer::try_new(Duration::ZERO)), "limit");
    assert_eq!(setting(TimeoutLayer::try_call_only(Duration::ZERO)), "limit");
    for fine in [NANO, Duration::MAX] {
        assert!(DeadlineLayer::try_new(fine).is_ok() && EntryLayer::try_new(fine).is_ok());
        assert!(TimeoutLayer::try_new(fine).is_ok() && TimeoutLayer::try_call_only(fine).is_ok());
    }
}

#[test]
fn a_panic_over_zero_says_what_to_do_and_where_it_was_made() {
    let makers: [fn(); 4] = [
        || _ = DeadlineLayer::new(Duration::ZERO),
        || _ = EntryLayer::new(Duration::ZERO),
        || _ = TimeoutLayer::new(Duration::ZERO),
        || _ = TimeoutLayer::call_only(Duration::ZERO),
    ];
    for make in makers {
        let message = *std::panic::catch_unwind(make).unwrap_err().downcast::<&str>().unwrap();
        assert!(message.contains("more than zero") && message.contains("`Duration::MAX`"));
    }
}

// BKO-10
#[tokio::test(start_paused = true)]
async fn without_an_end_a_call_takes_as_long_as_it_takes() {
    for never in [Duration::MAX, Duration::from_secs(u64::MAX / 4), secs(1 << 40)] {
        let slow = || {
            let probe = echo();
            probe.script([Act::Delay(secs(86_400 * 365))]);
            probe
        };
        assert_eq!(timed(DeadlineLayer::new(never).layer(slow())).await.0.unwrap(), 7);
        assert_eq!(timed(EntryLayer::new(never).layer(slow())).await.0.unwrap(), 7);
        assert_eq!(timed(TimeoutLayer::new(never).layer(slow())).await.0.unwrap(), 7);
        assert_eq!(timed(TimeoutLayer::call_only(never).layer(slow())).await.0.unwrap(), 7);
    }
}

// BKO-10
#[tokio::test(start_paused = true)]
async fn a_nanosecond_is_a_limit_like_any_other() {
    // The runtime's timers count in milliseconds, and round up.
    let (answer, took) = timed(DeadlineLayer::new(NANO).layer(silent())).await;
    assert!(elapsed(answer) == total(NANO) && took <= ms(1));
    let (answer, took) = timed(TimeoutLayer::new(NANO).layer(silent())).await;
    assert!(elapsed(answer) == attempt(NANO) && took <= ms(1));
    let (answer, took) = timed(TimeoutLayer::call_only(NANO).layer(silent())).await;
    assert!(elapsed(answer) == attempt(NANO) && took <= ms(1));
    assert_eq!(timed(DeadlineLayer::new(NANO).layer(echo())).await.0.unwrap(), 7);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_of_never_leaves_the_one_that_is_there() {
    let call = DeadlineLayer::new(Duration::MAX).layer(silent()).oneshot(1);
    assert_eq!(elapsed(due_in(secs(5)).scope(call).await), total(secs(5)));
}
