//! A fallback for another answer than the service's, and a closure where a named answer belongs.
//~ Cause<u32>
//~ Cause<String>

use std::io;

use buttress::{Cause, Standard};
use tower::{Layer, service_fn};

async fn double(n: u32) -> io::Result<u32> {
    Ok(n * 2)
}

fn main() {
    let double = service_fn(double);

    let stack = Standard::generic().fallback(|_: &Cause<String>| String::new()).build().unwrap();
    let service = stack.layer(double);
    buttress::check::<u32, _>(&service); //~ type mismatch in closure arguments

    let stack = Standard::generic().fallback_with(|_: &Cause<u32>| 0).build().unwrap();
    let service = stack.layer(double);
    buttress::check::<u32, _>(&service); //~ is no fallback for `u32`
}
