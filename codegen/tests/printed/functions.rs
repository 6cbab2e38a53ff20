//! Functions that every target computes alike, in the printer's tests and as emitted text.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{TraceMeta, trace};
use peerwarp_codegen::ir::Kernel;

/// Numbers that each function is computed of.
pub const NUMBERS: u32 = 16_384;
/// Functions.
pub const FUNCTIONS: u32 = 5;
const PIECE: u32 = 256;

/// Each function of each number.
pub fn functions(warp_size: u32) -> Kernel {
    let mut meta = TraceMeta::new("functions", 1, warp_size, 4);
    meta.doc = "Functions of each number.".into();
    trace(meta, |p| {
        let x = p.arg::<Ptr<f32>>("x", NUMBERS.into());
        let out = p.arg::<Ptr<f32>>("out", (FUNCTIONS * NUMBERS).into());
        role("compute", 2, |b| compute(b, x, out));
    })
    .unwrap_or_else(|e| panic!("{e}"))
}

#[kernel]
fn compute(b: Group, x: Ptr<f32>, out: Ptr<f32>) {
    for piece in b.strided(NUMBERS / PIECE) {
        let at = piece * PIECE;
        let x = x.load(at, PIECE);
        out.store(at, x.rsqrt());
        out.store(at + NUMBERS, x.log());
        out.store(at + 2 * NUMBERS, x.erf());
        out.store(at + 3 * NUMBERS, x.sin());
        out.store(at + 4 * NUMBERS, x.cos());
    }
}

/// Numbers spread over all bit patterns, and those where something ends or begins.
#[allow(dead_code)] // the printer's tests compute nothing
pub fn numbers() -> Vec<f32> {
    let ends = [0.0, 1.0, 4.0, 0.70710677, 1048576.0, f32::MIN_POSITIVE, f32::MAX, f32::INFINITY, f32::NAN];
    let beside = ends.into_iter().flat_map(|x: f32| [x, x.next_up(), x.next_down()]);
    let angles = (1..200).map(|i| i as f32 * std::f32::consts::FRAC_PI_4);
    let first: Vec<f32> = beside.chain(angles).flat_map(|x| [x, -x]).collect();
    let rest = NUMBERS as usize - first.len();
    let all = (0..rest as u64).map(|i| f32::from_bits((i * u64::from(u32::MAX) / rest as u64) as u32));
    first.into_iter().chain(all).collect()
}
