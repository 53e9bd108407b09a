use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_core::Stream;
use tokio::time::{Sleep, sleep};

/// What a store answers candidates with that want to be woken. See
/// [`LeaseStore::changes`](crate::LeaseStore::changes).
pub type Changes = Pin<Box<dyn Stream<Item = ()> + Send>>;

/// Those of a store that wakes nobody: they never say anything.
#[must_use]
pub fn no_changes() -> Changes {
    Box::pin(Never)
}

/// Those that a server tells of on a connection, for those who write a store.
///
/// `connect` makes one that listens, and whatever it says wakes. It is made anew when it has ended or could not be
/// made, after a second at first and a minute at last: candidates look by themselves meanwhile. What was told while
/// nobody listened is not told again, and so a new connection wakes, too.
///
/// # Examples
///
/// ```
/// use buttress_leadership::{Changes, changes_over};
/// use futures_util::{StreamExt, stream};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// // Each connection tells of one release, and ends.
/// let mut changes: Changes = changes_over(|| async { Ok::<_, std::io::Error>(stream::iter([()])) });
/// for _ in 0..9 {
///     assert_eq!(changes.next().await, Some(()));
/// }
/// # }
/// ```
///
/// # Panics
///
/// As it is polled, if a connection has ended and there is no tokio runtime with timers.
#[must_use]
pub fn changes_over<C, F, S, E>(mut connect: C) -> Changes
where
    C: FnMut() -> F + Send + 'static,
    F: Future<Output = Result<S, E>> + Send + 'static,
    S: Stream<Item = ()> + Send + 'static,
{
    let state = State::Connecting(Box::pin(connect()));
    Box::pin(Reconnecting { connect, failed: 0, state })
}

struct Never;

struct Reconnecting<C, F, S> {
    connect: C,
    /// How often, since it listened last.
    failed: u32,
    state: State<F, S>,
}

/// What has to stay where it is has a box of its own.
impl<C, F, S> Unpin for Reconnecting<C, F, S> {}

enum State<F, S> {
    Connecting(Pin<Box<F>>),
    Listening(Pin<Box<S>>),
    Waiting(Pin<Box<Sleep>>),
}

/// The wait after a connection that has ended, doubled each time up to the longest.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

impl Stream for Never {
    type Item = ();

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<()>> {
        Poll::Pending
    }
}

impl<C, F, S, E> Stream for Reconnecting<C, F, S>
where
    C: FnMut() -> F,
    F: Future<Output = Result<S, E>>,
    S: Stream<Item = ()>,
{
    type Item = ();

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<()>> {
        let this = &mut *self;
        loop {
            match &mut this.state {
                // ## Connecting => Listening | Waiting
                State::Connecting(connecting) => match ready!(connecting.as_mut().poll(cx)) {
                    Ok(told) => {
                        this.state = State::Listening(Box::pin(told));
                        this.failed = 0;
                        return Poll::Ready(Some(()));
                    }
                    Err(_) => this.wait(),
                },
                // ## Listening => Listening | Waiting
                State::Listening(told) => match ready!(told.as_mut().poll_next(cx)) {
                    Some(()) => return Poll::Ready(Some(())),
                    None => this.wait(),
                },
                // ## Waiting => Connecting
                State::Waiting(sleep) => {
                    ready!(sleep.as_mut().poll(cx));
                    this.state = State::Connecting(Box::pin((this.connect)()));
                }
            }
        }
    }
}

impl<C, F, S> Reconnecting<C, F, S> {
    fn wait(&mut self) {
        let wait = SHORTEST.saturating_mul(2_u32.saturating_pow(self.failed)).min(LONGEST);
        self.failed = self.failed.saturating_add(1);
        self.state = State::Waiting(Box::pin(sleep(wait)));
    }
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use std::{cell::Cell, future::ready};

    use buttress_core::edge;
    use futures_util::{StreamExt, stream};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_ends_is_made_anew_later_each_time_until_one_listens() {
        let start = edge::now();
        let made = Cell::new(0);
        let mut changes = changes_over(move || {
            made.set(made.get() + 1);
            // Eight cannot be made, and one tells of two releases before it ends.
            let is_made = made.get() % 9 == 0;
            ready(if is_made { Ok(stream::iter([(), ()])) } else { Err("refused") })
        });
        let mut told = Vec::new();
        for _ in 0..4 {
            changes.next().await.unwrap();
            told.push(edge::now().duration_since(start).as_secs());
        }
        // 1, 2, 4 .. 32, and a minute from there on.
        assert_eq!(told, [183, 183, 183, 183 + 1 + 2 + 4 + 8 + 16 + 32 + 60 + 60 + 60]);
    }
}
