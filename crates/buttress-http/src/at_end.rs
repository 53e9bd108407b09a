use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use buttress_core::{BoxError, Class, Observe, Permit, Rejected};
use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::{CustomHttpClass, HttpClass, errors::class_of};

/// Observes a response to the end of its body.
///
/// A response whose head says 200 may still break off in its body; a breaker that reports at the head
/// counts that as a success, and a slot that is given back there lets more calls in than may run. This
/// moves the permit into the body.
///
/// The permit is reported
///
/// - at the head, if the head [decides](ClassifyEnd::head) or the body is empty;
/// - with the last frame, the trailers, the end or the error of the body, whichever comes first.
///   (A server stops reading at the last frame, and never sees the end.)
///
/// A body that is dropped unfinished drops its permit: nothing was learned. One that panics is a failure. So a
/// breaker hears the failures of callers who never read to the end, and none of their successes: it is not for
/// them.
///
/// # Examples
///
/// For a breaker, to count bodies that break off: `AtEnd(HttpClass)`. For a bulkhead, to hold the
/// slot until the body has ended: [`AtEnd(WholeBody)`](WholeBody).
///
/// ```
/// use buttress_core::{Class, Observe, Permit};
/// use buttress_http::{AtEnd, HttpClass};
/// use http_body_util::{BodyExt, Full};
///
/// struct Print;
/// impl Permit for Print {
///     fn report(self, class: Class) {
///         println!("{class:?}");
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), buttress_core::BoxError> {
/// let response = http::Response::new(Full::<bytes::Bytes>::from("hello"));
/// let response = AtEnd(HttpClass).observe(Ok(response), Print)?;
/// assert_eq!(response.into_body().collect().await?.to_bytes(), "hello"); // prints `Success`
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct AtEnd<C>(
    /// Judges head and end.
    pub C,
);

/// Judges a response at its head and, where the head does not decide, at the end of its body.
pub trait ClassifyEnd {
    /// What the head says, if it decides. A body that follows a failure changes nothing.
    fn head(&self, status: StatusCode, headers: &HeaderMap) -> Option<Class>;

    /// What the response says before its body is read, if that decides. It is [`head`](Self::head), but for who
    /// left a note in the extensions, as `GrpcHeadLayer` does.
    fn known<B>(&self, response: &Response<B>) -> Option<Class> {
        self.head(response.status(), response.headers())
    }

    /// What the end of a body says, with its trailers if it has any.
    fn end(&self, trailers: Option<&HeaderMap>) -> Class;

    /// What an error says that came instead of a response, or in the middle of its body.
    ///
    /// In the body, `Unreachable` and `Refused` are taken for `Transient`: the head had come, so the
    /// request was sent.
    fn error(&self, error: &BoxError) -> Class;
}

/// Holds a permit to the end of the body, whatever the status: for slots, to which it is all one how the
/// call went. An end is a `Success`, an error `Transient`.
#[derive(Clone, Copy, Debug, Default)]
pub struct WholeBody;

pin_project! {
    /// A body that carries a permit to its end. See [`AtEnd`].
    ///
    /// All else is as it was: length, frames, trailers. It can be made from bytes if the body in it
    /// can, and then carries nothing: so a fallback's answer fits.
    #[derive(Debug)]
    pub struct ReportBody<B, P, C> {
        // Dropped before the permit: a slot is free when the body has gone, not before.
        #[pin]
        body: B,
        promise: Option<Promise<P, C>>,
    }
}

#[derive(Debug)]
struct Promise<P, C> {
    permit: P,
    classify: C,
}

/// Reports a failure if it is dropped with the promise in it: while a panic unwinds.
struct OnPanic<P: Permit, C>(Option<Promise<P, C>>);

// === impl AtEnd ===

impl<C, B> Observe<Response<B>> for AtEnd<C>
where
    C: ClassifyEnd + Clone,
    B: Body,
{
    type Response<P: Permit> = Response<ReportBody<B, P, C>>;

    fn observe<P: Permit>(
        &self,
        result: Result<Response<B>, BoxError>,
        permit: P,
    ) -> Result<Self::Response<P>, BoxError> {
        let Self(classify) = self;
        let response = match result {
            Ok(response) => response,
            Err(error) => {
                // As `judge` has it: our own refusals are not the classifier's business.
                let ours = error.is::<Rejected>();
                permit.report(if ours { Class::Refused } else { classify.error(&error) });
                return Err(error);
            }
        };
        let empty = || response.body().is_end_stream().then(|| classify.end(None));
        let promise = match classify.known(&response).or_else(empty) {
            Some(class) => {
                permit.report(class);
                None
            }
            None => Some(Promise { permit, classify: classify.clone() }),
        };
        Ok(response.map(|body| ReportBody { body, promise }))
    }
}

// === impl ClassifyEnd ===

/// Failures are known at the head; a success is one only when its body has ended.
impl ClassifyEnd for HttpClass {
    fn head(&self, status: StatusCode, headers: &HeaderMap) -> Option<Class> {
        failure(Self::class_of_head(status, headers))
    }

    fn end(&self, _: Option<&HeaderMap>) -> Class {
        Class::Success
    }

    fn error(&self, error: &BoxError) -> Class {
        class_of(&**error)
    }
}

/// As [`HttpClass`] does, with its own table.
impl ClassifyEnd for CustomHttpClass {
    fn head(&self, status: StatusCode, headers: &HeaderMap) -> Option<Class> {
        failure(self.class_of_head(status, headers))
    }

    fn end(&self, trailers: Option<&HeaderMap>) -> Class {
        HttpClass.end(trailers)
    }

    fn error(&self, error: &BoxError) -> Class {
        HttpClass.error(error)
    }
}

fn failure(class: Class) -> Option<Class> {
    (class != Class::Success).then_some(class)
}

impl ClassifyEnd for WholeBody {
    fn head(&self, _: StatusCode, _: &HeaderMap) -> Option<Class> {
        None
    }

    fn end(&self, _: Option<&HeaderMap>) -> Class {
        Class::Success
    }

    fn error(&self, _: &BoxError) -> Class {
        Class::Transient { after: None }
    }
}

// === impl ReportBody ===

impl<B, P, C> ReportBody<B, P, C> {
    const fn of_our_own(body: B) -> Self {
        Self { body, promise: None }
    }
}

impl<B, P, C> Body for ReportBody<B, P, C>
where
    B: Body,
    B::Error: Into<BoxError>,
    P: Permit,
    C: ClassifyEnd,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let mut this = self.project();
        let mut on_panic = OnPanic(this.promise.take());
        let polled = this.body.as_mut().poll_frame(cx);
        *this.promise = on_panic.0.take();

        let frame = ready!(polled).map(|frame| frame.map_err(Into::into));
        let Some(promise) = this.promise else { return Poll::Ready(frame) };
        let classify = &promise.classify;
        let class = match &frame {
            None => Some(classify.end(None)),
            Some(Err(error)) => Some(sent(classify.error(error))),
            Some(Ok(frame)) => match frame.trailers_ref() {
                Some(trailers) => Some(classify.end(Some(trailers))),
                None => this.body.is_end_stream().then(|| classify.end(None)),
            },
        };
        if let Some(class) = class
            && let Some(Promise { permit, .. }) = this.promise.take()
        {
            permit.report(class);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// What an error of the body says: the head had come, so the request was sent.
const fn sent(class: Class) -> Class {
    match class {
        Class::Unreachable | Class::Refused => Class::Transient { after: None },
        class => class,
    }
}

impl<B: Default, P, C> Default for ReportBody<B, P, C> {
    fn default() -> Self {
        Self::of_our_own(B::default())
    }
}

impl<B: From<Bytes>, P, C> From<Bytes> for ReportBody<B, P, C> {
    fn from(bytes: Bytes) -> Self {
        Self::of_our_own(bytes.into())
    }
}

impl<B: From<&'static str>, P, C> From<&'static str> for ReportBody<B, P, C> {
    fn from(text: &'static str) -> Self {
        Self::of_our_own(text.into())
    }
}

impl<B: From<String>, P, C> From<String> for ReportBody<B, P, C> {
    fn from(text: String) -> Self {
        Self::of_our_own(text.into())
    }
}

// === impl OnPanic ===

impl<P: Permit, C> Drop for OnPanic<P, C> {
    fn drop(&mut self) {
        if let Some(Promise { permit, .. }) = self.0.take() {
            permit.report(Class::Transient { after: None });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, io, panic::AssertUnwindSafe, rc::Rc};

    use buttress_core::{Elapsed, Limit, Reason};
    use futures_util::FutureExt;
    use http_body_util::{BodyExt, Full};

    use super::*;
    use crate::testing::{
        Scripted, Step, assert_same, data, of_known_length, scripted, secs, trailers,
    };

    const TRANSIENT: Class = Class::Transient { after: None };

    /// Writes down what is reported; `None` is a permit that was dropped: nothing learned.
    #[derive(Clone, Debug, Default)]
    struct Book(Rc<RefCell<Vec<Option<Class>>>>);

    #[derive(Debug)]
    struct Slip {
        book: Book,
        reported: bool,
    }

    impl Book {
        fn slip(&self) -> Slip {
            Slip { book: self.clone(), reported: false }
        }

        fn entries(&self) -> Vec<Option<Class>> {
            self.0.borrow().clone()
        }
    }

    impl Permit for Slip {
        fn report(mut self, class: Class) {
            self.reported = true;
            self.book.0.borrow_mut().push(Some(class));
        }
    }

    impl Drop for Slip {
        fn drop(&mut self) {
            if !self.reported {
                self.book.0.borrow_mut().push(None);
            }
        }
    }

    type Carrying<C> = Pin<Box<ReportBody<Scripted, Slip, C>>>;

    fn answer<B>(status: u16, body: B) -> Result<Response<B>, BoxError> {
        Ok(Response::builder().status(status).body(body).unwrap())
    }

    /// Observes an answer with that body. What is in the book at the head, and the body to read on.
    fn observed<C: ClassifyEnd + Clone>(
        classify: C,
        status: u16,
        body: Scripted,
    ) -> (Book, Vec<Option<Class>>, Carrying<C>) {
        let book = Book::default();
        let response = AtEnd(classify).observe(answer(status, body), book.slip()).unwrap();
        let at_head = book.entries();
        (book, at_head, Box::pin(response.into_body()))
    }

    #[tokio::test]
    async fn a_body_that_ends_well_is_a_success_and_not_before() {
        let (book, at_head, mut body) = observed(HttpClass, 200, scripted([data("x"), data("y")]));
        assert!(at_head.is_empty());
        for _ in 0..2 {
            assert!(body.frame().await.unwrap().is_ok());
            assert!(book.entries().is_empty(), "there may be more");
        }
        assert!(body.frame().await.is_none());
        assert_eq!(book.entries(), [Some(Class::Success)]);
        assert!(body.frame().await.is_none());
        drop(body);
        assert_eq!(book.entries(), [Some(Class::Success)], "once is enough");
    }

    #[tokio::test]
    async fn the_last_frame_of_a_body_that_knows_its_end_is_the_end() {
        let (book, _, mut body) = observed(HttpClass, 200, of_known_length([data("x"), data("y")]));
        assert!(body.frame().await.is_some());
        assert!(book.entries().is_empty());
        assert!(body.frame().await.is_some());
        assert_eq!(book.entries(), [Some(Class::Success)], "a server does not ask again");
    }

    #[tokio::test]
    async fn a_failure_is_known_at_the_head() {
        for (status, class) in
            [(500, TRANSIENT), (404, Class::CallerError), (429, Class::Throttled { after: None })]
        {
            let (book, at_head, body) = observed(HttpClass, status, scripted([Step::Never]));
            assert_eq!(at_head, [Some(class)]);
            drop(body);
            assert_eq!(book.entries(), [Some(class)]);
        }
    }

    #[tokio::test]
    async fn an_empty_body_has_ended_at_the_head() {
        let (_, at_head, _) = observed(HttpClass, 200, of_known_length([]));
        assert_eq!(at_head, [Some(Class::Success)]);
    }

    #[tokio::test]
    async fn a_body_that_breaks_off_is_a_failure_of_the_callee() {
        let (book, _, mut body) =
            observed(HttpClass, 200, scripted([data("x"), Step::Error("reset")]));
        assert!(body.frame().await.unwrap().is_ok());
        assert_eq!(body.frame().await.unwrap().unwrap_err().to_string(), "reset");
        assert_eq!(book.entries(), [Some(TRANSIENT)]);
    }

    #[tokio::test]
    async fn a_body_that_is_dropped_unfinished_teaches_nothing() {
        let (book, _, mut body) = observed(HttpClass, 200, scripted([data("x"), Step::Never]));
        assert!(body.frame().await.is_some());
        assert!(body.frame().now_or_never().is_none());
        drop(body);
        assert_eq!(book.entries(), [None]);
    }

    #[tokio::test]
    async fn a_body_that_panics_is_a_failure() {
        let (book, _, mut body) = observed(HttpClass, 200, scripted([Step::Panic]));
        assert!(AssertUnwindSafe(body.frame()).catch_unwind().await.is_err());
        assert_eq!(book.entries(), [Some(TRANSIENT)]);
        drop(body);
        assert_eq!(book.entries(), [Some(TRANSIENT)]);
    }

    /// Finds its verdict in the trailers, as gRPC does.
    #[derive(Clone, Copy, Debug)]
    struct Trailer;

    impl ClassifyEnd for Trailer {
        fn head(&self, _: StatusCode, headers: &HeaderMap) -> Option<Class> {
            headers.contains_key("verdict").then_some(Class::Fatal)
        }

        fn end(&self, trailers: Option<&HeaderMap>) -> Class {
            match trailers.and_then(|trailers| trailers.get("verdict")) {
                Some(verdict) if verdict == "well" => Class::Success,
                Some(_) => Class::CallerError,
                None => Class::Fatal,
            }
        }

        fn error(&self, _: &BoxError) -> Class {
            Class::Unreachable
        }
    }

    #[tokio::test]
    async fn trailers_have_the_last_word() {
        for (verdict, class) in [("well", Class::Success), ("ill", Class::CallerError)] {
            let (book, _, mut body) =
                observed(Trailer, 200, scripted([data("x"), trailers("verdict", verdict)]));
            assert!(body.frame().await.is_some());
            assert!(book.entries().is_empty());
            assert!(body.frame().await.is_some());
            assert_eq!(book.entries(), [Some(class)], "with the trailers, not after");
        }
        let (book, _, body) = observed(Trailer, 200, scripted([data("x")]));
        body.collect().await.unwrap();
        assert_eq!(book.entries(), [Some(Class::Fatal)], "trailers that never came");
    }

    #[tokio::test]
    async fn an_error_in_the_body_never_says_that_nothing_was_sent() {
        let (book, _, mut body) = observed(Trailer, 200, scripted([Step::Error("refused")]));
        assert!(body.frame().await.unwrap().is_err());
        assert_eq!(book.entries(), [Some(TRANSIENT)]);
    }

    fn failed(error: impl Into<BoxError>) -> Vec<Option<Class>> {
        let book = Book::default();
        let failed: Result<Response<Scripted>, _> = Err(error.into());
        assert!(AtEnd(HttpClass).observe(failed, book.slip()).is_err());
        book.entries()
    }

    #[test]
    fn an_error_instead_of_a_head_is_reported_at_once_and_our_own_refusals_as_what_they_are() {
        let rejected = Rejected::new(Reason::BulkheadFull, "bulkhead");
        assert_eq!(failed(rejected), [Some(Class::Refused)]);
        assert_eq!(failed(io::Error::other(rejected)), [Some(TRANSIENT)]);
        assert_eq!(failed(Elapsed::new(Limit::Attempt, secs(1))), [Some(TRANSIENT)]);
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        assert_eq!(failed(refused), [Some(Class::Unreachable)]);
        let book = Book::default();
        let failed: Result<Response<Scripted>, _> = Err(rejected.into());
        assert!(AtEnd(Trailer).observe(failed, book.slip()).is_err());
        assert_eq!(book.entries(), [Some(Class::Refused)], "whatever the classifier thinks");
    }

    #[tokio::test]
    async fn a_slot_is_held_to_the_end_whatever_the_status() {
        for status in [200, 404, 500] {
            let (book, at_head, body) = observed(WholeBody, status, scripted([data("x")]));
            assert!(at_head.is_empty());
            body.collect().await.unwrap();
            assert_eq!(book.entries().len(), 1);
        }
    }

    #[test]
    fn a_slot_is_given_back_after_the_body_has_gone() {
        struct After(Rc<crate::testing::Seen>, bool);
        impl Permit for After {
            fn report(mut self, _: Class) {
                self.1 = true;
            }
        }
        impl Drop for After {
            fn drop(&mut self) {
                assert!(self.1 || self.0.dropped.get(), "the body is still there");
            }
        }
        let body = scripted([Step::Never]);
        let permit = After(body.seen.clone(), false);
        drop(AtEnd(WholeBody).observe(answer(200, body), permit).unwrap());
    }

    #[test]
    fn a_table_of_ones_own_decides_at_the_head_too() {
        let custom = HttpClass.statuses(|status| match status.as_u16() {
            404 => Some(Class::Success),
            200 => Some(TRANSIENT),
            _ => None,
        });
        for (status, at_head) in
            [(404, None), (200, Some(TRANSIENT)), (400, Some(Class::CallerError))]
        {
            let (_, entries, _body) = observed(custom.clone(), status, scripted([Step::Never]));
            assert_eq!(entries.first().copied().flatten(), at_head, "{status}");
        }
    }

    // The law for bodies.
    #[tokio::test(start_paused = true)]
    async fn bytes_trailers_and_hints_are_the_same_with_and_without() {
        let steps = [data("he"), Step::Wait(secs(1)), data("llo"), trailers("checksum", "7")];
        let of =
            |known| if known { of_known_length(steps.clone()) } else { scripted(steps.clone()) };
        for known in [true, false] {
            let (_, _, body) = observed(HttpClass, 200, of(known));
            assert_same(of(known), body).await;
        }
    }

    #[tokio::test]
    async fn an_answer_of_our_own_fits() {
        type Ours = ReportBody<crate::Body<Full<Bytes>>, Slip, HttpClass>;
        for body in [Ours::from("busy"), String::from("busy").into(), Bytes::from("busy").into()] {
            assert_eq!(body.collect().await.unwrap().to_bytes(), "busy");
        }
        assert!(Ours::default().is_end_stream());
    }
}
