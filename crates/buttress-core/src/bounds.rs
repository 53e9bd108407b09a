use crate::BoxError;

/// What is [`Clone`], asked of the service beneath a layer that clones it.
///
/// It is `Clone` by a name of ours, so that the compiler can say what to do where a service is not: asked
/// for `Clone` itself, it would know of no more than a missing derive.
#[diagnostic::on_unimplemented(
    message = "the service `{Self}` is not `Clone`, and a layer around it has to clone it",
    label = "a layer in here clones `{Self}`",
    note = "implement `Clone` for it, or put it into a `tower::buffer::Buffer`, which is",
    note = "the one limit that clones nothing is `TimeoutLayer::call_only`"
)]
pub trait CloneService: Clone {}

#[diagnostic::do_not_recommend]
impl<S: Clone> CloneService for S {}

/// What becomes a [`BoxError`], asked of the errors of the service beneath a layer.
///
/// It is `Into<BoxError>` by a name of ours, as [`CloneService`] is `Clone`.
#[diagnostic::on_unimplemented(
    message = "the error `{Self}` does not become a `BoxError`",
    label = "a service in here fails with `{Self}`",
    note = "implement `std::error::Error` for it; it has to be `Send + Sync + 'static` too",
    note = "or change it next to the service: `ServiceBuilder::new().map_err(..).service(..)`"
)]
pub trait IntoBoxError: Into<BoxError> {}

#[diagnostic::do_not_recommend]
impl<E: Into<BoxError>> IntoBoxError for E {}
