//! What is told to whoever listens. Apart from the other tests: who listens is registered for the whole process.

#[allow(dead_code, reason = "the other tests use the rest of it")]
#[path = "retry/support.rs"]
mod support;

use std::{
    fmt,
    sync::{Arc, Mutex},
};

use buttress_core::NoReplay;
use buttress_retry::{Budget, BudgetSettings};
use support::*;
use tracing::{Event, Level, Metadata, Subscriber, field::Field, span};

/// Writes each event in a line: level, then fields, the message last.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl tracing::field::Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        use fmt::Write;
        match field.name() {
            "message" => write!(self.0, " {value:?}").unwrap(),
            name => write!(self.0, " {name}={value:?}").unwrap(),
        }
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "buttress_retry"
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

impl Lines {
    /// What was told since the last time.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

// RET-01, RET-04
#[tokio::test(start_paused = true)]
async fn every_repeat_and_every_reason_for_none_is_told_and_a_success_is_not() {
    let lines = Lines::default();
    let _listens = tracing::subscriber::set_default(lines.clone());

    send(&mut over(&at_once(), &Callee::new([Act::Answer(OK)]))).await.unwrap();
    send(&mut over(&at_once(), &Callee::new([Act::Answer(WRONG)]))).await.unwrap();
    assert!(lines.take().is_empty(), "these are answers");

    send(&mut over(&at_once().attempts(2), &Callee::always(BUSY))).await.unwrap();
    let both = lines.take();
    let [repeating, stopped] = &both[..] else { panic!("two events: {both:?}") };
    assert_eq!(repeating, "TRACE repeating attempt=1 class=Transient { after: None } wait=0ns");
    assert_eq!(
        stopped,
        "TRACE not repeated attempt=2 class=Transient { after: None } reason=\"attempts\""
    );

    let told = |reason: &str| {
        let lines = lines.take();
        let last = lines.last().expect("an event");
        assert!(last.ends_with(&format!("reason=\"{reason}\"")), "{last}");
        last.starts_with(&Level::DEBUG.to_string())
    };
    send(&mut over(&at_once().replay(NoReplay), &Callee::always(BUSY))).await.unwrap();
    assert!(!told("not kept"));
    send(&mut over(&at_once(), &Callee::always(later(61 * SEC)))).await.unwrap();
    assert!(!told("retry after"));
    let mut service = over(&at_once(), &Callee::always(later(SEC)));
    total(SEC, || send(&mut service)).await.unwrap();
    assert!(!told("deadline"));
    let empty: Budget = budget(BudgetSettings::default().reserve(0));
    send(&mut over(&within(&empty), &Callee::always(BUSY))).await.unwrap();
    assert!(told("budget"), "at debug: it is a refusal");
}
