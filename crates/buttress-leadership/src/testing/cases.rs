//! The cases. Each is an `async fn` whose name is its moral, in the order of the rules.

use std::{pin::Pin, time::Duration};

use bytes::Bytes;

use super::{
    Case, Report, Start, Subject,
    bench::{Bench, Fault, Verdict, at_once, dropped_after, ensure, some_at_once},
};
use crate::{
    AcquireOutcome, AcquireRequest, FenceSource, FencingToken, Identity, LeaseName, LeaseRecord,
    LeaseStore, ReleaseOutcome, ReleaseRequest, RenewOutcome, RenewRequest,
};

macro_rules! cases {
    ($($rule:literal: $($moral:ident),+;)+) => {
        pub(super) async fn run<S: Subject>(subject: &S) -> Report {
            let mut cases = Vec::new();
            let mut trials: Vec<Trial<'_>> = Vec::new();
            for start in [Start::New, Start::Used] {
                $($({
                    cases.push(Case { rule: $rule, moral: stringify!($moral), start });
                    trials.push(Box::pin(async move {
                        $moral(&Bench::new(subject, start).await?).await
                    }));
                })+)+
            }
            let mut report = Report::default();
            for (case, verdict) in cases.into_iter().zip(some_at_once(subject.at_once(), trials).await) {
                report.note(case, verdict.map_err(|fault| fault.0));
            }
            report
        }
    };
}

/// A case that runs once it is polled.
type Trial<'a> = Pin<Box<dyn Future<Output = Verdict> + Send + 'a>>;

cases! {
    1: a_lease_that_nobody_holds_goes_to_whoever_asks,
        a_lease_that_is_held_goes_to_nobody_else_and_the_answer_says_who_has_it,
        a_lease_is_held_to_its_end,
        a_lease_that_has_expired_goes_to_whoever_asks,
        whoever_is_to_see_for_itself_that_it_is_over_takes_nothing_at_first_sight,
        of_many_who_ask_at_the_same_time_one_gets_it,
        of_many_who_wait_for_its_end_one_gets_it,
        one_lease_says_nothing_of_another,
        every_name_is_a_lease_of_its_own,
        what_a_leader_says_of_itself_comes_back_byte_for_byte;
    2: a_token_is_greater_after_a_release,
        a_token_is_greater_after_the_end,
        a_token_is_greater_for_the_same_holder_too,
        a_token_stays_as_long_as_its_term,
        a_release_takes_no_token_back,
        tokens_of_many_terms_only_grow,
        a_token_that_is_counted_is_greater_than_what_the_candidate_has_seen;
    3: whoever_has_it_and_asks_again_renews_nothing,
        whoever_has_it_and_asks_again_changes_nothing,
        whoever_lost_the_answer_finds_its_term;
    4: a_renewal_counts_from_when_it_is_made,
        what_has_expired_is_renewed_by_nobody,
        what_somebody_else_has_is_not_renewed_by_the_last_holder,
        another_token_renews_nothing,
        somebody_elses_name_renews_nothing,
        what_was_released_is_renewed_by_nobody,
        what_never_was_is_not_renewed,
        a_renewal_goes_on_with_the_term_and_begins_none,
        a_renewal_changes_what_it_is_told_to_and_nothing_else,
        a_renewal_may_be_sent_twice;
    5: a_release_lets_the_next_one_in_at_once,
        a_release_with_another_token_gives_nothing_back,
        a_release_by_somebody_else_gives_nothing_back,
        a_release_of_ones_own_earlier_term_gives_nothing_back,
        a_release_twice_is_as_once,
        a_release_of_what_never_was_is_not_done,
        what_holders_leave_outlives_them;
    6: nothing_is_seen_of_what_never_was,
        what_was_answered_is_seen,
        the_time_and_the_end_are_of_one_clock,
        the_times_of_a_record_are_in_order,
        what_has_expired_is_seen_to_be_over,
        to_look_changes_nothing;
    7: an_acquire_that_is_dropped_is_done_or_not,
        a_renewal_that_is_dropped_is_done_or_not,
        a_release_that_is_dropped_is_done_or_not;
    8: what_is_granted_is_enforced,
        what_a_renewal_grants_is_enforced,
        a_longer_renewal_is_enforced_or_not_granted,
        what_is_left_is_never_more_than_what_is_granted;
}

type On<'a, 'b, S> = &'a Bench<'b, S>;

// === 1: acquire succeeds just if nobody holds it, in one step ===

