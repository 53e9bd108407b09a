use std::{
    fmt,
    ops::{Add, Sub},
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use buttress_core::edge;
use tokio::time::Instant;

/// An instant of a [`LeaseClock`].
///
/// It is of a type of its own since it must not be mixed with an [`Instant`]: that one stops while the
/// machine is suspended, and a lease does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootTime(u64);

/// The clock by which leases are measured here. It goes on while the machine is suspended.
///
/// [`Instant`] stops then, on Linux and on macOS. A leader that slept for an hour would find that its lease has
/// some seconds left, and lead on beside its successor. So this reads `CLOCK_BOOTTIME` on Linux and Android,
/// and `CLOCK_MONOTONIC` on Apple's systems, which counts sleep there; elsewhere it is `Instant`. On one
/// Linux machine all processes read the same.
///
/// No clock counts the time for which a virtual machine was frozen. The wall clock jumps when it is set right
/// again: that is what [`TermEnd::ClockAnomaly`](crate::TermEnd::ClockAnomaly) tells of.
///
/// # Under test
///
/// A [`simulated`](Self::simulated) clock runs with tokio's, so that `tokio::time::pause` stops it, and does
/// what a test tells it to. [`Default`] is the system's clock, unless tokio's is paused as it is called.
///
/// ```
/// use buttress_leadership::LeaseClock;
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let clock = LeaseClock::default();
/// let start = clock.now();
/// tokio::time::sleep(Duration::from_secs(10)).await;
/// clock.suspend(Duration::from_secs(3600));
/// assert_eq!(clock.now() - start, Duration::from_secs(3610));
/// # }
/// ```
#[derive(Clone)]
pub struct LeaseClock(Source);

#[derive(Clone)]
enum Source {
    System,
    Simulated(Arc<Simulated>),
}

struct Simulated {
    origin: Instant,
    /// How fast it runs, as a share of how fast tokio's does.
    rate: f64,
    /// How far it is ahead of tokio's, in nanoseconds.
    ahead: AtomicU64,
    /// How far the wall clock was set off.
    wall: AtomicI64,
}

/// Where a simulated clock starts. Not at zero, so that tests see what a subtraction too many does.
const START: u64 = 1_000_000_000_000;

// === impl BootTime ===

impl BootTime {
    /// The instant so many nanoseconds after the clock's zero.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// How many nanoseconds after the clock's zero it is.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long it is after `earlier`. Zero if it is not.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// The clock's last instant is what lies beyond its reach.
impl Add<Duration> for BootTime {
    type Output = Self;

    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(nanos(time)))
    }
}

/// The clock's zero is what lies before it.
impl Sub<Duration> for BootTime {
    type Output = Self;

    fn sub(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(time)))
    }
}

/// As [`since`](Self::since).
impl Sub for BootTime {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

// === impl LeaseClock ===

impl LeaseClock {
    /// The machine's clock.
    #[must_use]
    pub const fn system() -> Self {
        Self(Source::System)
    }

    /// A clock that runs with tokio's. Its clones are the same clock.
    #[must_use]
    pub fn simulated() -> Self {
        Self::skewed(1.0)
    }

    /// A clock that runs with tokio's, but faster or slower: with 1.01, by a hundredth faster.
    ///
    /// No two clocks run alike, and leases are measured by two. A lease is safe from rates up to what its
    /// [margin](crate::LeaseConfig#the-margin) says, and this is how to see it.
    #[must_use]
    pub fn skewed(rate: f64) -> Self {
        let (ahead, wall) = (AtomicU64::new(0), AtomicI64::new(0));
        let simulated = Simulated { origin: edge::now(), rate, ahead, wall };
        Self(Source::Simulated(Arc::new(simulated)))
    }

    /// The time.
    #[inline]
    #[must_use]
    pub fn now(&self) -> BootTime {
        match &self.0 {
            Source::System => system(),
            Source::Simulated(simulated) => simulated.now(),
        }
    }

    /// Lets time pass as it does while the machine is suspended, or this process stopped with nobody looking:
    /// here it does, and for timers it does not.
    ///
    /// # Panics
    ///
    /// If it is the machine's clock.
    pub fn suspend(&self, time: Duration) {
        self.expect_simulated().ahead.fetch_add(nanos(time), Relaxed);
    }

    /// Sets the wall clock forward by so much, as happens when a virtual machine goes on that was frozen.
    ///
    /// # Panics
    ///
    /// If it is the machine's clock.
    pub fn jump_wall(&self, time: Duration) {
        let time = i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        self.expect_simulated().wall.fetch_add(time, Relaxed);
    }

    /// How far the wall clock is ahead of this one, in nanoseconds. It changes only when one of them is set.
    pub(crate) fn drift(&self) -> i64 {
        match &self.0 {
            Source::System => drift(),
            Source::Simulated(simulated) => simulated.wall.load(Relaxed),
        }
    }

    /// How fast it runs, as a share of how fast tokio's clock does.
    #[cfg(all(test, not(buttress_loom)))]
    pub(crate) fn rate(&self) -> f64 {
        self.expect_simulated().rate
    }

