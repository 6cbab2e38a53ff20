//! Additions of tiles to shared and to global memory, in the printer's and the simulator's tests.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{TraceMeta, trace};
use peerwarp_codegen::ir::Kernel;

/// Numbers that are counted.
pub const NUMBERS: u32 = 1024;
/// Places that they are counted in.
pub const BINS: u32 = 32;
const PIECE: u32 = 128;

#[derive(Clone, Copy)]
struct Args {
    x: Ptr<u32>,
    weight: Ptr<f32>,
    counts: Ptr<u32>,
    sums: Ptr<f32>,
}

/// How many numbers come into each bin, counted in shared memory first, and the sum of their weights.
pub fn histogram(warp_size: u32) -> Kernel {
    let mut meta = TraceMeta::new("histogram", 1, warp_size, 4);
    meta.doc = "Counts numbers by their remainder.".into();
    trace(meta, |p| {
        let (x, weight) =
            (p.arg::<Ptr<u32>>("x", NUMBERS.into()), p.arg::<Ptr<f32>>("weight", NUMBERS.into()));
        let (counts, sums) =
            (p.arg::<Ptr<u32>>("counts", BINS.into()), p.arg::<Ptr<f32>>("sums", BINS.into()));
        role("count", 2, |b| count(b, Args { x, weight, counts, sums }));
    })
    .unwrap_or_else(|e| panic!("{e}"))
}

#[kernel]
fn count(b: Group, a: Args) {
    let bins = shared::<u32>("bins", BINS);
    bins.store(0, splat(0u32, BINS));
    for piece in b.strided(NUMBERS / PIECE) {
        let bin = a.x.load(piece * PIECE, PIECE) % BINS;
        bins.scatter_add(bin, splat(1u32, PIECE), true);
        a.sums.scatter_add_unordered(bin, a.weight.load(piece * PIECE, PIECE), true);
    }
    let counted = bins.load(0, BINS);
    a.counts.scatter_add(arange(BINS), counted, counted.gt(0));
}