async fn a_lease_that_nobody_holds_goes_to_whoever_asks<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let record = on.take(&on.me).await?;
    ensure!(!record.is_expired(), "it is over as it begins: {record:?}");
    on.still(&on.me, record.fence, "nobody").await.map(drop)
}

async fn a_lease_that_is_held_goes_to_nobody_else_and_the_answer_says_who_has_it<S: Subject>(
    on: On<'_, '_, S>,
) -> Verdict {
    let mine = on.take(&on.me).await?;
    for _ in 0..3 {
        let seen = on.held(&on.you).await?;
        ensure!(seen.is_held_by(&on.me), "it names somebody else: {seen:?}");
        ensure!(seen.fence == mine.fence, "it has another token: {seen:?}");
        ensure!(seen.payload == on.payload, "it has another payload: {seen:?}");
        ensure!(!seen.is_expired(), "it is held, and over: {seen:?}");
    }
    on.still(&on.me, mine.fence, "asking").await.map(drop)
}

async fn a_lease_is_held_to_its_end<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let mine = on.take(&on.me).await?;
    on.pass(nearly(on, mine.granted_ttl)).await;
    on.held(&on.you).await.map(drop)
}

async fn a_lease_that_has_expired_goes_to_whoever_asks<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let mine = on.take(&on.me).await?;
    on.expire(&mine).await?;
    on.take(&on.you).await.map(drop)
}

async fn whoever_is_to_see_for_itself_that_it_is_over_takes_nothing_at_first_sight<S: Subject>(
    on: On<'_, '_, S>,
) -> Verdict {
    if !on.is_observed() {
        return Ok(());
    }
    let mine = on.take(&on.me).await?;
    on.pass(mine.granted_ttl + 2 * on.slack).await;
    let request = AcquireRequest::new(&on.name, &on.you, on.ttl, &on.payload);
    // Where there is one way only, that has seen it begin.
    if !std::ptr::eq(on.store, on.subject.another_way()) {
        let outcome = on.subject.another_way().acquire(request).await?;
        let is_held = matches!(outcome, AcquireOutcome::Held(_));
        ensure!(is_held, "it was seen for the first time, and taken: {outcome:?}");
    }
    // Nobody but a candidate ends it, and its holder is none.
    on.renewed(&on.me, mine.fence).await?;
    on.held(&on.you).await.map(drop)
}

async fn of_many_who_ask_at_the_same_time_one_gets_it<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let mut last = on.last;
    for round in 0..on.subject.rounds() {
        let (who, won) =
            race(on).await.map_err(|fault| Fault(format!("{} (round {round})", fault.0)))?;
        ensure!(won.fence.get() > last, "token {} after {last} (round {round})", won.fence);
        last = won.fence.get();
        on.free(&who, won.fence).await?;
    }
    Ok(())
}

async fn of_many_who_wait_for_its_end_one_gets_it<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let mine = on.take(&on.me).await?;
    on.expire(&mine).await?;
    race(on).await.map(drop)
}

async fn one_lease_says_nothing_of_another<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let other = Bench::new(on.subject, Start::New).await?;
    let mine = on.take(&on.me).await?;
    let yours = other.take(&on.you).await?;
    other.lost(&on.me, mine.fence, "by the holder of another lease").await?;
    other.release(&on.me, mine.fence).await?;
    other.still(&on.you, yours.fence, "the holder of another lease").await?;
    on.free(&on.me, mine.fence).await?;
    other.still(&on.you, yours.fence, "another lease's release").await.map(drop)
}

