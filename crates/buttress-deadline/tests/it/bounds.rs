//! What the layers ask of a service, which is little, and what they take in memory.

use std::{
    cell::Cell,
    convert::Infallible,
    fmt,
    future::{Ready, pending, ready},
    io,
    marker::PhantomData,
    panic::{AssertUnwindSafe, catch_unwind},
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use buttress_core::{
    BoxError, Deadline,
    ready::{Call, Ready as Readied},
};
use buttress_deadline::{
    CallTimeout, DeadlineLayer, DeadlineService, EntryLayer, EntryService, TimeoutLayer,
    TimeoutService,
};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::support::{always, secs};

/// Neither `Clone` nor `Copy`.
struct Single;

impl Service<u32> for Single {
    type Response = u32;
    type Error = Infallible;
    type Future = Ready<Result<u32, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, n: u32) -> Self::Future {
        ready(Ok(n))
    }
}

// HTP-07
#[tokio::test(start_paused = true)]
async fn any_error_will_do_that_can_be_boxed() {
    #[derive(Debug)]
    struct Own;
    impl fmt::Display for Own {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("own")
        }
    }
    impl std::error::Error for Own {}

    /// Not an error, but can be made one.
    #[derive(Debug)]
    struct Plain;
    impl From<Plain> for BoxError {
        fn from(_: Plain) -> Self {
            "plain".into()
        }
    }

    async fn shown<E: Into<BoxError>>(fails: fn() -> E) -> [String; 3] {
        let service = service_fn(move |()| ready(Err::<(), E>(fails())));
        let deadline = DeadlineLayer::new(secs(1)).layer(service).oneshot(()).await;
        let timeout = TimeoutLayer::new(secs(1)).layer(service).oneshot(()).await;
        let call = TimeoutLayer::call_only(secs(1)).layer(service).oneshot(()).await;
        [deadline, timeout, call].map(|answer| answer.unwrap_err().to_string())
    }
    assert_eq!(shown(|| Own).await, ["own"; 3]);
    assert_eq!(shown(|| Plain).await, ["plain"; 3]);
    assert_eq!(shown(|| io::Error::other("io")).await, ["io"; 3]);
    assert_eq!(shown(|| BoxError::from("boxed")).await, ["boxed"; 3]);
    assert_eq!(shown(|| "text").await, ["text"; 3]);

    let cannot_fail = DeadlineLayer::new(secs(1)).layer(always(1)).oneshot(1).await;
    assert_eq!(cannot_fail.unwrap(), 1);
}

// HTP-07
#[tokio::test(start_paused = true)]
async fn entry_takes_errors_of_any_kind_and_leaves_them_as_they_are() {
    struct NoError;
    let service = service_fn(|()| ready(Err::<(), _>(NoError)));
    let Err(NoError) = EntryLayer::new(secs(1)).layer(service).oneshot(()).await else {
        panic!("it failed")
    };
}

// HTP-08
#[test]
fn services_and_futures_are_what_the_inner_ones_are() {
    fn all<T: Clone + Send + Sync + 'static>(_: &T) {}
    fn send<S: Service<u32, Future: Send>>(_: &S) {}
    let service = always(1);
    let deadline = DeadlineLayer::new(secs(1)).layer(service.clone());
    let timeout = TimeoutLayer::new(secs(1)).layer(service.clone());
    let call = TimeoutLayer::call_only(secs(1)).layer(service.clone());
    let entry = EntryLayer::new(secs(1)).layer(service);
    all(&deadline);
    all(&timeout);
    all(&call);
    all(&entry);
    send(&deadline);
    send(&timeout);
    send(&call);
    send(&entry);
}

