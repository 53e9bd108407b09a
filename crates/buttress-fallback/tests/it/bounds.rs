//! What the layer asks of a service and of closures, which is little.

use std::{
    cell::Cell,
    convert::Infallible,
    fmt,
    future::{Ready, ready},
    io,
    marker::PhantomData,
    rc::Rc,
    task::{Context, Poll},
};

use buttress_core::{BoxError, Class, ErrorsAsFailures, Reason};
use buttress_fallback::{
    Ask, ByClass, Cause, FallbackLayer, FallbackService, NoFallback, Respond, Value, When,
};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn, util::BoxCloneService};

use crate::support::OPEN;

// HTP-07
#[tokio::test]
async fn any_error_will_do_that_can_be_boxed() {
    #[derive(Debug)]
    struct Own;
    impl fmt::Display for Own {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("own")
        }
    }
    impl std::error::Error for Own {}

    /// Not an error, but can be made one.
    struct Plain;
    impl From<Plain> for BoxError {
        fn from(_: Plain) -> Self {
            "plain".into()
        }
    }

    async fn shown<E: Into<BoxError>>(fails: fn() -> E) -> String {
        let service = service_fn(move |()| ready(Err::<String, E>(fails())));
        let shows = FallbackLayer::respond_with(|cause| cause.error().unwrap().to_string());
        shows.layer(service).oneshot(()).await.unwrap()
    }
    assert_eq!(shown(|| Own).await, "own");
    assert_eq!(shown(|| Plain).await, "plain");
    assert_eq!(shown(|| io::Error::other("io")).await, "io");
    assert_eq!(shown(|| BoxError::from("boxed")).await, "boxed");
    assert_eq!(shown(|| "text").await, "text");

    let cannot_fail = service_fn(|n: u32| ready(Ok::<_, Infallible>(n)));
    assert_eq!(FallbackLayer::value(|| 0).layer(cannot_fail).oneshot(1).await.unwrap(), 1);
}

/// Generic, as that for any kind of body is.
fn busy<B: Default>(_: &Cause<Vec<B>>) -> Vec<B> {
    vec![B::default()]
}

#[tokio::test]
async fn closures_and_generic_functions_need_no_types_written_out() {
    type Refuses<Res> = fn(u32) -> Ready<Result<Res, BoxError>>;
    fn refuses<Res>() -> tower::util::ServiceFn<Refuses<Res>> {
        service_fn(|_| ready(Err(OPEN.into())))
    }
    let generic = ServiceBuilder::new()
        .layer(FallbackLayer::respond_with(busy))
        .service(refuses::<Vec<u8>>());
    assert_eq!(generic.oneshot(1).await.unwrap(), [0]);
    let closure = FallbackLayer::respond_with(|cause| format!("{:?}", cause.reason()))
        .when(|cause| cause.reason() == Some(Reason::CircuitOpen))
        .layer(refuses());
    assert_eq!(closure.oneshot(1).await.unwrap(), "Some(CircuitOpen)");
    let tries = FallbackLayer::try_respond_with(|_| "7".parse::<u8>()).layer(refuses());
    assert_eq!(tries.oneshot(1).await.unwrap(), 7);
    let value = FallbackLayer::value(String::new).layer(refuses());
    assert_eq!(value.oneshot(1).await.unwrap(), "");
    let keeps = FallbackLayer::keep(|n: &u32| *n, |n, _| n + 1).layer(refuses());
    assert_eq!(keeps.oneshot(1).await.unwrap(), 2);
    let asks = FallbackLayer::service(|n: &u32| *n, echo());
    assert_eq!(asks.layer(refuses()).oneshot(5).await.unwrap(), 5);
}

type Echo = tower::util::ServiceFn<fn(u32) -> Ready<Result<u32, Infallible>>>;

fn echo() -> Echo {
    service_fn(|n| ready(Ok(n)))
}

#[tokio::test]
async fn a_struct_can_hold_it_by_name() {
    type Answers = fn(&Cause<u32>) -> u32;
    struct App {
        client: FallbackService<Echo, Respond<Answers>>,
        quiet: FallbackService<Echo, NoFallback>,
    }
    let answers: Answers = |_| 0;
    let app = App {
        client: FallbackLayer::respond_with(answers).layer(echo()),
        quiet: FallbackLayer::new(NoFallback).layer(echo()),
    };
    assert_eq!(app.client.oneshot(3).await.unwrap(), 3);
    assert_eq!(app.quiet.oneshot(3).await.unwrap(), 3);
}

// HTP-08
#[test]
fn services_and_futures_are_what_the_inner_ones_are() {
    fn all<S>(_: &S)
    where
        S: Service<u32, Future: Send> + Clone + Send + Sync + 'static,
    {
    }
    all(&FallbackLayer::new(NoFallback).layer(echo()));
    all(&FallbackLayer::value(|| 1).layer(echo()));
    all(&FallbackLayer::respond_with(|_| 1).layer(echo()));
    all(&FallbackLayer::keep(|n: &u32| *n, |n, _| n).layer(echo()));
    // The other service need not be `Sync` for that.
    let boxed: BoxCloneService<u32, u32, BoxError> =
        BoxCloneService::new(echo().map_err(Into::into));
    all(&FallbackLayer::service(|n: &u32| *n, boxed).layer(echo()));
}

