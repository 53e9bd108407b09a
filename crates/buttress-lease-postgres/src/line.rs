//! One connection, served by whoever waits for its answer.
//!
//! A call that is dropped on its way takes the connection with it. So nothing of it is sent later, when
//! somebody else makes the next call, and one that hangs is not used again.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::{Context, Poll},
    time::Duration,
};

use tokio::{sync::MutexGuard, time::timeout};
use tokio_postgres::{
    AsyncMessage, Client, Config, Error, Row,
    types::{ToSql, Type},
};

use crate::{
    connect::{Connect, Drive},
    error::{Failure, Why},
    table::{self, Millis},
};

pub(crate) struct Wire {
    client: Client,
    drive: Box<dyn Drive>,
    is_dead: bool,
}

/// The connection of a store, for one call.
pub(crate) struct Line<'a> {
    pub(crate) slot: MutexGuard<'a, Slot>,
}

/// Where the connection is while nobody uses it.
#[derive(Default)]
pub(crate) struct Slot {
    pub(crate) wire: Option<Wire>,
    /// Whether the table has been looked at.
    pub(crate) is_checked: bool,
    /// After what time the server gives a statement up on that connection.
    pub(crate) timeout: Option<Millis>,
}

/// A server that has not let us in by then does not answer. Calls are dropped before, by the elector.
const LONGEST: Duration = Duration::from_secs(10);

// === impl Wire ===

impl Wire {
    /// Connects, and says what there is to be said first.
    pub(crate) async fn new(
        connect: &dyn Connect,
        config: Config,
        first: &str,
    ) -> Result<Self, Why> {
        let connected = async {
            let (client, drive) = connect.connect(config).await?;
            let mut wire = Self { client, drive, is_dead: false };
            wire.batch(first).await?;
            Ok(wire)
        };
        timeout(LONGEST, connected).await.unwrap_or(Err(Why::Gone("it does not answer")))
    }

    /// Waits for what the server says by itself. `None` is the end.
    pub(crate) fn poll_told(&mut self, cx: &mut Context<'_>) -> Poll<Option<AsyncMessage>> {
        self.drive.poll_message(cx).map(|told| told.and_then(Result::ok))
    }

    async fn batch(&mut self, statements: &str) -> Result<(), Why> {
        let call = self.client.batch_execute(statements);
        carried(&mut *self.drive, &mut self.is_dead, call).await
    }

    async fn query(
        &mut self,
        statement: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, Why> {
        let call = self.client.query_typed(statement, params);
        carried(&mut *self.drive, &mut self.is_dead, call).await
    }

    /// Finds out whether it has ended meanwhile: then nothing need be sent to find out.
    async fn look(&mut self) {
        poll_fn(|cx| {
            self.is_dead = carry(&mut *self.drive, cx).is_ready();
            Poll::Ready(())
        })
        .await;
    }
}

/// Carries to and fro until there is no more. Ready at the connection's end, with what ended it.
fn carry(drive: &mut dyn Drive, cx: &mut Context<'_>) -> Poll<Why> {
    loop {
        match drive.poll_message(cx) {
            // What the server tells besides is for nobody.
            Poll::Ready(Some(Ok(_))) => {}
            Poll::Ready(Some(Err(error))) => return Poll::Ready(error.into()),
            Poll::Ready(None) => return Poll::Ready(Why::Gone("the connection has ended")),
            Poll::Pending => return Poll::Pending,
        }
    }
}

/// What is answered to `call`. Says as well whether that was the last answer of the connection.
async fn carried<T>(
    drive: &mut dyn Drive,
    is_dead: &mut bool,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, Why> {
    let mut call = pin!(call);
    let done = poll_fn(|cx| {
        // It first, so that there is something to be sent.
        if let Poll::Ready(done) = Pin::as_mut(&mut call).poll(cx) {
            return Poll::Ready(done.map_err(Why::from));
        }
        let end = carry(drive, cx);
        *is_dead = end.is_ready();
        // It may have been answered right before the end.
        match (Pin::as_mut(&mut call).poll(cx), end) {
            (Poll::Ready(Err(error)), Poll::Ready(why)) if error.is_closed() => {
                Poll::Ready(Err(why))
            }
            (Poll::Ready(done), _) => Poll::Ready(done.map_err(Why::from)),
            (Poll::Pending, end) => end.map(Err),
        }
    })
    .await;
    *is_dead |= done.as_ref().is_err_and(|why| !why.leaves_connection());
    done
}

// === impl Line ===

impl<'a> Line<'a> {
    /// Takes the connection that is there, unless it has ended.
    pub(crate) async fn of(mut slot: MutexGuard<'a, Slot>) -> Self {
        if let Some(wire) = &mut slot.wire {
            wire.look().await;
            if wire.is_dead {
                slot.wire = None;
            }
        }
        Self { slot }
    }

    /// Asks, with the connection in hand: who is dropped here drops it.
    pub(crate) async fn query(
        &mut self,
        statement: &str,
        params: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, Failure> {
        let mut wire = self.slot.wire.take().ok_or(Why::Gone("the connection has ended"))?;
        let done = wire.query(statement, params).await;
        if !wire.is_dead {
            self.slot.wire = Some(wire);
        }
        done.map_err(Failure::sent)
    }

    /// Has the server give up statements after that time, if it does not.
    pub(crate) async fn time_out(&mut self, timeout: Millis) -> Result<(), Failure> {
        if self.slot.timeout != Some(timeout) {
            self.query(&table::time_out(timeout), &[]).await.map_err(Failure::without_effect)?;
            self.slot.timeout = Some(timeout);
        }
        Ok(())
    }
}
