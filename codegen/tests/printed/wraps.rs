//! Integers that wrap: casts that drop bits of an index, and counters near the end of their type.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::Kernel;

/// Ranks of the kernels here.
pub const RANKS: u32 = 1;

fn traced(name: &str, warp_size: u32, body: impl FnOnce(&mut Binder)) -> Kernel {
    trace(TraceMeta::new(name, RANKS, warp_size, 2), body).unwrap_or_else(|e| panic!("{e}"))
}

/// Stores a row and loads it one element on, from an index whose high bits a cast drops.
pub fn cut(warp_size: u32) -> Kernel {
    traced("cut", warp_size, |p| {
        let (x, out) = (p.arg::<Ptr<u32>>("x", 257), p.arg::<Ptr<u32>>("out", 256));
        role("main", 1, |_| {
            let row = shared::<u32>("row", 256);
            let at = x.get(256);
            row.store(at, x.load(0, 256));
            let same = (at.to_u64() + (1u64 << 32)).to_u32();
            out.store(0, row.load(same + 1, 255));
            out.set(255, 0);
        });
    })
}

/// Counts with a step after which the next number is beyond the largest of the type: as `u32`, `u64` and `i32`.
pub fn steps(warp_size: u32) -> Kernel {
    traced("steps", warp_size, |p| {
        let x = p.arg::<Ptr<u32>>("x", 4);
        let out = p.arg::<Ptr<u32>>("out", 4);
        role("main", 1, |_| count(x, out));
    })
}

#[kernel]
fn count(x: Ptr<u32>, out: Ptr<u32>) {
    let (end, step) = (x.get(0), x.get(1));
    let mut narrow = var(0u32);
    for i in (0..end).step_by(step) {
        narrow += i / 16 + 1;
    }
    out.set(0, narrow);
    let high = u64::MAX - 1000 + end.to_u64() / end.to_u64();
    let mut wide = var(0u32);
    for i in (high..high + 900).step_by(500u64) {
        wide += (i % 7u64).to_u32() + 1;
    }
    out.set(1, wide);
    let most = x.get(2).to_i32();
    let mut signed = var(0u32);
    for i in (1_000_000_000..most).step_by(1_500_000_000) {
        signed += (i / 1_000_000_000).to_u32();
    }
    out.set(2, signed);
    let mut all = var(0u32);
    for i in 0..x.get(3) {
        all += i;
    }
    out.set(3, all);
}
