//! A request that cannot be cloned, under a retry that clones.
//~ it repeats what is `Clone`
//~ to repeat nothing: `.replay(NoReplay)`

use std::io;

use buttress::Standard;
use tower::Layer;

struct Order(u32);

fn main() {
    let service = tower::service_fn(async |order: Order| Ok::<_, io::Error>(order.0));
    let stack = Standard::generic().build().unwrap();
    let service = stack.layer(service);
    buttress::check::<Order, _>(&service); //~ `CloneReplay` cannot send `Order` again
}
