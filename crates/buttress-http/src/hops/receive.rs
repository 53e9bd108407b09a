use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use buttress_core::{
    BoxError, Context as Ambient, Deadline, IntoBoxError, InvalidSetting, Reason, Rejected, edge,
};
use http::{HeaderName, Request};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::header::Header;

/// What the layer is called in a refusal.
const NAME: &str = "receive";

/// A way back that takes longer is none: most likely the unit is wrong.
const LONGEST_MARGIN: Duration = Duration::from_secs(10);

/// Obeys how much time the caller has left: a server's half of a deadline that goes from hop to hop.
///
/// It belongs near the outside, above every queue, and beneath what makes responses of refusals. The time
/// that the header names, counted from `call`, becomes the request's [deadline](Deadline::current), unless
/// there is an earlier one. From there it goes on by itself: queues do not keep what is late, the handler's
/// own clients inherit it, and a [`SendDeadlineLayer`](crate::SendDeadlineLayer) among them hands on what is
/// left.
///
/// - **What has no time left is refused** before any work starts.
/// - **Nothing else is enforced.** Whoever is beneath knows better how far the request has come: a queue
///   refuses, and a `DeadlineLayer` beneath the queue ends what runs. A server wants one in any case, for
///   callers that name no time, or too much of it: it takes the earlier of two instants.
/// - No retry of ours is in charge of what runs within: a handler's own clients repeat by themselves, even
///   if whoever sent the request is repeating it.
/// - A header that makes no sense is ignored, with an event. So are two of them.
///
/// Its readiness is the inner service's, and it holds nothing.
///
/// # Errors
///
/// [`Rejected`] with [`Reason::DeadlineExceeded`], from the future of `call`.
///
/// # Cancel safety
///
/// The inner future is dropped with the answer's, and nothing goes on.
///
/// # Examples
///
/// ```
/// use buttress_core::{BoxError, Deadline, Rejected};
/// use buttress_http::ReceiveDeadlineLayer;
/// use http::{HeaderName, Request};
/// use std::{convert::Infallible, time::Duration};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let layer = ReceiveDeadlineLayer::millis(HeaderName::from_static("x-time-left-ms"))
///     .margin(Duration::from_millis(20))?;
/// let server = layer.layer(service_fn(|_: Request<()>| async {
///     Ok::<_, Infallible>(Deadline::current().is_some())
/// }));
///
/// let request = |left| Request::builder().header("x-time-left-ms", left).body(());
/// assert!(server.clone().oneshot(request("500")?).await?);
/// let refused = server.oneshot(request("20")?).await.unwrap_err();
/// assert!(refused.is::<Rejected>());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ReceiveDeadlineLayer {
    header: Header,
    margin: Duration,
}

/// Obeys how much time the caller has left. See [`ReceiveDeadlineLayer`].
#[derive(Clone, Debug)]
pub struct ReceiveDeadline<S> {
    inner: S,
    header: Header,
    margin: Duration,
}

pin_project! {
    /// The answer of [`ReceiveDeadline`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct ReceiveDeadlineFuture<F> {
        #[pin]
        state: State<F>,
    }
}

pin_project! {
    #[project = StateProj]
    #[derive(Debug)]
    enum State<F> {
        Refused,
        Called { #[pin] inner: F, ambient: Ambient, is_settled: bool },
    }
}

// === impl ReceiveDeadlineLayer ===

impl ReceiveDeadlineLayer {
    /// Reads gRPC's own header, `grpc-timeout`. See [`grpc_timeout`](crate::grpc_timeout).
    #[must_use]
    pub const fn grpc() -> Self {
        Self { header: Header::grpc(), margin: Duration::ZERO }
    }

    /// Reads the header `name`, in whole milliseconds.
    ///
    /// Behind Envoy, that may be `x-envoy-expected-rq-timeout-ms`.
    #[must_use]
    pub const fn millis(name: HeaderName) -> Self {
        Self { header: Header::millis(name), margin: Duration::ZERO }
    }

    /// Takes `margin` off the time that the header names: what the request took on its way here and the
    /// answer takes back, which the caller's clock has counted and ours has not. None by default.
    ///
    /// A request that has no more left than that is refused.
    ///
    /// # Errors
    ///
    /// If `margin` is over ten seconds: so long a way is most likely a wrong unit, and would have every
    /// request refused.
    pub fn margin(mut self, margin: Duration) -> Result<Self, InvalidSetting> {
        if margin > LONGEST_MARGIN {
            return Err(InvalidSetting::new("margin", "must be 10s at most"));
        }
        self.margin = margin;
        Ok(self)
    }
}

impl<S> Layer<S> for ReceiveDeadlineLayer {
    type Service = ReceiveDeadline<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ReceiveDeadline { inner, header: self.header.clone(), margin: self.margin }
    }
}

