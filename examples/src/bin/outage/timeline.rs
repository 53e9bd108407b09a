//! What the breaker did over time, put together from looks at it now and then.

use std::time::Duration;

use crate::stack::BreakerState;

/// The breaker's state from each of these times on.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    states: Vec<(Duration, BreakerState)>,
    opened: u64,
}

// === impl Timeline ===

impl Timeline {
    /// Notes that the breaker is in `state` at `now`, and has opened so many times.
    ///
    /// A probe that fails at once makes it half-open for a millisecond, between two looks. The
    /// count tells of it.
    pub(crate) fn note(&mut self, now: Duration, state: BreakerState, opened: u64) {
        let last = self.states.last().map(|(_, last)| *last);
        if last != Some(state) {
            self.states.push((now, state));
        } else if state == BreakerState::Open && opened > self.opened {
            self.states.push((now, BreakerState::HalfOpen));
            self.states.push((now, BreakerState::Open));
        }
        self.opened = opened;
    }

    /// From when until when the breaker was in `state`, in a script that ends at `end`.
    pub(crate) fn spans(
        &self,
        state: BreakerState,
        end: Duration,
    ) -> impl Iterator<Item = (Duration, Duration)> {
        let next = self.states.iter().skip(1).map(|(at, _)| *at);
        self.states
            .iter()
            .zip(next.chain([end]))
            .filter(move |((_, seen), _)| *seen == state)
            .map(|((from, _), until)| (*from, until))
    }
}

#[cfg(test)]
mod tests {
    use super::{BreakerState::*, *};

    fn spans(timeline: &Timeline, state: BreakerState) -> Vec<(u64, u64)> {
        let spans = timeline.spans(state, Duration::from_secs(9));
        spans.map(|(from, until)| (from.as_secs(), until.as_secs())).collect()
    }

    fn timeline(looks: &[(u64, BreakerState, u64)]) -> Timeline {
        let mut timeline = Timeline::default();
        for (at, state, opened) in looks {
            timeline.note(Duration::from_secs(*at), *state, *opened);
        }
        timeline
    }

    #[test]
    fn a_state_lasts_until_the_next_and_the_last_until_the_end() {
        let timeline = timeline(&[
            (0, Closed, 0),
            (1, Closed, 0),
            (2, Open, 1),
            (4, HalfOpen, 1),
            (5, Closed, 1),
        ]);
        assert_eq!(spans(&timeline, Closed), [(0, 2), (5, 9)]);
        assert_eq!(spans(&timeline, Open), [(2, 4)]);
        assert_eq!(spans(&timeline, HalfOpen), [(4, 5)]);
    }

    #[test]
    fn a_half_open_moment_between_two_looks_is_told_by_the_count() {
        let timeline = timeline(&[(0, Open, 1), (1, Open, 1), (2, Open, 2), (3, Open, 2)]);
        assert_eq!(spans(&timeline, HalfOpen), [(2, 2)]);
        assert_eq!(spans(&timeline, Open), [(0, 2), (2, 9)]);
    }
}
