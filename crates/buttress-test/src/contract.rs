use std::{
    any::Any,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
    time::Duration,
};

use buttress_core::{BoxError, Elapsed, Rejected, find};
use tokio::time::advance;
use tower_layer::Layer;
use tower_service::Service;

use crate::{Act, Probe, Readiness};

/// A layer to be checked, and how to see what its handle gave away.
///
/// Each check makes one anew, so that no check inherits what another left behind.
pub struct Subject<L> {
    layer: L,
    held: Option<Box<dyn Fn() -> usize>>,
}

/// A rule that a layer broke, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    rule: &'static str,
    how: String,
}

/// What a check finds.
type Outcome = Result<(), Violation>;

/// Checks a layer for all of the contract.
///
/// `make` makes the subject anew for each check, with limits that let three calls run together;
/// `request` and `response` make what the inner service is called with and answers.
///
/// # Panics
///
/// If a rule is broken, naming every rule that is.
#[track_caller]
pub fn contract<L, Req, Res>(
    make: impl Fn() -> Subject<L>,
    request: impl Fn() -> Req,
    response: impl Fn() -> Res + Clone + Send + Sync + 'static,
) where
    L: Layer<Probe<Req, Res>>,
    L::Service: Service<Req, Error = BoxError> + Clone,
{
    let checks = [
        calls_what_was_readied(&make, &request, response.clone()),
        readiness_errors_are_final(&make, &request, response.clone()),
        idle_clones_hold_nothing(&make, &request, response.clone()),
        dropped_calls_give_all_back(&make, &request, response.clone()),
        panics_give_all_back(&make, &request, response.clone()),
        state_is_shared(&make, &request, response),
    ];
    let broken: Vec<String> =
        checks.into_iter().filter_map(Result::err).map(|v| v.to_string()).collect();
    assert!(broken.is_empty(), "the contract is broken:\n{}", broken.join("\n"));
}

/// Whatever is done with a service and its clones, the inner instance that is called is one that was
/// polled ready, and it is called once for that.
///
/// Ten thousand steps at random: ask for readiness, call, clone, drop, poll and abandon answers, while
/// the inner service's readiness comes and goes.
///
/// # Errors
///
/// How the rule was broken.
pub fn calls_what_was_readied<L, Req, Res>(
    make: impl Fn() -> Subject<L>,
    request: impl Fn() -> Req,
    response: impl Fn() -> Res + Clone + Send + Sync + 'static,
) -> Outcome
where
    L: Layer<Probe<Req, Res>>,
    L::Service: Service<Req, Error = BoxError> + Clone,
{
    const RULE: &str = "calls what was readied";
    paused(async {
        let subject = make();
        let probe = answering(&response);
        let mut dice = Dice(0x9E37_79B9_7F4A_7C15);
        let mut services = vec![(subject.layer.layer(probe.clone()), false)];
        let mut calls = Vec::new();
        for _ in 0..10_000 {
            probe.set_readiness(match dice.below(4) {
                0 => Readiness::Pending,
                _ => Readiness::Ready,
            });
            let chosen = dice.below(services.len());
            match dice.below(8) {
                0..=2 => {
                    let (service, readied) = &mut services[chosen];
                    let polled = catch(|cx| service.poll_ready(cx));
                    let polled = polled.map_err(|panic| broken(RULE, panic))?;
                    *readied = matches!(polled, Poll::Ready(Ok(()))) || *readied;
                }
                3..=4 => {
                    let (service, readied) = &mut services[chosen];
                    if std::mem::take(readied) {
                        let call = catch(|_| Box::pin(service.call(request())));
                        calls.push(call.map_err(|panic| broken(RULE, panic))?);
                    }
                }
                5 if services.len() < 8 => {
                    let clone = services[chosen].0.clone();
                    services.push((clone, false));
                }
                6 if services.len() > 1 => drop(services.swap_remove(chosen)),
                7 if !calls.is_empty() => {
                    let chosen = dice.below(calls.len());
                    let polled = catch(|cx| calls[chosen].as_mut().poll(cx));
                    let polled = polled.map_err(|panic| broken(RULE, panic))?;
                    if polled.is_ready() || dice.below(4) == 0 {
                        drop(calls.swap_remove(chosen));
                    }
                }
                _ => {}
            }
            advance(Duration::from_millis(1)).await;
        }
        match (probe.violations(), probe.calls()) {
            (0, 1..) => Ok(()),
            (0, 0) => Err(broken(RULE, "the inner service was never called".into())),
            (n, _) => Err(broken(RULE, format!("{n} calls without readiness"))),
        }
    })
}

