use std::{fmt, time::Duration};

use buttress_core::Class;
use http::{HeaderMap, HeaderValue, StatusCode};

use super::{GRPC_STATUS, LONGEST_PUSHBACK, PUSHBACK};

/// The status of a gRPC call: its [17 codes].
///
/// [17 codes]: https://grpc.io/docs/guides/status-codes/
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
// There are no more of them: one that is not known is `Unknown`, by the protocol.
#[allow(clippy::exhaustive_enums)]
pub enum Code {
    /// It went well.
    Ok = 0,
    /// The caller gave up.
    Cancelled = 1,
    /// It failed, and nobody said how.
    Unknown = 2,
    /// The request is wrong, whatever the state of the callee.
    InvalidArgument = 3,
    /// It was not done in time. It may have been done all the same.
    DeadlineExceeded = 4,
    /// There is no such thing.
    NotFound = 5,
    /// There is such a thing already.
    AlreadyExists = 6,
    /// The caller may not do that.
    PermissionDenied = 7,
    /// Too many requests, or too much of something.
    ResourceExhausted = 8,
    /// The callee is not in a state for that.
    FailedPrecondition = 9,
    /// It lost to another call that ran at the same time.
    Aborted = 10,
    /// Beyond the end.
    OutOfRange = 11,
    /// There is no such method.
    Unimplemented = 12,
    /// Something is broken.
    Internal = 13,
    /// The callee cannot answer now.
    Unavailable = 14,
    /// Data is lost or corrupt.
    DataLoss = 15,
    /// Nobody knows who the caller is.
    Unauthenticated = 16,
}

/// What a callee says of coming again: its `grpc-retry-pushback-ms` ([gRFC A6]).
///
/// [gRFC A6]: https://github.com/grpc/proposal/blob/master/A6-client-retries.md#pushback
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pushback {
    /// Nothing.
    Unsaid,
    /// Not before that.
    After(Duration),
    /// Not at all. So says a negative number, and whatever cannot be read.
    Never,
}

/// A status, and what goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) code: Code,
    pub(super) pushback: Pushback,
}

// === impl Code ===

impl Code {
    const ALL: [Self; 17] = [
        Self::Ok,
        Self::Cancelled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
    ];

    /// The code of that number. A number that is none of them is [`Unknown`](Self::Unknown), as the protocol
    /// has it.
    #[must_use]
    pub fn from_i32(number: i32) -> Self {
        let known = usize::try_from(number).ok().and_then(|number| Self::ALL.get(number));
        known.copied().unwrap_or(Self::Unknown)
    }

    /// What an HTTP status says where there is no gRPC status beside it, as when a proxy has answered: by
    /// [gRPC's own table][table].
    ///
    /// | HTTP | gRPC |
    /// |---|---|
    /// | 400 | `INTERNAL` |
    /// | 401 | `UNAUTHENTICATED` |
    /// | 403 | `PERMISSION_DENIED` |
    /// | 404 | `UNIMPLEMENTED` |
    /// | 429, 502, 503, 504 | `UNAVAILABLE` |
    /// | all others, 200 too | `UNKNOWN` |
    ///
    /// [table]: https://github.com/grpc/grpc/blob/master/doc/http-grpc-status-mapping.md
    #[must_use]
    pub fn from_http(status: StatusCode) -> Self {
        match status.as_u16() {
            400 => Self::Internal,
            401 => Self::Unauthenticated,
            403 => Self::PermissionDenied,
            404 => Self::Unimplemented,
            429 | 502..=504 => Self::Unavailable,
            _ => Self::Unknown,
        }
    }

    /// The `grpc-status` in a head or in trailers, if there is one.
    ///
    /// One that cannot be read is [`Unknown`](Self::Unknown), and so are two of them: it was said that there
    /// is a status, but not which.
    #[must_use]
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(GRPC_STATUS).iter();
        let value = values.next()?;
        if values.next().is_some() {
            return Some(Self::Unknown);
        }
        Some(number(value).map_or(Self::Unknown, Self::from_i32))
    }

    /// The code's name, as the protocol writes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Cancelled => "CANCELLED",
            Self::Unknown => "UNKNOWN",
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::NotFound => "NOT_FOUND",
            Self::AlreadyExists => "ALREADY_EXISTS",
            Self::PermissionDenied => "PERMISSION_DENIED",
            Self::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Self::FailedPrecondition => "FAILED_PRECONDITION",
            Self::Aborted => "ABORTED",
            Self::OutOfRange => "OUT_OF_RANGE",
            Self::Unimplemented => "UNIMPLEMENTED",
            Self::Internal => "INTERNAL",
            Self::Unavailable => "UNAVAILABLE",
            Self::DataLoss => "DATA_LOSS",
            Self::Unauthenticated => "UNAUTHENTICATED",
        }
    }
}

impl From<Code> for i32 {
    fn from(code: Code) -> Self {
        code as Self
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// === impl Pushback ===

impl Pushback {
    pub(super) fn from_headers(headers: &HeaderMap) -> Self {
        let mut values = headers.get_all(PUSHBACK).iter();
        let Some(value) = values.next() else { return Self::Unsaid };
        match (number(value), values.next()) {
            (Some(millis), None) => {
                Self::After(Duration::from_millis(millis.unsigned_abs().into()))
            }
            _ => Self::Never,
        }
    }

    /// The class, with what is said of coming again.
    pub(super) const fn on(self, class: Class) -> Class {
        match (self, class) {
            (Self::After(after), Class::Throttled { after: None }) => {
                Class::Throttled { after: Some(after) }
            }
            (Self::After(after), Class::Transient { after: None }) => {
                Class::Transient { after: Some(after) }
            }
            // Busy, not ill; and a repeat is not wanted.
            (Self::Never, Class::Throttled { .. }) => Class::Refused,
            (Self::Never, Class::Transient { .. } | Class::Unreachable) => Class::Fatal,
            (_, class) => class,
        }
    }
}

// === impl Status ===

impl Status {
    /// The status in a head or in trailers, if there is one.
    pub(super) fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let code = Code::from_headers(headers)?;
        Some(Self { code, pushback: Pushback::from_headers(headers) })
    }

    /// The callee has ended, and never said how it went.
    pub(super) const MISSING: Self = Self { code: Code::Unknown, pushback: Pushback::Unsaid };

    pub(super) const fn class(self) -> Class {
        self.pushback.on(class_of(self.code))
    }
}

/// The class of a status that a client read.
#[cfg(feature = "tonic")]
pub(crate) fn class_of_status(code: i32, headers: &HeaderMap) -> Class {
    Status { code: Code::from_i32(code), pushback: Pushback::from_headers(headers) }.class()
}

const fn class_of(code: Code) -> Class {
    match code {
        Code::Ok => Class::Success,
        Code::ResourceExhausted => Class::Throttled { after: None },
        Code::Unavailable | Code::DeadlineExceeded | Code::Aborted | Code::Unknown => {
            Class::Transient { after: None }
        }
        Code::Internal | Code::DataLoss => Class::Fatal,
        Code::Cancelled
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Unauthenticated => Class::CallerError,
    }
}

/// A number of digits alone, from 0 to [`LONGEST_PUSHBACK`].
fn number(value: &HeaderValue) -> Option<i32> {
    let text = value.to_str().ok()?.trim_matches([' ', '\t']);
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let number: u32 = text.parse().ok()?;
    (number <= LONGEST_PUSHBACK).then_some(number as i32)
}
