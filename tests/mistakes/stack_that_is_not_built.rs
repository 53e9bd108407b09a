//! A builder where the stack belongs.
//~ `.build()?` checks its settings, and makes a layer of it

use std::io;

use buttress::{ServerStandard, Standard};
use tower::{Layer, ServiceBuilder, service_fn};

async fn double(n: u32) -> io::Result<u32> {
    Ok(n * 2)
}

fn main() {
    let double = service_fn(double);

    let _ = Standard::generic().layer(double); //~ this stack is not built yet
    let _ = ServerStandard::http(64).layer(double); //~ this stack is not built yet
    let _ = Standard::generic().build().layer(double); //~ no method named `layer` found for enum `Result
    let _ = ServiceBuilder::new().layer(Standard::generic()).service(double); //~ the method `service` exists
}
