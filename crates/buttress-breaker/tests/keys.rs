//! Breakers by key.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    hash::{Hash, Hasher},
    rc::Rc,
    sync::{OnceLock, mpsc},
    thread,
    time::Duration,
};

use buttress_breaker::{Breaker, BreakerSettings, Breakers, Select, State};
use buttress_core::{Class, KeyOf, Permit};
use tokio::time::advance;

const SECOND: Duration = Duration::from_secs(1);

type ByNumber = Breakers<u64, fn(&u64) -> u64>;

/// Opens at the first failure, for five seconds, and is closed by one probe.
fn settings() -> BreakerSettings {
    BreakerSettings::default().consecutive(1).open_jitter(0.0).probes(1)
}

fn by_number(capacity: usize) -> ByNumber {
    Breakers::with_capacity(capacity, settings(), (|n| *n) as fn(&u64) -> u64).unwrap()
}

fn call(breakers: &ByNumber, key: u64, class: Class) {
    breakers.select(&key).admit().unwrap().report(class);
}

/// Kept ones only: the overflow lets everything through.
fn is_kept(breakers: &ByNumber, key: u64) -> bool {
    breakers.get(&key).is_some()
}

// CBK-11
#[tokio::test(start_paused = true)]
async fn one_bad_host_does_not_cut_off_a_good_one() {
    let by_host = |request: &(&str, u32)| request.0.to_owned();
    let breakers = Breakers::new(BreakerSettings::default().min_calls(10), by_host).unwrap();
    for n in 0..10 {
        breakers.select(&("a", n)).admit().unwrap().report(Class::Unreachable);
    }
    assert!(breakers.select(&("a", 10)).admit().is_err());
    assert!(breakers.select(&("b", 11)).admit().is_ok());
    assert_eq!(breakers.get("a").unwrap().state(), State::Open);
    assert_eq!(breakers.get("b").unwrap().state(), State::Closed);
    assert!(breakers.get("c").is_none());
}

