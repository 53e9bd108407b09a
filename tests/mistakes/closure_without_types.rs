//! A closure in whose arguments the lifetimes are not written, so that the compiler takes them for one of each.
//~ closure with signature `fn(Result<&

use std::io;

use buttress::{Class, Standard};
use tower::{Layer, service_fn};

async fn double(n: u32) -> io::Result<u32> {
    Ok(n * 2)
}

fn main() {
    let double = service_fn(double);
    let class = |result: Result<_, _>| if result.is_ok() { Class::Success } else { Class::Fatal };
    let stack = Standard::generic().classify(class).build().unwrap();
    let service = stack.layer(double);
    buttress::check::<u32, _>(&service); //~ is not general enough
}
