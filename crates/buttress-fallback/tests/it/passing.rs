//! What is answered by the fallback, and what passes.

use std::{
    cell::{Cell, RefCell},
    io,
    rc::Rc,
};

use buttress_core::{BoxError, Class, Classify, Mark, Reason, Rejected, Substitute};
use buttress_fallback::{Answer, Cause, FallbackLayer, NoFallback};
use buttress_test::{Act, Probe};
use tower::{Layer, Service, ServiceExt};

use crate::support::{ByStatus, LATE, OPEN, Page, failing, page, pages};

const TRANSIENT: Class = Class::Transient { after: None };

// FBK-01
#[tokio::test]
async fn by_default_it_answers_for_what_failed_and_never_for_the_callers_mistakes() {
    let mut service = FallbackLayer::value(|| page(299)).classify(ByStatus).layer(pages());
    for passes in [200, 204, 302, 400, 404, 410, 429] {
        let answer = service.ready().await.unwrap().call(passes).await;
        assert_eq!(answer.unwrap(), page(passes), "untouched");
    }
    for (replaced, class) in [(500, TRANSIENT), (501, Class::Fatal), (503, TRANSIENT)] {
        let answer = service.ready().await.unwrap().call(replaced).await;
        let mark = Some(Substitute::new(class, None));
        assert_eq!(answer.unwrap(), Page { status: 299, mark });
    }
}

#[tokio::test]
async fn it_answers_for_refusals_for_time_that_ran_out_and_for_what_was_not_reached() {
    let refused = Some(Reason::CircuitOpen);
    let errors: [(BoxError, Class, Option<Reason>); 4] = [
        (OPEN.into(), Class::Refused, refused),
        (LATE.into(), TRANSIENT, None),
        (LATE.unsent().into(), TRANSIENT, None),
        (io::Error::other(OPEN).into(), Class::Unreachable, None),
    ];
    for (error, class, reason) in errors {
        let service = FallbackLayer::value(|| page(299)).classify(ByStatus).layer(failing(error));
        let answer = service.oneshot(200).await.unwrap();
        assert_eq!(answer.mark, Some(Substitute::new(class, reason)));
    }
}

#[tokio::test]
async fn an_error_that_says_the_caller_was_wrong_passes() {
    for class in [Class::CallerError, Class::Success, Class::Throttled { after: None }] {
        let service = FallbackLayer::value(|| page(299))
            .classify(move |_: Result<&Page, &BoxError>| class)
            .layer(failing("yours"));
        assert_eq!(service.oneshot(200).await.unwrap_err().to_string(), "yours");
    }
}

// FBK-01
#[tokio::test]
async fn a_predicate_decides_instead_and_sees_the_cause() {
    let ours = |cause: &Cause<Page>| {
        matches!(
            cause.reason(),
            Some(Reason::CircuitOpen | Reason::BulkheadFull | Reason::DeadlineExceeded)
        )
    };
    let layer = FallbackLayer::value(|| page(299)).classify(ByStatus).when(ours);
    for passes in [404, 500] {
        assert_eq!(layer.layer(pages()).oneshot(passes).await.unwrap(), page(passes));
    }
    let error = layer.layer(failing("down")).oneshot(200).await.unwrap_err();
    assert_eq!(error.to_string(), "down");
    let draining = Rejected::new(Reason::Draining, "shed");
    assert!(layer.layer(failing(draining)).oneshot(200).await.is_err());
    let answer = layer.layer(failing(OPEN)).oneshot(200).await.unwrap();
    let why = Substitute::new(Class::Refused, Some(Reason::CircuitOpen));
    assert_eq!(answer, Page { status: 299, mark: Some(why) });
}

// FBK-01
#[tokio::test]
async fn a_predicate_may_look_into_the_response() {
    let empty = |cause: &Cause<Page>| cause.response().is_some_and(|page| page.status == 204);
    let layer = FallbackLayer::value(|| page(299)).classify(ByStatus).when(empty);
    assert_eq!(layer.layer(pages()).oneshot(204).await.unwrap().status, 299);
    assert_eq!(layer.layer(pages()).oneshot(500).await.unwrap(), page(500));
}