// CBK-11
#[tokio::test(start_paused = true)]
async fn fifty_thousand_hosts_fill_no_more_than_the_map_and_push_out_no_open_one() {
    let breakers = by_number(1_000);
    call(&breakers, 7, Class::Fatal);
    let open = breakers.select(&7).admit().unwrap_err();
    for n in 100..50_100_u64 {
        call(&breakers, n.wrapping_mul(0x9E37_79B9_7F4A_7C15), Class::Success);
        assert!(breakers.len() <= 1_000);
    }
    assert_eq!(breakers.len(), 1_000);
    assert_eq!(breakers.select(&7).admit().unwrap_err(), open);
    advance(5 * SECOND).await;
    for n in 100..5_100_u64 {
        call(&breakers, n, Class::Success);
    }
    assert_eq!(
        breakers.get(&7).unwrap().state(),
        State::HalfOpen,
        "nor one that waits for a probe"
    );
    let stats = breakers.stats();
    assert_eq!((stats.started, stats.success, stats.failure), (55_001, 55_000, 1));
    assert_eq!((stats.in_flight(), breakers.overflow().stats().started), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn what_somebody_needs_is_not_replaced() {
    let breakers = by_number(5);
    call(&breakers, 0, Class::Fatal);
    breakers.select(&1).force_closed();
    let in_flight = breakers.select(&2).admit().unwrap();
    let handle = breakers.select(&3);
    for n in 100..1_000 {
        call(&breakers, n, Class::Success);
    }
    assert!((0..4).all(|key| is_kept(&breakers, key)));

    // And as soon as nobody does, it is.
    in_flight.report(Class::Success);
    drop(handle);
    breakers.get(&0).unwrap().reset();
    breakers.get(&1).unwrap().reset();
    for n in 1_000..2_000 {
        call(&breakers, n, Class::Success);
    }
    assert!((0..4).all(|key| !is_kept(&breakers, key)));
    assert_eq!(breakers.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn when_none_may_go_a_new_key_is_let_through_unprotected_and_counted() {
    let breakers = by_number(3);
    for key in 0..3 {
        call(&breakers, key, Class::Fatal);
    }
    for key in 100..200 {
        call(&breakers, key, Class::Fatal);
        assert!(!is_kept(&breakers, key));
    }
    let overflow = breakers.overflow().stats();
    assert_eq!((overflow.started, overflow.failure, breakers.stats().failure), (100, 100, 103));
    assert_eq!((breakers.overflow().state(), breakers.len()), (State::Closed, 3));
    assert!((0..3).all(|key| breakers.select(&key).admit().is_err()), "those in it still are");

    // Whoever would rather have one breaker for all of them may.
    breakers.overflow().reset();
    call(&breakers, 200, Class::Fatal);
    assert!(breakers.select(&201).admit().is_err());
    breakers.overflow().force_closed();

    // As soon as there is room again, it is used.
    breakers.get(&1).unwrap().reset();
    call(&breakers, 300, Class::Success);
    assert!(is_kept(&breakers, 300) && !is_kept(&breakers, 1));
}

#[tokio::test(start_paused = true)]
async fn dead_hosts_that_nobody_asks_for_do_not_fill_the_map_for_ever() {
    let breakers = by_number(100);
    for key in 0..100 {
        call(&breakers, key, Class::Fatal);
    }
    advance(600 * SECOND).await;
    // Half of them are still asked for.
    for key in 0..50 {
        assert!(breakers.select(&key).admit().is_ok(), "a probe");
        let _ = breakers.select(&key).admit().map(|probe| probe.report(Class::Fatal));
    }
    advance(10 * SECOND).await;
    for key in 1_000..1_500 {
        call(&breakers, key, Class::Success);
    }
    assert!((0..50).all(|key| is_kept(&breakers, key)));
    assert!((50..100).all(|key| !is_kept(&breakers, key)));
}

#[tokio::test(start_paused = true)]
async fn the_one_that_was_unused_for_longest_goes_first() {
    // The last time before, all but one are found under the lock, or past it.
    for times in 1..=2 {
        let breakers = by_number(8);
        for n in 0..8 * times {
            call(&breakers, n % 8, Class::Success);
        }
        assert!(!is_kept(&breakers, 99));
        for key in [0, 1, 2, 3, 5, 6, 7] {
            call(&breakers, key, Class::Success);
        }
        call(&breakers, 100, Class::Success);
        let gone: Vec<_> = (0..8).filter(|key| !is_kept(&breakers, *key)).collect();
        assert_eq!(gone, [4], "after {times}");
    }

    // Hosts in steady use outlive a flood of others.
    let breakers = by_number(100);
    for n in 0..10_000 {
        call(&breakers, n % 4, Class::Success);
        call(&breakers, 1_000 + n, Class::Success);
    }
    for key in 0..4 {
        assert_eq!(breakers.get(&key).unwrap().stats().started, 2_500);
    }
}

/// A key that is compared where it lies, and counts how often one was made.
#[derive(Clone, Copy)]
struct Counting<'a>(&'a Cell<u32>);

impl KeyOf<str> for Counting<'_> {
    type Key = String;

    fn hash<H: Hasher>(&self, request: &str, state: &mut H) {
        request.hash(state);
    }

    fn matches(&self, request: &str, key: &String) -> bool {
        request == key
    }

    fn key(&self, request: &str) -> String {
        self.0.set(self.0.get() + 1);
        request.to_owned()
    }
}

#[test]
fn a_key_is_made_when_it_is_new_and_at_no_other_time() {
    let made = Cell::new(0);
    let breakers = Breakers::new(settings(), Counting(&made)).unwrap();
    for _ in 0..100 {
        for host in ["orders", "stock"] {
            breakers.select(host).admit().unwrap().report(Class::Success);
        }
    }
    assert_eq!(made.get(), 2);
    assert_eq!(breakers.get("orders").unwrap().stats().success, 100);
}

/// Every key has the same hash.
#[derive(Clone, Copy)]
struct Colliding;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Same(u64);

impl Hash for Same {
    fn hash<H: Hasher>(&self, state: &mut H) {
        0_u64.hash(state);
    }
}

impl KeyOf<u64> for Colliding {
    type Key = Same;

    fn hash<H: Hasher>(&self, _: &u64, state: &mut H) {
        0_u64.hash(state);
    }

    fn matches(&self, request: &u64, key: &Same) -> bool {
        key.0 == *request
    }

    fn key(&self, request: &u64) -> Same {
        Same(*request)
    }
}

#[tokio::test(start_paused = true)]
async fn keys_of_one_hash_are_told_apart_also_after_some_were_replaced() {
    let breakers = Breakers::with_capacity(6, settings(), Colliding).unwrap();
    let call = |key: u64, class| breakers.select(&key).admit().unwrap().report(class);
    for open in [1, 3] {
        call(open, Class::Fatal);
    }
    // Replaces the first, the last and those between, over and over.
    for key in 10..500 {
        call(key, Class::Success);
        call(key, Class::Success);
        assert_eq!(breakers.get(&Same(key)).unwrap().stats().started, 2, "{key}");
        for open in [1, 3] {
            assert_eq!(breakers.get(&Same(open)).unwrap().state(), State::Open);
        }
        let mut keys: Vec<_> = breakers.snapshot().into_iter().map(|(key, _)| key.0).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), breakers.len());
        assert!(keys.iter().all(|key| breakers.get(&Same(*key)).is_some()));
        // The newest is not always the one that is used last.
        if key % 2 == 0 {
            let older = keys.iter().filter(|older| **older != key);
            older.for_each(|older| drop(breakers.select(older)));
        }
    }
}

