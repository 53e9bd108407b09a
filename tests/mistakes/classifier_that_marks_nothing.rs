//! A classifier with a name, which a fallback marks its answers with.
//~ implement `buttress::Mark<u32>` for the classifier: one that does nothing will do

use std::io;

use buttress::{BoxError, Class, Classify, Standard};
use tower::{Layer, service_fn};

#[derive(Clone)]
struct ZeroIsFailure;

impl Classify<u32> for ZeroIsFailure {
    fn classify(&self, result: Result<&u32, &BoxError>) -> Class {
        if matches!(result, Ok(0)) { Class::Fatal } else { Class::Success }
    }
}

async fn double(n: u32) -> io::Result<u32> {
    Ok(n * 2)
}

fn main() {
    let double = service_fn(double);
    let stack = Standard::generic().classify(ZeroIsFailure).build().unwrap();
    let service = stack.layer(double);
    buttress::check::<u32, _>(&service); //~ `ZeroIsFailure` cannot mark `u32` as a substitute
}
