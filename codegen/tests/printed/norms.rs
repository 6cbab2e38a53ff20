//! Reductions along rows and columns of products, in the printer's and the simulator's tests.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{TraceMeta, trace};
use peerwarp_codegen::ir::{Dtype, Kernel};

/// Rows of the left matrix and of the right one, and columns that are multiplied. Rows end within a tile.
pub const ROWS: u32 = 70;
pub const COLUMNS: u32 = 64;
pub const K: u32 = 72;
/// Rows of tiles for which columns are added up.
pub const BANDS: u32 = 2;
/// Columns of what rows come to: one number.
pub const EACH: u32 = 1;

#[derive(Clone, Copy)]
struct Norms {
    x: AnyMatrix,
    w: AnyMatrix,
    normed: AnyMatrix,
    least: AnyMatrix,
    weights: AnyMatrix,
    sums: AnyMatrix,
    most: AnyMatrix,
}

/// Rows of a product less their mean, over their deviation; weights of the elements of a row, as attention has them; and what columns come
/// to.
pub fn norms(warp_size: u32) -> Kernel {
    let mut meta = TraceMeta::new("norms", 2, warp_size, 4);
    meta.doc = "Rows and columns of products.".into();
    trace(meta, |p| {
        let a = Norms {
            x: p.matrix("x", [ROWS, K], Dtype::Bf16),
            w: p.matrix("w", [COLUMNS, K], Dtype::Bf16),
            normed: p.matrix("normed", [ROWS, COLUMNS], Dtype::F32),
            least: p.matrix("least", [ROWS, EACH], Dtype::F32),
            weights: p.matrix("weights", [ROWS, COLUMNS], Dtype::F32),
            sums: p.matrix("sums", [BANDS, COLUMNS], Dtype::F32),
            most: p.matrix("most", [BANDS, COLUMNS], Dtype::F32),
        };
        role("normalise", 2, |b| normalise(b, a));
        role("weigh", 1, |b| weigh(b, a));
        role("add_up", 1, |b| add_up(b, a));
    })
    .unwrap_or_else(|e| panic!("{e}"))
}

/// Tiles whose rows several warps share.
#[kernel]
fn normalise(b: Group, a: Norms) {
    for band in b.strided(ROWS.div_ceil(32)) {
        let row = band * 32;
        let x = b.dot(a.x.rows(row, 32), a.w.rows(0, COLUMNS), 2);
        let each = 1.0 / COLUMNS as f32;
        let centred = x - x.row_sum() * each;
        let variance = (centred * centred).row_sum() * each;
        a.normed.rows(row, 32).store_f32(0, centred / (variance + 1e-5).sqrt());
        a.least.rows(row, 32).store_f32(0, x.row_min());
    }
}

/// Tiles of which each warp has whole rows.
#[kernel]
fn weigh(b: Group, a: Norms) {
    for band in b.strided(BANDS) {
        let row = band * 64;
        let scores = b.dot(a.x.rows(row, 64), a.w.rows(0, COLUMNS), 2) * 0.125;
        let weights = (scores - scores.row_max()).exp();
        a.weights.rows(row, 64).store_f32(0, weights / weights.row_sum());
    }
}

/// Tiles whose columns several warps share. Rows that are not there are zero.
#[kernel]
fn add_up(b: Group, a: Norms) {
    for band in b.strided(BANDS) {
        let x = b.dot(a.x.rows(band * 64, 64), a.w.rows(0, COLUMNS), 2);
        // Of equal rows one is there.
        a.sums.rows(band, 64).below(band + 1).store_f32(0, x.column_sum());
        a.most.rows(band, 64).below(band + 1).store_f32(0, x.column_max() + x.column_min());
    }
}
