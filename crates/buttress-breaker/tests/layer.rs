//! The layer: what it asks of the service beneath, and what it makes of its answers.

use std::{
    future::{Future, poll_fn},
    panic::AssertUnwindSafe,
    pin::pin,
    task::Poll,
    time::Duration,
};

use buttress_breaker::{
    Breaker, BreakerLayer, BreakerService, BreakerSettings, Breakers, ResponseFuture, Select, State,
};
use buttress_core::{
    BoxError, Class, Classify, Context, Deadline, Elapsed, ErrorsAsFailures, Limit, Observe,
    Permit, Reason, Rejected,
};
use buttress_test::{Act, Probe, Readiness, Subject, contract};
use futures_util::{FutureExt, future::join_all};
use tokio::time::{advance, sleep, timeout};
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok, task};
use tower::{Layer, Service, ServiceExt, buffer::Buffer, service_fn};
use tower_test::{assert_request_eq, mock};

const SECOND: Duration = Duration::from_secs(1);

type Echo = Probe<u32, u32>;
type Guarded<B = Breaker> = BreakerService<Echo, B>;

/// Opens at the first failure, for five seconds, and is closed by one probe.
fn touchy() -> Breaker {
    Breaker::new(settings()).unwrap()
}

fn settings() -> BreakerSettings {
    BreakerSettings::default().consecutive(1).open_jitter(0.0).probes(1)
}

/// A service that answers the request, before it the breaker.
fn echo(breaker: &Breaker) -> (Guarded, Echo) {
    let probe = Probe::new(|n| n);
    (BreakerLayer::new(breaker.clone()).layer(probe.clone()), probe)
}

fn poll_ready<S: Service<u32>>(service: &mut S) -> Poll<Result<(), S::Error>> {
    task::spawn(()).enter(|cx, _| service.poll_ready(cx))
}

async fn call<S: Service<u32>>(service: &mut S, request: u32) -> Result<S::Response, S::Error> {
    service.ready().await?.call(request).await
}

/// Whether the answer is the breaker's refusal, and is there in the first poll.
fn is_refusal<T>(answer: impl Future<Output = Result<T, BoxError>>) -> bool {
    let error = answer.now_or_never().expect("in the same poll").err().expect("refused");
    error.downcast_ref().map(Rejected::reason) == Some(Reason::CircuitOpen)
}

// === The contract ===

// BLK-09, BLK-11, BLK-12
#[test]
fn it_keeps_the_contract_whatever_the_state() {
    let never = BreakerSettings::default().min_calls(1_000_000);
    let subject = |breaker: Breaker| {
        let held = breaker.clone();
        Subject::new(BreakerLayer::new(breaker), move || held.stats().in_flight() as usize)
    };
    contract(|| subject(Breaker::new(never.clone()).unwrap()), || 1, || 1);

    // One that opens and closes all the time.
    let restless = || {
        let nervous = BreakerSettings::default().consecutive(1).open(3 * SECOND / 1000).probes(2);
        subject(Breaker::new(nervous).unwrap())
    };
    buttress_test::calls_what_was_readied(restless, || 1, || 1).unwrap();

    // And one by key, which cannot tell before there is a request.
    let keyed = || {
        let breakers = Breakers::new(never.clone(), |n: &u32| *n).unwrap();
        let held = breakers.clone();
        Subject::new(BreakerLayer::new(breakers), move || held.stats().in_flight() as usize)
    };
    contract(keyed, || 1, || 1);
}

// BLK-11
#[tokio::test(start_paused = true)]
async fn twenty_thousand_steps_through_open_and_closed_call_what_was_ready_and_nothing_else() {
    let mut state = 1_u64;
    let mut dice = move |n: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let breaker = touchy();
    let (service, probe) = echo(&breaker);
    let mut services = vec![(service, false)];
    let mut calls = Vec::new();
    let (mut refused, mut answered) = (0, 0);
    for _ in 0..20_000 {
        let n = dice(services.len() as u64) as usize;
        match dice(16) {
            0..=4 => {
                let (service, ready) = &mut services[n];
                *ready |= poll_ready(service).is_ready();
            }
            5..=8 if services[n].1 => {
                services[n].1 = false;
                calls.push(Box::pin(services[n].0.call(1)));
            }
            9 if services.len() < 8 => {
                let clone = services[n].0.clone();
                services.push((clone, false));
            }
            10 if services.len() > 1 => drop(services.swap_remove(n)),
            11 => breaker.force_open(),
            12 | 13 => breaker.reset(),
            14 => probe.set_readiness(match dice(2) {
                0 => Readiness::Ready,
                _ => Readiness::Pending,
            }),
            _ if calls.is_empty() => {}
            _ => match calls.swap_remove(dice(calls.len() as u64) as usize).now_or_never() {
                Some(Ok(_)) => answered += 1,
                Some(Err(_)) => refused += 1,
                None => unreachable!("it answers at once"),
            },
        }
    }
    assert_eq!(probe.violations(), 0);
    assert!(answered > 500 && refused > 500, "{answered} answered, {refused} refused");
    drop(calls);
    assert_eq!((breaker.stats().in_flight(), probe.in_flight()), (0, 0));
}

