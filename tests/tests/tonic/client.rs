//! What a generated client's caller sees of a call through the stack.

use std::{error::Error, time::Duration};

use buttress::{
    BulkheadSettings, Elapsed, Limit, Reason, Rejected, Standard,
    http::{ChannelError, GrpcHeadLayer, GrpcReplay, grpc_timeout, tonic},
};
use futures_util::{StreamExt, stream};
use tokio::net::TcpListener;
use tonic::{Code, Request, Status};
use tower::ServiceBuilder;

use super::{channel, client, ms, ours, patient, serve, standard, until};
use crate::shop::{OrdersClient, Shop, order};

/// All the texts of an answer, or how it failed.
async fn texts(answer: tonic::Streaming<super::shop::Receipt>) -> Vec<Result<String, Code>> {
    answer.map(|receipt| receipt.map(|r| r.text).map_err(|status| status.code())).collect().await
}

// GRP-01
#[tokio::test]
async fn a_status_before_the_first_message_is_repeated_and_one_after_it_is_not() {
    let shop = Shop::default();
    let addr = serve(&shop).await;

    // A head that says it.
    let stack = standard(patient());
    let mut orders = client(&stack, addr);
    let answer = orders.get(order("busy 1 a")).await.unwrap();
    assert_eq!((answer.into_inner().text.as_str(), shop.calls()), ("busy 1 a", 2));
    let stats = stack.breakers().stats();
    assert_eq!((stats.failure, stats.success), (1, 1));

    // A head, then trailers.
    let stack = standard(patient());
    let mut orders = client(&stack, addr);
    let answer = orders.list(order("busy 1 b")).await.unwrap().into_inner();
    assert_eq!(texts(answer).await, [Ok("busy 1 b".to_owned())]);
    assert_eq!(shop.calls(), 4);
    let stats = stack.breakers().stats();
    assert_eq!((stats.failure, stats.success), (1, 1));

    // A head, a message, then trailers.
    let stack = standard(patient());
    let mut orders = client(&stack, addr);
    let answer = orders.list(order("tea|busy 1 c")).await.unwrap().into_inner();
    assert_eq!(texts(answer).await, [Ok("tea".to_owned()), Err(Code::Unavailable)]);
    assert_eq!(shop.calls(), 6, "two orders of one call");
    let stats = stack.breakers().stats();
    assert_eq!((stats.failure, stats.success), (1, 0));
}

#[tokio::test]
async fn calls_of_every_kind_go_through_and_are_the_same_for_every_attempt() {
    let shop = Shop::default();
    let addr = serve(&shop).await;
    let stack = Standard::grpc("orders").settings(patient()).replay(GrpcReplay::all());
    let mut orders = client(&stack.build().unwrap(), addr);
    let asked = || stream::iter(["tea", "busy 2 d", "milk"].map(order));
    let answer = orders.place(asked()).await.unwrap().into_inner();
    assert_eq!((answer.text.as_str(), shop.calls()), ("teabusy 2 dmilk", 2 + 2 + 3));

    let asked = stream::iter(["busy 2 e", "tea"].map(order));
    let answer = orders.talk(asked).await.unwrap().into_inner();
    assert_eq!(texts(answer).await, ["busy 2 e", "tea"].map(|text| Ok(text.to_owned())));
    assert_eq!(shop.calls(), 7 + 1 + 1 + 2);

    let answer = orders.list(order("tea|milk")).await.unwrap().into_inner();
    assert_eq!(texts(answer).await, ["tea", "milk"].map(|text| Ok(text.to_owned())));
    assert_eq!(orders.get(order("tea")).await.unwrap().into_inner().text, "tea");
}

// RET-11
#[tokio::test]
async fn a_method_that_is_not_named_is_sent_once() {
    let shop = Shop::default();
    let addr = serve(&shop).await;
    let mut orders = client(&standard(patient()), addr);
    let status = orders.place(stream::iter([order("busy 1 f")])).await.unwrap_err();
    assert_eq!((status.code(), status.message(), shop.calls()), (Code::Unavailable, "busy", 1));
}

// RET-01
#[tokio::test]
async fn a_request_that_is_longer_than_the_cap_is_sent_once() {
    let shop = Shop::default();
    let addr = serve(&shop).await;
    let mut orders = client(&standard(patient()), addr);
    let long = |bytes: usize, name: &str| order(&format!("busy 1 {name}{}", "x".repeat(bytes)));
    let answer = orders.get(long(60 * 1024, "g")).await.unwrap();
    assert_eq!(
        (answer.into_inner(), shop.calls()),
        (super::shop::Receipt { text: long(60 * 1024, "g").text }, 2)
    );
    let status = orders.get(long(64 * 1024, "h")).await.unwrap_err();
    assert_eq!((status.code(), shop.calls()), (Code::Unavailable, 3));
}

// GRP-09
#[tokio::test]
async fn what_the_server_says_comes_as_it_is() {
    let shop = Shop::default();
    let addr = serve(&shop).await;
    for code in 1..=16 {
        // A stack for each: some of them open the breaker.
        let mut orders = client(&standard(patient()), addr);
        let before = shop.calls();
        let status = orders.get(order(&format!("status {code}"))).await.unwrap_err();
        assert_eq!((i32::from(status.code()), status.message()), (code, "as ordered"));
        let repeated = [2, 4, 8, 10, 14].contains(&code);
        assert_eq!(shop.calls() - before, if repeated { 3 } else { 1 }, "{code}");
    }
}

