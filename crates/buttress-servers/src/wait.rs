use std::time::Duration;

use tokio::time::{sleep, timeout};

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
    for _ in 0..1500 {
        if is_so().await {
            return;
        }
        sleep(Duration::from_millis(20)).await;
    }
    panic!("it never came: {what}");
}
