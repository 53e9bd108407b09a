//! When the fallback fails, or something panics, or nobody waits any longer.

use std::{
    cell::Cell,
    fmt,
    pin::pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use buttress_core::{Both, BoxError, Class, Rejected, find};
use buttress_fallback::{Cause, FailedResponse, FallbackLayer};
use buttress_test::{Act, Probe};
use tower::{Layer, Service, ServiceExt};

use crate::support::{ByStatus, OPEN, Page, failing, page, pages, panics, poll_once, secs};

#[derive(Clone, Copy, Debug, PartialEq)]
struct NoCopy;

impl fmt::Display for NoCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no copy of yesterday")
    }
}

impl std::error::Error for NoCopy {}

// FBK-01
#[tokio::test]
async fn a_fallback_that_fails_hides_neither_error() {
    let layer = FallbackLayer::try_respond_with(|_: &Cause<Page>| Err(NoCopy));
    let error = layer.layer(failing(OPEN)).oneshot(200).await.unwrap_err();
    assert_eq!(find(&*error), Some(&NoCopy));
    assert_eq!(find(&*error), Some(&OPEN));
    assert_eq!(error.to_string(), "no copy of yesterday (after: refused by breaker: circuit open)");
    assert!(!error.is::<Rejected>(), "something was asked in vain, so it is no mere refusal");
}

// FBK-01
#[tokio::test]
async fn where_a_response_was_to_be_replaced_the_error_says_what_it_was() {
    let layer = FallbackLayer::try_respond_with(|_: &Cause<Page>| Err(NoCopy)).classify(ByStatus);
    let error = layer.layer(pages()).oneshot(501).await.unwrap_err();
    assert_eq!(find(&*error), Some(&NoCopy));
    let response: &FailedResponse = find(&*error).unwrap();
    assert_eq!(response.class(), Class::Fatal);
    assert_eq!(error.to_string(), "no copy of yesterday (after: failed response: Fatal)");
}

// FBK-01
#[tokio::test]
async fn a_fallback_service_that_fails_hides_neither_error() {
    let other = failing(NoCopy);
    let layer = FallbackLayer::service(|_: &u16| 200, other);
    let error = layer.layer(failing(OPEN)).oneshot(200).await.unwrap_err();
    let both: &Both = error.downcast_ref().unwrap();
    assert!(both.error().is::<NoCopy>() && both.cause().is::<Rejected>());
}

// FBK-01
#[tokio::test]
async fn fallback_upon_fallback_keeps_every_error() {
    #[derive(Debug)]
    struct Worse;
    impl fmt::Display for Worse {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("worse")
        }
    }
    impl std::error::Error for Worse {}
    let inner = FallbackLayer::try_respond_with(|_: &Cause<Page>| Err(NoCopy));
    let outer = FallbackLayer::try_respond_with(|cause: &Cause<Page>| {
        assert_eq!(cause.class(), Class::Transient { after: None });
        Err(Worse)
    });
    let error = outer.layer(inner.layer(failing(OPEN))).oneshot(200).await.unwrap_err();
    assert!(find::<Worse>(&*error).is_some());
    assert!(find::<NoCopy>(&*error).is_some() && find::<Rejected>(&*error).is_some());
}

#[tokio::test]
async fn a_try_that_works_is_marked_like_any_answer() {
    let layer = FallbackLayer::try_respond_with(|_: &Cause<Page>| Ok::<_, NoCopy>(page(299)))
        .classify(ByStatus);
    let answer = layer.layer(failing(OPEN)).oneshot(200).await.unwrap();
    assert_eq!((answer.status, answer.mark.unwrap().class), (299, Class::Refused));
}

#[tokio::test]
async fn what_the_call_held_is_free_before_the_fallback_is_asked() {
    let probe = failing("down");
    let watched = probe.clone();
    let answers = move |_: &Cause<Page>| {
        assert_eq!(watched.in_flight(), 0);
        page(299)
    };
    let held = Rc::new(());
    let holds = held.clone();
    let service = tower::service_fn(move |n: u16| {
        let (probe, holds) = (probe.clone(), holds.clone());
        async move {
            let answer = probe.oneshot(n).await;
            drop(holds);
            answer
        }
    });
    let answer = FallbackLayer::respond_with(answers).layer(service).oneshot(200).await;
    assert_eq!(answer.unwrap().status, 299);
}