// BLK-11
#[tokio::test(start_paused = true)]
async fn what_a_buffer_beneath_made_ready_is_what_is_called() {
    let inner = Buffer::new(service_fn(|n: u32| async move { Ok::<_, BoxError>(n) }), 1);
    let mut service = BreakerLayer::new(touchy()).layer(inner);
    for n in 0..100 {
        let clone = service.clone();
        let answer = service.ready().await.unwrap().call(n);
        drop(clone);
        assert_eq!(answer.await.unwrap(), n);
    }
}

// BLK-12
#[tokio::test(start_paused = true)]
async fn a_hundred_refusals_leave_a_service_that_works() {
    let breaker = touchy();
    let (mut service, probe) = echo(&breaker);
    breaker.force_open();
    for n in 0..100 {
        assert_ready_ok!(poll_ready(&mut service), "never an error of readiness");
        assert!(is_refusal(service.call(n)));
    }
    breaker.reset();
    assert_eq!(call(&mut service, 7).await.unwrap(), 7);
    assert_eq!((probe.calls(), breaker.stats().rejected), (1, 100));
}

// BLK-12
#[tokio::test(start_paused = true)]
async fn an_inner_readiness_error_is_passed_on_and_stays() {
    let breaker = touchy();
    let (mut service, probe) = echo(&breaker);
    probe.set_readiness(Readiness::Failed);
    for _ in 0..3 {
        assert_ready_err!(poll_ready(&mut service));
    }
    assert_eq!((breaker.state(), breaker.stats().started), (State::Closed, 0));
}

// === Readiness of an open breaker ===

// CBK-09
#[tokio::test(start_paused = true)]
async fn an_open_breaker_answers_in_the_same_poll_and_touches_nothing() {
    let breaker = touchy();
    let (mut service, probe) = echo(&breaker);
    probe.set_readiness(Readiness::Pending);
    breaker.force_open();
    assert_ready_ok!(poll_ready(&mut service));
    assert!(is_refusal(service.call(1)));
    assert_eq!((probe.polled_ready(), probe.calls()), (0, 0));
}

// CBK-09
#[tokio::test(start_paused = true)]
async fn a_half_open_breaker_asks_the_inner_service_under_the_callers_limit() {
    let breaker = touchy();
    let (mut service, probe) = echo(&breaker);
    breaker.admit().unwrap().report(Class::Fatal);
    advance(5 * SECOND).await;
    probe.set_readiness(Readiness::Pending);
    assert!(timeout(SECOND, service.ready()).await.is_err());
    assert!(probe.polled_ready() > 0);
    let _probe = breaker.admit().expect("who waits for readiness holds no place");
}

