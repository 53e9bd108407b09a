use buttress_core::IntoBoxError;
use tower_service::Service;

/// Fails to compile unless `service` answers requests of type `Req`, and says why it does not.
///
/// A stack whose types do not meet has no `call`, no `ready` and no `oneshot`. Used, it makes the compiler list
/// all that these methods ask for, over the whole stack, layer by layer, and none of that is what is wrong. Asked
/// here, it starts with what is wrong, in the innermost layer that is concerned, and what to do about it:
///
/// ```text
/// error: `HttpReplay` cannot send `Request<BoxBody<Bytes, Error>>` again
///  --> src/main.rs:12:54
///   |
///   |     buttress::check::<Request<BoxBody<Bytes, Error>>, _>(&client);
///   |                                                       ^ a retry in here repeats by it
///   = note: it repeats what is `Clone`: an `http::Request` if its body is, as `Full<Bytes>`
///   = note: to repeat a body that streams, record it: `.replay(HttpReplay::record(64 * 1024))`, ...
///   = note: to repeat nothing: `.replay(NoReplay)`
/// ```
///
/// Write it next to the stack, and leave it there: it does nothing when it runs. `docs/compile-errors.md` has what
/// the compiler says most often, and what it means.
///
/// # Examples
///
/// ```
/// use buttress::BoxError;
/// use tower::service_fn;
///
/// let echo = service_fn(|n: u32| async move { Ok::<_, BoxError>(n) });
/// buttress::check::<u32, _>(&echo);
/// ```
pub const fn check<Req, S>(service: &S)
where
    S: Answers<Req>,
{
    let _ = service;
}

// A trait of its own: asked for `Service` itself, the compiler would show the outermost layer's impl, with all its
// bounds, before it comes to the one that is not met. It has no message: the error is always one further in.
/// A service that answers requests of type `Req`. See [`check`].
pub trait Answers<Req> {}

impl<S, Req> Answers<Req> for S
where
    S: Service<Req>,
    S::Error: IntoBoxError,
{
}

#[cfg(any(feature = "standard", all(feature = "deadline", feature = "http", feature = "shed")))]
/// What is never so: see the `Layer`s of builders, which ask for it.
#[diagnostic::on_unimplemented(
    message = "this stack is not built yet",
    label = "a builder is no layer",
    note = "`.build()?` checks its settings, and makes a layer of it"
)]
pub trait Built {}