    fn expect_simulated(&self) -> &Simulated {
        match &self.0 {
            Source::System => {
                panic!("nobody can set the machine's clock: use `LeaseClock::simulated`")
            }
            Source::Simulated(simulated) => simulated,
        }
    }
}

/// The system's, unless tokio's clock is paused: then a [simulated](LeaseClock::simulated) one.
impl Default for LeaseClock {
    fn default() -> Self {
        if is_paused() { Self::simulated() } else { Self::system() }
    }
}

impl fmt::Debug for LeaseClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.0 {
            Source::System => "system",
            Source::Simulated(_) => "simulated",
        };
        f.debug_tuple("LeaseClock").field(&kind).finish()
    }
}

impl Simulated {
    fn now(&self) -> BootTime {
        let mut run = nanos(edge::now().saturating_duration_since(self.origin));
        // What a float cannot tell apart is not touched by it.
        if self.rate != 1.0 {
            run = (run as f64 * self.rate) as u64;
        }
        BootTime(START.saturating_add(run).saturating_add(self.ahead.load(Relaxed)))
    }
}

/// Two clocks are read one after the other, and what stops this thread in between looks like a jump. So it is
/// done again, but not for ever.
fn drift() -> i64 {
    const AT_ONCE: Duration = Duration::from_millis(50);
    let mut tries = 3;
    loop {
        let before = system();
        let wall = edge::wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let after = system();
        tries -= 1;
        if after - before < AT_ONCE || tries == 0 {
            return nanos(wall).cast_signed().saturating_sub(after.0.cast_signed());
        }
    }
}

/// Whether tokio's clock is not the machine's. tokio does not say, but its clock is std's, read once more,
/// unless it was paused: then it stands still, or has gone its own way.
fn is_paused() -> bool {
    #[expect(clippy::disallowed_methods, reason = "it is compared with the one behind the door")]
    let before = std::time::Instant::now();
    let between = edge::now().into_std();
    #[expect(clippy::disallowed_methods, reason = "it is compared with the one behind the door")]
    let after = std::time::Instant::now();
    !(before..=after).contains(&between)
}

#[cfg(unix)]
#[inline]
fn system() -> BootTime {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
    let time = rustix::time::clock_gettime(CLOCK);
    // Both are not negative, and the sum has room for five centuries.
    BootTime((time.tv_sec as u64) * 1_000_000_000 + time.tv_nsec as u64)
}

#[cfg(not(unix))]
fn system() -> BootTime {
    static ORIGIN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    #[expect(clippy::disallowed_methods, reason = "there is no other clock")]
    let now = std::time::Instant::now();
    BootTime(START + nanos(now.saturating_duration_since(*ORIGIN.get_or_init(|| now))))
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_machines_clock_goes_on() {
        let clock = LeaseClock::default();
        assert!(matches!(clock.0, Source::System));
        let (one, other) = (clock.now(), clock.now());
        assert!(one <= other && one > BootTime::default());
    }

    #[tokio::test(start_paused = true)]
    async fn a_paused_clock_is_found_out_whether_or_not_it_has_moved() {
        for _ in 0..100 {
            assert!(is_paused());
        }
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(is_paused());
    }

    #[tokio::test]
    async fn a_clock_that_runs_is_not_paused() {
        assert!((0..100).all(|_| !is_paused()));
    }

    // rust-lang/rust#87906
    #[tokio::test(start_paused = true)]
    async fn what_is_suspended_grows_older() {
        let clock = LeaseClock::default();
        let (start, instant) = (clock.now(), edge::now());
        clock.clone().suspend(Duration::from_secs(3600));
        assert_eq!(clock.now() - start, Duration::from_secs(3600));
        assert_eq!(edge::now(), instant);
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_is_skewed_runs_by_so_much_faster() {
        let (fast, slow) = (LeaseClock::skewed(1.25), LeaseClock::skewed(0.75));
        let start = (fast.now(), slow.now());
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(fast.now() - start.0, Duration::from_secs(5));
        assert_eq!(slow.now() - start.1, Duration::from_secs(3));
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_wall_clock_that_is_set_drifts() {
        let clock = LeaseClock::simulated();
        let start = clock.drift();
        tokio::time::advance(Duration::from_secs(9)).await;
        clock.suspend(Duration::from_secs(3600));
        assert_eq!(clock.drift(), start);
        clock.jump_wall(Duration::from_secs(2));
        assert_eq!(clock.drift() - start, 2_000_000_000);
        let system = LeaseClock::system();
        let moved = system.drift().abs_diff(system.drift());
        assert!(moved < 60_000_000_000, "two looks at the machine's clocks");
    }

    #[test]
    fn what_is_beyond_reach_is_the_last_instant_and_what_is_before_it_the_first() {
        let some = BootTime::from_nanos(7);
        assert_eq!((some + Duration::MAX).as_nanos(), u64::MAX);
        assert_eq!(some - Duration::MAX, BootTime::default());
        assert_eq!(some - (some + Duration::from_secs(1)), Duration::ZERO);
    }
}
