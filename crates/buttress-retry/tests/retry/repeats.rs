//! What is sent again, how often, and what the caller gets in the end.

use std::{
    rc::Rc,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed},
    },
    task::Poll,
};

use crate::support::*;
use buttress_core::{
    BoxError, Class, CloneReplay, Context, Discard, Elapsed, ErrorsAsFailures, Kept, KeptClone,
    Limit, NoReplay, Reason, Rejected, Replay, edge, find, judge,
};
use buttress_retry::{Attempted, Backoff, Budget, BudgetSettings, RetryLayer};
use tokio::time::{Sleep, sleep};
use tower::{Layer, Service, ServiceExt, service_fn, util::BoxCloneService};

#[tokio::test(start_paused = true)]
async fn three_attempts_are_all() {
    let callee = Callee::always(BUSY);
    let answer = send(&mut over(&at_once(), &callee)).await.unwrap();
    assert_eq!((answer, callee.calls()), (BUSY, 3));
}

#[tokio::test(start_paused = true)]
async fn as_many_attempts_as_were_asked_for_and_no_more() {
    for attempts in [1, 2, 5, 50] {
        let callee = Callee::always(BUSY);
        send(&mut over(&at_once().attempts(attempts), &callee)).await.unwrap();
        assert_eq!(callee.calls(), attempts as usize);
    }
}

#[tokio::test(start_paused = true)]
async fn what_succeeds_or_is_the_callers_mistake_is_asked_once() {
    for answer in [OK, WRONG] {
        let callee = Callee::always(answer);
        assert_eq!(send(&mut over(&at_once(), &callee)).await.unwrap(), answer);
        assert_eq!(callee.calls(), 1);
    }
}

// RET-07
#[tokio::test(start_paused = true)]
async fn attempts_are_each_requests_own_and_the_budget_is_everybodys() {
    let budget = budget(BudgetSettings::default().reserve(20));
    let callee = Callee::always(BUSY);
    let mut one = over(&within(&budget), &callee);
    for nth in 1..=2 {
        send(&mut one).await.unwrap();
        assert_eq!(callee.calls(), 3 * nth);
    }
    let (mut left, mut right) = (one.clone(), one.clone());
    let (left, right) = tokio::join!(send(&mut left), send(&mut right));
    assert_eq!((left.unwrap(), right.unwrap(), callee.calls()), (BUSY, BUSY, 12));
    assert_eq!(budget.balance(), 20.0 - 8.0);
}

// RET-09
#[tokio::test(start_paused = true)]
async fn the_last_error_is_returned_by_value_though_it_cannot_be_cloned() {
    let callee = Callee::new([failed(1), failed(2), failed(3)]);
    let error = send(&mut over(&at_once(), &callee)).await.unwrap_err();
    assert_eq!(error.downcast::<Failed>().unwrap().0, 3);
}

// RET-10
#[tokio::test(start_paused = true)]
async fn each_attempt_is_made_ready_and_called_on_one_instance() {
    let callee = Callee::new([failed(1), failed(2), Act::Answer(OK)]);
    assert_eq!(send(&mut over(&at_once(), &callee)).await.unwrap(), OK);
    assert_eq!((callee.readies(), callee.calls()), (3, 3));
}

