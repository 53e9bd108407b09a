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

use redis::{
    AsyncConnectionConfig, Cmd, ConnectionInfo, FromRedisValue, ProtocolVersion, PushInfo,
    RedisResult, aio::MultiplexedConnection,
};
use tokio::{
    sync::{
        MutexGuard,
        mpsc::{self, UnboundedReceiver},
    },
    time::timeout,
};

use crate::{
    connect::{Handshake, connect},
    error::{Failure, Why},
    run::Run,
};

pub(crate) struct Wire {
    client: MultiplexedConnection,
    drive: Drive,
    is_dead: bool,
}

/// Carries the questions there and the answers back, while it is polled. Ready at the connection's end.
type Drive = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The connection of a store, for one call.
pub(crate) struct Line<'a> {
    pub(crate) slot: MutexGuard<'a, Slot>,
}

/// Where the connection is while nobody uses it.
#[derive(Default)]
pub(crate) struct Slot {
    pub(crate) wire: Option<Wire>,
    /// The server that it is with, or was.
    pub(crate) run: Option<Run>,
}

/// Longer than a server in reach takes to let us in, and shorter than the elector's limit for a call.
const LONGEST: Duration = Duration::from_secs(2);

// === impl Wire ===

impl Wire {
    pub(crate) async fn new(server: &ConnectionInfo, tls: Option<&Handshake>) -> Result<Self, Why> {
        let connected = async {
            let config = AsyncConnectionConfig::new();
            Self::over(server, tls, config).await
        };
        in_time(connected).await
    }

    /// Connects, and has the server tell what is published there.
    pub(crate) async fn listening(
        server: &ConnectionInfo,
        tls: Option<&Handshake>,
        channel: &str,
    ) -> Result<(Self, UnboundedReceiver<PushInfo>), Why> {
        let connected = async {
            let (tell, told) = mpsc::unbounded_channel();
            let config = AsyncConnectionConfig::new().set_push_sender(tell);
            // The first one in which a server may speak by itself.
            let how = server.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
            let server = server.clone().set_redis_settings(how);
            let mut wire = Self::over(&server, tls, config).await?;
            let call = wire.client.subscribe(channel);
            carried(&mut wire.drive, &mut wire.is_dead, call).await?;
            Ok((wire, told))
        };
        in_time(connected).await
    }

    async fn over(
        server: &ConnectionInfo,
        tls: Option<&Handshake>,
        config: AsyncConnectionConfig,
    ) -> Result<Self, Why> {
        let stream = connect(server, tls).await?;
        // Who calls knows how long to wait.
        let config = config.set_response_timeout(None);
        let how = server.redis_settings();
        let (client, drive) = MultiplexedConnection::new_with_config(how, stream, config).await?;
        Ok(Self { client, drive: Box::pin(drive), is_dead: false })
    }

    /// Carries what the server says by itself. Ready at the end.
    pub(crate) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.is_dead {
            self.is_dead = self.drive.as_mut().poll(cx).is_ready();
        }
        if self.is_dead { Poll::Ready(()) } else { Poll::Pending }
    }

    async fn query<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<T, Why> {
        let call = command.query_async(&mut self.client);
        carried(&mut self.drive, &mut self.is_dead, call).await
    }
}

async fn in_time<T>(connected: impl Future<Output = Result<T, Why>>) -> Result<T, Why> {
    let late = || Err(Why::Passing("it does not answer".to_owned()));
    timeout(LONGEST, connected).await.unwrap_or_else(|_| late())
}

/// What is answered to `call`. Says as well whether that was the last answer of the connection.
async fn carried<T>(
    drive: &mut Drive,
    is_dead: &mut bool,
    call: impl Future<Output = RedisResult<T>>,
) -> Result<T, Why> {
    let mut call = pin!(call);
    let done = poll_fn(|cx| {
        // It first, so that there is something to be sent.
        if let Poll::Ready(done) = Pin::as_mut(&mut call).poll(cx) {
            return Poll::Ready(done);
        }
        if !*is_dead {
            *is_dead = drive.as_mut().poll(cx).is_ready();
        }
        // It may have been answered right before the end, and is told of the end.
        Pin::as_mut(&mut call).poll(cx)
    })
    .await
    .map_err(Why::from);
    *is_dead |= done.as_ref().is_err_and(|why| !why.leaves_connection());
    done
}

// === impl Line ===

impl<'a> Line<'a> {
    /// Takes the connection that is there, unless it has ended: then nothing need be sent to find out.
    pub(crate) async fn of(mut slot: MutexGuard<'a, Slot>) -> Self {
        if let Some(wire) = &mut slot.wire
            && poll_fn(|cx| Poll::Ready(wire.poll_end(cx).is_ready())).await
        {
            slot.wire = None;
        }
        Self { slot }
    }

    /// Asks, with the connection in hand: who is dropped here drops it.
    pub(crate) async fn query<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<T, Failure> {
        let gone = || Why::Passing("the connection has ended".to_owned());
        let mut wire = self.slot.wire.take().ok_or_else(gone)?;
        let done = wire.query(command).await;
        if !wire.is_dead {
            self.slot.wire = Some(wire);
        }
        done.map_err(Failure::sent)
    }
}