#[test]
fn threads_that_come_with_a_new_key_at_once_get_one_breaker() {
    for round in 0..50 {
        let breakers = by_number(1_000);
        let barrier = std::sync::Barrier::new(4);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    barrier.wait();
                    for key in 0..20 {
                        call(&breakers, key, Class::Success);
                    }
                });
            }
        });
        assert_eq!(breakers.len(), 20, "{round}");
        assert!(breakers.snapshot().iter().all(|(_, breaker)| breaker.stats().success == 4));
    }
}

#[test]
fn no_call_is_lost_where_threads_push_out_each_others_keys() {
    // Fewer places than keys: each of them comes, is found in every way, and goes, over and over.
    let breakers = by_number(2);
    thread::scope(|scope| {
        for first in 0..4 {
            let breakers = &breakers;
            scope.spawn(move || {
                for n in 0..5_000 {
                    call(breakers, (first + n / 3) % 4, Class::Success);
                }
            });
        }
    });
    let stats = breakers.stats();
    assert_eq!((stats.started, stats.success, breakers.len()), (20_000, 20_000, 2));
}

#[test]
fn a_key_function_that_panics_breaks_nothing() {
    let picky = |n: &u64| {
        assert_ne!(*n, 13, "planted: in the key");
        *n
    };
    let breakers = Breakers::new(settings(), picky).unwrap();
    let unlucky = std::panic::AssertUnwindSafe(|| breakers.select(&13));
    assert!(std::panic::catch_unwind(unlucky).is_err());
    breakers.select(&14).admit().unwrap().report(Class::Success);
    assert_eq!(breakers.stats().success, 1);
}

#[test]
fn a_clone_is_the_same_map() {
    let breakers = by_number(10);
    let clone = breakers.clone();
    call(&breakers, 1, Class::Fatal);
    assert!(clone.select(&1).admit().is_err());
    assert!(!clone.is_empty() && clone.len() == 1);
    let all: Vec<(u64, Breaker)> = clone.snapshot();
    assert_eq!((all[0].0, all[0].1.state()), (1, State::Open));
}

