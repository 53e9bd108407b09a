use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use buttress_core::edge;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use crate::{
    AcquireOutcome, AcquireRequest, Changes, LeaseName, LeaseRecord, LeaseStore, ReleaseOutcome,
    ReleaseRequest, RenewOutcome, RenewRequest, StoreCapabilities, StoreError,
};

/// A store that fails as it is told to: for tests of what is built upon leadership.
///
/// Around a [`MemoryStore`](crate::MemoryStore), under a paused clock, it does in no time and each time alike
/// what a network does once a year. Clones share the store and the faults.
///
/// ```
/// use buttress_leadership::{
///     AcquireRequest, Fault, FaultyStore, Identity, LeaseName, LeaseStore, MemoryStore, Operation,
/// };
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = FaultyStore::new(MemoryStore::new());
/// store.next(Operation::Acquire, Fault::lost_answer());
/// let (name, me) = (LeaseName::new("a")?, Identity::generate());
/// let (ttl, payload) = (Duration::from_secs(15), Default::default());
/// let lost = store.acquire(AcquireRequest::new(&name, &me, ttl, &payload)).await;
/// assert!(lost.unwrap_err().is_ambiguous());
/// let record = store.inspect(&name).await?.unwrap();
/// assert!(record.is_held_by(&me), "it was done all the same");
/// # Ok(())
/// # }
/// ```
pub struct FaultyStore<S> {
    inner: Arc<S>,
    control: Arc<Control>,
}

/// One of a store's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// [`LeaseStore::acquire`].
    Acquire,
    /// [`LeaseStore::renew`].
    Renew,
    /// [`LeaseStore::release`].
    Release,
    /// [`LeaseStore::inspect`].
    Inspect,
}

/// What goes wrong with a call. [`Default`] is nothing.
///
/// A call takes `before`, then it is done or not, then it takes `after`, and then there is an answer or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    before: Duration,
    is_done: bool,
    after: Duration,
    answer: Answer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    True,
    NotApplied,
    Ambiguous,
    Fatal,
    Never,
    Panic,
}

/// A call that was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Called {
    /// Which one.
    pub operation: Operation,
    /// When.
    pub at: Instant,
}

type Plan = Box<dyn FnMut(Operation) -> Fault + Send>;

struct Control {
    state: Mutex<State>,
    is_frozen: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    next: VecDeque<(Operation, Fault)>,
    plan: Option<Plan>,
    calls: Vec<Called>,
}

/// What the error of a planted fault says.
const PLANTED: &str = "planted";

// === impl FaultyStore ===

impl<S> FaultyStore<S> {
    /// That store, with no fault yet.
    pub fn new(inner: S) -> Self {
        let control = Control { state: Mutex::default(), is_frozen: watch::Sender::new(false) };
        Self { inner: Arc::new(inner), control: Arc::new(control) }
    }

    /// The same store by another way: with faults of its own. So one candidate can be cut off, and others
    /// not.
    #[must_use]
    pub fn another_way(&self) -> Self {
        let control = Control { state: Mutex::default(), is_frozen: watch::Sender::new(false) };
        Self { inner: Arc::clone(&self.inner), control: Arc::new(control) }
    }

    /// The store within.
    #[must_use]
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// Lets the next call of that kind go wrong. Several are taken one after the other.
    pub fn next(&self, operation: Operation, fault: Fault) {
        self.state().next.push_back((operation, fault));
    }

    /// Lets every call that is not told of by [`next`](Self::next) go wrong as `plan` says.
    pub fn plan(&self, plan: impl FnMut(Operation) -> Fault + Send + 'static) {
        self.state().plan = Some(Box::new(plan));
    }

    /// Lets all calls go right from now on.
    pub fn heal(&self) {
        self.thaw();
        let mut state = self.state();
        state.next.clear();
        state.plan = None;
    }

    /// Stops: calls that come wait before anything is done.
    pub fn freeze(&self) {
        self.control.is_frozen.send_replace(true);
    }

    /// Goes on, with the calls that have waited.
    pub fn thaw(&self) {
        self.control.is_frozen.send_replace(false);
    }

    /// The calls that were begun so far.
    #[must_use]
    pub fn calls(&self) -> Vec<Called> {
        self.state().calls.clone()
    }

    /// How many of that kind were begun so far.
    #[must_use]
    pub fn count(&self, operation: Operation) -> usize {
        self.state().calls.iter().filter(|call| call.operation == operation).count()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.control.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, operation: Operation) -> Fault {
        let mut state = self.state();
        state.calls.push(Called { operation, at: edge::now() });
        let told = state.next.iter().position(|(of, _)| *of == operation);
        match told.and_then(|at| state.next.remove(at)) {
            Some((_, fault)) => fault,
            None => state.plan.as_mut().map(|plan| plan(operation)).unwrap_or_default(),
        }
    }

    async fn through<T>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let fault = self.begin(operation);
        pause(fault.before).await;
        let mut frozen = self.control.is_frozen.subscribe();
        // The sender is ours, and so it does not go away.
        let _ = frozen.wait_for(|is_frozen| !is_frozen).await;
        let done = if fault.is_done { Some(call.await) } else { None };
        pause(fault.after).await;
        match (fault.answer, done) {
            (Answer::True, Some(done)) => done,
            (Answer::NotApplied, _) => Err(StoreError::NotApplied(PLANTED.into())),
            (Answer::Fatal, _) => Err(StoreError::Fatal(PLANTED.into())),
            (Answer::Never, _) => std::future::pending().await,
            (Answer::Panic, _) => panic!("{PLANTED}"),
            (Answer::Ambiguous | Answer::True, _) => Err(StoreError::Ambiguous(PLANTED.into())),
        }
    }
}

