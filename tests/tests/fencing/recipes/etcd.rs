//! In etcd: tasks that share a client, each with the terms that it knows of, while others begin.

use buttress::FencingToken;
use buttress_servers::Server;
use futures_util::future::join_all;

use super::{TERMS, WRITERS};

include!("../../../../docs/recipes/etcd.rs");

const LEASE: &str = "leases/orders";

/// Begins a term: the one before ends with its key.
async fn begins(client: &mut etcd_client::Client) -> FencingToken {
    client.delete(LEASE, None).await.unwrap();
    let put = client.put(LEASE, "somebody", None).await.unwrap();
    let made = put.header().unwrap().revision();
    FencingToken::new(made.cast_unsigned()).unwrap()
}

#[tokio::test]
async fn a_write_of_a_term_that_is_over_fails_even_if_nobody_has_written_since() {
    let server = Server::etcd().await;
    let client = &mut etcd_client::Client::connect([server.url()], None).await.unwrap();
    let first = begins(client).await;
    assert!(write(client, LEASE, first, ("orders/7", "paid")).await.unwrap());
    let second = begins(client).await;
    assert!(!write(client, LEASE, first, ("orders/7", "open")).await.unwrap());
    assert!(write(client, LEASE, second, ("orders/7", "sent")).await.unwrap());
    client.delete(LEASE, None).await.unwrap();
    assert!(!write(client, LEASE, second, ("orders/7", "lost")).await.unwrap());
    let seen = client.get("orders/7", None).await.unwrap();
    assert_eq!(seen.kvs()[0].value_str().unwrap(), "sent");
}

// LDR-02
#[tokio::test]
async fn however_old_and_new_writers_race_what_is_accepted_never_decreases() {
    let server = Server::etcd().await;
    let client = etcd_client::Client::connect([server.url()], None).await.unwrap();
    let terms = tokio::sync::watch::Sender::new(Vec::new());
    let term = async {
        let mut client = client.clone();
        for _ in 0..TERMS {
            let token = begins(&mut client).await;
            terms.send_modify(|terms| terms.push(token));
        }
    };
    let writers = (0..WRITERS).map(|writer| {
        let (mut client, mut terms) = (client.clone(), terms.subscribe());
        async move {
            let (mut tried, mut refused) = (0, 0);
            while tried < TERMS {
                let known = terms.wait_for(|terms| !terms.is_empty()).await.unwrap().clone();
                // Some come with the latest term that they know, and some with the one before.
                let back = usize::try_from((tried + writer) % 2).unwrap();
                let token = known[known.len().saturating_sub(1 + back)];
                let value = token.to_string();
                let done = write(&mut client, LEASE, token, ("orders/7", &value)).await.unwrap();
                refused += usize::from(!done);
                tried += 1;
            }
            refused
        }
    });
    let ((), refused) = tokio::join!(term, join_all(writers));
    let refused: usize = refused.into_iter().sum();
    let tried = usize::try_from(WRITERS * TERMS).unwrap();
    // And the last one writes, whatever came before, and the first does not.
    let (first, last) = (terms.borrow()[0], *terms.borrow().last().unwrap());
    for (token, is_let_in) in [(last, true), (first, false)] {
        let value = token.to_string();
        let done = write(&mut client.clone(), LEASE, token, ("orders/7", &value)).await;
        assert_eq!(done.unwrap(), is_let_in, "{token}");
    }
    let accepted = tried - refused + 1;
    let mut history = client.watch_client();
    let since = etcd_client::WatchOptions::new().with_start_revision(1);
    let mut history = history.watch("orders/7", Some(since)).await.unwrap();
    let mut told: Vec<u64> = Vec::new();
    while told.len() < accepted {
        let more = history.message().await.unwrap().expect("there is more");
        let values = more.events().iter().map(|event| event.kv().unwrap().value_str().unwrap());
        told.extend(values.map(|value| value.parse::<u64>().unwrap()));
    }
    assert!(told.is_sorted(), "{told:?}");
}
