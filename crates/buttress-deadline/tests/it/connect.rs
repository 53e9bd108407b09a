//! How long it may take to get a connection.

use std::{
    convert::Infallible,
    future::{Ready, poll_fn},
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{self, Poll, Wake, Waker},
    time::Duration,
};

use buttress_core::{Context, Deadline, edge};
use buttress_deadline::{ConnectTimeoutLayer, DeadlineLayer, Elapsed, Limit, TimeoutLayer};
use buttress_test::{Act, Readiness, Subject, contract};
use tokio::time::timeout;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::support::{
    attempt, due_in, echo, elapsed, mirror, ms, panics, poll_once, poll_ready, secs, silent, timed,
    total,
};

const fn connect(limit: Duration) -> Elapsed {
    Elapsed::new(Limit::Connect, limit)
}

fn within(limit: Duration) -> ConnectTimeoutLayer {
    ConnectTimeoutLayer::new(limit)
}

/// All that a request has, with that much time left.
fn request(left: Duration) -> Context {
    let soon = Deadline::after(left);
    Context::default().with_deadline(soon).with_attempt_deadline(soon).with_attempt(2)
}

/// Whether its task was woken.
#[derive(Default)]
struct Flag(AtomicBool);

impl Flag {
    fn is_set(&self) -> bool {
        self.0.load(SeqCst)
    }
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

// BLK-11, BLK-12
#[test]
fn it_keeps_the_contract() {
    contract(|| Subject::stateless(within(secs(1))), || 1_u32, || 2_u32);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_does_not_come_about_was_not_sent_over() {
    let (answer, took) = timed(ConnectTimeoutLayer::default().layer(silent())).await;
    let error = elapsed(answer);
    assert_eq!((error, took), (connect(secs(1)), secs(1)));
    assert!(!error.sent());
}

#[tokio::test(start_paused = true)]
async fn a_connection_at_the_very_instant_wins_and_so_does_one_that_is_seen_late() {
    for seconds in [5, 6] {
        let probe = echo();
        probe.script([Act::Delay(secs(5))]);
        let (answer, took) = timed(within(secs(seconds)).layer(probe)).await;
        assert_eq!((answer.unwrap(), took), (7, secs(5)));
    }
    let mut service = within(secs(1)).layer(echo());
    let call = service.ready().await.unwrap().call(7);
    tokio::time::advance(secs(60)).await;
    assert_eq!(call.await.unwrap(), 7);
}

#[tokio::test(start_paused = true)]
async fn what_a_request_has_does_not_reach_the_connector() {
    let mut service = within(secs(9)).layer(mirror());
    let ready = poll_fn(|cx| service.poll_ready(cx));
    request(secs(1)).scope(ready).await.unwrap();
    let call = request(secs(1)).within(|| service.call(()));
    // Another request may poll it.
    assert_eq!(request(secs(2)).scope(call).await.unwrap(), [Context::default(); 2]);
    assert_eq!(Context::current(), Context::default());
}

#[tokio::test(start_paused = true)]
async fn readiness_sees_no_request_either() {
    #[derive(Clone)]
    struct Reads;
    impl Service<u32> for Reads {
        type Response = u32;
        type Error = Infallible;
        type Future = Ready<Result<u32, Infallible>>;

        fn poll_ready(&mut self, _: &mut task::Context<'_>) -> Poll<Result<(), Infallible>> {
            assert_eq!(Context::current(), Context::default());
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, n: u32) -> Self::Future {
            std::future::ready(Ok(n))
        }
    }
    let mut service = within(secs(1)).layer(Reads);
    assert!(request(secs(1)).scope(poll_ready(&mut service)).await.is_ready());
}

// TMO-01
#[tokio::test(start_paused = true)]
async fn readiness_is_the_connectors_own_and_takes_as_long_as_it_takes() {
    let probe = echo();
    probe.set_readiness(Readiness::Pending);
    let mut service = within(secs(1)).layer(probe.clone());
    let ready = timeout(secs(60), poll_fn(|cx| Service::<u32>::poll_ready(&mut service, cx))).await;
    ready.expect_err("still not ready");
    probe.set_readiness(Readiness::Ready);
    assert_eq!(service.ready().await.unwrap().call(7).await.unwrap(), 7);
    probe.set_readiness(Readiness::Failed);
    assert!(matches!(poll_ready(&mut service).await, Poll::Ready(Err(_))));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_began_it_does_not_end_it() {
    // Called for a request of 1 s, and polled within it at first; then for another.
    let mut service = within(secs(3)).layer(silent());
    service.ready().await.unwrap();
    let start = edge::now();
    let mut call = pin!(request(secs(1)).within(|| service.call(7)));
    assert!(request(secs(1)).scope(poll_once(call.as_mut())).await.is_pending());
    let answer = request(secs(2)).scope(call).await;
    assert_eq!((elapsed(answer), edge::now() - start), (connect(secs(3)), secs(3)));
}

#[tokio::test(start_paused = true)]
async fn it_is_woken_by_its_own_timer_also_where_one_would_be_lent() {
    // Polled once beneath a limit that would lend its timer, and then left to whoever is woken.
    let start = edge::now();
    let connecting = Arc::new(Mutex::new(Box::pin(within(secs(3)).layer(silent()).oneshot(7))));
    let shared = connecting.clone();
    let begins = service_fn(move |_: u32| {
        let shared = shared.clone();
        poll_fn(move |cx| {
            let waits = shared.lock().unwrap().as_mut().poll(cx).is_pending();
            if waits { Poll::Pending } else { Poll::Ready(Ok::<_, Infallible>(7)) }
        })
    });
    // It is asked by hand when it wakes its task, as only its own timer does it: the limit above is gone.
    let woken = Arc::new(Flag::default());
    let waker = Waker::from(woken.clone());
    let mut call = Box::pin(DeadlineLayer::new(secs(60)).layer(begins).oneshot(1));
    assert!(call.as_mut().poll(&mut task::Context::from_waker(&waker)).is_pending());
    drop(call);
    tokio::time::sleep(secs(3)).await;
    assert!(woken.is_set(), "nobody woke it");
    let ended = Arc::into_inner(connecting).unwrap().into_inner().unwrap();
    assert_eq!(elapsed(ended.await), connect(secs(3)));
    assert_eq!(edge::now() - start, secs(3));
}

#[tokio::test(start_paused = true)]
async fn both_limits_hold_side_by_side() {
    let layers = |deadline, timeout, connect| {
        let connector = within(secs(connect)).layer(silent());
        DeadlineLayer::new(secs(deadline)).layer(TimeoutLayer::new(secs(timeout)).layer(connector))
    };
    for (limits, expected) in [
        ((30, 10, 1), connect(secs(1))),
        ((30, 2, 3), attempt(secs(2))),
        ((2, 10, 3), total(secs(2))),
    ] {
        let (answer, took) = timed(layers(limits.0, limits.1, limits.2)).await;
        assert_eq!((elapsed(answer), took), (expected, expected.limit()));
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_inside_the_connector_has_its_own_time() {
    let inside = TimeoutLayer::new(secs(2)).layer(silent());
    let stack = DeadlineLayer::new(secs(30)).layer(within(secs(3)).layer(inside));
    let (answer, took) = timed(stack).await;
    assert_eq!((elapsed(answer), took), (attempt(secs(2)), secs(2)));
}

#[tokio::test(start_paused = true)]
async fn a_connector_that_is_always_busy_does_not_put_it_off() {
    let busy = service_fn(|_: u32| async {
        loop {
            tokio::task::consume_budget().await;
        }
        #[allow(unreachable_code)]
        Ok::<_, Infallible>(7)
    });
    let call = within(ms(20)).layer(busy).oneshot(1);
    // Nobody moves a paused clock while a task is busy.
    let clock = async {
        loop {
            tokio::time::advance(ms(1)).await;
        }
    };
    tokio::select! {
        answer = call => assert_eq!(elapsed(answer), connect(ms(20))),
        () = clock => {}
    }
}

// TMO-07
#[tokio::test(start_paused = true)]
async fn the_connectors_future_is_gone_in_the_poll_that_finds_the_time_up() {
    let probe = echo();
    probe.script([Act::Hang, Act::Hang, Act::PanicInPoll]);
    let mut service = within(secs(1)).layer(probe.clone());
    let mut call = pin!(service.ready().await.unwrap().call(7));
    assert_eq!(elapsed(call.as_mut().await), connect(secs(1)));
    assert_eq!(probe.in_flight(), 0, "while the answered future is still there");
    assert!(panics(call.as_mut()).await, "polled after it had answered");

    let mut walks_away = Box::pin(service.ready().await.unwrap().call(7));
    assert!(poll_once(walks_away.as_mut()).await.is_pending());
    drop(walks_away);
    assert_eq!(probe.in_flight(), 0);

    let mut call = Box::pin(service.ready().await.unwrap().call(7));
    assert!(request(secs(1)).scope(panics(call.as_mut())).await);
    assert_eq!(Context::current(), Context::default());
}

// BKO-10
#[tokio::test(start_paused = true)]
async fn settings_at_the_edge() {
    assert_eq!(ConnectTimeoutLayer::try_new(Duration::ZERO).unwrap_err().setting(), "limit");
    let panic = std::panic::catch_unwind(|| within(Duration::ZERO)).unwrap_err();
    assert!(panic.downcast_ref::<&str>().unwrap().contains("`Duration::MAX`"));

    let nano = Duration::from_nanos(1);
    let (answer, took) = timed(within(nano).layer(silent())).await;
    assert!(elapsed(answer) == connect(nano) && took <= ms(1));

    let probe = echo();
    probe.script([Act::Delay(secs(86_400 * 365))]);
    let call = within(Duration::MAX).layer(probe).oneshot(7);
    assert_eq!(due_in(secs(1)).scope(call).await.unwrap(), 7);
}

#[test]
fn what_can_be_moved_can_be_moved_inside_it_and_it_is_small() {
    fn movable<F: Unpin + Send>(_: &F) -> usize {
        size_of::<F>()
    }
    let call = within(secs(1)).layer(silent()).call(7);
    assert!(movable(&call) <= 64, "{}", movable(&call));
}
