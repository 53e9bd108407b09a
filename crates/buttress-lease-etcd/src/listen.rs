//! Wake-ups: a second connection, on which the server tells of keys that are gone.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use buttress_leadership::{Changes, LeaseName, changes_over};
use etcd_client::WatchStream;
use futures_core::Stream;

use crate::{error::Why, line::Wire, store::Shared};

/// Says that a lease was released or has ended, and that it may have: whenever it has listened anew.
pub(crate) fn released(shared: Arc<Shared>, name: LeaseName) -> Changes {
    changes_over(move || {
        let (shared, name) = (Arc::clone(&shared), name.clone());
        async move {
            let (wire, told) = shared.listen(&name).await?;
            Ok::<_, Why>(Told { told, wire })
        }
    })
}

struct Told {
    told: WatchStream,
    wire: Wire,
}

impl Stream for Told {
    type Item = ();

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<()>> {
        loop {
            let end = self.wire.poll_end(cx);
            match Pin::new(&mut self.told).poll_next(cx) {
                Poll::Ready(Some(Ok(told))) if told.canceled() => return Poll::Ready(None),
                Poll::Ready(Some(Ok(told))) if !told.events().is_empty() => {
                    return Poll::Ready(Some(()));
                }
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(_)) | None) => return Poll::Ready(None),
                Poll::Pending => {
                    ready!(end);
                    return Poll::Ready(None);
                }
            }
        }
    }
}
