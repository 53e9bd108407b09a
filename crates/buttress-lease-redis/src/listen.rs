//! Wake-ups: a second connection, on which the server tells of releases.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use buttress_leadership::LeaseName;
use futures_core::Stream;
use redis::{PushInfo, PushKind};
use tokio::{
    sync::mpsc::UnboundedReceiver,
    time::{Sleep, sleep},
};

use crate::{error::Why, line::Wire, store::Shared};

/// Says that a lease was released, and that it may have been: whenever it has listened anew.
pub(crate) struct Released {
    shared: Arc<Shared>,
    name: LeaseName,
    failed: u32,
    state: State,
}

/// Never says anything.
pub(crate) struct Silent;

enum State {
    Connecting(Connecting),
    Listening(Wire, UnboundedReceiver<PushInfo>),
    Waiting(Pin<Box<Sleep>>),
}

type Connecting =
    Pin<Box<dyn Future<Output = Result<(Wire, UnboundedReceiver<PushInfo>), Why>> + Send>>;

/// The wait after a connection that has ended, doubled each time up to the longest. Candidates look by themselves
/// meanwhile.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

impl Released {
    pub(crate) fn new(shared: Arc<Shared>, name: LeaseName) -> Self {
        let state = State::Connecting(connecting(&shared, &name));
        Self { shared, name, failed: 0, state }
    }
}

impl Stream for Released {
    type Item = ();

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<()>> {
        let this = &mut *self;
        loop {
            match &mut this.state {
                // ## Connecting => Listening | Waiting
                State::Connecting(connecting) => match ready!(connecting.as_mut().poll(cx)) {
                    Ok((wire, told)) => {
                        this.state = State::Listening(wire, told);
                        this.failed = 0;
                        return Poll::Ready(Some(()));
                    }
                    Err(_) => this.state = this.wait(),
                },
                // ## Listening => Listening | Waiting
                State::Listening(wire, told) => {
                    let end = wire.poll_end(cx);
                    match told.poll_recv(cx) {
                        Poll::Ready(Some(told)) if told.kind == PushKind::Message => {
                            return Poll::Ready(Some(()));
                        }
                        Poll::Ready(Some(_)) => {}
                        Poll::Ready(None) | Poll::Pending => {
                            ready!(end);
                            this.state = this.wait();
                        }
                    }
                }
                // ## Waiting => Connecting
                State::Waiting(sleep) => {
                    ready!(sleep.as_mut().poll(cx));
                    this.state = State::Connecting(connecting(&this.shared, &this.name));
                }
            }
        }
    }
}

impl Stream for Silent {
    type Item = ();

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<()>> {
        Poll::Pending
    }
}

impl Released {
    fn wait(&mut self) -> State {
        let wait = SHORTEST.saturating_mul(2_u32.saturating_pow(self.failed)).min(LONGEST);
        self.failed = self.failed.saturating_add(1);
        State::Waiting(Box::pin(sleep(wait)))
    }
}

fn connecting(shared: &Arc<Shared>, name: &LeaseName) -> Connecting {
    let (shared, name) = (Arc::clone(shared), name.clone());
    Box::pin(async move { shared.listen(&name).await })
}
