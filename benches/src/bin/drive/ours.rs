//! Our layers, alone and stacked.

use std::{
    hash::{Hash, Hasher},
    mem,
    time::Duration,
};

use buttress::{
    Backoff, Breaker, BreakerLayer, BreakerSettings, Breakers, Budget, Bulkhead, BulkheadLayer,
    BulkheadSettings, Cause, DeadlineLayer, Elector, FallbackLayer, FixedLimit, KeyOf, Leadership,
    LeadershipLayer, LeaseConfig, LeaseName, RetryLayer, Shed, ShedLayer, ShedSettings, Standard,
    TimeoutLayer, Window,
    leadership::{LeaseClock, MemoryStore, Standing},
};
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    inner::{Answers, Counts, Does, Fails, Failure, Hangs, Waits, Works},
    path,
    subject::{
        End::{Answer, Refusal},
        OURS, Subject, full, open, runtime,
    },
    threads::pair,
};

const ATTEMPT: Duration = Duration::from_secs(10);
const TOTAL: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3600);

/// Whom requests are for, as the authority of a URI tells it.
const HOSTS: [&str; 4] =
    ["orders.internal:8080", "stock.internal:8080", "prices.internal:8080", "users.internal:8080"];

/// Keys requests by so many hosts in turn, and compares them where they lie.
#[derive(Clone, Copy)]
struct ByHost<const N: usize>;

/// Of the service inside.
const NOBODY: (&str, &str) = ("", "");

pub(crate) fn subjects() -> Vec<Subject> {
    let ours = |form| (OURS, form);
    let timeout = TimeoutLayer::new(ATTEMPT);
    let deadline = DeadlineLayer::new(TOTAL);
    let retry = RetryLayer::new(Backoff::default(), Budget::default());
    let fallback = FallbackLayer::respond_with(|_: &Cause<u64>| 0);

    let by_calls = last_calls();
    let by_time = BreakerSettings::default();
    let slow = BreakerSettings::default().slow_call(ATTEMPT / 2);
    let opens = by_calls.clone().open(HOUR).open_max(HOUR);

    let clock = LeaseClock::system();
    let (asked, entered) = (leads(), leads());
    let leadership = LeadershipLayer::new(leads());

    vec![
        Subject::new(path::BARE, NOBODY, Answer, || Answers),
        Subject::new(path::BARE_WAITS, NOBODY, Answer, || Waits),
        Subject::new(path::TIMEOUT, ours("attempt"), Answer, || timeout.layer(Answers)),
        Subject::new(path::TIMEOUT, ours("deadline"), Answer, || deadline.layer(Answers)),
        Subject::new(path::TIMEOUT_WAITS, ours("attempt"), Answer, || timeout.layer(Waits)),
        Subject::new(path::TIMEOUT_WAITS, ours("deadline"), Answer, || deadline.layer(Waits)),
        Subject::new(path::RETRY, ours(""), Answer, || retry.layer(Answers)),
        Subject::new(path::BREAKER, ours("last 100 calls"), Answer, || {
            breaker(by_calls).layer(Answers)
        }),
        Subject::new(path::BREAKER, ours("last 10 s"), Answer, || breaker(by_time).layer(Answers)),
        Subject::new(path::BREAKER, ours("last 10 s, slow calls"), Answer, || {
            breaker(slow).layer(Answers)
        }),
        Subject::new(path::BREAKER, ours("by key, one key"), Answer, || {
            by_host::<1>().layer(Answers)
        }),
        Subject::new(path::BREAKER, ours("by key, four in turn"), Answer, || {
            by_host::<4>().layer(Answers)
        }),
        Subject::new(path::OPEN, ours(""), Refusal, || open(breaker(opens).layer(Fails))),
        Subject::new(path::BULKHEAD, ours(""), Answer, || bulkhead(1000).layer(Answers)),
        Subject::new(path::FULL, ours(""), Refusal, || full(bulkhead(1).layer(Hangs))),
        Subject::new(path::SHED, ours(""), Answer, || shed(1000).layer(Answers)),
        Subject::new(path::SHEDDING, ours(""), Refusal, || full(shed(1).layer(Hangs))),
        Subject::new(path::FALLBACK, ours(""), Answer, || fallback.layer(Answers)),
        Subject::new(path::CLOCK, NOBODY, Answer, || Does(move |_| clock.now().as_nanos())),
        Subject::new(path::LEADS, ours(""), Answer, || {
            Does(move |_| asked.check().expect("it leads").get())
        }),
        Subject::new(path::ENTERS, ours(""), Answer, || {
            Does(move |_| entered.admit(TOTAL).expect("it leads").fence().get())
        }),
        Subject::new(path::LEADERSHIP, ours(""), Answer, || leadership.layer(Answers)),
        Subject::new(path::STACK, ours("six layers"), Answer, || stack(Answers)),
        Subject::new(path::STACK_WAITS, ours("six layers"), Answer, || stack(Waits)),
    ]
}

