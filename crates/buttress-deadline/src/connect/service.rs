use std::{
    task::{self, Poll},
    time::Duration,
};

use buttress_core::{BoxError, Context, IntoBoxError, Limit};
use tower_service::Service;

use super::ConnectFuture;
use crate::bound::Bound;

/// Gives each connection so much time to come about. See [`ConnectTimeoutLayer`](super::ConnectTimeoutLayer).
// Not `Copy`, whatever the inner one is: a copy in silence would take its readiness along.
#[derive(Clone, Debug)]
pub struct ConnectTimeout<S> {
    inner: S,
    limit: Duration,
}

impl<S> ConnectTimeout<S> {
    pub(super) const fn new(inner: S, limit: Duration) -> Self {
        Self { inner, limit }
    }
}

impl<S, Dst> Service<Dst> for ConnectTimeout<S>
where
    S: Service<Dst>,
    S::Error: IntoBoxError,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = ConnectFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut task::Context<'_>) -> Poll<Result<(), BoxError>> {
        super::future::detached(cx, |cx| self.inner.poll_ready(cx)).map_err(Into::into)
    }

    fn call(&mut self, dst: Dst) -> Self::Future {
        Context::default().within(|| {
            let bound = Bound::start(self.limit, Limit::Connect);
            ConnectFuture::new(self.inner.call(dst), bound)
        })
    }
}
