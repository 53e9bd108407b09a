//! Writes the client and the server of `shop.Orders`, without `protoc` and a `.proto` file.

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    let method = |name: &str, route: &str| {
        Method::builder()
            .name(name)
            .route_name(route)
            .input_type("crate::shop::Order")
            .output_type("crate::shop::Receipt")
            .codec_path("tonic_prost::ProstCodec")
            .build()
    };
    let orders = Service::builder()
        .package("shop")
        .name("Orders")
        .method(method("price", "Price"))
        .method(method("place", "Place"))
        .build();
    Builder::new().compile(&[orders]);
}