#[tokio::test]
async fn the_calls_future_is_gone_before_the_fallback_is_asked() {
    /// Ready at once, and knows when it is dropped.
    struct Watched(Arc<AtomicBool>);
    impl Future for Watched {
        type Output = Result<u32, BoxError>;
        fn poll(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Self::Output> {
            std::task::Poll::Ready(Err("down".into()))
        }
    }
    impl Drop for Watched {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }
    let gone = Arc::new(AtomicBool::new(false));
    let (asked, watched) = (gone.clone(), gone.clone());
    let service = tower::service_fn(move |()| Watched(watched.clone()));
    let answers = move |_: &Cause<u32>| u32::from(asked.load(Relaxed));
    let answer = FallbackLayer::respond_with(answers).layer(service).oneshot(()).await;
    assert_eq!(answer.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_response_that_is_replaced_is_gone_while_the_fallback_runs() {
    struct Held(Option<Arc<()>>);
    let connection = Arc::new(());
    let lent = connection.clone();
    let service = tower::service_fn(move |()| {
        std::future::ready(Ok::<_, BoxError>(Held(Some(lent.clone()))))
    });
    let other = Probe::new(|()| Held(None));
    other.script([Act::Delay(secs(1))]);
    let layer = FallbackLayer::service(|&()| (), other)
        .classify(|_: Result<&Held, &BoxError>| Class::Fatal);
    let mut call = pin!(layer.layer(service).oneshot(()));
    assert!(poll_once(call.as_mut()).await.is_pending());
    // The service is gone by now. What is left is the one here, and none in a response.
    assert_eq!(Arc::strong_count(&connection), 1);
    assert!(call.await.unwrap().0.is_none());
}

#[tokio::test]
async fn a_panic_anywhere_goes_up_and_takes_nothing_along() {
    type Stage = Rc<Cell<&'static str>>;
    let stage: Stage = Rc::new(Cell::new("none"));
    let at = |here: &'static str| {
        let stage = stage.clone();
        move || assert!(stage.get() != here, "planted: {here}")
    };
    let (keep, answer) = (at("keep"), at("answer"));
    let (classify, when) = (at("classify"), at("when"));
    let probe = pages();
    let mut service = FallbackLayer::keep(
        move |n: &u16| {
            keep();
            *n
        },
        move |n, _| {
            answer();
            page(n)
        },
    )
    .classify(move |_: Result<&Page, &BoxError>| {
        classify();
        Class::Fatal
    })
    .when(move |_| {
        when();
        true
    })
    .layer(probe.clone());

    for here in ["keep", "classify", "when", "answer"] {
        stage.set(here);
        // Where `keep` panics there is no future: the block makes it one.
        let mut call = pin!(async { service.ready().await.unwrap().call(299).await });
        assert!(panics(call.as_mut()).await, "{here}");
        assert_eq!(probe.in_flight(), 0);
    }
    assert_eq!(probe.calls(), 3, "what panics in `keep` is not sent");
    stage.set("none");
    assert_eq!(service.ready().await.unwrap().call(299).await.unwrap(), page(299));
    assert_eq!(probe.violations(), 0);
}

#[tokio::test]
async fn whoever_walks_away_takes_along_what_runs() {
    for polls in 0..8 {
        let (probe, other) = (pages(), pages());
        probe.script([Act::Steps(2)]);
        other.script([Act::Steps(2)]);
        let layer = FallbackLayer::service(|_: &u16| 299, other.clone()).classify(ByStatus);
        let mut service = layer.layer(probe.clone());
        let mut call = Box::pin(service.ready().await.unwrap().call(500));
        for polled in 0..polls {
            match poll_once(call.as_mut()).await {
                std::task::Poll::Ready(answer) => {
                    assert_eq!((answer.unwrap().status, polled), (299, 4));
                    break;
                }
                std::task::Poll::Pending => {}
            }
        }
        let expected = match polls {
            0..=2 => (1, 0),
            3..=4 => (0, 1),
            _ => (0, 0),
        };
        assert_eq!((probe.in_flight(), other.in_flight()), expected, "after {polls} polls");
        drop(call);
        assert_eq!((probe.in_flight(), other.in_flight()), (0, 0));
    }
}
