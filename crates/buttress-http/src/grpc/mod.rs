//! What gRPC says.
//!
//! A gRPC call that failed is an HTTP response with status 200. Its own status is in the head, or in the
//! trailers after the last message, or nowhere: so whoever looks at one of these places takes failures for
//! successes, or successes for failures. Every call is a POST, so no method says what may be sent twice; and
//! a refusal with HTTP's 503 is an answer that no gRPC client expects.

mod class;
mod code;
mod head;
mod peeked;
mod refusal;
mod replay;

use http::{HeaderMap, HeaderName, header::CONTENT_TYPE};

#[cfg(feature = "tonic")]
pub(crate) use self::code::class_of_status;
pub(crate) use self::refusal::trailers_only;
pub use self::{
    class::{CustomGrpcClass, GrpcClass},
    code::Code,
    head::{GrpcHead, GrpcHeadFuture, GrpcHeadLayer},
    peeked::PeekedBody,
    refusal::{ByCode, grpc_refusal},
    replay::{GrpcCloneReplay, GrpcReplay},
};

const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub(crate) const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// The longest pushback there is, in milliseconds: it is a signed number of 32 bits.
const LONGEST_PUSHBACK: u32 = i32::MAX as u32;

/// Whether a request is one of gRPC: its `content-type` is `application/grpc`, or that of an encoding (`+proto`).
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    let text = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let rest = text.strip_prefix("application/grpc");
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['+', ';']))
}