// CBK-09
#[tokio::test(start_paused = true)]
async fn a_call_after_a_readiness_that_was_ours_alone_is_refused_even_if_it_is_time_by_then() {
    let breaker = touchy();
    let (mut service, probe) = echo(&breaker);
    breaker.admit().unwrap().report(Class::Fatal);
    assert_ready_ok!(poll_ready(&mut service));
    advance(5 * SECOND).await;
    assert_eq!(breaker.state(), State::HalfOpen);
    assert!(is_refusal(service.call(1)), "the inner service was never polled ready");
    assert_eq!((probe.polled_ready(), probe.calls(), breaker.stats().rejected), (0, 0, 1));
    assert_eq!(call(&mut service, 2).await.unwrap(), 2);
    assert_eq!(breaker.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_readiness_promised_tells_the_time_that_is_left_now() {
    let breaker = touchy();
    let (mut service, _probe) = echo(&breaker);
    breaker.admit().unwrap().report(Class::Fatal);
    let mut time_left = async |held: Duration| {
        advance(SECOND).await;
        assert_ready_ok!(poll_ready(&mut service));
        advance(held).await;
        let error = service.call(1).await.unwrap_err();
        error.downcast_ref().and_then(Rejected::retry_after)
    };
    assert_eq!(time_left(Duration::ZERO).await, Some(4 * SECOND));
    assert_eq!(time_left(SECOND).await, Some(2 * SECOND));
    assert_eq!(time_left(Duration::ZERO).await, Some(SECOND));
}

#[tokio::test(start_paused = true)]
async fn a_promise_to_refuse_holds_although_the_inner_service_is_asked_and_pending_since() {
    let breaker = touchy();
    let (mut service, probe) = echo(&breaker);
    breaker.force_open();
    assert_ready_ok!(poll_ready(&mut service));
    breaker.reset();
    probe.set_readiness(Readiness::Pending);
    assert_pending!(poll_ready(&mut service));
    assert!(is_refusal(service.call(1)));
    assert_eq!(probe.violations(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_clone_forgets_what_was_ready_and_what_was_promised() {
    let breaker = touchy();
    let (mut service, probe) = echo(&breaker);
    breaker.force_open();
    assert_ready_ok!(poll_ready(&mut service));
    let mut clone = service.clone();
    breaker.reset();
    assert_eq!(call(&mut clone, 1).await.unwrap(), 1);
    assert!(is_refusal(service.call(2)), "the promise stays with whom it was made to");
    assert_eq!(probe.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_inner_service_that_is_ready_stays_so_when_the_call_is_refused() {
    let breaker = touchy();
    let (mut service, probe) = echo(&breaker);
    assert_ready_ok!(poll_ready(&mut service));
    breaker.force_open();
    assert!(is_refusal(service.call(1)));
    // It is not asked while it is open, and is called right after.
    assert_ready_ok!(poll_ready(&mut service));
    assert_eq!(probe.polled_ready(), 1);
    breaker.reset();
    assert_eq!(service.call(2).await.unwrap(), 2);
    assert_eq!((probe.calls(), probe.violations()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_half_open_breaker_with_all_its_probes_lets_nobody_wait_for_readiness() {
    let breaker = touchy();
    let (mut service, probe) = echo(&breaker);
    breaker.admit().unwrap().report(Class::Fatal);
    advance(5 * SECOND).await;
    let _probing = breaker.admit().unwrap();
    probe.set_readiness(Readiness::Pending);
    assert_ready_ok!(poll_ready(&mut service));
    assert!(is_refusal(service.call(1)));
}

#[tokio::test(start_paused = true)]
async fn a_shadow_asks_the_inner_service_and_calls_it() {
    let breaker = Breaker::new(settings().shadow(true)).unwrap();
    let (mut service, _probe) = echo(&breaker);
    breaker.force_open();
    assert_eq!(call(&mut service, 1).await.unwrap(), 1);
    assert_eq!((breaker.stats().shadowed, breaker.stats().rejected), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn by_key_the_inner_service_is_asked_whoever_is_open() {
    let breakers = Breakers::new(settings(), |n: &u32| n % 2).unwrap();
    let probe = Probe::new(|n: u32| n);
    let mut service = BreakerLayer::new(breakers.clone()).layer(probe.clone());
    breakers.select(&1).force_open();
    assert_ready_ok!(poll_ready(&mut service));
    assert!(is_refusal(service.call(1)));
    assert_eq!(service.call(2).await.unwrap(), 2, "one that is well is not cut off by another");
    assert_eq!((probe.polled_ready(), probe.calls(), probe.violations()), (1, 1, 0));
}

// === What is learned ===

#[tokio::test(start_paused = true)]
async fn what_the_classifier_says_is_what_counts() {
    let breaker = touchy();
    let by_answer = |result: Result<&u32, &BoxError>| match result {
        Ok(0..400) => Class::Success,
        Ok(400..500) => Class::CallerError,
        _ => Class::Fatal,
    };
    let layer = BreakerLayer::new(breaker.clone()).classify(by_answer);
    let mut service = layer.layer(service_fn(|n: u32| async move { Ok::<_, BoxError>(n) }));
    for n in [200, 404] {
        assert_eq!(call(&mut service, n).await.unwrap(), n);
    }
    assert_eq!((breaker.stats().success, breaker.stats().neutral), (1, 1));
    assert_eq!(call(&mut service, 500).await.unwrap(), 500, "the answer itself is untouched");
    assert_eq!(breaker.state(), State::Open);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_from_beneath_says_nothing_and_an_attempt_that_timed_out_is_a_failure() {
    let breaker = touchy();
    let (inner, mut handle) = mock::pair::<&str, &str>();
    let mut service = mock::Spawn::new(BreakerLayer::new(breaker.clone()).layer(inner));
    for (error, state) in [
        (BoxError::from(Rejected::new(Reason::BulkheadFull, "bulkhead")), State::Closed),
        (BoxError::from(Elapsed::new(Limit::Attempt, SECOND)), State::Open),
    ] {
        handle.allow(1);
        assert_ready_ok!(service.poll_ready());
        let mut answer = task::spawn(service.call("hello"));
        assert_pending!(answer.poll());
        assert_request_eq!(handle, "hello").send_error(error);
        assert_ready_err!(answer.poll());
        assert_eq!(breaker.state(), state);
    }
    assert_eq!((breaker.stats().neutral, breaker.stats().failure), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn the_answer_gives_the_place_back_and_not_the_end_of_the_future() {
    let breaker = touchy();
    let (mut service, _probe) = echo(&breaker);
    let mut answer = task::spawn(service.ready().await.unwrap().call(1));
    assert_eq!(breaker.stats().in_flight(), 1);
    assert_ready_ok!(answer.poll());
    assert_eq!((breaker.stats().in_flight(), breaker.stats().success), (0, 1));
    drop(answer);
    assert_eq!(breaker.stats().ended(), 1);
}

#[tokio::test(start_paused = true)]
async fn slow_answers_open_it() {
    let settings = BreakerSettings::default().min_calls(5).slow_call(SECOND);
    let breaker = Breaker::new(settings).unwrap();
    let (mut service, probe) = echo(&breaker);
    probe.script((0..5).map(|_| Act::Delay(SECOND)));
    let answers: Vec<_> = join_all((0..5).map(|n| {
        let mut service = service.clone();
        async move { call(&mut service, n).await.unwrap() }
    }))
    .await;
    assert_eq!(answers, [0, 1, 2, 3, 4]);
    assert_eq!((breaker.stats().slow, breaker.state()), (5, State::Open));
    assert!(is_refusal(service.call(1)));
}

/// Observes when its response is dropped or asked, as one to the end of a body does.
#[derive(Clone)]
struct AtEnd;

struct Body<P>(Option<P>);

impl<P: Permit> Body<P> {
    fn end(&mut self) {
        self.0.take().unwrap().report(Class::Success);
    }
}

impl Observe<u32> for AtEnd {
    type Response<P: Permit> = Body<P>;

    fn observe<P: Permit>(
        &self,
        result: Result<u32, BoxError>,
        permit: P,
    ) -> Result<Body<P>, BoxError> {
        let class = match &result {
            Ok(_) => return Ok(Body(Some(permit))),
            Err(error) => buttress_core::judge(&ErrorsAsFailures, Err::<&u32, _>(error)),
        };
        permit.report(class);
        Err(result.unwrap_err())
    }
}

#[tokio::test(start_paused = true)]
async fn the_permit_may_go_on_with_the_response() {
    let breaker = touchy();
    let probe = Probe::new(|n: u32| n);
    let mut service = BreakerLayer::new(breaker.clone()).classify(AtEnd).layer(probe);
    let mut body = call(&mut service, 1).await.unwrap();
    assert_eq!((breaker.stats().in_flight(), breaker.stats().success), (1, 0));
    body.end();
    assert_eq!((breaker.stats().in_flight(), breaker.stats().success), (0, 1));
    drop(call(&mut service, 1).await.unwrap());
    assert_eq!(breaker.stats().dropped, 1);
}

// === Walking away ===

// CBK-04, OPS-02
#[tokio::test(start_paused = true)]
async fn dropped_at_any_poll_it_gives_all_back_and_says_nothing() {
    for polls in 0..6 {
        let breaker = touchy();
        let (mut service, probe) = echo(&breaker);
        probe.script([Act::Steps(5)]);
        let mut answer = task::spawn(service.ready().await.unwrap().call(1));
        for _ in 0..polls {
            assert_pending!(answer.poll());
        }
        assert_eq!(breaker.stats().in_flight(), 1);
        drop(answer);
        let stats = breaker.stats();
        assert_eq!((stats.dropped, stats.in_flight(), probe.in_flight()), (1, 0, 0));
        assert_eq!((breaker.state(), stats.window.calls), (State::Closed, 0));
    }
}

// CBK-04
#[tokio::test(start_paused = true)]
async fn a_probe_that_is_dropped_makes_room_for_the_next() {
    let breaker = touchy();
    let (mut service, probe) = echo(&breaker);
    breaker.admit().unwrap().report(Class::Fatal);
    advance(5 * SECOND).await;
    probe.script([Act::Hang]);
    let hung = service.ready().await.unwrap().call(1);
    assert!(timeout(SECOND, hung).await.is_err());
    assert_eq!(call(&mut service, 2).await.unwrap(), 2);
    assert_eq!(breaker.state(), State::Closed);
}

// CBK-04
#[tokio::test(start_paused = true)]
async fn callers_whose_deadline_passes_cut_off_a_callee_that_hangs() {
    let breaker = Breaker::new(BreakerSettings::default().min_calls(5)).unwrap();
    let (service, probe) = echo(&breaker);
    probe.script((0..5).map(|_| Act::Hang));
    for n in 0..5 {
        let mut service = service.clone();
        let within = Context::default().with_deadline(Deadline::after(SECOND));
        let request = within.scope(async move { call(&mut service, n).await });
        assert!(timeout(SECOND, request).await.is_err());
    }
    assert_eq!((breaker.stats().abandoned, breaker.state()), (5, State::Open));
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_is_first_seen_when_the_answer_is_polled_counts_too() {
    // A buffer calls where no request is, and its callers poll.
    let breaker = touchy();
    let (mut service, probe) = echo(&breaker);
    probe.script([Act::Hang, Act::Hang]);
    let within = Context::default().with_deadline(Deadline::after(SECOND));
    let answer = service.ready().await.unwrap().call(1);
    assert!(timeout(SECOND, within.scope(answer)).await.is_err());
    assert_eq!((breaker.stats().abandoned, breaker.state()), (1, State::Open));

    breaker.reset();
    let answer = service.ready().await.unwrap().call(1);
    assert!(timeout(SECOND, answer).await.is_err(), "and without one it was a caller's whim");
    assert_eq!((breaker.stats().dropped, breaker.state()), (1, State::Closed));
}

// OPS-02
#[tokio::test(start_paused = true)]
async fn ten_thousand_calls_that_are_dropped_anywhere_are_all_accounted_for() {
    let breaker = Breaker::new(BreakerSettings::default().slow_call(SECOND)).unwrap();
    let (mut service, probe) = echo(&breaker);
    let mut answered = 0;
    for n in 0..10_000_u32 {
        probe.script([match n % 5 {
            0 => Act::Answer,
            1 => Act::Fail("planted".into()),
            2 => Act::Steps(n % 7),
            3 => Act::Delay(Duration::from_millis((n % 13).into())),
            _ => Act::Hang,
        }]);
        let mut answer = task::spawn(service.ready().await.unwrap().call(n));
        for _ in 0..n % 4 {
            if answer.poll().is_ready() {
                answered += 1;
                break;
            }
            advance(Duration::from_millis(3)).await;
        }
    }
    let stats = breaker.stats();
    assert!(answered > 2_000, "{answered}");
    assert_eq!((stats.started + stats.rejected, stats.in_flight()), (10_000, 0));
    assert_eq!((stats.started, probe.in_flight()), (stats.ended(), 0));
}

// === Panics ===

// BLK-09
#[tokio::test(start_paused = true)]
async fn a_hundred_panics_are_a_hundred_failures_and_the_next_call_works() {
    for panic in [|| Act::PanicInCall, || Act::PanicInPoll] {
        let settings = BreakerSettings::default().min_calls(1_000);
        let breaker = Breaker::new(settings).unwrap();
        let (mut service, probe) = echo(&breaker);
        probe.script((0..100).map(|_| panic()));
        for n in 0..100 {
            let mut service = service.clone();
            let spawned = tokio::spawn(async move { call(&mut service, n).await });
            assert!(spawned.await.unwrap_err().is_panic(), "the panic goes on");
        }
        let stats = breaker.stats();
        assert_eq!((stats.failure, stats.dropped, stats.in_flight()), (100, 0, 0));
        assert_eq!(stats.window.failures, 100);
        assert_eq!(call(&mut service, 7).await.unwrap(), 7);
    }
}

// BLK-09
#[tokio::test(start_paused = true)]
async fn a_probe_that_panics_opens_it_again() {
    let breaker = touchy();
    let (mut service, probe) = echo(&breaker);
    breaker.admit().unwrap().report(Class::Fatal);
    advance(5 * SECOND).await;
    probe.script([Act::PanicInPoll]);
    let answer = service.ready().await.unwrap().call(1);
    assert!(AssertUnwindSafe(answer).catch_unwind().await.is_err());
    assert_eq!((breaker.state(), breaker.stats().opened), (State::Open, 2));
}

#[tokio::test(start_paused = true)]
async fn a_panic_beside_a_call_says_nothing_of_the_callee() {
    let breaker = touchy();
    let (service, probe) = echo(&breaker);
    probe.script([Act::Hang]);
    let mut service_of_task = service.clone();
    let task = tokio::spawn(async move {
        tokio::join!(call(&mut service_of_task, 1), async {
            sleep(SECOND).await;
            panic!("planted: beside it");
        })
    });
    assert!(task.await.unwrap_err().is_panic());
    let stats = breaker.stats();
    assert_eq!((stats.dropped, stats.failure, stats.in_flight()), (1, 0, 0));
}

/// A classifier that cannot stand one answer.
#[derive(Clone)]
struct Picky;

impl Classify<u32> for Picky {
    fn classify(&self, result: Result<&u32, &BoxError>) -> Class {
        assert_ne!(result.ok(), Some(&13), "planted: in the classifier");
        Class::Success
    }
}

#[tokio::test(start_paused = true)]
async fn a_classifier_that_panics_takes_nothing_along() {
    let breaker = touchy();
    let probe = Probe::new(|n: u32| n);
    let mut service = BreakerLayer::new(breaker.clone()).classify(Picky).layer(probe);
    let unlucky = AssertUnwindSafe(call(&mut service, 13)).catch_unwind().await;
    assert!(unlucky.is_err());
    let stats = breaker.stats();
    assert_eq!((stats.dropped, stats.failure, stats.in_flight()), (1, 0, 0));
    assert_eq!(call(&mut service, 14).await.unwrap(), 14);
}

// === Many at once ===

// CBK-01
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_hundred_clones_at_a_barrier_three_get_through_when_half_open() {
    let settings = BreakerSettings::default()
        .consecutive(1)
        .probes(3)
        .open(Duration::from_nanos(1))
        .probe_lease(3_600 * SECOND);
    let breaker = Breaker::new(settings).unwrap();
    let (service, probe) = echo(&breaker);
    breaker.admit().unwrap().report(Class::Fatal);
    while breaker.state() != State::HalfOpen {
        std::thread::yield_now();
    }
    probe.script((0..100).map(|_| Act::Hang));
    let barrier = std::sync::Arc::new(tokio::sync::Barrier::new(100));
    let (done, mut results) = tokio::sync::mpsc::channel(100);
    let tasks: Vec<_> = (0..100)
        .map(|n| {
            let (mut service, barrier, done) = (service.clone(), barrier.clone(), done.clone());
            tokio::spawn(async move {
                barrier.wait().await;
                poll_fn(|cx| service.poll_ready(cx)).await.unwrap();
                let mut answer = pin!(service.call(n));
                let refused = matches!(futures_util::poll!(answer.as_mut()), Poll::Ready(Err(_)));
                done.send(refused).await.unwrap();
                if !refused {
                    let _ = answer.await;
                }
            })
        })
        .collect();
    let mut refused = 0;
    for _ in 0..100 {
        refused += usize::from(results.recv().await.unwrap());
    }
    assert_eq!((refused, probe.max_in_flight(), probe.calls()), (97, 3, 3));
    assert_eq!(breaker.stats().in_flight(), 3);
    for task in tasks {
        task.abort();
        let _ = task.await;
    }
    assert_eq!(breaker.stats().in_flight(), 0);
}

// BLK-01
#[tokio::test(start_paused = true)]
async fn a_layer_that_is_applied_many_times_shares_its_breaker() {
    let breaker = touchy();
    let layer = BreakerLayer::new(breaker.clone());
    let probe = Probe::new(|n: u32| n);
    probe.script([Act::Fail("planted".into())]);
    let mut services: Vec<_> = (0..100).map(|_| layer.layer(probe.clone())).collect();
    assert!(call(&mut services[0], 1).await.is_err());
    for service in &mut services {
        assert_ready_ok!(poll_ready(service));
        assert!(is_refusal(service.call(1)));
    }
}

// === Shapes ===

// HTP-08
#[test]
fn nothing_is_asked_of_the_inner_service_that_is_not_needed() {
    // Neither `Clone` nor `Send` nor `'static`: a service that borrows what is neither.
    let seen = std::cell::RefCell::new(Vec::new());
    let inner = service_fn(|n: u32| {
        seen.borrow_mut().push(n);
        let held = std::rc::Rc::new(n);
        async move { Ok::<_, std::io::Error>(*held) }
    });
    let mut service = BreakerLayer::new(Breaker::default()).layer(inner);
    assert_ready_ok!(poll_ready(&mut service));
    assert_eq!(service.call(7).now_or_never().unwrap().unwrap(), 7);
    drop(service);
    assert_eq!(seen.into_inner(), [7]);
}

#[test]
fn with_closures_in_it_it_still_shows_what_it_is() {
    let held = std::rc::Rc::new(7);
    let by_result = move |_: Result<&u32, &BoxError>| {
        assert_eq!(*held, 7);
        Class::Success
    };
    let breakers = Breakers::new(BreakerSettings::default(), |n: &u32| *n).unwrap();
    let layer = BreakerLayer::new(breakers.clone()).classify(by_result);
    let shown = format!("{layer:?}");
    assert!(shown.starts_with("BreakerLayer { breaker: Breakers { len: 0"), "{shown}");

    let mut service = layer.layer(Probe::new(|n: u32| n));
    let shown = format!("{service:?}");
    assert!(shown.starts_with("BreakerService { inner: Probe"), "{shown}");
    assert!(shown.contains("breaker: Breakers {"), "{shown}");
    assert!(shown.contains("readiness: Unknown"), "{shown}");

    assert_ready_ok!(poll_ready(&mut service));
    let shown = format!("{:?}", service.call(7));
    assert!(shown.starts_with("ResponseFuture { permit: Some(Admission {"), "{shown}");
    breakers.select(&7).force_open();
    let shown = format!("{:?}", service.call(7));
    assert!(shown.starts_with("ResponseFuture { rejected: Some(Rejected {"), "{shown}");

    // An inner future need not show itself.
    let mut service = BreakerLayer::new(Breaker::default())
        .layer(service_fn(|n: u32| async move { Ok::<_, BoxError>(n) }));
    assert_ready_ok!(poll_ready(&mut service));
    assert!(format!("{:?}", service.call(7)).starts_with("ResponseFuture { permit: Some("));
}

#[test]
fn sizes_are_known() {
    // Beside the inner service: the handle, and one byte for its readiness.
    assert_eq!(size_of::<BreakerService<(), Breaker>>(), 16);
    assert_eq!(size_of::<BreakerLayer<Breaker>>(), 8);
    // Beside the inner future: what an admission holds.
    let inner = size_of::<std::future::Ready<Result<u64, BoxError>>>();
    let outer =
        size_of::<ResponseFuture<std::future::Ready<Result<u64, BoxError>>, ErrorsAsFailures>>();
    assert!(outer - inner <= 64, "{outer} - {inner}");
}

// HTP-08
#[test]
fn a_service_of_it_has_a_name_and_goes_where_its_parts_go() {
    fn anywhere<T: Clone + Send + Sync + 'static>(_: &T) {}
    fn sent<S: Service<u32>>(_: &S)
    where
        S::Future: Send + 'static,
    {
    }
    type ByValue = fn(&u32) -> u32;
    struct App {
        client: BreakerService<Echo, Breakers<u32, ByValue>>,
    }
    let by_value: ByValue = |n| *n;
    let breakers = Breakers::new(BreakerSettings::default(), by_value).unwrap();
    let app = App { client: BreakerLayer::new(breakers).layer(Probe::new(|n| n)) };
    anywhere(&app.client);
    sent(&app.client);
}
