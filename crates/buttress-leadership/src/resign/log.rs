//! Who has led lately, and why it ended: kept with the lease, for those who come after.
//!
//! From what happens to itself nobody knows whether a dependency is ill or only out of one's own reach.
//! From what has happened to others it does. So each leader writes its term down in the
//! [memo](crate::LeaseRecord::memo), which outlives it.
//!
//! All instants are of one clock, the store's. Where it has none for all, since each candidate observes for
//! itself when a lease is over, they are of the wall clocks: those are near enough to tell what is long
//! ago, and no measure.
//!
//! ```text
//! terms 1
//! fence TAB started TAB ended or - TAB reason TAB holder TAB signal
//! ```
//!
//! Identities and names have no control characters, so that nothing has to be escaped; what has some all the same
//! loses them as it is written, or nobody could read the rest. What does not look
//! like this is somebody else's, or of a later version: then nothing is known.

use std::{collections::VecDeque, fmt::Write as _, time::Duration};

use bytes::Bytes;

use super::policy::MAX_NAME;
use crate::{FencingToken, Identity, ResignReason, StoreTime};

/// How many terms are kept. With identities of 60 bytes it is less than 2 KiB.
const KEPT: usize = 8;
const HEAD: &str = "terms 1";
/// What is longer was written by somebody else.
const LONGEST: usize = 16 * 1024;

/// See the module. The latest comes last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TermLog(VecDeque<PastTerm>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct PastTerm {
    fence: u64,
    holder: String,
    started: StoreTime,
    /// When its leader left it. `None` while it runs, or if it ended otherwise.
    ended: Option<StoreTime>,
    reason: String,
    /// The signal for which it was left, what the program said, or nothing.
    signal: String,
}

impl TermLog {
    pub(super) fn parse(memo: &[u8]) -> Self {
        let text = if memo.len() <= LONGEST { std::str::from_utf8(memo).ok() } else { None };
        let parsed = text.and_then(|text| {
            let mut lines = text.lines();
            (lines.next()? == HEAD).then_some(())?;
            lines.map(PastTerm::parse).collect::<Option<VecDeque<_>>>()
        });
        let mut log = Self(parsed.unwrap_or_default());
        log.forget();
        log
    }

    pub(super) fn to_memo(&self) -> Bytes {
        let mut text = HEAD.to_owned();
        for PastTerm { fence, holder, started, ended, reason, signal } in &self.0 {
            let started = started.as_nanos();
            let _ = write!(text, "\n{fence}\t{started}\t");
            let _ = match ended {
                Some(ended) => write!(text, "{}", ended.as_nanos()),
                None => write!(text, "-"),
            };
            let _ = write!(text, "\t{reason}\t{holder}\t{signal}");
        }
        text.into()
    }

    /// A term began.
    pub(super) fn begin(&mut self, fence: FencingToken, holder: &Identity, started: StoreTime) {
        self.0.push_back(PastTerm {
            fence: fence.get(),
            holder: holder.as_str().to_owned(),
            started,
            ended: None,
            reason: "-".to_owned(),
            signal: String::new(),
        });
        self.forget();
    }

    /// The leader of the latest term left it, or is about to.
    pub(super) fn end(&mut self, at: StoreTime, reason: &ResignReason) {
        let Some(term) = self.0.back_mut() else { return };
        term.ended = Some(at);
        let plain =
            |text: &str| text.chars().filter(|char| !char.is_control()).take(MAX_NAME).collect();
        (term.reason, term.signal) = match reason {
            ResignReason::Unhealthy(signal) => (UNHEALTHY.to_owned(), plain(signal)),
            ResignReason::Program(why) => ("program".to_owned(), plain(why)),
            reason => (reason.as_str().replace(' ', "-"), String::new()),
        };
    }

    /// Whether the last `holders` leaders before the present one, all different, left for that signal, and
    /// none of them longer ago than `window`.
    pub(super) fn is_correlated(
        &self,
        signal: &str,
        now: StoreTime,
        window: Duration,
        holders: usize,
    ) -> bool {
        let mut seen = Vec::<&str>::new();
        for term in self.0.iter().rev().skip(1) {
            if seen.contains(&&*term.holder) {
                continue;
            }
            let lately = |ended: StoreTime| now.since(ended).max(ended.since(now)) < window;
            let is_lately = term.ended.is_some_and(lately);
            if !is_lately || term.reason != UNHEALTHY || term.signal != signal {
                return false;
            }
            seen.push(&term.holder);
            if seen.len() == holders {
                return true;
            }
        }
        false
    }

