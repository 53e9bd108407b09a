//! A server's layers in every place that axum has for them.
// HTP-06

use axum::{Router, routing::get};
use buttress::{
    Bulkhead, BulkheadLayer,
    http::{ReceiveDeadlineLayer, RejectedAsResponseLayer},
};
use tower::ServiceBuilder;

fn main() {
    let layers = ServiceBuilder::new()
        .layer(RejectedAsResponseLayer::new())
        .layer(ReceiveDeadlineLayer::grpc())
        .layer(BulkheadLayer::new(Bulkhead::default()));
    let api = Router::new()
        .route("/method", get(async || "hello").layer(layers.clone()))
        .route("/route", get(async || "hello"))
        .route_layer(layers.clone());
    let app: Router = Router::new().nest("/api", api).layer(layers);
    drop(app);
}
