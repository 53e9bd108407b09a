use std::{sync::Mutex, time::Duration};

use buttress_leadership::{
    AcquireOutcome, Expiry, Identity, LeaseClock, LeaseStore, RenewOutcome, RenewRequest,
    testing::{self, Subject},
};
use buttress_lease_redis::{RedisOptions, RedisStore};
use buttress_servers::Server;
use futures_util::FutureExt;
use tokio::time::sleep;

use crate::server::{TTL, acquire, acquired, lease};

/// Two ways to one server, as two processes have, by clocks that jump.
struct Pair {
    one: RedisStore,
    other: RedisStore,
    server: Server,
    ahead: Mutex<Duration>,
    clock: LeaseClock,
}

impl Pair {
    /// It has run for longer than any lease.
    async fn new(expiry: Expiry) -> Self {
        let server = Server::redis_with_clock().await;
        let clock = LeaseClock::simulated();
        let options = || RedisOptions::parse(&server.url()).unwrap().expiry(expiry);
        let open = || options().clock(clock.clone()).open();
        let [one, other] = [open().await.unwrap(), open().await.unwrap()];
        clock.suspend(100 * TTL);
        Self { one, other, server, ahead: Mutex::default(), clock }
    }

    fn set_ahead(&self, change: impl FnOnce(Duration) -> Duration) {
        let mut ahead = self.ahead.lock().unwrap();
        *ahead = change(*ahead);
        self.server.set_ahead(*ahead);
    }
}

impl Subject for Pair {
    type Store = RedisStore;

    fn store(&self) -> &RedisStore {
        &self.one
    }

    fn another_way(&self) -> &RedisStore {
        &self.other
    }

    async fn pass(&self, time: Duration) {
        self.set_ahead(|ahead| ahead + time);
        self.clock.suspend(time);
    }

    fn rounds(&self) -> usize {
        40
    }

    /// The clocks run on while the machine is slow. What they are told to jump is a minute and more.
    fn ttl(&self) -> Duration {
        TTL
    }
}

#[tokio::test]
async fn it_keeps_to_the_rules_by_the_servers_clock() {
    testing::conformance(&Pair::new(Expiry::Server).await).await.assert();
}

#[tokio::test]
async fn it_keeps_to_the_rules_by_the_candidates_clocks() {
    testing::conformance(&Pair::new(Expiry::Observed).await).await.assert();
}

/// Its connections are dead then, and what it has answered is there.
#[tokio::test]
async fn it_keeps_to_the_rules_after_the_server_was_killed() {
    for expiry in [Expiry::Server, Expiry::Observed] {
        let mut pair = Pair::new(expiry).await;
        let (me, you) = (Identity::generate(), Identity::generate());
        let mine = acquired(&pair.one, &me).await;
        pair.server.kill();
        pair.server.start().await;
        let AcquireOutcome::Held(seen) = acquire(&pair.one, &you).await.unwrap() else {
            panic!("it was forgotten");
        };
        assert!(seen.is_held_by(&me) && seen.fence == mine.fence);
        acquire(&pair.other, &you).await.unwrap();
        pair.clock.suspend(100 * TTL);
        testing::conformance(&pair).await.assert();
    }
}

#[tokio::test]
async fn a_wall_clock_that_is_set_forward_ends_leases_but_not_those_that_are_observed() {
    let step = 2 * TTL;
    for (expiry, is_taken) in [(Expiry::Server, true), (Expiry::Observed, false)] {
        let pair = Pair::new(expiry).await;
        pair.set_ahead(|_| 2 * step);
        let (me, you) = (Identity::generate(), Identity::generate());
        let mine = acquired(&pair.one, &me).await;
        pair.other.inspect(lease()).await.unwrap();
        pair.set_ahead(|ahead| ahead + step);
        match acquire(&pair.other, &you).await.unwrap() {
            AcquireOutcome::Acquired(yours) => assert!(is_taken && yours.fence > mine.fence),
            AcquireOutcome::Held(seen) => assert!(!is_taken && seen.leader().is_some()),
        }
        // Set back, it lengthens them, but not those.
        pair.set_ahead(|_| Duration::ZERO);
        pair.clock.suspend(step);
        let outcome = acquire(&pair.other, &Identity::generate()).await.unwrap();
        assert_eq!(matches!(outcome, AcquireOutcome::Acquired(_)), !is_taken, "{outcome:?}");
    }
}

#[tokio::test]
async fn a_renewal_that_comes_at_any_moment_of_the_taking_keeps_the_lease_or_loses_it() {
    for expiry in [Expiry::Server, Expiry::Observed] {
        let (mut kept, mut lost) = (0, 0);
        for polls in 0..6 {
            let pair = Pair::new(expiry).await;
            let (me, you) = (Identity::generate(), Identity::generate());
            let mine = acquired(&pair.one, &me).await;
            pair.other.inspect(lease()).await.unwrap();
            // By the server's clock, what has ended is not renewed.
            if expiry == Expiry::Observed {
                pair.pass(TTL).await;
            }
            let mut taking = Box::pin(acquire(&pair.other, &you));
            let mut taken = None;
            for _ in 0..polls {
                taken = taken.or_else(|| taking.as_mut().now_or_never());
                sleep(Duration::from_millis(5)).await;
            }
            let renewed = pair.one.renew(RenewRequest::new(lease(), &me, mine.fence, TTL)).await;
            let is_renewed = matches!(renewed.unwrap(), RenewOutcome::Renewed(_));
            let outcome = match taken {
                Some(outcome) => outcome,
                None => taking.await,
            };
            let is_taken = matches!(outcome.unwrap(), AcquireOutcome::Acquired(_));
            assert_ne!(is_renewed, is_taken, "{expiry:?}, after {polls} polls");
            *(if is_renewed { &mut kept } else { &mut lost }) += 1;
        }
        assert!(kept >= 1 && (lost >= 1) == (expiry == Expiry::Observed), "{kept}, {lost}");
    }
}
