//! Products of fp8 and of bf16 added up, with a scale for each row.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{TraceMeta, trace};
use peerwarp_codegen::ir::{Dtype, Kernel};

/// Rows and columns of the result, and columns that are multiplied: no tile and no piece divides them.
pub const ROWS: u32 = 70;
pub const COLUMNS: u32 = 40;
pub const K: u32 = 272;
/// Rows of a tile.
const TILE: u32 = 64;

/// Products of fp8, with columns picked from column `from` on, and of bf16 added up, by tiles of so many columns; rows have scales.
pub fn kernel(warp_size: u32, from: u32, tile: u32) -> Kernel {
    trace(TraceMeta::new("fp8_products", 1, warp_size, 4), |p| {
        let x: AnyMatrix = p.matrix("x", [ROWS, K], Dtype::Fp8);
        let w: AnyMatrix = p.matrix("w", [COLUMNS, K], Dtype::Fp8);
        let left: AnyMatrix = p.matrix("left", [ROWS, 72], Dtype::Bf16);
        let right: AnyMatrix = p.matrix("right", [COLUMNS, 72], Dtype::Bf16);
        let scales: Ptr<f32> = p.arg("scales", ROWS.into());
        let out: AnyMatrix = p.matrix("out", [ROWS, COLUMNS], Dtype::F32);
        body([from, tile], [x, w], [left, right], scales, out);
    })
    .unwrap_or_else(|e| panic!("{e}"))
}

#[kernel]
fn body(
    [from, wide]: [u32; 2],
    [x, w]: [AnyMatrix; 2],
    [left, right]: [AnyMatrix; 2],
    scales: Ptr<f32>,
    out: AnyMatrix,
) {
    role("multiply", 2, |b| {
        for tile in b.strided(2u32) {
            let row = tile * TILE;
            let sums = b.dot(x.rows(row, TILE).columns(0, from), w.rows(0, wide), 2);
            let sums = b.dot_add(sums, x.rows(row, TILE).columns(from, K - from), w.rows(0, wide), 2);
            let sums = sums * scales.load_columns_f32(row, [TILE, wide]);
            let sums = b.dot_add(sums, left.rows(row, TILE), right.rows(0, wide), 2);
            out.rows(row, TILE).store_f32(0, sums);
        }
    });
}

/// A matrix of small whole numbers: fp8 has all of them, and sums of products are exact.
pub fn matrix(rows: u32, columns: u32, seed: u32) -> Vec<f32> {
    (0..rows * columns).map(|i| ((i * 7 + i / columns * 3 + seed * 13) % 17) as f32 - 8.0).collect()
}
