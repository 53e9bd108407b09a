use std::time::Duration;

use buttress_leadership::{
    AcquireOutcome, Expiry, Identity, LeaseClock, LeaseStore,
    testing::{self, Subject},
};
use buttress_lease_postgres::{
    PostgresOptions, PostgresStore,
    tokio_postgres::{Client, Config},
};
use buttress_servers::{Server, until};
use futures_util::FutureExt;

use crate::server::{Database, TTL, acquire, acquired, lease};

/// The server's clock, and how it is set: a function that stands before PostgreSQL's own where names are looked up.
struct Wall(Client);

/// Where it stands. Tables are made there too.
const PATH: &str = "-c search_path=clock,pg_catalog";

impl Wall {
    async fn of(database: &Database) -> Self {
        let hand = database.hand().await;
        let made = "
            CREATE SCHEMA clock;
            CREATE TABLE clock.ahead (by interval NOT NULL);
            INSERT INTO clock.ahead VALUES ('0');
            CREATE FUNCTION clock.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
                'SELECT pg_catalog.clock_timestamp() + (SELECT by FROM clock.ahead)';";
        hand.batch_execute(made).await.unwrap();
        Self(hand)
    }

    async fn advance(&self, time: Duration) {
        self.set(format!("+ interval '{} us'", time.as_micros())).await;
    }

    async fn back(&self, time: Duration) {
        self.set(format!("- interval '{} us'", time.as_micros())).await;
    }

    async fn set(&self, by: String) {
        self.0.batch_execute(&format!("UPDATE clock.ahead SET by = by {by}")).await.unwrap();
    }
}

/// Two ways to one table, as two processes have, by clocks that jump.
struct Pair {
    one: PostgresStore,
    other: PostgresStore,
    wall: Wall,
    clock: LeaseClock,
}

impl Subject for Pair {
    type Store = PostgresStore;

    fn store(&self) -> &PostgresStore {
        &self.one
    }

    fn another_way(&self) -> &PostgresStore {
        &self.other
    }

    async fn pass(&self, time: Duration) {
        self.wall.advance(time).await;
        self.clock.suspend(time);
    }

    fn rounds(&self) -> usize {
        40
    }

    /// The clocks run on while the machine is slow. What they are told to jump is a minute and more.
    fn ttl(&self) -> Duration {
        Duration::from_secs(600)
    }
}

async fn pair(database: &Database, expiry: Expiry) -> Pair {
    let wall = Wall::of(database).await;
    let clock = LeaseClock::simulated();
    let open = || options(database, expiry, clock.clone()).open();
    Pair { one: open().await.unwrap(), other: open().await.unwrap(), wall, clock: clock.clone() }
}

fn options(database: &Database, expiry: Expiry, clock: LeaseClock) -> PostgresOptions {
    let mut config: Config = database.config();
    config.options(PATH);
    PostgresOptions::new(config).create_table(true).expiry(expiry).clock(clock)
}

#[tokio::test]
async fn it_keeps_to_the_rules_by_the_servers_clock() {
    testing::conformance(&pair(&Database::new().await, Expiry::Server).await).await.assert();
}

#[tokio::test]
async fn it_keeps_to_the_rules_by_the_candidates_clocks() {
    testing::conformance(&pair(&Database::new().await, Expiry::Observed).await).await.assert();
}

/// Its connections are dead then, and what it has answered is there.
#[tokio::test]
async fn it_keeps_to_the_rules_after_the_server_was_killed() {
    let mut server = Server::postgres().await;
    for expiry in [Expiry::Server, Expiry::Observed] {
        let database = Database::on(&server, "").await;
        let mut pair = pair(&database, expiry).await;
        let (me, you) = (Identity::generate(), Identity::generate());
        let mine = acquired(&pair.one, &me).await;
        server.kill();
        server.start().await;
        pair.wall = Wall(database.hand().await);
        let AcquireOutcome::Held(seen) = acquire(&pair.one, &you).await.unwrap() else {
            panic!("it was forgotten");
        };
        assert!(seen.is_held_by(&me) && seen.fence == mine.fence);
        testing::conformance(&pair).await.assert();
    }
}

#[tokio::test]
async fn a_wall_clock_that_is_set_forward_ends_leases_but_not_those_that_are_observed() {
    let ahead = Duration::from_secs(2 * TTL.as_secs());
    for (expiry, is_taken) in [(Expiry::Server, true), (Expiry::Observed, false)] {
        let pair = pair(&Database::new().await, expiry).await;
        let (me, you) = (Identity::generate(), Identity::generate());
        let mine = acquired(&pair.one, &me).await;
        pair.other.inspect(lease()).await.unwrap();
        pair.wall.advance(ahead).await;
        match acquire(&pair.other, &you).await.unwrap() {
            AcquireOutcome::Acquired(yours) => assert!(is_taken && yours.fence > mine.fence),
            AcquireOutcome::Held(seen) => assert!(!is_taken && seen.leader().is_some()),
        }
        // Set back, it lengthens them, but not those.
        pair.wall.back(2 * ahead).await;
        pair.clock.suspend(ahead);
        let outcome = acquire(&pair.other, &Identity::generate()).await.unwrap();
        assert_eq!(matches!(outcome, AcquireOutcome::Acquired(_)), !is_taken, "{outcome:?}");
    }
}

/// It has the same token, and was as new when it was seen.
#[tokio::test]
async fn a_lease_of_after_everything_was_lost_is_not_taken_for_the_one_before() {
    let pair = pair(&Database::new().await, Expiry::Observed).await;
    acquired(&pair.one, &Identity::generate()).await;
    pair.other.inspect(lease()).await.unwrap();
    // As a server does that comes back without its data: nobody asks the trigger.
    let loses = "SET session_replication_role = replica; TRUNCATE clock.buttress_leases";
    pair.wall.0.batch_execute(loses).await.unwrap();
    pair.pass(TTL).await;
    let yours = acquired(&pair.one, &Identity::generate()).await;
    let outcome = acquire(&pair.other, &Identity::generate()).await.unwrap();
    let AcquireOutcome::Held(seen) = outcome else { panic!("two lead: {outcome:?}") };
    assert_eq!((seen.holder, seen.fence.get()), (yours.holder, 1));
}

/// The candidate has looked, and waits for the row to take it: whoever has the row just then is the leader.
#[tokio::test]
async fn a_renewal_that_comes_between_the_look_and_the_taking_keeps_the_lease() {
    for expiry in [Expiry::Server, Expiry::Observed] {
        let pair = pair(&Database::new().await, expiry).await;
        let (me, you) = (Identity::generate(), Identity::generate());
        let mine = acquired(&pair.one, &me).await;
        pair.pass(TTL).await;
        let row = "BEGIN; UPDATE clock.buttress_leases SET revision = revision + 1,
            expires_at = expires_at + interval '1 hour'";
        pair.wall.0.batch_execute(row).await.unwrap();
        let mut taking = Box::pin(acquire(&pair.one, &you));
        until("it waits for the row", async || {
            assert!(taking.as_mut().now_or_never().is_none());
            let waits = "SELECT FROM pg_stat_activity
                WHERE datname = current_database() AND wait_event_type = 'Lock'";
            pair.wall.0.query(waits, &[]).await.unwrap().len() == 1
        })
        .await;
        pair.wall.0.batch_execute("COMMIT").await.unwrap();
        let AcquireOutcome::Held(seen) = taking.await.unwrap() else {
            panic!("{expiry:?}: two lead");
        };
        assert!(seen.is_held_by(&me) && seen.fence == mine.fence);
    }
}
