//! A layer that refuses, on axum, with nothing around it that turns refusals into responses.
// HTP-06
//~ PutRejectedAsResponseLayerOutermost

use axum::{Router, routing::get};
use buttress::{Bulkhead, BulkheadLayer};

fn main() {
    let app: Router = Router::new()
        .route("/", get(async || "hello"))
        .layer(BulkheadLayer::new(Bulkhead::default())); //~ the trait bound `Infallible: From<Box<
    drop(app);
}
