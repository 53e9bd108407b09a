//! Each check catches a layer that is broken in just its way, and passes one that is not.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use buttress_core::{BoxError, Reason, Rejected};
use buttress_test::*;
use tower::{Layer, Service, ServiceExt, layer::layer_fn, limit::GlobalConcurrencyLimitLayer};

type Inner = Probe<u32, u32>;

/// A limit of sixteen that is right, but for the one fault that is planted in it.
#[derive(Clone)]
struct Limit {
    fault: Fault,
    used: Arc<AtomicUsize>,
}

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    CallsAFreshClone,
    CallsTwiceForOneReadiness,
    ReservesInReadiness,
    RefusesInReadiness,
    IsPendingWhenFull,
    HidesReadinessErrors,
    GivesBackOnlyAtTheEnd,
    LeavesTheInnerFutureRunning,
    SwallowsPanics,
    DiesOfPanics,
    HasStateOfItsOwn,
}

struct Limited<S> {
    inner: S,
    limit: Limit,
    reserved: Option<Slot>,
    is_dead: bool,
}

struct Slot {
    used: Arc<AtomicUsize>,
    leaks: bool,
}

const PLACES: usize = 16;

impl Limit {
    fn subject(fault: Fault) -> Subject<Self> {
        let used = Arc::new(AtomicUsize::new(0));
        Subject::new(Self { fault, used: used.clone() }, move || used.load(Relaxed))
    }

    fn slot(&self) -> Result<Slot, Rejected> {
        let leaks = self.fault == Fault::GivesBackOnlyAtTheEnd;
        self.used
            .fetch_update(Relaxed, Relaxed, |n| (n < PLACES).then_some(n + 1))
            .map(|_| Slot { used: self.used.clone(), leaks })
            .map_err(|_| Rejected::new(Reason::BulkheadFull, "limit"))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.leaks {
            self.used.fetch_sub(1, Relaxed);
        }
    }
}

impl<S> Layer<S> for Limit {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        let mut limit = self.clone();
        if limit.fault == Fault::HasStateOfItsOwn {
            limit.used = Arc::default();
        }
        Limited { inner, limit, reserved: None, is_dead: false }
    }
}

impl<S: Clone> Clone for Limited<S> {
    fn clone(&self) -> Self {
        let (inner, limit) = (self.inner.clone(), self.limit.clone());
        Self { inner, limit, reserved: None, is_dead: self.is_dead }
    }
}

impl Service<u32> for Limited<Inner> {
    type Response = u32;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<u32, BoxError>>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        let full = self.limit.used.load(Relaxed) >= PLACES;
        match self.limit.fault {
            Fault::ReservesInReadiness => self.reserved = self.limit.slot().ok(),
            Fault::RefusesInReadiness if full => {
                return Poll::Ready(Err(Rejected::new(Reason::BulkheadFull, "limit").into()));
            }
            Fault::IsPendingWhenFull if full => return Poll::Pending,
            _ => {}
        }
        match self.inner.poll_ready(cx) {
            Poll::Ready(Err(_)) if self.limit.fault == Fault::HidesReadinessErrors => Poll::Pending,
            polled => polled,
        }
    }

    fn call(&mut self, request: u32) -> Self::Future {
        let slot = match self.reserved.take().map_or_else(|| self.limit.slot(), Ok) {
            Ok(slot) => slot,
            Err(refused) => return Box::pin(async move { Err(refused.into()) }),
        };
        if self.is_dead {
            panic!("it died of a panic");
        }
        self.is_dead = self.limit.fault == Fault::DiesOfPanics;
        let call = match self.limit.fault {
            Fault::CallsAFreshClone => self.inner.clone().call(request),
            Fault::CallsTwiceForOneReadiness => {
                drop(self.inner.call(request));
                self.inner.call(request)
            }
            _ => self.inner.call(request),
        };
        self.is_dead = false;
        let fault = self.limit.fault;
        Box::pin(async move {
            let mut slot = slot;
            let result = match fault {
                Fault::LeavesTheInnerFutureRunning => {
                    let call = std::mem::ManuallyDrop::new(Box::pin(call));
                    poll_forgotten(call).await
                }
                Fault::SwallowsPanics => {
                    use std::panic::{AssertUnwindSafe, catch_unwind};
                    let mut call = Box::pin(call);
                    std::future::poll_fn(|cx| {
                        catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(cx)))
                            .unwrap_or(Poll::Ready(Err("it went wrong".into())))
                    })
                    .await
                }
                _ => call.await,
            };
            slot.leaks = false;
            result
        })
    }
}

