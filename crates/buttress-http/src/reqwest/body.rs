//! Bodies of requests, as reqwest has them.

use std::{
    any::Any,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use buttress_core::BoxError;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

type Polled = Option<Result<Frame<Bytes>, BoxError>>;

/// A body of which the first frame was read ahead.
struct Begun<B> {
    /// What that poll answered, if it did.
    first: Option<Polled>,
    rest: Pin<Box<B>>,
}

/// The body, for reqwest to send.
///
/// One that is in memory, whole, goes as bytes and not as a stream: those reqwest can send a second time by
/// itself, as where a redirect asks for it.
pub(super) fn for_reqwest<B>(body: B) -> reqwest::Body
where
    B: Body<Data = Bytes> + Send + Sync + 'static,
    B::Error: Into<BoxError>,
{
    let mut body = Some(body);
    if let Some(own) = (&mut body as &mut dyn Any).downcast_mut::<Option<reqwest::Body>>() {
        return own.take().unwrap_or_default();
    }
    let Some(body) = body.filter(|body| !body.is_end_stream()) else {
        return reqwest::Body::default();
    };
    let Some(length) = body.size_hint().exact() else {
        return reqwest::Body::wrap(body);
    };
    match read_ahead(body, length) {
        Ok(whole) => whole.into(),
        Err(begun) => reqwest::Body::wrap(begun),
    }
}

/// All of a body of that length, if that is its first frame, and is there already.
fn read_ahead<B>(body: B, length: u64) -> Result<Bytes, Begun<B>>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let mut rest = Box::pin(body);
    // Nobody is to be woken: whoever sends it polls it again.
    match rest.as_mut().poll_frame(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
            Ok(data) if data.len() as u64 == length && rest.is_end_stream() => Ok(data),
            Ok(data) => Err(Begun { first: Some(Some(Ok(Frame::data(data)))), rest }),
            Err(frame) => Err(Begun { first: Some(Some(Ok(frame))), rest }),
        },
        Poll::Ready(Some(Err(error))) => Err(Begun { first: Some(Some(Err(error.into()))), rest }),
        Poll::Ready(None) => Err(Begun { first: Some(None), rest }),
        Poll::Pending => Err(Begun { first: None, rest }),
    }
}

// === impl Begun ===

impl<B> Body for Begun<B>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Polled> {
        match self.first.take() {
            Some(first) => Poll::Ready(first),
            None => self.rest.as_mut().poll_frame(cx).map_err(Into::into),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.rest.size_hint();
        let read = match &self.first {
            Some(Some(Ok(frame))) => frame.data_ref().map_or(0, |data| data.len() as u64),
            _ => 0,
        };
        // The upper one first: the lower may not be beyond it.
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + read);
        }
        hint.set_lower(hint.lower() + read);
        hint
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, future::poll_fn, pin::pin};

    use http::HeaderMap;
    use http_body_util::{BodyExt, Empty, Full};
    use proptest::{collection::vec, prelude::*};

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Data(usize),
        Trailers,
        Error,
        Wait,
    }

    /// A body that may be shared, as reqwest's must.
    #[derive(Clone, Debug)]
    struct Scripted {
        steps: VecDeque<Step>,
        told: bool,
    }

    impl Body for Scripted {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Polled> {
            Poll::Ready(match self.steps.pop_front() {
                Some(Step::Data(length)) => Some(Ok(Frame::data(vec![b'x'; length].into()))),
                Some(Step::Trailers) => Some(Ok(Frame::trailers(HeaderMap::new()))),
                Some(Step::Error) => Some(Err("lost".into())),
                Some(Step::Wait) => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                None => None,
            })
        }

        fn is_end_stream(&self) -> bool {
            self.steps.is_empty()
        }

        fn size_hint(&self) -> SizeHint {
            let left = self.steps.iter();
            let left = left.map(|step| if let Step::Data(data) = step { *data } else { 0 });
            let mut hint = SizeHint::new();
            if self.told {
                hint.set_exact(left.sum::<usize>() as u64);
            }
            hint
        }
    }

    /// What there is to see of a body: its frames, and how long it says that it is before each.
    async fn seen<B: Body<Data = Bytes>>(body: B) -> Vec<String> {
        let mut body = pin!(body);
        let mut seen = Vec::new();
        loop {
            let (hint, at_end) = (body.size_hint(), body.is_end_stream());
            seen.push(format!("{} to {:?}", hint.lower(), hint.upper()));
            let frame = poll_fn(|cx| body.as_mut().poll_frame(cx)).await;
            assert!(!at_end || frame.is_none());
            match frame {
                Some(Ok(frame)) => seen.push(format!("{frame:?}")),
                Some(Err(_)) => seen.push("error".to_owned()),
                None => return seen,
            }
        }
    }

    fn steps() -> impl Strategy<Value = VecDeque<Step>> {
        let step = prop_oneof![
            4 => (1..4_usize).prop_map(Step::Data),
            1 => Just(Step::Trailers),
            1 => Just(Step::Error),
            2 => Just(Step::Wait),
        ];
        vec(step, 0..5).prop_map(VecDeque::from)
    }

    proptest! {
        // RET-05
        #[test]
        fn what_is_sent_is_the_body_frame_by_frame(steps in steps(), told: bool) {
            let body = Scripted { steps, told };
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let whole = match Vec::from_iter(&body.steps)[..] {
                [] => true,
                [Step::Data(_)] => told,
                _ => false,
            };
            let sent = for_reqwest(body.clone());
            prop_assert_eq!(sent.as_bytes().is_some(), whole);
            let (sent, expected) = runtime.block_on(async { (seen(sent).await, seen(body).await) });
            // Of one that is at its end the length is known too.
            let hint = usize::from(!told && expected.len() == 1);
            prop_assert_eq!(&sent[hint..], &expected[hint..]);
        }
    }

    #[tokio::test]
    async fn what_is_in_memory_goes_as_bytes() {
        let bytes = |body: reqwest::Body| body.as_bytes().map(<[u8]>::to_vec);
        assert_eq!(bytes(for_reqwest(Empty::new())), Some(vec![]));
        assert_eq!(bytes(for_reqwest(Full::from("tea"))), Some(b"tea".to_vec()));
        assert_eq!(bytes(for_reqwest(reqwest::Body::from("tea"))), Some(b"tea".to_vec()));
        assert_eq!(bytes(for_reqwest(String::from("tea"))), Some(b"tea".to_vec()));
        let wrapped = reqwest::Body::wrap(Full::<Bytes>::from("tea"));
        assert_eq!(bytes(for_reqwest(wrapped)), None, "reqwest's own stays as it is");
        let streamed = Full::<Bytes>::from("tea").with_trailers(async { None });
        assert_eq!(bytes(for_reqwest(Box::pin(streamed))), None, "there may be trailers");
    }
}
