//! What a breaker is made of, where a breaker belongs.
//~ `BreakerLayer::new` takes a `Breaker::new(settings)?`

use std::io;

use buttress::{Breaker, BreakerLayer, BreakerSettings, Standard};
use tower::{Layer, service_fn};

async fn double(n: u32) -> io::Result<u32> {
    Ok(n * 2)
}

fn main() {
    let double = service_fn(double);

    let service = BreakerLayer::new(BreakerSettings::default()).layer(double);
    buttress::check::<u32, _>(&service); //~ `BreakerSettings` is not a breaker for `u32`

    let breaker = Breaker::new(BreakerSettings::default()); // no `?`
    let stack = Standard::generic().with_breakers(breaker).build().unwrap();
    let service = stack.layer(double);
    buttress::check::<u32, _>(&service); //~ `Result<Breaker, InvalidSetting>` is not a breaker
}
