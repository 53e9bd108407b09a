//! In PostgreSQL: tasks, each with a connection of its own to one server.

use buttress_servers::Server;
use futures_util::future::{BoxFuture, join_all};
use tokio_postgres::{Client, Error, NoTls, Transaction};

use super::{CHECK, RAISE, ROW, TABLE, WRITERS, assert_fenced, tokens};

/// What the tests keep beside the recipes: the row that they write, and which tokens were let in. The order is that of
/// the numbers, since each is drawn under the lock that lets the next one in.
const SCHEMA: &str = "
DROP TABLE IF EXISTS accounts, accepted, fence_guard;
CREATE TABLE accounts (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL, fence BIGINT NOT NULL);
INSERT INTO accounts VALUES (7, 0, 0);
CREATE TABLE accepted (nth BIGSERIAL PRIMARY KEY, token BIGINT NOT NULL);
";

const LEASE: &str = "orders";

async fn connect(server: &Server) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn is_fresh(client: &Client) {
    client.batch_execute(&format!("{SCHEMA}{TABLE}")).await.unwrap();
}

async fn accepted(client: &Client) -> Vec<i64> {
    let rows = client.query("SELECT token FROM accepted ORDER BY nth", &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// Writes under a token, if it is let in.
type Write = for<'a> fn(&'a mut Client, i64) -> BoxFuture<'a, Result<bool, Error>>;

/// By the fence in the row itself.
fn by_row(client: &mut Client, token: i64) -> BoxFuture<'_, Result<bool, Error>> {
    Box::pin(async move {
        let transaction = client.transaction().await?;
        if transaction.execute(ROW, &[&(token * 100), &token, &7_i64]).await? == 0 {
            return Ok(false);
        }
        note(transaction, token).await
    })
}

/// By the guard's row, which each transaction raises.
fn by_guard(client: &mut Client, token: i64) -> BoxFuture<'_, Result<bool, Error>> {
    Box::pin(async move {
        let transaction = client.transaction().await?;
        if transaction.execute(RAISE, &[&LEASE, &token]).await? == 0 {
            return Ok(false);
        }
        note(transaction, token).await
    })
}

/// By the guard's row, which the term has raised as it began.
fn by_guard_of_the_term(client: &mut Client, token: i64) -> BoxFuture<'_, Result<bool, Error>> {
    Box::pin(async move {
        if client.execute(RAISE, &[&LEASE, &token]).await? == 0 {
            return Ok(false);
        }
        let transaction = client.transaction().await?;
        if transaction.query_opt(CHECK, &[&LEASE, &token]).await?.is_none() {
            return Ok(false);
        }
        note(transaction, token).await
    })
}

/// Notes it, as any write to any table.
async fn note(transaction: Transaction<'_>, token: i64) -> Result<bool, Error> {
    transaction.execute("INSERT INTO accepted (token) VALUES ($1)", &[&token]).await?;
    transaction.commit().await?;
    Ok(true)
}

const RECIPES: [Write; 3] = [by_row, by_guard, by_guard_of_the_term];

// LDR-02
#[tokio::test(flavor = "multi_thread")]
async fn however_old_and_new_writers_race_what_is_accepted_never_decreases() {
    let server = Server::postgres().await;
    let client = connect(&server).await;
    for write in RECIPES {
        is_fresh(&client).await;
        let writers = join_all((0..WRITERS).map(|_| connect(&server))).await;
        let writers = writers.into_iter().zip(0..).map(|(mut client, writer)| {
            tokio::spawn(async move {
                let mut refused = 0;
                for token in tokens(writer) {
                    refused += usize::from(!write(&mut client, token).await.unwrap());
                }
                refused
            })
        });
        let refused = join_all(writers).await.into_iter().map(Result::unwrap).sum();
        assert_fenced(&accepted(&client).await, refused);
    }
}

#[tokio::test]
async fn a_newer_leader_waits_for_what_was_let_in_and_then_lets_in_no_more_of_it() {
    let server = Server::postgres().await;
    let [mut older, mut same, newer] =
        [connect(&server).await, connect(&server).await, connect(&server).await];
    is_fresh(&newer).await;
    let raise = async |client: &Client, token: i64| {
        client.execute(RAISE, &[&LEASE, &token]).await.unwrap() == 1
    };
    assert!(raise(&older, 33).await);
    let held = older.transaction().await.unwrap();
    assert!(held.query_opt(CHECK, &[&LEASE, &33_i64]).await.unwrap().is_some());
    assert!(by_guard_of_the_term_again(&mut same, 33).await, "side by side");

    let raised = tokio::spawn(async move { raise(&newer, 34).await });
    // It is there, and waits for the one that is held.
    let is_waiting = "SELECT 1 FROM pg_locks WHERE NOT granted";
    while same.query_opt(is_waiting, &[]).await.unwrap().is_none() {
        assert!(!raised.is_finished(), "it did not wait");
        tokio::task::yield_now().await;
    }
    assert!(note(held, 33).await.unwrap());
    assert!(raised.await.unwrap());
    assert!(!by_guard_of_the_term_again(&mut same, 33).await);
    assert_eq!(accepted(&same).await, [33, 33]);
}

/// A write of a term that has raised the guard already.
async fn by_guard_of_the_term_again(client: &mut Client, token: i64) -> bool {
    let transaction = client.transaction().await.unwrap();
    let is_let_in = transaction.query_opt(CHECK, &[&LEASE, &token]).await.unwrap().is_some();
    is_let_in && note(transaction, token).await.unwrap()
}
