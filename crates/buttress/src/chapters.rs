//! The code of the README and of the chapters, run with the tests.
//!
//! They show the whole crate, so each needs the features that it shows.

#[cfg(all(feature = "http", feature = "shed", feature = "standard"))]
#[doc = include_str!("../../../README.md")]
struct Readme;

#[cfg(feature = "standard")]
#[doc = include_str!("../../../docs/order.md")]
struct Order;

#[cfg(feature = "standard")]
#[doc = include_str!("../../../docs/compile-errors.md")]
struct CompileErrors;

#[cfg(feature = "deadline")]
#[doc = include_str!("../../../docs/deadline.md")]
struct Deadline;

#[cfg(feature = "retry")]
#[doc = include_str!("../../../docs/retry.md")]
struct Retry;

#[cfg(feature = "breaker")]
#[doc = include_str!("../../../docs/breaker.md")]
struct Breaker;

#[cfg(feature = "bulkhead")]
#[doc = include_str!("../../../docs/bulkhead.md")]
struct Bulkhead;

#[cfg(feature = "shed")]
#[doc = include_str!("../../../docs/shed.md")]
struct Shed;

#[cfg(feature = "fallback")]
#[doc = include_str!("../../../docs/fallback.md")]
struct Fallback;

#[cfg(all(feature = "http", feature = "standard"))]
#[doc = include_str!("../../../docs/http.md")]
struct Http;

#[cfg(all(feature = "reqwest", feature = "standard"))]
#[doc = include_str!("../../../docs/clients.md")]
struct Clients;

#[cfg(all(feature = "standard", feature = "tonic"))]
#[doc = include_str!("../../../docs/grpc.md")]
struct Grpc;

#[cfg(all(feature = "http", feature = "shed", feature = "standard"))]
#[doc = include_str!("../../../docs/hops.md")]
struct Hops;

#[cfg(all(
    feature = "http",
    feature = "lease-sqlite",
    feature = "serde",
    feature = "shed",
    feature = "standard"
))]
#[doc = include_str!("../../../docs/leadership.md")]
struct Leadership;

#[cfg(all(feature = "http", feature = "leadership"))]
#[doc = include_str!("../../../docs/fencing.md")]
struct Fencing;

#[cfg(all(feature = "http", feature = "shed", feature = "standard"))]
#[doc = include_str!("../../../docs/servers.md")]
struct Servers;

#[cfg(all(feature = "serde", feature = "shed", feature = "standard"))]
#[doc = include_str!("../../../docs/settings.md")]
struct Settings;

#[cfg(feature = "standard")]
#[doc = include_str!("../../../docs/operations.md")]
struct Operations;

#[doc = include_str!("../../../docs/guarantees.md")]
struct Guarantees;