    /// What it costs to hand over: the median of the times from when a leader had left until another one led.
    ///
    /// What took longer than `longest` does not count: nobody was there to hand over to.
    pub(super) fn hand_over(&self, longest: Duration) -> Option<Duration> {
        let pairs = self.0.iter().zip(self.0.iter().skip(1));
        let pairs = pairs.filter(|(old, new)| old.holder != new.holder);
        let handed = pairs.filter_map(|(old, new)| Some(new.started.since(old.ended?)));
        let mut handed: Vec<_> = handed.filter(|time| *time <= longest).collect();
        handed.sort_unstable();
        handed.get(handed.len() / 2).copied()
    }

    fn forget(&mut self) {
        while self.0.len() > KEPT {
            self.0.pop_front();
        }
    }
}

/// The reason of those who left for a signal.
const UNHEALTHY: &str = "unhealthy";

impl PastTerm {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split('\t');
        let mut field = || fields.next();
        let fence = field()?.parse().ok()?;
        let time = |text: &str| text.parse().ok().map(StoreTime::from_nanos);
        let started = time(field()?)?;
        let ended = match field()? {
            "-" => None,
            text => Some(time(text)?),
        };
        let (reason, holder, signal) = (field()?.into(), field()?.into(), field()?.into());
        let is_whole = field().is_none();
        is_whole.then_some(Self { fence, holder, started, ended, reason, signal })
    }
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WINDOW: Duration = Duration::from_secs(600);

    fn at(secs: u64) -> StoreTime {
        StoreTime::from_nanos(secs * 1_000_000_000)
    }

    fn who(name: &str) -> Identity {
        Identity::new(name.to_owned()).unwrap()
    }

    fn ill(signal: &'static str) -> ResignReason {
        ResignReason::Unhealthy(signal.into())
    }

    /// Terms of 60 s each, a second apart, and one that runs.
    fn log(terms: &[(&str, ResignReason)]) -> TermLog {
        let mut log = TermLog::default();
        for (n, (holder, reason)) in (0..).zip(terms) {
            log.begin(FencingToken::new(n + 1).unwrap(), &who(holder), at(61 * n));
            log.end(at(61 * n + 60), reason);
        }
        let n = terms.len() as u64;
        log.begin(FencingToken::new(n + 1).unwrap(), &who("me"), at(61 * n));
        TermLog::parse(&log.to_memo())
    }

    #[test]
    fn a_failure_that_two_others_left_for_is_everybodys() {
        let is = |terms: &[(&str, ResignReason)], now| {
            log(terms).is_correlated("db", at(now), WINDOW, 2)
        };
        let [db, other, stop] = [ill("db"), ill("cache"), ResignReason::Shutdown];
        let said = ResignReason::Program("db".into());
        assert!(!is(&[("a", said.clone()), ("b", said)], 130), "a word is no signal");
        assert!(is(&[("a", db.clone()), ("b", db.clone())], 130));
        assert!(is(&[("a", db.clone()), ("b", db.clone()), ("b", db.clone())], 190));
        assert!(is(&[("a", db.clone()), ("me", db.clone())], 130), "one of them may be oneself");
        assert!(!is(&[("b", db.clone())], 70), "one alone");
        assert!(!is(&[("a", db.clone()), ("a", db.clone())], 130), "one alone, twice");
        assert!(!is(&[("a", db.clone()), ("b", other)], 130), "for something else");
        assert!(!is(&[("a", db.clone()), ("b", stop.clone())], 130), "for nothing");
        assert!(
            !is(&[("b", db.clone()), ("a", db.clone()), ("b", stop)], 190),
            "what counts is the last"
        );
        assert!(is(&[("a", db.clone()), ("b", db.clone())], 659));
        assert!(!is(&[("a", db.clone()), ("b", db.clone())], 660), "too long ago");
        let mut before = log(&[("a", db.clone()), ("b", db.clone())]);
        before.0.iter_mut().for_each(|term| term.ended = term.ended.map(|_| at(100_000)));
        assert!(!before.is_correlated("db", at(9), WINDOW, 2), "of a clock that was set back");
    }

    #[test]
    fn a_term_that_nobody_left_is_no_evidence() {
        let mut log = TermLog::default();
        for (n, holder) in [(1, "a"), (2, "b"), (3, "me")] {
            log.begin(FencingToken::new(n).unwrap(), &who(holder), at(n));
            if holder == "a" {
                log.end(at(n), &ill("db"));
            }
        }
        assert!(!log.is_correlated("db", at(9), WINDOW, 2));
    }

    #[test]
    fn a_hand_over_costs_what_it_mostly_did() {
        let [second, lease] = [1, 15].map(Duration::from_secs);
        assert_eq!(log(&[]).hand_over(lease), None);
        let ill = || ill("db");
        assert_eq!(log(&[("a", ill())]).hand_over(lease), Some(second));
        assert_eq!(log(&[("me", ill())]).hand_over(lease), None, "it was nobody's hand");
        let mut log = log(&[("a", ill()), ("b", ResignReason::Operator)]);
        log.end(at(200), &ill());
        for (fence, holder, started) in [(8, "a", 215), (9, "b", 900)] {
            log.begin(FencingToken::new(fence).unwrap(), &who(holder), at(started));
            log.end(at(started + 60), &ill());
        }
        assert_eq!(log.hand_over(lease), Some(second), "an outlier counts as one");
        let of_all = Some(Duration::from_secs(15));
        assert_eq!(log.hand_over(Duration::MAX), of_all, "of 1, 1, 15 and 625 s");
    }

    #[test]
    fn the_last_eight_are_kept() {
        let terms: Vec<_> = (0..20).map(|_| ("a", ResignReason::WorkPanicked)).collect();
        let log = log(&terms);
        assert_eq!(log.0.len(), 8);
        assert_eq!(log.0.back().unwrap().fence, 21);
        assert!(log.0.iter().take(7).all(|term| term.reason == "work-panicked"));
    }

    #[test]
    fn what_somebody_else_wrote_is_nothing() {
        let line = "7\t1\t2\tunhealthy\ta\tdb";
        assert_eq!(TermLog::parse(format!("{HEAD}\n{line}").as_bytes()).0.len(), 1);
        for memo in [
            "".to_owned(),
            line.to_owned(),
            format!("terms 2\n{line}"),
            format!("{HEAD}\n{line}\n{line}\tmore"),
            format!("{HEAD}\n7\t1\t2\tunhealthy\ta"),
            format!("{HEAD}\n-7\t1\t2\tunhealthy\ta\tdb"),
            format!("{HEAD}\n7\t1\tnever\tunhealthy\ta\tdb"),
            format!("{HEAD}\n\n"),
            format!("{HEAD}\n{}", format!("{line}\n").repeat(1_000)),
        ] {
            assert_eq!(TermLog::parse(memo.as_bytes()), TermLog::default(), "{memo}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_there_is_read_without_a_panic(memo: Vec<u8>, text in "(terms 1\n)?([0-9\t\n-]|\\PC){0,200}") {
            TermLog::parse(&memo);
            TermLog::parse(text.as_bytes());
        }

        #[test]
        fn what_was_written_is_read(
            terms in proptest::collection::vec(("[^\\p{Cc}]{1,9}", "(.|[\\x00-\\x1f]){0,200}", any::<u64>()), 1..12),
        ) {
            let mut log = TermLog::default();
            for (n, (holder, signal, time)) in (1..).zip(terms) {
                let time = StoreTime::from_nanos(time);
                log.begin(FencingToken::new(n).unwrap(), &who(&holder), time);
                if n % 3 > 0 {
                    log.end(time, &ResignReason::Unhealthy(signal.into()));
                }
            }
            prop_assert!(log.to_memo().len() <= 8 * 1024);
            prop_assert_eq!(TermLog::parse(&log.to_memo()), log);
        }
    }
}
