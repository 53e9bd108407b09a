//! Wake-ups: a second connection, on which the server tells of releases.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use buttress_leadership::{Changes, LeaseName, changes_over};
use futures_core::Stream;
use redis::{PushInfo, PushKind};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::{error::Why, line::Wire, store::Shared};

/// Says that a lease was released, and that it may have been: whenever it has listened anew.
pub(crate) fn released(shared: Arc<Shared>, name: LeaseName) -> Changes {
    changes_over(move || {
        let (shared, name) = (Arc::clone(&shared), name.clone());
        async move {
            let (wire, told) = shared.listen(&name).await?;
            Ok::<_, Why>(Told { wire, told })
        }
    })
}

struct Told {
    wire: Wire,
    told: UnboundedReceiver<PushInfo>,
}

impl Stream for Told {
    type Item = ();

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<()>> {
        loop {
            let end = self.wire.poll_end(cx);
            match self.told.poll_recv(cx) {
                Poll::Ready(Some(told)) if told.kind == PushKind::Message => {
                    return Poll::Ready(Some(()));
                }
                Poll::Ready(Some(_)) => {}
                Poll::Ready(None) | Poll::Pending => {
                    ready!(end);
                    return Poll::Ready(None);
                }
            }
        }
    }
}
