//! What is told by `tracing`: names, levels and fields are promised.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use buttress_breaker::{Breaker, BreakerSettings, Breakers, Select};
use buttress_core::{Class, Permit};
use tokio::time::advance;
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// Keeps every event. Asks the breaker whenever there is one, which would never end if events were told
/// under its lock.
#[derive(Clone, Default)]
struct Log {
    events: Arc<Mutex<Vec<(Level, Fields)>>>,
    asks: Arc<Mutex<Option<Breaker>>>,
}

type Fields = BTreeMap<&'static str, String>;

struct Visitor<'a>(&'a mut Fields);

impl Visit for Visitor<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("buttress_breaker")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::new();
        event.record(&mut Visitor(&mut fields));
        if let Some(breaker) = &*self.asks.lock().unwrap() {
            let _ = (breaker.state(), breaker.stats());
        }
        self.events.lock().unwrap().push((*event.metadata().level(), fields));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

impl Log {
    fn take(&self) -> Vec<(Level, Fields)> {
        std::mem::take(&mut self.events.lock().unwrap())
    }

    /// The changes that were told since the last look, as `from > to: reason`.
    fn changes(&self) -> Vec<String> {
        let change = |(level, fields): (Level, Fields)| {
            (level == Level::INFO)
                .then(|| format!("{} > {}: {}", fields["from"], fields["to"], fields["reason"]))
        };
        self.take().into_iter().filter_map(change).collect()
    }
}

fn settings() -> BreakerSettings {
    BreakerSettings::default().consecutive(1).open_jitter(0.0).probes(1)
}

#[tokio::test(start_paused = true)]
async fn each_change_is_told_with_its_reason() {
    let log = Log::default();
    let _default = tracing::subscriber::set_default(log.clone());
    let slow = settings().slow_call(Duration::from_secs(1)).min_calls(2).consecutive(3);
    let breaker = Breaker::new(slow).unwrap();
    *log.asks.lock().unwrap() = Some(breaker.clone());
    let call = |class: Class| breaker.admit().unwrap().report(class);
    let open_time = Duration::from_secs(5);

    call(Class::Fatal);
    call(Class::Fatal);
    assert_eq!(log.changes(), ["closed > open: failure rate"]);
    advance(open_time).await;
    call(Class::Fatal);
    assert_eq!(
        log.changes(),
        ["open > half-open: open time over", "half-open > open: probe failed"]
    );
    advance(2 * open_time).await;
    call(Class::Success);
    assert_eq!(
        log.changes(),
        ["open > half-open: open time over", "half-open > closed: probes succeeded"]
    );
    for _ in 0..2 {
        let slow = breaker.admit().unwrap();
        advance(Duration::from_secs(1)).await;
        slow.report(Class::Success);
    }
    assert_eq!(log.changes(), ["closed > open: slow rate"]);
    advance(open_time).await;
    let slow = breaker.admit().unwrap();
    advance(Duration::from_secs(1)).await;
    slow.report(Class::Success);
    assert_eq!(
        log.changes(),
        ["open > half-open: open time over", "half-open > open: probes slow"]
    );
    advance(2 * open_time).await;
    let hung = [breaker.admit().unwrap(), {
        advance(open_time).await;
        breaker.admit().unwrap()
    }];
    advance(open_time).await;
    assert!(breaker.admit().is_err());
    drop(hung);
    assert_eq!(
        log.changes(),
        ["open > half-open: open time over", "half-open > open: probes expired"]
    );
    breaker.force_open();
    breaker.force_closed();
    breaker.force_open();
    breaker.reset();
    assert_eq!(
        log.changes(),
        [
            "open > open: forced",
            "open > closed: forced",
            "closed > open: forced",
            "open > closed: reset"
        ]
    );
    let quiet = Breaker::new(settings()).unwrap();
    quiet.admit().unwrap().report(Class::Fatal);
    assert_eq!(log.changes(), ["closed > open: consecutive failures"]);
}

#[tokio::test(start_paused = true)]
async fn names_are_told_if_they_were_given_and_refusals_at_debug() {
    let log = Log::default();
    let _default = tracing::subscriber::set_default(log.clone());
    let breaker = Breaker::new(settings().name("orders")).unwrap();
    breaker.admit().unwrap().report(Class::Fatal);
    let [(level, change)] = &log.take()[..] else { panic!("one event") };
    assert_eq!((*level, change["breaker"].as_str()), (Level::INFO, "orders"));
    assert_eq!(change["shadow"], "false");
    assert!(!change.contains_key("key"));
    assert!(breaker.admit().is_err());
    let [(level, refusal)] = &log.take()[..] else { panic!("one event") };
    assert_eq!((*level, refusal["retry_in"].as_str()), (Level::DEBUG, "5s"));
    assert_eq!(refusal["breaker"], "orders");

    // What never changed says nothing, however many calls there are.
    breaker.reset();
    log.take();
    for _ in 0..100 {
        breaker.admit().unwrap().report(Class::Success);
    }
    assert_eq!(log.take(), []);
}

// OPS-01
#[tokio::test(start_paused = true)]
async fn keys_of_requests_are_told_only_to_who_asks_for_them() {
    let log = Log::default();
    let _default = tracing::subscriber::set_default(log.clone());
    let by_host = |host: &String| host.clone();
    let open = |breakers: &dyn Select<String>| {
        let breaker = breakers.select(&"orders:80".to_owned());
        breaker.admit().unwrap().report(Class::Fatal);
        let [(_, fields)] = &log.take()[..] else { panic!("one event") };
        (fields.get("breaker").cloned(), fields.get("key").cloned())
    };
    let plain = Breakers::new(settings().name("hosts"), by_host).unwrap();
    assert_eq!(open(&plain), (Some("hosts".into()), None));
    let labelled = Breakers::new(settings(), by_host).unwrap().label(String::clone);
    assert_eq!(open(&labelled), (None, Some("orders:80".into())));
}