/// An inner service that failed to become ready is reported as failed, and is not called. And a service
/// that is merely busy never says that it failed.
///
/// # Errors
///
/// How the rule was broken.
pub fn readiness_errors_are_final<L, Req, Res>(
    make: impl Fn() -> Subject<L>,
    request: impl Fn() -> Req,
    response: impl Fn() -> Res + Clone + Send + Sync + 'static,
) -> Outcome
where
    L: Layer<Probe<Req, Res>>,
    L::Service: Service<Req, Error = BoxError> + Clone,
{
    const RULE: &str = "readiness errors are final";
    paused(async {
        let probe = answering(&response);
        probe.set_readiness(Readiness::Failed);
        let mut service = make().layer.layer(probe.clone());
        for nth in ["first", "second"] {
            match catch(|cx| service.poll_ready(cx)) {
                Ok(Poll::Ready(Err(_))) => {}
                Ok(_) => return Err(broken(RULE, format!("the {nth} poll hid the inner error"))),
                Err(panic) => {
                    return Err(broken(RULE, format!("the {nth} poll panicked: {panic}")));
                }
            }
        }
        if probe.calls() > 0 {
            return Err(broken(RULE, "a service that failed was called".into()));
        }

        // As many calls as may be, and more: refusals come from `call`.
        let probe = answering(&response);
        probe.script((0..64).map(|_| Act::Hang));
        let mut service = make().layer.layer(probe);
        let mut calls = Vec::new();
        for _ in 0..64 {
            match catch(|cx| service.poll_ready(cx)) {
                Ok(Poll::Ready(Ok(()))) => {
                    let mut call = Box::pin(service.call(request()));
                    let _ = catch(|cx| call.as_mut().poll(cx));
                    calls.push(call);
                }
                Ok(Poll::Pending) => {
                    return Err(broken(RULE, "it is pending for a reason of its own".into()));
                }
                Ok(Poll::Ready(Err(error))) => {
                    let ours =
                        find::<Rejected>(&*error).is_some() || find::<Elapsed>(&*error).is_some();
                    let what = if ours { "a refusal" } else { "an error" };
                    return Err(broken(RULE, format!("{what} of its own, for good: {error}")));
                }
                Err(panic) => return Err(broken(RULE, panic)),
            }
        }
        Ok(())
    })
}

/// A hundred clones that are ready and idle hold nothing, and keep nobody from calling.
///
/// # Errors
///
/// How the rule was broken.
pub fn idle_clones_hold_nothing<L, Req, Res>(
    make: impl Fn() -> Subject<L>,
    request: impl Fn() -> Req,
    response: impl Fn() -> Res + Clone + Send + Sync + 'static,
) -> Outcome
where
    L: Layer<Probe<Req, Res>>,
    L::Service: Service<Req, Error = BoxError> + Clone,
{
    const RULE: &str = "idle clones hold nothing";
    paused(async {
        let subject = make();
        let service = subject.layer.layer(answering(&response));
        let mut idle: Vec<_> = (0..100).map(|_| service.clone()).collect();
        for clone in &mut idle {
            let _ = catch(|cx| clone.poll_ready(cx));
        }
        if subject.held() > 0 {
            return Err(broken(RULE, format!("{} are held by idle clones", subject.held())));
        }
        let mut caller = service.clone();
        match call(&mut caller, request()).await {
            Some(Ok(_)) => Ok(()),
            Some(Err(error)) => Err(broken(RULE, format!("a call beside them failed: {error}"))),
            None => Err(broken(RULE, "a call beside them never ends".into())),
        }
    })
}