// === Who asks the map while the map asks ===

/// A key that asks the map whenever something is done with it.
#[derive(Debug)]
struct Nosy(u64);

/// So does whoever reads it from a request.
#[derive(Clone, Copy)]
struct ByNosy;

static NOSY: OnceLock<Breakers<Nosy, ByNosy>> = OnceLock::new();

thread_local! {
    /// What has asked, and whether it is being answered: what asks must not ask itself for ever.
    static ASKED: RefCell<BTreeSet<&'static str>> = const { RefCell::new(BTreeSet::new()) };
    static ANSWERING: Cell<bool> = const { Cell::new(false) };
}

fn ask(who: &'static str) {
    let Some(breakers) = NOSY.get() else { return };
    if ANSWERING.replace(true) {
        return;
    }
    ASKED.with_borrow_mut(|asked| asked.insert(who));
    let _ = (breakers.len(), breakers.stats(), breakers.snapshot(), format!("{breakers:?}"));
    let _ = (breakers.get(&Nosy(1)), breakers.select(&1).admit().map(drop));
    ANSWERING.set(false);
}

impl Clone for Nosy {
    fn clone(&self) -> Self {
        ask("clone");
        Self(self.0)
    }
}

impl PartialEq for Nosy {
    fn eq(&self, other: &Self) -> bool {
        ask("eq");
        self.0 == other.0
    }
}

impl Eq for Nosy {}

impl Hash for Nosy {
    fn hash<H: Hasher>(&self, state: &mut H) {
        ask("hash");
        self.0.hash(state);
    }
}

impl Drop for Nosy {
    fn drop(&mut self) {
        ask("drop");
    }
}

impl KeyOf<u64> for ByNosy {
    type Key = Nosy;

    fn hash<H: Hasher>(&self, request: &u64, state: &mut H) {
        ask("hash of a request");
        request.hash(state);
    }

    fn matches(&self, request: &u64, key: &Nosy) -> bool {
        ask("matches");
        *request == key.0
    }

    fn key(&self, request: &u64) -> Nosy {
        ask("key");
        Nosy(*request)
    }
}

#[test]
fn what_is_the_users_runs_without_a_lock_and_may_ask_the_map() {
    let label = |key: &Nosy| {
        ask("label");
        key.0.to_string()
    };
    let (done, waiting) = mpsc::channel();
    let user = thread::spawn(move || {
        let breakers = Breakers::with_capacity(3, settings(), ByNosy).unwrap().label(label);
        let breakers = NOSY.get_or_init(|| breakers);
        for key in 0..10 {
            breakers.select(&key);
            breakers.select(&key);
            assert!(breakers.get(&Nosy(key)).is_some());
            drop(breakers.snapshot());
        }
        done.send(ASKED.take()).unwrap();
    });
    // A watchdog: the time is waited for only if a lock is held.
    let asked = waiting.recv_timeout(10 * SECOND).expect("asked under the lock, or failed");
    user.join().unwrap();
    let all = ["clone", "drop", "eq", "hash", "hash of a request", "key", "label", "matches"];
    assert_eq!(asked.into_iter().collect::<Vec<_>>(), all);
    // Each was counted once, whichever was replaced meanwhile.
    let stats = NOSY.get().unwrap().stats();
    assert!(stats.started > 0 && stats.dropped == stats.started, "{stats:?}");
}

/// Does something once, while a key is compared or made. All keys have one hash.
#[derive(Clone, Default)]
struct Meanwhile {
    comparing: Act,
    making: Act,
}

type Act = Rc<Cell<Option<Box<dyn FnOnce()>>>>;

impl KeyOf<u64> for Meanwhile {
    type Key = Same;

    fn hash<H: Hasher>(&self, _: &u64, state: &mut H) {
        0_u64.hash(state);
    }

