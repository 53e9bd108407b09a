//! What is behind a feature that is off.
//~ the item is gated behind the `shed` feature

use buttress::ShedLayer; //~ unresolved import `buttress::ShedLayer`
use buttress::http::reqwest; //~ unresolved import `buttress::http::reqwest`

fn main() {
    let _ = (ShedLayer::new, reqwest);
}
