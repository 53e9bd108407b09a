//! What knows HTTP alone, around a service that is none.
//~ `HttpClass` and `GrpcClass` know `http::Response`s, `ErrorsAsFailures` is for all others
//~ `|result: Result<&u32, &BoxError>| Class::Success`, its types written

use std::io;

use buttress::{
    BreakerLayer, BreakerSettings, Breakers, Standard,
    http::{ByAuthority, HttpClass, HttpReplay},
};
use tower::{Layer, service_fn};

async fn double(n: u32) -> io::Result<u32> {
    Ok(n * 2)
}

fn main() {
    let double = service_fn(double);

    let stack = Standard::generic().classify(HttpClass).build().unwrap();
    let service = stack.layer(double);
    buttress::check::<u32, _>(&service); //~ `HttpClass` cannot say what `u32` means

    let stack = Standard::generic().replay(HttpReplay).build().unwrap();
    let service = stack.layer(double);
    buttress::check::<u32, _>(&service); //~ `HttpReplay` cannot send `u32` again

    let breakers = Breakers::new(BreakerSettings::default(), ByAuthority).unwrap();
    let service = BreakerLayer::new(breakers).layer(double);
    buttress::check::<u32, _>(&service); //~ `ByAuthority` finds no key in `u32`

    let stack = Standard::http().build().unwrap();
    let service = stack.layer(double);
    buttress::check::<u32, _>(&service); //~ `HttpReplay` cannot send `u32` again
}
