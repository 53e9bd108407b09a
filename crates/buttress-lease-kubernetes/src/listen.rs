//! Wake-ups: a watch, by which the server tells of releases.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use buttress_leadership::{Changes, LeaseName, changes_over};
use futures_core::Stream;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{api::WatchParams, core::WatchEvent};
use tokio::time::{Sleep, sleep, timeout};

use crate::{error::Why, store::Shared};

/// Says that a lease was released, and that it may have been: whenever it watches anew.
pub(crate) fn released(shared: Arc<Shared>, name: LeaseName) -> Changes {
    changes_over(move || {
        let (shared, name) = (Arc::clone(&shared), name.clone());
        async move {
            let leases = shared.apart(&name)?;
            let params = WatchParams::default();
            let params = params.fields(&format!("metadata.name={name}")).timeout(SECONDS);
            let watching = leases.watch(&params, ANY);
            let late = |_| Why::Passing("it does not answer");
            let events = timeout(GRACE, watching).await.map_err(late)??;
            let end = sleep(Duration::from_secs(SECONDS.into()) + GRACE);
            Ok::<_, Why>(Told { events: Box::pin(events), end: Box::pin(end) })
        }
    })
}

/// So long the server tells of what happens before it is asked anew.
const SECONDS: u32 = 60;
/// And so much later it is believed that there is no server any more. So it is if it does not begin for as long.
const GRACE: Duration = Duration::from_secs(10);
/// From whatever state the server has at hand: there is none that it has forgotten.
const ANY: &str = "0";

struct Told<S> {
    events: Pin<Box<S>>,
    end: Pin<Box<Sleep>>,
}

impl<S: Stream<Item = kube::Result<WatchEvent<Lease>>>> Stream for Told<S> {
    type Item = ();

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<()>> {
        loop {
            if self.end.as_mut().poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            match ready!(self.events.as_mut().poll_next(cx)) {
                Some(Ok(WatchEvent::Added(lease) | WatchEvent::Modified(lease))) => {
                    let holder = lease.spec.and_then(|spec| spec.holder_identity);
                    if holder.is_none_or(|holder| holder.is_empty()) {
                        return Poll::Ready(Some(()));
                    }
                }
                Some(Ok(WatchEvent::Deleted(_))) => return Poll::Ready(Some(())),
                Some(Ok(WatchEvent::Bookmark(_))) => {}
                // What it has seen is too old, or it may see nothing.
                Some(Ok(WatchEvent::Error(_)) | Err(_)) | None => return Poll::Ready(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use buttress_core::edge;
    use futures_util::{StreamExt, stream};
    use kube::core::{
        Status, TypeMeta,
        watch::{Bookmark, BookmarkMeta},
    };
    use tokio::time::timeout;

    use super::*;

    fn told<S: Stream<Item = kube::Result<WatchEvent<Lease>>>>(events: S) -> Told<S> {
        Told { events: Box::pin(events), end: Box::pin(sleep(GRACE)) }
    }

    fn held_by(holder: Option<&str>) -> Lease {
        let mut lease = Lease::default();
        lease.spec.get_or_insert_default().holder_identity = holder.map(str::to_owned);
        lease
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_nobody_holds_wakes_and_an_error_ends_it() {
        let metadata =
            BookmarkMeta { resource_version: "7".to_owned(), annotations: Default::default() };
        let bookmark = Bookmark { types: TypeMeta::default(), metadata };
        let events = [
            WatchEvent::Added(held_by(Some("a"))),
            WatchEvent::Bookmark(bookmark),
            WatchEvent::Modified(held_by(Some("a"))),
            WatchEvent::Modified(held_by(Some(""))),
            WatchEvent::Modified(held_by(None)),
            WatchEvent::Deleted(held_by(Some("a"))),
            WatchEvent::Error(Status::failure("too old", "Expired").with_code(410).boxed()),
            WatchEvent::Deleted(held_by(None)),
        ];
        let told = told(stream::iter(events.map(Ok)));
        assert_eq!(told.collect::<Vec<_>>().await.len(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_says_nothing_ends() {
        let before = edge::now();
        let mut told = told(stream::pending());
        let end = timeout(2 * GRACE, told.next()).await;
        assert_eq!((end, edge::now() - before), (Ok(None), GRACE));
    }
}
