use std::{
    collections::VecDeque,
    fmt,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use buttress_core::{Health, HealthSignal, Reading, edge};
use tokio::{
    runtime::Handle,
    task::AbortHandle,
    time::{Instant, Sleep, sleep},
};

use crate::leadership::Shared;

/// How late timers are on the runtime of the work, as a signal: of a leader that is too slow to do its job.
///
/// A runtime whose tasks compute without an `await`, or wait for a disk or a lock, polls everybody else late.
/// Renewals that come from elsewhere hide it. The elector's probe, a small task on that runtime, wakes
/// twice a second or more often, and notes by how much each timer was late; if it did not wake at all, each tick
/// that did not come counts.
///
/// Unhealthy if the 99th percentile over the last minute is above [`limit`](Self::limit), 500 ms unless set;
/// unknown before the first tick. One stall that is shorter than two ticks is therefore forgiven, and after a
/// longer one it takes a minute until all is well.
///
/// It comes from [`Elector::runtime_lag`](crate::Elector::runtime_lag). Clones are the same probe.
#[derive(Clone)]
pub struct RuntimeLag {
    probe: Arc<Probe>,
    limit: Duration,
}

/// What the probe has to say.
#[derive(Debug)]
pub(crate) struct Probe {
    tick: Duration,
    ticks: AtomicU64,
    /// Its task was dropped, and no tick will come: its runtime was shut down.
    is_gone: AtomicBool,
    lags: Mutex<Lags>,
}

/// By how much the ticks of the last minute were late.
#[derive(Debug, Default)]
struct Lags {
    /// When the next one is due. `None` before the first.
    due: Option<Instant>,
    late: VecDeque<(Instant, Duration)>,
}

/// Late by more than this, a leader cannot do its job in time.
const LIMIT: Duration = Duration::from_millis(500);
/// A 99th percentile over a minute is of 100 ticks at least.
const LONGEST_TICK: Duration = Duration::from_millis(500);
const WINDOW: Duration = Duration::from_secs(60);

// === impl RuntimeLag ===

impl RuntimeLag {
    pub(crate) const fn new(probe: Arc<Probe>) -> Self {
        Self { probe, limit: LIMIT }
    }

    /// Sets from when on it is unhealthy.
    #[must_use]
    pub const fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// The 99th percentile over the last minute. `None` before the first tick.
    #[must_use]
    pub fn p99(&self) -> Option<Duration> {
        self.probe.p99(edge::now())
    }
}

impl HealthSignal for RuntimeLag {
    fn sample(&self, now: Instant) -> Reading {
        let health = match self.probe.p99(now) {
            None => Health::Unknown,
            Some(lag) if lag <= self.limit => Health::Healthy,
            Some(_) => Health::Unhealthy,
        };
        Reading { health, since: None }
    }
}

impl fmt::Debug for RuntimeLag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuntimeLag").field("limit", &self.limit).finish_non_exhaustive()
    }
}

// === impl Probe ===

impl Probe {
    /// One that ticks every quarter of that time, and every half second at least.
    pub(crate) fn new(deadline: Duration) -> Self {
        let tick = (deadline / 4).min(LONGEST_TICK);
        let (ticks, is_gone) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { tick, ticks, is_gone, lags: Mutex::default() }
    }

    pub(crate) fn ticks(&self) -> u64 {
        self.ticks.load(Relaxed)
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.load(Relaxed)
    }

    pub(crate) fn p99(&self, now: Instant) -> Option<Duration> {
        self.lags().p99(now, self.tick)
    }

    /// Ticks on that runtime, as long as there is an elector to tell.
    ///
    /// # Panics
    ///
    /// If the runtime has no timers.
    pub(crate) fn spawn(self: &Arc<Self>, runtime: &Handle, tell: &Arc<Shared>) -> AbortHandle {
        // Made there, it panics here, and not in a task that nobody looks after.
        let _there = runtime.enter();
        let timer = Box::pin(sleep(Duration::ZERO));
        let ticking = Ticking { probe: Arc::clone(self), tell: Arc::downgrade(tell) };
        runtime.spawn(ticking.run(timer)).abort_handle()
    }

    fn lags(&self) -> MutexGuard<'_, Lags> {
        // Nothing of a user's runs under it.
        self.lags.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The probe's task. Dropped, it says so.
struct Ticking {
    probe: Arc<Probe>,
    tell: Weak<Shared>,
}

impl Ticking {
    async fn run(self, mut timer: Pin<Box<Sleep>>) {
        let probe = &self.probe;
        loop {
            let now = edge::now();
            probe.lags().tick(now, probe.tick);
            probe.ticks.fetch_add(1, Relaxed);
            match self.tell.upgrade() {
                Some(shared) => shared.wake.notify_one(),
                None => return,
            }
            timer.as_mut().reset(now + probe.tick);
            timer.as_mut().await;
        }
    }
}

impl Drop for Ticking {
    fn drop(&mut self) {
        self.probe.is_gone.store(true, Relaxed);
        if let Some(shared) = self.tell.upgrade() {
            shared.wake.notify_one();
        }
    }
}

// === impl Lags ===

impl Lags {
    fn tick(&mut self, now: Instant, tick: Duration) {
        if let Some(due) = self.due {
            self.late.extend(missed(due, now, tick).map(|late| (now, late)));
        }
        self.late.retain(|(at, _)| now.duration_since(*at) < WINDOW);
        self.due = Some(now + tick);
    }