async fn every_name_is_a_lease_of_its_own<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    if !on.subject.takes_any_name() {
        return Ok(());
    }
    let stem = on.subject.fresh_name();
    let odd = [
        "",
        "/",
        "//",
        "/..",
        " ",
        "  ",
        "'; DROP TABLE leases; --",
        "\"",
        "\\",
        "%",
        "%_",
        "*",
        "?",
        "#",
        "{}",
        "$1",
        ":name",
        "\u{0}",
        "a",
        "A",
        "ä",
        "a\u{308}",
        "Ä",
        "\u{1f6a6}",
        "\u{200b}",
        "ß",
        "ss",
        "SS",
        "\u{130}",
        "\u{131}",
        "1",
        "01",
        "1.0",
        "1e0",
        "0x1",
        "NULL",
        "null",
    ];
    let long = "x".repeat(253 - stem.as_str().len());
    let mut held: Vec<(Bench<'_, S>, LeaseRecord)> = Vec::new();
    for end in odd.iter().copied().chain([&*long, &long[1..]]) {
        // What has control characters is no name.
        let Ok(name) = LeaseName::new(format!("{stem}{end}")) else { continue };
        let mut one = Bench::named(on.subject, Start::New, name).await?;
        // They are many, and all of them are held to the end.
        one.ttl *= 60;
        let seen = one.look().await?;
        ensure!(seen.is_none(), "{:?} is the lease of another name: {seen:?}", one.name);
        let mine = one.take(&one.me).await?;
        held.push((one, mine));
    }
    for (one, mine) in &held {
        one.still(&one.me, mine.fence, "another name").await?;
    }
    for (one, mine) in &held {
        one.free(&one.me, mine.fence).await?;
    }
    // Two who differ in a letter's case, or in what follows, are two.
    let (node, other) =
        (format!("{}-a1", on.me), [format!("{}-A1", on.me), format!("{}-a10", on.me)]);
    let valid = |text: String| Identity::new(text).map_err(|error| Fault(error.to_string()));
    let node = valid(node)?;
    let mine = on.take(&node).await?;
    for other in other {
        let other = valid(other)?;
        on.held(&other).await?;
        on.lost(&other, mine.fence, "by a holder whose name is alike").await?;
        on.release(&other, mine.fence).await?;
        on.still(&node, mine.fence, "a holder whose name is alike").await?;
    }
    Ok(())
}

async fn what_a_leader_says_of_itself_comes_back_byte_for_byte<S: Subject>(
    on: On<'_, '_, S>,
) -> Verdict {
    let all: Vec<u8> = (0..=255).collect();
    for payload in [Bytes::new(), Bytes::from(all.clone()), Bytes::from(all.repeat(64))] {
        let request = AcquireRequest::new(&on.name, &on.me, on.ttl, &payload);
        let AcquireOutcome::Acquired(mine) = on.store.acquire(request).await? else {
            return Err(Fault("it was given back, and is held".to_owned()));
        };
        ensure!(mine.payload == payload, "{} bytes are not what was said", payload.len());
        let seen = on.still(&on.me, mine.fence, "nobody").await?;
        ensure!(seen.payload == payload, "{} bytes are not what was said, later", payload.len());
        on.free(&on.me, mine.fence).await?;
    }
    Ok(())
}

// === 2: each success has a greater token ===

async fn a_token_is_greater_after_a_release<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let first = on.take(&on.me).await?.fence;
    ensure!(first.get() > on.last, "token {first} after {}", on.last);
    on.free(&on.me, first).await?;
    let second = on.take(&on.you).await?.fence;
    ensure!(second > first, "token {second} after {first}");
    Ok(())
}

async fn a_token_is_greater_after_the_end<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let first = on.take(&on.me).await?;
    on.expire(&first).await?;
    let second = on.take(&on.you).await?.fence;
    ensure!(second > first.fence, "token {second} after {}", first.fence);
    Ok(())
}

async fn a_token_is_greater_for_the_same_holder_too<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let first = on.take(&on.me).await?;
    on.expire(&first).await?;
    let second = on.take(&on.me).await?.fence;
    ensure!(second > first.fence, "token {second} after {}, which expired", first.fence);
    on.free(&on.me, second).await?;
    let third = on.take(&on.me).await?.fence;
    ensure!(third > second, "token {third} after {second}, which was released");
    Ok(())
}

async fn a_token_stays_as_long_as_its_term<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let fence = on.take(&on.me).await?.fence;
    for _ in 0..3 {
        on.renewed(&on.me, fence).await?;
        on.held(&on.you).await?;
        on.still(&on.me, fence, "a renewal").await?;
    }
    Ok(())
}

async fn a_release_takes_no_token_back<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let fence = on.take(&on.me).await?.fence;
    on.free(&on.me, fence).await?;
    if let Some(seen) = on.look().await? {
        ensure!(
            seen.holder.is_none() || seen.is_expired(),
            "it was released, and is held: {seen:?}"
        );
        ensure!(seen.fence >= fence, "the token {fence} is forgotten: {seen:?}");
    }
    Ok(())
}

async fn tokens_of_many_terms_only_grow<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let mut last = on.last;
    for term in 0..8 {
        let who = if term % 3 == 0 { &on.me } else { &on.you };
        let record = on.take(who).await?;
        ensure!(record.fence.get() > last, "token {} after {last} (term {term})", record.fence);
        last = record.fence.get();
        if term % 4 == 3 {
            on.expire(&record).await?;
        } else {
            on.free(who, record.fence).await?;
        }
    }
    Ok(())
}

