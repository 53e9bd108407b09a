//! What is told to whoever watches: a line for each event.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::{Stream, stream};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{Shared, leases::Refused};

struct Watching {
    shared: Arc<Shared>,
    namespace: String,
    /// The only one that is told of, or all.
    name: Option<String>,
    /// Up to there it knows all.
    seen: u64,
    told: VecDeque<String>,
    written: watch::Receiver<()>,
    gone: watch::Receiver<()>,
    until: Instant,
    is_over: bool,
}

/// As the real server does where nobody says how long.
const LONGEST: Duration = Duration::from_secs(1800);

/// Those of the leases in that namespace, as `query` has it.
pub(super) fn events(
    shared: &Arc<Shared>,
    namespace: String,
    query: &str,
) -> impl Stream<Item = Result<String, Infallible>> + use<> {
    let of = |field: &str| {
        let mut parts = query.split('&').filter_map(|part| part.split_once('='));
        parts.find(|(name, _)| *name == field).map(|(_, value)| value.replace("%3D", "="))
    };
    let name =
        of("fieldSelector").and_then(|of| Some(of.strip_prefix("metadata.name=")?.to_owned()));
    let seconds = of("timeoutSeconds").and_then(|seconds| seconds.parse().ok());
    #[expect(clippy::disallowed_methods, reason = "its clock is the real one")]
    let until = Instant::now() + seconds.map_or(LONGEST, Duration::from_secs);
    let (written, gone) = (shared.written.subscribe(), shared.gone.subscribe());
    let mut watching = Watching {
        shared: Arc::clone(shared),
        namespace,
        name,
        seen: 0,
        told: VecDeque::new(),
        written,
        gone,
        until,
        is_over: false,
    };
    match of("resourceVersion").as_deref() {
        // All that there is now, and what comes.
        None | Some("" | "0") => watching.begin(),
        Some(version) => watching.seen = version.parse().unwrap_or_default(),
    }
    shared.watchers.fetch_add(1, Ordering::SeqCst);
    stream::unfold(watching, |mut watching| async { Some((Ok(watching.next().await?), watching)) })
}

impl Watching {
    fn begin(&mut self) {
        let leases = self.shared.leases();
        self.seen = leases.revision;
        let all = leases.list(&self.namespace);
        let all = all["items"].as_array().into_iter().flatten();
        let all = all
            .filter(|lease| self.name.as_ref().is_none_or(|of| lease["metadata"]["name"] == **of));
        self.told = all.map(|lease| line("ADDED", lease)).collect();
    }

    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(line) = self.told.pop_front() {
                self.shared.open(false).await;
                return Some(line);
            }
            if self.is_over {
                return None;
            }
            self.look();
            if !self.told.is_empty() {
                continue;
            }
            tokio::select! {
                biased;
                _ = self.written.changed() => {}
                _ = self.gone.changed() => {
                    let gone = Refused::new(410, "Expired", "too old resource version");
                    self.told.push_back(line("ERROR", &gone.status()));
                    self.is_over = true;
                }
                () = sleep_until(self.until) => return None,
            }
        }
    }

    fn look(&mut self) {
        self.written.mark_unchanged();
        let leases = self.shared.leases();
        let is_ours = |(namespace, name): &(String, String)| {
            *namespace == self.namespace && self.name.as_ref().is_none_or(|of| of == name)
        };
        let events = leases.events(self.seen).filter(|event| is_ours(&event.key));
        self.told.extend(events.map(|event| line(event.kind, &event.object)));
        self.seen = leases.revision;
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.shared.watchers.fetch_sub(1, Ordering::SeqCst);
    }
}

fn line(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({ "type": kind, "object": object }))
}
