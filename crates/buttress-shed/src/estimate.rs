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
    /// When the last calls began and ended, and a few more: those of the block that is not full yet. (The next
    /// power of two: its remainder costs nothing.) How long that is, is worked out when it is asked for.
    ring: [Option<(Instant, Instant)>; (Self::SAMPLES + Self::EVERY).next_power_of_two()],
    seen: usize,
    /// Until when it stands.
    until: Option<Instant>,
    median: Duration,
    /// Of how many calls.
    of: usize,
}

impl Estimate {
    /// How many calls it looks back. Few enough to follow a service that has changed, which takes half of
    /// them, and enough for a median that holds still.
    pub(crate) const SAMPLES: usize = 64;

    /// Every eighth call it moves, and not before the eighth: the first calls after a start are slow.
    pub(crate) const EVERY: usize = 8;

    /// How long it stands when no call ends.
    pub(crate) const MEMORY: Duration = Duration::from_secs(1);

    pub(crate) const fn new() -> Self {
        Self {
            ring: [None; (Self::SAMPLES + Self::EVERY).next_power_of_two()],
            seen: 0,
            until: None,
            median: Duration::ZERO,
            of: 0,
        }
    }

    /// Takes note of a call that has ended. All calls pay for this, and only those with a deadline for the median.
    #[inline]
    pub(crate) fn record(&mut self, started: Instant, now: Instant) {
        if !self.is_fresh(now) {
            (self.seen, self.of, self.median) = (0, 0, Duration::ZERO);
        }
        self.ring[self.seen % self.ring.len()] = Some((started, now));
        self.seen += 1;
        self.until = now.checked_add(Self::MEMORY);
    }

    #[inline]
    pub(crate) fn median(&mut self, now: Instant) -> Duration {
        if !self.is_fresh(now) {
            return Duration::ZERO;
        }
        let of = self.seen - self.seen % Self::EVERY;
        if of != self.of {
            self.compute(of);
        }
        self.median
    }

    /// The median of so many calls, one at least, of which it knows the last.
    #[cold]
    fn compute(&mut self, of: usize) {
        let mut last = [Duration::ZERO; Self::SAMPLES];
        let last = &mut last[..of.min(Self::SAMPLES)];
        for (sample, at) in last.iter_mut().zip(of.saturating_sub(Self::SAMPLES)..of) {
            let (started, ended) = self.ring[at % self.ring.len()].expect("it was recorded");
            *sample = ended.saturating_duration_since(started);
        }
        let middle = (last.len() - 1) / 2;
        self.median = *last.select_nth_unstable(middle).1;
        self.of = of;
    }

    #[inline]
    fn is_fresh(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now <= until)
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
        (0..calls).for_each(|_| estimate.record(now - latency, now));
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

    #[test]
    fn as_many_calls_after_it_forgot_as_before_are_other_calls() {
        let (mut estimate, now) = (Estimate::new(), edge::now());
        record(&mut estimate, now, 8, ms(5_000));
        assert_eq!(estimate.median(now), ms(5_000));
        let later = now + ms(1_001);
        record(&mut estimate, later, 8, ms(10));
        assert_eq!(estimate.median(later), ms(10));
    }
}
