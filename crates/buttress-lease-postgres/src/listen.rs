//! Wake-ups: a second connection, on which the server tells of releases.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use buttress_leadership::{Changes, LeaseName, changes_over};
use futures_core::Stream;
use tokio_postgres::AsyncMessage;

use crate::{error::Why, line::Wire, store::Shared};

/// Says that a lease was released, and that it may have been: whenever it has listened anew.
pub(crate) fn released(shared: Arc<Shared>, name: LeaseName) -> Changes {
    changes_over(move || {
        let (shared, name) = (Arc::clone(&shared), name.clone());
        async move {
            let wire = shared.connect("LISTEN buttress_leases").await?;
            Ok::<_, Why>(Told { wire, name })
        }
    })
}

struct Told {
    wire: Wire,
    name: LeaseName,
}

impl Stream for Told {
    type Item = ();

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<()>> {
        loop {
            match ready!(self.wire.poll_told(cx)) {
                Some(AsyncMessage::Notification(told)) if told.payload() == self.name.as_str() => {
                    return Poll::Ready(Some(()));
                }
                Some(_) => {}
                None => return Poll::Ready(None),
            }
        }
    }
}