    /// Ticks that have not been counted yet, as there were none a minute ago, were not late.
    fn p99(&self, now: Instant, tick: Duration) -> Option<Duration> {
        let due = self.due?;
        let recent = self.late.iter().filter(|(at, _)| now.duration_since(*at) < WINDOW);
        let mut late: Vec<_> = recent.map(|(_, late)| *late).collect();
        late.extend(missed(due, now, tick));
        late.sort_unstable_by(|one, other| other.cmp(one));
        let beyond = WINDOW.div_duration_f64(tick) as usize / 100;
        Some(late.get(beyond).copied().unwrap_or_default())
    }
}

/// By how much each tick is late that was due from `due` on, the first one first. No more than fill a minute.
fn missed(due: Instant, now: Instant, tick: Duration) -> impl Iterator<Item = Duration> {
    let late = now.saturating_duration_since(due);
    let at_most = WINDOW.div_duration_f64(tick) as u32;
    (0..=at_most).map_while(move |n| late.checked_sub(n * tick)).filter(|late| !late.is_zero())
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use super::*;

    const TICK: Duration = LONGEST_TICK;

    fn millis(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// A probe that ticks on time for so long, up to now.
    fn on_time(time: Duration) -> (Lags, Instant) {
        let (mut lags, mut now) = (Lags::default(), edge::now());
        assert_eq!(lags.p99(now, TICK), None, "nobody has looked");
        for _ in 0..=(time.as_millis() / TICK.as_millis()) {
            lags.tick(now, TICK);
            now += TICK;
        }
        (lags, now - TICK)
    }

    #[test]
    fn what_is_late_now_and_then_is_no_lag_and_what_is_late_twice_a_minute_is() {
        for (times, lag) in [(0, 0), (1, 0), (2, 700), (3, 700)] {
            let (mut lags, mut now) = on_time(millis(0));
            for tick in 0..110 {
                now += TICK + if tick % 30 < times && tick < 30 { millis(700) } else { millis(0) };
                // One missed and one late by 200 ms, which is the smaller.
                lags.tick(now, TICK);
            }
            let is = lags.p99(now, TICK).unwrap();
            let expected = if times == 1 { millis(200) } else { millis(lag) };
            assert_eq!(is, expected, "{times}");
        }
    }

    #[test]
    fn one_long_standstill_counts_as_all_the_ticks_that_did_not_come() {
        let (mut lags, mut now) = on_time(millis(60_000));
        now += TICK + millis(10_000);
        let standing = lags.p99(now, TICK).unwrap();
        assert_eq!(standing, millis(9_500), "while it stands still");
        lags.tick(now, TICK);
        assert_eq!(lags.p99(now, TICK).unwrap(), standing, "and after");
        for _ in 0..119 {
            now += TICK;
            lags.tick(now, TICK);
        }
        assert_eq!(lags.p99(now, TICK).unwrap(), standing, "for a minute");
        lags.tick(now + TICK, TICK);
        assert_eq!(lags.p99(now + TICK, TICK), Some(Duration::ZERO));
    }

    #[test]
    fn what_is_kept_does_not_grow_with_the_standstill() {
        let (mut lags, now) = on_time(millis(1_000));
        let later = now + Duration::from_secs(1_000_000);
        assert!(lags.p99(later, TICK).unwrap() > Duration::from_secs(900_000));
        lags.tick(later, TICK);
        assert!(lags.late.len() <= 125);
    }

    #[tokio::test(start_paused = true)]
    async fn a_signal_is_unhealthy_from_beyond_its_limit_on() {
        let probe = Arc::new(Probe::new(Duration::from_secs(8)));
        let lag = RuntimeLag::new(Arc::clone(&probe));
        assert_eq!(lag.sample(edge::now()).health, Health::Unknown);
        probe.lags().tick(edge::now(), TICK);
        // Due half a second from now, and the next one after that.
        for (later, health) in
            [(1_499, Health::Healthy), (1_500, Health::Healthy), (1_501, Health::Unhealthy)]
        {
            assert_eq!(lag.sample(edge::now() + millis(later)).health, health, "{later}");
        }
        assert_eq!(lag.p99(), Some(Duration::ZERO));
        assert_eq!(
            lag.limit(millis(501)).sample(edge::now() + millis(1_501)).health,
            Health::Healthy
        );
    }
}