async fn a_token_that_is_counted_is_greater_than_what_the_candidate_has_seen<S: Subject>(
    on: On<'_, '_, S>,
) -> Verdict {
    if on.store.capabilities().fence == FenceSource::Revision {
        return Ok(());
    }
    let mine = on.take(&on.me).await?;
    on.free(&on.me, mine.fence).await?;
    let seen = FencingToken::new(mine.fence.get() + 1_000_000_000).expect("it is not zero");
    let yours = on.take_after(&on.you, Some(seen)).await?;
    ensure!(yours.fence > seen, "token {} for who has seen {seen}", yours.fence);
    on.free(&on.you, yours.fence).await?;
    let next = on.take(&on.me).await?.fence;
    ensure!(next > yours.fence, "token {next} after {}", yours.fence);
    Ok(())
}

// === 3: who has it and asks is answered that it is held ===

async fn whoever_has_it_and_asks_again_renews_nothing<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let mine = on.take(&on.me).await?;
    on.pass(mine.granted_ttl / 2).await;
    let again = on.held(&on.me).await?;
    ensure!(again.is_held_by(&on.me), "it names somebody else: {again:?}");
    let most = mine.granted_ttl / 2 + on.slack;
    ensure!(again.remaining() <= most, "{:?} are left, not {most:?}", again.remaining());
    if !on.is_observed() {
        on.pass(mine.granted_ttl / 2 + 2 * on.slack).await;
        on.take(&on.you).await?;
    }
    Ok(())
}

async fn whoever_has_it_and_asks_again_changes_nothing<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let mine = on.take(&on.me).await?;
    let other = Bytes::from_static(b"another");
    let request = AcquireRequest::new(&on.name, &on.me, 2 * on.ttl, &other);
    let AcquireOutcome::Held(again) = on.store.acquire(request).await? else {
        return Err(Fault("acquired twice by one".to_owned()));
    };
    let seen = on.still(&on.me, mine.fence, "asking again").await?;
    for seen in [again, seen] {
        ensure!(seen.fence == mine.fence, "it has another token: {seen:?}");
        ensure!(seen.payload == on.payload, "it has another payload: {seen:?}");
        ensure!(on.is_as(&seen, &mine), "it has other times: {seen:?}, not {mine:?}");
    }
    Ok(())
}

async fn whoever_lost_the_answer_finds_its_term<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let lost = on.take(&on.me).await?;
    let found = on.held(&on.me).await?;
    ensure!(found.fence == lost.fence, "it is told another token: {found:?}");
    on.renewed(&on.me, found.fence).await?;
    on.free(&on.me, found.fence).await
}

// === 4: renew succeeds just for its holder, before the end ===

async fn a_renewal_counts_from_when_it_is_made<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let mine = on.take(&on.me).await?;
    on.pass(mine.granted_ttl / 2).await;
    let renewed = on.renewed(&on.me, mine.fence).await?;
    ensure!(renewed.remaining() + on.slack >= renewed.granted_ttl, "it ends before: {renewed:?}");
    on.pass(mine.granted_ttl / 2 + on.slack).await;
    on.held(&on.you).await.map(drop)
}

async fn what_has_expired_is_renewed_by_nobody<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    if on.is_observed() {
        // Nobody has seen its end: it has not ended.
        return Ok(());
    }
    let mine = on.take(&on.me).await?;
    on.expire(&mine).await?;
    on.lost(&on.me, mine.fence, "what had expired").await?;
    on.take(&on.you).await.map(drop)
}

async fn what_somebody_else_has_is_not_renewed_by_the_last_holder<S: Subject>(
    on: On<'_, '_, S>,
) -> Verdict {
    let mine = on.take(&on.me).await?;
    on.expire(&mine).await?;
    let yours = on.take(&on.you).await?;
    for fence in [mine.fence, yours.fence] {
        let seen = on.lost(&on.me, fence, "what somebody else has").await?;
        let told = seen.as_ref().is_some_and(|seen| seen.is_held_by(&on.you));
        ensure!(told, "it is not told who has it: {seen:?}");
    }
    on.still(&on.you, yours.fence, "the last holder").await.map(drop)
}

