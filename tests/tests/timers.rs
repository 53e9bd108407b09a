//! Limits and waits that share a timer end the same things at the same instants as with a timer each.
//!
//! A stack arms one timer, and lends it to whatever is beneath (`buttress_core::timer`). That works only as
//! long as it sees how each future beneath is polled, and futures are polled in many ways: they are joined,
//! raced, spawned, woken apart. So random trees of them are played twice, with our limits and waits, and with
//! those of tokio, which each have a timer of their own.
//!
//! Left out is what is due at one instant: there an outer limit of ours speaks before an inner one, and
//! one of tokio's after it. So no two waits in a tree end together, and none is found late together with
//! another.

use std::{
    collections::{BTreeMap, VecDeque},
    future::{pending, poll_fn, ready},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    task::{Context, Poll},
    time::Duration,
};

use buttress::{
    Backoff, BoxError, Budget, Bulkhead, BulkheadSettings, Class, Classify, DeadlineLayer,
    RetryLayer, TimeoutLayer, edge,
};
use futures_util::{
    FutureExt, StreamExt,
    future::{BoxFuture, join, join_all, select},
    poll,
    stream::FuturesUnordered,
};
use proptest::{collection::vec, prelude::*, test_runner::Config};
use tokio::{
    spawn,
    sync::oneshot,
    task::yield_now,
    time::{Instant, sleep, timeout},
};
use tower::{Layer, Service, ServiceExt, service_fn, util::BoxCloneService};

/// Futures in futures. Each ends with whether its limit was kept; what has none says what those in it said.
#[derive(Clone, Debug)]
enum Tree {
    Never,
    /// Wakes its task so often, and is ready in the poll after that.
    Polls(u8),
    /// Tokio's, with a timer of its own on both sides.
    Sleep(Duration),
    /// Waits for a slot that nobody gives back.
    Queue(Duration),
    Timeout(Duration, Box<Tree>),
    Deadline(Duration, Box<Tree>),
    /// Fails after the first, and after a wait makes the second.
    Retry(Duration, Box<Tree>, Box<Tree>),
    Join(Vec<Tree>),
    /// Polls each only if it was woken itself.
    Unordered(Vec<Tree>),
    /// Drops the loser.
    Race(Box<Tree>, Box<Tree>),
    /// Keeps the loser, and ends with it.
    Both(Box<Tree>, Box<Tree>),
    Spawn(Box<Tree>),
    /// Goes to another task after its first poll.
    Move(Box<Tree>),
    /// Goes after its first poll to where there is another limit above it. The second takes its place.
    HandOn(Duration, Box<Tree>, Box<Tree>),
    /// Is not polled for a while after its first poll. Nothing in it is due so soon.
    Leave(Duration, Box<Tree>),
    /// Is polled with the same waker in another `Context`.
    FreshContext(Box<Tree>),
    /// Is polled whenever its parent is, with a waker of its own.
    Share(Box<Tree>),
}

/// Who ended how, and when.
type Log = BTreeMap<String, (bool, Duration)>;

type Task = BoxFuture<'static, bool>;

/// An error asks for another attempt.
type Answer = BoxFuture<'static, Result<bool, BoxError>>;

type Answers = BoxCloneService<(), bool, BoxError>;

/// Where a future of a tree is played.
#[derive(Clone)]
struct Stage {
    /// Its way from the root.
    name: String,
    timers: Timers,
    start: Instant,
    log: Arc<Mutex<Log>>,
    polls: Arc<AtomicU64>,
}

/// Whose limits and waits they are.
#[derive(Clone, Copy, Debug)]
enum Timers {
    /// Ours, which borrow where they can.
    Lent,
    /// Those of tokio.
    Own,
}

// === impl Stage ===

impl Stage {
    fn root(timers: Timers) -> Self {
        let start = edge::now();
        Self { name: "root".into(), timers, start, log: Arc::default(), polls: Arc::default() }
    }

    /// The future that stands for a tree. It counts its polls, and notes its end.
    fn task(self, tree: Tree) -> Task {
        let polls = self.polls.clone();
        let mut noted = Box::pin(async move {
            let end = self.play(tree).await;
            let at = edge::now() - self.start;
            self.log.lock().unwrap().insert(self.name, (end, at));
            end
        });
        // Boxed, as is every future here.
        Box::pin(poll_fn(move |cx| {
            assert!(polls.fetch_add(1, SeqCst) < 10_000, "polled without end");
            noted.as_mut().poll(cx)
        }))
    }

    fn child(&self, n: usize, tree: Tree) -> Task {
        Self { name: format!("{}.{n}", self.name), ..self.clone() }.task(tree)
    }