// RET-10
#[tokio::test(start_paused = true)]
async fn a_readiness_error_ends_the_request_as_it_is_and_the_token_is_back() {
    let budget = Budget::default();
    let broken = || Readiness::Fail(Failed(9, std::io::Error::other("closed")).into());
    let callee = Callee::new([failed(1)]).readiness([Readiness::Now, broken()]);
    let mut service = over(&within(&budget), &callee);
    let mut call = Box::pin(service.ready().await.unwrap().call("request"));
    let error = call.as_mut().await.unwrap_err();
    assert_eq!(error.downcast::<Failed>().unwrap().0, 9);
    assert_eq!(budget.balance(), 2.0, "at once, though the future is still there");
    assert_eq!((budget.stats().granted, budget.stats().refunded), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn readiness_that_one_of_ours_refuses_does_not_hide_that_something_was_sent() {
    let callee =
        Callee::new([Act::Answer(BUSY)]).readiness([Readiness::Now, Readiness::Fail(OPEN.into())]);
    let error = send(&mut over(&at_once(), &callee)).await.unwrap_err();
    tells_that_it_was_sent(&error, &OPEN);
}

#[tokio::test(start_paused = true)]
async fn a_readiness_error_of_the_service_itself_is_final() {
    let broken = || Readiness::Fail(Failed(9, std::io::Error::other("closed")).into());
    let callee = Callee::new([]).readiness([broken()]);
    let error = over(&at_once(), &callee).ready().await.map(drop).unwrap_err();
    assert_eq!(error.downcast::<Failed>().unwrap().0, 9);
}

#[tokio::test(start_paused = true)]
async fn a_callee_that_is_not_ready_is_waited_for_in_the_call_before_each_attempt() {
    let callee = Callee::new([failed(1), Act::Answer(OK)]).readiness([
        // The service's own, which is ready all the same; then the first and the second attempt's.
        Readiness::After(SEC),
        Readiness::After(3 * SEC),
        Readiness::After(4 * SEC),
    ]);
    let mut service = over(&at_once(), &callee);
    service.ready().await.unwrap();
    assert_eq!(callee.elapsed(), ZERO);
    assert_eq!(service.call("request").await.unwrap(), OK);
    assert_eq!(callee.times(), [3 * SEC, 7 * SEC]);
}

/// Keeps a request, and says whether it may be carried out twice.
#[derive(Clone, Copy)]
struct Keep {
    safe: bool,
}

impl Replay<&'static str> for Keep {
    type Sent = &'static str;
    type Kept = KeptClone<&'static str>;

    fn once(&self, request: &'static str) -> &'static str {
        request
    }

    fn keep(&self, request: &'static str) -> (&'static str, Option<Self::Kept>) {
        (request, Some(KeptClone::new(request, self.safe)))
    }
}

impl Discard<Answer> for Keep {
    type Discarding = std::future::Ready<()>;

    fn discard(&self, _: Answer) -> Self::Discarding {
        std::future::ready(())
    }
}

// RET-11
#[tokio::test(start_paused = true)]
async fn what_must_not_happen_twice_is_sent_again_only_if_it_was_never_sent() {
    let layer = at_once().replay(Keep { safe: false });
    const ELAPSED: Elapsed = Elapsed::new(Limit::Attempt, SEC);
    let acts: [(fn() -> Act, usize); 6] = [
        (|| Act::Answer(BUSY), 1),
        (|| Act::Answer(later(ZERO)), 1),
        (|| failed(1), 1),
        (|| Act::Fail(NoConnection.into()), 3),
        // It may have been carried out before the time ran out; and the word that it was not sent may be of
        // a call that the callee made.
        (|| Act::Fail(ELAPSED.into()), 1),
        (|| Act::Fail(ELAPSED.unsent().into()), 1),
    ];
    for (act, calls) in acts {
        let callee = Callee::new((0..3).map(|_| act()));
        let _ = send(&mut over(&layer, &callee)).await;
        assert_eq!(callee.calls(), calls);
    }
}

// RET-04
#[tokio::test(start_paused = true)]
async fn what_cannot_be_kept_is_sent_once_and_keeps_its_own_result() {
    let budget = Budget::default();
    let layer = within(&budget).replay(NoReplay);

    let callee = Callee::always(OK);
    assert_eq!(send(&mut over(&layer, &callee)).await.unwrap(), OK);
    assert_eq!(callee.calls(), 1);
    assert_eq!(budget.stats().deposits, 1, "its success counts all the same");

    let callee = Callee::new([failed(7)]);
    let error = send(&mut over(&layer, &callee)).await.unwrap_err();
    assert_eq!((error.downcast::<Failed>().unwrap().0, callee.calls()), (7, 1));
    assert_eq!(budget.stats().granted, 0);
}

/// Counts what is asked of it, and makes so many copies.
#[derive(Clone, Default)]
struct Copies {
    most: u32,
    log: Arc<Mutex<Vec<&'static str>>>,
}

struct KeptCopies(Copies);

impl<Req: Default + Clone> Replay<Req> for Copies
where
    KeptCopies: Kept<Sent = Req>,
{
    type Sent = Req;
    type Kept = KeptCopies;

    fn once(&self, request: Req) -> Req {
        self.log.lock().unwrap().push("once");
        request
    }

    fn keep(&self, request: Req) -> (Req, Option<KeptCopies>) {
        self.log.lock().unwrap().push("keep");
        (request, Some(KeptCopies(self.clone())))
    }
}

impl Kept for KeptCopies {
    type Sent = &'static str;

    fn safe(&self) -> bool {
        true
    }

    fn copy(&mut self, last: bool) -> Option<&'static str> {
        self.0.log.lock().unwrap().push(if last { "last copy" } else { "copy" });
        self.0.most = self.0.most.checked_sub(1)?;
        Some("copied")
    }
}

impl<Res> Discard<Res> for Copies {
    type Discarding = std::future::Ready<()>;

    fn discard(&self, _: Res) -> Self::Discarding {
        self.log.lock().unwrap().push("discard");
        std::future::ready(())
    }
}

// RET-01
#[tokio::test(start_paused = true)]
async fn where_no_copy_can_be_made_any_more_the_answer_is_returned_and_not_let_go_of() {
    let budget = Budget::default();
    let copies = Copies { most: 0, ..Copies::default() };
    let callee = Callee::always(BUSY);
    let answer = send(&mut over(&within(&budget).replay(copies.clone()), &callee)).await.unwrap();
    assert_eq!((answer, callee.calls()), (BUSY, 1));
    assert_eq!(*copies.log.lock().unwrap(), ["keep", "copy"]);
    assert_eq!((budget.balance(), budget.stats().refunded), (2.0, 1));
}

#[tokio::test(start_paused = true)]
async fn only_the_last_copy_is_given_away_and_none_is_made_for_nothing() {
    let copies = Copies { most: 9, ..Copies::default() };
    let callee = Callee::always(BUSY);
    send(&mut over(&at_once().replay(copies.clone()), &callee)).await.unwrap();
    let asked = ["keep", "copy", "discard", "last copy", "discard"];
    assert_eq!(*copies.log.lock().unwrap(), asked);
    assert_eq!(callee.requests(), ["request", "copied", "copied"]);
}

#[tokio::test(start_paused = true)]
async fn what_will_not_be_repeated_is_not_kept() {
    let copies = Copies { most: 9, ..Copies::default() };
    let layer = at_once().replay(copies.clone());
    send(&mut over(&layer.clone().attempts(1), &Callee::always(BUSY))).await.unwrap();
    let beneath = Context::default().with_attempt(2);
    beneath.scope(send(&mut over(&layer, &Callee::always(OK)))).await.unwrap();
    let mut service = over(&layer, &Callee::always(BUSY));
    service.ready().await.unwrap();
    beneath.scope(beneath.within(|| service.call("request"))).await.unwrap();
    assert_eq!(*copies.log.lock().unwrap(), ["once", "once", "once"]);
}

/// A signature that is added on the way out, once for each time it passes.
fn signing<S>(inner: S) -> impl Service<String, Response = String, Error = BoxError> + Clone
where
    S: Service<String, Response = String, Error = BoxError> + Clone,
{
    let signed = Arc::new(AtomicU32::new(0));
    tower::util::MapRequest::new(inner, move |request: String| {
        format!("{request}+sig{}", signed.fetch_add(1, Relaxed))
    })
}

// RET-05, RET-13
#[tokio::test(start_paused = true)]
async fn each_attempt_starts_from_the_request_as_it_entered() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let fails = service_fn(move |request: String| {
        log.lock().unwrap().push(request);
        std::future::ready(Err::<String, BoxError>("reset".into()))
    });
    let layer = RetryLayer::new(Backoff::none(), rich());
    let call = layer.layer(signing(fails)).oneshot("body".to_owned());
    call.await.unwrap_err();
    assert_eq!(*seen.lock().unwrap(), ["body+sig0", "body+sig1", "body+sig2"]);
}

