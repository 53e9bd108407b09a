//! What resilience layers say to each other.
//!
//! Layers that are stacked but do not know of each other undo each other's work: a retry repeats what
//! a circuit breaker has just refused, a breaker counts its caller's mistakes as the callee's ill
//! health, a timeout starts anew with each attempt and outlives the caller. The cure is a small common
//! vocabulary. This crate is that vocabulary, and has no layer in it:
//!
//! - [`Class`], [`Classify`], [`Observe`]: what a finished attempt says, and when it is known;
//! - [`Rejected`], [`Elapsed`], [`TermOver`], [`find`]: what our layers answer when the callee does not;
//! - [`Deadline`], [`Context`]: what travels with a request through the stack, with no plumbing;
//! - [`Replay`], [`Discard`]: what is sent again, and what becomes of the answer that it replaces;
//! - [`Fence`], [`FenceGuard`], [`FenceStore`]: which term a write is of, and what a resource refuses by;
//! - [`KeyOf`]: which of many callees a request is for;
//! - [`OneHop`]: what was handed on, and is not to be handed on again;
//! - [`Health`], [`HealthSignal`]: what a part says of itself;
//! - [`edge`]: the one door to the clocks and to chance;
//! - [`timer`], [`ready`]: one timer for a whole stack, and readiness that counts against a limit;
//! - [`CloneService`], [`IntoBoxError`]: what layers ask of the service beneath, by names that can say what to
//!   do where it is not so.
//!
//! Applications use the `buttress` crate, which re-exports what they need. Whoever writes a layer of
//! their own that is to be understood by ours depends on this crate alone.

mod bounds;
mod class;
mod context;
mod error;
mod fence;
mod guard;
mod health;
mod hop;
mod key;
#[cfg(all(test, buttress_loom))]
mod loom;
mod mark;
mod observe;
mod replay;
#[cfg(feature = "tonic")]
mod status;
mod sync;
mod token;

pub mod edge;
pub mod ready;
pub mod timer;

pub use self::{
    bounds::{CloneService, IntoBoxError},
    class::{Class, Classify, ErrorsAsFailures, Repeat, Verdict, judge},
    context::{Context, Deadline, Scope},
    error::{Both, BoxError, Elapsed, InvalidSetting, Limit, Reason, Rejected, TermOver, find},
    fence::{Fence, LeaseId},
    guard::{FenceGuard, FenceStore, RaiseError, StaleFence},
    health::{Health, HealthSignal, Reading},
    hop::OneHop,
    key::KeyOf,
    mark::{Mark, Substitute},
    observe::{Observe, Permit},
    replay::{CloneReplay, Discard, Kept, KeptClone, KeptNothing, NoReplay, Replay},
    token::{FencingToken, NotAToken},
};