/// A response future that is dropped at its k-th poll, for every k, gives back all that it held in that
/// instant, and drops the inner one.
///
/// # Errors
///
/// How the rule was broken.
pub fn dropped_calls_give_all_back<L, Req, Res>(
    make: impl Fn() -> Subject<L>,
    request: impl Fn() -> Req,
    response: impl Fn() -> Res + Clone + Send + Sync + 'static,
) -> Outcome
where
    L: Layer<Probe<Req, Res>>,
    L::Service: Service<Req, Error = BoxError> + Clone,
{
    const RULE: &str = "dropped calls give all back";
    let scripts: [fn() -> Vec<Act>; 4] = [
        || vec![Act::Steps(3)],
        || vec![Act::Delay(Duration::from_millis(5))],
        || vec![Act::Fail("planted".into()), Act::Steps(1)],
        || vec![Act::Hang],
    ];
    paused(async {
        for script in scripts {
            for ready_first in [true, false] {
                for polls in 0..12 {
                    let subject = make();
                    let probe = answering(&response);
                    probe.script(script());
                    if !ready_first {
                        probe.set_readiness(Readiness::Pending);
                    }
                    let mut service = subject.layer.layer(probe.clone());
                    let readied = catch(|cx| service.poll_ready(cx));
                    if !matches!(readied, Ok(Poll::Ready(Ok(())))) {
                        continue;
                    }
                    let mut call = Box::pin(service.call(request()));
                    for polled in 0..polls {
                        if polled == 2 {
                            probe.set_readiness(Readiness::Ready);
                        }
                        if matches!(catch(|cx| call.as_mut().poll(cx)), Ok(Poll::Ready(_))) {
                            break;
                        }
                        advance(Duration::from_millis(2)).await;
                    }
                    drop(call);
                    if (subject.held(), probe.in_flight()) != (0, 0) {
                        return Err(broken(
                            RULE,
                            format!(
                                "dropped after {polls} polls: {} held, {} in flight within",
                                subject.held(),
                                probe.in_flight()
                            ),
                        ));
                    }
                }
            }
        }
        Ok(())
    })
}

/// An inner service that panics, in `call` or when it is polled, takes nothing along, and the next call
/// works.
///
/// # Errors
///
/// How the rule was broken.
pub fn panics_give_all_back<L, Req, Res>(
    make: impl Fn() -> Subject<L>,
    request: impl Fn() -> Req,
    response: impl Fn() -> Res + Clone + Send + Sync + 'static,
) -> Outcome
where
    L: Layer<Probe<Req, Res>>,
    L::Service: Service<Req, Error = BoxError> + Clone,
{
    const RULE: &str = "panics give all back";
    quietly(|| {
        paused(async {
            for (act, place) in [(Act::PanicInCall, "call"), (Act::PanicInPoll, "poll")] {
                let subject = make();
                let probe = answering(&response);
                probe.script([act]);
                let mut service = subject.layer.layer(probe.clone());
                let _ = catch(|cx| service.poll_ready(cx));
                let mut panicked = false;
                match catch(|_| Box::pin(service.call(request()))) {
                    Err(_) => panicked = true,
                    Ok(mut call) => {
                        for _ in 0..8 {
                            match catch(|cx| call.as_mut().poll(cx)) {
                                Err(_) => panicked = true,
                                Ok(Poll::Ready(_)) => {}
                                Ok(Poll::Pending) => {
                                    advance(Duration::from_millis(1)).await;
                                    continue;
                                }
                            }
                            break;
                        }
                    }
                }
                if !panicked {
                    return Err(broken(RULE, format!("a panic in {place} was swallowed")));
                }
                if (subject.held(), probe.in_flight()) != (0, 0) {
                    let held = subject.held();
                    return Err(broken(RULE, format!("{held} held after a panic in {place}")));
                }
                match catch_call(&mut service.clone(), request()).await {
                    Ok(Some(Ok(_))) => {}
                    _ => {
                        let how = format!("no call works after a panic in {place}");
                        return Err(broken(RULE, how));
                    }
                }
            }
            Ok(())
        })
    })
}

