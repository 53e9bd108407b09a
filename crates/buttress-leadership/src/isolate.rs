use std::{
    fmt,
    future::poll_fn,
    io,
    panic::resume_unwind,
    pin::{Pin, pin},
    task::Poll,
    thread,
};

use tokio::{
    runtime::{Builder, Handle, Runtime},
    sync::oneshot,
    task::JoinHandle,
};

use crate::{Elector, Leadership, LeaseStore};

/// A thread with a runtime of its own, for an elector and its store.
///
/// Renewals that run beside the work are late when the work is: one handler that computes for twenty seconds,
/// or ten thousand that wait for the same lock, and a lease is lost by a process that does its job. On this
/// thread there is nothing else. That a process may then renew its lease while its work stands still is what
/// the [interlock](Self#the-interlock) is for.
///
/// [`Elector::spawn_isolated`] makes one. By itself it is for stores that connect: what serves a connection
/// is a task on the runtime that it was made on, and has to be of this one.
///
/// # The interlock
///
/// A lease that is renewed beside the work is renewed although the work stands still, and then nobody does
/// what is to be done. So a probe has to be heard: a task that the elector spawns on the work's runtime as it
/// begins to run, and that ends with it. It does nothing but tick, every quarter of
/// [`probe_deadline`](crate::LeaseConfig::probe_deadline) (half the lease unless set), and every half second at
/// least. If it is not heard for all of that time, the leader leaves as
/// [`StuckRuntime`](crate::ResignReason::StuckRuntime). It waits for no work to end, as that cannot, and comes
/// back only once the probe has ticked again for as long. A runtime that has not ticked yet does not lead, and
/// stands still as well if it does not for as long. One that is shut down stands still from then on, for good. For
/// how long elector and work stood still together, as in a machine that was suspended, does not count.
///
/// It needs one free worker now and then. It shows neither that the work makes progress, nor that it is
/// of any use: for that there are signals, [`runtime_lag`](Elector::runtime_lag) among them.
///
/// Every elector that was told to [`work_on`](Elector::work_on) another runtime has an interlock.
///
/// # Examples
///
/// ```
/// use buttress_leadership::{Elector, ElectorThread, LeaseConfig, LeaseName, MemoryStore};
///
/// # async fn connect(_: &str) -> Result<MemoryStore, std::io::Error> { Ok(MemoryStore::new()) }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let thread = ElectorThread::new()?;
/// let store = thread.make(connect("leases.internal:2379")).await?;
/// let elector = Elector::new(store, LeaseConfig::new(LeaseName::new("billing")?))?;
/// let running = thread.spawn(elector);
/// running.leadership().watch().wait_for(|standing| standing.term.is_some()).await?;
/// running.stop().await;
/// # Ok(())
/// # }
/// ```
pub struct ElectorThread {
    runtime: Handle,
    main: oneshot::Sender<Main>,
    thread: thread::JoinHandle<()>,
}

/// An elector that runs on a [thread of its own](ElectorThread).
///
/// Dropped, it stops at once: the gate is closed when `drop` returns, and the work is dropped at its next
/// `await`, whatever the thread is doing. The thread ends by itself, once the store lets it; nobody waits for
/// it. The lease is not given back. To give it back, [`stop`](Self::stop).
#[derive(Debug)]
#[must_use = "an elector whose handle is dropped stops"]
pub struct IsolatedElector {
    leadership: Leadership,
    stop: Option<oneshot::Sender<()>>,
    /// Never told anything: it is closed when it is dropped, and then the thread drops the elector.
    _alive: oneshot::Sender<()>,
    ended: oneshot::Receiver<()>,
    thread: thread::JoinHandle<()>,
}

/// What a thread runs to its end.
type Main = Pin<Box<dyn Future<Output = ()> + Send>>;

/// At most 15 bytes of it are seen from outside, on Linux.
const NAME: &str = "buttress-elect";

// === impl ElectorThread ===

impl ElectorThread {
    /// A thread, named `buttress-elect`, and its runtime. Dropped, it ends.
    ///
    /// # Errors
    ///
    /// If the system has no thread for it, or no file descriptors for a runtime.
    pub fn new() -> io::Result<Self> {
        Self::on(thread::Builder::new().name(NAME.to_owned()))
    }

    fn on(thread: thread::Builder) -> io::Result<Self> {
        let runtime = Unwaited(Some(Builder::new_current_thread().enable_all().build()?));
        let handle = runtime.get().handle().clone();
        let (main, begins) = oneshot::channel();
        let thread = thread.spawn(move || run(&runtime, begins))?;
        Ok(Self { runtime: handle, main, thread })
    }

