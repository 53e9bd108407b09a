use std::{error::Error, fmt, sync::Arc, time::Duration};

use buttress_core::InvalidSetting;

use crate::{
    Elector, ElectorTask, FencingToken, Identity, Leadership, LeaseClock, LeaseConfig, LeaseStore,
    NotLeading, Standing, State, TermPermit,
};

/// A lock between processes: one term of an election, by hand.
///
/// For what is done now and then and must not be done twice at a time, as a migration. It is the same lease
/// under the same rules: it is renewed by a task of its own while it is held, and once it could be over, that
/// is final. A lock between processes is no mutex: [`check`](LockGuard::check) what you do under it, and send
/// the [token](LockGuard::fence) along.
///
/// # Examples
///
/// ```
/// use buttress_leadership::{LeaseConfig, LeaseName, Lock, MemoryStore};
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::new();
/// let lock = Lock::new(store, LeaseConfig::new(LeaseName::new("migration")?))?;
/// let guard = lock.try_acquire().await?.expect("nobody has it");
/// assert!(lock.try_acquire().await?.is_none());
/// guard.check(Duration::from_secs(5))?;
/// println!("write, and send {} along", guard.fence());
/// guard.release().await;
/// assert!(lock.try_acquire().await?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Lock<S> {
    store: Arc<S>,
    config: LeaseConfig,
    clock: LeaseClock,
}

/// A lock that is held, or was. Dropped, it is given back in the background, by the task that renews it.
#[derive(Debug)]
#[must_use = "a lock whose guard is dropped is given back"]
pub struct LockGuard {
    task: Option<ElectorTask>,
    leadership: Leadership,
    fence: Option<FencingToken>,
}

/// The store gave no answer: nobody knows who has the lock. If it was won all the same, it is given back in
/// the background, or ends by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoAnswer {
    error: String,
}

// === impl Lock ===

impl<S: LeaseStore> Lock<S> {
    /// A lock in that store, by the [default clock](LeaseClock::default).
    ///
    /// Each try to get it is by an identity of its own, so that two tries of one process are two.
    ///
    /// # Errors
    ///
    /// Names the setting that cannot work, or cannot with this store.
    pub fn new(store: S, config: LeaseConfig) -> Result<Self, InvalidSetting> {
        Self::with_clock(store, config, LeaseClock::default())
    }

    /// The same, by that clock.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_clock(
        store: S,
        config: LeaseConfig,
        clock: LeaseClock,
    ) -> Result<Self, InvalidSetting> {
        config.check_with(&store.capabilities())?;
        // What a guard is dropped for.
        let config = config.release_on_stop(true);
        Ok(Self { store: Arc::new(store), config, clock })
    }

    /// The lock, unless somebody has it. It asks once.
    ///
    /// # Errors
    ///
    /// [`NoAnswer`] if the store does not answer.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it gives back in the background what it may have got.
    pub async fn try_acquire(&self) -> Result<Option<LockGuard>, NoAnswer> {
        let mut guard = self.stand();
        let leadership = guard.leadership.clone();
        let mut watch = leadership.watch();
        loop {
            guard.fence = watch.borrow_and_update().term;
            if guard.fence.is_some() {
                return Ok(Some(guard));
            }
            let asked = leadership.metrics().store.acquire;
            if asked.calls > asked.in_flight {
                return leadership
                    .status()
                    .last_error
                    .map_or(Ok(None), |error| Err(NoAnswer { error }));
            }
            // The sender is in `leadership`.
            let _ = watch.changed().await;
        }
    }

    /// The lock, when it is free. It asks again and again, whether or not the store answers.
    ///
    /// There is no queue: whoever asks first when it is free gets it.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers.
    ///
    /// # Cancel safety
    ///
    /// As [`try_acquire`](Self::try_acquire).
    pub async fn acquire(&self) -> LockGuard {
        loop {
            let mut guard = self.stand();
            let mut watch = guard.leadership.watch();
            let has_or_had =
                |standing: &Standing| standing.term.is_some() || standing.state == State::Stopped;
            // The sender is in the guard.
            guard.fence = watch.wait_for(has_or_had).await.ok().and_then(|standing| standing.term);
            if guard.fence.is_some() {
                return guard;
            }
            // It was had and lost before anybody looked.
        }
    }

    fn stand(&self) -> LockGuard {
        let config = self.config.clone().identity(Identity::generate());
        let elector = Elector::once(Arc::clone(&self.store), config, self.clock.clone());
        let leadership = elector.leadership();
        LockGuard { task: Some(elector.spawn()), leadership, fence: None }
    }
}

// === impl LockGuard ===

impl LockGuard {
    /// The token of this time that the lock is held: to be sent along with what is written.
    ///
    /// # Panics
    ///
    /// Never: whoever has a guard has had the lock.
    #[must_use]
    pub fn fence(&self) -> FencingToken {
        self.fence.expect("a guard that is handed out has a token")
    }

    /// Whether the lock is held at this instant, for longer than `min_remaining`.
    ///
    /// # Errors
    ///
    /// [`NotLeading`] says why it is not. Then it never is again.
    pub fn check(&self, min_remaining: Duration) -> Result<FencingToken, NotLeading> {
        self.leadership.check_for(min_remaining)
    }

