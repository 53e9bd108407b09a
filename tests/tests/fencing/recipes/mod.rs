//! The recipes of `docs/recipes`, as they are shown in the chapter on fencing, each in what it is for.
//!
//! Whatever writers do, old and new ones at once, each accepted write has a token no less than the one before.

#[cfg(target_os = "linux")]
mod etcd;
#[cfg(target_os = "linux")]
mod postgres;
#[cfg(target_os = "linux")]
mod redis;
mod sqlite;

const ROW: &str = include_str!("../../../../docs/recipes/row.sql");
const TABLE: &str = include_str!("../../../../docs/recipes/guard_table.sql");
const RAISE: &str = include_str!("../../../../docs/recipes/guard_raise.sql");
const CHECK: &str = include_str!("../../../../docs/recipes/guard_check.sql");
const LIFT: &str = include_str!("../../../../docs/recipes/lift.sql");
const LUA: &str = include_str!("../../../../docs/recipes/write.lua");
const ETCD: &str = include_str!("../../../../docs/recipes/etcd.rs");

/// Those who write at once.
const WRITERS: i64 = 4;
const TERMS: i64 = 50;

/// The tokens that a writer comes with, one after the other: old ones now and then.
fn tokens(writer: i64) -> impl Iterator<Item = i64> {
    (1..=TERMS).map(move |term| if (term + writer) % 3 == 0 { term / 2 + 1 } else { term })
}

/// What was accepted, in order, and how many were not.
fn assert_fenced(accepted: &[i64], refused: usize) {
    assert!(accepted.is_sorted(), "{accepted:?}");
    assert_eq!(accepted.len() + refused, (WRITERS * TERMS) as usize, "each is one or the other");
    assert!(refused > 0 && accepted.contains(&TERMS));
}

/// What the chapter shows is what is run here.
#[test]
fn the_chapter_shows_the_recipes_as_they_are() {
    let chapter = include_str!("../../../../docs/fencing.md");
    for recipe in [ROW, TABLE, RAISE, CHECK, LIFT, LUA, ETCD] {
        let shown = chapter.contains(&format!("\n{recipe}```"));
        assert!(shown, "the chapter does not have:\n{recipe}");
    }
}
