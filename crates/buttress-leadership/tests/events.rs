//! What is told with `tracing`. Apart from all others, since a test on another thread that has no
//! subscriber makes `tracing` forget this one's.

use std::{
    fmt::{Debug, Write as _},
    sync::{Arc, Mutex},
    time::Duration,
};

use buttress_core::{Health, Reading};
use buttress_leadership::{Elector, Identity, LeaseConfig, LeaseName, MemoryStore, ResignPolicy};
use tokio::time::sleep;
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// Keeps what is said where nobody asked for more, a line for each event.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<String>>>);

impl Said {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Subscriber for Said {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "buttress_leadership" && *metadata.level() <= Level::INFO
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

/// The same in each run, so that what is said is as well.
fn config(identity: &str) -> LeaseConfig {
    let config = LeaseConfig::new(LeaseName::new("a").unwrap()).allow_stable_identity();
    config.identity(Identity::new(identity).unwrap())
}

#[tokio::test(start_paused = true)]
async fn followers_say_who_leads_and_leaders_why_they_do_not_any_more() {
    let said = Said::default();
    let _guard = tracing::subscriber::set_default(said.clone());
    let store = MemoryStore::new();
    let leader = Elector::new(store.clone(), config("one")).unwrap();
    let leader = leader.lead(|_| sleep(Duration::from_secs(60))).spawn();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(
        said.take(),
        [
            "INFO message=new leader lease=a identity=one fence=1",
            "INFO message=term started lease=a identity=one fence=1",
        ]
    );
    let ill = |_| Reading { health: Health::Unhealthy, since: None };
    let policy =
        ResignPolicy::new().readiness("ping", || async { Err("down") }).critical("db", ill);
    let follower = Elector::new(store, config("two")).unwrap().resign_when(policy).unwrap();
    let follower = follower.spawn();
    sleep(Duration::from_secs(55)).await;
    assert_eq!(said.take(), ["INFO message=new leader lease=a identity=one fence=1"]);

    drop(follower);
    sleep(Duration::from_secs(5)).await;
    let all = said.take();
    let ended = "INFO message=term ended lease=a fence=1 end=resigned reason=work returned";
    assert!(all.iter().any(|line| line == ended), "{all:#?}");
    drop(leader);
}

#[tokio::test(start_paused = true)]
async fn who_stands_as_the_last_resort_says_so_once() {
    let said = Said::default();
    let _guard = tracing::subscriber::set_default(said.clone());
    let ill = |_| Reading { health: Health::Unhealthy, since: None };
    let policy =
        ResignPolicy::new().readiness("ping", || async { Err("down") }).critical("db", ill);
    let elector = Elector::new(MemoryStore::new(), config("one")).unwrap();
    let elector = elector.resign_when(policy).unwrap().spawn();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(
        said.take(),
        [
            "INFO message=stands as the last resort: nobody leads lease=a",
            "INFO message=new leader lease=a identity=one fence=1",
            "INFO message=term started lease=a identity=one fence=1",
            "WARN message=term degraded lease=a fence=1 by=last resort",
        ]
    );
    drop(elector);
}