// GRP-07
#[tokio::test]
async fn an_open_breaker_is_unavailable() {
    let shop = Shop::default();
    let stack = standard(patient());
    stack.breakers().force_open();
    let status = client(&stack, serve(&shop).await).get(order("tea")).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "circuit open"));
    let source = status.source().unwrap().downcast_ref::<Rejected>().unwrap();
    assert_eq!((source.reason(), shop.calls()), (Reason::CircuitOpen, 0));
}

// GRP-07
#[tokio::test]
async fn a_full_bulkhead_is_resource_exhausted() {
    let shop = Shop::default();
    let mut settings = patient();
    settings.bulkhead = BulkheadSettings::new(1);
    let stack = standard(settings);
    let mut orders = client(&stack, serve(&shop).await);
    let mut held = orders.clone();
    let held = tokio::spawn(async move { held.get(order("hang")).await });
    until("a call is in flight", || shop.hanging() == 1).await;
    let status = orders.get(order("tea")).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "bulkhead full"));
    let source = status.source().unwrap().downcast_ref::<Rejected>().unwrap();
    assert_eq!((source.reason(), shop.calls()), (Reason::BulkheadFull, 1));
    held.abort();
    until("the call that was given up has left the server", || shop.hanging() == 0).await;
    assert_eq!(orders.get(order("tea")).await.unwrap().into_inner().text, "tea");
}

// GRP-07
#[tokio::test]
async fn time_that_is_up_is_deadline_exceeded_whichever_limit_it_was() {
    let shop = Shop::default();
    let addr = serve(&shop).await;
    let mut settings = patient();
    settings.attempt = ms(50);
    let mut orders = client(&standard(settings.clone()), addr);
    let status = orders.place(stream::iter([order("hang")])).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert_eq!(ours(&status), Some(&Elapsed::new(Limit::Attempt, ms(50))));

    settings.total = ms(60);
    settings.retry.attempts = 1;
    let mut orders = client(&standard(settings), addr);
    // The head and a message came in time, the rest does not: the deadline holds to the end.
    let answer = orders.list(order("tea|hang")).await.unwrap().into_inner();
    let mut answer = answer.map(|receipt| receipt.map(|receipt| receipt.text));
    assert_eq!(answer.next().await.unwrap().unwrap(), "tea");
    let status = answer.next().await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert_eq!(ours(&status), Some(&Elapsed::new(Limit::Total, ms(60))));
}

// GRP-07
#[tokio::test]
async fn it_is_never_cancelled_whether_stack_channel_or_server_notices_first() {
    let addr = serve(&Shop::default()).await;
    let mut settings = patient();
    settings.attempt = ms(20);
    settings.retry.attempts = 1;
    let stack = standard(settings);
    // Nothing may open it: each call is to be made.
    stack.breakers().force_closed();
    let orders = client(&stack, addr);
    let calls = stream::iter(0..300).map(|_| {
        let mut orders = orders.clone();
        async move { orders.get(order("hang")).await.unwrap_err() }
    });
    for status in calls.buffer_unordered(10).collect::<Vec<Status>>().await {
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        assert_eq!(ours::<Elapsed>(&status).unwrap().which(), Limit::Attempt);
    }
}

// GRP-04, GRP-07
#[tokio::test]
async fn a_limit_that_the_channel_keeps_by_itself_is_deadline_exceeded_and_not_cancelled() {
    let shop = Shop::default();
    let addr = serve(&shop).await;
    let mut orders = client(&standard(patient()), addr);
    let mut request = Request::new(stream::iter([order("hang")]));
    request.set_timeout(ms(50));
    let status = orders.place(request).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    let error = ours::<ChannelError>(&status).unwrap();
    assert_eq!(error.status().code(), Code::DeadlineExceeded);
    assert!(ours::<tonic::TimeoutExpired>(&status).is_some());
}

// GRP-04
#[tokio::test]
async fn a_server_is_told_of_the_time_that_is_left() {
    let addr = serve(&Shop::default()).await;
    let mut orders = client(&standard(patient()), addr);
    let told = orders.get(order("timeout")).await.unwrap().into_inner().text;
    let left = grpc_timeout::decode(&told).unwrap();
    assert!(left <= Duration::from_secs(25), "{told}");
}

// TMO-07
#[tokio::test]
async fn a_server_sees_each_of_a_hundred_calls_that_timed_out_reset() {
    let shop = Shop::default();
    let addr = serve(&shop).await;
    let mut settings = patient();
    settings.attempt = ms(500);
    settings.retry.attempts = 1;
    // The server is not told of the limit: it can only learn of it by a reset.
    let stack = ServiceBuilder::new()
        .layer(standard(settings))
        .layer(GrpcHeadLayer::new())
        .service(tonic(channel(addr)));
    let orders = OrdersClient::new(stack);
    let calls = stream::iter(0..100).map(|_| {
        let mut orders = orders.clone();
        async move { orders.get(order("hang")).await.map(drop) }
    });
    let answers = calls.buffer_unordered(100).collect::<Vec<Result<(), Status>>>().await;
    for answer in answers {
        assert_eq!(answer.unwrap_err().code(), Code::DeadlineExceeded);
    }
    println!("{} of 100 had come to the server", shop.calls());
    until("every stream is reset", || shop.hanging() == 0).await;
    assert!(shop.calls() > 0);
}

#[tokio::test]
async fn nobody_there_is_unavailable_and_says_so() {
    let addr = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let stack = standard(patient());
    let status = client(&stack, addr).get(order("tea")).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.message().contains("refused"), "{status}");
    assert!(ours::<ChannelError>(&status).is_some());
    assert!(ours::<std::io::Error>(&status).is_some(), "nothing is cut");
    assert_eq!(stack.breakers().stats().failure, 3, "nothing was sent, so it was tried again");
}