    /// Makes something there, as a store that connects.
    ///
    /// # Panics
    ///
    /// If `make` does.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it drops `make` at its next `await`.
    pub async fn make<F>(&self, make: F) -> F::Output
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let mut task = Abort(self.runtime.spawn(make));
        match (&mut task.0).await {
            Ok(made) => made,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(_) => unreachable!("its thread runs as long as we are here"),
            },
        }
    }

    /// Runs that elector there. Its work runs where this is called, unless it has been told
    /// [where](Elector::work_on).
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime, if the elector has not been told where its work runs.
    pub fn spawn<S: LeaseStore>(self, elector: Elector<S>) -> IsolatedElector {
        let elector = elector.work_here();
        let leadership = elector.leadership();
        let (stop, stops) = oneshot::channel::<()>();
        let (alive, dropped) = oneshot::channel::<()>();
        let (ends, ended) = oneshot::channel::<()>();
        let shutdown = async move {
            // Whoever has gone without a word has dropped the rest as well.
            let _ = stops.await;
        };
        let main = async move {
            // It is told by being dropped, however this ends.
            let _ends = ends;
            let (mut run, mut dropped) = (pin!(elector.run(shutdown)), pin!(dropped));
            poll_fn(|cx| {
                let is_dropped = dropped.as_mut().poll(cx).is_ready();
                if is_dropped { Poll::Ready(()) } else { run.as_mut().poll(cx) }
            })
            .await;
        };
        // It waits for nothing else, and nothing else ends it.
        let _ = self.main.send(Box::pin(main));
        IsolatedElector { leadership, stop: Some(stop), _alive: alive, ended, thread: self.thread }
    }
}

impl fmt::Debug for ElectorThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ElectorThread").field("thread", &self.thread).finish_non_exhaustive()
    }
}

fn run(runtime: &Unwaited, begins: oneshot::Receiver<Main>) {
    runtime.get().block_on(async {
        if let Ok(main) = begins.await {
            main.await;
        }
    });
}

/// A runtime that ends without waiting for what a store has left behind, which may hang: also where its thread
/// panics, and where there is no thread for it, and it is dropped on another runtime.
struct Unwaited(Option<Runtime>);

impl Unwaited {
    const fn get(&self) -> &Runtime {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl Drop for Unwaited {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// A task that goes with who waits for it.
struct Abort<T>(JoinHandle<T>);

impl<T> Drop for Abort<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

// === impl IsolatedElector ===

impl IsolatedElector {
    /// The election.
    #[must_use]
    pub const fn leadership(&self) -> &Leadership {
        &self.leadership
    }

    /// Whether its thread has ended: it was stopped, or its observer panicked.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Stops it: a leader leaves, its work ends, and the lease is given back.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it stops the elector at once, as if that were dropped.
    pub async fn stop(mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        // Nobody ever says anything here.
        let _ = (&mut self.ended).await;
    }
}

impl Drop for IsolatedElector {
    fn drop(&mut self) {
        self.leadership.shared.halt();
    }
}

// === impl Elector ===

impl<S: LeaseStore> Elector<S> {
    /// Runs it on a thread of its own, with its store, and its work here: so that whatever the work does to
    /// its runtime, the lease is renewed, unless an [interlock](ElectorThread#the-interlock) finds that it
    /// stands still.
    ///
    /// A store that has made its connections before serves them elsewhere: make it [there](ElectorThread).
    /// [`MemoryStore`](crate::MemoryStore) has none, and the SQLite store has a thread of its own.
    ///
    /// The thread's clock is the machine's. Where tokio's clock is paused, use [`spawn`](Self::spawn).
    ///
    /// # Examples
    ///
    /// ```
    /// use buttress_leadership::{Elector, LeaseConfig, LeaseName, MemoryStore};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let elector = Elector::new(MemoryStore::new(), LeaseConfig::new(LeaseName::new("a")?))?;
    /// let running = elector.spawn_isolated()?;
    /// let leadership = running.leadership().clone();
    /// leadership.watch().wait_for(|standing| standing.term.is_some()).await?;
    /// drop(running);
    /// assert!(!leadership.is_leader(), "from that instant on");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If the system has no thread for it, or no file descriptors for a runtime.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime, unless it was told to [`work_on`](Self::work_on) one.
    pub fn spawn_isolated(self) -> io::Result<IsolatedElector> {
        Ok(ElectorThread::new()?.spawn(self))
    }
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_thread_that_the_system_does_not_have_is_an_error_and_no_panic() {
        let larger_than_memory = thread::Builder::new().stack_size(1 << 60);
        assert!(ElectorThread::on(larger_than_memory).is_err());
    }
}
