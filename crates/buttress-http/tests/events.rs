//! What is told by `tracing`: names, levels and fields are promised.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fmt,
    sync::{Arc, Mutex},
};

use buttress_core::{FenceGuard, FenceStore, FencingToken, LeaseId, RaiseError};
use buttress_http::{FencingLayer, ReceiveDeadlineLayer};
use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

type Fields = BTreeMap<&'static str, String>;

/// Keeps every event.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(Level, Fields)>>>);

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
        metadata.target().starts_with("buttress_http")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::new();
        event.record(&mut Visitor(&mut fields));
        self.0.lock().unwrap().push((*event.metadata().level(), fields));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

// GRP-05
#[tokio::test(start_paused = true)]
async fn a_deadline_that_makes_no_sense_or_has_passed_is_told_and_one_that_is_well_is_not() {
    let log = Log::default();
    let _default = tracing::subscriber::set_default(log.clone());
    let server = ReceiveDeadlineLayer::grpc()
        .layer(service_fn(|_: Request<()>| async { Ok::<_, Infallible>(()) }));
    let told = async |left: &str| {
        let request = Request::builder().header("grpc-timeout", left).body(()).unwrap();
        let answer = server.clone().oneshot(request).await;
        (answer.is_ok(), std::mem::take(&mut *log.0.lock().unwrap()))
    };
    let event = |fields: &[(&'static str, &str)]| {
        let fields = fields.iter().map(|(name, value)| (*name, (*value).to_owned()));
        vec![(Level::DEBUG, fields.collect::<Fields>())]
    };

    assert_eq!(told("5S").await, (true, vec![]));
    let malformed = event(&[("header", "grpc-timeout"), ("message", "malformed deadline ignored")]);
    assert_eq!(told("soon").await, (true, malformed));
    let refused =
        event(&[("layer", "receive"), ("message", "refused"), ("reason", "deadline exceeded")]);
    assert_eq!(told("0n").await, (false, refused));
}

/// A store that never says.
#[derive(Clone)]
struct Lost;

impl FenceStore for Lost {
    type Raise = std::future::Ready<Result<(), RaiseError>>;

    fn lease(&self) -> LeaseId {
        LeaseId::of("orders")
    }

    fn raise(&self, _: FencingToken) -> Self::Raise {
        std::future::ready(Err(RaiseError::Failed("connection lost".into())))
    }
}

#[tokio::test]
async fn who_is_refused_for_a_token_is_told_of_with_the_greatest_and_who_is_let_in_is_not() {
    let log = Log::default();
    let _default = tracing::subscriber::set_default(log.clone());
    async fn told(log: &Log, store: impl FenceStore + Clone, token: &str) -> Vec<(Level, Fields)> {
        let server = FencingLayer::new(store)
            .layer(service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(()))));
        let request = Request::builder().header("leadership-fence", token).body(()).unwrap();
        server.oneshot(request).await.unwrap();
        std::mem::take(&mut *log.0.lock().unwrap())
    }
    let refused = |level, reason: &str, of: &[(&'static str, &str)]| {
        let fields = [("message", "write refused"), ("reason", reason)];
        let fields = fields.iter().chain(of).map(|(name, value)| (*name, (*value).to_owned()));
        (level, fields.collect::<Fields>())
    };
    let guard = FenceGuard::starting_at(LeaseId::of("orders"), FencingToken::new(34));
    assert_eq!(told(&log, guard.clone(), "34").await, []);
    let of = [("fence", "33"), ("highest", "34")];
    let stale = refused(Level::WARN, "stale fencing token", &of);
    assert_eq!(told(&log, guard.clone(), "33").await, [stale]);
    let malformed = refused(Level::DEBUG, "malformed fencing token", &[]);
    assert_eq!(told(&log, guard, "x").await, [malformed]);

    let [(level, fields), second] = &told(&log, Lost, "35").await[..] else { panic!() };
    assert_eq!((*level, &*fields["message"]), (Level::WARN, "fencing token not compared"));
    assert_eq!(&*fields["fence"], "35");
    assert!(fields.contains_key("error"));
    assert_eq!(*second, refused(Level::DEBUG, "fencing token not compared", &[]));
}