async fn another_token_renews_nothing<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let mine = on.take(&on.me).await?;
    on.pass(mine.granted_ttl / 2).await;
    for fence in on.not(mine.fence) {
        on.lost(&on.me, fence, "with another token").await?;
    }
    let seen = on.still(&on.me, mine.fence, "another token").await?;
    ensure!(on.is_as(&seen, &mine), "another token moved its end: {seen:?}, not {mine:?}");
    Ok(())
}

async fn somebody_elses_name_renews_nothing<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let mine = on.take(&on.me).await?;
    on.pass(mine.granted_ttl / 2).await;
    on.lost(&on.you, mine.fence, "for somebody else").await?;
    let seen = on.still(&on.me, mine.fence, "somebody else").await?;
    ensure!(on.is_as(&seen, &mine), "somebody else moved its end: {seen:?}, not {mine:?}");
    Ok(())
}

async fn what_was_released_is_renewed_by_nobody<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let mine = on.take(&on.me).await?;
    on.free(&on.me, mine.fence).await?;
    on.lost(&on.me, mine.fence, "what was released").await?;
    on.take(&on.you).await.map(drop)
}

async fn what_never_was_is_not_renewed<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let fence = FencingToken::new(on.last.max(1)).expect("it is not zero");
    let seen = on.lost(&on.me, fence, "what nobody holds").await?;
    let held = seen.as_ref().is_some_and(|seen| seen.holder.is_some());
    ensure!(!held, "nobody has it, and it is told who: {seen:?}");
    on.take(&on.you).await.map(drop)
}

async fn a_renewal_goes_on_with_the_term_and_begins_none<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let mine = on.take(&on.me).await?;
    on.pass(mine.granted_ttl / 4).await;
    let renewed = on.renewed(&on.me, mine.fence).await?;
    ensure!(renewed.acquired_at == mine.acquired_at, "the term began again: {renewed:?}");
    ensure!(renewed.renewed_at > mine.renewed_at, "it does not say when: {renewed:?}");
    ensure!(renewed.expires_at > mine.expires_at, "it ends as before: {renewed:?}");
    Ok(())
}

async fn a_renewal_changes_what_it_is_told_to_and_nothing_else<S: Subject>(
    on: On<'_, '_, S>,
) -> Verdict {
    let mine = on.take(&on.me).await?;
    let (payload, memo) = (Bytes::from_static(b"\0new"), Bytes::from_static(b"\xffmemo"));
    let request = || RenewRequest::new(&on.name, &on.me, mine.fence, on.ttl);
    let steps = [
        (request(), &on.payload, &mine.memo),
        (request().payload(&payload), &payload, &mine.memo),
        (request().memo(&memo), &payload, &memo),
        (request(), &payload, &memo),
    ];
    for (request, payload, memo) in steps {
        let RenewOutcome::Renewed(renewed) = on.store.renew(request).await? else {
            return Err(Fault("its holder could not renew it".to_owned()));
        };
        let seen = on.still(&on.me, mine.fence, "a renewal").await?;
        for seen in [renewed, seen] {
            ensure!(seen.payload == *payload, "its payload is not {payload:?}: {seen:?}");
            ensure!(seen.memo == *memo, "its memo is not {memo:?}: {seen:?}");
        }
    }
    Ok(())
}

async fn a_renewal_may_be_sent_twice<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let mine = on.take(&on.me).await?;
    let first = on.renewed(&on.me, mine.fence).await?;
    let second = on.renewed(&on.me, mine.fence).await?;
    ensure!(second.expires_at >= first.expires_at, "it ends before: {second:?}");
    let request = || RenewRequest::new(&on.name, &on.me, mine.fence, on.ttl);
    for outcome in at_once([on.store.renew(request()), on.store.renew(request())]).await {
        let outcome = outcome?;
        let is_renewed = matches!(outcome, RenewOutcome::Renewed(_));
        ensure!(is_renewed, "of two at the same time one is lost: {outcome:?}");
    }
    Ok(())
}

// === 5: release gives back just what is one's own ===

async fn a_release_lets_the_next_one_in_at_once<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let mine = on.take(&on.me).await?;
    on.held(&on.you).await?;
    on.free(&on.me, mine.fence).await?;
    on.take(&on.you).await.map(drop)
}

async fn a_release_with_another_token_gives_nothing_back<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let mine = on.take(&on.me).await?;
    for fence in on.not(mine.fence) {
        keeps(on, &on.me, fence).await?;
    }
    on.still(&on.me, mine.fence, "another token").await.map(drop)
}

