use std::task::{Context, Poll};

use buttress_core::{Deadline, edge};
use http::{HeaderName, Request};
use tower_layer::Layer;
use tower_service::Service;

use super::header::Header;

/// Tells the callee how much time is left: a client's half of a deadline that goes from hop to hop.
///
/// It belongs next to the client, inside the attempt's timeout. There it writes what is left at the moment
/// in which the attempt is sent, after every queue and every wait between attempts: until the request's
/// [deadline](Deadline::current), or until the [attempt](Deadline::of_attempt) is given up if that is
/// earlier. A callee that is told of the whole request's time works on for attempts that were given up, just
/// when it is slow already.
///
/// - A smaller value that is there already stays. A larger one, or one that makes no sense, is replaced.
/// - Without a deadline nothing is written, and what is there stays.
/// - At least one unit is written, also if the time is up: it is for the layers above to send nothing then.
///
/// It enforces nothing: a callee may ignore the header, so limits of one's own stand above it. It makes no
/// errors, its future and its readiness are the inner service's, and it allocates for the header alone.
///
/// The deadline is that of the `call`. Beneath a `Buffer` there is none, unless it is carried through by a
/// `CarryLayer` and a `ResumeLayer`.
///
/// # Examples
///
/// ```
/// use buttress_core::{Context, Deadline};
/// use buttress_http::SendDeadlineLayer;
/// use http::Request;
/// use std::{convert::Infallible, time::Duration};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let client = SendDeadlineLayer::grpc().layer(service_fn(|request: Request<()>| async move {
///     Ok::<_, Infallible>(request.headers()["grpc-timeout"].clone())
/// }));
/// let context = Context::default().with_deadline(Deadline::after(Duration::from_secs(2)));
/// assert_eq!(context.scope(client.oneshot(Request::new(()))).await.unwrap(), "2000000u");
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SendDeadlineLayer {
    header: Header,
    of_request: bool,
}

/// Tells the callee how much time is left. See [`SendDeadlineLayer`].
#[derive(Clone, Debug)]
pub struct SendDeadline<S> {
    inner: S,
    header: Header,
    of_request: bool,
}

// === impl SendDeadlineLayer ===

impl SendDeadlineLayer {
    /// Writes gRPC's own header, `grpc-timeout`. See [`grpc_timeout`](crate::grpc_timeout).
    #[must_use]
    pub const fn grpc() -> Self {
        Self { header: Header::grpc(), of_request: false }
    }

    /// Writes the header `name`, in whole milliseconds, rounded up.
    ///
    /// HTTP has no such header of its own; Envoy's proxies write `x-envoy-expected-rq-timeout-ms` in this
    /// form.
    #[must_use]
    pub const fn millis(name: HeaderName) -> Self {
        Self { header: Header::millis(name), of_request: false }
    }

    /// Writes what is left of the whole request, and not of the attempt.
    ///
    /// For answers that stream: an attempt's limit ends with the head, but a callee may end the whole answer
    /// when the time that it was told of is up.
    #[must_use]
    pub const fn of_request(mut self) -> Self {
        self.of_request = true;
        self
    }
}

impl<S> Layer<S> for SendDeadlineLayer {
    type Service = SendDeadline<S>;

    fn layer(&self, inner: S) -> Self::Service {
        SendDeadline { inner, header: self.header.clone(), of_request: self.of_request }
    }
}

// === impl SendDeadline ===

impl<S> SendDeadline<S> {
    /// When nobody waits for the answer any more.
    fn deadline(&self) -> Option<Deadline> {
        let attempt = if self.of_request { None } else { Deadline::of_attempt() };
        Deadline::earlier(Deadline::current(), attempt)
    }
}

