//! Deadlines that go from hop to hop.
//!
//! A client that gives up tells its callee nothing: the callee works on, and asks others in turn, for an
//! answer that nobody waits for. That is most of what an overloaded system does. So the time that is left
//! goes along with the request: [`SendDeadlineLayer`] writes it into a header, [`ReceiveDeadlineLayer`]
//! reads it on the other side.
//!
//! What is written is how much time is left, and not an instant: two machines' clocks do not agree. So the
//! time that the request takes on its way is not seen, and the callee's deadline is later than the caller's
//! by that much.

mod header;
mod receive;
mod send;

pub mod grpc_timeout;

pub use self::{
    receive::{ReceiveDeadline, ReceiveDeadlineFuture, ReceiveDeadlineLayer},
    send::{SendDeadline, SendDeadlineLayer},
};