async fn a_release_by_somebody_else_gives_nothing_back<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let mine = on.take(&on.me).await?;
    keeps(on, &on.you, mine.fence).await?;
    on.still(&on.me, mine.fence, "somebody else").await.map(drop)
}

async fn a_release_of_ones_own_earlier_term_gives_nothing_back<S: Subject>(
    on: On<'_, '_, S>,
) -> Verdict {
    let first = on.take(&on.me).await?;
    on.free(&on.me, first.fence).await?;
    let second = on.take(&on.me).await?;
    keeps(on, &on.me, first.fence).await?;
    on.still(&on.me, second.fence, "a late release").await?;
    on.free(&on.me, second.fence).await?;
    let yours = on.take(&on.you).await?;
    keeps(on, &on.me, second.fence).await?;
    on.still(&on.you, yours.fence, "a late release").await.map(drop)
}

async fn a_release_twice_is_as_once<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let mine = on.take(&on.me).await?;
    on.free(&on.me, mine.fence).await?;
    match on.release(&on.me, mine.fence).await? {
        // A store that keeps no record of what is free cannot know whose it was.
        ReleaseOutcome::Released | ReleaseOutcome::NotHolder(None) => {}
        ReleaseOutcome::NotHolder(Some(record)) => {
            return Err(Fault(format!("it is told that it was not its own: {record:?}")));
        }
    }
    let second = on.take(&on.you).await?.fence;
    ensure!(second > mine.fence, "token {second} after {}", mine.fence);
    Ok(())
}

async fn a_release_of_what_never_was_is_not_done<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let never = FencingToken::new(on.last + 7).expect("it is not zero");
    let outcome = on.release(&on.me, never).await?;
    let held = match &outcome {
        ReleaseOutcome::Released => true,
        ReleaseOutcome::NotHolder(seen) => seen.as_ref().is_some_and(|of| of.holder.is_some()),
    };
    ensure!(!held, "nobody had it by that token: {outcome:?}");
    on.take(&on.you).await.map(drop)
}

async fn what_holders_leave_outlives_them<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let (renewal, last) = (Bytes::from_static(b"resigned twice"), Bytes::from_static(b"\0\xff"));
    let mine = on.take(&on.me).await?;
    let request = RenewRequest::new(&on.name, &on.me, mine.fence, on.ttl).memo(&renewal);
    on.store.renew(request).await?;
    on.free(&on.me, mine.fence).await?;
    let yours = on.take(&on.you).await?;
    ensure!(yours.memo == renewal, "what a renewal left is gone: {yours:?}");
    let request = ReleaseRequest::new(&on.name, &on.you, yours.fence).memo(&last);
    let outcome = on.store.release(request).await?;
    ensure!(outcome == ReleaseOutcome::Released, "its holder could not give it back");
    let third = on.take(&on.me).await?;
    ensure!(third.memo == last, "what a release left is gone: {third:?}");
    on.expire(&third).await?;
    let fourth = on.take(&on.you).await?;
    ensure!(fourth.memo == last, "what was left is gone with the end: {fourth:?}");
    Ok(())
}

// === 6: inspect sees every write that was answered ===

async fn nothing_is_seen_of_what_never_was<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let seen = on.look().await?;
    if on.last == 0 {
        ensure!(seen.is_none(), "nobody ever had it: {seen:?}");
    }
    let held = seen.as_ref().is_some_and(|seen| seen.holder.is_some());
    ensure!(!held, "nobody has it: {seen:?}");
    Ok(())
}

async fn what_was_answered_is_seen<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let mut mine = on.take(&on.me).await?;
    for _ in 0..4 {
        let seen = on.still(&on.me, mine.fence, "nobody").await?;
        ensure!(on.is_as(&seen, &mine), "a write is not seen: {seen:?}, not {mine:?}");
        ensure!(seen.name == on.name, "it is another lease: {seen:?}");
        on.pass(mine.granted_ttl / 8).await;
        mine = on.renewed(&on.me, mine.fence).await?;
    }
    on.free(&on.me, mine.fence).await?;
    let seen = on.look().await?;
    let held = seen.as_ref().is_some_and(|seen| seen.leader().is_some());
    ensure!(!held, "a release is not seen: {seen:?}");
    Ok(())
}