async fn pause(time: Duration) {
    if !time.is_zero() {
        sleep(time).await;
    }
}

// By hand: a clone is the same store, whether or not what is within can be cloned.
impl<S> Clone for FaultyStore<S> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), control: Arc::clone(&self.control) }
    }
}

impl<S: LeaseStore> LeaseStore for FaultyStore<S> {
    fn capabilities(&self) -> StoreCapabilities {
        self.inner.capabilities()
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireOutcome, StoreError> {
        self.through(Operation::Acquire, self.inner.acquire(request)).await
    }

    async fn renew(&self, request: RenewRequest<'_>) -> Result<RenewOutcome, StoreError> {
        self.through(Operation::Renew, self.inner.renew(request)).await
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseOutcome, StoreError> {
        self.through(Operation::Release, self.inner.release(request)).await
    }

    async fn inspect(&self, name: &LeaseName) -> Result<Option<LeaseRecord>, StoreError> {
        self.through(Operation::Inspect, self.inner.inspect(name)).await
    }

    fn changes(&self, name: &LeaseName) -> Changes {
        self.inner.changes(name)
    }
}

impl<S: fmt::Debug> fmt::Debug for FaultyStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyStore").field("inner", &self.inner).finish_non_exhaustive()
    }
}

// === impl Fault ===

impl Fault {
    const fn answering(is_done: bool, answer: Answer) -> Self {
        Self { before: Duration::ZERO, is_done, after: Duration::ZERO, answer }
    }

    /// Nothing is done, and it says so: the connection was refused.
    #[must_use]
    pub const fn not_applied() -> Self {
        Self::answering(false, Answer::NotApplied)
    }

    /// Nothing is done, and nobody knows: the request was lost.
    #[must_use]
    pub const fn lost_request() -> Self {
        Self::answering(false, Answer::Ambiguous)
    }

    /// It is done, and nobody knows: the answer was lost.
    #[must_use]
    pub const fn lost_answer() -> Self {
        Self::answering(true, Answer::Ambiguous)
    }

    /// Nothing is done, now or ever: no rights.
    #[must_use]
    pub const fn fatal() -> Self {
        Self::answering(false, Answer::Fatal)
    }

    /// Nothing is done, and nothing is ever heard: the packets go nowhere.
    #[must_use]
    pub const fn black_hole() -> Self {
        Self::answering(false, Answer::Never)
    }

    /// It is done, and nothing is ever heard: the answer's packets go nowhere.
    #[must_use]
    pub const fn black_hole_back() -> Self {
        Self::answering(true, Answer::Never)
    }

    /// The store panics.
    #[must_use]
    pub const fn panic() -> Self {
        Self::answering(false, Answer::Panic)
    }

    /// The same, and so much later it comes to the store.
    #[must_use]
    pub const fn delay_before(mut self, time: Duration) -> Self {
        self.before = time;
        self
    }

    /// The same, and so much later the answer comes.
    #[must_use]
    pub const fn delay_after(mut self, time: Duration) -> Self {
        self.after = time;
        self
    }
}

impl Default for Fault {
    fn default() -> Self {
        Self::answering(true, Answer::True)
    }
}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::MemoryStore;

    #[tokio::test(start_paused = true)]
    async fn calls_that_come_while_it_is_frozen_wait_and_are_then_done() {
        let store = FaultyStore::new(MemoryStore::new());
        let name = LeaseName::new("a").unwrap();
        store.freeze();
        let mut waits = Box::pin(store.inspect(&name));
        assert!(waits.as_mut().now_or_never().is_none());
        let other = store.another_way();
        assert!(other.inspect(&name).now_or_never().is_some(), "by another way it runs");
        store.thaw();
        assert_eq!(waits.await.unwrap(), None);
        assert_eq!((store.count(Operation::Inspect), other.count(Operation::Inspect)), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn faults_are_taken_one_after_the_other_and_then_the_plan_is_asked() {
        let store = FaultyStore::new(MemoryStore::new());
        let name = LeaseName::new("a").unwrap();
        let second = Duration::from_secs(1);
        store.next(Operation::Renew, Fault::fatal());
        store.next(Operation::Inspect, Fault::not_applied().delay_before(second));
        store.next(Operation::Inspect, Fault::default().delay_after(second));
        store.plan(|_| Fault::fatal());
        let start = edge::now();
        let kind = |result: Result<_, StoreError>| match result {
            Ok(None) => "nothing",
            Ok(Some(_)) => "something",
            Err(StoreError::NotApplied(_)) => "not applied",
            Err(StoreError::Ambiguous(_)) => "ambiguous",
            Err(StoreError::Fatal(_)) => "fatal",
        };
        assert_eq!(kind(store.inspect(&name).await), "not applied");
        assert_eq!(kind(store.inspect(&name).await), "nothing");
        assert_eq!(edge::now() - start, 2 * second);
        assert_eq!(kind(store.inspect(&name).await), "fatal");
        store.heal();
        assert_eq!(kind(store.inspect(&name).await), "nothing");
    }
}