/// Polls what is never dropped, as a task that was spawned would not be.
async fn poll_forgotten<F: Future>(mut call: std::mem::ManuallyDrop<Pin<Box<F>>>) -> F::Output {
    let output = std::future::poll_fn(|cx| call.as_mut().poll(cx)).await;
    drop(std::mem::ManuallyDrop::into_inner(call));
    output
}

fn outcome(rule: &str, fault: Fault) -> Result<(), Violation> {
    let (make, request) = (|| Limit::subject(fault), || 1);
    let response = || 2;
    match rule {
        "calls what was readied" => calls_what_was_readied(make, request, response),
        "readiness errors are final" => readiness_errors_are_final(make, request, response),
        "idle clones hold nothing" => idle_clones_hold_nothing(make, request, response),
        "dropped calls give all back" => dropped_calls_give_all_back(make, request, response),
        "panics give all back" => panics_give_all_back(make, request, response),
        "state is shared" => state_is_shared(make, request, response),
        _ => unreachable!("no such rule"),
    }
}

#[test]
fn every_check_catches_the_fault_that_it_is_for_and_nothing_else() {
    let table = [
        ("calls what was readied", Fault::CallsAFreshClone),
        ("calls what was readied", Fault::CallsTwiceForOneReadiness),
        ("readiness errors are final", Fault::RefusesInReadiness),
        ("readiness errors are final", Fault::IsPendingWhenFull),
        ("readiness errors are final", Fault::HidesReadinessErrors),
        ("idle clones hold nothing", Fault::ReservesInReadiness),
        ("dropped calls give all back", Fault::GivesBackOnlyAtTheEnd),
        ("dropped calls give all back", Fault::LeavesTheInnerFutureRunning),
        ("panics give all back", Fault::GivesBackOnlyAtTheEnd),
        ("panics give all back", Fault::SwallowsPanics),
        ("panics give all back", Fault::DiesOfPanics),
        ("state is shared", Fault::HasStateOfItsOwn),
    ];
    for (rule, fault) in table {
        let violation = outcome(rule, fault).expect_err(rule);
        assert_eq!(violation.rule(), rule, "{violation}");
        assert_eq!(outcome(rule, Fault::None), Ok(()));
    }
}

#[test]
fn a_layer_without_a_fault_keeps_the_contract() {
    contract(|| Limit::subject(Fault::None), || 1, || 2);
}

#[test]
fn towers_own_timeout_keeps_the_contract() {
    let layer = || tower::timeout::TimeoutLayer::new(Duration::from_secs(1));
    contract(|| Subject::stateless(layer()), || 1, || 2);
}

#[test]
fn towers_own_limit_hoards() {
    let make = || Subject::stateless(GlobalConcurrencyLimitLayer::new(16));
    let found = idle_clones_hold_nothing(make, || 1, || 2);
    assert_eq!(found.expect_err("sixteen idle clones hold all").rule(), "idle clones hold nothing");
}

#[tokio::test]
async fn a_probe_answers_by_its_script() {
    let probe = layer_fn(|inner: Inner| inner).layer(Probe::new(|n| n + 1));
    probe.script([Act::Steps(2), Act::Fail("down".into())]);
    assert_eq!(probe.clone().oneshot(1).await.unwrap(), 2);
    assert_eq!(probe.clone().oneshot(1).await.unwrap_err().to_string(), "down");
    assert_eq!((probe.calls(), probe.in_flight(), probe.max_in_flight()), (2, 0, 1));
}