    fn play(&self, tree: Tree) -> Task {
        let timers = self.timers;
        let one = |tree: Box<Tree>| self.child(0, *tree);
        let two = |a: Box<Tree>, b: Box<Tree>| (self.child(0, *a), self.child(1, *b));
        let all = |trees: Vec<Tree>| (0..).zip(trees).map(|(n, tree)| self.child(n, tree));
        match tree {
            Tree::Never => pending().boxed(),
            Tree::Polls(n) => polls(n).boxed(),
            // Made at the first poll, since its time runs from then on, as that of the others.
            Tree::Sleep(time) => ready(time).then(sleep).map(|()| true).boxed(),
            Tree::Queue(time) => timers.queue(time).boxed(),
            Tree::Timeout(limit, tree) => timers.timeout(limit, one(tree)),
            Tree::Deadline(limit, tree) => timers.deadline(limit, one(tree)),
            Tree::Retry(wait, a, b) => timers.retry(wait, two(a, b)),
            Tree::Join(trees) => join_all(all(trees)).map(|ends| !ends.contains(&false)).boxed(),
            Tree::Unordered(trees) => {
                let tasks = all(trees).collect::<FuturesUnordered<_>>();
                tasks.fold(true, |all, end| ready(all && end)).boxed()
            }
            Tree::Race(a, b) => raced(two(a, b)).boxed(),
            Tree::Both(a, b) => both(two(a, b)).boxed(),
            Tree::Spawn(tree) => spawned(one(tree)).boxed(),
            Tree::Move(tree) => begun(one(tree)).then(spawned).boxed(),
            Tree::HandOn(limit, a, b) => handed_on(timers, limit, two(a, b)).boxed(),
            Tree::Leave(time, tree) => left(time, one(tree)).boxed(),
            Tree::FreshContext(tree) => in_fresh_contexts(one(tree)).boxed(),
            Tree::Share(tree) => one(tree).shared().boxed(),
        }
    }
}

async fn polls(n: u8) -> bool {
    for _ in 0..n {
        yield_now().await;
    }
    true
}

async fn raced((one, other): (Task, Task)) -> bool {
    select(one, other).await.factor_first().0
}

async fn both((one, other): (Task, Task)) -> bool {
    let (first, rest) = select(one, other).await.factor_first();
    rest.await && first
}

async fn spawned(task: Task) -> bool {
    spawn(task).await.unwrap()
}

async fn left(time: Duration, task: Task) -> bool {
    let rest = begun(task).await;
    sleep(time).await;
    rest.await
}

/// What is left of a task after its first poll.
async fn begun(mut task: Task) -> Task {
    match poll!(&mut task) {
        Poll::Ready(end) => ready(end).boxed(),
        Poll::Pending => task,
    }
}

async fn handed_on(timers: Timers, limit: Duration, (task, instead): (Task, Task)) -> bool {
    let (sender, receiver) = oneshot::channel();
    let giver = async move {
        assert!(sender.send(begun(task).await).is_ok(), "the taker waits");
        instead.await
    };
    let taker = async move { receiver.await.expect("the first poll gives it").await };
    let (one, other) = join(timers.timeout(limit, giver.boxed()), taker).await;
    one && other
}

async fn in_fresh_contexts(mut task: Task) -> bool {
    poll_fn(|cx| task.poll_unpin(&mut Context::from_waker(cx.waker()))).await
}

// === impl Timers ===

impl Timers {
    fn timeout(self, limit: Duration, task: Task) -> Task {
        match self {
            // Both ways to keep a timer, should there be none to borrow.
            Self::Lent if limit.as_millis().is_multiple_of(2) => {
                called(TimeoutLayer::new(limit).beneath_deadline(), [task.map(Ok).boxed()])
            }
            Self::Lent => called(TimeoutLayer::new(limit), [task.map(Ok).boxed()]),
            Self::Own => limited(limit, task).boxed(),
        }
    }

    fn deadline(self, limit: Duration, task: Task) -> Task {
        // Nobody beneath knows of it: a retry or a queue that did would give up before it comes.
        let task = buttress::Context::detached(task).boxed();
        match self {
            Self::Lent => called(DeadlineLayer::new(limit), [task.map(Ok).boxed()]),
            Self::Own => limited(limit, task).boxed(),
        }
    }

    fn retry(self, wait: Duration, (first, second): (Task, Task)) -> Task {
        match self {
            Self::Lent => {
                let again = first.map(|_| Err("again".into()));
                called(repeat_after(wait), [again.boxed(), second.map(Ok).boxed()])
            }
            Self::Own => first.then(move |_| sleep(wait)).then(|()| second).boxed(),
        }
    }