// === impl ReceiveDeadline ===

impl<S, B> Service<Request<B>> for ReceiveDeadline<S>
where
    S: Service<Request<B>>,
    S::Error: IntoBoxError,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = ReceiveDeadlineFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let now = edge::now();
        let left = self.header.read(request.headers());
        let received =
            left.and_then(|left| Deadline::from_now(now, left.saturating_sub(self.margin)));
        let ambient = Ambient::current();
        let deadline = Deadline::earlier(ambient.deadline(), received);
        let state = if deadline.is_some_and(|deadline| deadline.has_passed(now)) {
            State::Refused
        } else {
            let is_settled = ambient.deadline().is_some();
            let ambient = ambient.with_deadline(deadline).with_attempt(0);
            let inner = ambient.within(|| self.inner.call(request));
            State::Called { inner, ambient, is_settled }
        };
        ReceiveDeadlineFuture { state }
    }
}

// === impl ReceiveDeadlineFuture ===

impl<F, T, E> Future for ReceiveDeadlineFuture<F>
where
    F: Future<Output = Result<T, E>>,
    E: Into<BoxError>,
{
    type Output = Result<T, BoxError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProj::Refused => Poll::Ready(Err(refused().into())),
            StateProj::Called { inner, ambient, is_settled } => {
                if !*is_settled {
                    // A buffer above called in its own task: only here an earlier deadline can be seen.
                    *ambient = ambient.bounded_by_current();
                    *is_settled = true;
                }
                ambient.within(|| inner.poll(cx)).map_err(Into::into)
            }
        }
    }
}

