//! Answers of another service.

use std::{
    convert::Infallible,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context as TaskContext, Poll},
};

use buttress_core::{Class, Context, Deadline, edge};
use buttress_fallback::FallbackLayer;
use buttress_test::{Act, Probe, Readiness};
use tokio::time::advance;
use tower::{Layer, Service, ServiceExt, buffer::Buffer, limit::ConcurrencyLimit, service_fn};

use crate::support::{ByStatus, OPEN, due_in, failing, page, pages, poll_once, secs};

#[tokio::test]
async fn another_service_answers_with_a_request_of_its_own() {
    let replica = Probe::new(|path: String| page(path.len() as u16));
    let layer = FallbackLayer::service(|n: &u16| format!("/{n}"), replica).classify(ByStatus);
    let answer = layer.layer(failing(OPEN)).oneshot(200).await.unwrap();
    assert_eq!((answer.status, answer.mark.unwrap().class), (4, Class::Refused));
}

#[tokio::test(start_paused = true)]
async fn it_is_waited_for_until_it_is_ready() {
    let other = pages();
    other.set_readiness(Readiness::Pending);
    let layer = FallbackLayer::service(|n: &u16| *n, other.clone());
    let mut call = pin!(layer.layer(failing(OPEN)).oneshot(299));
    assert!(poll_once(call.as_mut()).await.is_pending());
    assert_eq!(other.calls(), 0);
    other.set_readiness(Readiness::Ready);
    assert_eq!(call.await.unwrap(), page(299));
    assert_eq!(other.violations(), 0);
}

/// Counts its clones and how often it is polled.
struct Counted {
    clones: Arc<AtomicUsize>,
    polls: Arc<AtomicUsize>,
}

impl Clone for Counted {
    fn clone(&self) -> Self {
        self.clones.fetch_add(1, Relaxed);
        Self { clones: self.clones.clone(), polls: self.polls.clone() }
    }
}

impl Service<u16> for Counted {
    type Response = crate::support::Page;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        self.polls.fetch_add(1, Relaxed);
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, status: u16) -> Self::Future {
        std::future::ready(Ok(page(status)))
    }
}

#[tokio::test]
async fn a_call_that_needs_no_fallback_costs_the_other_service_nothing() {
    let (clones, polls) = (Arc::default(), Arc::default());
    let other = Counted { clones: Arc::clone(&clones), polls: Arc::clone(&polls) };
    let layer = FallbackLayer::service(|n: &u16| *n, other);
    let mut service = layer.layer(pages());
    for _ in 0..10 {
        let mut clone = service.clone();
        clone.ready().await.unwrap().call(200).await.unwrap();
        service.ready().await.unwrap().call(200).await.unwrap();
    }
    assert_eq!((clones.load(Relaxed), polls.load(Relaxed)), (0, 0));
}

#[tokio::test]
async fn whoever_is_asked_is_cloned_once() {
    let (clones, polls) = (Arc::default(), Arc::default());
    let other = Counted { clones: Arc::clone(&clones), polls: Arc::clone(&polls) };
    let layer = FallbackLayer::service(|n: &u16| *n, other);
    assert_eq!(layer.layer(failing(OPEN)).oneshot(299).await.unwrap(), page(299));
    assert_eq!((clones.load(Relaxed), polls.load(Relaxed)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn it_may_share_a_limit_with_the_call_that_failed() {
    let probe = pages();
    probe.script([Act::Fail("down".into())]);
    let one_place = ConcurrencyLimit::new(probe, 1);
    let layer = FallbackLayer::service(|_: &u16| 299, one_place.clone());
    let answer = layer.layer(one_place).oneshot(200);
    let answer = tokio::time::timeout(secs(60), answer).await.expect("no deadlock");
    assert_eq!(answer.unwrap(), page(299));
}

/// Answers with the context that it sees, in `call` and when it is polled.
fn seen() -> impl Service<
    (),
    Response = Vec<Context>,
    Error = Infallible,
    Future = impl Future<Output = Result<Vec<Context>, Infallible>> + Send,
> + Clone
+ Send
+ 'static {
    service_fn(|()| {
        let in_call = Context::current();
        async move { Ok(vec![in_call, Context::current()]) }
    })
}

fn down() -> Probe<(), Vec<Context>> {
    let probe = Probe::new(|()| vec![]);
    probe.script([Act::Fail("down".into())]);
    probe
}

#[tokio::test(start_paused = true)]
async fn it_runs_in_the_context_of_the_request() {
    let layer = FallbackLayer::service(|&()| (), seen());
    let request = due_in(secs(5)).with_attempt(2);
    let call = layer.layer(down()).oneshot(());
    assert_eq!(request.scope(call).await.unwrap(), [request; 2]);

    // Also where it is polled for somebody else.
    let mut service = layer.layer(down());
    service.ready().await.unwrap();
    let call = request.within(|| service.call(()));
    assert_eq!(due_in(secs(1)).scope(call).await.unwrap(), [request; 2]);
    assert_eq!(Context::current(), Context::default());
}

#[tokio::test(start_paused = true)]
async fn beneath_a_buffer_it_runs_in_the_context_of_whoever_waits() {
    let layer = FallbackLayer::service(|&()| (), seen());
    let buffer = Buffer::new(layer.layer(down()), 4);
    let request = due_in(secs(5)).with_attempt(2);
    assert_eq!(request.scope(buffer.oneshot(())).await.unwrap(), [request; 2]);
}

// TMO-05
#[tokio::test(start_paused = true)]
async fn a_request_that_enters_again_has_the_time_that_is_left() {
    let left = service_fn(|()| async {
        advance(secs(1)).await;
        let left = Deadline::current().unwrap().left(edge::now());
        if left > secs(2) { Err("again") } else { Ok(left) }
    });
    let again = FallbackLayer::service(|&()| (), left).layer(left);
    let again = FallbackLayer::service(|&()| (), left).layer(again);
    assert_eq!(due_in(secs(5)).scope(again.oneshot(())).await.unwrap(), secs(2));
}

#[tokio::test]
async fn a_panic_in_it_goes_up_and_the_next_call_works() {
    for act in [Act::PanicInCall, Act::PanicInPoll] {
        let (probe, other) = (pages(), pages());
        probe.script([Act::Fail("down".into()), Act::Fail("down".into())]);
        other.script([act]);
        let mut service = FallbackLayer::service(|n: &u16| *n, other.clone()).layer(probe.clone());
        let mut call = Box::pin(service.ready().await.unwrap().call(299));
        assert!(crate::support::panics(call.as_mut()).await);
        drop(call);
        assert_eq!((probe.in_flight(), other.in_flight()), (0, 0));
        assert_eq!(service.ready().await.unwrap().call(299).await.unwrap(), page(299));
    }
}