async fn the_time_and_the_end_are_of_one_clock<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let mine = on.take(&on.me).await?;
    let about = |left: Duration, of: Duration| left <= of && left + on.slack >= of;
    let full = mine.granted_ttl;
    ensure!(about(mine.remaining(), full), "of {full:?} are left {:?}", mine.remaining());
    let first = on.still(&on.me, mine.fence, "nobody").await?;
    ensure!(on.is_as(&first, &mine), "it has other times: {first:?}, not {mine:?}");
    on.pass(full / 2).await;
    let seen = on.still(&on.me, mine.fence, "nobody").await?;
    let left = seen.remaining();
    ensure!(about(left, full / 2), "after half of {full:?} are left {left:?}");
    ensure!(seen.expires_at == first.expires_at, "its end moves: {seen:?}, not {first:?}");
    let passed = seen.store_now.since(first.store_now);
    ensure!(about(full / 2, passed), "the store's clock went on by {passed:?}, not {:?}", full / 2);
    let held = on.held(&on.you).await?.remaining();
    ensure!(about(held, full / 2), "who asks is told that {held:?} are left");
    let renewed = on.renewed(&on.me, mine.fence).await?;
    let (left, full) = (renewed.remaining(), renewed.granted_ttl);
    ensure!(about(left, full), "of a renewal's {full:?} are left {left:?}");
    Ok(())
}

async fn the_times_of_a_record_are_in_order<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let mine = on.take(&on.me).await?;
    on.pass(mine.granted_ttl / 4).await;
    let renewed = on.renewed(&on.me, mine.fence).await?;
    on.pass(mine.granted_ttl / 4).await;
    let seen = on.still(&on.me, mine.fence, "nobody").await?;
    for of in [mine, renewed, seen] {
        ensure!(of.acquired_at <= of.renewed_at, "renewed before it began: {of:?}");
        ensure!(of.renewed_at <= of.store_now, "renewed in the future: {of:?}");
        ensure!(of.store_now < of.expires_at, "over while it is held: {of:?}");
    }
    Ok(())
}

async fn what_has_expired_is_seen_to_be_over<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let mine = on.take(&on.me).await?;
    on.expire(&mine).await?;
    if on.is_observed() {
        return Ok(());
    }
    if let Some(seen) = on.look().await? {
        ensure!(seen.is_expired() && seen.leader().is_none(), "it is over: {seen:?}");
        ensure!(seen.fence >= mine.fence, "its token is forgotten: {seen:?}");
    }
    Ok(())
}

async fn to_look_changes_nothing<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let mine = on.take(&on.me).await?;
    on.pass(mine.granted_ttl / 2).await;
    for _ in 0..3 {
        let seen = on.still(&on.me, mine.fence, "looking").await?;
        ensure!(on.is_as(&seen, &mine), "looking wrote: {seen:?}, not {mine:?}");
    }
    if !on.is_observed() {
        on.pass(mine.granted_ttl / 2 + 2 * on.slack).await;
        on.take(&on.you).await?;
    }
    Ok(())
}

// === 7: what is dropped is done, or not ===

/// After so many polls at the latest a call is believed to be ready.
const MOST_POLLS: usize = 64;

async fn an_acquire_that_is_dropped_is_done_or_not<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let mut last = on.last;
    for polls in 0..MOST_POLLS {
        let who = Identity::generate();
        let done = dropped_after(polls, on.ask(&who)).await;
        // What is on its way comes before what is asked now, or later: then it is found then.
        let (AcquireOutcome::Held(found) | AcquireOutcome::Acquired(found)) = on.ask(&who).await?;
        ensure!(found.fence.get() > last, "token {} after {last} ({polls} polls)", found.fence);
        last = found.fence.get();
        let holder = found.holder.clone();
        let holder = holder.ok_or_else(|| Fault(format!("held by nobody: {found:?}")))?;
        on.renewed(&holder, found.fence).await?;
        on.free(&holder, found.fence).await?;
        if done.is_some() {
            break;
        }
    }
    Ok(())
}

async fn a_renewal_that_is_dropped_is_done_or_not<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let mine = on.take(&on.me).await?;
    for polls in 0..MOST_POLLS {
        let done = dropped_after(polls, on.renew(&on.me, mine.fence)).await;
        on.still(&on.me, mine.fence, "a renewal that was dropped").await?;
        on.renewed(&on.me, mine.fence).await?;
        if done.is_some() {
            break;
        }
    }
    Ok(())
}

