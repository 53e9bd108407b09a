//! Wake-ups: a second connection, on which the server tells of releases.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use buttress_leadership::LeaseName;
use futures_core::Stream;
use tokio::time::{Sleep, sleep};
use tokio_postgres::AsyncMessage;

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
    Connecting(Pin<Box<dyn Future<Output = Result<Wire, Why>> + Send>>),
    Listening(Wire),
    Waiting(Pin<Box<Sleep>>),
}

/// The wait after a connection that has ended, doubled each time up to the longest. Candidates look by themselves
/// meanwhile.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

impl Released {
    pub(crate) fn new(shared: Arc<Shared>, name: LeaseName) -> Self {
        let state = State::Connecting(connecting(&shared));
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
                    Ok(wire) => {
                        this.state = State::Listening(wire);
                        this.failed = 0;
                        return Poll::Ready(Some(()));
                    }
                    Err(_) => this.state = this.wait(),
                },
                // ## Listening => Listening | Waiting
                State::Listening(wire) => match ready!(wire.poll_told(cx)) {
                    Some(AsyncMessage::Notification(told))
                        if told.payload() == this.name.as_str() =>
                    {
                        return Poll::Ready(Some(()));
                    }
                    Some(_) => {}
                    None => this.state = this.wait(),
                },
                // ## Waiting => Connecting
                State::Waiting(sleep) => {
                    ready!(sleep.as_mut().poll(cx));
                    this.state = State::Connecting(connecting(&this.shared));
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

fn connecting(shared: &Arc<Shared>) -> Pin<Box<dyn Future<Output = Result<Wire, Why>> + Send>> {
    let shared = Arc::clone(shared);
    Box::pin(async move { shared.connect("LISTEN buttress_leases").await })
}
