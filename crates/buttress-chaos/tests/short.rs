//! The short form of the runs, on every store, and faults of ours that they must find.
#![cfg(target_os = "linux")]

use std::{path::PathBuf, time::Duration};

use buttress_chaos::{
    arena::Arena,
    faults::Kind,
    run::{Plant, Run},
    table::table,
    verdict::Verdict,
};

/// Some faults, and not all kinds: for them there is the long form.
const SHORT: Duration = Duration::from_secs(12);

/// Set to another seed for another story.
fn seed() -> u64 {
    std::env::var("BUTTRESS_SEED").map_or(1, |seed| seed.parse().expect("it is a number"))
}

async fn judged(run: Run) -> Verdict {
    let verdict = run.judged().await.unwrap_or_else(|why| panic!("{why}"));
    println!("{}", table(&verdict));
    verdict
}

fn leadctl() -> PathBuf {
    env!("CARGO_BIN_EXE_leadctl").into()
}

async fn keeps_what_it_promises(arena: Arena) {
    let (faults, leadctl) = (arena.faults(), leadctl());
    let run = Run { arena, faults, lasts: SHORT, seed: seed(), leadctl, plant: None };
    let verdict = judged(run).await;
    assert!(verdict.strikes.len() > 1 && verdict.terms > 0 && verdict.taken > 10, "it ran");
    assert_eq!(verdict.breaches, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_keeps_what_it_promises_whatever_is_broken() {
    keeps_what_it_promises(Arena::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_keeps_what_it_promises_whatever_is_broken() {
    keeps_what_it_promises(Arena::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_by_its_own_clock_keeps_what_it_promises_whatever_is_broken() {
    keeps_what_it_promises(Arena::PostgresServer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_keeps_what_it_promises_whatever_is_broken() {
    keeps_what_it_promises(Arena::Redis).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_by_its_own_clock_keeps_what_it_promises_whatever_is_broken() {
    keeps_what_it_promises(Arena::RedisServer).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_keeps_what_it_promises_whatever_is_broken() {
    keeps_what_it_promises(Arena::Etcd).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kubernetes_keeps_what_it_promises_whatever_is_broken() {
    keeps_what_it_promises(Arena::Kubernetes).await;
}

/// The other way round: what a server's wall clock does to leases that end by it shows, and costs no stale write.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_set_makes_two_leaders_where_leases_end_by_it() {
    let (arena, faults, leadctl) =
        (Arena::PostgresServer, vec![Kind::ClockAhead, Kind::ClockBehind], leadctl());
    let lasts = Duration::from_secs(4);
    let verdict = judged(Run { arena, faults, lasts, seed: seed(), leadctl, plant: None }).await;
    assert!(!verdict.excused.is_empty(), "{verdict:?}");
    assert_eq!(verdict.breaches, [""; 0]);
}

/// A leader that stands still for longer than its lease, up to three times.
async fn with(plant: Plant) -> Verdict {
    let (arena, faults, lasts) = (Arena::Sqlite, vec![Kind::Pause], Duration::from_secs(8));
    // By this one chance has it so.
    let seed = 234;
    judged(Run { arena, faults, lasts, seed, leadctl: leadctl(), plant: Some(plant) }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn candidates_that_believe_in_a_lease_for_too_long_are_found_out() {
    let verdict = with(Plant::Generous).await;
    assert!(verdict.breaches.iter().any(|breach| breach.starts_with("P1")), "{verdict:?}");
    forget(&verdict);
}

/// Whoever was stopped in the middle of a write goes on with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_register_that_takes_what_is_stale_is_found_out() {
    let verdict = with(Plant::Unfenced).await;
    assert!(verdict.breaches.iter().any(|breach| breach.starts_with("P3")), "{verdict:?}");
    forget(&verdict);
}

/// It was to fail: nobody need look at it.
fn forget(verdict: &Verdict) {
    let history = verdict.history.as_deref().expect("it is kept where something is wrong");
    std::fs::remove_dir_all(history.parent().expect("it is in a folder")).expect("it is ours");
}
