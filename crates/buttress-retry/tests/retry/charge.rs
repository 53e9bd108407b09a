//! Which of several retries is in charge, and what the context says of it.

use crate::support::*;
use buttress_core::Context;
use buttress_retry::{Backoff, Budget, BudgetSettings, RetryLayer};
use tower::{Layer, Service, ServiceExt, service_fn};

// BUD-06
#[tokio::test(start_paused = true)]
async fn three_attempts_over_three_make_three() {
    let (outer, inner) = (rich(), rich());
    let callee = Callee::always(BUSY);
    let mut nested = within(&outer).layer(over(&within(&inner), &callee));
    assert_eq!(send(&mut nested).await.unwrap(), BUSY);
    assert_eq!(callee.calls(), 3);
    assert_eq!((outer.stats().granted, inner.stats().granted + inner.stats().refused), (2, 0));
}

// BUD-06
#[tokio::test(start_paused = true)]
async fn an_independent_one_repeats_within_each_attempt() {
    let callee = Callee::always(BUSY);
    let mut nested = at_once().layer(over(&at_once().independent(), &callee));
    send(&mut nested).await.unwrap();
    assert_eq!(callee.calls(), 9);
}

#[tokio::test(start_paused = true)]
async fn a_success_is_counted_once_by_the_one_in_charge() {
    let budget = Budget::default();
    let callee = Callee::new([failed(1), Act::Answer(OK)]);
    let mut nested = within(&budget).layer(within(&budget).layer(over(&within(&budget), &callee)));
    assert_eq!(send(&mut nested).await.unwrap(), OK);
    assert_eq!(budget.stats().deposits, 1);
}

#[tokio::test(start_paused = true)]
async fn work_that_a_server_begins_is_its_own() {
    let callee = Callee::always(BUSY);
    let client = over(&at_once(), &callee);
    // A handler that calls on, behind the layers of a server, beneath a retry in the same process.
    let server = service_fn(move |request| {
        let mut client = client.clone();
        Context::current()
            .with_attempt(0)
            .scope(async move { client.ready().await?.call(request).await })
    });
    send(&mut at_once().layer(server)).await.unwrap();
    assert_eq!(callee.calls(), 9);
}

#[tokio::test(start_paused = true)]
async fn attempts_are_numbered_from_one_in_readiness_call_and_polls() {
    let callee = Callee::new([failed(1), failed(2), Act::Answer(OK)]);
    let mut service = over(&at_once(), &callee);
    service.ready().await.unwrap();
    let call = service.call("request");
    assert_eq!(Context::current().attempt(), 0);
    call.await.unwrap();
    assert_eq!(Context::current().attempt(), 0);
    let numbers = callee.numbers();
    // The service's own readiness belongs to no request.
    assert_eq!(numbers[..3], [("readiness", 0), ("call", 1), ("poll", 1)]);
    assert_eq!(numbers[3..6], [("readiness", 2), ("call", 2), ("poll", 2)]);
    assert_eq!(numbers[6..], [("readiness", 3), ("call", 3), ("poll", 3)]);
}

#[tokio::test(start_paused = true)]
async fn a_first_attempt_that_waits_for_readiness_is_the_first() {
    let callee =
        Callee::new([Act::Answer(OK)]).readiness([Readiness::After(SEC), Readiness::After(SEC)]);
    send(&mut over(&at_once(), &callee)).await.unwrap();
    let numbers = callee.numbers();
    assert_eq!(numbers[0], ("readiness", 0));
    assert_eq!(numbers[1], ("readiness", 1));
    assert_eq!(numbers[numbers.len() - 2..], [("call", 1), ("poll", 1)]);
}

#[tokio::test(start_paused = true)]
async fn one_that_cannot_repeat_leaves_it_to_the_one_beneath() {
    let callee = Callee::always(BUSY);
    send(&mut at_once().attempts(1).layer(over(&at_once(), &callee))).await.unwrap();
    assert_eq!(callee.calls(), 3, "a single attempt is in charge of nothing");

    let callee = Callee::always(BUSY);
    let outer = at_once().replay(buttress_core::NoReplay);
    send(&mut outer.layer(over(&at_once(), &callee))).await.unwrap();
    assert_eq!(callee.calls(), 3, "nor is one that kept nothing");
}

#[tokio::test(start_paused = true)]
async fn one_that_cannot_repeat_leaves_the_number_of_the_one_above() {
    for layer in [at_once().attempts(1).independent(), at_once().attempts(1), at_once()] {
        let callee = Callee::new([failed(1), Act::Answer(OK)]);
        send(&mut at_once().layer(over(&layer, &callee))).await.unwrap();
        let numbers: Vec<u32> = callee
            .numbers()
            .into_iter()
            .filter(|(place, _)| *place == "call")
            .map(|n| n.1)
            .collect();
        assert_eq!(numbers, [1, 2]);
    }
}

// RET-07, BLK-01
#[tokio::test(start_paused = true)]
async fn clones_of_a_layer_and_of_its_services_share_one_budget() {
    let budget = budget(BudgetSettings::default().reserve(1).refill(0.0));
    let layer = RetryLayer::new(Backoff::none(), budget.clone()).classify(classify as Classifier);
    let callee = Callee::always(BUSY);
    for mut service in [over(&layer, &callee), over(&layer.clone(), &callee)] {
        send(&mut service.clone()).await.unwrap();
        send(&mut service).await.unwrap();
    }
    assert_eq!(callee.calls(), 5);
}