#[cold]
fn refused() -> Rejected {
    let reason = Reason::DeadlineExceeded;
    tracing::debug!(layer = NAME, %reason, "refused");
    Rejected::new(reason, NAME)
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, panic::AssertUnwindSafe};

    use buttress_test::{Act, Probe};
    use futures_util::FutureExt;
    use tokio::{task::yield_now, time::advance};
    use tower::{ServiceExt, buffer::Buffer, service_fn};

    use super::*;
    use crate::testing::{millis, secs};

    const LEFT: HeaderName = HeaderName::from_static("x-time-left-ms");

    fn grpc(value: &str) -> Request<()> {
        Request::builder().header("grpc-timeout", value).body(()).unwrap()
    }

    fn http(value: &str) -> Request<()> {
        Request::builder().header(LEFT, value).body(()).unwrap()
    }

    type Seen = [Ambient; 2];

    /// Answers with the context in `call` and in a later poll.
    fn mirror()
    -> impl Service<Request<()>, Response = Seen, Error = Infallible, Future: Send> + Clone {
        service_fn(|_| {
            let in_call = Ambient::current();
            async move {
                yield_now().await;
                Ok([in_call, Ambient::current()])
            }
        })
    }

    async fn seen(layer: &ReceiveDeadlineLayer, request: Request<()>) -> Seen {
        layer.layer(mirror()).oneshot(request).await.unwrap()
    }

    fn due_in(left: Duration) -> Ambient {
        Ambient::default().with_deadline(Deadline::after(left))
    }

    fn probe() -> Probe<Request<()>, u32> {
        Probe::new(|_| 7)
    }

    #[track_caller]
    fn rejected<T>(answer: Result<T, BoxError>) -> Rejected {
        *answer.map(drop).unwrap_err().downcast_ref().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_that_is_left_becomes_the_deadline_in_call_and_in_every_poll() {
        let by_header = [
            (ReceiveDeadlineLayer::grpc(), grpc("1500m")),
            (ReceiveDeadlineLayer::millis(LEFT), http("1500")),
        ];
        for (layer, request) in by_header {
            assert_eq!(seen(&layer, request).await, [due_in(millis(1500)); 2]);
        }
        assert_eq!(Ambient::current(), Ambient::default());
    }

    #[tokio::test(start_paused = true)]
    async fn an_earlier_deadline_stays_and_a_later_one_gives_way() {
        let layer = ReceiveDeadlineLayer::grpc();
        for (outer, left, expected) in [(1, "5S", 1), (9, "5S", 5)] {
            let seen = due_in(secs(outer)).scope(seen(&layer, grpc(left))).await;
            assert_eq!(seen, [due_in(secs(expected)); 2]);
        }
        let untold = due_in(secs(9)).scope(seen(&layer, Request::new(()))).await;
        assert_eq!(untold, [due_in(secs(9)); 2]);
    }

    // GRP-05
    #[tokio::test(start_paused = true)]
    async fn what_makes_no_sense_is_ignored_and_what_is_endless_does_no_harm() {
        let (by_grpc, by_http) = (ReceiveDeadlineLayer::grpc(), ReceiveDeadlineLayer::millis(LEFT));
        for value in ["", "5", "-1S", "1.5S", "soon", "123456789n"] {
            assert_eq!(seen(&by_grpc, grpc(value)).await, [Ambient::default(); 2], "{value}");
        }
        let mut twice = grpc("1S");
        twice.headers_mut().append("grpc-timeout", "2S".parse().unwrap());
        assert_eq!(seen(&by_grpc, twice).await, [Ambient::default(); 2]);
        let years = Duration::from_secs(99_999_999 * 3600);
        assert_eq!(seen(&by_grpc, grpc("99999999H")).await, [due_in(years); 2]);
        let endless = http("99999999999999999999999");
        assert_eq!(seen(&by_http, endless).await, [Ambient::default(); 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_no_time_left_is_refused_and_no_work_starts() {
        let probe = probe();
        let layer = ReceiveDeadlineLayer::grpc().margin(millis(20)).unwrap();
        let mut server = layer.layer(probe.clone());
        let passed = due_in(secs(1));
        advance(secs(1)).await;
        for (context, request) in [
            (Ambient::default(), grpc("0n")),
            (Ambient::default(), grpc("1n")),
            (Ambient::default(), grpc("20m")),
            (passed, grpc("5S")),
            (passed, Request::new(())),
        ] {
            let call = async { server.ready().await.unwrap().call(request).await };
            let refused = rejected(context.scope(call).await);
            assert_eq!(refused, Rejected::new(Reason::DeadlineExceeded, "receive"));
        }
        let zero = ReceiveDeadlineLayer::millis(LEFT).layer(probe.clone()).oneshot(http("0"));
        assert_eq!(rejected(zero.await).reason(), Reason::DeadlineExceeded);
        assert_eq!((probe.calls(), probe.violations()), (0, 0));
        assert_eq!(server.ready().await.unwrap().call(grpc("20001u")).await.unwrap(), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn the_margin_is_taken_off_what_is_received_alone() {
        let layer = ReceiveDeadlineLayer::grpc().margin(millis(20)).unwrap();
        assert_eq!(seen(&layer, grpc("100m")).await, [due_in(millis(80)); 2]);
        let outer = due_in(millis(90)).scope(seen(&layer, Request::new(()))).await;
        assert_eq!(outer, [due_in(millis(90)); 2]);
    }

    #[test]
    fn a_margin_that_refuses_everything_is_refused() {
        let layer = ReceiveDeadlineLayer::grpc();
        for margin in [LONGEST_MARGIN + Duration::from_nanos(1), Duration::MAX] {
            let refused = layer.clone().margin(margin).map(drop).unwrap_err();
            assert_eq!(refused.setting(), "margin");
        }
        for margin in [Duration::ZERO, LONGEST_MARGIN] {
            assert!(layer.clone().margin(margin).is_ok());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn no_retry_is_in_charge_within_and_an_attempts_end_stays_known() {
        let attempt = Deadline::after(secs(2));
        let outer = due_in(secs(9)).with_attempt(2).with_attempt_deadline(attempt);
        let seen = outer.scope(seen(&ReceiveDeadlineLayer::grpc(), grpc("5S"))).await;
        assert_eq!(seen, [due_in(secs(5)).with_attempt_deadline(attempt); 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn each_poll_has_the_context_of_the_call_whoever_polls() {
        let mut server = ReceiveDeadlineLayer::grpc().layer(mirror());
        let call = due_in(secs(3)).within(|| server.call(grpc("5S")));
        let elsewhere = due_in(secs(1)).with_attempt(7);
        assert_eq!(elsewhere.scope(call).await.unwrap(), [due_in(secs(3)); 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn beneath_a_buffer_an_earlier_deadline_is_found_at_the_first_poll() {
        let server = Buffer::new(ReceiveDeadlineLayer::grpc().layer(mirror()), 4);
        let seen = due_in(secs(3)).scope(server.oneshot(grpc("5S"))).await.unwrap();
        assert_eq!(seen, [due_in(secs(5)), due_in(secs(3))]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_that_passes_while_it_runs_is_for_others_to_enforce() {
        let probe = probe();
        probe.script([Act::Delay(secs(9))]);
        let server = ReceiveDeadlineLayer::grpc().layer(probe.clone());
        assert_eq!(server.oneshot(grpc("1S")).await.unwrap(), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_within_leaves_no_deadline_behind() {
        let probe = probe();
        let mut server = ReceiveDeadlineLayer::grpc().layer(probe.clone());
        for act in [Act::PanicInCall, Act::PanicInPoll] {
            probe.script([act]);
            let call = async { server.ready().await.unwrap().call(grpc("5S")).await };
            assert!(AssertUnwindSafe(call).catch_unwind().await.is_err());
            assert_eq!(Ambient::current(), Ambient::default());
        }
    }
}
