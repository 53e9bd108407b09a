use std::{
    pin::{Pin, pin},
    sync::Mutex,
    time::Duration,
};

use buttress_core::{BoxError, Class, ErrorsAsFailures, Observe, Permit, Reason, judge};
use buttress_shed::{Priority, ShedLayer, ShedSettings};
use buttress_test::{Act, Probe, Readiness};
use futures_util::{FutureExt, future::join_all, poll};
use tokio::time::{sleep, timeout};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, limit::ConcurrencyLimit};

use crate::support::{ms, peek, reason, shed, timed, wait, with, within};

fn probe() -> Probe<u32, u32> {
    Probe::new(|n| n + 1)
}

async fn call<S: Service<u32, Response = u32, Error = BoxError>>(
    service: &mut S,
    n: u32,
) -> Result<u32, BoxError> {
    service.ready().await?.call(n).await
}

// BLK-02
#[tokio::test(start_paused = true)]
async fn idle_clones_that_are_ready_leave_every_place_free() {
    let shed = shed(10);
    let server = ShedLayer::new(shed.clone()).layer(probe());
    let mut idle: Vec<_> = (0..64).map(|_| server.clone()).collect();
    for clone in &mut idle {
        clone.ready().await.unwrap();
    }
    assert_eq!(shed.in_flight(), 0);
    let (answers, took) = timed(join_all((0..10).map(|n| server.clone().oneshot(n)))).await;
    assert!(answers.iter().all(Result::is_ok) && took == Duration::ZERO);
}

/// What the chapter says of the pair that this replaces.
#[tokio::test(start_paused = true)]
async fn idle_connections_over_towers_pair_refuse_everything_with_nothing_in_flight() {
    let server = ServiceBuilder::new().load_shed().concurrency_limit(10).service(probe());
    let mut idle: Vec<_> = (0..64).map(|_| server.clone()).collect();
    for clone in &mut idle {
        clone.ready().await.unwrap();
    }
    sleep(Duration::from_secs(3_600)).await;
    assert!(server.clone().oneshot(1).await.is_err());
}