pub(crate) fn shared(inner: Works) -> Vec<[Subject; 2]> {
    vec![
        pair(NOBODY, &inner),
        pair(("", "one word that counts"), &Counts(inner)),
        pair((OURS, "breaker"), &breaker(last_calls()).layer(inner)),
        pair((OURS, "breaker by key, one key"), &by_host::<1>().layer(inner)),
        pair((OURS, "breaker by key, four in turn"), &by_host::<4>().layer(inner)),
        pair((OURS, "bulkhead"), &bulkhead(1000).layer(inner)),
        pair((OURS, "stack"), &stack(inner)),
    ]
}

fn last_calls() -> BreakerSettings {
    BreakerSettings::default().window(Window::calls(100))
}

fn breaker(settings: BreakerSettings) -> BreakerLayer<Breaker> {
    BreakerLayer::new(Breaker::new(settings).expect("the settings are sound"))
}

fn by_host<const N: usize>() -> BreakerLayer<Breakers<String, ByHost<N>>> {
    BreakerLayer::new(Breakers::new(last_calls(), ByHost).expect("the settings are sound"))
}

fn bulkhead(limit: usize) -> BulkheadLayer {
    BulkheadLayer::new(Bulkhead::new(BulkheadSettings::new(limit)).expect("there is room"))
}

fn shed(limit: usize) -> ShedLayer {
    let limit = FixedLimit::new(limit).expect("there is room");
    // Nobody waits: what finds no place is refused.
    let settings = ShedSettings::default().max_queue(0);
    ShedLayer::new(Shed::new(limit, settings).expect("the settings are sound"))
}

/// A process that leads. Its lease is so long that nothing else happens.
fn leads() -> Leadership {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    let name = LeaseName::new("benches").expect("it is a name");
    let config = LeaseConfig::new(name).lease_duration(DAY).renew_interval(DAY / 4);
    let elector = Elector::new(MemoryStore::new(), config).expect("the settings are sound");
    let leadership = elector.leadership();
    let runtime = runtime();
    runtime.block_on(async {
        mem::forget(elector.spawn());
        let leads = |standing: &Standing| standing.term.is_some();
        leadership.watch().wait_for(leads).await.expect("the elector runs");
    });
    // Dropped, it would end the term.
    mem::forget(runtime);
    leadership
}

/// All six, at the defaults of `Standard`, and a fallback.
pub(crate) fn stack<S>(
    inner: S,
) -> impl Service<u64, Response = u64, Future: Send> + Clone + Send + 'static
where
    S: Service<u64, Response = u64, Error = Failure, Future: Send> + Clone + Send + 'static,
{
    let stack = Standard::generic().fallback(|_: &Cause<u64>| 0).build();
    stack.expect("the defaults are sound").layer(inner)
}

// === impl ByHost ===

impl<const N: usize> ByHost<N> {
    fn host(request: u64) -> &'static str {
        HOSTS[..N][request as usize % N]
    }
}

impl<const N: usize> KeyOf<u64> for ByHost<N> {
    type Key = String;

    fn hash<H: Hasher>(&self, request: &u64, state: &mut H) {
        Self::host(*request).hash(state);
    }

    fn matches(&self, request: &u64, key: &String) -> bool {
        Self::host(*request) == key
    }

    fn key(&self, request: &u64) -> String {
        Self::host(*request).to_owned()
    }
}
