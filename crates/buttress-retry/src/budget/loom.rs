//! Every interleaving of three threads with two or three operations each.

use loom::{sync::Arc, thread};

use super::{BudgetSettings, bucket::Bucket, machine::TOKEN};

/// All that three threads can do to one another in so many forced switches; without a bound the models do
/// not end in reasonable time.
const SWITCHES: usize = 3;

#[derive(Clone, Copy)]
enum Op {
    Deposit,
    /// A success that does not look at the clock.
    Pass,
    Withdraw,
    Refund,
}
use Op::{Deposit, Pass, Refund, Withdraw};

/// Runs the three scripts at once, in all ways, and tells what was granted and what is left.
fn model<const N: usize>(
    settings: BudgetSettings,
    scripts: [[(Op, u32); N]; 3],
    check: fn(granted: u32, left: u32),
) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(SWITCHES);
    model.check(move || {
        let bucket = Arc::new(Bucket::new(settings.rules().unwrap(), 0));
        let run = |script: [(Op, u32); N]| {
            let bucket = bucket.clone();
            move || {
                let mut granted = 0;
                for (op, now) in script {
                    match op {
                        Deposit => bucket.deposit(now),
                        Pass => bucket.deposit_in_passing(),
                        Withdraw => granted += u32::from(bucket.withdraw(now)),
                        Refund => bucket.refund(now),
                    }
                }
                granted
            }
        };
        let [first, second, own] = scripts;
        let others = [first, second].map(|script| thread::spawn(run(script)));
        let own = run(own)();
        let granted = others.into_iter().map(|other| other.join().unwrap()).sum::<u32>() + own;
        check(granted, bucket.balance(0));
    });
}

// BUD-02
#[test]
fn three_threads_take_no_more_than_there_is() {
    let settings = BudgetSettings::default().reserve(5).refill(0.0);
    model(settings, [[(Withdraw, 0); 3]; 3], |granted, left| {
        assert_eq!((granted, left), (5, 0));
    });
}

#[test]
fn three_threads_lose_no_success() {
    let settings = BudgetSettings::default().ratio(0.5).reserve(0).refill(0.0);
    let looks = [(Deposit, 0); 3];
    let passes = [(Pass, 0); 3];
    model(settings, [looks, passes, looks], |_, left| assert_eq!(left, 9 * TOKEN / 2));
}

#[test]
fn what_is_paid_in_and_given_back_meanwhile_is_granted_or_still_there() {
    let settings = BudgetSettings::default().ratio(0.5).reserve(1).refill(0.0);
    let mixed = [Deposit, Withdraw, Deposit].map(|op| (op, 0));
    let takes = [Withdraw, Refund, Withdraw].map(|op| (op, 0));
    model(settings, [mixed, takes, mixed], |granted, left| {
        assert_eq!(granted * TOKEN + left, 4 * TOKEN, "1 in reserve, 2 earned, 1 given back");
    });
}

// BUD-02
#[test]
fn a_tick_that_threads_see_at_different_times_is_refilled_once() {
    // A token a tick, up to four.
    let settings = BudgetSettings::default().ratio(0.0).reserve(4).refill(6.4);
    let late = [(Withdraw, 0), (Withdraw, 1), (Withdraw, 1)];
    let early = [(Withdraw, 1), (Withdraw, 0), (Withdraw, 1)];
    model(settings, [late, early, late], |granted, left| {
        assert!((4..=5).contains(&granted), "{granted} of 4 and one refill");
        assert!(left <= TOKEN);
    });
}

// BUD-02
#[test]
fn a_full_bucket_that_successes_pass_by_grants_no_more_than_its_cap_and_what_they_earn() {
    let settings = BudgetSettings::default().ratio(0.5).reserve(1).cap(2).refill(0.0);
    let [earns, both, takes] =
        [[Pass, Pass], [Pass, Withdraw], [Withdraw, Withdraw]].map(|ops| ops.map(|op| (op, 0)));
    model(settings, [earns, both, takes], |granted, left| {
        // 1 in reserve, and 3 successes: half a token is lost where the last of them found it full.
        let all = granted * TOKEN + left;
        assert!([2 * TOKEN, 5 * TOKEN / 2].contains(&all), "{granted}, and {left} left");
    });
}

// BUD-02
#[test]
fn a_success_in_passing_moves_no_time_and_takes_back_none() {
    // A token a tick, up to four, and a whole one for a success.
    let settings = BudgetSettings::default().ratio(1.0).reserve(4).refill(6.4);
    let late = [(Withdraw, 0), (Withdraw, 1), (Withdraw, 1)];
    let early = [(Withdraw, 1), (Pass, 0), (Withdraw, 0)];
    model(settings, [late, early, late], |granted, left| {
        let all = granted * TOKEN + left;
        assert!(all <= 6 * TOKEN, "{granted} and {left} left of four, one refill and one success");
    });
}
