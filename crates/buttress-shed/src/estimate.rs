use std::time::Duration;

use tokio::time::Instant;

/// How long the inner service takes: the median of the last calls, and zero as long as nobody knows.
///
/// The median and not the mean: a few calls that take a hundred times as long say nothing of what the
/// next will take.
///
/// It refuses requests, and so may refuse those that would have shown that it is wrong. So it forgets: when
/// no call has ended for [`MEMORY`](Self::MEMORY), it knows nothing.
#[derive(Debug)]
pub(crate) struct Estimate {
    ring: [Duration; Self::SAMPLES],
    seen: usize,
    last: Option<Instant>,
    median: Duration,
}

impl Estimate {
    /// How many calls it looks back. Few enough to follow a service that has changed, which takes half of
    /// them, and enough for a median that holds still.
    pub(crate) const SAMPLES: usize = 64;

    /// It is computed anew with every eighth call, for all calls pay for it; and not before the eighth: the
    /// first calls after a start are slow.
    pub(crate) const EVERY: usize = 8;

    /// How long it stands when no call ends.
    pub(crate) const MEMORY: Duration = Duration::from_secs(1);

    pub(crate) const fn new() -> Self {
        Self { ring: [Duration::ZERO; Self::SAMPLES], seen: 0, last: None, median: Duration::ZERO }
    }

    pub(crate) fn record(&mut self, now: Instant, latency: Duration) {
        if !self.is_fresh(now) {
            self.seen = 0;
            self.median = Duration::ZERO;
        }
        self.ring[self.seen % Self::SAMPLES] = latency;
        self.seen += 1;
        self.last = Some(now);
        if self.seen.is_multiple_of(Self::EVERY) {
            let mut sorted = self.ring;
            let sorted = &mut sorted[..self.seen.min(Self::SAMPLES)];
            let middle = (sorted.len() - 1) / 2;
            self.median = *sorted.select_nth_unstable(middle).1;
        }
    }

    pub(crate) fn median(&self, now: Instant) -> Duration {
        if self.is_fresh(now) { self.median } else { Duration::ZERO }
    }

    fn is_fresh(&self, now: Instant) -> bool {
        self.last.is_some_and(|last| now.saturating_duration_since(last) <= Self::MEMORY)
    }
}

#[cfg(test)]
mod tests {
    use buttress_core::edge;

    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn record(estimate: &mut Estimate, now: Instant, calls: usize, latency: Duration) {
        (0..calls).for_each(|_| estimate.record(now, latency));
    }

    #[test]
    fn the_first_seven_calls_say_nothing_yet() {
        let (mut estimate, now) = (Estimate::new(), edge::now());
        record(&mut estimate, now, 7, ms(500));
        assert_eq!(estimate.median(now), Duration::ZERO);
        record(&mut estimate, now, 1, ms(500));
        assert_eq!(estimate.median(now), ms(500));
    }

    #[test]
    fn a_few_slow_calls_do_not_move_it_and_half_of_all_do() {
        let (mut estimate, now) = (Estimate::new(), edge::now());
        record(&mut estimate, now, 64, ms(10));
        record(&mut estimate, now, 24, ms(5_000));
        assert_eq!(estimate.median(now), ms(10));
        record(&mut estimate, now, 16, ms(5_000));
        assert_eq!(estimate.median(now), ms(5_000));
    }

    #[test]
    fn when_no_call_ends_for_a_second_it_knows_nothing() {
        let (mut estimate, now) = (Estimate::new(), edge::now());
        record(&mut estimate, now, 64, ms(5_000));
        assert_eq!(estimate.median(now + ms(1_000)), ms(5_000));
        let later = now + ms(1_001);
        assert_eq!(estimate.median(later), Duration::ZERO);
        record(&mut estimate, later, 8, ms(10));
        assert_eq!(estimate.median(later), ms(10), "what it forgot does not come back");
    }
}