/// A layer that is applied many times shares its state, and so do the services' clones.
///
/// # Errors
///
/// How the rule was broken. A [stateless](Subject::stateless) layer cannot break it.
pub fn state_is_shared<L, Req, Res>(
    make: impl Fn() -> Subject<L>,
    request: impl Fn() -> Req,
    response: impl Fn() -> Res + Clone + Send + Sync + 'static,
) -> Outcome
where
    L: Layer<Probe<Req, Res>>,
    L::Service: Service<Req, Error = BoxError> + Clone,
{
    const RULE: &str = "state is shared";
    paused(async {
        let subject = make();
        if subject.held.is_none() {
            return Ok(());
        }
        let probe = answering(&response);
        probe.script([Act::Hang, Act::Hang, Act::Hang]);
        let first = subject.layer.layer(probe.clone());
        let mut services = [first.clone(), first, subject.layer.layer(probe)];
        let mut calls = Vec::new();
        for service in &mut services {
            let _ = catch(|cx| service.poll_ready(cx));
            let mut call = Box::pin(service.call(request()));
            let _ = catch(|cx| call.as_mut().poll(cx));
            calls.push(call);
        }
        match subject.held() {
            3 => Ok(()),
            n => Err(broken(RULE, format!("three calls run, and the handle knows of {n}"))),
        }
    })
}

// === impl Subject ===

impl<L> Subject<L> {
    /// A layer with no state to share.
    pub fn stateless(layer: L) -> Self {
        Self { layer, held: None }
    }

    /// A layer, and how many calls its handle knows to be running.
    pub fn new(layer: L, held: impl Fn() -> usize + 'static) -> Self {
        Self { layer, held: Some(Box::new(held)) }
    }

    fn held(&self) -> usize {
        self.held.as_ref().map_or(0, |held| held())
    }
}

impl<L: fmt::Debug> fmt::Debug for Subject<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("layer", &self.layer)
            .field("held", &self.held())
            .finish_non_exhaustive()
    }
}

// === impl Violation ===

impl Violation {
    /// The rule, in words.
    #[must_use]
    pub const fn rule(&self) -> &'static str {
        self.rule
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.how)
    }
}

impl std::error::Error for Violation {}

fn broken(rule: &'static str, how: String) -> Violation {
    Violation { rule, how }
}

/// A probe that answers every request so.
fn answering<Req, Res>(
    response: &(impl Fn() -> Res + Clone + Send + Sync + 'static),
) -> Probe<Req, Res> {
    let response = response.clone();
    Probe::new(move |_| response())
}

/// Runs a check under a paused clock.
fn paused<T>(check: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime of one thread")
        .block_on(check)
}

/// One step with a waker that does nothing; a panic becomes its message.
fn catch<T>(step: impl FnOnce(&mut Context<'_>) -> T) -> Result<T, String> {
    let step = || step(&mut Context::from_waker(Waker::noop()));
    catch_unwind(AssertUnwindSafe(step)).map_err(|panic| message(&*panic).to_owned())
}

/// What a panic said.
fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref().copied()).unwrap_or("a panic")
}

/// A whole call. `None` if it does not end within a minute.
async fn call<S, Req>(service: &mut S, request: Req) -> Option<Result<S::Response, S::Error>>
where
    S: Service<Req>,
{
    let whole = async {
        std::future::poll_fn(|cx| service.poll_ready(cx)).await?;
        service.call(request).await
    };
    tokio::time::timeout(Duration::from_secs(60), whole).await.ok()
}

/// The same; a panic becomes its message.
async fn catch_call<S, Req>(
    service: &mut S,
    request: Req,
) -> Result<Option<Result<S::Response, S::Error>>, String>
where
    S: Service<Req>,
{
    let mut call = pin!(call(service, request));
    std::future::poll_fn(move |cx| {
        let poll = || Pin::as_mut(&mut call).poll(cx);
        match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(result)) => Poll::Ready(Ok(result)),
            Err(panic) => Poll::Ready(Err(message(&*panic).to_owned())),
        }
    })
    .await
}

/// Runs a check that panics on purpose. Planted panics say so, and stay out of the test's output.
fn quietly<T>(check: impl FnOnce() -> T) -> T {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let planted = message(info.payload()).starts_with("planted");
            if !planted {
                loud(info);
            }
        }));
    });
    check()
}

/// A small generator (xorshift64), so that a failure can be repeated.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % n as u64).expect("it is below a usize")
    }
}
