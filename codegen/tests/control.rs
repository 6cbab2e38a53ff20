//! `#[kernel]` on device values: what the rewritten control flow traces.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::Kernel;

/// Traces `body` as the one role of a kernel with the buffers `x` (u32) and `y` (f32).
#[track_caller]
fn traced(body: impl FnOnce(Group, Ptr<u32>, Ptr<f32>)) -> Kernel {
    let kernel = trace(TraceMeta::new("k", 4, 32, 4), |binder: &mut Binder| {
        let x = binder.arg::<Ptr<u32>>("x", 64);
        let y = binder.arg::<Ptr<f32>>("y", 64);
        role("main", 2, |b| body(b, x, y));
    });
    kernel.unwrap_or_else(|e| panic!("{e}"))
}

#[kernel]
fn branches(_: Group, x: Ptr<u32>, y: Ptr<f32>) {
    let n = x.get(0);
    if n < 3 {
        x.set(1, n);
    } else if n >= 2 * n && n != 7 {
        x.set(2, n + 1);
    }
    let w = if n == 4 { y.get(0) } else { 0.5 };
    y.set(1, w);
    let (a, b) = if 5 > n { (n, w) } else { (n + 1, w * 2.0) };
    y.set(a, b);
}

#[test]
fn if_compare_and_merge() {
    insta::assert_snapshot!(traced(branches));
}
