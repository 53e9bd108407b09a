use buttress_shed::{Priority, ShedLayer, ShedSettings};
use buttress_test::{Subject, contract};

use crate::support::with;

// BLK-02, BLK-09, BLK-11, BLK-12
#[test]
fn it_keeps_the_contract_of_all_layers() {
    for max_queue in [0, 2, 64] {
        let make = || {
            let shed = with(3, ShedSettings::default().max_queue(max_queue));
            let layer = ShedLayer::new(shed.clone()).prioritize(Priority::SheddablePlus);
            Subject::new(layer, move || shed.in_flight() + shed.waiting())
        };
        contract(make, || "ping", || "pong");
    }
}
