//! The one door to the clocks and to chance.
//!
//! A decision that reads the clock by itself cannot be tested to the nanosecond, and one that rolls
//! its own dice cannot be repeated. So every machine of this project takes time and chance as
//! arguments, and every handle takes them from here. The clock is tokio's, so that
//! `tokio::time::pause` stops all of it; the dice can be [seeded](seed).

use std::{
    cell::{Cell, RefCell},
    time::SystemTime,
};

use rand::{RngExt, SeedableRng, rngs::SmallRng};
use tokio::time::Instant;

thread_local! {
    // A small generator a thread: no lock, and no two requests share a sequence.
    static DICE: RefCell<SmallRng> = RefCell::new(rand::make_rng());
    static CALLED: Cell<Option<Instant>> = const { Cell::new(None) };
    static WALL: Cell<Option<(SystemTime, Instant)>> = const { Cell::new(None) };
}

/// The monotonic clock. Stops while tokio's clock is paused.
#[inline]
#[must_use]
pub fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    Instant::now()
}

/// When the call is made that this code is part of: the reading of a layer further out, if there is one that has
/// [told](within_call) of it, else the clock's.
///
/// A call goes through a stack in one go, and to read the clock costs more than a layer does. So a stack reads it
/// once.
#[inline]
#[must_use]
pub fn called() -> Instant {
    CALLED.get().unwrap_or_else(now)
}

/// Runs `f`, which calls the service beneath, and tells the layers there when: at `called`, or with `None` that they
/// have to look for themselves.
///
/// Only for calls of one's own layers. What may do work before it calls on would make everybody beneath believe
/// that it was earlier.
#[inline]
pub fn within_call<T>(called: Option<Instant>, f: impl FnOnce() -> T) -> T {
    let _back = PutBack(CALLED.replace(called));
    f()
}

/// Puts the reading further out back, on panic too.
struct PutBack(Option<Instant>);

impl Drop for PutBack {
    #[inline]
    fn drop(&mut self) {
        CALLED.set(self.0);
    }
}

/// The wall clock, for dates that come from elsewhere. It may jump: never measure with it.
#[must_use]
pub fn wall() -> SystemTime {
    match WALL.get() {
        Some((wall, since)) => wall + now().saturating_duration_since(since),
        None =>
        {
            #[expect(clippy::disallowed_methods, reason = "this is the door")]
            SystemTime::now()
        }
    }
}

/// A number from the uniform distribution over `[0, 1)`, with 53 random bits.
#[must_use]
pub fn unit() -> f64 {
    DICE.with_borrow_mut(|dice| dice.random())
}

/// Makes the dice of this thread repeatable, for tests and simulations.
///
/// Whoever draws after this call draws from one sequence, so two requests still draw different
/// numbers. Other threads are not affected: use a current-thread runtime for a repeatable run.
pub fn seed(seed: u64) {
    DICE.set(SmallRng::seed_from_u64(seed));
}

/// Sets the wall clock of this thread, for tests. From here on it runs with [`now`].
pub fn set_wall(at: SystemTime) {
    WALL.set(Some((at, now())));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_seed_repeats_the_sequence_and_every_draw_differs() {
        let draw = || {
            seed(7);
            [unit(), unit(), unit()]
        };
        let first = draw();
        assert_eq!(first, draw());
        assert!(first[0] != first[1] && first[1] != first[2]);
        assert!(first.iter().all(|u| (0.0..1.0).contains(u)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_has_one_instant_for_all_that_it_is_told_to() {
        let start = now();
        let told = |of, within: fn() -> Instant| within_call(of, within);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(told(Some(start), called), start);
        assert_eq!(told(Some(start), || within_call(None, called)), now());
        assert_eq!(called(), now(), "it is over");
        let panics = || within_call(Some(start), || panic!("planted"));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(called(), now(), "it is over");
    }

    #[tokio::test(start_paused = true)]
    async fn a_set_wall_clock_runs_with_the_paused_one() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        set_wall(at);
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(wall(), at + Duration::from_secs(5));
    }
}