    /// A place under the lock, for work that is spawned: it is not given back before.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub fn hold(&self) -> Result<TermPermit, NotLeading> {
        self.leadership.hold()
    }

    /// Ready once the lock is lost, or its time is up. It looks at the clock whenever it is polled, and does not
    /// depend on the task that renews.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with timers.
    ///
    /// # Cancel safety
    ///
    /// It holds nothing.
    pub async fn lost(&self) {
        // Its elector has this one term. Where that is gone, so is the lock.
        if let Some(term) = self.leadership.shared.gate.read(|term| term.cloned()) {
            term.over().await;
        }
    }

    /// Gives it back, once all [places](Self::hold) under it are.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it goes on in the background.
    pub async fn release(mut self) {
        let mut watch = self.leadership.watch();
        if let Some(task) = self.task.take() {
            task.stop_in_background();
        }
        let _ = watch.wait_for(|standing| standing.state == State::Stopped).await;
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.stop_in_background();
        }
    }
}

// === impl NoAnswer ===

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nobody knows who has the lock: {}", self.error)
    }
}

impl Error for NoAnswer {}

#[cfg(all(test, not(buttress_loom)))]
mod tests {
    use tokio::time::sleep;

    use super::*;
    use crate::{Fault, FaultyStore, LeaseName, MemoryStore, Operation};

    const fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    type Store = FaultyStore<MemoryStore>;

    fn lock() -> (Store, Lock<Store>) {
        let store = FaultyStore::new(MemoryStore::new());
        let config = LeaseConfig::new(LeaseName::new("a").unwrap());
        (store.clone(), Lock::new(store, config).unwrap())
    }

    async fn is_held(store: &Store) -> bool {
        let record = store.inner().inspect(&LeaseName::new("a").unwrap()).await.unwrap();
        record.is_some_and(|record| record.leader().is_some())
    }

    #[tokio::test(start_paused = true)]
    async fn one_has_it_and_keeps_it_until_it_lets_go() {
        let store = FaultyStore::new(MemoryStore::new());
        let config = LeaseConfig::new(LeaseName::new("a").unwrap()).release_on_stop(false);
        let lock = Lock::new(store.clone(), config).unwrap();
        let guard = lock.try_acquire().await.unwrap().unwrap();
        for _ in 0..10 {
            assert!(lock.try_acquire().await.unwrap().is_none());
            sleep(secs(10)).await;
            assert_eq!(guard.check(secs(5)), Ok(guard.fence()));
            let short = guard.check(secs(60)).unwrap_err();
            assert!(
                matches!(short, NotLeading::TooShort { remaining } if remaining > secs(5)),
                "{short}"
            );
        }
        drop(guard);
        sleep(Duration::from_millis(2)).await;
        assert!(!is_held(&store).await, "given back in the background");
        let next = lock.try_acquire().await.unwrap().unwrap();
        assert_eq!(next.fence().get(), 2);
        next.release().await;
        assert!(!is_held(&store).await);
        let calls = store.calls().len();
        sleep(secs(100)).await;
        assert_eq!(store.calls().len(), calls, "and nobody asks any more");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_that_is_lost_is_not_got_back() {
        let (store, lock) = lock();
        let guard = lock.try_acquire().await.unwrap().unwrap();
        store.plan(|_| Fault::black_hole());
        sleep(secs(12)).await;
        assert!(guard.check(secs(0)).is_err());
        guard.lost().await;
        store.heal();
        sleep(secs(60)).await;
        assert!(guard.check(secs(0)).is_err() && !is_held(&store).await);
    }

    // rust-lang/rust#87906
    #[tokio::test(start_paused = true)]
    async fn whoever_wakes_hears_that_the_lock_is_lost_before_anything_else() {
        let (store, clock) = (MemoryStore::new().without_watch(), LeaseClock::simulated());
        let config = LeaseConfig::new(LeaseName::new("a").unwrap());
        let lock = Lock::with_clock(store, config, clock.clone()).unwrap();
        let guard = lock.try_acquire().await.unwrap().unwrap();
        // The task that renews is not due for a long time by its timer, which stood still meanwhile.
        let works = async {
            sleep(Duration::from_millis(1)).await;
            clock.suspend(secs(3600));
            sleep(Duration::from_millis(1)).await;
        };
        tokio::select! { biased; () = guard.lost() => {}, () = works => panic!("it works on") }
        assert!(guard.check(secs(0)).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_gets_it_when_it_is_free() {
        let (store, lock) = lock();
        let guard = lock.acquire().await;
        let place = guard.hold().unwrap();
        let mut waits = std::pin::pin!(lock.acquire());
        let lets_go = async {
            sleep(secs(20)).await;
            drop(guard);
            sleep(secs(3)).await;
            assert!(is_held(&store).await, "what is spawned is waited for");
            drop(place);
        };
        tokio::select! { biased; _ = &mut waits => panic!("it is held"), () = lets_go => {} }
        assert_eq!(waits.await.fence().get(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_does_not_answer_is_no_lock_that_is_held() {
        let (store, lock) = lock();
        for fault in [Fault::not_applied(), Fault::lost_answer(), Fault::black_hole()] {
            store.next(Operation::Acquire, fault);
            assert!(lock.try_acquire().await.is_err());
            sleep(secs(10)).await;
            assert!(!is_held(&store).await, "what was won unheard is given back");
        }
        assert!(lock.try_acquire().await.unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_walks_away_leaves_nothing_locked() {
        let (store, lock) = lock();
        store.next(Operation::Acquire, Fault::default().delay_after(secs(1)));
        let walks_away = tokio::time::timeout(Duration::from_millis(500), lock.try_acquire()).await;
        assert!(walks_away.is_err() && is_held(&store).await);
        sleep(secs(3)).await;
        assert!(!is_held(&store).await);
    }
}
