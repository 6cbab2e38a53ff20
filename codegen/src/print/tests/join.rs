//! Products that a loader brings as one: along the same rows, block of columns after block.

use crate::dsl::{TraceMeta, prelude::*, trace};

use super::loader::{Given, emitted, has_loader, sides};

/// How often the loader of a role that does this begins to bring pieces, and of how many it does.
#[track_caller]
fn brings(body: impl FnOnce(Group, Given)) -> Vec<u32> {
    let traced = trace(TraceMeta::new("sample", 1, 32, 8), |p| {
        let given = Given::of(p);
        role("multiply", 2, |b| body(b, given));
    });
    let source = emitted(&traced.unwrap_or_else(|e| panic!("{e}")), "cuda:sm_90a");
    assert!(has_loader(&source));
    let [loads, _] = sides(&source.text);
    let calls = loads.split("bring_pieces(").skip(1).map(|call| call.split(");").next().expect("it ends"));
    calls.map(|call| call.rsplit(", ").next().expect("pieces").parse().expect("a number")).collect()
}

/// Adds the products over 64 columns, those over the next ones in a loop of three turns less `first`, and those over the last 8.
#[kernel]
fn blocks(b: Group, g: Given, first: u32, others: bool) {
    let (x, w) = (g.x.rows(0, 128), g.w.rows(64, 64));
    let mut sums = var(b.dot(x.columns(0, 64), w, 3));
    for i in first.val()..3u32.val() {
        let of = if others { g.x.rows(128, 128) } else { x };
        let next = b.dot(of.columns(i * 64, 64), w, 3);
        let before = sums.get();
        sums.set(before + next);
    }
    let rest = b.dot(x.columns(192, 8), w, 3);
    g.store(sums.get() + rest);
}

#[test]
fn products_of_the_same_rows_are_brought_as_one() {
    assert_eq!(brings(|b, g| blocks(b, g, 1, false)), [4]);
    // A block is left out, and the last one's rows are others.
    assert_eq!(brings(|b, g| blocks(b, g, 2, false)), [1, 1, 1]);
    assert_eq!(brings(|b, g| blocks(b, g, 1, true)), [1, 1, 1]);
}