/// An answer that holds a connection.
#[derive(Debug)]
struct Held(Arc<()>);

/// Lets go of an answer in so long a time, as when it is drained.
#[derive(Clone)]
struct Drain(std::time::Duration);

impl Replay<()> for Drain {
    type Sent = ();
    type Kept = KeptClone<()>;

    fn once(&self, (): ()) {}

    fn keep(&self, (): ()) -> ((), Option<KeptClone<()>>) {
        ((), Some(KeptClone::new((), true)))
    }
}

struct Draining {
    sleep: std::pin::Pin<Box<Sleep>>,
    held: Option<Held>,
}

impl Discard<Held> for Drain {
    type Discarding = Draining;

    fn discard(&self, held: Held) -> Draining {
        Draining { sleep: Box::pin(sleep(self.0)), held: Some(held) }
    }
}

impl Future for Draining {
    type Output = ();

    fn poll(mut self: std::pin::Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<()> {
        std::task::ready!(self.sleep.as_mut().poll(cx));
        self.held = None;
        Poll::Ready(())
    }
}

/// Answers with a new connection each time, and tells when it was called.
type Connections = Arc<Mutex<Vec<(std::time::Duration, Weak<()>)>>>;

fn connections()
-> (impl Service<(), Response = Held, Error = BoxError, Future: Send> + Clone, Connections) {
    let start = edge::now();
    let all = Connections::default();
    let log = all.clone();
    let service = service_fn(move |()| {
        let connection = Arc::new(());
        log.lock().unwrap().push((edge::now() - start, Arc::downgrade(&connection)));
        std::future::ready(Ok(Held(connection)))
    });
    (service, all)
}

/// Every answer is bad, and asks for ten seconds.
fn ten_seconds(_: Result<&Held, &BoxError>) -> Class {
    Class::Transient { after: Some(10 * SEC) }
}

// RET-08
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_replaced_is_gone_before_the_wait_and_the_wait_counts_from_its_coming() {
    let (service, all) = connections();
    let layer = RetryLayer::new(Backoff::none(), rich())
        .classify(ten_seconds)
        .replay(Drain(2 * SEC))
        .attempts(2);
    let call = tokio::spawn(layer.layer(service).oneshot(()));
    sleep(SEC).await;
    assert!(all.lock().unwrap()[0].1.strong_count() == 1, "it is being drained");
    sleep(2 * SEC).await;
    assert!(all.lock().unwrap()[0].1.strong_count() == 0, "gone, with seven seconds to sleep");
    let last = call.await.unwrap().unwrap();
    let times: Vec<_> = all.lock().unwrap().iter().map(|(at, _)| *at).collect();
    assert_eq!(times, [ZERO, 10 * SEC]);
    assert_eq!(Arc::strong_count(&last.0), 1);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_never_begins_before_the_answer_it_replaces_is_gone() {
    let (service, all) = connections();
    let layer = RetryLayer::new(Backoff::none(), rich())
        .classify(ten_seconds)
        .replay(Drain(15 * SEC))
        .attempts(2);
    layer.layer(service).oneshot(()).await.unwrap();
    let times: Vec<_> = all.lock().unwrap().iter().map(|(at, _)| *at).collect();
    assert_eq!(times, [ZERO, 15 * SEC]);
}

const OPEN: Rejected = Rejected::new(Reason::CircuitOpen, "breaker").retry_in(SEC);

// CBK-12, BUD-06
#[tokio::test(start_paused = true)]
async fn a_refusal_of_ours_is_never_repeated_and_costs_no_time() {
    for reason in [Reason::CircuitOpen, Reason::BulkheadFull, Reason::Overloaded, Reason::NotLeader]
    {
        let budget = Budget::default();
        let callee = Callee::new([]);
        let open = Refusing::new(callee.clone(), Rejected::new(reason, "x").retry_in(SEC), 1);
        let layer = RetryLayer::new(Backoff::default(), budget.clone())
            .classify(classify as Classifier)
            .attempts(5);
        let error = send(&mut layer.layer(open.clone())).await.unwrap_err();
        assert_eq!(error.downcast_ref(), Some(&Rejected::new(reason, "x").retry_in(SEC)));
        assert_eq!((*open.calls.lock().unwrap(), callee.calls()), (1, 0));
        assert_eq!((callee.elapsed(), budget.stats().granted), (ZERO, 0));
        assert_eq!(budget.balance(), 2.0, "there is nothing to give back");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_after_a_real_error_tells_the_error_and_gives_the_token_back() {
    let budget = Budget::default();
    let callee = Callee::new([failed(1), failed(2)]);
    let opens = Refusing::new(callee.clone(), OPEN, 3);
    let error = send(&mut within(&budget).layer(opens)).await.unwrap_err();
    assert_eq!(error.downcast::<Failed>().unwrap().0, 2, "the last that the callee said");
    assert_eq!(callee.calls(), 2);
    assert_eq!(budget.balance(), 1.0, "one repeat was sent, and one went no further than to us");
}

/// What a refusal is when an earlier attempt was sent: it is not the whole story.
#[track_caller]
fn tells_that_it_was_sent<E: std::error::Error + PartialEq + 'static>(error: &BoxError, ours: &E) {
    assert!(!error.is::<E>(), "by itself it would say that nothing was ever sent");
    assert_eq!(find(&**error), Some(ours));
    assert!(find::<Attempted>(&**error).is_some());
    assert_eq!(judge::<(), _>(&ErrorsAsFailures, Err(error)), Class::Transient { after: None });
}

#[tokio::test(start_paused = true)]
async fn a_refusal_after_a_response_that_is_gone_says_that_something_was_sent() {
    let budget = Budget::default();
    let callee = Callee::new([failed(1), Act::Answer(BUSY)]);
    let opens = Refusing::new(callee.clone(), OPEN, 3);
    let error = send(&mut within(&budget).layer(opens)).await.unwrap_err();
    tells_that_it_was_sent(&error, &OPEN);
    assert!(find::<Failed>(&*error).is_none(), "not an error that is older than the answer");
    assert_eq!(budget.balance(), 1.0);
}

#[tokio::test(start_paused = true)]
async fn a_callee_that_is_no_longer_ready_does_not_hide_that_it_was_sent_something() {
    let unsent = || Elapsed::new(Limit::Attempt, SEC).unsent();
    // A response that is gone, then nothing but our own words.
    let callee =
        Callee::new([Act::Answer(BUSY), Act::Fail(unsent().into()), Act::Fail(unsent().into())]);
    let error = send(&mut over(&at_once(), &callee)).await.unwrap_err();
    tells_that_it_was_sent(&error, &unsent());
    // An error of the callee's says so itself, and outranks them.
    let callee = Callee::new([failed(1), Act::Fail(unsent().into()), Act::Fail(OPEN.into())]);
    let error = send(&mut over(&at_once(), &callee)).await.unwrap_err();
    assert_eq!(error.downcast::<Failed>().unwrap().0, 1);
    // A word is no proof that nothing was sent.
    let acts = || [Act::Fail(unsent().into()), Act::Fail(OPEN.into())];
    let error = send(&mut over(&at_once(), &Callee::new(acts()))).await.unwrap_err();
    tells_that_it_was_sent(&error, &unsent());
    // Where the classifier knows it, that is what comes out.
    let knows = at_once().classify(|result: Result<&Answer, &BoxError>| match result {
        Err(error) if error.is::<Elapsed>() => Class::Unreachable,
        result => classify(result),
    });
    let error = send(&mut over(&knows, &Callee::new(acts()))).await.unwrap_err();
    assert_eq!(error.downcast_ref(), Some(&unsent()));
}

/// An error of the callee's that has one of our refusals for its source.
#[derive(Debug)]
struct Wrote(Rejected);

impl std::fmt::Display for Wrote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("wrote, then failed")
    }
}

impl std::error::Error for Wrote {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_writes_and_then_fails_with_our_refusal_inside_is_not_taken_for_unsent() {
    let callee = Callee::new([Act::Fail(Wrote(OPEN).into())]);
    let error =
        send(&mut over(&at_once().replay(Keep { safe: false }), &callee)).await.unwrap_err();
    assert!(error.is::<Wrote>());
    assert_eq!(callee.calls(), 1);
}

// BLK-11
#[test]
fn the_layer_keeps_the_contract_of_all_layers() {
    use buttress_test::{Subject, contract};
    // What tokens it holds, and when they are back, is in `cancel`.
    let layer = || RetryLayer::new(Backoff::default(), rich());
    contract(|| Subject::stateless(layer()), || "request", || "response");
    contract(|| Subject::stateless(layer().attempts(1)), || "request", || "response");
    contract(|| Subject::stateless(layer().replay(NoReplay)), || "request", || "response");
}

/// A response and an error that are neither `Clone` nor `Send`, in a service that is not `Send` either.
#[derive(Debug)]
struct Local(#[allow(dead_code)] Rc<()>);

// RET-09, HTP-08
#[tokio::test(start_paused = true)]
async fn nothing_is_asked_of_a_service_but_that_it_can_be_cloned() {
    let count = Rc::new(std::cell::Cell::new(0));
    let calls = count.clone();
    let borrowed = String::from("not for ever");
    let request: &str = &borrowed;
    let local = service_fn(move |request: &str| {
        assert_eq!(request, "not for ever");
        calls.set(calls.get() + 1);
        let answer = if calls.get() < 3 { Err("reset") } else { Ok(Local(Rc::new(()))) };
        async move { answer }
    });
    let layer = RetryLayer::new(Backoff::none(), rich());
    layer.layer(local).oneshot(request).await.unwrap();
    assert_eq!(count.get(), 3);
}

/// Fails as often as it is asked to, and counts its clones.
#[derive(Debug)]
struct Counted {
    failures: Arc<AtomicUsize>,
    clones: Arc<AtomicUsize>,
}

impl Clone for Counted {
    fn clone(&self) -> Self {
        self.clones.fetch_add(1, Relaxed);
        Self { failures: self.failures.clone(), clones: self.clones.clone() }
    }
}

impl Service<()> for Counted {
    type Response = ();
    type Error = BoxError;
    type Future = std::future::Ready<Result<(), BoxError>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        let fails = |left: usize| left.checked_sub(1);
        std::future::ready(match self.failures.fetch_update(Relaxed, Relaxed, fails) {
            Ok(_) => Err("reset".into()),
            Err(_) => Ok(()),
        })
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_is_cloned_once_for_all_requests_and_then_for_each_that_is_repeated() {
    let (failures, clones) = (Arc::new(AtomicUsize::new(0)), Arc::default());
    let counted = Counted { failures: failures.clone(), clones: Arc::clone(&clones) };
    let mut service = RetryLayer::new(Backoff::none(), rich()).layer(counted);
    for _ in 0..100 {
        service.ready().await.unwrap().call(()).await.unwrap();
    }
    assert_eq!(clones.load(Relaxed), 1);
    failures.store(2, Relaxed);
    service.ready().await.unwrap().call(()).await.unwrap();
    assert_eq!(clones.load(Relaxed), 2, "one clone makes the second attempt and the third");
    // Where nothing is repeated there is nothing to clone.
    let counted = Counted { failures, clones: Arc::clone(&clones) };
    let mut service = RetryLayer::new(Backoff::none(), rich()).attempts(1).layer(counted);
    service.ready().await.unwrap().call(()).await.unwrap();
    assert_eq!(clones.load(Relaxed), 2);
}

/// Asks one host after the other, of which the first is down.
#[derive(Clone)]
struct Rotating {
    next: usize,
    asked: Arc<Mutex<Vec<usize>>>,
}

impl Service<()> for Rotating {
    type Response = usize;
    type Error = BoxError;
    type Future = std::future::Ready<Result<usize, BoxError>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        let host = self.next % 3;
        self.next += 1;
        self.asked.lock().unwrap().push(host);
        std::future::ready(if host == 0 { Err("host 0 is down".into()) } else { Ok(host) })
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_service_keeps_by_value_moves_on_from_the_second_attempt_to_the_third() {
    let asked = Arc::default();
    let rotating = Rotating { next: 0, asked: Arc::clone(&asked) };
    let mut service = RetryLayer::new(Backoff::none(), rich()).layer(rotating);
    for _ in 0..9 {
        service.ready().await.unwrap().call(()).await.unwrap();
    }
    assert_eq!(asked.lock().unwrap()[..5], [0, 0, 1, 1, 2]);
}

// HTP-08
#[test]
fn the_service_can_be_stored_shared_and_sent() {
    fn sure<T: Clone + Send + Sync + std::fmt::Debug + 'static>(_: &T) {}
    fn sent<T: Send>(_: &T) {}
    let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let _in = rt.enter();
    let layer = at_once().replay(CloneReplay);
    sure(&layer);
    let callee = service_fn(|_: &'static str| std::future::ready(Ok::<_, BoxError>(OK)));
    let mut service = RetryLayer::new(Backoff::none(), rich()).layer(callee);
    sent(&service.call("request"));
    // One that can be sent, but not shared.
    let mut service = RetryLayer::new(Backoff::none(), rich()).layer(BoxCloneService::new(callee));
    sent(&service.call("request"));
    let named: buttress_retry::RetryService<Callee, Classifier> = over(&layer, &Callee::new([]));
    sent(&named);
}