// BLK-12
#[tokio::test(start_paused = true)]
async fn a_service_that_has_refused_a_hundred_times_serves_when_there_is_room() {
    let shed = with(1, ShedSettings::default().max_queue(0));
    let probe = probe();
    let mut server = ShedLayer::new(shed.clone()).layer(probe.clone());
    let permit = shed.try_admit(Priority::Critical).unwrap();
    for n in 0..100 {
        let (refused, took) = timed(call(&mut server, n)).await;
        assert_eq!((reason(&refused.unwrap_err()), took), (Reason::Overloaded, Duration::ZERO));
    }
    assert_eq!(probe.calls(), 0);
    drop(permit);
    assert_eq!(call(&mut server, 1).await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_place_goes_back_with_the_answer_and_not_with_the_future() {
    let shed = shed(1);
    let mut server = ShedLayer::new(shed.clone()).layer(probe());
    let mut answered = pin!(server.ready().await.unwrap().call(1));
    assert_eq!(shed.in_flight(), 1);
    assert_eq!(answered.as_mut().await.unwrap(), 2);
    assert_eq!(shed.in_flight(), 0);
    assert_eq!(call(&mut server, 2).await.unwrap(), 3);
}

#[tokio::test(start_paused = true)]
async fn errors_pass_as_they_are_and_give_the_place_back() {
    let shed = shed(1);
    let probe = probe();
    probe.script([Act::Fail("down".into())]);
    let mut server = ShedLayer::new(shed.clone()).layer(probe);
    assert_eq!(call(&mut server, 1).await.unwrap_err().to_string(), "down");
    assert_eq!((shed.in_flight(), shed.stats().finished), (0, 1));
}

// BLK-09
#[tokio::test(start_paused = true)]
async fn a_panic_gives_the_place_to_the_next_as_it_unwinds() {
    let shed = shed(1);
    for n in 0..100 {
        let probe = probe();
        probe.script([Act::PanicInPoll]);
        let server = ShedLayer::new(shed.clone()).layer(probe);
        let mut panics = Box::pin(server.clone().oneshot(n));
        let mut next = async {
            assert!(std::panic::AssertUnwindSafe(&mut panics).catch_unwind().await.is_err());
            // What is left of the future that panicked is still there.
            shed.try_admit(Priority::Critical).map(drop)
        }
        .boxed_local();
        assert!((&mut next).await.is_ok());
    }
    for n in 0..100 {
        let probe = probe();
        probe.script([Act::PanicInCall]);
        let mut server = ShedLayer::new(shed.clone()).layer(probe);
        server.ready().await.unwrap();
        let panics = std::panic::AssertUnwindSafe(|| drop(server.call(n)));
        assert!(std::panic::catch_unwind(panics).is_err());
    }
    let stats = shed.stats();
    assert_eq!((stats.in_flight, stats.waiting, stats.dropped), (0, 0, 300));
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_one_that_has_waited_gives_the_place_back_too() {
    let shed = shed(1);
    for act in [Act::PanicInCall, Act::PanicInPoll] {
        let probe = probe();
        probe.script([act]);
        let permit = shed.try_admit(Priority::Critical).unwrap();
        let server = ShedLayer::new(shed.clone()).layer(probe);
        let mut panics = Box::pin(server.oneshot(1));
        assert!(poll!(&mut panics).is_pending());
        drop(permit);
        assert!(std::panic::AssertUnwindSafe(&mut panics).catch_unwind().await.is_err());
        assert_eq!(shed.in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn who_waits_holds_nothing_of_the_inner_service_and_neither_does_the_service_left_behind() {
    let shed = shed(1);
    let inner = ConcurrencyLimit::new(probe(), 1);
    let mut server = ShedLayer::new(shed.clone()).layer(inner.clone());
    let permit = shed.try_admit(Priority::Critical).unwrap();
    let waits = server.ready().await.unwrap().call(1);
    let mut waits = pin!(waits);
    assert!(poll!(waits.as_mut()).is_pending() && shed.waiting() == 1);
    let beside = timeout(ms(1), inner.clone().oneshot(5)).await;
    assert_eq!(beside.expect("the inner place was to be free").unwrap(), 6);
    drop(permit);
    assert_eq!(waits.await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_leaves_the_inner_service_ready() {
    let shed = with(1, ShedSettings::default().max_queue(0));
    let inner = ConcurrencyLimit::new(probe(), 1);
    let mut server = ShedLayer::new(shed.clone()).layer(inner);
    let permit = shed.try_admit(Priority::Critical).unwrap();
    let refused = server.ready().await.unwrap().call(1).await;
    assert_eq!(reason(&refused.unwrap_err()), Reason::Overloaded);
    drop(permit);
    assert_eq!(call(&mut server, 1).await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_after_the_deadline_though_the_inner_service_was_long_in_getting_ready() {
    let shed = shed(1);
    let probe = probe();
    let permit = shed.try_admit(Priority::Critical).unwrap();
    let mut server = ShedLayer::new(shed.clone()).layer(probe.clone());
    server.ready().await.unwrap();
    probe.set_readiness(Readiness::Pending);
    let mut waits = Box::pin(within(50).within(|| server.call(1)));
    assert!(poll!(&mut waits).is_pending());
    drop(permit);
    assert!(poll!(&mut waits).is_pending(), "it has its place, and waits for the inner service");
    assert_eq!(shed.in_flight(), 1);
    let (refused, waited) = timed(waits).await;
    assert_eq!((reason(&refused.unwrap_err()), waited), (Reason::DeadlineExceeded, ms(50)));
    assert_eq!((probe.calls(), shed.in_flight()), (0, 0));

    // Nor if it becomes ready in the very instant.
    let permit = shed.try_admit(Priority::Critical).unwrap();
    let mut waits = Box::pin(within(50).within(|| server.call(1)));
    assert!(poll!(&mut waits).is_pending());
    drop(permit);
    assert!(poll!(&mut waits).is_pending());
    tokio::time::advance(ms(50)).await;
    probe.set_readiness(Readiness::Ready);
    assert_eq!(reason(&waits.await.unwrap_err()), Reason::DeadlineExceeded);
    assert_eq!(probe.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_closure_says_who_matters() {
    let shed = shed(1);
    let served = Mutex::new(Vec::new());
    let record = tower::service_fn(|n: u32| {
        served.lock().unwrap().push(n);
        async move { Ok::<_, BoxError>(n) }
    });
    let odd_matters_less =
        |n: &u32| if n % 2 == 1 { Priority::Sheddable } else { Priority::CriticalPlus };
    let server = ShedLayer::new(shed.clone()).prioritize(odd_matters_less).layer(record);
    let permit = shed.try_admit(Priority::Critical).unwrap();
    let release = async {
        sleep(ms(5)).await;
        drop(permit);
    };
    tokio::join!(join_all((1..=4).map(|n| server.clone().oneshot(n))), release);
    assert_eq!(*served.lock().unwrap(), [2, 4, 1, 3]);
}

/// Keeps the permit in the response, as an observer of bodies does.
#[derive(Clone)]
struct Keeping;

struct Kept<P: Permit>(u32, Option<P>);

impl<P: Permit> Kept<P> {
    fn end(mut self) {
        self.1.take().unwrap().report(Class::Success);
    }
}

impl Observe<u32> for Keeping {
    type Response<P: Permit> = Kept<P>;

    fn observe<P: Permit>(
        &self,
        result: Result<u32, BoxError>,
        permit: P,
    ) -> Result<Kept<P>, BoxError> {
        match result {
            Ok(n) => Ok(Kept(n, Some(permit))),
            Err(error) => {
                permit.report(judge::<u32, _>(&ErrorsAsFailures, Err(&error)));
                Err(error)
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_observer_may_hold_the_place_to_the_end_of_the_body() {
    let shed = shed(1);
    let server = ShedLayer::new(shed.clone()).until(Keeping).layer(probe());
    let body = server.clone().oneshot(1).await.unwrap();
    assert_eq!((body.0, shed.in_flight()), (2, 1));
    let mut next = wait(&shed, Priority::Critical);
    sleep(ms(10)).await;
    body.end();
    drop(peek(&mut next).unwrap().unwrap());

    drop(server.clone().oneshot(1).await.unwrap());
    let stats = shed.stats();
    assert_eq!((stats.in_flight, stats.finished, stats.dropped), (0, 1, 2));
}

// BLK-01
#[tokio::test(start_paused = true)]
async fn one_layer_makes_services_that_share() {
    let shed = shed(2);
    let layer = ShedLayer::new(shed.clone());
    let probe = probe();
    probe.script((0..4).map(|_| Act::Delay(ms(30))));
    let calls = (0..4).map(|n| layer.layer(probe.clone()).oneshot(n));
    let (answers, took) = timed(join_all(calls)).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!((probe.max_in_flight(), took), (2, ms(60)));
}

#[test]
fn what_prioritizes_or_observes_with_a_closure_can_be_shown() {
    let judge = |_: Result<&u32, &BoxError>| Class::Success;
    let layer = ShedLayer::new(shed(3)).prioritize(|_: &u32| Priority::Sheddable).until(judge);
    let shown = "shed: Shed { limit: 3, in_flight: 0, waiting: 0, .. }, .. }";
    assert_eq!(format!("{layer:?}"), format!("ShedLayer {{ {shown}"));
    let service = format!("{:?}", layer.layer("inner"));
    assert_eq!(service, format!("ShedService {{ inner: \"inner\", {shown}"));
}

/// A coin that is the same in every run.
fn coin(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

// OPS-02
#[tokio::test(start_paused = true)]
async fn ten_thousand_calls_dropped_at_random_polls_all_have_one_end() {
    let shed = with(4, ShedSettings::default().max_queue(12));
    let probe = probe();
    let server = ShedLayer::new(shed.clone()).layer(probe.clone());
    let mut state = 7;
    let mut running: Vec<(Pin<Box<_>>, u64)> = Vec::new();
    let [mut answered, mut failed, mut refused, mut dropped] = [0; 4];
    for n in 0..10_000 {
        probe.script([match coin(&mut state) % 4 {
            0 => Act::Answer,
            1 => Act::Fail("planted".into()),
            2 => Act::Delay(ms(coin(&mut state) % 30)),
            _ => Act::Hang,
        }]);
        // A script is for calls that come to the inner service, in their order: here that is any.
        let context = within(1 + coin(&mut state) % 60);
        let mut clone = server.clone();
        clone.ready().await.unwrap();
        running.push((Box::pin(context.within(|| clone.call(n))), coin(&mut state) % 40));
        let mut kept = Vec::new();
        for (mut call, polls) in running {
            match poll!(&mut call) {
                std::task::Poll::Ready(Ok(_)) => answered += 1,
                std::task::Poll::Ready(Err(error)) if error.is::<buttress_core::Rejected>() => {
                    refused += 1;
                }
                std::task::Poll::Ready(Err(_)) => failed += 1,
                std::task::Poll::Pending if polls == 0 => dropped += 1,
                std::task::Poll::Pending => kept.push((call, polls - 1)),
            }
        }
        running = kept;
        tokio::time::advance(ms(coin(&mut state) % 8)).await;
        let stats = shed.stats();
        assert!(stats.in_flight <= 4);
        assert_eq!(probe.in_flight(), stats.in_flight);
        assert_eq!(
            stats.arrived,
            stats.admitted
                + stats.overloaded
                + stats.expired
                + stats.abandoned
                + stats.waiting as u64
        );
    }
    dropped += running.len() as u64;
    drop(running);
    let stats = shed.stats();
    assert_eq!((stats.in_flight, stats.waiting, probe.in_flight()), (0, 0, 0));
    assert_eq!(stats.arrived, 10_000);
    assert_eq!(answered + failed + refused + dropped, 10_000);
    assert_eq!(stats.finished, answered + failed);
    assert_eq!(stats.overloaded + stats.expired, refused);
    assert_eq!(stats.dropped + stats.abandoned, dropped);
    let kinds = [answered, failed, refused, stats.dropped, stats.abandoned];
    assert!(kinds.iter().all(|n| *n > 100), "each kind of end is tried: {kinds:?}");
}
