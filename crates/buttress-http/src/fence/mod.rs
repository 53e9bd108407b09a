//! Fencing tokens that go from a leader to what it writes to.
//!
//! A lease keeps two leaders apart for as long as everybody looks at a clock. A process that stands still looks at none:
//! it goes on where it was, and what it sends arrives while another one leads. Nothing on its side can prevent that. So
//! each request says of which term it is, and the resource refuses those of a term that another one has followed:
//! [`SendFenceLayer`] writes the token into a header, [`FencingLayer`] compares it on the other side.

mod fencing;
mod send;

use buttress_core::FencingToken;
use http::{HeaderMap, HeaderName};

pub use self::{
    fencing::{Fencing, FencingFuture, FencingLayer},
    send::{SendFence, SendFenceLayer},
};

/// The header that a fencing token goes in: `leadership-fence`, a decimal number.
///
/// gRPC's metadata are headers, and so it is the key there.
pub const LEADERSHIP_FENCE: HeaderName = HeaderName::from_static("leadership-fence");

/// The token in the headers, if there is such a header. It is one of digits alone, or else none: of two of them
/// nobody knows which counts.
fn read(headers: &HeaderMap) -> Option<Result<FencingToken, Malformed>> {
    let mut values = headers.get_all(LEADERSHIP_FENCE).iter();
    let value = values.next()?;
    let token = match values.next() {
        Some(_) => None,
        None => value.to_str().ok().and_then(|text| text.parse().ok()),
    };
    Some(token.ok_or(Malformed))
}

fn write(token: FencingToken, headers: &mut HeaderMap) {
    headers.insert(LEADERSHIP_FENCE, token.get().into());
}

/// There is a header, and what it says is no token.
struct Malformed;
