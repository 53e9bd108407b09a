//! What is told with `tracing`. Apart from all others, since a test on another thread that has no
//! subscriber makes `tracing` forget this one's.

use std::{
    fmt::{Debug, Write as _},
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use buttress_shed::{FixedLimit, Priority, Shed, ShedSettings};
use futures_util::poll;
use tokio::time::advance;
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// Keeps what is said, a line for each event.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<String>>>);

impl Subscriber for Said {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "buttress_shed"
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_rare_is_told_and_what_is_not_is_not() {
    let said = Said::default();
    let _guard = tracing::subscriber::set_default(said.clone());
    let shed = Shed::new(FixedLimit::new(1).unwrap(), ShedSettings::default()).unwrap();
    let permit = shed.try_admit(Priority::Critical).unwrap();
    let mut first = pin!(shed.admit(Priority::Critical));
    let mut second = pin!(shed.admit(Priority::SheddablePlus));
    let mut third = pin!(shed.admit(Priority::Critical));
    assert!(poll!(first.as_mut()).is_pending());
    advance(Duration::from_millis(90)).await;
    assert!(poll!(second.as_mut()).is_pending());
    advance(Duration::from_millis(11)).await;
    assert!(said.0.lock().unwrap().is_empty());

    assert!(poll!(third.as_mut()).is_pending());
    advance(Duration::from_millis(11)).await;
    assert!(second.await.is_err());
    drop(permit);
    assert!(third.await.is_ok());
    assert_eq!(
        *said.0.lock().unwrap(),
        [
            "INFO message=overloaded limit=1 in_flight=1 waiting=2",
            r#"DEBUG message=refused reason="overloaded" priority="sheddable plus""#,
            "INFO message=no longer overloaded limit=1 in_flight=0 waiting=1",
        ]
    );
}
