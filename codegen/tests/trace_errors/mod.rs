//! The error while a `#[kernel]` function is traced, for each mistake that rustc cannot see.
//!
//! The snapshots show the author's source from the reported place on: they pin that an error points at the right token,
//! and do not change when lines move. (Mistakes that do not need the attribute are in `dsl_errors.rs`.)
#![allow(
    clippy::never_loop,
    clippy::explicit_counter_loop,
    reason = "the kernels in here are mistakes on purpose"
)]

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{TraceMeta, trace};
use peerwarp_codegen::ir::Loc;

/// What every case gets.
#[derive(Clone, Copy)]
struct Args {
    g: Group,
    x: Ptr<u32>,
    y: Ptr<f32>,
    inbox: Sym<u32>,
    flag: Flags,
    next_row: Counters,
    epoch: Epoch,
}

/// The error of a kernel that must fail.
fn error(name: &str, body: fn(Args)) -> String {
    let result = trace(TraceMeta::new("test", 8, 32, 4), |p| {
        let (x, y) = (p.arg("x", 64), p.arg("y", 64));
        let (inbox, flag) = (p.arg("inbox", 1024), p.arg("flag", 8));
        let next_row = p.arg("next_row", 1);
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("main", 2, |g| body(Args { g, x, y, inbox, flag, next_row, epoch }));
    });
    let error = result.expect_err(name);
    let mut text = format!("# {name}\n{}\n  at {}\n", error.message, source(error.loc));
    for (loc, what) in &error.notes {
        text += &format!("  note: {what}: {}\n", source(*loc));
    }
    text + &format!("  help: {}\n", error.help)
}

/// The source from a place on.
fn source(loc: Loc) -> String {
    let files = [("guard.rs", include_str!("guard.rs")), ("exits.rs", include_str!("exits.rs"))];
    let file = files.iter().find(|(name, _)| loc.file.ends_with(name));
    let (_, text) = file.unwrap_or_else(|| panic!("{loc:?} is not the author's"));
    text.lines().nth(loc.line as usize - 1).unwrap()[loc.col as usize - 1..].to_owned()
}

/// Snapshot of the errors of several kernels.
macro_rules! errors {
    ($($name:literal: $case:ident)*) => {
        let text = [$(error($name, $case)),*].join("\n");
        insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!(text) });
    };
}

mod exits;
mod guard;