impl<S, B> Service<Request<B>> for SendDeadline<S>
where
    S: Service<Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        if let Some(deadline) = self.deadline() {
            let left = deadline.left(edge::now());
            let headers = request.headers_mut();
            if self.header.read(headers).is_none_or(|written| left < written) {
                self.header.write(left, headers);
            }
        }
        self.inner.call(request)
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, time::Duration};

    use futures_util::FutureExt;
    use http::HeaderMap;
    use tokio::time::advance;
    use tower::service_fn;

    use super::*;
    use crate::testing::{millis, secs};

    const LEFT: HeaderName = HeaderName::from_static("x-time-left-ms");

    fn grpc() -> (SendDeadlineLayer, HeaderName) {
        (SendDeadlineLayer::grpc(), HeaderName::from_static("grpc-timeout"))
    }

    fn http() -> (SendDeadlineLayer, HeaderName) {
        (SendDeadlineLayer::millis(LEFT), LEFT)
    }

    /// What the callee sees in the header, if these values were written there before.
    fn sent((layer, name): (SendDeadlineLayer, HeaderName), written: &[&str]) -> Vec<String> {
        let seen = |request: Request<()>| async move {
            Ok::<HeaderMap, Infallible>(request.into_parts().0.headers)
        };
        let mut request = Request::new(());
        for value in written {
            request.headers_mut().append(&name, value.parse().unwrap());
        }
        let answer = layer.layer(service_fn(seen)).call(request);
        let Ok(headers) = answer.now_or_never().expect("it answers at once");
        let values = headers.get_all(name).iter();
        values.map(|value| value.to_str().unwrap().to_owned()).collect()
    }

    fn within<T>(left: Duration, f: impl FnOnce() -> T) -> T {
        Deadline::within(Deadline::after(left), f)
    }

    // GRP-04
    #[tokio::test(start_paused = true)]
    async fn what_is_left_at_the_moment_of_the_attempt_is_sent() {
        let deadline = Deadline::after(secs(1));
        assert_eq!(Deadline::within(deadline, || sent(grpc(), &[])), ["1000000u"]);
        advance(millis(500)).await;
        assert_eq!(Deadline::within(deadline, || sent(grpc(), &[])), ["500000u"]);
        assert_eq!(Deadline::within(deadline, || sent(http(), &[])), ["500"]);
    }

    // GRP-04
    #[tokio::test(start_paused = true)]
    async fn a_smaller_value_that_is_there_wins_and_all_else_is_replaced() {
        for (written, expected) in [
            (&["100m"][..], "100m"),
            (&["1S"], "1S"),
            (&["0n"], "0n"),
            (&["2S"], "1000000u"),
            (&["99999999H"], "1000000u"),
            (&["soon"], "1000000u"),
            (&["100m", "200m"], "1000000u"),
        ] {
            assert_eq!(within(secs(1), || sent(grpc(), written)), [expected], "{written:?}");
        }
        for (written, expected) in [("100", "100"), ("2000", "1000"), ("soon", "1000")] {
            assert_eq!(within(secs(1), || sent(http(), &[written])), [expected], "{written}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_deadline_nothing_is_written_and_what_is_there_stays() {
        assert!(sent(grpc(), &[]).is_empty());
        for written in ["100m", "soon"] {
            assert_eq!(sent(grpc(), &[written]), [written]);
        }
        assert_eq!(sent(grpc(), &["1S", "soon"]), ["1S", "soon"]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_attempt_is_what_is_sent_unless_answers_stream() {
        let whole = || (SendDeadlineLayer::millis(LEFT).of_request(), LEFT);
        for (total, attempt, expected) in [(30, 10, "10000"), (5, 10, "5000")] {
            within(secs(total), || {
                Deadline::within_attempt(Deadline::after(secs(attempt)), || {
                    assert_eq!(sent(http(), &[]), [expected]);
                    assert_eq!(sent(whole(), &[]), [(total * 1000).to_string()]);
                });
            });
        }
        // An attempt with a limit, of a request without one.
        Deadline::within_attempt(Deadline::after(secs(1)), || {
            assert_eq!(sent(http(), &[]), ["1000"]);
            assert!(sent(whole(), &[]).is_empty());
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_deadline_that_has_passed_is_sent_as_the_least_that_there_is() {
        let passed = Deadline::after(secs(1));
        advance(secs(2)).await;
        Deadline::within(passed, || {
            assert_eq!(sent(grpc(), &[]), ["1n"]);
            assert_eq!(sent(http(), &["7"]), ["1"]);
        });
    }
}
