use std::{
    convert::Infallible,
    fmt,
    future::{Ready, ready},
    marker::PhantomData,
};

/// What is sent again, and whether it may be.
///
/// That is a fact about the *request*, fixed when it enters, not about how an attempt ended: the
/// outcome says whether a repeat may help, this says whether it is possible and whether it is safe.
/// The request that is sent may be of another type than the one that came, as when a body is recorded
/// while it passes.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot send `{Req}` again",
    label = "a retry in here repeats by it",
    note = "it repeats what is `Clone`: an `http::Request` if its body is, as `Full<Bytes>`",
    note = "to repeat a body that streams, record it: `.replay(HttpReplay::record(64 * 1024))`; \
            `GrpcReplay` does, but for `clone_bodies()`, and for reqwest's own bodies there is `ReqwestReplay`",
    note = "a stack for clients around a server, as in axum's `layer`, is not what you want: that is \
            `ServerStandard`",
    note = "to repeat nothing: `.replay(NoReplay)`"
)]
pub trait Replay<Req> {
    /// What the inner service is called with.
    type Sent;
    /// What makes the copies.
    type Kept: Kept<Sent = Self::Sent>;

    /// The request to send where it will not be repeated. Keeps nothing.
    fn once(&self, request: Req) -> Self::Sent;

    /// The request to send first, and what makes the next ones, if anything can.
    fn keep(&self, request: Req) -> (Self::Sent, Option<Self::Kept>);
}

/// What was kept of a request, to send it again.
pub trait Kept {
    /// What is sent.
    type Sent;

    /// Whether the request may be carried out twice. Where not, it is sent again only if it is certain
    /// that it was not sent before.
    fn safe(&self) -> bool;

    /// A copy of the request as it entered, or `None` if none can be made any more. After the `last`
    /// one nothing will be asked for, so that it may be given away instead of copied.
    fn copy(&mut self, last: bool) -> Option<Self::Sent>;
}

/// What becomes of an answer that a repeat replaces.
///
/// It must not be held while the retry sleeps: it may hold a connection. It is let go of before.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot let go of `{Res}`",
    label = "a retry in here discards by it the answers that it repeats",
    note = "`HttpReplay` and `GrpcReplay` discard `http::Response`s of an `http_body::Body`, \
            `CloneReplay` and `NoReplay` any answer"
)]
pub trait Discard<Res> {
    /// Resolves when the answer is gone. Bounded in time and in work.
    type Discarding: Future<Output = ()>;

    /// Lets go of the answer.
    fn discard(&self, response: Res) -> Self::Discarding;
}

/// Sends clones, and takes every request for one that may happen twice.
#[derive(Clone, Copy, Debug, Default)]
pub struct CloneReplay;

/// Sends nothing again.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoReplay;

/// A clone of a request. See [`CloneReplay`].
#[derive(Clone, Debug)]
pub struct KeptClone<Req> {
    request: Option<Req>,
    safe: bool,
}

/// There is none. See [`NoReplay`].
pub struct KeptNothing<Req> {
    never: Infallible,
    _request: PhantomData<fn() -> Req>,
}

// === impl CloneReplay ===

#[diagnostic::do_not_recommend]
impl<Req: Clone> Replay<Req> for CloneReplay {
    type Sent = Req;
    type Kept = KeptClone<Req>;

    fn once(&self, request: Req) -> Req {
        request
    }

    fn keep(&self, request: Req) -> (Req, Option<KeptClone<Req>>) {
        let kept = KeptClone::new(request.clone(), true);
        (request, Some(kept))
    }
}

impl<Res> Discard<Res> for CloneReplay {
    type Discarding = Ready<()>;

    fn discard(&self, response: Res) -> Ready<()> {
        drop(response);
        ready(())
    }
}

// === impl NoReplay ===

impl<Req> Replay<Req> for NoReplay {
    type Sent = Req;
    type Kept = KeptNothing<Req>;

    fn once(&self, request: Req) -> Req {
        request
    }

    fn keep(&self, request: Req) -> (Req, Option<KeptNothing<Req>>) {
        (request, None)
    }
}

impl<Res> Discard<Res> for NoReplay {
    type Discarding = Ready<()>;

    fn discard(&self, response: Res) -> Ready<()> {
        drop(response);
        ready(())
    }
}

// === impl KeptClone ===

impl<Req> KeptClone<Req> {
    /// Keeps `request` to clone it; `safe` says whether it may be carried out twice.
    #[must_use]
    pub const fn new(request: Req, safe: bool) -> Self {
        Self { request: Some(request), safe }
    }
}

impl<Req: Clone> Kept for KeptClone<Req> {
    type Sent = Req;

    fn safe(&self) -> bool {
        self.safe
    }

    fn copy(&mut self, last: bool) -> Option<Req> {
        if last { self.request.take() } else { self.request.clone() }
    }
}

// === impl KeptNothing ===

impl<Req> Kept for KeptNothing<Req> {
    type Sent = Req;

    fn safe(&self) -> bool {
        match self.never {}
    }

    fn copy(&mut self, _last: bool) -> Option<Req> {
        match self.never {}
    }
}

impl<Req> fmt::Debug for KeptNothing<Req> {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.never {}
    }
}
