use std::{thread, time::Duration};

use tokio::time::{sleep, timeout};

/// What is waited for is looked at so often,
const LOOK: Duration = Duration::from_millis(20);
/// and so many times: for half a minute.
const LOOKS: u32 = 1500;

/// What comes within half a minute, or never.
///
/// # Panics
///
/// If it does not come.
pub async fn soon<T>(what: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(30), what).await.expect("it never came")
}

/// Waits until it is so, half a minute at most.
///
/// # Panics
///
/// If it never is, with `what`.
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    for _ in 0..LOOKS {
        if is_so().await {
            return;
        }
        sleep(LOOK).await;
    }
    panic!("it never came: {what}");
}

/// The same, while this thread stands still, and with it a runtime that has no other: whatever makes it so runs
/// elsewhere.
///
/// # Panics
///
/// If it never is, with `what`.
pub fn standing_still_until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..LOOKS {
        if is_so() {
            return;
        }
        thread::sleep(LOOK);
    }
    panic!("it never came: {what}");
}
