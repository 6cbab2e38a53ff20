//! Loaders of roles that multiply what other blocks of the launch write: they wait for what blocks tell each other.

use crate::dsl::{TraceMeta, prelude::*, trace};

use super::loader::{Given, emitted, has_loader, sides};

/// Both sides of a role that multiplies rows of `x`, which another role makes and tells of; none without a loader.
#[track_caller]
fn told(body: impl FnOnce(Group, Given, BlockFlags, Epoch)) -> Option<[String; 2]> {
    let traced = trace(TraceMeta::new("sample", 1, 32, 8), |p| {
        let given = Given::of(p);
        let made: BlockFlags = p.arg("made", 4);
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("make", 4, |b| {
            given.x.rows(b.index() * 128, 128).store_f32(0, given.w.rows(0, 128).load_f32(0, 128));
            made.signal(b.index(), epoch);
        });
        role("multiply", 2, |b| body(b, given, made, epoch));
    });
    let source = emitted(&traced.unwrap_or_else(|e| panic!("{e}")), "cuda:sm_90a");
    has_loader(&source).then(|| sides(&source.text))
}

/// The loader waits for them, with the other operand on its way, and brings whole boxes of rows that may hold anything.
#[test]
fn operands_that_blocks_tell_each_other_of_are_brought() {
    let product = |b: Group, g: Given| b.dot(g.x.rows(0, 128).known_below(100), g.w.rows(64, 64), 3);
    let [loads, multiplies] = told(|b, g, made, epoch| {
        made.wait_drawn(0, 1, epoch);
        g.store(product(b, g));
    })
    .expect("it waits for the block that makes them");
    let at = |text: &str, what: &str| text.find(what).unwrap_or_else(|| panic!("{what}: {text}"));
    let [ahead, wait, rest] = [
        "bring_right_ahead(",
        "wait_for_blocks(loader, args, args.made, 0, 1, role_make, any_block",
        "bring_rest(",
    ]
    .map(|what| at(&loads, what));
    assert!(ahead < wait && wait < rest, "{loads}");
    assert!(
        !multiplies.contains("wait_for_blocks("),
        "a piece tells them that the loader has waited: {multiplies}"
    );
    // They wait themselves for what they read before they have a piece.
    let [_, multiplies] = told(|b, g, made, epoch| {
        made.wait_drawn(0, 1, epoch);
        let row = g.y.get(0);
        g.store(b.dot(g.x.rows(row, 128).known_below(100), g.w.rows(64, 64), 3));
    })
    .expect("a number of an input");
    at(&multiplies, "wait_for_blocks(block, args, args.made");
    // The role does not wait, or not always, or the role stores them itself in between.
    assert!(told(|b, g, _, _| g.store(product(b, g))).is_none());
    assert!(told(wait_at_times).is_none());
    assert!(
        told(|b, g, made, epoch| {
            made.wait_drawn(0, 1, epoch);
            g.x.rows(0, 128).store_f32(0, g.w.rows(0, 128).load_f32(0, 64));
            g.store(product(b, g));
        })
        .is_none()
    );
}

#[kernel]
fn wait_at_times(b: Group, g: Given, made: BlockFlags, epoch: Epoch) {
    if g.y.get(0) == 0 {
        made.wait_drawn(0, 1, epoch);
    }
    g.store(b.dot(g.x.rows(0, 128).known_below(100), g.w.rows(64, 64), 3));
}

/// A loader reads numbers that blocks tell it of, and none that its own role writes.
#[test]
fn numbers_that_blocks_tell_of_are_read() {
    let told_of = |stores: bool| {
        let traced = trace(TraceMeta::new("sample", 1, 32, 8), |p| {
            let (given, made) = (Given::of(p), p.arg::<BlockFlags>("made", 1));
            let epoch = p.arg::<EpochWord>("epoch", 1).begin();
            role("make", 1, |_| {
                given.y.set(0, 128u32);
                made.signal(0, epoch);
            });
            role("multiply", 2, |b| {
                made.from(0).wait(0, epoch);
                let row = given.y.get(0);
                if stores {
                    given.y.set(1, row);
                }
                given.store(b.dot(given.x.rows(row, 128), given.w.rows(0, 64), 3));
            });
        });
        has_loader(&emitted(&traced.unwrap_or_else(|e| panic!("{e}")), "cuda:sm_90a"))
    };
    assert!(told_of(false) && !told_of(true));
}
