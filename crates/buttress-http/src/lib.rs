//! HTTP for resilience layers.
//!
//! A retry, a breaker or a fallback that knows nothing of HTTP takes a 500 for a success, sends a payment
//! twice, forgets the body of the second attempt, and waits for ever on a body whose head came in time.
//! This crate tells them what HTTP means:
//!
//! - [`HttpClass`]: what a status or an error says; [`retry_after`]: how long to wait;
//! - [`HttpReplay`], [`RecordReplay`]: what may be sent again; [`Drain`]: what becomes of the answer that it
//!   replaces;
//! - [`Body`]: a response's body that carries the request's deadline to its end, or bytes of our own;
//! - [`AtEnd`]: observes a response to the end of its body;
//! - [`ByAuthority`]: whom a request is for;
//! - [`SendDeadlineLayer`], [`ReceiveDeadlineLayer`]: the time that is left goes from hop to hop;
//!   [`grpc_timeout`]: how gRPC writes it;
//! - [`SendFenceLayer`], [`FencingLayer`]: a leader's token goes to what it writes to, which refuses former leaders;
//! - [`RedirectToLeaderLayer`], [`ForwardedOnce`]: what came to a process that does not lead;
//! - [`refusal`], [`RejectedAsResponseLayer`]: what our own errors are as responses;
//! - [`GrpcClass`], [`GrpcHeadLayer`], [`GrpcReplay`], [`grpc_refusal`]: the same for gRPC, whose status may
//!   come after the body.
//!
//! What knows a client is behind a feature of its name: `hyper`, `reqwest`, `tonic`.

mod as_response;
mod at_end;
mod authority;
mod body;
mod bounds;
mod chain;
mod class;
mod drain;
mod errors;
mod fence;
mod grpc;
mod hops;
#[cfg(feature = "hyper")]
mod hyper;
mod leader;
mod record;
mod refusal;
mod replay;
#[cfg(feature = "reqwest")]
mod reqwest;
mod retry_after;
#[cfg(test)]
mod testing;
#[cfg(feature = "tonic")]
mod tonic;

#[cfg(feature = "hyper")]
pub use self::hyper::{Hyper, HyperFuture, hyper};
#[cfg(feature = "reqwest")]
pub use self::reqwest::{
    AsReqwest, AsReqwestFuture, AsReqwestLayer, KeptReqwest, Reqwest, ReqwestFuture, ReqwestReplay,
    as_reqwest, reqwest,
};
#[cfg(feature = "tonic")]
pub use self::tonic::{ChannelBody, ChannelError, Tonic, TonicFuture, grpc_status, tonic};
pub use self::{
    as_response::{
        ByReason, RejectedAsResponse, RejectedAsResponseFuture, RejectedAsResponseLayer, Table,
    },
    at_end::{AtEnd, ClassifyEnd, ReportBody, WholeBody},
    authority::{Authority, ByAuthority, InvalidAuthority},
    body::Body,
    bounds::HttpClient,
    class::{CustomHttpClass, HttpClass, OVERLOADED},
    drain::Drain,
    errors::{is_connect, is_timeout},
    fence::{Fencing, FencingFuture, FencingLayer, LEADERSHIP_FENCE, SendFence, SendFenceLayer},
    grpc::{
        ByCode, Code, CustomGrpcClass, GrpcClass, GrpcCloneReplay, GrpcHead, GrpcHeadFuture,
        GrpcHeadLayer, GrpcReplay, PeekedBody, grpc_refusal,
    },
    hops::{
        ReceiveDeadline, ReceiveDeadlineFuture, ReceiveDeadlineLayer, SendDeadline,
        SendDeadlineLayer, grpc_timeout,
    },
    leader::{
        ForwardedOnce, LEADERSHIP_FORWARDED, RedirectToLeader, RedirectToLeaderFuture,
        RedirectToLeaderLayer,
    },
    record::{KeptRecord, RecordReplay, ReplayBody},
    refusal::{Refusal, refusal},
    replay::{HttpReplay, Idempotent},
    retry_after::retry_after,
};