    async fn queue(self, time: Duration) -> bool {
        match self {
            Self::Lent => {
                let settings = BulkheadSettings::new(1).max_waiting(1).max_wait(time);
                let bulkhead = Bulkhead::new(settings).unwrap();
                let _slot = bulkhead.try_acquire().unwrap();
                bulkhead.acquire().await.is_ok()
            }
            Self::Own => sleep(time).map(|()| false).await,
        }
    }
}

async fn limited(limit: Duration, task: Task) -> bool {
    timeout(limit, task).await.unwrap_or(false)
}

/// Waits so long after each failure, without dice; and repeats also beneath another retry.
fn repeat_after(wait: Duration) -> RetryLayer<impl Classify<bool> + Clone> {
    let asks = move |end: Result<&bool, &BoxError>| match end {
        Ok(_) => Class::Success,
        Err(_) => Class::Throttled { after: Some(wait) },
    };
    let layer = RetryLayer::new(Backoff::none(), Budget::default()).classify(asks);
    layer.max_retry_after(Duration::MAX).independent()
}

/// Calls a service that gives these answers, one to each attempt. An error of the layer's is no good end.
fn called<L, const N: usize>(layer: L, answers: [Answer; N]) -> Task
where
    L: Layer<Answers>,
    L::Service: Service<(), Response = bool, Future: Send> + Send + 'static,
{
    let answers = Arc::new(Mutex::new(VecDeque::from(answers)));
    let next = move |()| answers.lock().unwrap().pop_front().expect("one to each attempt");
    let service = layer.layer(BoxCloneService::new(service_fn(next)));
    service.oneshot(()).map(|end| end.unwrap_or(false)).boxed()
}

// === the property ===

/// How deep the trees are, beneath a limit of their own.
const DEPTH: u32 = 8;

/// Random, so that no two end together, and not shrunk, which would make them equal.
fn time() -> impl Strategy<Value = Duration> {
    (1_000_000..1_000_000_000_u64).prop_map(Duration::from_millis).no_shrink()
}

/// Shorter than any other.
fn short_time() -> impl Strategy<Value = Duration> {
    (1..1_000_000_u64).prop_map(Duration::from_millis).no_shrink()
}

fn tree() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![
        2 => Just(Tree::Never),
        1 => (0..4_u8).prop_map(Tree::Polls),
        3 => time().prop_map(Tree::Sleep),
        3 => time().prop_map(Tree::Queue),
    ];
    leaf.prop_recursive(DEPTH, 200, 2, |tree| {
        let one = || tree.clone().prop_map(Box::new);
        let some = || vec(tree.clone(), 1..4);
        prop_oneof![
            6 => (time(), one()).prop_map(|(limit, tree)| Tree::Timeout(limit, tree)),
            3 => (time(), one()).prop_map(|(limit, tree)| Tree::Deadline(limit, tree)),
            2 => (time(), one(), one()).prop_map(|(wait, a, b)| Tree::Retry(wait, a, b)),
            2 => some().prop_map(Tree::Join),
            2 => some().prop_map(Tree::Unordered),
            2 => (one(), one()).prop_map(|(a, b)| Tree::Race(a, b)),
            2 => (one(), one()).prop_map(|(a, b)| Tree::Both(a, b)),
            1 => one().prop_map(Tree::Spawn),
            1 => one().prop_map(Tree::Move),
            2 => (time(), one(), one()).prop_map(|(limit, a, b)| Tree::HandOn(limit, a, b)),
            1 => (short_time(), one()).prop_map(|(time, tree)| Tree::Leave(time, tree)),
            1 => one().prop_map(Tree::FreshContext),
            1 => one().prop_map(Tree::Share),
        ]
    })
}

/// Plays a tree until nothing happens any more. Tells what happened, and how many polls it took.
fn play(tree: &Tree, timers: Timers) -> (Log, u64) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let stage = Stage::root(timers);
        drop(spawn(stage.clone().task(tree.clone())));
        // Longer than all waits one after the other. What never ends is dropped with the runtime.
        sleep(Duration::from_secs(400 * 86_400)).await;
        (stage.log.lock().unwrap().clone(), stage.polls.load(SeqCst))
    })
}

proptest! {
    #![proptest_config(Config { cases: 2000, failure_persistence: None, ..Config::default() })]

    #[test]
    fn lent_timers_do_what_own_timers_do(
        tree in (time(), tree()).prop_map(|(limit, tree)| Tree::Deadline(limit, Box::new(tree))),
    ) {
        let (lent, polls) = play(&tree, Timers::Lent);
        let (own, own_polls) = play(&tree, Timers::Own);
        prop_assert_eq!(lent, own);
        // When one is due, each limit above it asks once more.
        prop_assert!(polls <= own_polls * u64::from(DEPTH + 2), "{} for {}", polls, own_polls);
    }
}