async fn a_release_that_is_dropped_is_done_or_not<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let mut last = on.last;
    for polls in 0..MOST_POLLS {
        let mine = on.take(&on.me).await?;
        ensure!(mine.fence.get() > last, "token {} after {last} ({polls} polls)", mine.fence);
        last = mine.fence.get();
        let done = dropped_after(polls, on.release(&on.me, mine.fence)).await;
        if let Some(seen) = on.look().await?
            && seen.holder.is_some()
        {
            ensure!(seen.is_held_by(&on.me) && seen.fence == mine.fence, "half released: {seen:?}");
        }
        on.free(&on.me, mine.fence).await?;
        if done.is_some() {
            break;
        }
    }
    Ok(())
}

// === 8: what is granted is enforced ===

async fn what_is_granted_is_enforced<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let mine = on.take(&on.me).await?;
    ensure!(mine.granted_ttl > Duration::ZERO, "nothing is granted: {mine:?}");
    on.pass(nearly(on, mine.granted_ttl)).await;
    let seen = on.held(&on.you).await?;
    ensure!(seen.is_held_by(&on.me) && seen.fence == mine.fence, "another has it: {seen:?}");
    on.renewed(&on.me, mine.fence).await.map(drop)
}

async fn what_a_renewal_grants_is_enforced<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let mine = on.take(&on.me).await?;
    on.pass(mine.granted_ttl / 2).await;
    let renewed = on.renewed(&on.me, mine.fence).await?;
    on.pass(nearly(on, renewed.granted_ttl)).await;
    on.held(&on.you).await?;
    on.renewed(&on.me, mine.fence).await.map(drop)
}

async fn a_longer_renewal_is_enforced_or_not_granted<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let mine = on.take(&on.me).await?;
    let request = RenewRequest::new(&on.name, &on.me, mine.fence, 3 * on.ttl);
    let RenewOutcome::Renewed(renewed) = on.store.renew(request).await? else {
        return Err(Fault("its holder could not renew it".to_owned()));
    };
    on.pass(nearly(on, renewed.granted_ttl)).await;
    on.held(&on.you).await.map(drop)
}

async fn what_is_left_is_never_more_than_what_is_granted<S: Subject>(on: On<'_, '_, S>) -> Verdict {
    let mine = on.take(&on.me).await?;
    let renewed = on.renewed(&on.me, mine.fence).await?;
    let held = on.held(&on.you).await?;
    let seen = on.still(&on.me, mine.fence, "nobody").await?;
    for of in [mine, renewed, held, seen] {
        let (left, granted) = (of.remaining(), of.granted_ttl);
        ensure!(left <= granted, "{left:?} are left of {granted:?}");
    }
    Ok(())
}

// === What they share ===

/// As much of `time` as passes surely before it is over, calls and late timers included.
fn nearly<S: Subject>(on: On<'_, '_, S>, time: Duration) -> Duration {
    time.saturating_sub(2 * on.slack)
}

/// Some ask at the same time. One has to get it, and the others have to be told who.
async fn race<S: Subject>(on: On<'_, '_, S>) -> Verdict<(Identity, LeaseRecord)> {
    let all: Vec<_> = (0..4).map(|_| Identity::generate()).collect();
    let other = on.subject.another_way();
    let asked = all.iter().enumerate().map(|(nth, who)| {
        let store = if nth % 2 == 0 { on.store } else { other };
        store.acquire(AcquireRequest::new(&on.name, who, on.ttl, &on.payload))
    });
    let (mut won, mut told) = (Vec::new(), Vec::new());
    for (who, outcome) in all.iter().zip(at_once(asked).await) {
        match outcome? {
            AcquireOutcome::Acquired(record) => won.push((who.clone(), record)),
            AcquireOutcome::Held(record) => told.push(record),
        }
    }
    ensure!(won.len() == 1, "{} of {} got it", won.len(), all.len());
    let (who, record) = won.swap_remove(0);
    let is_true = |seen: &LeaseRecord| seen.is_held_by(&who) && seen.fence == record.fence;
    ensure!(told.iter().all(is_true), "one who lost is told of somebody else: {told:?}");
    on.still(&who, record.fence, "who lost").await?;
    Ok((who, record))
}

/// A release that is not its holder's.
async fn keeps<S: Subject>(on: On<'_, '_, S>, who: &Identity, fence: FencingToken) -> Verdict {
    match on.release(who, fence).await? {
        ReleaseOutcome::NotHolder(_) => Ok(()),
        ReleaseOutcome::Released => Err(Fault("somebody else's was given back".to_owned())),
    }
}
