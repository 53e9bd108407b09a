//! What is behind a feature that is off.
//~ the item is gated behind the `reqwest` feature

use buttress::http::reqwest; //~ unresolved import `buttress::http::reqwest`

fn main() {
    let _ = reqwest;
}
