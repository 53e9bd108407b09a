//! What is measured, and the one loop that drives it.

use std::{fmt, future::poll_fn, hint::black_box, mem, pin::pin, task};

use tokio::runtime::{Builder, Runtime};
use tower_service::Service;

/// One service, ready to be called.
pub(crate) struct Subject {
    /// What it does: subjects that do the same are compared.
    pub(crate) path: &'static str,
    /// Who made it.
    pub(crate) maker: &'static str,
    /// Which of the maker's, where there are several.
    pub(crate) form: &'static str,
    pub(crate) end: End,
    /// Bytes of the service.
    pub(crate) service: usize,
    /// Bytes of the future that a call makes. What it keeps on the heap is not in it.
    pub(crate) future: usize,
    /// The form of ours that does most nearly the same. None: the first.
    like: Option<&'static str>,
    /// Calls it so often.
    drive: Box<dyn FnMut(u64) + Send>,
}

/// Who made ours.
pub(crate) const OURS: &str = "buttress";

/// How each call must end. A subject that ends otherwise measures something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Answer,
    Refusal,
}

// === impl Subject ===

impl Subject {
    pub(crate) fn new<S>(
        path: &'static str,
        (maker, form): (&'static str, &'static str),
        end: End,
        make: impl FnOnce() -> S,
    ) -> Self
    where
        S: Service<u64, Response = u64, Future: Send> + Send + 'static,
    {
        let runtime = runtime();
        let service = {
            // Some spawn a task, or want a clock.
            let _in = runtime.enter();
            make()
        };
        // It goes into each task, and comes back out of it.
        let mut at_rest = Some(service);
        let drive = move |calls| {
            let mut service = at_rest.take().expect("a call does not panic");
            let task = async move {
                drive(&mut service, end, calls).await;
                service
            };
            // A spawned task, as in a server: what `block_on` itself polls parks the thread whenever it is pending.
            at_rest = Some(runtime.block_on(runtime.spawn(task)).expect("a call does not panic"));
        };
        Self {
            path,
            maker,
            form,
            end,
            service: size_of::<S>(),
            future: size_of::<S::Future>(),
            like: None,
            drive: Box::new(drive),
        }
    }

    /// Compares it with this form of ours.
    #[cfg(feature = "peers")]
    pub(crate) fn like(self, form: &'static str) -> Self {
        Self { like: Some(form), ..self }
    }

    /// Whether `ours` is what it is compared with.
    pub(crate) fn is_compared_with(&self, ours: &Self) -> bool {
        let ours_at_all = ours.maker == OURS && self.maker != OURS;
        ours_at_all && ours.path == self.path && self.like.is_none_or(|like| like == ours.form)
    }

    pub(crate) fn drive(&mut self, calls: u64) {
        (self.drive)(calls);
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Answer => "answer",
            Self::Refusal => "refusal",
        })
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, maker, form, .. } = self;
        write!(f, "{path}, {maker}, {form}")
    }
}

/// The loop: ready, call, and the answer.
async fn drive<S>(service: &mut S, end: End, calls: u64)
where
    S: Service<u64, Response = u64>,
{
    for request in 0..calls {
        let ready = poll_fn(|cx| service.poll_ready(cx)).await.is_ok();
        let answered = ready && service.call(black_box(request)).await.is_ok();
        assert_eq!(answered, end == End::Answer, "the call ended otherwise than planned");
    }
}

/// One thread, with a clock.
pub(crate) fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().expect("the system has threads")
}

/// `service` after a call that never ends, and so never gives back what it took.
pub(crate) fn full<S: Service<u64>>(mut service: S) -> S {
    let mut cx = task::Context::from_waker(task::Waker::noop());
    assert!(service.poll_ready(&mut cx).is_ready());
    let mut call = Box::pin(service.call(0));
    assert!(call.as_mut().poll(&mut cx).is_pending());
    mem::forget(call);
    service
}

/// `service` after so many calls that a breaker in it has opened.
pub(crate) fn open<S: Service<u64>>(mut service: S) -> S {
    let mut cx = task::Context::from_waker(task::Waker::noop());
    for request in 0..1000 {
        if service.poll_ready(&mut cx).is_ready() {
            let _ = pin!(service.call(request)).poll(&mut cx);
        }
    }
    service
}