// HTP-08
#[tokio::test(start_paused = true)]
async fn what_stays_on_one_thread_and_borrows_is_welcome() {
    let count = Rc::new(Cell::new(0));
    let request = String::from("borrowed");
    let counted = count.clone();
    let service = service_fn(move |text: &str| {
        let (counted, len) = (counted.clone(), text.len());
        async move {
            counted.set(counted.get() + len);
            Ok::<_, Infallible>(())
        }
    });
    DeadlineLayer::new(secs(1)).layer(service.clone()).oneshot(request.as_str()).await.unwrap();
    TimeoutLayer::new(secs(1)).layer(service.clone()).oneshot(request.as_str()).await.unwrap();
    TimeoutLayer::call_only(secs(1)).layer(service).oneshot(request.as_str()).await.unwrap();
    assert_eq!(count.get(), 24);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_cloned_can_be_limited_by_the_call() {
    let limited = TimeoutLayer::call_only(secs(1)).layer(Single);
    assert_eq!(EntryLayer::new(secs(1)).layer(limited).oneshot(3).await.unwrap(), 3);
}

#[test]
fn everything_can_be_shown() {
    let echo: Inner = service_fn(|n| ready(Ok(n)));
    let mut deadline = DeadlineLayer::new(secs(1)).layer(echo);
    let mut timeout = TimeoutLayer::new(secs(1)).layer(echo);
    let mut only = TimeoutLayer::call_only(secs(1)).layer(echo);
    assert!(format!("{deadline:?} {timeout:?} {only:?}").contains("1s"));
    let futures = format!("{:?} {:?} {:?}", deadline.call(1), timeout.call(1), only.call(1));
    assert_eq!(futures, "ResponseFuture { .. } ResponseFuture { .. } CallFuture { .. }");
}

/// Whether a type is `Copy`: then, and only then, the first method is there.
struct IsCopy<T>(PhantomData<T>);

impl<T: Copy> IsCopy<T> {
    fn answer(&self) -> bool {
        true
    }
}

trait Otherwise {
    fn answer(&self) -> bool {
        false
    }
}

impl<T> Otherwise for IsCopy<T> {}

#[test]
fn no_service_is_copied_in_silence_with_the_readiness_of_the_inner_one() {
    assert!(IsCopy::<Inner>(PhantomData).answer(), "the inner one is");
    assert!(!IsCopy::<EntryService<Inner>>(PhantomData).answer());
    assert!(!IsCopy::<CallTimeout<Inner>>(PhantomData).answer());
    assert!(!IsCopy::<DeadlineService<Inner>>(PhantomData).answer());
    assert!(!IsCopy::<TimeoutService<Inner>>(PhantomData).answer());
}

#[test]
fn outside_of_a_runtime_a_call_that_has_to_wait_for_a_bounded_time_panics_and_no_other_does() {
    fn panics<S: Service<u32>>(mut service: S) -> bool {
        let mut call = Box::pin(service.call(1));
        let poll = AssertUnwindSafe(|| call.as_mut().poll(&mut Context::from_waker(Waker::noop())));
        catch_unwind(poll).is_err()
    }
    let hangs = service_fn(|_: u32| pending::<Result<(), Infallible>>());
    for (limit, has_end) in [(secs(1), true), (Duration::MAX, false)] {
        assert_eq!(panics(DeadlineLayer::new(limit).layer(hangs)), has_end);
        assert_eq!(panics(TimeoutLayer::new(limit).layer(hangs)), has_end);
        assert_eq!(panics(TimeoutLayer::call_only(limit).layer(hangs)), has_end);
        assert!(!panics(EntryLayer::new(limit).layer(hangs)), "it arms nothing");
        assert!(!panics(TimeoutLayer::call_only(limit).layer(Single)), "it does not wait");
    }
}

type Inner = tower::util::ServiceFn<fn(u32) -> Ready<Result<u32, Infallible>>>;

/// Numbers to beat. Whoever makes one grow has seen it, and says why.
#[cfg(target_pointer_width = "64")]
#[test]
fn a_limit_costs_so_many_bytes() {
    type FutureOf<S> = <S as Service<u32>>::Future;
    const ALARM: usize = size_of::<buttress_core::timer::Alarm>();

    // The service: the limit, and a flag.
    assert!(size_of::<DeadlineService<Inner>>() <= size_of::<Readied<Inner>>() + 16);
    assert!(size_of::<TimeoutService<Inner>>() <= size_of::<Readied<Inner>>() + 16);
    assert!(size_of::<CallTimeout<Inner>>() <= size_of::<Inner>() + 16);
    assert!(size_of::<EntryService<Inner>>() <= size_of::<Inner>() + 24);

    // The future: the timer, start and end, whose limit it is.
    let call = size_of::<Call<Inner, u32>>();
    assert!(size_of::<FutureOf<DeadlineService<Inner>>>() <= call + ALARM + 40);
    assert!(size_of::<FutureOf<TimeoutService<Inner>>>() <= call + ALARM + 40);
    type Lent = TimeoutService<Inner, buttress_core::timer::RareAlarm>;
    assert!(size_of::<FutureOf<Lent>>() <= call + 8 + 40);
    let bare = size_of::<FutureOf<Inner>>();
    assert!(size_of::<FutureOf<CallTimeout<Inner>>>() <= bare + ALARM + 40);
    assert!(size_of::<FutureOf<EntryService<Inner>>>() <= bare + size_of::<Option<Deadline>>() + 8);
}