    fn matches(&self, request: &u64, key: &Same) -> bool {
        self.comparing.take().into_iter().for_each(|act| act());
        key.0 == *request
    }

    fn key(&self, request: &u64) -> Same {
        self.making.take().into_iter().for_each(|act| act());
        Same(*request)
    }
}

fn meanwhile(capacity: usize) -> (Meanwhile, Breakers<Same, Meanwhile>) {
    let meanwhile = Meanwhile::default();
    let breakers = Breakers::with_capacity(capacity, settings(), meanwhile.clone()).unwrap();
    (meanwhile, breakers)
}

/// Calls these, one after the other.
fn succeed(breakers: &Breakers<Same, Meanwhile>, keys: impl IntoIterator<Item = u64>) {
    for key in keys {
        breakers.select(&key).admit().unwrap().report(Class::Success);
    }
}

fn successes(breakers: &Breakers<Same, Meanwhile>, key: u64) -> u64 {
    breakers.get(&Same(key)).map_or(0, |breaker| breaker.stats().success)
}

fn keys(breakers: &Breakers<Same, Meanwhile>) -> Vec<u64> {
    let mut keys: Vec<_> = breakers.snapshot().into_iter().map(|(key, _)| key.0).collect();
    keys.sort();
    keys
}

#[test]
fn who_comes_while_the_same_key_is_made_finds_it_and_makes_no_second() {
    // Alone, and among others of the hash, which come before it and after.
    for others in [vec![], vec![1], vec![1, 2]] {
        for come in [vec![7], vec![7, 8], vec![8, 7], vec![8, 7, 9], vec![8]] {
            let (meanwhile, breakers) = meanwhile(100);
            succeed(&breakers, others.clone());
            let (same, these) = (breakers.clone(), come.clone());
            meanwhile.making.set(Some(Box::new(move || succeed(&same, these))));
            succeed(&breakers, [7]);

            let mut expected = [&others[..], &come, &[7]].concat();
            expected.sort();
            expected.dedup();
            assert_eq!(keys(&breakers), expected);
            let calls = 1 + u64::from(come.contains(&7));
            assert_eq!(successes(&breakers, 7), calls, "{others:?}, {come:?}");
        }
    }
}

#[test]
fn what_comes_and_goes_while_keys_are_compared_hides_none() {
    // While the youngest is compared, others come, and take the places of two that may go: one is older than all,
    // the other between.
    for wanted in [1, 2, 3, 4] {
        for come in 0..5 {
            let (meanwhile, breakers) = meanwhile(6);
            succeed(&breakers, [10, 1, 2, 11, 3, 4]);
            for key in 1..=4 {
                breakers.get(&Same(key)).unwrap().force_closed();
            }
            let same = breakers.clone();
            meanwhile.comparing.set(Some(Box::new(move || succeed(&same, 20..20 + come))));
            succeed(&breakers, [wanted]);
            assert_eq!(successes(&breakers, wanted), 2, "{wanted}, {come}");
            assert_eq!(keys(&breakers).len(), 6);
            assert_eq!(breakers.stats().success, 7 + come);
        }
    }
}

#[test]
fn what_is_being_compared_is_not_replaced() {
    // It was made, it was found under the lock, it was found past it.
    for before in 1..=3 {
        let (meanwhile, breakers) = meanwhile(1);
        succeed(&breakers, [1].repeat(before));
        let same = breakers.clone();
        meanwhile.comparing.set(Some(Box::new(move || succeed(&same, [2]))));
        succeed(&breakers, [1]);
        let calls = before as u64 + 1;
        assert_eq!((keys(&breakers), successes(&breakers, 1)), (vec![1], calls), "2 has no place");
        assert_eq!(breakers.overflow().stats().success, 1);

        succeed(&breakers, [2]);
        assert_eq!((keys(&breakers), breakers.stats().success), (vec![2], calls + 2));
    }
}
