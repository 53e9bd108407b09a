//! Makes the client and the server of a gRPC service with one method of each kind.
//!
//! By hand, and not from a `.proto` file, which would need a compiler of its own on the machine.

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    let method = |name: &str, route: &str| {
        Method::builder()
            .name(name)
            .route_name(route)
            .input_type("super::Order")
            .output_type("super::Receipt")
            .codec_path("tonic_prost::ProstCodec")
    };
    let orders = Service::builder()
        .package("shop")
        .name("Orders")
        .method(method("get", "Get").build())
        .method(method("list", "List").server_streaming().build())
        .method(method("place", "Place").client_streaming().build())
        .method(method("talk", "Talk").client_streaming().server_streaming().build());
    Builder::new().compile(&[orders.build()]);
    println!("cargo::rerun-if-changed=build.rs");
}
