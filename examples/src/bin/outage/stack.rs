//! The client with us. All that this program says to the library stands in this file.

use std::time::Duration;

use buttress::{
    BreakerSettings, HttpService, InvalidSetting, Standard, Window,
    http::{Hyper, hyper},
};
use tower::Layer;

use crate::plain;

pub(crate) use buttress::State as BreakerState;

pub(crate) const NAME: &str = "hyper in buttress::Standard";

const TOTAL: Duration = Duration::from_millis(1_500);
const ATTEMPT: Duration = Duration::from_millis(400);
const WINDOW: Duration = Duration::from_secs(3);
const OPEN: Duration = Duration::from_secs(1);
/// Jitter included.
pub(crate) const OPEN_MAX: Duration = Duration::from_secs(4);

/// The stack around hyper: a plain type, which a struct can hold.
pub(crate) type Client = HttpService<Hyper<plain::Hyper>>;

/// The client, and a look at its breaker: its state, and how often it has opened.
pub(crate) fn standard() -> Result<(Client, impl Fn() -> (BreakerState, u64)), InvalidSetting> {
    let breaker =
        BreakerSettings::default().window(Window::time(WINDOW)).open(OPEN).open_max(OPEN_MAX);
    let stack = Standard::http().total(TOTAL).attempt(ATTEMPT).breaker(breaker).build()?;
    let client = stack.layer(hyper(plain::hyper()));

    // One breaker for each host, made with the first request to it.
    let breakers = stack.breakers().clone();
    let look = move || match breakers.snapshot().first() {
        Some((_, breaker)) => (breaker.state(), breaker.stats().opened),
        None => (BreakerState::Closed, 0),
    };
    Ok((client, look))
}

/// The settings, for the reader of the figures.
pub(crate) fn settings() -> String {
    let [total, attempt, window, open, open_max] =
        [TOTAL, ATTEMPT, WINDOW, OPEN, OPEN_MAX].map(|time| match time.as_secs_f64() {
            s if s < 1.0 => format!("{} ms", s * 1e3),
            s => format!("{s} s"),
        });
    format!(
        "total {total}, attempt {attempt}, breaker window {window}, open {open} growing to {open_max}"
    )
}