#[tokio::test]
async fn the_function_that_answers_sees_what_happened() {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let sees = {
        let seen = seen.clone();
        move |cause: &Cause<Page>| {
            let shown = cause.error().map(ToString::to_string);
            let status = cause.response().map(|page| page.status);
            seen.borrow_mut().push((cause.class(), cause.reason(), shown, status));
            page(299)
        }
    };
    let layer = FallbackLayer::respond_with(sees).classify(ByStatus);
    layer.layer(failing(OPEN)).oneshot(200).await.unwrap();
    layer.layer(pages()).oneshot(503).await.unwrap();
    assert_eq!(
        *seen.borrow(),
        [
            (Class::Refused, Some(Reason::CircuitOpen), Some(OPEN.to_string()), None),
            (TRANSIENT, None, None, Some(503)),
        ]
    );
}

#[tokio::test]
async fn what_was_kept_of_the_request_is_what_the_function_gets_and_nothing_else() {
    // The request cannot be cloned: nothing of it is copied unasked.
    struct Head {
        path: &'static str,
    }
    let kept = Rc::new(Cell::new(0));
    let counted = kept.clone();
    let layer = FallbackLayer::keep(
        move |head: &Head| {
            counted.set(counted.get() + 1);
            head.path
        },
        |path, cause| format!("{path}: {:?}", cause.class()),
    );
    let probe = Probe::new(|head: Head| format!("found {}", head.path));
    probe.script([Act::Answer, Act::Fail("down".into())]);
    let mut service = layer.layer(probe);
    let answer = service.ready().await.unwrap().call(Head { path: "/a" }).await;
    assert_eq!(answer.unwrap(), "found /a");
    let call = service.ready().await.unwrap().call(Head { path: "/b" });
    assert_eq!(kept.get(), 2, "when it enters, and once");
    assert_eq!(call.await.unwrap(), "/b: Transient { after: None }");
}

#[tokio::test]
async fn a_value_is_made_for_each_answer_and_only_for_answers() {
    struct NotClone(u32);
    let made = Rc::new(Cell::new(0));
    let counted = made.clone();
    let probe = Probe::new(|()| NotClone(0));
    probe.script([Act::Answer, Act::Fail("down".into()), Act::Fail("down".into())]);
    let mut service = FallbackLayer::value(move || {
        counted.set(counted.get() + 1);
        NotClone(counted.get())
    })
    .layer(probe);
    for (answer, makes) in [(0, 0), (1, 1), (2, 2)] {
        assert_eq!(service.ready().await.unwrap().call(()).await.unwrap().0, answer);
        assert_eq!(made.get(), makes);
    }
}

#[derive(Clone)]
struct Counts(Rc<Cell<u32>>);

impl<Res> Classify<Res> for Counts {
    fn classify(&self, _: Result<&Res, &BoxError>) -> Class {
        self.0.set(self.0.get() + 1);
        Class::Fatal
    }
}

impl<Res> Mark<Res> for Counts {
    fn mark(&self, _: &mut Res, _: Substitute) {
        self.0.set(self.0.get() + 100);
    }
}

#[tokio::test]
async fn without_a_fallback_everything_passes_and_nobody_is_asked() {
    let asked = Counts(Rc::default());
    let mut service = FallbackLayer::new(NoFallback).classify(asked.clone()).layer(failing(OPEN));
    let refused = service.ready().await.unwrap().call(200).await.unwrap_err();
    assert!(refused.is::<Rejected>(), "the very error");
    assert_eq!(service.ready().await.unwrap().call(500).await.unwrap(), page(500));
    assert_eq!(asked.0.get(), 0);
}

#[tokio::test]
async fn an_answer_of_ones_own_may_leave_some_requests_alone() {
    /// Answers for even requests only.
    #[derive(Clone)]
    struct Even;
    impl Answer<u16, Page> for Even {
        type Kept = ();
        type Future = std::future::Ready<Result<Page, BoxError>>;
        fn keep(&self, request: &u16) -> Option<()> {
            (request.is_multiple_of(2)).then_some(())
        }
        fn answer(&self, (): (), _: &Cause<Page>) -> Self::Future {
            std::future::ready(Ok(page(299)))
        }
    }
    let layer = FallbackLayer::new(Even).classify(ByStatus);
    assert_eq!(layer.layer(pages()).oneshot(500).await.unwrap().status, 299);
    assert_eq!(layer.layer(pages()).oneshot(501).await.unwrap(), page(501));
}

#[tokio::test]
async fn each_call_is_classified_once_and_each_answer_marked_once() {
    let asked = Counts(Rc::default());
    let layer = FallbackLayer::value(|| page(299)).classify(asked.clone());
    layer.layer(pages()).oneshot(200).await.unwrap();
    assert_eq!(asked.0.get(), 101);
}