// HTP-08
#[tokio::test]
async fn what_stays_on_one_thread_borrows_and_cannot_be_cloned_is_welcome() {
    struct Single(Rc<Cell<usize>>);
    impl<'a> Service<&'a str> for Single {
        type Response = &'a str;
        type Error = BoxError;
        type Future = Ready<Result<&'a str, BoxError>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
            Poll::Ready(Ok(()))
        }
        fn call(&mut self, request: &'a str) -> Self::Future {
            self.0.set(self.0.get() + request.len());
            ready(Err("down".into()))
        }
    }
    let request = String::from("borrowed");
    let count = Rc::new(Cell::new(0));
    let service = FallbackLayer::value(|| "value").layer(Single(count.clone()));
    assert_eq!(service.oneshot(request.as_str()).await.unwrap(), "value");
    assert_eq!(count.get(), 8);
}

#[test]
fn everything_can_be_shown() {
    let mut service = FallbackLayer::value(|| 1).layer(echo());
    let call = service.call(1);
    assert_eq!(format!("{call:?}"), "ResponseFuture { .. }");
    assert_eq!(format!("{:?}", Value::new(|| 1)), "Value { .. }");
    assert_eq!(format!("{:?}", Ask::new(|n: &u32| *n, echo())), "Ask { .. }");

    // Whatever they are made of.
    let closures = FallbackLayer::respond_with(|_| 1)
        .classify(|_: Result<&u32, &BoxError>| Class::Fatal)
        .when(|cause: &Cause<u32>| cause.class() == Class::Fatal);
    assert_eq!(format!("{closures:?}"), "FallbackLayer { .. }");
    let shown = format!("{:?}", closures.layer("inner"));
    assert_eq!(shown, "FallbackService { inner: \"inner\", .. }");
    struct Silent;
    assert_eq!(format!("{:?}", FallbackLayer::new(Silent)), "FallbackLayer { .. }");
}

#[tokio::test]
async fn who_decides_when_may_be_a_type_of_ones_own_that_a_struct_can_hold_by_name() {
    /// Answers for refusals alone.
    #[derive(Clone)]
    struct Refused;
    impl<Res> When<Res> for Refused {
        fn applies(&self, cause: &Cause<Res>) -> bool {
            cause.class() == Class::Refused
        }
    }
    type Fails = tower::util::ServiceFn<fn(bool) -> Ready<Result<u32, BoxError>>>;
    type Answers = fn() -> u32;
    struct App {
        client: FallbackService<Fails, Value<Answers>, ErrorsAsFailures, Refused>,
    }
    let fails: Fails =
        service_fn(|is_ours| ready(Err(if is_ours { OPEN.into() } else { "down".into() })));
    let answers: Answers = || 7;
    let layer = FallbackLayer::value(answers).when_by(Refused);
    let app = App { client: layer.clone().layer(fails) };
    assert_eq!(app.client.clone().oneshot(true).await.unwrap(), 7);
    assert_eq!(app.client.oneshot(false).await.unwrap_err().to_string(), "down");
    let again = layer.when_by(ByClass).layer(fails);
    assert_eq!(again.oneshot(false).await.unwrap(), 7, "as by default");
}

/// Whether a type is `Copy`: then, and only then, the first method is there.
struct IsCopy<T>(PhantomData<T>);

impl<T: Copy> IsCopy<T> {
    fn answer(&self) -> bool {
        true
    }
}

trait Otherwise {
    fn answer(&self) -> bool {
        false
    }
}

impl<T> Otherwise for IsCopy<T> {}

#[test]
fn no_service_is_copied_in_silence_with_the_readiness_of_the_inner_one() {
    assert!(IsCopy::<Echo>(PhantomData).answer(), "the inner one is");
    assert!(!IsCopy::<FallbackService<Echo, NoFallback>>(PhantomData).answer());
}

/// Numbers to beat. Whoever makes one grow has seen it, and says why.
#[cfg(target_pointer_width = "64")]
#[test]
fn a_fallback_costs_so_many_bytes() {
    fn service<S: Service<u32>>(_: &S) -> usize {
        size_of::<S>()
    }
    fn future<S: Service<u32>>(_: &S) -> usize {
        size_of::<S::Future>()
    }
    let large = service_fn(|n: u32| async move {
        let held = [n; 100];
        tokio::task::yield_now().await;
        Ok::<_, Infallible>(held[0])
    });
    let nothing = FallbackLayer::new(NoFallback).layer(large);
    let answers = FallbackLayer::respond_with(|_| 1).layer(large);
    assert!(service(&nothing) == service(&large) && service(&answers) == service(&large));
    assert!(future(&nothing) <= future(&large) + 8 && future(&answers) <= future(&large) + 8);
    // The future has room for the inner one, or for the fallback's and its cause, whichever is larger.
    assert!(future(&FallbackLayer::respond_with(|_| 1).layer(echo())) <= 72);
}
