use std::{pin::Pin, task::Poll, time::Duration};

use buttress_core::{BoxError, Context, Deadline, Reason, Rejected, edge};
use buttress_shed::{Admit, FixedLimit, Permit, Priority, Shed, ShedSettings};

pub(crate) fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub(crate) fn with(limit: usize, settings: ShedSettings) -> Shed {
    Shed::new(FixedLimit::new(limit).unwrap(), settings).unwrap()
}

/// With the default settings: target 10 ms, interval 100 ms.
pub(crate) fn shed(limit: usize) -> Shed {
    with(limit, ShedSettings::default())
}

/// Arrives now, and waits.
pub(crate) fn wait(shed: &Shed, priority: Priority) -> Pin<Box<Admit>> {
    let mut admit = Box::pin(shed.admit(priority));
    assert!(peek(&mut admit).is_none(), "it was to wait");
    admit
}

/// Arrives with that time left, and waits.
pub(crate) fn wait_within(millis: u64, shed: &Shed, priority: Priority) -> Pin<Box<Admit>> {
    within(millis).within(|| wait(shed, priority))
}

/// What is known now of somebody who waits. Registers no waker of use.
pub(crate) fn peek(admit: &mut Pin<Box<Admit>>) -> Option<Result<Permit, Rejected>> {
    match admit.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        Poll::Ready(decided) => Some(decided),
        Poll::Pending => None,
    }
}

/// Takes as many places as there are.
pub(crate) fn fill(shed: &Shed) -> Vec<Permit> {
    (0..shed.limit()).map(|_| shed.try_admit(Priority::Critical).unwrap()).collect()
}

/// Makes a shed with one place that has been overloaded for a millisecond, by somebody whose deadline is
/// far, and who is refused in this instant. So the queue holds one waiter, who came last.
pub(crate) async fn overloaded() -> (Shed, Permit, Pin<Box<Admit>>) {
    let shed = with(1, ShedSettings::default().max_queue(3));
    let permit = shed.try_admit(Priority::Critical).unwrap();
    let first = wait(&shed, Priority::Critical);
    tokio::time::advance(ms(95)).await;
    let second = wait(&shed, Priority::Critical);
    tokio::time::advance(ms(6)).await;
    drop(first);
    assert!(shed.is_overloaded());
    (shed, permit, second)
}

/// A context in which `millis` are left.
pub(crate) fn within(millis: u64) -> Context {
    Context::default().with_deadline(Deadline::after(ms(millis)))
}

pub(crate) fn reason(error: &BoxError) -> Reason {
    let rejected = error.downcast_ref::<Rejected>().expect("it was to be refused");
    assert_eq!(rejected.layer(), "shed");
    rejected.reason()
}

/// Awaits, and tells after how long.
pub(crate) async fn timed<T>(future: impl Future<Output = T>) -> (T, Duration) {
    let start = edge::now();
    let output = tokio::time::timeout(Duration::from_secs(3_600), future).await;
    (output.expect("it never ends"), edge::now() - start)
}
